//! Execs that run while their shim dies: the next one knows them by their numbers, and tells each end once.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Task, child_pids, eventually, lacks, name_of, process_exists, storm, touch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const IDLE: &str = "exec sleep 1000";

/// Runs until a file is there, and ends with its code.
fn until(file: &str, code: i32) -> String {
    format!("until [ -e /tmp/{file} ]; do sleep 0.02; done; exit {code}")
}

/// What the shim of the task knows of its execs, by number.
fn known(host: &Host, task: &Task<'_>) -> Value {
    host.bowline(["inspect", "--facts", task.id()]).assert_code(0).json()["tasks"][task.id()].clone()
}

fn pid_of(known: &Value, number: &str) -> i32 {
    let pid = known["execs"][number]["pid"].as_i64().and_then(|pid| pid.try_into().ok());
    pid.unwrap_or_else(|| panic!("exec {number} has no process in {known}"))
}

/// The command and the code of each exec whose end was told.
fn told(host: &Host, task: &Task<'_>) -> Vec<(String, Value)> {
    let lines = host.bowline(["events", "--json", task.id()]).assert_code(0).out();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let execs = events.filter(|event| event["event"] == "exec");
    // Of what outlives a shim, an older kernel tells the code only to who is faster than its new parent.
    let may_be_unknown = lacks("PIDFD_INFO_EXIT");
    let code = |event: &Value, script: &str| match may_be_unknown && script.starts_with("until ") {
        true => Value::Null,
        false => event["exit_code"].clone(),
    };
    let told = |event: Value| {
        let script = event["command"][2].as_str().unwrap_or("").to_owned();
        let code = code(&event, &script);
        (script, code)
    };
    execs.map(told).collect()
}

fn kill_and_adopt(task: &Task<'_>) {
    task.crash_shim();
    // A client that waits for the task may be faster.
    task.bowline("adopt", []).assert_code(0);
}

/// The code is known where the kernel keeps it.
fn code(code: i32) -> Value {
    if lacks("PIDFD_INFO_EXIT") { Value::Null } else { json!(code) }
}

#[test]
fn one_that_runs_keeps_its_number_and_its_end_is_told() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    task.exec("exit 1").assert_code(1);
    let (first, second) = (until("first", 5), until("second", 6));
    task.exec_with(["-d"], &first).assert_code(0);
    task.exec_with(["-d", "--timeout=1h"], &second).assert_code(0);
    let before = known(&host, &task);
    let pids = ["2", "3"].map(|number| pid_of(&before, number));
    kill_and_adopt(&task);
    task.exec("exit 4").assert_code(4);
    let now = known(&host, &task);
    assert_eq!(now["execs_begun"], 4, "{now}");
    for (number, pid) in ["2", "3"].into_iter().zip(pids) {
        assert_eq!(pid_of(&now, number), pid);
        for field in ["by", "deadline", "group", "name", "started_at"] {
            assert_eq!(now["execs"][number][field], before["execs"][number][field], "{field} of exec {number}");
        }
    }
    // Lists of processes name them.
    let top = task.bowline("top", ["--once", "--json"]).assert_code(0).json();
    let rows = top.as_array().expect("a list");
    for (pid, number) in pids.into_iter().zip([2, 3]) {
        let row = rows.iter().find(|row| row["pid"] == pid).expect("it is listed");
        assert_eq!(row["exec"], number, "{top}");
    }
    touch(task.program_pid(), "first");
    eventually("the first has ended", || (!process_exists(pids[0])).then_some(()));
    // Once more, with one that has ended and one that runs.
    eventually("it is told", || told(&host, &task).iter().any(|(script, _)| *script == first).then_some(()));
    kill_and_adopt(&task);
    touch(task.program_pid(), "second");
    eventually("it is told", || told(&host, &task).iter().any(|(script, _)| *script == second).then_some(()));
    let expected = [("exit 1", json!(1)), ("exit 4", json!(4)), (&*first, code(5)), (&*second, code(6))]
        .map(|(s, c)| (s.to_owned(), c));
    assert_eq!(told(&host, &task), expected);
    let now = known(&host, &task);
    assert_eq!((&now["execs"], &now["execs_begun"]), (&json!({}), &json!(4)));
    task.end();
}

