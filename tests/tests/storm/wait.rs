//! A `wait` beside a task that ends as its shim is killed: it tells how the task ended, or that nobody knows.

use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, patience, storm};
use rustix::process::{Pid, Signal, kill_process};

/// The script ends this long after its start, in seconds.
const ENDS: &str = "exec sleep 0.1";

/// Up to 30 ms before and after a task's end, one after the other.
fn moment(round: usize) -> Duration {
    Duration::from_millis(70 + 7 * (round as u64 % 9))
}

fn kill(shim: i32) {
    // It may have left.
    let _ = kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL);
}

/// It tells the exit code, or that nobody knows: a shim may die before it has reaped the task.
fn assert_tells(waited: &Ran, round: usize) {
    let unknown = waited.code == Some(125) && waited.err().contains("how that ended is not known");
    assert!(waited.out() == "0" && waited.code == Some(0) || unknown, "round {round}\n{waited}");
}

#[test]
fn wait_tells_how_a_task_ended_whose_shim_died_then() {
    let host = Host::new();
    storm(12, |round| {
        let task = host.task(ENDS).start();
        let shim = task.shim_pid_on_disk();
        let waits = [(); 3].map(|()| host.spawn(["wait", task.id()]));
        std::thread::sleep(moment(round));
        kill(shim);
        for wait in waits {
            assert_tells(&wait.finish_within(patience()), round);
        }
        host.bowline(["rm", task.id()]).assert_code(0);
    });
}

#[test]
fn wait_tells_how_members_ended_whose_shim_died_then() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let idle = sandbox.task("exec sleep 1000").start();
    storm(8, |round| {
        let members = [(); 3].map(|()| sandbox.task(ENDS).start());
        let waits: Vec<_> = members.iter().map(|task| host.spawn(["wait", task.id()])).collect();
        std::thread::sleep(moment(round));
        kill(idle.shim_pid_on_disk());
        for wait in waits {
            assert_tells(&wait.finish_within(patience()), round);
        }
        // Of whoever waits now, the shim may know nothing.
        for task in &members {
            assert_tells(&host.bowline(["wait", task.id()]), round);
            host.bowline(["rm", task.id()]).assert_code(0);
        }
        host.bowline(["adopt", idle.id()]).assert_code(0);
        idle.wait_until_running();
    });
    idle.end();
}
