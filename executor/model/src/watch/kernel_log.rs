//! Which processes the OOM killer has killed, from the kernel's log.
//!
//! Only the log tells. The line is made for programs: `oom-kill:` and pairs, since Linux 5.0
//! (dump_oom_victim in mm/oom_kill.c). The kernel leaves it out when many are killed at a time, and
//! the log may be out of reach: then the process is unknown, and may be any. The cgroup's count says how many there were.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use bowline_cgroup::sees_all;
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::{Errno, read};
use serde::{Deserialize, Serialize};

use crate::json::handover::Fd;

/// The longest record (PRINTKRB_RECORD_MAX in the kernel, and its prefix).
const LONGEST: usize = 8192;

/// How many victims are remembered: each ends at once.
const REMEMBERED: usize = 16;

/// A kill by the OOM killer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Kill {
    /// The cgroup whose limit was hit; null when the host itself ran out of memory.
    pub cgroup: Option<String>,
    /// The killed process, in the host's pids.
    pub pid: i32,
    /// The process's name: at most 15 bytes.
    pub name: String,
}

/// The kills that the log has named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedKills {
    count: u64,
    /// Those of the last ones.
    pids: BTreeSet<i32>,
    /// The last one, until it is told.
    #[serde(skip)]
    last: Option<Kill>,
}

impl NamedKills {
    fn add(&mut self, kill: Kill) {
        self.count += 1;
        if self.pids.len() == REMEMBERED {
            self.pids.clear();
        }
        self.pids.insert(kill.pid);
        self.last = Some(kill);
    }

    /// The last kill that was not taken yet.
    pub fn take_last(&mut self) -> Option<Kill> {
        self.last.take()
    }

    /// How many of so many `counted` kills are not named.
    pub fn unnamed(&self, counted: u64) -> u64 {
        counted.saturating_sub(self.count)
    }

    /// Whether process `pid` may be one of the `counted` kills; `unnamed` of them were not it.
    pub fn may_be(&self, pid: Option<i32>, counted: u64, unnamed: u64) -> bool {
        pid.is_none_or(|pid| self.pids.contains(&pid)) || self.unnamed(counted) > unnamed
    }
}

/// The kernel's log from a moment on.
#[derive(Debug)]
pub struct KernelLog(OwnedFd);

impl KernelLog {
    /// The log for the program that is executed in the shim's place, from where it was read.
    pub fn hand_over(&self) -> Fd {
        Fd::of(&self.0)
    }

    /// Goes on where the program before this one has read.
    pub fn take(log: Fd) -> bowline_error::Result<KernelLog> {
        log.take().map(KernelLog)
    }

    /// The log from now on; `None` where it cannot be read, or has other pids than the shim.
    pub fn from_now() -> Option<KernelLog> {
        if !sees_all() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = open("/dev/kmsg", flags, Mode::empty()).ok()?;
        seek(&log, SeekFrom::End(0)).ok()?;
        Some(KernelLog(log))
    }

