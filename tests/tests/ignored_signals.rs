//! A signal that is ignored as a command begins, as under nohup(1) or in the background of a shell, stays ignored.

use bowline_tests::Host;
use bowline_tests::harness::{Process, binary};
use rustix::process::Signal;

/// Ignores what nohup does, and what a shell without job control does for `&`.
const IGNORING: [&str; 4] = ["/bin/sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh"];

/// Writes until it may go, and ends with 7; with 6 where it is asked to.
const TICKING: &str = "trap 'exit 6' TERM; until [ -e /tmp/go ]; do echo tick; sleep 0.02; done; exit 7";

fn signal(process: &Process) {
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        process.signal(signal);
    }
}

#[test]
fn run_goes_on_and_the_task_ignores_nothing() {
    let host = Host::new();
    let build = host.task(TICKING);
    let run = host.spawn_command(build.under(IGNORING, "run"));
    run.wait_for_out("tick");
    signal(&run);
    let task = host.adopt(build.id());
    // It may end with the task.
    drop(task.exec("touch /tmp/go"));
    run.finish().assert_code(7);
    let build = host.task(TICKING).flag("--rm");
    let run = host.spawn_command(build.under(IGNORING, "run"));
    run.wait_for_out("tick");
    run.signal(Signal::TERM);
    run.finish().assert_code(6);
    let build = host.task("grep SigIgn /proc/self/status").flag("--rm");
    host.execute(build.under(IGNORING, "run")).assert_says("SigIgn:\t0000000000000000");
}

#[test]
fn exec_attach_and_logs_go_on() {
    let host = Host::new();
    let task = host.task(TICKING).start();
    let started = |args: &[&str]| {
        let mut command = host.command(IGNORING[0]);
        command.args(&IGNORING[1..]).arg(binary("bowline")).args(args);
        let process = host.spawn_command(command);
        process.wait_for_out("tick");
        process
    };
    let script = "echo tick; until [ -e /tmp/exec ]; do sleep 0.02; done; exit 5";
    let exec = started(&["exec", task.id(), "--", "sh", "-c", script]);
    let attach = started(&["attach", task.id()]);
    let logs = started(&["logs", "-f", task.id()]);
    [&exec, &attach, &logs].into_iter().for_each(signal);
    task.exec("touch /tmp/exec").assert_code(0);
    exec.finish().assert_code(5);
    drop(task.exec("touch /tmp/go"));
    attach.finish().assert_code(7);
    logs.finish().assert_code(0);
}
