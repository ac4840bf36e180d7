//! What is mounted where, as `/proc/self/mountinfo` shows it to its reader.

use std::path::PathBuf;

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
    pub kind: String,
    /// The filesystem's own options: for v1, the controllers.
    pub options: Vec<String>,
}

/// Parses `/proc/self/mountinfo`, with its octal escapes and optional fields
/// (proc_pid_mountinfo(5)). Lines in any other form are skipped.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    // 36 35 98:0 /root /target rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let mut fields = fields.skip(1);
    let mut rest = after.split(' ');
    Some(Mount {
        id,
        parent,
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn mountinfo_with_escapes_and_optional_fields() {
        let text = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu\\040set rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct
nonsense
";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[1].id, mounts[1].parent), (32, 31));
        assert_eq!(mounts[1].target, Path::new("/sys/fs/cgroup/cpu set"));
        assert_eq!(mounts[1].kind, "cgroup");
        assert_eq!(mounts[1].options, ["rw", "cpu", "cpuacct"]);
    }
}
