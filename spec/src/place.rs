//! Maps the name of a sandbox or a pod to its cgroup, and a cgroup back to its sandbox or pod.
//!
//! ```text
//!                 cgroupfs                     systemd
//!   a sandbox     /bowline/web-1               /bowline.slice/bowline-web\x2d1.slice
//!   a pod         /kubepods/burstable/pod1-2   /kubepods.slice/kubepods-burstable.slice/
//!                                              kubepods-burstable-pod1_2.slice
//! ```
//!
//! A guaranteed pod is directly below the root; a pod of another class is below
//! the folder of that class. Both forms parse back to the same place. A path
//! further down, such as a container's in a pod, is not a place.
//!
//! Source: pods as the kubelet names them (kubernetes, pkg/kubelet/cm, where
//! `-` becomes `_`); a sandbox's slice has `-` escaped as systemd-escape(1)
//! does, so that none is within another.

use std::collections::BTreeSet;

use crate::class::Class;
use crate::id::{TaskId, name_on_host};
use crate::invalid::Invalid;
use crate::unit;

/// The cgroup above those of tasks and sandboxes whose descriptions name no other place. What is below it is bowline's
/// alone.
pub const OURS: &str = "bowline";

/// The cgroup above those that shims and helpers of sandboxes are charged to. What is below it is bowline's alone.
pub const OVERHEAD: &str = "bowline-overhead";

/// The cgroup of a sandbox. All sandboxes of one manager share the prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxPlace {
    prefix: Vec<String>,
    id: String,
}

impl SandboxPlace {
    /// The place of sandbox `id` below `prefix`, which may have several parts:
    /// `bowline`, `ecs/tasks`.
    ///
    /// # Errors
    /// A part or an id that is not a valid task id, or a prefix that looks like
    /// the folder of a systemd slice.
    pub fn new(prefix: &str, id: &str) -> Result<SandboxPlace, Invalid> {
        let id = TaskId::of_manager(id)?.as_str().to_owned();
        let parts = prefix.trim_matches('/').split('/');
        let prefix = parts.map(|part| named(prefix, part)).collect::<Result<_, _>>()?;
        Ok(SandboxPlace { prefix, id })
    }

    /// Like [`SandboxPlace::new`], for a state folder that is not the default one: `mark` tells it from others, and
    /// follows the id.
    ///
    /// # Errors
    /// As [`SandboxPlace::new`].
    pub fn marked(prefix: &str, id: &str, mark: &str) -> Result<SandboxPlace, Invalid> {
        let place = SandboxPlace::new(prefix, id)?;
        Ok(SandboxPlace { id: place.id + mark, ..place })
    }

    /// The prefix, without slashes around it.
    pub fn prefix(&self) -> String {
        self.prefix.join("/")
    }

    /// The sandbox's id with its mark, without the escapes of a slice's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The cgroup's path with the cgroupfs driver.
    pub fn cgroupfs(&self) -> String {
        format!("/{}/{}", self.prefix(), self.id)
    }

    /// The name of its slice.
    ///
    /// # Errors
    /// The name is longer than systemd accepts.
    pub fn slice(&self) -> Result<String, Invalid> {
        let parts: Vec<String> = self.prefix.iter().chain([&self.id]).map(|part| unit::part(part)).collect();
        slice(&parts)
    }

    /// The cgroup's path with the systemd driver.
    ///
    /// # Errors
    /// As [`SandboxPlace::slice`].
    pub fn systemd(&self) -> Result<String, Invalid> {
        Ok(unit::slice_path(&self.slice()?))
    }

    /// The sandbox that has the cgroup `path`, in either form, if any.
    pub fn of_path(path: &str) -> Option<SandboxPlace> {
        of_path(
            path,
            |parts| {
                let (id, prefix) = parts.split_last()?;
                let id = name_on_host(id).ok()?;
                let place = SandboxPlace::new(&prefix.join("/"), "any").ok()?;
                Some(SandboxPlace { id: id.to_string(), ..place })
            },
            unit::unescaped,
            |place| (place.cgroupfs(), place.systemd()),
        )
    }
}

/// The cgroup that the kubelet has above all pods.
pub const PODS: &str = "kubepods";

/// The uids in a list of pods that are alive: one a line; empty lines and those that begin with `#` do not count.
///
/// # Errors
/// What is not the uid of a pod, by its line; a list without any.
pub fn pods_alive(list: &str) -> Result<BTreeSet<String>, Invalid> {
    let lines = list.lines().map(str::trim).enumerate().filter(|(_, uid)| !uid.is_empty() && !uid.starts_with('#'));
    let uid = |(index, uid): (usize, &str)| {
        let wrong = |invalid: Invalid| Invalid { line: Some(index + 1), ..invalid };
        check_uid(uid).map(|()| uid.to_owned()).map_err(wrong)
    };
    let uids: BTreeSet<String> = lines.map(uid).collect::<Result<_, _>>()?;
    if uids.is_empty() {
        return Err(Invalid::value("names no pod: every pod would be an orphan"));
    }
    Ok(uids)
}

