//! What no shim can take over: it is named, it runs on, and nothing but force ends it.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::process_exists;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::damaged_records::{assert_ended, edit, read};
use crate::exec::made_up::{headless, lives};

/// What it lacks is named, the task runs on, and nothing but force ends it.
#[test]
fn what_no_shim_can_take_over_is_named_and_runs_on() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (pid, whole) = (task.pid(), read(&task.file("task.json")));
    task.kill_shim(task.shim_pid());
    for (field, value, named) in [
        ("version", Some(json!(1000)), "version: its form is 1000"),
        ("version", Some(json!("x")), "version: its form is \"x\""),
        ("user", None, "`user`"),
        ("identity", None, "`identity`"),
        ("pid_started", None, "`pid_started`"),
        ("pid", None, "`pid`"),
    ] {
        fs::write(task.file("task.json"), &whole).expect("ours");
        edit(&task.file("task.json"), |record| {
            let fields = record.as_object_mut().expect("fields");
            match value {
                Some(value) => fields.insert(field.to_owned(), value),
                None => fields.remove(field),
            };
        });
        let id = task.id();
        for args in [&["exec", id, "--", "true"][..], &["stop", id], &["adopt", id], &["wait", id]] {
            let ran = host.bowline(args);
            ran.assert_refused(125, &["take over", named]);
            assert!(ran.err().contains(&format!("`bowline rm -f {id}` ends and removes")), "{ran}");
        }
        let ran = task.bowline("rm", []);
        assert!(ran.is_refusal() && process_exists(pid), "{named}: {ran}");
    }
    fs::write(task.file("task.json"), &whole).expect("ours");
    edit(&task.file("task.json"), |record| record["version"] = json!(1000));
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}

/// What a record says wrongly of its init ends nothing, and gives nothing up.
#[test]
fn a_record_of_another_init_or_another_boot_ends_nothing() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (pid, whole) = (task.pid(), read(&task.file("task.json")));
    task.kill_shim(task.shim_pid());
    let later = |record: &mut Value| record["pid_started"] = json!(record["pid_started"].as_u64().expect("ticks") + 1);
    for (what, damage) in
        [("pid", &(|record: &mut Value| record["pid"] = json!(1)) as &dyn Fn(&mut Value)), ("pid_started", &later)]
    {
        edit(&task.file("task.json"), damage);
        let ran = task.bowline("rm", []);
        assert!(ran.is_refusal() && process_exists(pid), "{what}: {ran}");
        fs::write(task.file("task.json"), &whole).expect("ours");
    }
    let other_boot = "00000000-0000-0000-0000-000000000000";
    edit(&task.file("task.json"), |record| record["identity"]["boot"] = json!(other_boot));
    task.bowline("rm", ["-f"]).assert_refused(125, &[&pid.to_string(), "lives"]);
    assert!(process_exists(pid) && task.file("task.json").exists());
    fs::write(task.file("task.json"), &whole).expect("ours");
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}

/// When a process started, in ticks since boot: field 22 of its stat (proc_pid_stat(5)).
fn started(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
    fields.and_then(|ticks| ticks.parse().ok()).expect("a number")
}

/// A process that is not the task's is not taken for its init, and where the record names none the task is left alone.
#[test]
fn a_record_that_names_another_init_is_refused() {
    let host = Host::new();
    for init in ["false", "true"] {
        let task = host.task("exec sleep 1000").toml(&format!("init = {init}")).start();
        let (pid, whole) = (task.pid(), read(&task.file("task.json")));
        task.kill_shim(task.shim_pid());
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let its = stranger.id().cast_signed();
        // It looks like an init that has ended.
        let headless = headless(&host);
        let dead = i32::MAX / 2;
        for (named, [pid, started]) in [
            ("`pid`", [json!(its), json!(started(its))]),
            ("`pid`", [json!(headless.pid()), json!(started(headless.pid()))]),
            ("`pid_started`", [json!(its), json!(1)]),
            ("`pid`", [json!(dead), json!(1)]),
        ] {
            task.change_record(|record| (record["pid"], record["pid_started"]) = (pid, started));
            let id = task.id();
            for args in [&["adopt", id][..], &["exec", id, "--", "true"], &["kill", "--signal=USR1", id], &["wait", id]]
            {
                host.bowline(args).assert_refused(125, &["take over", named]);
            }
        }
        assert!(stranger.try_wait().expect("a child").is_none() && process_exists(pid));
        lives(&headless);
        headless.signal(Signal::KILL);
        headless.finish();
        stranger.kill().expect("it lives");
        stranger.wait().expect("a child");
        fs::write(task.file("task.json"), &whole).expect("ours");
        task.bowline("adopt", []).assert_code(0);
        task.end();
    }
}

