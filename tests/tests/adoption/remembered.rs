//! What a shim has done, or has heard of, is known to the one that takes over from it.

use std::fs;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{Task, eventually, hierarchies, process_exists, storm, touch, wait_for_its_cgroup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A program that takes a while to end by the signal that it is sent.
const SLOW: &str =
    "trap 'echo asked; sleep 1; trap - TERM; kill -TERM $$' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn a_signal_that_the_shim_before_has_sent_is_told() {
    let host = Host::new();
    let task = host.task(SLOW).flag("--init").start();
    task.wait_for_line("ready");
    task.bowline("kill", ["--signal=TERM"]).assert_code(0);
    task.wait_for_line("asked");
    task.crash_shim();
    task.bowline("adopt", []).assert_code(0);
    let report = task.wait();
    report.assert_code(143);
    assert_eq!((&report["signal"], &report["signal_sent_by_shim"]), (&json!("SIGTERM"), &json!(true)));
}

#[test]
fn a_record_refused_by_a_full_disk_is_written_after_an_upgrade() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let state = disk.path().to_string_lossy().into_owned();
    let id = host.new_id();
    let bowline = |args: &[&str]| host.bowline(["--state", &*state].into_iter().chain(args.iter().copied()));
    bowline(&["start", "--name", &id, "--init", "--", "sleep", "1000"]).assert_code(0);
    let recorded = || {
        let text = fs::read(disk.path().join(&id).join("task.json")).expect("a record");
        serde_json::from_slice::<Value>(&text).expect("JSON")["shim_pid"].clone()
    };
    let first = recorded().as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
    // An error, as meant: no byte is free then.
    assert!(fs::write(disk.path().join("filler"), vec![0; 4 << 20]).is_err());
    kill_process(Pid::from_raw(first).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("it is gone", || (!process_exists(first)).then_some(()));
    bowline(&["adopt", &id]).assert_code(0);
    assert_eq!(recorded(), json!(first), "the disk is full");
    bowline(&["upgrade", &id]).assert_code(0);
    assert_eq!(recorded(), json!(first), "the disk is full");
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    eventually("the record names another shim", || (recorded() != json!(first)).then_some(()));
    bowline(&["rm", "-f", &id]).assert_code(0);
    drop(disk);
}

#[test]
fn a_timeout_comes_though_a_stop_is_pending() {
    let host = Host::new();
    let task = host.task("trap '' TERM; echo ready; while :; do sleep 0.1; done").flag("--timeout=1h").start();
    task.wait_for_line("ready");
    let stop = host.spawn(["stop", "--grace=50s", task.id()]);
    eventually("it is asked to end", || (task.status() == "stopping").then_some(()));
    task.crash_shim();
    task.bowline("adopt", []).assert_code(0);
    let facts = task.bowline("inspect", ["--facts"]).assert_code(0).json();
    assert!(!facts["tasks"][task.id()]["times_out_at"].is_null(), "{facts}");
    task.end();
    drop(stop);
}

/// Whatever the moment at which the shim dies.
#[test]
fn storm_what_is_sent_is_recorded_first() {
    let host = Host::new();
    storm(6, |round| {
        let task = host.task("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done").start();
        task.wait_for_line("ready");
        let shim = Pid::from_raw(task.shim_pid()).expect("a pid");
        let stop = host.spawn(["stop", if round % 2 == 0 { "--grace=50s" } else { "--grace=0" }, task.id()]);
        // Any moment of what it takes.
        std::thread::sleep(Duration::from_micros(1000 + 150 * (round as u64 % 25)));
        // It may have left already.
        let _ = kill_process(shim, Signal::KILL);
        drop(stop.finish());
        let report = task.wait();
        assert_eq!(report["stopped_by"], "request", "round {round}: {report:?}");
        task.bowline("rm", []).assert_code(0);
    });
}

#[test]
fn parents_made_for_a_cgroup_go_with_it_under_another_shim() {
    let host = Host::new();
    let parent = format!("/{}-parent", host.prefix());
    let path = format!("{parent}/own");
    let is_there = || hierarchies().iter().any(|(_, mount)| mount.join(&parent[1..]).exists());
    for another in ["adopt", "upgrade"] {
        let task = host.task("exec sleep 1000").toml(&format!("cgroup = '{path}'")).start();
        if another == "adopt" {
            task.kill_shim(task.shim_pid());
        }
        task.bowline(another, []).assert_code(0);
        assert!(is_there());
        task.bowline("rm", ["-f"]).assert_code(0);
        eventually(format_args!("{parent} goes after {another}"), || (!is_there()).then_some(()));

        let sandbox = host.sandbox().flag(format!("--place={path}")).create();
        if another == "adopt" {
            sandbox.kill_shim();
        }
        host.bowline([another, sandbox.id()]).assert_code(0);
        assert!(is_there());
        sandbox.rm(["-f"]);
        eventually(format_args!("{parent} goes after {another} of a sandbox"), || (!is_there()).then_some(()));
    }
}

/// The shim that died was charged in a cgroup of its own; the next one may have nothing to do but tell the end.
#[test]
fn the_cgroup_of_a_dead_shim_goes_with_a_task_that_has_ended() {
    let host = Host::new();
    let is_there = |task: &Task<'_>| {
        let path = format!("bowline/{}", task.on_host());
        hierarchies().iter().any(|(_, mount)| mount.join(&path).exists())
    };
    for init in ["--init=true", "--init=false"] {
        let task = host.task("until [ -e /tmp/end ]; do sleep 0.02; done; exit 6").flag(init).start();
        let (init, program) = (task.pid(), task.program_pid());
        wait_for_its_cgroup(task.shim_pid());
        task.kill_shim(task.shim_pid());
        touch(program, "end");
        eventually("it has ended", || (!process_exists(init)).then_some(()));
        assert!(is_there(&task));
        task.bowline("wait", []);
        eventually("nothing of it is left", || (!is_there(&task)).then_some(()));
        task.bowline("rm", []).assert_code(0);
    }
    // It ends before the next shim would have entered its cgroup.
    let task = host.task("exec sleep 1000").start();
    wait_for_its_cgroup(task.shim_pid());
    task.kill_shim(task.shim_pid());
    task.stop(["--signal=KILL"]);
    eventually("nothing of it is left", || (!is_there(&task)).then_some(()));
    task.bowline("rm", []).assert_code(0);
}
