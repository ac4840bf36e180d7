//! Names of units: from `slice:prefix:name`, or a task's id, to the unit, and
//! from there to the cgroup that systemd makes of it.
//!
//! ```text
//!   kubepods-burstable.slice:cri-containerd:7f3a
//!     ─► cri-containerd-7f3a.scope in kubepods-burstable.slice
//!     ─► /kubepods.slice/kubepods-burstable.slice/cri-containerd-7f3a.scope
//! ```
//!
//! Source of the rules: systemd.unit(5), systemd.slice(5), systemd-escape(1).
//! Pure: sends no request to systemd.

use bowline_error::{Error, Kind, Result};
use bowline_spec::host_limits::{UnitKind, UnitName};
use bowline_spec::place::SandboxPlace;
use bowline_spec::unit::{LONGEST, ROOT, escaped, folder, parent, part, slice_path};
use serde::{Deserialize, Serialize};

/// The slice of a scope whose path names none.
const SYSTEM: &str = "system.slice";

/// A systemd unit that a task or a shim is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    /// The unit's name: `bowline-web.scope`.
    pub name: String,
    /// The slice that it is in: `bowline-web.slice`.
    pub slice: String,
    /// Whether the slice was made for this sandbox alone, and ends with it.
    #[serde(default)]
    pub own_slice: bool,
}

impl Unit {
    /// The unit that a cgroup path of the form `slice:prefix:name` means; `None` for an absolute
    /// path, which belongs to no unit.
    ///
    /// # Errors
    /// `BadSpec` naming the wrong part of the path.
    pub fn parse(text: &str) -> Result<Option<Unit>> {
        if text.starts_with('/') || !text.contains(':') {
            return Ok(None);
        }
        let parts: Vec<&str> = text.split(':').collect();
        let [slice, prefix, name] = parts[..] else {
            return Err(bad(text, "it has not three parts"));
        };
        if name.is_empty() {
            return Err(bad(text, "its name is empty"));
        }
        let slice = if slice.is_empty() { SYSTEM } else { slice };
        check_slice(text, slice)?;
        if name.ends_with(".slice") {
            check_slice(text, name)?;
            if name == ROOT {
                return Err(bad(text, "a task cannot be the root of all slices"));
            }
            return Ok(Some(Unit { name: name.to_owned(), slice: parent(name), own_slice: false }));
        }
        Unit::scope(format!("{}-{}", escaped(prefix), escaped(name)), slice.to_owned()).map(Some)
    }

    /// The scope of the task `id` of a sandbox, in the sandbox's own slice.
    pub fn of_task(sandbox: &str, id: &str) -> Result<Unit> {
        Ok(Unit { own_slice: true, ..Unit::scope(format!("bowline-{}", escaped(id)), slice_of(sandbox))? })
    }

    /// The scope of the sandbox's shim, beside the scopes of its tasks, whose ids have no colon.
    pub fn of_shim(sandbox: &str) -> Result<Unit> {
        Unit::of_shim_in(slice_of(sandbox), sandbox, "")
    }

    /// The scope of the sandbox's shim in the slice, or the place, of the sandbox; its name begins with `prefix`.
    fn of_shim_in(slice: String, sandbox: &str, prefix: &str) -> Result<Unit> {
        let stem = format!("{prefix}bowline-{}:overhead", escaped(sandbox));
        Ok(Unit { own_slice: true, ..Unit::scope(stem, slice)? })
    }

    /// The slice of a sandbox at `place`; its members are in it.
    pub fn of_sandbox(place: &SandboxPlace) -> Result<Unit> {
        let name = place.slice()?;
        Ok(Unit { slice: parent(&name), name, own_slice: true })
    }

    /// The scope of the member `id` in the slice of its sandbox, whatever characters the id has.
    pub fn of_member(sandbox: &Unit, id: &str) -> Result<Unit> {
        Unit::scope(format!("bowline-{}", escaped(id)), sandbox.name.clone())
    }

    /// The scope of the shim of `sandbox`, in the slice at `place`; its name begins with `prefix`.
    pub fn of_sandboxs_shim(place: &SandboxPlace, sandbox: &str, prefix: &str) -> Result<Unit> {
        Unit::of_shim_in(place.slice()?, sandbox, prefix)
    }

