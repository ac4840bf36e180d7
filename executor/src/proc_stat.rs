//! `/proc/PID/stat`: who a process is, and how it is (proc_pid_stat(5)).

use std::fs::File;
use std::io::Read as _;

/// How long one may be, in bytes: 52 numbers of 20 digits at most, and the name.
const LONGEST: usize = 2048;

/// The text of that of process `pid`; none where there is no such process. A name's bytes that are no text are replaced.
pub fn read(pid: i32) -> Option<String> {
    let mut text = [0; LONGEST];
    // In one call: the kernel makes all of it at once.
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// When the process that has this pid now started: see [`ProcStat::started`].
pub fn started(pid: i32) -> Option<u64> {
    ProcStat::parse(&read(pid)?)?.started()
}

/// What one says.
#[derive(Debug, Clone, Copy)]
pub struct ProcStat<'a> {
    /// What the process calls itself: at most 15 bytes, which may be any.
    pub name: &'a str,
    /// From field 3, the state, on.
    rest: &'a str,
}

impl<'a> ProcStat<'a> {
    /// Of the file's text; `None` for what is none.
    pub fn parse(text: &'a str) -> Option<ProcStat<'a>> {
        // The last bracket ends the name.
        let (before, rest) = text.rsplit_once(") ")?;
        Some(ProcStat { name: before.split_once(" (")?.1, rest })
    }

    /// The state's letter.
    pub fn state(&self) -> &'a str {
        self.rest.split(' ').next().unwrap_or_default()
    }

    /// Whether it has ended, and waits for its parent.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), "Z" | "X")
    }

    /// The number in a field, as the manual page counts them, from 4 on.
    pub fn number(&self, field: usize) -> Option<u64> {
        self.rest.split(' ').nth(field.checked_sub(3)?)?.trim().parse().ok()
    }

    /// A pid in a field.
    pub fn pid(&self, field: usize) -> Option<i32> {
        self.number(field)?.try_into().ok()
    }

    /// When the process started, in clock ticks since the boot: with the pid it says which process it is, as long as the
    /// machine runs.
    pub fn started(&self) -> Option<u64> {
        self.number(22)
    }

    /// Its parent's pid.
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
    fn what_is_none_is_none() {
        assert!(["", "1", "1 (x", "1 x) S"].iter().all(|text| ProcStat::parse(text).is_none()));
    }
}
