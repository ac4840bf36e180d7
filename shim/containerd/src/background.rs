//! Starts the serving process for `start`: sets its cgroup, OOM score, environment and fds, and kills it if `start`
//! fails.
//!
//! What a process inherits is set for this process first. So nothing changes for the serving process while it runs, and
//! what this host does not support fails before there is anything to undo.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use bowline_executor::internal::page_release::FRUGAL;
use bowline_executor::internal::{Sealed, join_cgroup, open_sealed};
use bowline_model::{Doing, Kind, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::thread::{CoreSchedulingScope, create_core_scheduling_cookie};

use super::invocation::Invocation;
use bowline_client::spawn;

/// Variables that systemd or a Go runtime set for containerd, not for its shims.
const NOT_HANDED_DOWN: [&str; 8] = [
    "GOMAXPROCS",
    "GOGC",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// Sets cgroup, core scheduling and OOM score of this process and of all that it starts from now on.
///
/// # Errors
/// `NotFound` or `Internal` for a cgroup that cannot be joined, `Unsupported` where the kernel has no core scheduling.
pub fn settle(invocation: &Invocation, shim_cgroup: Option<&str>) -> Result<()> {
    if let Some(path) = shim_cgroup {
        // Other shims also accept a path without the slash on v1.
        let path = format!("/{}", path.trim_start_matches('/'));
        join_cgroup(&path).map_err(|error| error.within("ShimCgroup"))?;
    }
    if invocation.sched_core {
        let ourselves = rustix::process::getpid();
        create_core_scheduling_cookie(ourselves, CoreSchedulingScope::ThreadGroup)
            .doing(Kind::Unsupported, || "cannot schedule cores for this container alone, as SCHED_CORE asks")
            .map_err(|error| error.hint("it needs CONFIG_SCHED_CORE and SMT; or turn sched_core off in containerd"))?;
    }
    adjust_oom_score()
}

/// Sets a score one above containerd's own, so that the kernel kills the shim before containerd.
fn adjust_oom_score() -> Result<()> {
    let score_of = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).ok()?;
        text.trim().parse::<i32>().ok()
    };
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    // A parent that we cannot see has passed its score on to us.
    let score = parent.and_then(|pid| score_of(&pid)).or_else(|| score_of("self")).unwrap_or(0);
    let wanted = above(score);
    match std::fs::write("/proc/self/oom_score_adj", wanted.to_string()) {
        // Lowering the score needs a privilege; without it, keep the inherited score.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        written => written.doing(Kind::Internal, || format!("cannot set the shim's oom_score_adj to {wanted}")),
    }
}

fn above(score: i32) -> i32 {
    const HIGHEST: i32 = 1000;
    score.saturating_add(1).min(HIGHEST)
}

/// A serving process that is killed on drop, unless it is let go.
pub struct Background(Option<Child>);

impl Background {
    /// Starts the serving process. It gets the listener, and no other fd of ours.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub fn start(invocation: &Invocation, address: &str, listener: UnixListener) -> Result<Background> {
        let what = || "cannot start the serving process";
        let binary = spawn::ourselves()?;
        let Sealed { program, mount } = open_sealed(&binary)?;
        // Move the fds away from the numbers of stdin, stdout and stderr.
        let above = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, 10);
        let program = above(program).doing(Kind::Internal, what)?;
        let listener = above(listener.into()).doing(Kind::Internal, what)?;
        fcntl_setfd(&listener, FdFlags::empty()).doing(Kind::Internal, what)?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg0(&binary).args(invocation.to_serve(address, listener.as_raw_fd(), &spawn::bowline(&binary)));
        for name in NOT_HANDED_DOWN {
            command.env_remove(name);
        }
        // A setting of the host takes precedence.
        if std::env::var_os(FRUGAL.0).is_none() {
            command.env(FRUGAL.0, FRUGAL.1);
        }
        let addresses = [("TTRPC_ADDRESS", &invocation.ttrpc_address), ("GRPC_ADDRESS", &invocation.grpc_address)];
        command.envs(addresses.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().doing(Kind::Internal, what).map(|child| Background(Some(child)));
        drop(mount);
        started
    }

    /// Lets the process outlive this one.
    pub fn let_go(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The child is not reaped yet, so its pid cannot have been reused.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_one_above_the_parent_s_and_never_beyond_the_highest() {
        for (parent, shim) in [(-1000, -999), (-999, -998), (0, 1), (999, 1000), (1000, 1000)] {
            assert_eq!(above(parent), shim);
        }
    }
}
