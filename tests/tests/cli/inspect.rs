//! What is known of tasks, and templates for it.

use std::fs;
use std::os::unix::net::UnixListener;

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use serde_json::{Value, json};

#[test]
fn a_template_is_filled_for_each_task() {
    let host = Host::new();
    let (running, ended) = (host.task("exec sleep 1000").start(), host.task("exit 3").start());
    ended.wait();
    let ran =
        host.bowline(["inspect", running.id(), ended.id(), "--format", "{{.id}} {{ status }} {{ exit.exit_code }}"]);
    ran.assert_says(&format!("{} running \n{} exited 3", running.id(), ended.id()));
    running.bowline("inspect", ["-f", "{{ pid }}"]).assert_says(&running.pid().to_string());
    running.bowline("inspect", ["-f", "{{ task.args | json }}"]).assert_says("[\"-c\",\"exec sleep 1000\"]");
    running.end();
}

#[test]
fn a_field_that_there_is_not_is_named() {
    let host = Host::new();
    let task = host.task("exit 3").start();
    task.wait();
    for (template, name) in
        [("{{ pidd }}", "pidd"), ("{{.exit.code}}", "exit.code"), ("{{ task.memory.limits }}", "task.memory.limits")]
    {
        task.bowline("inspect", ["--format", template]).assert_refused(2, &["--format", name]);
    }
    // Known, but not said of this task.
    task.bowline("inspect", ["--format={{ task.memory.limit }}"]).assert_says("");
    for template in ["{{", "{{ id | nonsense }}", "{% if %}"] {
        task.bowline("inspect", ["--format", template]).assert_refused(2, &["--format"]);
    }
}

#[test]
fn of_several_tasks_it_is_a_list_of_those_that_there_are() {
    let host = Host::new();
    let (one, two) = (host.task("true").start(), host.task("true").start());
    one.wait();
    two.wait();
    let ran = host.bowline(["inspect", two.id(), "nobody", one.id()]);
    let found = ran.assert_code(125).json();
    assert_eq!((&found[0]["id"], &found[1]["id"]), (&two.id().into(), &one.id().into()));
    assert!(ran.err().contains("nobody"), "{ran}");
}

#[test]
fn what_a_shim_knows_can_be_asked_for() {
    let host = Host::new();
    let task = host.task("trap '' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    let exec = host.spawn(["exec", task.id(), "--timeout", "1h", "--", "sleep", "1000"]);
    let facts = || task.bowline("inspect", ["--facts"]).assert_code(0).json();
    let of_task = |facts: &Value| facts["tasks"][task.id()].clone();
    let open_calls = |facts: &Value| {
        let connections = facts["connections"].as_array().expect("a list").iter();
        let open = connections.flat_map(|connection| connection["open"].as_array().expect("a list").clone());
        open.map(|call| json!([call["method"], call["begun"]])).collect::<Vec<Value>>()
    };
    // The call learns of the exec's number a moment after the exec runs.
    let running = eventually("the exec runs", || {
        let facts = facts();
        let begun = open_calls(&facts).contains(&json!(["Exec", 1]));
        (begun && of_task(&facts)["execs"]["1"]["life"] == "running").then_some(facts)
    });
    let shim = task.shim_pid();
    assert_eq!((&running["pid"], &running["pid_started"]), (&shim.into(), &started(shim).into()));
    assert_eq!(running["boot_id"], fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot").trim());
    assert_eq!(running["shim"]["life"]["serving"]["busy"], 1, "it stays for the task");
    let known = of_task(&running);
    assert_eq!((&known["life"], &known["record"]["pid"]), (&"running".into(), &task.pid().into()));
    assert_eq!(known["record"]["pid_started"], started(task.pid()));
    assert_eq!(known["output"]["tails"], json!(["ready\n", ""]));
    let open = open_calls(&running);
    assert!(open.contains(&json!(["Facts", null])), "{open:?}");
    let pid = known["execs"]["1"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
    assert_eq!(known["execs"]["1"]["pid_started"], started(pid));
    let left = known["execs"]["1"]["deadline"].as_u64().expect("a deadline") - monotonic_ns();
    assert!(left > 3_500_000_000_000 && left < 3_600_000_000_000, "{left} ns");

    let stop = host.spawn(["stop", task.id(), "--grace", "1h"]);
    let stopping = eventually("it is stopped", || {
        let known = of_task(&facts());
        known["life"]["stopping"].is_object().then_some(known)
    });
    assert_eq!(stopping["life"]["stopping"]["signal"], "SIGTERM");
    assert!(stopping["life"]["stopping"]["kill_at"].as_u64().expect("a time") > monotonic_ns());
    assert_eq!((&stopping["stopped_by"], &stopping["sent"][0]), (&"request".into(), &15.into()));
    task.end();
    exec.finish();
    stop.finish();
    let gone = task.bowline("inspect", ["--facts"]);
    gone.assert_refused(125, &[task.id(), "no shim"]);
    task.bowline("inspect", ["--facts", "--format", "{{ id }}"]).assert_refused(2, &["--format"]);
    host.bowline(["inspect", "--facts", "nobody"]).assert_refused(125, &["nobody"]);
}

/// When a process started, in clock ticks since the boot (proc_pid_stat(5)).
fn started(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let after_name = stat.rsplit_once(") ").expect("a name").1;
    after_name.split(' ').nth(19).expect("a field").parse().expect("a number")
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("a time")
}

#[test]
fn start_can_answer_as_json() {
    let host = Host::new();
    let id = host.new_id();
    let started = host.bowline(["start", "--json", "--name", &id, "--", "sleep", "1000"]).assert_code(0).json();
    let task = host.adopt(&id);
    assert_eq!((&started["id"], &started["pid"]), (&id.as_str().into(), &task.pid().into()));
    task.end();
}

#[test]
fn facts_of_a_socket_where_nothing_answers_are_an_error() {
    let host = Host::new();
    let socket = host.work().join("silent.sock");
    let listener = UnixListener::bind(&socket).expect("the work folder is writable");
    let ran = host.bowline(["inspect", "--facts", "--address", socket.to_str().expect("ASCII")]);
    ran.assert_refused(125, &["silent.sock does not answer within 5 s"]);
    drop(listener);
}
