//! Mount options as text, and what they mean to the kernel.

use bowline_error::{Error, Kind, Result};
use bowline_sys::MountAttributes;
use oci_spec::runtime::{Mount, Spec};

/// The options of one mount, sorted by what handles them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Present for a bind; `true` if it includes everything below.
    pub bind: Option<bool>,
    /// MOUNT_ATTR_* to set on this mount.
    pub set: u64,
    /// MOUNT_ATTR_* to clear on this mount.
    pub clear: u64,
    /// Whether an option names a flag of mount(2), set or cleared.
    pub names_flags: bool,
    /// The modes of access times that are named, as far as none was taken back: one bit for each of [`MODES`].
    pub modes: u8,
    /// MOUNT_ATTR_* for this mount and all below it (`rro` and similar options).
    pub set_recursive: u64,
    /// MOUNT_ATTR_* to clear on this mount and all below it.
    pub clear_recursive: u64,
    /// MS_PRIVATE, MS_SLAVE, MS_SHARED or MS_UNBINDABLE; `true` if it applies to mounts below too.
    pub propagation: Option<(u64, bool)>,
    /// Present if a map changes the owners that are shown; `true` if it applies to mounts below too.
    pub idmap: Option<bool>,
    /// Whether a mount that is there by then is changed, instead of a new one made.
    pub remount: bool,
    /// `tmpcopyup`: a new filesystem starts with a copy of what it hides.
    pub copy_up: bool,
    /// The filesystem's own options: `size=64m`, `newinstance`.
    pub data: Vec<(String, Option<String>)>,
    /// Names of a filesystem's own options that a bind was given. It makes no filesystem, so they have no effect, as
    /// with runc before 1.2: managers send them.
    pub ignored: Vec<String>,
}

impl Options {
    /// All attributes to set, for a filesystem that has nothing below it yet.
    pub fn all_set(&self) -> u64 {
        self.set | self.set_recursive
    }

    /// Present if the options ask for a new bind; `true` if it includes everything below.
    pub fn is_new_bind(&self) -> Option<bool> {
        self.bind.filter(|_| !self.remount)
    }
}

/// The atime modes share one field of MOUNT_ATTR_* bits.
pub const ATIME_FIELD: u64 = 0x70;

/// Options that set (`true`) or clear MOUNT_ATTR_* bits (mount(8)).
const ATTRIBUTES: [(&str, bool, u64); 17] = [
    ("ro", true, libc::MOUNT_ATTR_RDONLY),
    ("rw", false, libc::MOUNT_ATTR_RDONLY),
    ("nosuid", true, libc::MOUNT_ATTR_NOSUID),
    ("suid", false, libc::MOUNT_ATTR_NOSUID),
    ("nodev", true, libc::MOUNT_ATTR_NODEV),
    ("dev", false, libc::MOUNT_ATTR_NODEV),
    ("noexec", true, libc::MOUNT_ATTR_NOEXEC),
    ("exec", false, libc::MOUNT_ATTR_NOEXEC),
    ("nodiratime", true, libc::MOUNT_ATTR_NODIRATIME),
    ("diratime", false, libc::MOUNT_ATTR_NODIRATIME),
    ("nosymfollow", true, libc::MOUNT_ATTR_NOSYMFOLLOW),
    ("symfollow", false, libc::MOUNT_ATTR_NOSYMFOLLOW),
    ("noatime", true, libc::MOUNT_ATTR_NOATIME),
    ("strictatime", true, libc::MOUNT_ATTR_STRICTATIME),
    ("relatime", true, libc::MOUNT_ATTR_RELATIME),
    ("atime", false, libc::MOUNT_ATTR_NOATIME),
    ("nostrictatime", false, libc::MOUNT_ATTR_STRICTATIME),
];

/// The modes of access times: an option that names it, one that takes that back, and its MOUNT_ATTR_* bits. Of several the
/// kernel takes the last one here.
const MODES: [(&str, &str, u64); 3] = [
    ("relatime", "norelatime", libc::MOUNT_ATTR_RELATIME),
    ("noatime", "atime", libc::MOUNT_ATTR_NOATIME),
    ("strictatime", "nostrictatime", libc::MOUNT_ATTR_STRICTATIME),
];

/// Flags of mount(2) that change a filesystem.
const OF_FILESYSTEMS: [&str; 4] = ["sync", "dirsync", "lazytime", "iversion"];

/// Options that state a default, or that kernels no longer know. `norelatime` names no other mode; runc keeps the one
/// that there is.
const WITHOUT_EFFECT: [&str; 10] =
    ["defaults", "async", "loud", "silent", "mand", "nomand", "noiversion", "nolazytime", "norelatime", "rnorelatime"];

