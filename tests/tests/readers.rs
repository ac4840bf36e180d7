//! Commands that only read: none of them waits until another process lets go of a lock.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, is_slow};
use serde_json::Value;

const IDLE: &str = "echo ready; exec sleep 1000";

/// A process that holds the lock at `path`, a file or a folder.
fn holder(host: &Host, path: &Path) -> Process {
    let mut flock = host.command("flock");
    flock.arg("--no-fork").arg(path).args(["/bin/sh", "-c", "echo held; exec sleep 1000"]);
    let holder = host.spawn_command(flock);
    holder.wait_for_out("held");
    holder
}

/// What `bowline` says, which does not wait.
#[track_caller]
fn read(host: &Host, args: &[&str]) -> Ran {
    let begun = Instant::now();
    let ran = host.bowline(args);
    assert!(is_slow() || begun.elapsed() < Duration::from_secs(2), "{:?}: {ran}", begun.elapsed());
    ran
}

#[test]
fn a_lock_that_another_process_holds_is_not_waited_for() {
    let host = Host::new();
    let [lives, dead] = [(); 2].map(|()| host.task(IDLE).start());
    [&lives, &dead].iter().for_each(|task| task.wait_for_line("ready"));
    dead.kill_shim(dead.shim_pid());
    let held = holder(&host, &dead.file("lock"));
    let id = dead.id();
    let listed = read(&host, &["ps", "--json"]).assert_code(0).json();
    let status =
        |id: &str| listed.as_array().and_then(|all| all.iter().find(|row| row["id"] == id)?["status"].as_str());
    assert_eq!([lives.id(), id].map(status), [Some("running"), Some("not answering")]);
    assert!(read(&host, &["inspect", id]).assert_code(0).json()["pid"].is_number());
    for args in
        [&["explain", id][..], &["logs", id], &["events", id], &["stats"], &["top", "--once"], &["sandbox", "ls"]]
    {
        read(&host, args).assert_code(0);
    }
    for args in [&["stats", id][..], &["inspect", "--facts", id]] {
        read(&host, args).assert_refused(125, &[id, "another process holds its lock"]);
    }
    drop(held);
    dead.end();
    lives.end();
}

#[test]
fn the_lock_of_a_sandbox_is_not_waited_for() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    sandbox.kill_shim();
    let id = sandbox.id();
    let held = holder(&host, &host.state().join(id).join("lock"));
    assert_eq!(read(&host, &["sandbox", "inspect", id]).assert_code(0).json()["status"], "not answering");
    let all = read(&host, &["sandbox", "ls", "--json"]).assert_code(0).json();
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    read(&host, &["sandbox", "stats", id]).assert_refused(125, &[id, "another process holds its lock"]);
    drop(held);
    sandbox.rm(["-f"]);
}

/// Nor is that of a folder whose lock file is made anew.
#[test]
fn a_locked_folder_that_has_lost_its_lock_is_not_waited_for() {
    let host = Host::new();
    let dead = host.task(IDLE).start();
    dead.wait_for_line("ready");
    dead.kill_shim(dead.shim_pid());
    fs::remove_file(dead.file("lock")).expect("ours");
    let held = holder(&host, &dead.file(""));
    let listed: Value = read(&host, &["ps", "--json"]).assert_code(0).json();
    assert_eq!(listed[0]["status"], "not answering", "{listed}");
    drop(held);
    dead.end();
}

/// Of what has ended, its shim alone is waited for.
#[test]
fn logs_f_of_an_ended_task_does_not_wait_for_a_stranger() {
    let host = Host::new();
    let task = host.task("echo out").start();
    task.wait();
    let held = holder(&host, &task.file("lock"));
    read(&host, &["logs", "-f", task.id()]).assert_says("out");
    drop(held);
}

/// The shim of a sandbox whose folder is renamed lives on, and is named again once that is renamed back.
#[test]
fn a_renamed_sandbox_is_told_of_and_loses_nothing() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = sandbox.task(IDLE).start();
    member.wait_for_line("ready");
    let (folder, other) = (host.state().join(sandbox.id()), host.state().join(host.new_id()));
    fs::rename(&folder, &other).expect("ours");
    let ran = host.bowline(["rm", "-f", member.id()]);
    ran.assert_refused(125, &[sandbox.id(), "folder is gone or has another name"]);
    assert!(!ran.err().contains("sandbox rm"), "{ran}");
    fs::rename(&other, &folder).expect("ours");
    member.exec("echo in").assert_says("in");
    member.end();
    sandbox.rm([]);
}