/// In a slice's name `-` is written `_`, so a uid with `_` would not be read back.
fn check_uid(uid: &str) -> Result<(), Invalid> {
    if uid.is_empty() || !uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(Invalid::value(format!("{uid:?} is not the uid of a pod: letters, digits and '-'")));
    }
    Ok(())
}

/// The cgroup of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodPlace {
    root: Vec<String>,
    class: Class,
    uid: String,
}

impl PodPlace {
    /// The place of pod `uid` of this class below `root`, which may have several
    /// parts: `kubepods`, `nodes/kubepods`.
    ///
    /// # Errors
    /// A uid with anything but letters, digits and `-`. A part of the root that is
    /// not a valid name, contains `_` (which would parse back as `-`), or is a class.
    pub fn new(root: &str, class: Class, uid: &str) -> Result<PodPlace, Invalid> {
        check_uid(uid)?;
        let classes = [Class::Burstable, Class::BestEffort].map(below_root);
        let part = |part: &str| {
            if part.contains('_') || classes.contains(&Some(part)) {
                return Err(Invalid::value(format!(
                    "{root:?} cannot hold pods: {part:?} would be read back as another"
                )));
            }
            named(root, part)
        };
        let root = root.trim_matches('/').split('/').map(part).collect::<Result<_, _>>()?;
        Ok(PodPlace { root, class, uid: uid.to_owned() })
    }

    /// The root, without slashes around it.
    pub fn root(&self) -> String {
        self.root.join("/")
    }

    /// The pod's class of service.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The pod's uid, with `-` where a slice's name has `_`.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    fn parts(&self) -> impl Iterator<Item = String> {
        let class = below_root(self.class).map(str::to_owned);
        self.root.iter().cloned().chain(class).chain([format!("pod{}", self.uid)])
    }

    /// The cgroup's path with the cgroupfs driver, as the kubelet has it.
    pub fn cgroupfs(&self) -> String {
        self.parts().map(|part| "/".to_owned() + &part).collect()
    }

    /// The name of its slice.
    ///
    /// # Errors
    /// The name is longer than systemd accepts.
    pub fn slice(&self) -> Result<String, Invalid> {
        let parts: Vec<String> = self.parts().map(|part| unit::escaped(&part.replace('-', "_"))).collect();
        slice(&parts)
    }

    /// The cgroup's path with the systemd driver.
    ///
    /// # Errors
    /// As [`PodPlace::slice`].
    pub fn systemd(&self) -> Result<String, Invalid> {
        Ok(unit::slice_path(&self.slice()?))
    }

    /// The pod that has the cgroup `path`, in either form, if any.
    pub fn of_path(path: &str) -> Option<PodPlace> {
        of_path(
            path,
            |parts| {
                let (pod, above) = parts.split_last()?;
                let uid = pod.strip_prefix("pod")?;
                let classes = [Class::Burstable, Class::BestEffort].into_iter();
                let mut below = classes.filter(|class| above.last().map(String::as_str) == below_root(*class));
                let (class, root) = match below.next() {
                    Some(class) => (class, &above[..above.len() - 1]),
                    None => (Class::Guaranteed, above),
                };
                PodPlace::new(&root.join("/"), class, uid).ok()
            },
            |part| Some(unit::unescaped(part)?.replace('_', "-")),
            |place| (place.cgroupfs(), place.systemd()),
        )
    }
}

/// The folder of a class below the root; guaranteed pods have none.
pub fn below_root(class: Class) -> Option<&'static str> {
    match class {
        Class::Guaranteed => None,
        Class::Burstable => Some("burstable"),
        Class::BestEffort => Some("besteffort"),
    }
}

/// `part` of `whole`, if it can be a cgroup's and does not look like systemd's.
fn named(whole: &str, part: &str) -> Result<String, Invalid> {
    let wrong = |why: &str| Invalid::value(format!("{whole:?} is not a place for cgroups: {why}"));
    let part = TaskId::of_manager(part).map_err(|error| wrong(&error.reason))?;
    if part.ends_with(".slice") {
        return Err(wrong(&format!("{:?} is a slice, which is named without its suffix", part.as_str())));
    }
    Ok(part.as_str().to_owned())
}

fn slice(parts: &[String]) -> Result<String, Invalid> {
    let name = format!("{}.slice", parts.join("-"));
    if name.len() > unit::LONGEST {
        let (has, most) = (name.len(), unit::LONGEST);
        return Err(Invalid::value(format!("the slice's name {name} has {has} bytes, and may have {most}")));
    }
    Ok(name)
}

