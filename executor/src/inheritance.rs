//! Drops what a shim has inherited from its starter, so that no task inherits it.
//!
//! ```text
//!   caller ─► shim: leave_behind, once ─► every child inherits what is fresh
//!                     └► limits, has_oom_score: what each child sets for itself,
//!                        as the shim's own differs
//! ```
//!
//! A task has what its description says; what that leaves open is the same for every caller. What
//! the shim may not change stays and is logged: raising a hard limit or lowering a nice value needs
//! a capability. Must not: touch the umask. The shim's log files are as private as its caller wants
//! them, and every child sets its own umask.

use std::fs;
use std::sync::OnceLock;

use bowline_error::{Doing, Kind, Result};
use bowline_sys::{self as sys, SchedulingAttributes};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// The resource limits of a task that its description does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InheritedLimits {
    /// The limits of `docs/reference.md`, whoever launches the task.
    #[default]
    Fixed,
    /// The limits of the manager's own service, which is where its administrator sets them:
    /// Kubernetes has no other place for them.
    Managers,
}

/// Where the shim's own values differ from those that its children must have.
#[derive(Debug, Default)]
struct Differs {
    limits: Vec<(Resource, Rlimit)>,
    oom_score: bool,
}

static DIFFERS: OnceLock<Differs> = OnceLock::new();

/// Makes the calling process forget what it inherited. Called by a shim that has started, and by a
/// process that undoes a dead shim.
///
/// # Errors
/// `Internal` when the process cannot hide its memory and files from tasks.
pub fn leave_behind(limits: InheritedLimits) -> Result<()> {
    leave_behind_again(limits, None)
}

/// Like [`leave_behind`], for a program that has taken over from one that did that: `files` is the limit that it gave
/// its children.
///
/// # Errors
/// As [`leave_behind`].
pub fn leave_behind_again(limits: InheritedLimits, files: Option<HandedLimit>) -> Result<()> {
    hide()?;
    let attributes = SchedulingAttributes::default();
    let steps = [
        ("the execution domain", sys::personality(0)),
        ("scheduling policy and nice value", sys::sched_setattr(&attributes)),
        ("the I/O priority", sys::ioprio_set(0)),
        ("the CPU affinity", sys::run_on_any_cpu()),
        ("the memory policy", sys::default_memory_policy()),
    ];
    for (what, error) in steps.into_iter().filter_map(|(what, done)| Some((what, done.err()?))) {
        // A kernel without this call has nothing to inherit.
        if error.raw_os_error() != Some(libc::ENOSYS) {
            tracing::warn!(%error, "tasks inherit {what} of the process that started this shim");
        }
    }
    let oom_score = !has_plain_oom_score(limits);
    let limits = match limits {
        InheritedLimits::Fixed => fix_limits(),
        InheritedLimits::Managers => {
            let of_children = files.map(|[current, maximum]| (Resource::Nofile, Rlimit { current, maximum }));
            raise_files().or(of_children).into_iter().collect()
        }
    };
    let _ = DIFFERS.set(Differs { limits, oom_score });
    Ok(())
}

/// Whether this process's `oom_score_adj` is 0. A manager that the kernel spares, such as a Nomad agent at −1000, starts
/// shims that it need not spare: their tasks outlive them. A manager of the kind that decides limits decides this too.
fn has_plain_oom_score(limits: InheritedLimits) -> bool {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let score = sys::read_kernel_text(SCORE).unwrap_or_default();
    let is_spared = score.starts_with('-') && limits == InheritedLimits::Fixed;
    score.trim() == "0" || is_spared && fs::write(SCORE, "0").is_ok()
}

/// A soft and a hard limit, as a shim hands them over; `None` is no limit.
pub type HandedLimit = [Option<u64>; 2];

/// The limit of open files that this process gives its children, where it has another itself.
pub fn hand_over() -> Option<HandedLimit> {
    let of_files = limits().iter().find(|(resource, _)| *resource == Resource::Nofile);
    of_files.map(|(_, limit)| [limit.current, limit.maximum])
}

/// Keeps other processes from tracing the calling one, and from reaching its files and its root
/// through `/proc`, unless they have CAP_SYS_PTRACE in the shim's user namespace. A fork inherits
/// this, an execve ends it, and where `fs.suid_dumpable` is 1 a change of credentials ends it too.
pub fn hide() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).doing(Kind::Internal, || "cannot hide a process from tasks")
}

