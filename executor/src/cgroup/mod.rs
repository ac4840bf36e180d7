//! Control groups: which hierarchies this host has, and one cgroup in them.
//!
//! A *path* is the same below every hierarchy: `/bowline/web/web`. What a
//! process deserves is decided elsewhere; this only finds, makes, fills,
//! reads, kills and removes.

mod v1;

use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Kind, Result};

pub use v1::{Cgroup, Entry, ExecGroup, Layout};

/// A line of `/proc/self/mountinfo`, as far as cgroups need it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: PathBuf,
    target: PathBuf,
    kind: String,
    options: Vec<String>,
}

/// Parses `/proc/self/mountinfo`, with its octal escapes and optional fields
/// (proc_pid_mountinfo(5)). Lines that are not of the form are passed over.
fn parse_mountinfo(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    // 36 35 98:0 /root /target rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let mut rest = after.split(' ');
    Some(Mount {
        root: unescape(fields.next()?),
        target: unescape(fields.next()?),
        kind: rest.next()?.to_owned(),
        options: rest.nth(1)?.split(',').map(str::to_owned).collect(),
    })
}

/// Undoes the kernel's escapes of space, tab, newline and backslash (`\040`).
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes
            .get(i + 1..i + 4)
            .filter(|digits| bytes[i] == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8) + (d - b'0')));
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Finds this host's hierarchies.
///
/// # Errors
/// `Unsupported` when there is nothing to limit and account tasks with.
pub fn detect() -> Result<Layout> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read_to_string(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    Layout::from_mounts(parse_mountinfo(&text))
}

/// A cgroup path as the kernel and this crate write it: absolute, no `..`.
///
/// # Errors
/// `BadSpec` naming the path.
pub fn checked_path(path: &str) -> Result<&str> {
    let plain = path.starts_with('/')
        && path.len() > 1
        && Path::new(path)
            .components()
            .skip(1)
            .all(|c| matches!(c, std::path::Component::Normal(_)))
        && !path.contains("//")
        && !path.ends_with('/')
        && !path.contains("/./");
    if plain {
        return Ok(path);
    }
    Err(Error::new(
        Kind::BadSpec,
        format!("cgroup path {path:?} is not absolute and plain"),
    )
    .hint("write it as /parent/name, without `..`, `.` or empty parts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_escapes_and_optional_fields() {
        let text = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu\\040set rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct
nonsense
";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[1].target, Path::new("/sys/fs/cgroup/cpu set"));
        assert_eq!(mounts[1].kind, "cgroup");
        assert_eq!(mounts[1].options, ["rw", "cpu", "cpuacct"]);
    }

    #[test]
    fn a_cgroup_path_is_absolute_and_plain() {
        assert!(checked_path("/bowline/web/web").is_ok());
        for bad in ["", "/", "a/b", "/a/../b", "/a/", "/a//b", "/a/./b", "/.."] {
            assert!(checked_path(bad).is_err(), "{bad:?}");
        }
    }
}