const PROPAGATIONS: [(&str, u64); 8] = [
    ("private", libc::MS_PRIVATE),
    ("rprivate", libc::MS_PRIVATE),
    ("slave", libc::MS_SLAVE),
    ("rslave", libc::MS_SLAVE),
    ("shared", libc::MS_SHARED),
    ("rshared", libc::MS_SHARED),
    ("unbindable", libc::MS_UNBINDABLE),
    ("runbindable", libc::MS_UNBINDABLE),
];

/// Whether the option `key` is an SELinux label (mount(8)), which may have commas.
pub fn is_label(key: &str) -> bool {
    matches!(key, "context" | "fscontext" | "defcontext" | "rootcontext")
}

/// The name of the option that sets one of `flags`, which are MOUNT_ATTR_*.
pub fn name_of(flags: u64) -> &'static str {
    ATTRIBUTES.iter().find(|(_, set, bits)| *set && flags & bits != 0).map_or("a flag", |(name, ..)| name)
}

/// The MOUNT_ATTR_* that a mount has, by its options in mountinfo, which have no name for `strictatime`.
pub fn attributes_of(options: &[String]) -> u64 {
    let has = |name: &str| options.iter().any(|option| option == name);
    let named = ATTRIBUTES.iter().filter(|(name, set, _)| *set && has(name)).fold(0, |all, (.., bits)| all | bits);
    if has("noatime") || has("relatime") { named } else { named | libc::MOUNT_ATTR_STRICTATIME }
}

/// All names of options that are not a filesystem's own, sorted.
pub fn names() -> Vec<String> {
    let attributes = ATTRIBUTES.iter().flat_map(|(name, ..)| [(*name).to_owned(), format!("r{name}")]);
    let others = ["bind", "rbind", "remount", "idmap", "ridmap", "tmpcopyup", "sync", "dirsync", "lazytime"];
    let others = others.iter().chain(&WITHOUT_EFFECT).chain(PROPAGATIONS.iter().map(|(name, _)| name));
    let mut all: Vec<String> = attributes.chain(others.map(|name| (*name).to_owned())).collect();
    all.sort();
    all
}

/// Reads the options of `mount`.
///
/// # Errors
/// `BadSpec` for an option that a mount of this kind cannot have: it is refused, never silently left out.
pub fn of(mount: &Mount) -> Result<Options> {
    let mut options = Options::default();
    if mount.typ().as_deref() == Some("bind") {
        options.bind = Some(false);
    }
    if has_mappings(mount) {
        options.idmap = Some(false);
    }
    let at = mount.destination().display();
    for option in mount.options().iter().flatten() {
        match option.as_str() {
            "bind" => options.bind = Some(options.bind.unwrap_or(false)),
            "rbind" => options.bind = Some(true),
            "idmap" => options.idmap = Some(false),
            "ridmap" => options.idmap = Some(true),
            "tmpcopyup" => options.copy_up = true,
            "remount" => options.remount = true,
            "defaults" | "rnorelatime" | "" => {}
            name if options.names_mode(name) => options.names_flags = true,
            name if WITHOUT_EFFECT.contains(&name) => options.names_flags = true,
            name => options.add(name),
        }
    }
    let refused = |what: &str| Err(Error::new(Kind::BadSpec, format!("mount {at}: {what}")));
    if options.idmap.is_some() && options.is_new_bind().is_none() {
        return refused("only a new bind can be idmapped");
    }
    if options.bind.is_some() {
        options.ignored = std::mem::take(&mut options.data).into_iter().map(|(name, _)| name).collect();
        if std::mem::take(&mut options.copy_up) {
            options.ignored.push("tmpcopyup".to_owned());
        }
    }
    if options.copy_up && (mount.typ().as_deref() != Some("tmpfs") || options.remount) {
        return refused("tmpcopyup is for a new tmpfs");
    }
    Ok(options)
}

/// Whether `mount` has its own mappings of owners; an empty list is none.
pub fn has_mappings(mount: &Mount) -> bool {
    let mut lists = [mount.uid_mappings(), mount.gid_mappings()].into_iter().flatten();
    lists.any(|mappings| !mappings.is_empty())
}

