//! What is mounted where, as `/proc/self/mountinfo` shows it to its reader.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use crate::read_kernel_bytes;

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The id of the mount.
    pub id: u64,
    /// The id of the mount on which this one lies.
    pub parent: u64,
    /// The part of the filesystem that is mounted here.
    pub root: PathBuf,
    pub target: PathBuf,
    /// The mount's own options, such as `ro`.
    pub flags: Vec<String>,
    pub kind: String,
    /// The filesystem's own options: for v1, the controllers.
    pub options: Vec<String>,
}

/// Reads the `mountinfo` of a process at `path`.
///
/// # Errors
/// The kernel's.
pub fn read(path: &str) -> io::Result<Vec<Mount>> {
    Ok(parse(&read_kernel_bytes(path)?))
}

/// Parses a `mountinfo`, with its octal escapes and optional fields (proc_pid_mountinfo(5)). Lines in any other form are
/// skipped. Names are bytes: any user's mount may have one that is no UTF-8.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    // 36 35 98:0 /root /target rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let (root, target) = (unescape(fields.nth(1)?), unescape(fields.next()?));
    let list = |field: &[u8]| field.split(|byte| *byte == b',').map(text).collect();
    let flags = list(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?);
    let options = list(fields.nth(1)?);
    Some(Mount { id, parent, root, target, flags, kind, options })
}

/// Undoes the kernel's escapes of space, tab, newline and backslash (`\040`).
fn unescape(bytes: &[u8]) -> PathBuf {
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
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn mountinfo_with_escapes_and_optional_fields() {
        let text = b"\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu\\040set rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct
nonsense
33 23 0:30 / /media/caf\xe9 rw - vfat /dev/sdb rw
";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[2].target.as_os_str().as_encoded_bytes(), b"/media/caf\xe9");
        assert_eq!((mounts[1].id, mounts[1].parent), (32, 31));
        assert_eq!(mounts[1].target, Path::new("/sys/fs/cgroup/cpu set"));
        assert_eq!(mounts[1].kind, "cgroup");
        assert_eq!(mounts[1].options, ["rw", "cpu", "cpuacct"]);
        assert_eq!(mounts[0].flags, ["rw", "relatime"]);
    }
}
