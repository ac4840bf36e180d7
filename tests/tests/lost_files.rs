//! A lock or a socket of a task that is gone, or something else: the task runs on, and can be ended and removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use bowline_tests::Host;
use bowline_tests::harness::{Task, process_exists};
use rustix::fs::{CWD, FileType, mknodat};

const IDLE: &str = "exec sleep 1000";

/// What somebody has put in a lock's place, or nothing.
const WHAT: [&str; 5] = ["nothing", "folder", "FIFO", "symlink", "socket"];

/// Puts `what` into the place of the task's lock.
fn lose(task: &Task<'_>, what: &str) {
    lose_file(task, "lock", what);
}

fn lose_file(task: &Task<'_>, name: &str, what: &str) {
    let file = task.file(name);
    fs::remove_file(&file).expect("it is there");
    match what {
        "folder" => fs::create_dir(&file).and_then(|()| fs::write(file.join("kept"), "")).expect("ours"),
        "file" => fs::write(&file, "").expect("ours"),
        "FIFO" => mknodat(CWD, &file, FileType::Fifo, 0o600.into(), 0).expect("ours"),
        "symlink" => symlink("/nowhere", &file).expect("ours"),
        "socket" => drop(UnixListener::bind(&file).expect("ours")),
        _ => {}
    }
}

#[track_caller]
fn assert_ended(pids: &[i32]) {
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when it returns: {pids:?}");
}

#[test]
fn whose_shim_lives_needs_none() {
    let host = Host::new();
    for what in WHAT {
        let task = host.task(IDLE).start();
        lose(&task, what);
        let (pid, shim) = (task.pid(), task.shim_pid());
        task.exec("exit 7").assert_code(7);
        host.bowline(["gc", task.id()]).assert_says("");
        task.bowline("adopt", []).assert_code(0);
        task.bowline("rm", []).assert_refused(125, &[task.id(), "has not ended"]);
        assert_eq!((task.status().as_str(), task.pid(), task.shim_pid()), ("running", pid, shim), "{what}");
        task.bowline("stop", ["--grace=0s"]).assert_code(0);
        assert_ended(&[pid]);
        task.bowline("rm", []).assert_code(0);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn by_force_all_is_ended_and_removed() {
    let host = Host::new();
    for what in WHAT {
        let (live, dead, ended) = (host.task(IDLE).start(), host.task(IDLE).start(), host.task("exit 3").start());
        ended.wait();
        dead.kill_shim(dead.shim_pid());
        let pids = [live.all_processes(), dead.all_processes()].concat();
        [&live, &dead, &ended].iter().for_each(|task| lose(task, what));
        host.bowline(["rm", "-f", live.id(), dead.id(), ended.id()]).assert_code(0);
        assert_ended(&pids);
        assert!(![live, dead, ended].iter().any(|task| task.file("").exists()), "{what}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_new_shim_takes_the_task_over() {
    let host = Host::new();
    for what in WHAT {
        let task = host.task(IDLE).start();
        let pid = task.pid();
        task.kill_shim(task.shim_pid());
        lose(&task, what);
        task.bowline("adopt", []).assert_code(0);
        assert_eq!((task.status().as_str(), task.pid()), ("running", pid), "{what}");
        // It holds the lock that was made.
        host.bowline(["gc", task.id()]).assert_says("");
        task.exec("exit 7").assert_code(7);
        task.bowline("rm", ["-f"]).assert_code(0);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn members_are_ended_and_removed() {
    let host = Host::new();
    for what in WHAT {
        let sandbox = host.sandbox().create();
        let (one, other) = (host.task(IDLE).in_sandbox(&sandbox).start(), host.task(IDLE).in_sandbox(&sandbox).start());
        let pids = [one.all_processes(), other.all_processes()].concat();
        [&one, &other].iter().for_each(|task| lose(task, what));
        one.exec("exit 7").assert_code(7);
        host.bowline(["gc", one.id(), sandbox.id()]).assert_says("");
        one.bowline("rm", ["-f"]).assert_code(0);
        sandbox.bowline("rm", ["-f"]).assert_code(0);
        assert_ended(&pids);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn without_its_socket_a_shim_is_not_answering_and_the_task_is_ended_past_it() {
    let host = Host::new();
    for what in ["nothing", "folder", "file", "symlink"] {
        let [task, other] = [host.task(IDLE).start(), host.task(IDLE).start()];
        let pids = [task.all_processes(), other.all_processes()].concat();
        [&task, &other].iter().for_each(|task| lose_file(task, "shim.sock", what));
        task.bowline("exec", ["--", "true"]).assert_refused(125, &[task.id(), "not answering"]);
        let rows = host.bowline(["ps", "--json"]).assert_code(0).json();
        let row = rows.as_array().expect("a list").iter().find(|row| row["id"] == task.id()).expect("its row");
        assert_eq!(row["status"], "not answering", "{what}: {row}");
        task.bowline("stop", ["--grace=0"]);
        host.bowline(["rm", "-f", task.id(), other.id()]).assert_code(0);
        assert_ended(&pids);
        assert!(![task, other].iter().any(|task| task.file("").exists()), "{what}");
    }
    host.assert_nothing_left_without_rm();
}
