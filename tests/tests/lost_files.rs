//! A lock or a socket of a task that is gone, or something else: the task runs on, and can be ended and removed.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::net::UnixListener;

use bowline_tests::Host;
use bowline_tests::harness::{Task, process_exists, touch};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::Value;

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
fn a_shim_whose_lock_was_replaced_has_its_task() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let pids = task.all_processes();
    fs::remove_file(task.file("lock")).expect("ours");
    fs::write(task.file("lock"), "").expect("ours");
    host.bowline(["gc"]).assert_says("");
    task.exec("exit 7").assert_code(7);
    task.bowline("rm", []).assert_refused(125, &["has not ended"]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&pids);
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
fn without_a_socket_a_task_is_not_answering_but_can_be_ended() {
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

#[test]
fn a_folder_that_is_no_tasks_is_left_alone_in_the_state_folder() {
    let host = Host::new();
    let task = host.task("exit 3").start();
    task.wait();
    for name in ["alice", "with-lock"] {
        let folder = host.state().join(name);
        fs::create_dir_all(folder.join("docs")).expect("ours");
        fs::write(folder.join("docs/thesis"), "page 1").expect("ours");
    }
    fs::write(host.state().join("with-lock/lock"), "").expect("ours");
    for name in ["alice", "with-lock"] {
        assert!(!host.bowline(["ps", "-a"]).assert_code(0).out().contains(name));
        host.bowline(["rm", name]).assert_refused(125, &[name]);
        host.bowline(["rm", "-f", name]).assert_code(0);
        host.bowline(["start", "--name", name, "--", "true"]).assert_refused(125, &[name, "no task's"]);
        for verb in [&["logs"][..], &["inspect"], &["stop"], &["exec", name, "--", "true"]] {
            let args = verb.iter().copied().chain((verb.len() == 1).then_some(name));
            host.bowline(args.collect::<Vec<_>>()).assert_refused(125, &["there is no task named", name]);
        }
        for verb in ["inspect", "stats", "rm"] {
            host.bowline(["sandbox", verb, name]).assert_refused(125, &["there is no sandbox named", name]);
        }
        host.bowline(["start", "--replace", "--name", name, "--", "true"]).assert_refused(125, &[name, "no task's"]);
    }
    host.bowline(["rm", "--exited"]).assert_says(task.id());
    for name in ["alice", "with-lock"] {
        let folder = host.state().join(name);
        assert_eq!(fs::read_to_string(folder.join("docs/thesis")).expect("it stays"), "page 1");
        assert_eq!(folder.join("lock").exists(), name == "with-lock");
        fs::remove_dir_all(folder).expect("ours");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_folder_of_a_launch_that_was_killed_at_once_is_a_tasks() {
    let host = Host::new();
    // What is there before the record, in the order in which it comes.
    for files in [&["lock"][..], &["lock", "shim"], &["lock", "shim.sock", "log.json"], &["shim.sock"]] {
        let id = host.new_id();
        let folder = host.state().join(&id);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).expect("ours");
        files.iter().for_each(|file| fs::write(folder.join(file), "").expect("ours"));
        host.bowline(["start", "--name", &id, "--", "true"]).assert_refused(125, &[&id, "exists already"]);
        host.bowline(["rm", &id]).assert_code(0);
        assert!(!folder.exists(), "{files:?}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_needs_force_for_a_running_task_with_a_bad_lock_or_record() {
    let host = Host::new();
    let replaced = host.task(IDLE).start();
    fs::remove_file(replaced.file("lock")).and_then(|()| fs::write(replaced.file("lock"), "")).expect("ours");
    let refused = host.task(IDLE).start();
    refused.crash_shim();
    let mut record: Value = serde_json::from_slice(&fs::read(refused.file("task.json")).expect("ours")).expect("JSON");
    record.as_object_mut().expect("an object").remove("task");
    fs::write(refused.file("task.json"), record.to_string()).expect("ours");
    for task in [&replaced, &refused] {
        let pids = task.all_processes();
        task.bowline("rm", []).assert_refused(125, &[task.id(), "has not ended"]);
        assert!(pids.iter().all(|pid| process_exists(*pid)), "{pids:?}");
        task.bowline("rm", ["-f"]).assert_code(0);
        assert_ended(&pids);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_report_is_written_though_its_reserved_file_was_renamed() {
    let host = Host::new();
    let task = host.task("until [ -e /tmp/go ]; do sleep 0.02; done; exit 4").start();
    let program = task.program_pid();
    fs::rename(task.file("exit.json.new"), task.file("exit.json")).expect("root may");
    touch(program, "go");
    assert_eq!(task.wait().number("exit_code"), 4);
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}
