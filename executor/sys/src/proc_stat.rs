//! Reads `/proc/PID/stat`: the identity and the state of a process (proc_pid_stat(5)).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The flag of a process that has executed no program since it was forked.
const PF_FORKNOEXEC: u64 = 0x40;
/// The flag of a thread that exits, set before anything is taken down that others could notice. As
/// in include/linux/sched.h since Linux 2.6.
const PF_EXITING: u64 = 0x4;
/// The flag of a thread that is about to exit because a signal ends its process, perhaps after a core dump.
const PF_SIGNALED: u64 = 0x400;
/// SIGKILL among the pending signals of a thread. Each thread of a process has it as soon as a
/// signal has ended the process.
const KILL: u64 = 1 << 8;

/// The longest text of a stat file, in bytes: 52 numbers of 20 digits at most, and the name.
const LONGEST: usize = 2048;

/// The text of `/proc/PID/stat` for process `pid`; `None` if there is no such process. Bytes of the
/// name that are no UTF-8 are replaced.
pub fn read(pid: i32) -> Option<String> {
    read_in(Path::new(&format!("/proc/{pid}")))
}

/// As [`read`], where what cannot be read must not be taken for a process that is not there.
///
/// # Errors
/// Why the text cannot be read, such as a lack of descriptors.
pub fn find(pid: i32) -> io::Result<Option<String>> {
    match try_read_in(Path::new(&format!("/proc/{pid}"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        found => found.map(Some),
    }
}

/// The text of `stat` in a process's or thread's `folder` of `/proc`.
pub fn read_in(folder: &Path) -> Option<String> {
    try_read_in(folder).ok()
}

/// As [`read_in`], with the error: where no file can be opened, the process may still be there.
pub(crate) fn try_read_in(folder: &Path) -> io::Result<String> {
    let mut text = [0; LONGEST];
    // Read in one call: the kernel makes all of it at once.
    let length = File::open(folder.join("stat"))?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// When the process that has this pid now started: see [`ProcStat::started`].
pub fn started(pid: i32) -> Option<u64> {
    ProcStat::parse(&read(pid)?)?.started()
}

/// The pid of the parent of the process that has this pid now.
pub fn parent(pid: i32) -> Option<i32> {
    ProcStat::parse(&read(pid)?)?.parent()
}

/// The content of a stat file.
#[derive(Debug, Clone, Copy)]
pub struct ProcStat<'a> {
    /// The process's name: at most 15 bytes, which may be any.
    pub name: &'a str,
    /// The text from field 3, the state, on.
    rest: &'a str,
}

impl<'a> ProcStat<'a> {
    /// Parses the file's text; `None` if the text is invalid.
    pub fn parse(text: &'a str) -> Option<ProcStat<'a>> {
        // The last bracket ends the name.
        let (before, rest) = text.rsplit_once(") ")?;
        Some(ProcStat { name: before.split_once(" (")?.1, rest })
    }

    pub fn state(&self) -> &'a str {
        self.rest.split(' ').next().unwrap_or_default()
    }

    /// Whether the process has ended, and waits for its parent to reap it.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), "Z" | "X")
    }

    /// Whether this process or thread runs nothing of its program any more: it has ended, exits, or is killed.
    pub fn ends(&self) -> bool {
        let any = |field, bits| self.number(field).is_some_and(|word| word & bits != 0);
        self.has_ended() || any(9, PF_EXITING | PF_SIGNALED) || any(31, KILL)
    }

    /// Whether a thread of the process may run: the first one has not ended, or there are others, which outlive it where
    /// it has called pthread_exit(3).
    pub fn may_run(&self) -> bool {
        !self.ends() || self.number(20).is_some_and(|threads| threads > 1)
    }

    /// Whether the process lives and has executed no program since it was forked.
    pub fn is_a_fork(&self) -> bool {
        !self.ends() && self.number(9).is_some_and(|flags| flags & PF_FORKNOEXEC != 0)
    }

    /// The number in `field`, as the manual page counts fields, from 4 on.
    pub fn number(&self, field: usize) -> Option<u64> {
        self.rest.split(' ').nth(field.checked_sub(3)?)?.trim().parse().ok()
    }

    pub fn pid(&self, field: usize) -> Option<i32> {
        self.number(field)?.try_into().ok()
    }

    /// When the process started, in clock ticks since the boot: together with the pid this
    /// identifies the process for as long as the machine runs.
    pub fn started(&self) -> Option<u64> {
        self.number(22)
    }

    /// The pid of the parent.
    pub fn parent(&self) -> Option<i32> {
        self.pid(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let stat = ProcStat::parse("4711 (a) (b) c) S 10 1 2 0 -1 0\n").expect("one");
        assert_eq!((stat.name, stat.state(), stat.parent(), stat.pid(6)), ("a) (b) c", "S", Some(10), Some(2)));
        assert_eq!((stat.number(8), stat.number(9), stat.number(90)), (None, Some(0), None));
        assert!(!stat.has_ended());
        assert!(ProcStat::parse("1 (x) Z 1").is_some_and(|stat| stat.has_ended()));
    }

    #[test]
    fn one_that_exits_or_is_killed_ends() {
        let ends = |state: &str, flags: u64, pending: u64| {
            let between = "0 ".repeat(21);
            let text = format!("1 (x) {state} 1 1 1 0 -1 {flags} {between}{pending} 0");
            let stat = ProcStat::parse(&text).expect("one");
            assert_eq!((stat.number(9), stat.number(31)), (Some(flags), Some(pending)));
            stat.ends()
        };
        // Idle processes, as the kernel has shown them; with a pending SIGTERM, which may be handled.
        assert!(!ends("S", 4_194_560, 0) && !ends("S", 4_194_304, 1 << 14));
        // At the end of a pid namespace; with a pending SIGKILL; in a core dump; as a zombie.
        assert!(ends("S", 4_194_308, 0) && ends("S", 4_194_304, 1 << 8) && ends("D", 4_195_328, 0) && ends("Z", 0, 0));
    }

    #[test]
    fn one_with_other_threads_may_run_though_its_first_has_ended() {
        let may_run = |state: &str, threads: u64| {
            let text = format!("1 (x) {state} 1 1 1 0 -1 0 {}{threads} 0 7", "0 ".repeat(10));
            ProcStat::parse(&text).is_some_and(|stat| stat.may_run())
        };
        assert!(may_run("Z", 2) && may_run("S", 1) && !may_run("Z", 1) && !may_run("Z", 0));
    }

    #[test]
    fn one_that_was_forked_is_a_fork_until_it_executes_a_program() {
        let is_a_fork = |state: &str, flags: u64| {
            ProcStat::parse(&format!("1 (x) {state} 1 1 1 0 -1 {flags} 0")).is_some_and(|stat| stat.is_a_fork())
        };
        assert!(is_a_fork("S", 4_194_624) && !is_a_fork("S", 4_194_560) && !is_a_fork("Z", 4_194_624));
    }

    #[test]
    fn what_is_none_is_none() {
        assert!(["", "1", "1 (x", "1 x) S"].iter().all(|text| ProcStat::parse(text).is_none()));
    }
}