    /// The scope of the shim, for a task in its sandbox's own slice.
    pub fn of_shim_too(&self) -> Option<Unit> {
        let stem = self.name.strip_suffix(".scope").filter(|_| self.own_slice)?;
        Some(Unit { name: format!("{stem}:overhead.scope"), ..self.clone() })
    }

    /// The scope of the task `id` in a slice that bowline did not make.
    ///
    /// # Errors
    /// `Usage` for a name that is no slice's.
    pub fn in_slice(slice: &str, id: &str) -> Result<Unit> {
        let wrong = |error: Error| Error::new(Kind::Usage, format!("--slice: {}", error.message()));
        match slice.parse::<UnitName>() {
            Ok(name) if name.kind() == UnitKind::Slice => {
                Unit::scope(format!("bowline-{}", escaped(id)), slice.to_owned())
            }
            Ok(name) => {
                let message = format!("{name} is no slice, as it does not end with .slice");
                Err(wrong(Error::new(Kind::Usage, message)))
            }
            Err(invalid) => Err(wrong(invalid.into())),
        }
    }

    fn scope(stem: String, slice: String) -> Result<Unit> {
        let name = format!("{stem}.scope");
        if name.len() > LONGEST {
            let long = format!("the unit's name {name} has {} bytes, and may have {LONGEST}", name.len());
            return Err(Error::new(Kind::BadSpec, long).hint("choose a shorter name"));
        }
        Ok(Unit { name, slice, own_slice: false })
    }

    /// Whether this is a slice, which takes no process when it is started.
    pub fn is_slice(&self) -> bool {
        self.name.ends_with(".slice")
    }

    /// The unit's cgroup, below every hierarchy that systemd manages.
    pub fn path(&self) -> String {
        if self.is_slice() {
            return slice_path(&self.name);
        }
        format!("{}/{}", slice_path(&self.slice), folder(&self.name))
    }

    /// The scope or slice whose cgroup is at `path`; `None` if `path` belongs to no unit.
    pub fn of_path(path: &str) -> Option<Unit> {
        // systemd puts `_` before a name that the kernel uses.
        let name = |folder: &str| folder.strip_prefix('_').unwrap_or(folder).to_owned();
        let (above, last) = path.rsplit_once('/')?;
        let named = name(last);
        let slice = match () {
            () if named.ends_with(".slice") => parent(&named),
            () if !named.ends_with(".scope") => return None,
            () if above.is_empty() => ROOT.to_owned(),
            () => name(above.rsplit('/').next()?),
        };
        let unit = Unit { name: named, slice, own_slice: false };
        (unit.path() == path).then_some(unit)
    }

    /// The slices that were made for bowline alone, the unit's own first: they end when nothing is in them.
    pub fn own_slices(&self) -> Vec<String> {
        let own = self.own_slice.then(|| self.slice.clone());
        own.into_iter().flat_map(|slice| [slice.clone(), parent(&slice)]).collect()
    }
}

/// The slice of a sandbox, which is nested in no other sandbox's slice.
fn slice_of(sandbox: &str) -> String {
    format!("bowline-{}.slice", part(sandbox))
}

/// Checks that systemd accepts `name` as a slice's name.
fn check_slice(text: &str, name: &str) -> Result<()> {
    let refuse = |why: &str| Err(bad(text, format!("{name:?} {why}")));
    let Some(stem) = name.strip_suffix(".slice") else {
        return refuse("is no slice, as it does not end with .slice");
    };
    if name == ROOT {
        return Ok(());
    }
    if name.len() > LONGEST {
        return refuse(&format!("has {} bytes, and may have {LONGEST}", name.len()));
    }
    // It is given as a unit's name, so it is escaped already.
    if let Some(odd) = stem.chars().find(|c| !c.is_ascii_alphanumeric() && !":_.-\\".contains(*c)) {
        return refuse(&format!("has {odd:?}, which must be escaped: see systemd-escape(1)"));
    }
    if stem.is_empty() || stem.starts_with('-') || stem.ends_with('-') || stem.contains("--") {
        return refuse("has an empty part before or after a -");
    }
    Ok(())
}

fn bad(text: &str, why: impl std::fmt::Display) -> Error {
    let message = format!("cgroup path {text:?} is not of the form slice:prefix:name: {why}");
    Error::new(Kind::BadSpec, message).hint("write it as system.slice:web:1, or with no slice as :web:1")
}

#[cfg(test)]
mod tests {
    use bowline_spec::unit::unescaped;
    use proptest::prelude::*;

    use super::*;

