//! Slots of execs that somebody has made up: none that names a process which is not the task's is believed.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Process, Task, eventually, name_of, process_exists};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The size of a slot: the length of its text, the text, and a pid.
const SLOT: usize = 512;

fn length(file: &[u8], at: usize) -> usize {
    u32::from_ne_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Adds a slot like that of exec 1, changed in this way.
fn add_slot(task: &Task<'_>, change: impl FnOnce(&mut Value)) {
    let path = task.file("execs");
    let all = fs::read(&path).expect("there is one");
    let offsets = || (SLOT..all.len()).step_by(SLOT);
    let mut slots = offsets().map(|at| &all[at + 4..][..length(&all, at)]).filter(|text| !text.is_empty());
    let mut exec: Value = serde_json::from_slice(slots.next().expect("exec 1")).expect("JSON");
    change(&mut exec);
    let text = exec.to_string();
    assert!(text.len() <= SLOT - 8, "{text}");
    let free = offsets().rev().find(|at| length(&all, *at) == 0).expect("a free slot");
    let length = u32::try_from(text.len()).expect("short").to_ne_bytes();
    let file = fs::File::options().write(true).open(&path).expect("ours");
    file.write_all_at(&[&length[..], text.as_bytes()].concat(), free as u64).expect("there is room");
}

/// Has the slot name this process as one that was cloned at any time, and whose deadline has passed.
fn of_process(exec: &mut Value, number: u64, pid: i32) {
    (exec["number"], exec["pid"], exec["deadline"]) = (json!(number), json!(pid), json!(1));
    exec["cloned_between"] = json!([0, u64::MAX / 2]);
}

fn stranger(host: &Host) -> Process {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    host.spawn_command(sleep)
}

/// The number of exit(2), which ends the calling thread alone.
const EXIT: &str = if cfg!(target_arch = "x86_64") { "60" } else { "93" };

/// A process whose first thread has ended, which makes it look like a zombie.
pub fn headless(host: &Host) -> Process {
    let script = "use threads; threads->create(sub { sleep 1000 }); syscall(int $ARGV[0], 0)";
    let mut perl = Command::new("perl");
    perl.args(["-e", script, EXIT]);
    let process = host.spawn_command(perl);
    let stat = format!("/proc/{}/stat", process.pid());
    let is_headless = || fs::read_to_string(&stat).expect("it lives").contains(") Z ").then_some(());
    eventually("its first thread has ended", is_headless);
    process
}

/// Checks that a process was not killed.
#[track_caller]
pub fn lives(process: &Process) {
    process.signal(Signal::CONT);
    let threads = fs::read_dir(format!("/proc/{}/task", process.pid())).map_or(0, Iterator::count);
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
    assert!(threads > 1 || threads == 1 && !stat.contains(") Z "), "it was killed: {stat}");
}

fn execs(host: &Host, task: &Task<'_>) -> Value {
    host.bowline(["inspect", "--facts", task.id()]).assert_code(0).json()["tasks"][task.id()]["execs"].clone()
}

fn numbers(execs: &Value) -> Vec<&str> {
    execs.as_object().expect("execs").keys().map(String::as_str).collect()
}

#[test]
fn a_slot_that_names_a_stranger_is_refused_by_itself() {
    for init in ["--init=true", "--init=false"] {
        let host = Host::new();
        let task = host.task("exec sleep 1000").flag(init).start();
        task.exec_with(["-d"], "exec sleep 1000").assert_code(0);
        let own = execs(&host, &task)["1"]["pid"].clone();
        let strangers = [stranger(&host), headless(&host), stranger(&host)];
        task.crash_shim();
        for (process, (number, by)) in
            strangers.iter().zip([(2, json!({ "caller": ["x"] })), (3, json!("check")), (4, json!("check"))])
        {
            add_slot(&task, |exec| {
                of_process(exec, number, process.pid());
                exec["by"] = by;
            });
        }
        task.bowline("adopt", []).assert_code(0);
        // Whatever is due at once is done by then.
        task.exec("exit 3").assert_code(3);
        let now = execs(&host, &task);
        assert_eq!((numbers(&now), &now["1"]["pid"]), (vec!["1"], &own), "{now}");
        let log = task.log("shim.log");
        for process in &strangers {
            lives(process);
            let line = log.lines().find(|line| line.contains(&format!("pid={}", process.pid())));
            assert!(line.is_none_or(|line| line.contains("not in the task's cgroup")), "{log}");
        }
        assert_eq!(log.matches("not in the task's cgroup").count(), 2, "the third is known to end: {log}");
        // The slots are free, and the journal has no end of these execs.
        task.crash_shim();
        task.bowline("adopt", []).assert_code(0);
        assert_eq!(numbers(&execs(&host, &task)), ["1"]);
        task.exec("exit 3").assert_code(3);
        strangers.iter().for_each(lives);
        for process in strangers {
            process.signal(Signal::KILL);
            process.finish();
        }
        task.end();
    }
}

#[test]
fn a_slot_that_names_what_the_task_started_is_refused() {
    for init in ["--init=true", "--init=false"] {
        let host = Host::new();
        let task = host.task("sleep 1001 & exec sleep 1000").flag(init).start();
        task.exec_with(["-d"], "exec sleep 1002").assert_code(0);
        let own = execs(&host, &task)["1"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        let started = || task.processes().into_iter().filter(|pid| *pid != own && name_of(*pid) == "sleep");
        eventually("both run", || (started().count() == 2).then_some(()));
        let pids: Vec<i32> = started().chain([task.pid(), own]).collect();
        task.crash_shim();
        for (pid, number) in pids.iter().zip(2..) {
            add_slot(&task, |exec| of_process(exec, number, *pid));
        }
        task.bowline("adopt", []).assert_code(0);
        task.exec("exit 3").assert_code(3);
        assert_eq!(numbers(&execs(&host, &task)), ["1"], "{}", task.log("shim.log"));
        assert!(pids.iter().all(|pid| process_exists(*pid)), "{}", task.log("shim.log"));
        task.end();
    }
}

/// So are others that would follow it.
#[test]
fn a_slot_with_a_number_that_no_exec_has_is_refused() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.exec_with(["-d"], "exec sleep 1000").assert_code(0);
    task.crash_shim();
    for number in [0, u64::MAX] {
        add_slot(&task, |exec| exec["number"] = json!(number));
    }
    task.bowline("adopt", []).assert_code(0);
    task.exec("exit 3").assert_code(3);
    task.exec_with(["-d"], "exec sleep 1000").assert_code(0);
    assert_eq!(numbers(&execs(&host, &task)), ["1", "3"]);
    task.end();
}