impl Options {
    /// Whether `name` is of a mode of access times, and is heeded.
    fn names_mode(&mut self, name: &str) -> bool {
        for (index, (sets, clears, _)) in MODES.iter().enumerate() {
            match name {
                name if name == *sets => self.modes |= 1 << index,
                name if name == *clears => self.modes &= !(1 << index),
                _ => continue,
            }
            let named = MODES.iter().enumerate().rfind(|(index, _)| self.modes & 1 << index != 0);
            self.clear = self.clear & !ATIME_FIELD | named.map_or(0, |_| ATIME_FIELD);
            self.set = self.set & !ATIME_FIELD | named.map_or(0, |(_, (.., bits))| *bits);
            return true;
        }
        false
    }

    fn add(&mut self, name: &str) {
        let attribute = |name: &str| ATTRIBUTES.iter().find(|(n, ..)| *n == name);
        if let Some((_, propagation)) = PROPAGATIONS.iter().find(|(n, _)| *n == name) {
            self.propagation = Some((*propagation, name.starts_with('r')));
        } else if let Some(&(_, set, bits)) = attribute(name) {
            self.names_flags = true;
            put(&mut self.set, &mut self.clear, set, bits, name);
        } else if let Some(&(_, set, bits)) = name.strip_prefix('r').and_then(attribute) {
            put(&mut self.set_recursive, &mut self.clear_recursive, set, bits, name);
        } else {
            self.names_flags |= OF_FILESYSTEMS.contains(&name);
            self.data.extend(parts(name).map(|option| match option.split_once('=') {
                // Managers quote labels, as mount(2) wants them; a label itself has no quotes.
                Some((key, value)) if is_label(key) => (key.to_owned(), Some(value.trim_matches('"').to_owned())),
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (option.to_owned(), None),
            }));
        }
    }
}

/// A filesystem's options in one text, as mount(2) takes them apart: at commas, but for those of a label and those
/// behind a backslash, which are of overlayfs' paths.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let is_one = text.split_once('=').is_some_and(|(key, _)| is_label(key));
    let mut escaped = false;
    let parts = text.split(move |letter| {
        let ends = letter == ',' && !escaped && !is_one;
        escaped = letter == '\\' && !escaped;
        ends
    });
    parts.filter(|part| !part.is_empty())
}

/// The later of two options that contradict each other wins.
fn put(to_set: &mut u64, to_clear: &mut u64, set: bool, bits: u64, name: &str) {
    if name.ends_with("atime") && !name.ends_with("diratime") {
        *to_clear |= ATIME_FIELD;
        *to_set = *to_set & !ATIME_FIELD | if set { bits } else { libc::MOUNT_ATTR_RELATIME };
    } else if set {
        *to_set |= bits;
        *to_clear &= !bits;
    } else {
        *to_clear |= bits;
        *to_set &= !bits;
    }
}

/// The propagation that the spec wants for the root: MS_SHARED or another of these flags; `true` if it applies to all
/// mounts of the task.
pub fn root_propagation(spec: &Spec) -> Result<Option<(u64, bool)>> {
    let name = spec.linux().as_ref().and_then(|l| l.rootfs_propagation().clone());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let known = PROPAGATIONS.iter().find(|(n, _)| *n == name);
    let unknown = || Error::new(Kind::BadSpec, format!("linux.rootfsPropagation: {name} is unknown"));
    Ok(Some((known.ok_or_else(unknown)?.1, name.starts_with('r'))))
}