    fn unit(text: &str) -> Unit {
        Unit::parse(text).expect("a good path").expect("a unit's")
    }

    fn named(name: &str, slice: &str) -> Unit {
        Unit { name: name.to_owned(), slice: slice.to_owned(), own_slice: false }
    }

    #[test]
    fn a_path_names_a_scope_in_a_slice() {
        let pod = unit("kubepods-burstable-pod1_2.slice:cri-containerd:7f");
        assert_eq!(pod, named("cri-containerd-7f.scope", "kubepods-burstable-pod1_2.slice"));
        let at = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-7f.scope";
        assert_eq!(pod.path(), at);
        assert_eq!(unit(":docker:7f"), named("docker-7f.scope", "system.slice"));
        assert_eq!(unit("-.slice:a:b").path(), "/a-b.scope");
        // As in runc and crun.
        assert_eq!(unit("system.slice::b").name, "-b.scope");
    }

    #[test]
    fn a_name_that_is_a_slices_is_a_slice() {
        let slice = unit("a.slice::a-b.slice");
        assert!(slice.is_slice());
        assert_eq!((slice.path().as_str(), slice.slice.as_str()), ("/a.slice/a-b.slice", "a.slice"));
    }

    #[test]
    fn an_absolute_path_is_no_units() {
        for path in ["/a/b", "/a:b:c", "plain", ""] {
            assert_eq!(Unit::parse(path), Ok(None), "{path:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_an_error_that_says_why() {
        let long = format!(":a:{}", "b".repeat(300));
        let cases = [
            ("a:b", "three parts"),
            ("a:b:c:d", "three parts"),
            ("::", "empty"),
            ("a:b:c", ".slice"),
            ("a b.slice:c:d", "' '"),
            ("../x.slice:c:d", "'/'"),
            ("a--b.slice:c:d", "empty part"),
            ("-a.slice:c:d", "empty part"),
            (".slice:c:d", "empty part"),
            (":a:b--c.slice", "empty part"),
            (":a:-.slice", "root"),
            (&long, "255"),
        ];
        for (path, why) in cases {
            let error = Unit::parse(path).expect_err(path);
            assert_eq!(error.kind(), Kind::BadSpec, "{path}");
            assert!(error.to_string().contains(why), "{path}: {error}");
        }
    }

    #[test]
    fn odd_characters_are_escaped() {
        assert_eq!(unit(":a/b:c d@e\\é").name, "a\\x2fb-c\\x20d\\x40e\\x5c\\xc3\\xa9.scope");
        assert_eq!(unit(":.a:b").name, "\\x2ea-b.scope");
    }

    #[test]
    fn a_task_has_a_scope_in_a_slice_of_its_own() {
        let task = Unit::of_task("web-1", "web-1").expect("short");
        assert_eq!(task.path(), "/bowline.slice/bowline-web\\x2d1.slice/bowline-web-1.scope");
        assert_eq!(task.own_slices(), ["bowline-web\\x2d1.slice", "bowline.slice"]);
        let shim = Unit::of_shim("web-1").expect("short");
        assert_eq!((shim.slice.as_str(), shim.name.as_str()), (task.slice.as_str(), "bowline-web-1:overhead.scope"));
        assert_eq!((task.of_shim_too(), unit(":a:b").of_shim_too()), (Some(shim), None));
        assert!(unit(":a:b").own_slices().is_empty());
    }

    #[test]
    fn a_sandbox_is_a_slice_and_its_shim_is_beside_it() {
        let place = |prefix| SandboxPlace::new(prefix, "web-1").expect("a place");
        let sandbox = Unit::of_sandbox(&place("bowline")).expect("short");
        assert_eq!(sandbox.path(), "/bowline.slice/bowline-web\\x2d1.slice");
        assert_eq!((sandbox.is_slice(), sandbox.own_slices()), (true, vec!["bowline.slice".into(), ROOT.into()]));
        let prefixed = Unit::of_sandboxs_shim(&place("ecs"), "web-1", "kata_").expect("short");
        assert_eq!(prefixed.path(), "/ecs.slice/ecs-web\\x2d1.slice/kata_bowline-web-1:overhead.scope");
        let shim = Unit::of_sandboxs_shim(&place("bowline-overhead"), "web-1", "").expect("short");
        assert_eq!(shim.name, "bowline-web-1:overhead.scope");
        assert_eq!(shim.slice, "bowline\\x2doverhead-web\\x2d1.slice");
        assert!(!shim.path().starts_with(&sandbox.path()), "{}", shim.path());
    }

    #[test]
    fn a_units_path_leads_back_to_it() {
        for text in ["a-b.slice:c:d", ":c:d", "-.slice:c:d", "a.slice::a-b.slice", "_a.slice:cpu.x:y"] {
            let unit = unit(text);
            assert_eq!(Unit::of_path(&unit.path()), Some(unit), "{text}");
        }
        for path in ["/a", "/a/b.slice", "/a/b.scope", "/a.slice/b.service", "/-.slice", "", "/a.slice/b-c.slice"] {
            assert_eq!(Unit::of_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_member_is_in_its_sandboxs_slice_whatever_its_id() {
        let sandbox = Unit::of_sandbox(&SandboxPlace::new("bowline", "shop").expect("a place")).expect("short");
        for id in ["db", "web-1", "db.slice", "bowline.slice"] {
            let member = Unit::of_member(&sandbox, id).expect("short");
            assert_eq!(member.path(), format!("/bowline.slice/bowline-shop.slice/{}", member.name));
            let parsed = unit(&format!("{}:bowline:{id}", sandbox.name));
            assert!(id.ends_with(".slice") || parsed == member, "{parsed:?}, not {member:?}");
        }
    }

    #[test]
    fn a_task_may_be_in_a_slice_of_somebody_elses() {
        let task = Unit::in_slice("jobs-night.slice", "web-1").expect("a slice");
        assert_eq!(task.path(), "/jobs.slice/jobs-night.slice/bowline-web-1.scope");
        assert!(task.own_slices().is_empty());
        for slice in ["", "jobs", "../jobs.slice", "-.slice", "cron.service"] {
            let error = Unit::in_slice(slice, "web").expect_err(slice);
            assert!(error.kind() == Kind::Usage && error.message().starts_with("--slice: "), "{error}");
        }
    }

    #[test]
    fn a_folder_is_not_taken_for_a_file_of_the_kernels() {
        assert_eq!(unit("-.slice:cpu.x:y").path(), "/_cpu.x-y.scope");
        assert_eq!(unit("_a.slice:cpux:y").path(), "/__a.slice/cpux-y.scope");
    }

    proptest! {
        #[test]
        fn a_path_parses_back(slice in "[a-z0-9]{1,8}(-[a-z0-9_]{1,8}){0,3}", prefix in "[a-z]{0,9}", name in "[a-z0-9.]{1,30}") {
            let slice = format!("{slice}.slice");
            prop_assume!(!name.ends_with(".slice"));
            let unit = unit(&format!("{slice}:{prefix}:{name}"));
            let stem = unit.name.strip_suffix(".scope").expect("a scope");
            prop_assert_eq!(unescaped(stem), Some(format!("{prefix}-{name}")));
            prop_assert_eq!(&unit.slice, &slice);
            // The slices above it, from the top down, are the path's parts.
            let path = unit.path();
            let parts: Vec<&str> = path.split('/').skip(1).collect();
            let (last, slices) = parts.split_last().expect("a part");
            prop_assert_eq!(last.trim_start_matches('_'), unit.name.trim_start_matches('_'));
            // systemd puts `_` before a name that the kernel uses.
            let slices: Vec<&str> = slices.iter().map(|slice| slice.trim_start_matches('_')).collect();
            prop_assert_eq!(slices.last().copied(), Some(&*slice));
            for pair in slices.windows(2) {
                prop_assert_eq!(parent(pair[1]), pair[0]);
            }
        }

        #[test]
        fn anything_is_parsed_or_refused(text in "\\PC{0,60}") {
            if let Ok(Some(unit)) = Unit::parse(&text) {
                prop_assert!(unit.name.len() <= LONGEST);
                prop_assert!(crate::checked_path(&unit.path()).is_ok(), "{}", unit.path());
            }
        }

        #[test]
        fn no_two_tasks_share_a_slice_or_nest(one in "[a-z0-9][a-z0-9_.-]{0,9}", two in "[a-z0-9][a-z0-9_.-]{0,9}") {
            prop_assume!(one != two);
            let (one, two) = (Unit::of_task(&one, &one).expect("short"), Unit::of_task(&two, &two).expect("short"));
            prop_assert!(!one.path().starts_with(&(slice_path(&two.slice) + "/")));
        }
    }
}