/// The task is ended then, and the stranger is not: the hint is right for whichever of the two the record names.
#[test]
fn rm_f_leads_on_where_a_record_names_a_stranger() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let pid = task.program_pid();
    task.kill_shim(task.shim_pid());
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
    let its = stranger.id().cast_signed();
    task.change_record(|record| (record["pid"], record["pid_started"]) = (json!(its), json!(started(its))));
    let file = task.file("task.json");
    let ran = task.bowline("rm", ["-f"]);
    ran.assert_refused(125, &[&its.to_string(), "was not in the task's cgroup"]);
    assert!(ran.err().contains(&format!("remove `pid` from {}", file.display())), "{ran}");
    assert_ended(&[pid]);
    task.change_record(|record| drop(record.as_object_mut().expect("fields").remove("pid")));
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(stranger.try_wait().expect("a child").is_none());
    stranger.kill().expect("it lives");
    stranger.wait().expect("a child");
    host.assert_nothing_left_without_rm();
}

/// Others of its sandbox have a new shim, and it is told so.
#[test]
fn a_member_that_no_shim_can_take_over_is_named() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = || host.task("exec sleep 1000").in_sandbox(&sandbox).start();
    let (one, other) = (member(), member());
    let pid = one.pid();
    sandbox.kill_shim();
    edit(&one.file("task.json"), |record| record["version"] = json!(1000));
    other.exec("exit 7").assert_code(7);
    for args in [&["adopt", one.id()][..], &["exec", one.id(), "--", "true"], &["stop", one.id()]] {
        host.bowline(args).assert_refused(125, &["take over", "version: its form is 1000"]);
    }
    assert!(process_exists(pid));
    sandbox.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_sandbox_is_replaced_by_no_task() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let id = sandbox.id();
    for is_dead in [false, true] {
        if is_dead {
            sandbox.kill_shim();
        }
        for args in [&["rm", id][..], &["rm", "-f", id], &["start", "--replace", "--name", id, "--", "true"]] {
            host.bowline(args).assert_refused(125, &[id, "is a sandbox, and no task"]);
        }
    }
    sandbox.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

/// Without force, a sandbox whose shim died is kept as long as a member may run.
#[test]
fn a_sandbox_whose_members_may_run_is_removed_by_force_alone() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = host.task("exec sleep 1000").in_sandbox(&sandbox).start();
    let (pid, whole) = (member.pid(), read(&member.file("task.json")));
    sandbox.kill_shim();
    let of_sandbox = read(&sandbox.file("sandbox.json"));
    let other_boot = |record: &mut Value| record["whole"]["boot"] = json!("00000000-0000-0000-0000-000000000000");
    let newer = |record: &mut Value| record["version"] = json!(1000);
    for (what, damage) in [("boot", &other_boot as &dyn Fn(&mut Value)), ("version: its form is 1000", &newer)] {
        edit(&sandbox.file("sandbox.json"), damage);
        let ran = sandbox.bowline("rm", []);
        assert!(ran.is_refusal() && process_exists(pid), "{what}: {ran}");
        fs::write(sandbox.file("sandbox.json"), &of_sandbox).expect("ours");
    }
    fs::write(member.file("task.json"), "").expect("ours");
    let ran = sandbox.bowline("rm", []);
    assert!(ran.is_refusal() && process_exists(pid), "{ran}");
    fs::write(member.file("task.json"), &whole).expect("ours");
    sandbox.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}