/// Parses `path` in either form. The result must render to exactly that path.
fn of_path<P>(
    path: &str,
    place: impl Fn(&[String]) -> Option<P>,
    unescape: impl Fn(&str) -> Option<String>,
    paths: impl Fn(&P) -> (String, Result<String, Invalid>),
) -> Option<P> {
    let last = path.rsplit('/').next()?;
    // systemd prefixes names that the kernel uses for its own files.
    let stem = last.strip_suffix(".slice").map(|stem| stem.strip_prefix('_').unwrap_or(stem));
    let of_slice = stem.and_then(|stem| place(&stem.split('-').map(&unescape).collect::<Option<Vec<_>>>()?));
    if let Some(found) = of_slice.filter(|place| paths(place).1.as_deref() == Ok(path)) {
        return Some(found);
    }
    let parts: Vec<String> = path.strip_prefix('/')?.split('/').map(str::to_owned).collect();
    place(&parts).filter(|place| paths(place).0 == path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sandbox_has_a_place_with_either_driver() {
        for (prefix, id, cgroupfs, systemd) in [
            ("bowline", "web-1", "/bowline/web-1", "/bowline.slice/bowline-web\\x2d1.slice"),
            // Both of the ECS agent's tests.
            ("ecs", "111mytaskid", "/ecs/111mytaskid", "/ecs.slice/ecs-111mytaskid.slice"),
            ("ecstasks", "111mytaskid", "/ecstasks/111mytaskid", "/ecstasks.slice/ecstasks-111mytaskid.slice"),
            ("/a/b-c/", "x", "/a/b-c/x", "/a.slice/a-b\\x2dc.slice/a-b\\x2dc-x.slice"),
            ("cpu", "x.slice", "/cpu/x.slice", "/_cpu.slice/cpu-x.slice.slice"),
        ] {
            let place = SandboxPlace::new(prefix, id).unwrap();
            assert_eq!((place.cgroupfs().as_str(), place.systemd().unwrap().as_str()), (cgroupfs, systemd));
            assert_eq!(SandboxPlace::of_path(cgroupfs), Some(place.clone()));
            assert_eq!(SandboxPlace::of_path(systemd), Some(place));
        }
    }

    /// As cgroup_manager_linux.go has it in its documentation, and its tests.
    #[test]
    fn a_pod_has_the_kubelets_place() {
        use Class::{BestEffort, Burstable, Guaranteed};
        let long = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
        for (root, class, uid, cgroupfs, slice) in [
            (
                "kubepods",
                Burstable,
                "1234-abcd-5678-efgh",
                "/kubepods/burstable/pod1234-abcd-5678-efgh",
                "kubepods-burstable-pod1234_abcd_5678_efgh.slice",
            ),
            (
                "kubepods",
                BestEffort,
                long,
                "/kubepods/besteffort/pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d",
                "kubepods-besteffort-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
            ),
            ("kubepods", Guaranteed, "123", "/kubepods/pod123", "kubepods-pod123.slice"),
            ("test/a", Burstable, "-123", "/test/a/burstable/pod-123", "test-a-burstable-pod_123.slice"),
            ("my-node", Guaranteed, "1", "/my-node/pod1", "my_node-pod1.slice"),
        ] {
            let place = PodPlace::new(root, class, uid).unwrap();
            assert_eq!((place.cgroupfs().as_str(), place.slice().unwrap().as_str()), (cgroupfs, slice));
            assert_eq!(PodPlace::of_path(cgroupfs), Some(place.clone()));
            assert_eq!(PodPlace::of_path(&place.systemd().unwrap()), Some(place));
        }
        let expanded = PodPlace::new("kubepods", Burstable, "1-2").unwrap().systemd().unwrap();
        assert_eq!(expanded, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice");
    }

    /// TestIsCgroupPod, and what only looks like one of either form.
    #[test]
    fn what_is_no_pods_is_told_apart() {
        for path in [
            "",
            "/",
            "/kubepods",
            "/kubepods/burstable",
            "/kubepods/pod123/container.scope",
            "/kubepods/burstable/pod123/container.scope",
            "/system",
            "/system/kubelet",
            "/kubepods.slice",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods.slice/kubepods-pod123.slice/container.scope",
            "/kubepods.slice/kubepods-burstable-pod123.slice",
            "/kubepods/pod",
            "/kubepods/pod1_2",
            "/kubepods//pod1",
            "/kubepods/../pod1",
            "/pod1",
            "kubepods/pod1",
            "/kubepods/pod1/",
        ] {
            assert_eq!(PodPlace::of_path(path), None, "{path}");
        }
        for path in
            ["/", "/web", "/bowline.slice", "/bowline/-x", "/bowline.slice/x", "/bowline.slice/bowline-a-b.slice"]
        {
            assert_eq!(SandboxPlace::of_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_list_of_pods_has_a_uid_a_line() {
        let read = |list: &str| pods_alive(list).map(|uids| uids.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(read("# web\n1234-abcd\n\n  b2 \r\nb2\n").unwrap(), "1234-abcd b2");
        let error = read("1\n1234_abcd").unwrap_err();
        assert_eq!((error.line, error.reason.contains("\"1234_abcd\" is not the uid")), (Some(2), true), "{error}");
        for none in ["", "\n\n", "# nothing"] {
            assert!(read(none).unwrap_err().reason.contains("names no pod"), "{none:?}");
        }
        assert!(read("a b").is_err() && read("/kubepods/pod1").is_err());
    }

    #[test]
    fn what_could_not_be_read_back_is_refused() {
        for (root, uid) in
            [("", "1"), ("a_b", "1"), ("a/burstable", "1"), ("besteffort", "1"), ("a.slice", "1"), ("a//b", "1")]
        {
            assert!(PodPlace::new(root, Class::Guaranteed, uid).is_err(), "{root} {uid}");
        }
        for uid in ["", "a_b", "a/b", "a.b", "é"] {
            assert!(PodPlace::new("kubepods", Class::Burstable, uid).is_err(), "{uid}");
        }
        for (prefix, id) in
            [("", "x"), ("..", "x"), ("a.slice", "x"), ("a", ""), ("a", ".."), ("a", "b/c"), ("a//b", "x")]
        {
            assert!(SandboxPlace::new(prefix, id).is_err(), "{prefix} {id}");
        }
        let long = SandboxPlace::new("bowline", &("a".to_owned() + &"-".repeat(75))).unwrap();
        assert!(long.slice().unwrap_err().reason.contains("255"), "four bytes each");
    }

    proptest! {
        #[test]
        fn a_sandboxes_name_parses_back(
            prefix in "[A-Za-z0-9][A-Za-z0-9_.-]{0,9}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,9}){0,2}",
            id in "[A-Za-z0-9][A-Za-z0-9_.-]{0,20}",
        ) {
            prop_assume!(!prefix.split('/').any(|part| part.ends_with(".slice")));
            let place = SandboxPlace::new(&prefix, &id).unwrap();
            prop_assert_eq!((place.prefix(), place.id()), (prefix, id.as_str()));
            prop_assert_eq!(SandboxPlace::of_path(&place.cgroupfs()), Some(place.clone()));
            prop_assert_eq!(SandboxPlace::of_path(&place.systemd().unwrap()), Some(place));
        }

        #[test]
        fn a_pods_name_parses_back(
            root in "[A-Za-z0-9][A-Za-z0-9.-]{0,9}(/[A-Za-z0-9][A-Za-z0-9.-]{0,9}){0,2}",
            uid in "[A-Za-z0-9-]{1,36}",
            class in prop_oneof![Just(Class::Guaranteed), Just(Class::Burstable), Just(Class::BestEffort)],
        ) {
            let odd = |part: &str| part.ends_with(".slice") || part == "burstable" || part == "besteffort";
            prop_assume!(!root.split('/').any(odd));
            let place = PodPlace::new(&root, class, &uid).unwrap();
            prop_assert_eq!((place.root(), place.class(), place.uid()), (root, class, uid.as_str()));
            prop_assert_eq!(PodPlace::of_path(&place.cgroupfs()), Some(place.clone()));
            prop_assert_eq!(PodPlace::of_path(&place.systemd().unwrap()), Some(place));
        }

        #[test]
        fn no_sandbox_is_within_another(one in "[a-z0-9][a-z0-9_.-]{0,9}", more in "[a-z0-9_.-]{1,9}") {
            // Where "-" nests, the second would be in the first.
            let ids = [one.clone(), format!("{one}-{more}")];
            let [one, two] = ids.map(|id| SandboxPlace::new("bowline", &id).unwrap().systemd().unwrap());
            prop_assert!(one != two && !two.starts_with(&(one + "/")), "{}", two);
        }

        #[test]
        fn a_path_is_read_or_not_and_is_that_places(path in "\\PC{0,40}|(/[a-z._\\\\-]{1,9}){1,4}(\\.slice)?") {
            if let Some(place) = SandboxPlace::of_path(&path) {
                prop_assert!(place.cgroupfs() == path || place.systemd().unwrap() == path);
            }
            if let Some(place) = PodPlace::of_path(&path) {
                prop_assert!(place.cgroupfs() == path || place.systemd().unwrap() == path);
            }
        }
    }
}
