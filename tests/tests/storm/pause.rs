//! A pause beside forks: every process of the task freezes, however fast it makes others.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{is_slow, storm};

/// On cgroup v1 such a freeze has hung in one of twenty rounds.
#[test]
fn a_task_that_forks_without_end_is_paused_soon() {
    let host = Host::new();
    let task = host.task("for _ in 1 2 3 4; do while :; do /bin/true; done & done; echo ready; wait").start();
    task.wait_for_line("ready");
    storm(60, |round| {
        let asked = Instant::now();
        task.bowline("pause", []).assert_code(0);
        assert_eq!(task.status(), "paused");
        let took = asked.elapsed();
        assert!(is_slow() || took < Duration::from_secs(5), "round {round}: {took:?}");
        task.bowline("resume", []).assert_code(0);
    });
    task.end();
}
