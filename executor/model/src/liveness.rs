//! Whether the init of a record lives. One that is not shown here may live in a pid namespace that this process is not in,
//! and a record's paths may be of another cgroup namespace.
//!
//! ```text
//!   pid and start of the record ─► not there ─► its cgroup ─┬► has processes that are not shown here
//!                                                           └► has it under another number
//! ```
//!
//! A record has the numbers of the pid namespace that its shim was in. Whoever looks from another one must neither take
//! the task for ended nor remove it. Must not: signal or change anything.

use std::os::fd::OwnedFd;

use bowline_cgroup::{self as cgroup, Cgroup, CgroupIdentity, Layout};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::proc_stat::ProcStat;
use bowline_sys::{self as sys, proc_stat};

use crate::folder::{Folder, Record};
use crate::sandbox::SandboxRecord;

/// Why nothing is done from another pid namespace, and what to do instead.
pub const UNSEEN: &str =
    "its processes live in another pid namespace than this command: run the command where they were started";

/// Why nothing is done from another cgroup namespace, and what to do instead.
pub const OTHER_CGROUPS: &str =
    "its cgroups are named in another cgroup namespace than this command's: run the command where it was started";

/// A live process of the task.
#[derive(Debug)]
pub struct Live {
    /// In the shim's pid namespace. For answers, never for signals.
    pub pid: i32,
    /// For signals to the process.
    pub pidfd: OwnedFd,
}

/// The pid of a process, and when it started: see [`proc_stat::started`].
type Recorded = (i32, u64);

impl Record {
    /// The task's init, if it lives and this process sees it.
    pub fn live_init(&self) -> Result<Option<Live>> {
        let Some((pid, started)) = self.pid.zip(self.pid_started) else { return Ok(None) };
        let pidfd =
            sys::open_process(pid, started).doing(Kind::Internal, || format!("cannot look for process {pid}"))?;
        Ok(pidfd.map(|pidfd| Live { pid, pidfd }))
    }

    /// What tells that the number of the task's init is another process's by now.
    pub fn reused_pid(&self) -> Option<String> {
        let (pid, started) = self.pid.zip(self.pid_started)?;
        let is_anothers = proc_stat::started(pid).is_some_and(|now| now != started);
        is_anothers.then(|| format!("the pid in its record, {pid}, is another process's now"))
    }

    /// Whether something of the task may live: its init, or what is in its cgroup, where that has a pid namespace of its own
    /// and so ends with init.
    pub fn may_run(&self) -> bool {
        let is_used = |layout: &Layout| {
            let cgroup = self.cgroup_without_init(layout).ok().flatten();
            cgroup.is_some_and(|cgroup| is_in_use(layout, &cgroup))
        };
        self.runs() || self.has_own_pids() && cgroup::detect().is_ok_and(|layout| is_used(&layout))
    }

    fn has_own_pids(&self) -> bool {
        self.sandbox.is_none() && self.task.as_ref().is_some_and(|task| task.namespaces.pid.is_none())
    }

    /// Why `pid` and `pid_started` cannot be those of the task's init, by what is in its cgroup. What init has left in its pid
    /// namespace ends a moment after it, and so do the threads of an init that ends.
    pub fn misnames_init(&self, layout: &Layout, cgroup: &Cgroup, init: Option<&Live>) -> Option<String> {
        let (pid, started) = self.pid.zip(self.pid_started)?;
        if layout.goes_without() {
            return None;
        }
        match init {
            Some(_) => {
                // Nearly always the first answer will do: the second opens all processes.
                let is_inside = layout.path_of(pid).is_some_and(|path| path.starts_with(&self.cgroup));
                let is_stranger = !is_inside && layout.member(cgroup, pid).is_none() && is(pid, |stat| stat.may_run());
                is_stranger.then(|| format!("process {pid}, which `pid` in its record names, is not in its cgroup"))
            }
            None if !is_in_use(layout, cgroup) => None,
            // A bundle's configuration says which namespaces there are.
            None if self.has_own_pids() && self.bundle().is_none() => Some(format!(
                "no process is the init that `pid` and `pid_started` in its record name, {pid} and {started}, \
                 and others in its pid namespace live"
            )),
            None => self.reused_pid().map(|why| format!("{why}, by `pid_started`, and others in its cgroup live")),
        }
    }

    /// Whether the task's init is not there by the number in the record, but lives where this process cannot see it, or
    /// sees it under another number.
    pub fn is_elsewhere(&self, layout: &Layout) -> Result<bool> {
        let Some(cgroup) = self.cgroup_without_init(layout)? else { return Ok(false) };
        Ok(layout.hides_processes(&cgroup)
            || self.pid.zip(self.pid_started).is_some_and(|init| has_other_number(layout, &cgroup, init)))
    }

