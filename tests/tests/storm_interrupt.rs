//! Storms: `run` and `start` are interrupted at every moment of their launch.

use std::os::unix::process::CommandExt as _;
use std::thread::sleep;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{is_debug, storm};
use rustix::process::Signal;

/// Ends when it is asked to.
const POLITE: &str = "trap exit TERM; while :; do sleep 0.05; done";

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
        assert!(!host.state().join(build.id()).exists(), "round {round}: {ran}");
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
