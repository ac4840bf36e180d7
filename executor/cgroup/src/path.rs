//! Paths of cgroups.

use std::path::Path;

use bowline_error::{Error, Kind, Result};
use bowline_spec::place::OURS;

/// The cgroup path of sandbox `name`, unless a description says otherwise.
pub fn of_sandbox(name: &str) -> String {
    format!("/{OURS}/{name}")
}

/// Whether a path is among those that bowline makes, where the caller names none.
pub fn is_ours(path: &str) -> bool {
    Path::new(path).starts_with(Path::new("/").join(OURS))
}

/// A cgroup path as the kernel and this crate write it: absolute, no `..`.
///
/// # Errors
/// `BadSpec` naming the path.
pub fn checked_path(path: &str) -> Result<&str> {
    let plain = path.starts_with('/')
        && path.len() > 1
        && Path::new(path).components().skip(1).all(|c| matches!(c, std::path::Component::Normal(_)))
        && !path.contains("//")
        && !path.ends_with('/')
        && !path.contains("/./");
    if plain {
        return Ok(path);
    }
    Err(Error::new(Kind::BadSpec, format!("cgroup path {path:?} is not absolute and plain"))
        .hint("write it as /parent/name, without `..`, `.` or empty parts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_path_is_absolute_and_plain() {
        assert!(checked_path("/bowline/web/web").is_ok());
        for bad in ["", "/", "a/b", "/a/../b", "/a/", "/a//b", "/a/./b", "/.."] {
            assert!(checked_path(bad).is_err(), "{bad:?}");
        }
    }
}
