//! A shim that is killed just as its task starts: the launch fails, or the task goes on, and nothing is said that is not so.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::storm;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The record of a task that is being launched, once there is one.
fn record(host: &Host, id: &str) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(host.state().join(id).join("task.json")).ok()?).ok()
}

/// Kills the shim of a `run` after `delay` from when it is recorded, or its init is.
fn run_and_kill(host: &Host, round: usize, flag: &str, after_init: bool, delay: Duration) {
    let root = host.busybox_root();
    let id = host.new_id();
    let (task, run) = host.task("echo x >/ran; exit 7").rootfs(root.path()).flag(flag).named(&id).spawn();
    let begun = Instant::now();
    let shim = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is never recorded");
        let Some(record) = record(host, &id) else { continue };
        if !after_init || record["pid"].is_number() {
            break record["shim_pid"].as_i64().expect("a number");
        }
    };
    let wait = host.spawn(["wait", task.id()]);
    let begun = Instant::now();
    while begun.elapsed() < delay {
        std::hint::spin_loop();
    }
    // An error means that the task has ended by now.
    let _ = kill_process(Pid::from_raw(i32::try_from(shim).expect("a pid")).expect("a pid"), Signal::KILL);
    let ran = run.finish();
    let waited = wait.finish();
    let said = format!("round {round}, {flag}, {after_init}, {delay:?}: {ran}\nwait: {waited}");
    assert!(!said.contains("is no bowline-init"), "{said}");
    let has_run = root.path().join("ran").exists();
    let report = std::fs::read(task.file("exit.json")).ok();
    let report: Value = report.map_or(Value::Null, |text| serde_json::from_slice(&text).expect("JSON"));
    assert!(report["signal"].is_null(), "nobody has sent a signal: {report}; {said}");
    let never_started = ran.code == Some(125) && ran.err().contains("died before it had started the task");
    let is_lost = ran.code == Some(125) && ran.err().contains("how that ended is not known");
    match (has_run, flag) {
        // Its end is known to its init alone.
        (true, "--init") => assert!(ran.code == Some(7) && report["exit_code"] == 7, "{report}; {said}"),
        (true, _) => assert!(ran.code == Some(7) || is_lost, "{report}; {said}"),
        (false, "--init") => assert!(never_started && report.is_null(), "{report}; {said}"),
        (false, _) => assert!(never_started && report.is_null() || is_lost, "{report}; {said}"),
    }
    assert!(report.is_null() || is_lost == (report["shim_died"] == true), "{report}; {said}");
    if never_started {
        task.bowline("inspect", []).assert_code(125);
    } else {
        task.bowline("rm", ["-f"]).assert_code(0);
    }
    std::fs::remove_dir_all(root.path()).expect("nothing is mounted there");
}

#[test]
fn storm_a_shim_killed_as_its_task_starts() {
    let host = Host::new();
    storm(8, |round| {
        let flag = ["--init", "--init=false"][round % 2];
        let after_init = round % 4 < 2;
        // Twenty moments, in an order that a small share spreads over all of them.
        let step = u32::try_from(round / 4 * 7 % 20).expect("small");
        let delay = Duration::from_micros(if after_init { 60 } else { 700 }) * step;
        run_and_kill(&host, round, flag, after_init, delay);
    });
}