    /// Whether the task runs, and the path of its cgroup is of another cgroup namespace than this process's.
    pub fn is_of_another_namespace(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| cgroup::is_another_namespace(identity.namespace)) && self.runs()
    }

    /// Checks that the task's cgroup can be named from here, where the task runs. Goes before [`cgroup::detect`], which
    /// may find no hierarchy in another cgroup namespace.
    ///
    /// # Errors
    /// `WrongState` in another cgroup namespace.
    pub fn check_namespace(&self, what: impl FnOnce() -> String) -> Result<()> {
        unless(self.is_of_another_namespace(), what, OTHER_CGROUPS)
    }

    /// Checks that the task's init has not ended merely as seen from here.
    ///
    /// # Errors
    /// `WrongState` where its processes may live, and this process cannot see them.
    pub fn check_seen(&self, layout: &Layout, what: impl FnOnce() -> String) -> Result<()> {
        unless(self.cgroup_without_init(layout)?.is_some_and(|cgroup| layout.hides_processes(&cgroup)), what, UNSEEN)
    }

    /// The task's cgroup, where its init is not there.
    fn cgroup_without_init(&self, layout: &Layout) -> Result<Option<Cgroup>> {
        if self.pid.is_none() || self.live_init()?.is_some() {
            return Ok(None);
        }
        let is_its = |cgroup: &Cgroup| {
            let its = |identity: &CgroupIdentity| identity.is_of_this_boot() && identity.is_of(layout, cgroup);
            self.identity.as_ref().is_some_and(its)
        };
        // A path that is no cgroup's is of no task.
        Ok(layout.open(&self.cgroup).ok().flatten().filter(is_its))
    }
}

fn lives(pid: i32) -> bool {
    is(pid, |stat| !stat.ends())
}

/// Whether this is so of the process that has this pid now.
fn is(pid: i32, so: impl Fn(&ProcStat<'_>) -> bool) -> bool {
    proc_stat::read(pid).is_some_and(|stat| ProcStat::parse(&stat).is_some_and(|stat| so(&stat)))
}

/// Whether a process of the cgroup lives.
pub fn is_in_use(layout: &Layout, cgroup: &Cgroup) -> bool {
    layout.processes(cgroup).into_iter().any(lives)
}

impl SandboxRecord {
    /// Whether the pause process or the init of one of the `members` is not there by its number, but lives elsewhere: see
    /// [`Record::is_elsewhere`].
    pub fn is_elsewhere(&self, layout: &Layout, members: &[Folder]) -> Result<bool> {
        for member in members.iter().filter(|member| !matches!(member.exit(), Ok(Some(_)))) {
            // One whose record cannot be read goes on with nobody.
            if let Ok(Some(record)) = member.record()
                && record.is_elsewhere(layout)?
            {
                return Ok(true);
            }
        }
        self.hides_pause(layout, true)
    }

    /// Like [`Record::check_namespace`], where a member or the pause process lives.
    pub fn check_namespace(&self, members: &[Folder], what: impl FnOnce() -> String) -> Result<()> {
        let runs = |member: &Folder| member.record().is_ok_and(|record| record.is_some_and(|record| record.runs()));
        let another = self.is_of_another_namespace() && (self.pause()?.is_some() || members.iter().any(runs));
        unless(another, what, OTHER_CGROUPS)
    }

    /// Checks that no member, and not the pause process, has ended merely as seen from here.
    ///
    /// # Errors
    /// `WrongState` where their processes may live, and this process cannot see them.
    pub fn check_seen(&self, layout: &Layout, members: &[Folder], what: impl Fn() -> String) -> Result<()> {
        for member in members {
            if let Ok(Some(record)) = member.record() {
                record.check_seen(layout, &what)?;
            }
        }
        unless(self.hides_pause(layout, false)?, what, UNSEEN)
    }

    /// Whether the pause process lives where it cannot be seen or, with `named`, has another number here.
    fn hides_pause(&self, layout: &Layout, named: bool) -> Result<bool> {
        let Some(pause) = self.pause_pid.zip(self.pause_started) else { return Ok(false) };
        if self.pause()?.is_some() {
            return Ok(false);
        }
        let overhead = self.overhead.as_ref().and_then(|path| layout.open(path).ok().flatten());
        let hides =
            |cgroup: &Cgroup| layout.hides_processes(cgroup) || named && has_other_number(layout, cgroup, pause);
        Ok(overhead.as_ref().is_some_and(hides))
    }
}

fn unless(refused: bool, what: impl FnOnce() -> String, why: &str) -> Result<()> {
    if refused { Err(Error::new(Kind::WrongState, format!("{}: {why}", what()))) } else { Ok(()) }
}

/// Whether a process of the cgroup has this number in a pid namespace below the one of this process.
fn has_other_number(layout: &Layout, cgroup: &Cgroup, (pid, started): Recorded) -> bool {
    let is_it = |process: i32| proc_stat::started(process) == Some(started) && inner_pids(process).contains(&pid);
    layout.processes(cgroup).into_iter().any(is_it)
}

/// The numbers of a process in the pid namespaces below the one of this process.
fn inner_pids(process: i32) -> Vec<i32> {
    let status = sys::read_kernel_text(&format!("/proc/{process}/status")).unwrap_or_default();
    parse_inner_pids(&status).unwrap_or_default()
}

fn parse_inner_pids(status: &str) -> Option<Vec<i32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(line.split_whitespace().skip(1).filter_map(|pid| pid.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_below_are_those_after_the_first() {
        let pids = |line: &str| parse_inner_pids(&format!("Name:\tx\nTgid:\t4711\n{line}\nPPid:\t1\n"));
        assert_eq!(pids("NSpid:\t4711\t12\t1"), Some(vec![12, 1]));
        assert_eq!(pids("NSpid:\t4711"), Some(Vec::new()));
        assert_eq!(pids("Tgid:\t1"), None);
    }
}
