//! Storms: `run` gets two signals at once, and every command that launches gets one at every moment of that.

use std::os::unix::process::CommandExt as _;
use std::thread::sleep;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{binary, eventually, is_debug, storm};
use rustix::process::Signal;

/// Ends when it is asked to.
const POLITE: &str = "trap exit TERM; while :; do sleep 0.05; done";

/// Ends with 3 when it is asked to, after a moment.
const SLOW: &str = "trap 'sleep 0.2; echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn two_signals_at_once_leave_the_task_its_grace() {
    let host = Host::new();
    let (term, int, hup, quit) = (Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT);
    let all = [[term, term], [term, hup], [int, int], [int, term], [hup, hup], [quit, quit]];
    storm(all.len(), |round| {
        let signals = all[round % all.len()];
        let (_, run) = host.task(SLOW).flag("--rm").spawn();
        run.wait_for_out("ready");
        signals.into_iter().for_each(|signal| run.signal(signal));
        let ran = run.finish();
        assert!(ran.assert_code(3).out().ends_with("bye"), "{signals:?}: {ran}");
    });
    host.assert_nothing_left_without_rm();
}

/// A moment of a launch, another one in each round.
fn moment(round: usize) -> Duration {
    let most = if is_debug() { 200 } else { 30 };
    // Steps of the golden ratio fall between all earlier ones.
    let fraction = (round as f64 * 0.618_034).fract();
    Duration::from_micros((fraction * f64::from(most) * 1000.0) as u64)
}

fn signal(round: usize) -> Signal {
    [Signal::INT, Signal::TERM, Signal::HUP][round % 3]
}

#[test]
fn a_run_that_is_interrupted_while_it_begins_leaves_nothing() {
    let host = Host::new();
    storm(12, |round| {
        let build = host.task(POLITE).flag("--rm");
        let mut command = build.command("run");
        command.process_group(0);
        let run = host.spawn_command(command);
        sleep(moment(round));
        run.signal_group(signal(round));
        let ran = run.finish();
        assert!(!ran.err().contains("OOM") && !ran.err().contains("died"), "{ran}");
        assert_ne!(ran.code, Some(137), "round {round}: it has its grace: {ran}");
        assert!(!host.state().join(build.id()).exists(), "round {round}: {ran}");
    });
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_stop_as_the_program_begins_leaves_it_its_grace() {
    let host = Host::new();
    let script = "trap 'exit 3' TERM; echo ran; while :; do sleep 0.05; done";
    storm(24, |round| {
        let (task, start) = host.task(script).flag("--init").spawn_start();
        sleep(moment(round));
        let stop = host.bowline(["stop", task.id()]);
        let started = start.finish();
        match (stop.code, started.code) {
            // Before its handler was there, the signal has ended it.
            (Some(0), Some(0)) => {
                let report = task.wait();
                let codes = if task.said("stdout").is_empty() { &[3, 143][..] } else { &[3] };
                assert!(codes.contains(&report.number("exit_code")), "round {round}: {report:?} {stop}");
            }
            // There was nothing to stop yet.
            (Some(125), Some(0)) => {
                assert_eq!(task.status(), "running", "round {round}: {stop}");
                task.end();
            }
            (Some(125), Some(125)) => {
                let why = ["stopped while it was being launched", "was removed while"];
                assert!(why.iter().any(|why| started.err().contains(why)), "round {round}: {started}");
                return assert!(!task.file("").exists(), "round {round}: {stop} {started}");
            }
            other => panic!("round {round}: {other:?}: {stop} {started}"),
        }
        task.bowline("rm", []).assert_code(0);
    });
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_start_that_is_interrupted_leaves_nothing_or_a_task() {
    let host = Host::new();
    storm(12, |round| {
        let build = host.task(POLITE);
        let mut command = build.command("start");
        command.process_group(0);
        let start = host.spawn_command(command);
        sleep(moment(round));
        start.signal_group(signal(round));
        let ran = start.finish();
        match ran.code {
            Some(0) => {
                assert_eq!(host.adopt(build.id()).status(), "running", "round {round}: {ran}");
                host.bowline(["rm", "-f", build.id()]).assert_code(0);
            }
            // Signalled before it had begun, or undone.
            None | Some(129 | 130 | 143) => {
                assert!(!host.state().join(build.id()).exists(), "round {round}: {ran}");
            }
            code => panic!("round {round}: {code:?}: {ran}"),
        }
    });
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_command_whose_exec_is_interrupted_while_it_begins_ends() {
    let host = Host::new();
    let root = host.busybox_root();
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    storm(12, |round| {
        // By name, a user takes a moment to be found.
        let user = if round % 2 == 0 { "app" } else { "0" };
        let mut command = host.command(binary("bowline"));
        command.args(["exec", "--user", user, task.id(), "--", "/bin/sh", "-c", "sleep 1234; :"]).process_group(0);
        let exec = host.spawn_command(command);
        sleep(moment(round));
        exec.signal_group(signal(round));
        let ran = exec.finish();
        assert!(matches!(ran.code, None | Some(129 | 130 | 143)), "round {round}: {ran}");
        eventually("nothing of the command is left", || (task.processes().len() == 1).then_some(()));
    });
    task.end();
}

#[test]
fn a_sandbox_interrupted_while_made_is_whole_or_leaves_nothing() {
    let host = Host::new();
    storm(8, |round| {
        let (id, member) = (host.new_id(), host.new_id());
        let members = format!("[[members]]\nname = '{member}'\ncommand = 'sh'\nargs = ['-c', '{POLITE}']\n");
        let file = host.file(&format!("{id}.toml"), &members);
        let mut command = host.command(binary("bowline"));
        command.args(["sandbox", "create", "--name", &id, "--file"]).arg(file).process_group(0);
        let create = host.spawn_command(command);
        sleep(2 * moment(round));
        create.signal_group(signal(round));
        let ran = create.finish();
        if ran.code == Some(0) {
            host.bowline(["sandbox", "rm", "-f", &id]).assert_code(0);
        }
        assert!(matches!(ran.code, None | Some(0 | 129 | 130 | 143)), "round {round}: {ran}");
        assert!(!host.state().join(&id).exists() && !host.state().join(&member).exists(), "round {round}: {ran}");
    });
    host.assert_nothing_left_without_rm();
}
