//! Whose children init and execs are once the command has ended: those of a caller that is a subreaper.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{child_pids, eventually};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use super::SLEEPS;

/// This process as a subreaper, as conmon is. Only on a host of its own.
struct Subreaper;

impl Subreaper {
    fn begin() -> Subreaper {
        set_child_subreaper(Some(getpid())).expect("any process may");
        Subreaper
    }

    /// Waits for a child that has been another's: its exit code.
    #[track_caller]
    fn code_of(&self, pid: i32) -> Option<i32> {
        let pid = Pid::from_raw(pid).expect("a pid");
        let (_, status) = eventually("its end", || waitpid(Some(pid), WaitOptions::NOHANG).expect("a child of ours"));
        status.exit_status()
    }
}

impl Drop for Subreaper {
    fn drop(&mut self) {
        let _ = set_child_subreaper(None);
    }
}

fn own() -> i32 {
    getpid().as_raw_nonzero().get()
}

#[test]
fn init_becomes_the_callers_child() {
    let host = Host::alone();
    let subreaper = Subreaper::begin();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script("exit 7"));
    let pid = container.pid();
    assert!(child_pids(own()).contains(&pid), "{pid} is not among {:?}", child_pids(own()));
    container.call("start", &[]).assert_code(0);
    assert_eq!(subreaper.code_of(pid), Some(7));
}

#[test]
fn a_detached_exec_becomes_the_callers_child() {
    let host = Host::alone();
    let subreaper = Subreaper::begin();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let init = container.pid();
    let file = host.work().join("pid");
    let flags = ["exec", "--detach", "--pid-file", file.to_str().expect("ASCII")];
    runtime.call_apart("exec", &[&flags[..], &[&container.id, "/bin/sh", "-c", "exit 9"]].concat()).assert_code(0);
    let pid = fs::read_to_string(file).expect("it was written").parse().expect("a pid");
    assert_eq!(subreaper.code_of(pid), Some(9));
    container.stop();
    assert_eq!(subreaper.code_of(init), None);
}

#[test]
fn nothing_but_init_is_left_of_a_create() {
    let host = Host::alone();
    let subreaper = Subreaper::begin();
    let runtime = host.oci();
    let before = child_pids(own());
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let init = container.pid();
    let new: Vec<i32> = child_pids(own()).into_iter().filter(|pid| !before.contains(pid)).collect();
    assert_eq!(new, [init]);
    container.stop();
    assert_eq!(subreaper.code_of(init), None);
}

#[test]
fn a_zombie_that_nobody_reaps_is_stopped_and_deleted() {
    let host = Host::alone();
    let subreaper = Subreaper::begin();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 7"));
    let pid = *child_pids(own()).last().expect("init");
    container.wait_until("stopped");
    container.call("delete", &[]).assert_code(0);
    runtime.assert_gone(&container.bundle);
    assert_eq!(subreaper.code_of(pid), Some(7));
}