/// The propagation that the namespace's mounts get before anything is mounted: slaves of the host's, so that no
/// mount made here shows there, or private if the root will be private. Whichever the root gets later, it is
/// changed from a mount that is not shared.
pub fn before_the_root(spec: &Spec) -> Result<MountAttributes> {
    let private = root_propagation(spec)?.is_some_and(|(propagation, _)| propagation == libc::MS_PRIVATE);
    let propagation = if private { libc::MS_PRIVATE } else { libc::MS_SLAVE };
    Ok(MountAttributes { propagation, ..MountAttributes::default() })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::MountBuilder;

    use super::*;

    fn parse(options: &[&str]) -> Options {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let mount = MountBuilder::default().destination("/x").options(options).build();
        of(&mount.expect("a mount")).expect("known options")
    }

    #[test]
    fn options_are_sorted_by_who_takes_them() {
        let options = parse(&["rbind", "ro", "rnosuid", "rslave"]);
        assert_eq!(options.bind, Some(true));
        assert_eq!(options.set, libc::MOUNT_ATTR_RDONLY);
        assert_eq!(options.set_recursive, libc::MOUNT_ATTR_NOSUID);
        assert_eq!(options.propagation, Some((libc::MS_SLAVE, true)));
        let data = parse(&["size=64m", "newinstance"]).data;
        assert_eq!(data, [("size".to_owned(), Some("64m".to_owned())), ("newinstance".to_owned(), None)]);
    }

    #[test]
    fn one_text_may_have_several_options_of_a_filesystem() {
        let data =
            |option: &str| parse(&[option]).data.into_iter().map(|(key, value)| key + &value.unwrap_or_default());
        assert_eq!(data("size=4m,mode=700,noswap").collect::<Vec<_>>(), ["size4m", "mode700", "noswap"]);
        assert_eq!(data(r"lowerdir=/a\,b:/c,upperdir=/u").collect::<Vec<_>>(), [r"lowerdir/a\,b:/c", "upperdir/u"]);
        assert_eq!(data("context=\"u:r:t:s0:c1,c2\"").collect::<Vec<_>>(), ["contextu:r:t:s0:c1,c2"]);
        assert_eq!(data("").count(), 0);
    }

    #[test]
    fn no_option_that_is_named_is_taken_for_a_filesystem_s_own() {
        // The kernel handles these three for every filesystem, so they are passed on.
        for name in names().into_iter().filter(|name| !["sync", "dirsync", "lazytime"].contains(&name.as_str())) {
            let kind = if name.ends_with("idmap") { "bind" } else { "tmpfs" };
            let mount = MountBuilder::default().destination("/x").typ(kind).options(vec![name.clone()]).build();
            assert_eq!(of(&mount.expect("a mount")).expect("a known option").data, [], "{name}");
        }
    }

    #[test]
    fn the_later_of_two_contradicting_options_wins() {
        let options = parse(&["ro", "rw", "noatime", "strictatime", "relatime"]);
        assert_eq!(options.set, libc::MOUNT_ATTR_STRICTATIME);
        assert_eq!(options.clear, libc::MOUNT_ATTR_RDONLY | ATIME_FIELD);
        for several in [["noatime", "relatime"], ["relatime", "noatime"]] {
            assert_eq!(parse(&several).set, libc::MOUNT_ATTR_NOATIME, "{several:?}");
        }
        for several in [["noatime", "strictatime"], ["strictatime", "noatime"]] {
            assert_eq!(parse(&several).set, libc::MOUNT_ATTR_STRICTATIME, "{several:?}");
        }
        for taken_back in [
            ["noatime", "atime"],
            ["strictatime", "nostrictatime"],
            ["atime", "nostrictatime"],
            ["relatime", "norelatime"],
        ] {
            let options = parse(&taken_back);
            assert!(options.names_flags && options.set | options.clear == 0, "{taken_back:?}");
        }
        let relatime = parse(&["strictatime", "relatime", "nostrictatime"]);
        assert_eq!((relatime.set, relatime.clear), (0, ATIME_FIELD));
        assert_eq!(parse(&["noatime", "nostrictatime"]).set, libc::MOUNT_ATTR_NOATIME);
        assert_eq!(parse(&["rnoatime", "ratime"]).clear_recursive, ATIME_FIELD);
    }

    #[test]
    fn flags_are_named_by_set_and_by_clear_and_not_by_propagation_or_for_mounts_below() {
        for name in ["ro", "rw", "exec", "dev", "noatime", "atime", "symfollow", "async", "sync", "norelatime"] {
            assert!(parse(&["rbind", name]).names_flags, "{name}");
        }
        for name in ["bind", "rprivate", "rro", "rexec", "defaults", "idmap", "size=1m", "remount", ""] {
            assert!(!parse(&["bind", name]).names_flags, "{name}");
        }
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        let of = |kind: &str, option: &str| {
            let mount = MountBuilder::default().destination("/x").typ(kind).options(vec![option.to_owned()]).build();
            of(&mount.expect("a mount"))
        };
        assert_eq!(of("bind", "ridmap").map(|o| o.idmap), Ok(Some(true)));
        assert_eq!(of("tmpfs", "idmap").map_err(|e| e.kind()), Err(Kind::BadSpec));
        assert_eq!(of("tmpfs", "tmpcopyup").map(|o| o.copy_up), Ok(true));
        assert_eq!(of("proc", "tmpcopyup").map_err(|e| e.kind()), Err(Kind::BadSpec));
        assert_eq!(of("bind", "remount").map(|o| o.is_new_bind()), Ok(None));
        for option in ["size=1m", "sync", "lazytime", "iversion", "nosuch", "tmpcopyup"] {
            let name = option.split('=').next().unwrap_or(option).to_owned();
            assert_eq!(of("bind", option).map(|o| (o.data, o.ignored)), Ok((vec![], vec![name])));
        }
    }
}
