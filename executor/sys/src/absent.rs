//! For tests only, behind the feature `absent`: treats facilities of this kernel as absent, so that
//! the fallbacks can be run where they are not needed.
//!
//! `BOWLINE_ABSENT=openat2,cgroup.kill` names the facilities; every use of a facility asks here and
//! answers as a kernel without it does.

use std::sync::OnceLock;

/// The facilities that can be taken for absent.
///
/// `fsopen` stands for all of the mount API of Linux 5.2: fsopen, fsconfig,
/// fsmount, open_tree and move_mount.
const FACILITIES: [&str; 6] =
    ["fsopen", "mount_setattr", "openat2", "clone_into_cgroup", "cgroup.kill", "close_range_cloexec"];

/// Whether `facility` is taken for absent.
///
/// # Panics
/// When the variable names something else: a test that believes that it tests a fallback must not pass without it.
pub fn absent(facility: &str) -> bool {
    debug_assert!(FACILITIES.contains(&facility), "{facility} is in no list");
    all().iter().any(|name| name == facility)
}

/// All facilities that are taken for absent.
///
/// # Panics
/// As [`absent`].
pub fn all() -> &'static [String] {
    static ALL: OnceLock<Vec<String>> = OnceLock::new();
    ALL.get_or_init(|| {
        let text = std::env::var("BOWLINE_ABSENT").unwrap_or_default();
        let names: Vec<String> = text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if let Some(unknown) = names.iter().find(|name| !FACILITIES.contains(&name.as_str())) {
            panic!("BOWLINE_ABSENT: {unknown} is none of {}", FACILITIES.join(", "));
        }
        names
    })
}