#[test]
fn one_that_begins_while_the_disk_is_full_keeps_its_number() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let state = disk.path().to_string_lossy().into_owned();
    let id = host.new_id();
    let bowline = |args: &[&str]| host.bowline(["--state", &*state].into_iter().chain(args.iter().copied()));
    bowline(&["start", "--name", &id, "--init", "--", "sleep", "1000"]).assert_code(0);
    // An error, as meant: no byte is free then.
    assert!(fs::write(disk.path().join("filler"), vec![0; 4 << 20]).is_err());
    bowline(&["exec", "-d", &id, "--", "sleep", "1000"]).assert_code(0);
    let execs = || bowline(&["inspect", "--facts", &id]).assert_code(0).json()["tasks"][&*id]["execs"].clone();
    let before = execs();
    let record = fs::read_to_string(disk.path().join(&id).join("task.json")).expect("a record");
    let shim = serde_json::from_str::<Value>(&record).expect("JSON")["shim_pid"].as_i64().expect("a pid");
    let shim = i32::try_from(shim).expect("a pid");
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
    eventually("the shim is gone", || (!process_exists(shim)).then_some(()));
    bowline(&["adopt", &id]).assert_code(0);
    assert_eq!(execs()["1"]["pid"], before["1"]["pid"], "{before}");
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    bowline(&["rm", "-f", &id]).assert_code(0);
    drop(disk);
}

#[test]
fn an_exec_ended_without_a_shim_is_reported_once_without_code() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    let script = until("end", 5);
    task.exec_with(["-d"], &script).assert_code(0);
    let (pid, program) = (pid_of(&known(&host, &task), "1"), task.program_pid());
    task.crash_shim();
    touch(program, "end");
    let entry = format!("/proc/{pid}");
    eventually("it was reaped by another process", || (!fs::exists(&entry).expect("readable")).then_some(()));
    for _ in 0..2 {
        task.bowline("adopt", []).assert_says(task.id());
        eventually("it is told", || (!told(&host, &task).is_empty()).then_some(()));
        task.crash_shim();
    }
    task.exec("exit 3").assert_code(3);
    let now = known(&host, &task);
    assert_eq!((&now["execs"], &now["execs_begun"]), (&json!({}), &json!(2)));
    assert_eq!(told(&host, &task), [(script, Value::Null), ("exit 3".to_owned(), json!(3))]);
    let explained = task.bowline("explain", []).assert_code(0).out();
    assert!(!explained.contains("deadline"), "{explained}");
    task.end();
}

#[test]
fn its_deadline_is_kept_where_it_has_no_cgroup_of_its_own_too() {
    let host = Host::new();
    // Its cgroup may have none below: the exec's session is killed then.
    let task = host.task(IDLE).flag("--init").start();
    let exec = task.spawn_exec(["--timeout=2s"], "sleep 1002; true");
    eventually("it runs", || (!known(&host, &task)["execs"]["1"]["started_at"].is_null()).then_some(()));
    task.crash_shim();
    exec.finish().assert_code(125);
    task.bowline("adopt", []).assert_says(task.id());
    eventually("its deadline came", || (told(&host, &task).len() == 1).then_some(()));
    assert_eq!(told(&host, &task)[0].1, Value::Null);
    task.end();
}

#[test]
fn leftovers_of_an_exec_ended_without_a_shim_have_no_deadline() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    let script = format!("tail -f /dev/null & {}", until("go", 0));
    task.exec_with(["-d", "--timeout=4s"], &script).assert_code(0);
    let exec = pid_of(&known(&host, &task), "1");
    let is_left = || task.processes().into_iter().find(|pid| name_of(*pid) == "tail");
    let left = eventually("it is left", is_left);
    let program = task.program_pid();
    task.crash_shim();
    touch(program, "go");
    eventually("the exec has ended", || (!process_exists(exec)).then_some(()));
    task.bowline("adopt", []).assert_code(0);
    // A later deadline than its own.
    task.exec_with(["--timeout=5s"], "exec sleep 1000").assert_code(124);
    assert!(process_exists(left), "killed at the deadline of an exec that ended before");
    task.end();
}

