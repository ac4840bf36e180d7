//! Signals to `run` and `exec` in the foreground.

use bowline_tests::Host;
use rustix::process::Signal;

use super::SLEEPS;

const LISTENS: &str =
    "trap 'echo USR1' USR1; trap 'echo HUP' HUP; trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn signals_to_run_are_passed_on() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(LISTENS);
    let run = host.spawn_command(runtime.run_command(&bundle, &[]));
    run.wait_for_out("ready");
    for (signal, seen) in [(Signal::USR1, "USR1"), (Signal::HUP, "HUP")] {
        run.signal(signal);
        run.wait_for_out(seen);
    }
    run.signal(Signal::TERM);
    run.finish().assert_code(3);
    runtime.assert_gone(&bundle);
}

#[test]
fn signals_to_exec_are_passed_on() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let exec = runtime.spawn(&["exec", &container.id, "/bin/sh", "-c", LISTENS]);
    exec.wait_for_out("ready");
    exec.signal(Signal::USR1);
    exec.wait_for_out("USR1");
    exec.signal(Signal::TERM);
    exec.finish().assert_code(3);
    assert_eq!(container.status(), "running");
}

#[test]
fn a_process_that_sigterm_ends_has_the_code_143() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let exec = runtime.spawn(&["exec", &container.id, "/bin/sh", "-c", SLEEPS]);
    exec.wait_for_out("ready");
    exec.signal(Signal::TERM);
    exec.finish().assert_code(143);
}

#[test]
fn run_that_is_killed_leaves_what_delete_removes() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let run = host.spawn_command(runtime.run_command(&bundle, &[]));
    run.wait_for_out("ready");
    run.signal(Signal::KILL);
    // The container has its streams, so their end is not the end of the command.
    drop(run);
    runtime.call(&["delete", "--force", &bundle.id]).assert_code(0);
    runtime.assert_gone(&bundle);
}
