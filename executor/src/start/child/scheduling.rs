//! Sets how a process is scheduled, and as which kind of Linux it sees the kernel.
//!
//! Runs before rights are given up: most of it needs CAP_SYS_NICE.

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::values::IdSet;
use bowline_sys::{self as sys, SchedulingAttributes};
use oci_spec::runtime::{
    IOPriorityClass, LinuxPersonalityDomain, LinuxSchedulerFlag, LinuxSchedulerPolicy, Process, Scheduler, Spec,
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Applies the process's scheduler and I/O priority. Init does so before it is ready, so that one that this host
/// cannot give fails the creation of the container, as with runc.
pub fn apply(process: &Process) -> Result<()> {
    if let Some(wanted) = process.scheduler() {
        let what = || format!("process.scheduler: cannot become {}", wanted.policy());
        let set = sys::sched_setattr(&attributes(wanted)?);
        // EPERM where the process may not run on all CPUs that share deadlines (sched_setattr(2)).
        let denied = set.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
        set.doing(Kind::BadSpec, what).map_err(|error| match wanted.policy() {
            LinuxSchedulerPolicy::SchedDeadline if denied => {
                error.hint("the kernel refuses it beside linux.resources.cpu.cpus: leave these out, or name all CPUs")
            }
            _ => error,
        })?;
    }
    if let Some(wanted) = process.io_priority() {
        let (class, priority) = (wanted.class(), wanted.priority());
        let what = || format!("process.ioPriority: cannot set {class} {priority}");
        let number = match class {
            IOPriorityClass::IoprioClassRt => 1,
            IOPriorityClass::IoprioClassBe => 2,
            IOPriorityClass::IoprioClassIdle => 3,
        };
        // `unsupported` has checked that it is 0 to 7.
        let level = i32::try_from(priority).doing(Kind::BadSpec, what)?;
        sys::ioprio_set(number << 13 | level).doing(Kind::BadSpec, what)?;
    }
    Ok(())
}

/// Makes the calling process, and the program that it executes, see the kernel as the spec says.
pub fn personality(spec: &Spec) -> Result<()> {
    let linux = spec.linux().as_ref();
    let Some(wanted) = linux.and_then(|linux| linux.personality().as_ref()) else { return Ok(()) };
    let number = match wanted.domain() {
        LinuxPersonalityDomain::PerLinux => 0,
        LinuxPersonalityDomain::PerLinux32 => 8,
    };
    sys::personality(number).doing(Kind::Unsupported, || "linux.personality: cannot set it")
}

/// Lets a worker that starts an exec run on the CPUs that the exec begins on, until it is in its cgroup: until then,
/// the kernel's work for it takes CPU time from other tasks.
pub fn first_affinity(process: &Process) -> Result<()> {
    affinity(process)[0].map_or(Ok(()), run_on)
}

/// Gives an exec in its cgroup the CPUs that its configuration names. If it names those to begin on alone, they are left
/// to the kernel.
pub fn last_affinity(process: &Process) -> Result<()> {
    match affinity(process) {
        [_, Some(last)] => run_on(last),
        [Some(_), None] => Ok(()),
        [None, None] => {
            run_anywhere();
            Ok(())
        }
    }
}

/// Lets the calling process run on every CPU of its cgroup: whoever has pinned the shim did not mean its tasks.
pub fn run_anywhere() {
    // Where that may not be set, the shim has said so in its log as it began.
    let _ = sys::run_on_any_cpu();
}

/// The CPUs that a process names to begin on, and to run on.
fn affinity(process: &Process) -> [Option<&str>; 2] {
    let Some(affinity) = process.exec_cpu_affinity() else { return [None, None] };
    [affinity.initial(), affinity.cpu_affinity_final()].map(|cpus| cpus.as_deref().filter(|cpus| !cpus.is_empty()))
}

/// Lets the calling process run on `list` only.
fn run_on(list: &str) -> Result<()> {
    let what = || format!("process.execCPUAffinity: cannot run on {list:?}");
    let list: IdSet = list.parse().doing(Kind::BadSpec, what)?;
    let mut cpus = CpuSet::new();
    // One beyond these is not there.
    list.ids().iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    sched_setaffinity(None, &cpus).doing(Kind::BadSpec, what)
}

fn attributes(wanted: &Scheduler) -> Result<SchedulingAttributes> {
    let mut flags = 0;
    for flag in wanted.flags().iter().flatten() {
        flags |= match flag {
            LinuxSchedulerFlag::SchedResetOnFork => 0x01,
            LinuxSchedulerFlag::SchedFlagReclaim => 0x02,
            LinuxSchedulerFlag::SchedFlagDLOverrun => 0x04,
            LinuxSchedulerFlag::SchedFlagKeepPolicy => 0x08,
            LinuxSchedulerFlag::SchedFlagKeepParams => 0x10,
            LinuxSchedulerFlag::SchedFlagUtilClampMin | LinuxSchedulerFlag::SchedFlagUtilClampMax => {
                let message = format!("process.scheduler: {flag} has no value to clamp to");
                return Err(Error::new(Kind::BadSpec, message));
            }
        };
    }
    let policy = match wanted.policy() {
        LinuxSchedulerPolicy::SchedOther => 0,
        LinuxSchedulerPolicy::SchedFifo => 1,
        LinuxSchedulerPolicy::SchedRr => 2,
        LinuxSchedulerPolicy::SchedBatch => 3,
        LinuxSchedulerPolicy::SchedIso => {
            return Err(Error::new(Kind::Unsupported, "process.scheduler: Linux has no SCHED_ISO"));
        }
        LinuxSchedulerPolicy::SchedIdle => 5,
        LinuxSchedulerPolicy::SchedDeadline => 6,
    };
    let priority = wanted.priority().unwrap_or(0);
    let negative = |_| Error::new(Kind::BadSpec, format!("process.scheduler: priority {priority} is negative"));
    Ok(SchedulingAttributes {
        policy,
        flags,
        nice: wanted.nice().unwrap_or(0),
        priority: u32::try_from(priority).map_err(negative)?,
        runtime: wanted.runtime().unwrap_or(0),
        deadline: wanted.deadline().unwrap_or(0),
        period: wanted.period().unwrap_or(0),
    })
}