#[test]
fn event_numbers_go_on_where_the_journal_lost_earlier_events() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    task.exec("exit 1").assert_code(1);
    task.crash_shim();
    // As by the events of many others meanwhile.
    for file in fs::read_dir(host.state().join(".events")).expect("there is one").flatten() {
        fs::remove_file(file.path()).expect("root may");
    }
    task.bowline("adopt", []).assert_code(0);
    task.exec("exit 2").assert_code(2);
    let lines = host.bowline(["events", "--json", task.id()]).assert_code(0).out();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let numbers: Vec<_> = events.iter().map(|event| (event["event"].as_str(), event["seq"].as_u64())).collect();
    assert_eq!(numbers, [(Some("exec"), Some(4))]);
    task.end();
}

#[test]
fn a_health_check_ends_with_its_shim_and_the_next_runs_alone() {
    let host = Host::new();
    let check = "touch /tmp/first.$$; exec sleep 1000";
    let more = format!("[healthcheck]\nexec = ['sh', '-c', '{check}']\ninterval = '100ms'\ntimeout = '10m'\n");
    let task = host.task(IDLE).toml(&more).start();
    let checks = || {
        let sleeping = |pid: &i32| *pid != task.program_pid() && name_of(*pid) == "sleep";
        task.processes().into_iter().filter(sleeping).collect::<Vec<_>>()
    };
    let first = eventually("the first check runs", || checks().first().copied());
    kill_and_adopt(&task);
    let next = eventually("the next one runs, alone", || match checks()[..] {
        [one] if one != first => Some(one),
        _ => None,
    });
    assert!(!process_exists(first) && process_exists(next));
    // Nobody has asked for it.
    assert_eq!(told(&host, &task), []);
    task.end();
}

#[test]
fn through_kills_and_upgrades_in_turns_nothing_is_lost() {
    let host = Host::new();
    let more = "[healthcheck]\nexec = ['true']\ninterval = '1h'\n";
    let task = host.task(IDLE).flag("--init").flag("--stop-timeout=50s").toml(more).start();
    let script = until("end", 5);
    task.exec_with(["-d", "--timeout=1h"], &script).assert_code(0);
    let before = known(&host, &task)["execs"].clone();
    let number = before.as_object().expect("execs").keys().next().expect("one runs").clone();
    let pid = pid_of(&known(&host, &task), &number);
    for _ in 0..2 {
        kill_and_adopt(&task);
        assert_eq!(pid_of(&known(&host, &task), &number), pid);
        host.bowline(["upgrade", task.id()]).assert_code(0);
        let now = known(&host, &task);
        assert_eq!(pid_of(&now, &number), pid);
        assert_eq!(now["execs"][&number]["deadline"], before[&number]["deadline"]);
    }
    touch(task.program_pid(), "end");
    eventually("it is told", || (!told(&host, &task).is_empty()).then_some(()));
    assert_eq!(told(&host, &task), [(script, code(5))]);
    task.end();
}

