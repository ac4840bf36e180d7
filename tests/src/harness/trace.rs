//! What a process asks of the kernel, as strace sees it.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Host, eventually};

/// strace, attached to a process until [`Trace::end`].
pub struct Trace {
    strace: Child,
    log: PathBuf,
}

impl Trace {
    /// Attaches to `pid`, with these flags of strace; returns once it is.
    pub fn of<'f>(host: &Host, pid: i32, flags: impl IntoIterator<Item = &'f str>) -> Trace {
        let log = host.work().join(format!("trace-{}", host.new_id()));
        let mut strace = command(host, &log);
        let strace = strace.args(flags).args(["-p", &pid.to_string()]).spawn();
        let strace = strace.expect("strace is installed (`make test` does)");
        eventually("strace is attached", || {
            // One that has ended was killed by a fault of this very trace.
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let has_ended = status.is_empty() || status.lines().any(|line| line.starts_with("State:\tZ"));
            let is_attached = status.lines().any(|line| line == format!("TracerPid:\t{}", strace.id()));
            (is_attached || has_ended).then_some(())
        });
        Trace { strace, log }
    }

    /// What it has written by now.
    pub fn so_far(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the process makes no system call for a second, which one that runs in a loop never does.
    #[track_caller]
    pub fn wait_until_idle(&self, who: &str) {
        let calls = || self.so_far().len();
        eventually(format!("{who} makes no system call for a second"), || {
            let before = calls();
            std::thread::sleep(Duration::from_secs(1));
            (calls() == before).then_some(())
        });
    }

    /// Stops strace itself: from then on nobody can reap what it traces, until [`Trace::end`].
    pub fn hold(&self) {
        kill_process(Pid::from_child(&self.strace), Signal::STOP).expect("strace lives");
        eventually("strace is stopped", || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.strace.id())).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT")).then_some(())
        });
    }

    /// Detaches, and gives all that it has seen.
    pub fn end(mut self) -> String {
        self.stop();
        self.so_far()
    }

    /// Detaches strace, and waits until its log is whole.
    pub fn stop(&mut self) {
        for signal in [Signal::INT, Signal::CONT] {
            kill_process(Pid::from_child(&self.strace), signal).expect("strace is not reaped");
        }
        self.strace.wait().expect("it ends, and its log is whole");
    }
}

/// Runs a command to its end, all its children too, and gives what strace saw of them.
pub fn trace(host: &Host, traced: &Command) -> String {
    let log = host.work().join(format!("trace-{}", host.new_id()));
    let mut strace = command(host, &log);
    strace.arg("-f").arg(traced.get_program()).args(traced.get_args());
    host.execute(strace).assert_code(0);
    fs::read_to_string(&log).expect("strace writes it")
}

fn command(host: &Host, log: &Path) -> Command {
    let mut strace = host.command("strace");
    strace.args(["-qq", "-o"]).arg(log);
    strace
}

/// The system calls in a trace of `-f` that our programs made: not those of
/// the program `theirs`, once a process executes it, nor those that only wait,
/// whose number depends on the moment.
pub fn calls_of_ours(trace: &str, theirs: &str) -> Vec<String> {
    const WAITING: [&str; 6] = ["epoll_wait", "epoll_pwait", "futex", "restart_syscall", "wait4", "sched_yield"];
    let mut strangers = HashSet::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        // 4711 openat(AT_FDCWD, …) = 3; the end of a call that was interrupted has no new number.
        let Some((pid, call)) = line.split_once(' ').map(|(pid, call)| (pid, call.trim_start())) else { continue };
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if call.starts_with("<...") || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        if strangers.contains(pid) || WAITING.contains(&name) {
            continue;
        }
        if name == "execve" && arguments.starts_with(&format!("\"{theirs}\"")) {
            strangers.insert(pid);
        }
        calls.push(name.to_owned());
    }
    calls
}