    /// Adds the kills in the cgroup `path`, or below it, since the last call.
    pub fn read_into(&self, named: &mut NamedKills, path: &str) {
        let mut record = [0u8; LONGEST];
        loop {
            match read(&self.0, &mut record) {
                Ok(0) => return,
                Ok(length) => {
                    if let Some(kill) = kill_of(&String::from_utf8_lossy(&record[..length]), path) {
                        named.add(kill);
                    }
                }
                // The kernel wrote faster than the shim reads, or a signal came.
                Err(Errno::PIPE | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The kill that a record describes, if it was in the cgroup `path`. The process's name comes last
/// in the record and may contain anything.
fn kill_of(record: &str, path: &str) -> Option<Kill> {
    // 6,1234,5678901,-;oom-kill:constraint=CONSTRAINT_MEMCG,…
    let (_, text) = record.split_once(';')?;
    let pairs = text.strip_prefix("oom-kill:")?.lines().next()?;
    let (before, after) = pairs.split_once(&format!(",task_memcg={}", escaped(path)))?;
    let after = match after.strip_prefix('/') {
        Some(below) => below.split_once(",task=")?.1,
        None => after.strip_prefix(",task=")?,
    };
    let (rest, _uid) = after.rsplit_once(",uid=")?;
    let (name, pid) = rest.rsplit_once(",pid=")?;
    let cgroup = before.split_once(",oom_memcg=").map(|(_, path)| unescaped(path));
    Some(Kill { cgroup, pid: pid.parse().ok()?, name: name.to_owned() })
}

/// A path as the log has it: a backslash, which systemd puts into names of slices, is `\x5c`, and so is any byte that
/// cannot be printed (msg_add_ext_text in printk.c).
fn escaped(path: &str) -> String {
    let byte = |byte: u8| match byte {
        b' '..127 if byte != b'\\' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    path.bytes().map(byte).collect()
}

/// What [`escaped`] was made of.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once("\\x") {
        bytes.extend(plain.bytes());
        let code = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(code);
        rest = if code.is_some() { &after[2..] } else { after };
    }
    bytes.extend(rest.bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_TASK: &str = "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,\
                           oom_memcg=/bowline/x,task_memcg=/bowline/x/y,task=tail,pid=31326,uid=0\n";

    #[test]
    fn a_kill_of_the_cgroup_is_found() {
        let kill = kill_of(OF_TASK, "/bowline/x/y").expect("a kill");
        assert_eq!(kill, Kill { cgroup: Some("/bowline/x".into()), pid: 31326, name: "tail".into() });
        assert_eq!(kill_of(OF_TASK, "/bowline/x").map(|kill| kill.pid), Some(31326), "below it");
    }

    #[test]
    fn another_cgroups_is_not() {
        for other in ["/bowline/x/y/z", "/bowline/x/", "/y", "/bowline/x/yy"] {
            assert_eq!(kill_of(OF_TASK, other), None, "{other}");
        }
        let longer = OF_TASK.replace("x/y", "x/yy");
        assert_eq!(kill_of(&longer, "/bowline/x/y"), None);
    }

    #[test]
    fn a_slice_whose_name_systemd_has_escaped_is_found() {
        let path = "/bowline.slice/bowline-a\\x2db.slice/bowline-a-b.scope";
        assert_eq!(escaped("/a\\x2db/ä"), "/a\\x5cx2db/\\xc3\\xa4");
        let text = OF_TASK.replace("/bowline/x/y", &escaped(path)).replace("/bowline/x", &escaped("/a\\x2db/ä"));
        let kill = kill_of(&text, path).expect("a kill");
        assert_eq!((kill.cgroup.as_deref(), kill.pid), (Some("/a\\x2db/ä"), 31326));
    }

    #[test]
    fn a_name_cannot_pass_for_another_record() {
        let named = OF_TASK.replace("task=tail", "task=a,pid=1,uid=0");
        assert_eq!(kill_of(&named, "/bowline/x/y").map(|k| (k.pid, k.name)), Some((31326, "a,pid=1,uid=0".into())));
        assert_eq!(kill_of("6,1,2,-;Killed process 1 (a)\n", "/bowline/x/y"), None);
    }

    #[test]
    fn who_is_not_named_may_be_any() {
        let mut named = NamedKills::default();
        assert!(named.may_be(Some(7), 1, 0) && !named.may_be(Some(7), 1, 1));
        named.add(kill_of(OF_TASK, "/bowline/x/y").expect("a kill"));
        assert!(named.may_be(Some(31326), 1, 0) && !named.may_be(Some(7), 1, 0));
        assert!(named.may_be(Some(7), 2, 0) && named.may_be(None, 1, 0));
    }

    #[test]
    fn where_the_host_has_no_more_there_is_no_limit() {
        let text = "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                    task_memcg=/x,task=a,pid=7,uid=0\n";
        assert_eq!(kill_of(text, "/x").expect("a kill").cgroup, None);
    }
}