/// As the case above, of a task that has a terminal, and of one whose stop is under way.
#[test]
fn so_it_is_beside_a_terminal_and_a_stop_that_goes_on() {
    let host = Host::new();
    let deaf = "trap '' TERM HUP; echo ready; while :; do sleep 0.05; done";
    for stops in [false, true] {
        let build = host.task(deaf).flag("--init").flag("--stop-timeout=50s");
        let task = if stops { build.start() } else { build.flag("-t").start() };
        task.wait_for_line("ready");
        let script = until("end", 5);
        task.exec_with(["-d"], &script).assert_code(0);
        let pid = pid_of(&known(&host, &task), "1");
        let stop = stops.then(|| host.spawn(["stop", "--grace=1h", task.id()]));
        let status = if stops { "stopping" } else { "running" };
        eventually("it is recorded", || (task.status() == status).then_some(()));
        for _ in 0..2 {
            kill_and_adopt(&task);
            host.bowline(["upgrade", task.id()]).assert_code(0);
            assert_eq!((task.status(), pid_of(&known(&host, &task), "1")), (status.to_owned(), pid));
        }
        touch(task.program_pid(), "end");
        eventually("it is told", || (!told(&host, &task).is_empty()).then_some(()));
        assert_eq!(told(&host, &task), [(script, code(5))]);
        let report = task.end();
        assert_eq!(report["stopped_by"], "request", "{report:?}");
        drop(stop);
    }
}

/// Execs of all lengths, some of which end just as their shim dies.
#[test]
fn storm_each_exec_has_one_number_and_one_end() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    let mut begun = 0;
    storm(8, |round| {
        let scripts = [0, 1, 3, 9, 50].map(|hundredths| format!("sleep 0.{hundredths:02}; : {round}"));
        for script in &scripts {
            task.exec_with(["-d"], script).assert_code(0);
        }
        begun += scripts.len();
        if round % 3 == 0 {
            host.bowline(["upgrade", task.id()]).assert_code(0);
        } else {
            task.crash_shim();
            task.bowline("adopt", []).assert_code(0);
        }
        let now = known(&host, &task);
        assert_eq!(now["execs_begun"], begun, "round {round}: {now}");
        let of_round = || {
            let all = told(&host, &task);
            scripts.iter().map(|script| all.iter().filter(|(told, _)| told == script).count()).collect::<Vec<_>>()
        };
        eventually(format_args!("all ends of round {round} are told"), || {
            of_round().iter().all(|times| *times > 0).then_some(())
        });
        assert_eq!(of_round(), [1; 5], "round {round}");
    });
    task.end();
}

#[test]
fn slots_that_somebody_has_made_huge_take_no_disk() {
    use std::os::unix::fs::MetadataExt as _;
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.exec("true").assert_code(0);
    task.crash_shim();
    let file = std::fs::File::options().write(true).open(task.file("execs")).expect("ours");
    file.set_len(40 << 30).expect("a sparse file");
    task.exec("exit 3").assert_code(3);
    assert!(file.metadata().expect("open").blocks() * 512 < 16 << 20);
    task.end();
}

/// Between an exec's clone and the moment at which its shim hears of it.
#[test]
fn storm_what_is_cloned_as_its_shim_dies_has_its_number() {
    let host = Host::new();
    let task = host.task(IDLE).flag("--init").start();
    storm(4, |round| {
        let (shim, before) = (task.shim_pid(), child_pids(task.shim_pid()));
        let seconds = format!("{}", 10_000 + round);
        let exec = task.spawn_exec(["-d"], &format!("exec sleep {seconds}"));
        // The worker that clones it goes on by itself.
        while child_pids(shim) == before {}
        kill_process(Pid::from_raw(shim).expect("a pid"), Signal::STOP).expect("it lives");
        let is_it = |pid: &i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            name_of(*pid) == "sleep" && command.split(|byte| *byte == 0).any(|word| word == seconds.as_bytes())
        };
        let pid = eventually("the exec runs", || task.processes().into_iter().find(is_it));
        task.kill_shim(shim);
        exec.finish();
        task.bowline("adopt", []).assert_code(0);
        let now = known(&host, &task);
        assert_eq!(pid_of(&now, &format!("{}", round + 1)), pid, "round {round}: {now}");
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
        eventually(format_args!("the end of round {round} is told"), || {
            told(&host, &task).iter().any(|(script, _)| script.ends_with(&seconds)).then_some(())
        });
        assert!(!host.bowline(["events", task.id()]).out().contains("timed out"));
    });
    task.end();
}