/// The limits that a child sets unless its description names them.
pub fn limits() -> &'static [(Resource, Rlimit)] {
    DIFFERS.get().map_or(&[], |differs| &differs.limits)
}

/// Whether the shim's `oom_score_adj` is not 0.
pub fn has_oom_score() -> bool {
    DIFFERS.get().is_some_and(|differs| differs.oom_score)
}

/// Gives this process the fixed limits, as far as it may and needs no higher ones itself; returns
/// the limits that its children must set.
fn fix_limits() -> Vec<(Resource, Rlimit)> {
    fixed(threads_max()).into_iter().filter_map(|(resource, fixed)| fix_limit(resource, fixed)).collect()
}

fn fix_limit(resource: Resource, fixed: Rlimit) -> Option<(Resource, Rlimit)> {
    let ours = getrlimit(resource);
    let highest = Rlimit { current: fixed.current, maximum: higher(ours.maximum, fixed.maximum) };
    // The shim needs files for each stream of each task, exec and guest: its own limit is no task's.
    let kept = if resource == Resource::Nofile { highest.maximum } else { fixed.current };
    let wanted = Rlimit { current: kept, ..highest };
    if wanted == ours || setrlimit(resource, wanted).is_ok() {
        return (wanted != fixed).then_some((resource, fixed));
    }
    // Without CAP_SYS_RESOURCE the hard limit stays.
    let most = |limit: Option<u64>| if higher(limit, ours.maximum) == limit { ours.maximum } else { limit };
    let possible = Rlimit { current: most(fixed.current), maximum: most(fixed.maximum) };
    let own = Rlimit { current: most(kept), maximum: ours.maximum };
    if own != ours && setrlimit(resource, own).is_err() {
        tracing::warn!("tasks inherit the limit {resource:?} of the process that started this shim");
        return None;
    }
    (own != possible).then_some((resource, possible))
}

/// Raises this process's limit of open files to the hard limit; returns the limit for its children, where that differs.
fn raise_files() -> Option<(Resource, Rlimit)> {
    let ours = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: ours.maximum, ..ours };
    (wanted != ours && setrlimit(Resource::Nofile, wanted).is_ok()).then_some((Resource::Nofile, ours))
}

/// The higher of two limits; `None` is no limit.
fn higher(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.max(b?))
}

/// The limits that Linux gives its first process; for open files and locked memory, those that systemd gives a service.
fn fixed(threads_max: Option<u64>) -> [(Resource, Rlimit); 16] {
    const MIB: u64 = 1 << 20;
    let limit = |soft: Option<u64>, hard: Option<u64>| Rlimit { current: soft, maximum: hard };
    let both = |most: Option<u64>| limit(most, most);
    // The kernel computes the limit like this at boot, from the size of memory (`fork_init`).
    let half = threads_max.map(|threads| threads / 2);
    [
        (Resource::As, both(None)),
        (Resource::Core, limit(Some(0), None)),
        (Resource::Cpu, both(None)),
        (Resource::Data, both(None)),
        (Resource::Fsize, both(None)),
        (Resource::Locks, both(None)),
        (Resource::Memlock, both(Some(8 * MIB))),
        (Resource::Msgqueue, both(Some(819_200))),
        (Resource::Nice, both(Some(0))),
        (Resource::Nofile, limit(Some(1024), Some(524_288))),
        (Resource::Nproc, both(half)),
        (Resource::Rss, both(None)),
        (Resource::Rtprio, both(Some(0))),
        (Resource::Rttime, both(None)),
        (Resource::Sigpending, both(half)),
        (Resource::Stack, limit(Some(8 * MIB), None)),
    ]
}

fn threads_max() -> Option<u64> {
    sys::read_kernel_text("/proc/sys/kernel/threads-max").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_higher_than_any() {
        assert_eq!(higher(None, Some(u64::MAX)), None);
        assert_eq!(higher(Some(1), None), None);
        assert_eq!(higher(Some(1), Some(2)), Some(2));
    }

    #[test]
    fn soft_limits_are_not_above_hard_ones() {
        for (resource, limit) in fixed(Some(1000)) {
            assert_eq!(higher(limit.current, limit.maximum), limit.maximum, "{resource:?}");
        }
    }
}
