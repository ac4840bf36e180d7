//! `kill`: signals by name and number, and which processes get them.

use bowline_tests::Host;
use bowline_tests::harness::oci::{Container, Runtime};
use bowline_tests::harness::{eventually, status_lines};

use super::SLEEPS;

/// A container that says which signals it gets.
fn listening<'r>(runtime: &'r Runtime<'_>) -> Container<'r> {
    let script = "trap 'echo TERM' TERM; trap 'echo USR1' USR1; trap 'echo HUP' HUP; echo ready; \
                  while :; do sleep 0.05; done";
    let container = runtime.started(runtime.bundle().script(script));
    container.wait_for("ready");
    container
}

#[test]
fn the_signal_is_sigterm_where_none_is_given() {
    let host = Host::new();
    let runtime = host.oci();
    let container = listening(&runtime);
    container.call("kill", &[]).assert_code(0);
    container.wait_for("TERM");
}

#[test]
fn a_signal_has_a_name_with_and_without_sig() {
    let host = Host::new();
    let runtime = host.oci();
    let container = listening(&runtime);
    for (sent, seen) in [("USR1", "USR1"), ("SIGHUP", "HUP"), ("sigterm", "TERM")] {
        container.kill(sent).assert_code(0);
        container.wait_for(seen);
    }
}

#[test]
fn a_signal_has_a_number() {
    let host = Host::new();
    let runtime = host.oci();
    let container = listening(&runtime);
    container.kill("10").assert_code(0);
    container.wait_for("USR1");
}

#[test]
fn an_unknown_signal_is_refused_by_its_name() {
    let host = Host::new();
    let runtime = host.oci();
    let container = listening(&runtime);
    for signal in ["NOPE", "SIGNOPE"] {
        let ran = container.kill(signal);
        ran.assert_code(1);
        assert!(ran.err().contains("unknown signal") && ran.err().contains(signal), "{ran}");
    }
}

#[test]
fn a_number_that_is_no_signal_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = listening(&runtime);
    let ran = container.kill("999");
    ran.assert_code(1);
    assert!(ran.err().contains("signal"), "{ran}");
}

#[test]
fn all_sends_the_signal_to_each_process() {
    let host = Host::new();
    let runtime = host.oci();
    // A shell that is init ignores SIGTERM, and its child does not.
    let container =
        runtime.started(runtime.bundle().script("sleep 1000 & echo ready; wait; echo gone; exec sleep 1000"));
    container.wait_for("ready");
    runtime.call(&["kill", "--all", &container.id, "TERM"]).assert_code(0);
    container.wait_for("gone");
}

#[test]
fn a_kill_of_a_stopped_container_says_that_it_does_not_run() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    let ran = container.kill("KILL");
    ran.assert_code(1);
    assert!(ran.err().contains("container not running"), "{ran}");
}

#[test]
fn a_kill_of_all_of_a_stopped_container_succeeds() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    runtime.call(&["kill", "--all", &container.id, "KILL"]).assert_code(0);
}

#[test]
fn a_kill_ends_what_has_outlived_init_in_a_shared_pid_namespace() {
    let host = Host::new();
    if host.reference_fails("runc does so since 1.2") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script("sleep 1000 & exit 0").edit(|config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
        namespaces.retain(|namespace| namespace["type"] != "pid");
    });
    let container = runtime.started(bundle);
    container.wait_until("stopped");
    let cgroup = runtime.cgroup(&container.bundle);
    assert!(!cgroup.pids().is_empty());
    container.kill("KILL").assert_code(0);
    eventually("all have ended", || cgroup.pids().is_empty().then_some(()));
    // It is no longer there for another.
    container.kill("KILL").assert_code(1);
}

#[test]
fn a_kill_of_an_unknown_id_is_an_error() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["kill", "nobody", "KILL"]);
    ran.assert_code(1);
    assert!(ran.err().contains("does not exist"), "{ran}");
}

#[test]
fn a_created_container_is_killed() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    container.kill("KILL").assert_code(0);
    container.wait_until("stopped");
}

#[test]
fn a_paused_container_is_killed() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    container.kill("KILL").assert_code(0);
    container.wait_until("stopped");
}

#[test]
fn others_outlive_an_init_without_a_pid_namespace() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().without_namespace("pid").script("sleep 1000 & echo ready; exit 0");
    let container = runtime.started(bundle);
    container.wait_until("stopped");
    assert_eq!(runtime.cgroup(&container.bundle).pids().len(), 1);
}

#[test]
fn kill_of_all_ends_who_outlives_init() {
    let host = Host::new();
    let runtime = host.oci();
    let container =
        runtime.started(runtime.bundle().without_namespace("pid").script("sleep 1000 & echo ready; exit 0"));
    container.wait_until("stopped");
    runtime.call(&["kill", "--all", &container.id, "KILL"]).assert_code(0);
    eventually("they end", || runtime.cgroup(&container.bundle).pids().is_empty().then_some(()));
}

#[test]
fn sigkill_goes_to_all_who_share_a_pid_namespace() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 asks for --all") {
        return;
    }
    let runtime = host.oci();
    let script = "sleep 1000 & echo ready; exec sleep 1000";
    let container = runtime.started(runtime.bundle().without_namespace("pid").script(script));
    container.wait_for("ready");
    container.kill("KILL").assert_code(0);
    eventually("they end", || runtime.cgroup(&container.bundle).pids().is_empty().then_some(()));
}

#[test]
fn a_created_init_ends_by_a_signal_of_anybody() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let pid = rustix::process::Pid::from_raw(container.pid()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    container.wait_until("stopped");
}

#[test]
fn a_program_that_has_begun_has_no_handler_of_its_creator() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.wait_for("ready");
    assert!(status_lines(container.pid(), &["SigCgt"]).ends_with("0000000000000000"));
}
