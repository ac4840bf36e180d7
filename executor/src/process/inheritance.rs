//! Drops what a shim has inherited from its starter, so that no task inherits it.
//!
//! ```text
//!   caller ─► shim: leave_behind, once ─► every child inherits what is fresh
//!                     ├► limits, has_oom_score: what each child sets for itself,
//!                     │  as the shim's own differs
//!                     └► to_record ─► task.json ─► go_on_with, in a shim that takes over
//! ```
//!
//! A task has what its description says; what that leaves open is the same for every caller. What
//! the shim may not change stays and is logged: raising a hard limit or lowering a nice value needs
//! a capability. Must not: touch the umask. The shim's log files are as private as its caller wants
//! them, and every child sets its own umask.

use std::fs;
use std::sync::OnceLock;

use bowline_error::{Doing, Kind, Result};
use bowline_model::record::{HandedLimit, RecordedLimits};
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
    limits: ChildrensLimits,
    oom_score: bool,
}

/// The resource limits of the shim's children.
#[derive(Debug, Default)]
struct ChildrensLimits {
    /// Those that each child sets, as the shim's own differ.
    set: Vec<(Resource, Rlimit)>,
    /// Those that are not the fixed ones, as the shim may not set these.
    unfixed: RecordedLimits,
    /// The resources whose limit is not the wanted one, for the same reason.
    lacking: Vec<Resource>,
}

static DIFFERS: OnceLock<Differs> = OnceLock::new();
/// The limits of the children of a shim that has taken tasks over.
static AS_BEFORE: OnceLock<ChildrensLimits> = OnceLock::new();

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
        InheritedLimits::Fixed => fix_limits(&RecordedLimits::new()),
        InheritedLimits::Managers => {
            let of_children = files.map(|files| (Resource::Nofile, limit_of(files)));
            ChildrensLimits { set: raise_files().or(of_children).into_iter().collect(), ..ChildrensLimits::default() }
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

fn limit_of([current, maximum]: HandedLimit) -> Rlimit {
    Rlimit { current, maximum }
}

/// The limits of the shim's tasks that are not the fixed ones, because the shim may not set these.
pub fn to_record() -> RecordedLimits {
    childrens_limits().map(|limits| limits.unfixed.clone()).unwrap_or_default()
}

/// Gives the children of this shim the limits that a task had from the shim before it, as far as this one may: its
/// starter may have others. `recorded` are those of [`to_record`] then. All tasks of a shim have the same.
pub fn go_on_with(recorded: &RecordedLimits) {
    if AS_BEFORE.get().is_some() {
        return;
    }
    let limits = fix_limits(recorded);
    if !limits.lacking.is_empty() {
        let lacking = &limits.lacking;
        tracing::warn!(?lacking, "commands have lower limits than before: those of who started this shim");
    }
    let _ = AS_BEFORE.set(limits);
}

fn childrens_limits() -> Option<&'static ChildrensLimits> {
    AS_BEFORE.get().or_else(|| DIFFERS.get().map(|differs| &differs.limits))
}

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
    childrens_limits().map_or(&[], |limits| &limits.set)
}

/// Whether the shim's `oom_score_adj` is not 0.
pub fn has_oom_score() -> bool {
    DIFFERS.get().is_some_and(|differs| differs.oom_score)
}

/// Gives this process the fixed limits, or in their place the `recorded` ones, as far as it may and needs no higher ones
/// itself.
fn fix_limits(recorded: &RecordedLimits) -> ChildrensLimits {
    let mut limits = ChildrensLimits::default();
    for (resource, fixed) in fixed(threads_max()) {
        let recorded = if recorded.is_empty() { None } else { recorded.get(&name_of(resource)) };
        let wanted = recorded.map_or(fixed, |limit| limit_of(*limit));
        let (own, childs) = fix_limit(resource, wanted);
        if own != childs {
            limits.set.push((resource, childs));
        }
        if childs != fixed {
            limits.unfixed.insert(name_of(resource), [childs.current, childs.maximum]);
        }
        if childs != wanted {
            limits.lacking.push(resource);
        }
    }
    limits
}

fn name_of(resource: Resource) -> String {
    format!("{resource:?}").to_lowercase()
}

/// Returns the limits that this process then has itself, and those of its children.
fn fix_limit(resource: Resource, fixed: Rlimit) -> (Rlimit, Rlimit) {
    let ours = getrlimit(resource);
    let highest = Rlimit { current: fixed.current, maximum: higher(ours.maximum, fixed.maximum) };
    // The shim needs files for each stream of each task, exec and guest: its own limit is no task's.
    let kept = if resource == Resource::Nofile { highest.maximum } else { fixed.current };
    let wanted = Rlimit { current: kept, ..highest };
    if wanted == ours || setrlimit(resource, wanted).is_ok() {
        return (wanted, fixed);
    }
    // Without CAP_SYS_RESOURCE the hard limit stays.
    let most = |limit: Option<u64>| if higher(limit, ours.maximum) == limit { ours.maximum } else { limit };
    let possible = Rlimit { current: most(fixed.current), maximum: most(fixed.maximum) };
    let own = Rlimit { current: most(kept), maximum: ours.maximum };
    if own != ours && setrlimit(resource, own).is_err() {
        tracing::warn!("tasks inherit the limit {resource:?} of the process that started this shim");
        return (ours, ours);
    }
    (own, possible)
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

/// The limits that Linux gives its first process, half as many pending signals; for open files and locked memory, those that systemd gives a service.
fn fixed(threads_max: Option<u64>) -> [(Resource, Rlimit); 16] {
    const MIB: u64 = 1 << 20;
    let limit = |soft: Option<u64>, hard: Option<u64>| Rlimit { current: soft, maximum: hard };
    let both = |most: Option<u64>| limit(most, most);
    // The kernel computes the limit like this at boot, from the size of memory (`fork_init`).
    let half = threads_max.map(|threads| threads / 2);
    // Pending signals count by user: root's tasks leave half of the kernel's limit to the host's own processes.
    let quarter = threads_max.map(|threads| threads / 4);
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
        (Resource::Sigpending, both(quarter)),
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
