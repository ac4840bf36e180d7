//! Records that are damaged, truncated, or of another version of bowline: every other task is still shown, and `rm -f`
//! and `gc` clean up what the damaged record was of, by the cgroup that bowline alone makes for it.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Task, binary, eventually, hierarchy, only_v2, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// What a crash, a full disk or an editor makes of a record.
fn damages(whole: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("empty", Vec::new()),
        ("truncated", whole[..whole.len() / 2].to_vec()),
        ("zeros", vec![0; whole.len()]),
        ("no JSON", b"\xff\xfe gone".to_vec()),
        ("another value", b"[1, 2]".to_vec()),
        ("without its fields", b"{}".to_vec()),
    ]
}

pub fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

pub fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut record: Value = serde_json::from_slice(&read(path)).expect("JSON");
    change(&mut record);
    fs::write(path, record.to_string()).expect("ours");
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&read(path)).expect("JSON")
}

/// A task whose processes outlive its shim, which is dead.
fn dead(host: &Host) -> (Task<'_>, Vec<i32>) {
    let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; exec sleep 1000']\nnamespaces.pid = 'host'";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    let pids = task.all_processes();
    assert_eq!(pids.len(), 3, "{pids:?}");
    task.kill_shim(task.shim_pid());
    (task, pids)
}

#[track_caller]
pub fn assert_ended(pids: &[i32]) {
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when it returns: {pids:?}");
}

/// The status of each task, by `ps`.
#[track_caller]
fn statuses(host: &Host) -> Vec<(String, String)> {
    let rows = host.bowline(["ps", "--json"]).assert_code(0).json();
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    rows.as_array().expect("a list").iter().map(|row| (text(row, "id"), text(row, "status"))).collect()
}

#[test]
fn a_damaged_record_hides_no_other_task() {
    let host = Host::new();
    let tasks = [host.task("exec sleep 1000").start(), host.task("exec sleep 1000").start(), host.task("true").start()];
    tasks[2].wait();
    let (bad, name) = (&tasks[1], "task.json");
    let pid = bad.pid();
    let whole = read(&bad.file(name));
    for (how, damage) in damages(&whole) {
        fs::write(bad.file(name), damage).expect("ours");
        let expected: Vec<_> = tasks
            .iter()
            .zip(["running", "damaged", "exited"])
            .map(|(task, status)| (task.id().to_owned(), status.to_owned()))
            .collect();
        assert_eq!(statuses(&host), expected, "{how}");
        let table = host.bowline(["ps"]).assert_code(0).out();
        assert!(table.lines().any(|line| line.starts_with(bad.id()) && line.contains("damaged")), "{how}: {table}");
        let listed = host.bowline(["ps", "-q", "--filter", "status=damaged"]);
        listed.assert_says(bad.id());
        for command in [&["stats"][..], &["top", "--once"], &["metrics", "--once"], &["sandbox", "ls"]] {
            let ran = host.bowline(command);
            assert!(command[0] == "sandbox" || ran.out().contains(tasks[0].id()), "{how}: {ran}");
        }
        // Of the damaged one itself it is said which file, and what can be done.
        let ran = host.bowline(["inspect", bad.id()]);
        ran.assert_refused(125, &[name, "damaged"]);
        assert!(ran.err().contains(&format!("bowline rm -f {}", bad.id())), "{ran}");
        bad.exec("true").assert_code(0);
    }
    host.bowline(["rm", "--exited"]).assert_says(tasks[2].id());
    // Its shim lives, and ends it.
    host.bowline(["rm", "-f", bad.id()]).assert_code(0);
    assert_ended(&[pid]);
    tasks[0].end();
    tasks[0].bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_f_ends_what_a_damaged_task_has_left() {
    let host = Host::new();
    let (first, pids) = dead(&host);
    let whole = read(&first.file("task.json"));
    first.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&pids);
    for (how, damage) in damages(&whole) {
        let (task, pids) = dead(&host);
        fs::write(task.file("task.json"), damage).expect("ours");
        assert_eq!(statuses(&host), [(task.id().to_owned(), "damaged".to_owned())], "{how}");
        let ran = task.bowline("rm", []);
        ran.assert_refused(125, &["task.json", "damaged"]);
        assert!(ran.err().contains("rm -f"), "{how}: {ran}");
        assert!(pids.iter().all(|pid| process_exists(*pid)), "nothing is touched without force");
        task.bowline("rm", ["-f"]).assert_code(0);
        assert_ended(&pids);
        assert!(!task.file("task.json").exists(), "{how}");
        assert!(host.cgroup(&format!("/bowline/{}", task.on_host())).there().is_empty(), "{how}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_damaged_task_without_a_shim_is_named_by_all_that_need_one() {
    let host = Host::new();
    let (task, pids) = dead(&host);
    let (other, _) = dead(&host);
    let whole = read(&task.file("task.json"));
    let hint = format!("bowline rm -f {}", task.id());
    let named_with = |code: i32, ran: &Ran| {
        ran.assert_code(code);
        assert!(ran.err().contains("task.json") && ran.err().contains(&hint), "{ran}");
    };
    let named = |ran: &Ran| named_with(125, ran);
    for is_there in [true, false] {
        match is_there {
            true => fs::write(task.file("task.json"), &whole[..whole.len() / 2]).expect("ours"),
            false => fs::remove_file(task.file("task.json")).expect("ours"),
        }
        for verb in ["adopt", "upgrade", "stop", "kill", "pause", "wait", "rm"] {
            named(&task.bowline(verb, []));
        }
        named(&task.bowline("exec", ["--", "true"]));
        for verb in ["adopt", "upgrade"] {
            let ran = host.bowline([verb, "--all"]);
            named_with(if verb == "upgrade" { 1 } else { 125 }, &ran);
            assert_eq!(ran.out(), other.id(), "{ran}");
            other.kill_shim(other.shim_pid());
        }
    }
    assert!(pids.iter().all(|pid| process_exists(*pid)), "nothing is touched without force");
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&pids);
    other.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn gc_ends_what_a_damaged_task_has_left() {
    let host = Host::new();
    for name in ["task.json", "exit.json"] {
        let (task, pids) = dead(&host);
        fs::write(task.file(name), "{").expect("ours");
        let ran = host.bowline(["gc", "--dry-run", task.id()]);
        assert!(ran.assert_code(0).out().contains(task.id()), "{name}: {ran}");
        host.bowline(["gc", task.id()]).assert_code(0);
        assert_ended(&pids);
        host.bowline(["gc", task.id()]).assert_says("");
        assert_eq!(statuses(&host), [(task.id().to_owned(), "damaged".to_owned())], "the folder stays for ps and rm");
        task.bowline("rm", ["-f"]).assert_code(0);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_damaged_report_is_removed_by_force() {
    let host = Host::new();
    let task = host.task("exit 3").start();
    task.wait();
    let whole = read(&task.file("exit.json"));
    for (how, damage) in damages(&whole) {
        fs::write(task.file("exit.json"), damage).expect("ours");
        assert_eq!(statuses(&host), [(task.id().to_owned(), "damaged".to_owned())], "{how}");
        for command in ["inspect", "wait", "rm"] {
            let ran = host.bowline([command, task.id()]);
            ran.assert_refused(125, &["exit.json", "damaged"]);
            assert!(ran.err().contains("rm -f"), "{how}: {ran}");
        }
    }
    task.bowline("rm", ["-f"]).assert_code(0);
    // The journal has its end once, as it was.
    let events = host.bowline(["events", "--json"]).assert_code(0).out();
    let ends: Vec<&str> = events.lines().filter(|line| line.contains("\"exited\"")).collect();
    assert!(ends.len() == 1 && ends[0].contains("\"exit_code\":3"), "{events}");
    assert!(events.lines().last().is_some_and(|line| line.contains("\"removed\"")), "{events}");
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_planted_report_does_not_keep_a_running_task_from_rm_f() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let pid = task.pid();
    fs::write(task.file("exit.json"), "{").expect("ours");
    assert_eq!(statuses(&host), [(task.id().to_owned(), "damaged".to_owned())]);
    task.bowline("rm", []).assert_refused(125, &[task.id()]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}

/// What says where it was is gone: bowline's own place is all that can be cleaned up.
#[test]
fn rm_names_a_process_in_another_cgroup_and_is_refused() {
    let host = Host::new();
    let (elsewhere, stranger) = (host.elsewhere("parent"), host.elsewhere("stranger"));
    let path = format!("{}/asked-for", elsewhere.path());
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'echo ready; exec sleep 1000']\nnamespaces.pid = 'host'\ncgroup = '{path}'"
    );
    let task = host.described(&toml).start();
    task.wait_for_line("ready");
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let process = host.spawn_command(stranger.inside(&sleep));
    stranger.wait_for(process.pid());
    let whole = read(&task.file("task.json"));
    fs::write(task.file("task.json"), &whole[..whole.len() / 2]).expect("ours");
    let ran = task.bowline("rm", ["-f"]);
    ran.assert_refused(125, &["task.json", &pid.to_string(), &path]);
    assert!(ran.err().contains(&format!("bowline cgroup destroy {path}")), "{ran}");
    assert!(process_exists(pid) && process_exists(process.pid()), "{ran}");
    assert!(task.file("task.json").exists(), "it can be tried again");
    host.bowline(["cgroup", "destroy", &path]).assert_code(0);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(process_exists(process.pid()));
    process.signal(rustix::process::Signal::KILL);
    process.finish();
    stranger.remove();
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

/// On v1 a process does not die while a parent of its cgroup is frozen, unless it can be moved away.
#[test]
fn rm_does_not_say_that_a_process_is_gone_that_cannot_be_ended() {
    let host = Host::new();
    let elsewhere = host.elsewhere("parent");
    let toml = format!("command = 'sleep'\nargs = ['1000']\ncgroup = '{}/asked-for'", elsewhere.path());
    let task = host.described(&toml).start();
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    if !only_v2() {
        let state = hierarchy("freezer").join(&elsewhere.path()[1..]).join("freezer.state");
        fs::write(&state, "FROZEN").expect("root may");
        for _ in 0..2 {
            let ran = host.bowline_that_frees_nobody(&["rm", "-f", task.id()]);
            ran.assert_refused(125, &["cannot kill", &pid.to_string()]);
            assert!(process_exists(pid) && task.file("task.json").exists(), "it is found again: {ran}");
        }
        fs::write(&state, "THAWED").expect("root may");
    }
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

/// A record that can be read in the parts that say what was its own is gone by, with the identity of the cgroup.
#[test]
fn a_record_of_a_newer_bowline_is_cleaned_up_by_what_it_says() {
    let host = Host::new();
    let elsewhere = host.elsewhere("parent");
    let path = format!("{}/asked-for", elsewhere.path());
    let toml = format!("command = 'sh'\nargs = ['-c', 'echo ready; exec sleep 1000']\ncgroup = '{path}'");
    let task = host.described(&toml).start();
    task.wait_for_line("ready");
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    edit(&task.file("task.json"), |record| {
        record["version"] = json!(1000);
        record["task"]["namespaces"]["pid"] = json!("a way to come");
    });
    let ran = task.bowline("inspect", []);
    ran.assert_refused(125, &["task.json", "newer"]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn fields_of_a_newer_bowline_are_ignored() {
    let host = Host::new();
    let task =
        host.described("command = 'sleep'\nargs = ['1000']\nmemory.limit = '64M'\n[healthcheck]\nexec = ['true']");
    let task = task.start();
    let record = task.file("task.json");
    assert_eq!(json_of(&record)["version"], 1);
    let newer = |record: &mut Value| {
        record["version"] = json!(2);
        record["news"] = json!({ "x": [1] });
        for at in ["/task", "/task/memory", "/task/healthcheck", "/identity"] {
            record.pointer_mut(at).unwrap_or_else(|| panic!("no {at}"))["news"] = json!([{ "x": null }]);
        }
    };
    edit(&record, newer);
    assert_eq!(task.inspect()["task"]["command"], "sleep");
    assert_eq!(task.status(), "running");
    task.bowline("logs", []).assert_code(0);
    task.bowline("update", ["--memory", "80M"]).assert_code(0);
    assert_eq!(json_of(&record)["version"], 1, "the shim writes what it knows");
    edit(&record, newer);
    task.end();
    let report = task.file("exit.json");
    assert_eq!(json_of(&report)["version"], 1);
    edit(&report, |report| {
        report["version"] = json!(2);
        report["news"] = json!(1);
        report["health"]["news"] = json!(1);
    });
    assert_eq!(task.status(), "exited");
    task.wait().assert_killed_by("KILL");
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_record_of_an_older_bowline_is_read() {
    let host = Host::new();
    let (task, pids) = dead(&host);
    edit(&task.file("task.json"), |record| {
        let fields = record.as_object_mut().expect("an object");
        for late in ["version", "identity", "parents_made", "unit", "durable", "sandbox", "enforcement"] {
            fields.remove(late);
        }
    });
    assert_eq!(task.status(), "dead");
    task.bowline("rm", []).assert_refused(125, &[task.id(), "has not ended"]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&pids);
    host.assert_nothing_left_without_rm();
}

/// A task of the same id in another state folder is not touched, whatever this folder holds.
#[test]
fn a_damaged_record_harms_no_task_of_another_state_folder() {
    let host = Host::new();
    let other = host.task("echo ready; exec sleep 1000").start();
    other.wait_for_line("ready");
    let state = host.work().join("state");
    let folder = state.join(other.id());
    fs::create_dir_all(&folder).expect("ours");
    fs::write(folder.join("task.json"), "{").expect("ours");
    let state = state.to_str().expect("ASCII");
    for args in [&["gc", other.id()][..], &["rm", "-f", other.id()]] {
        host.bowline(["--state", state].iter().chain(args));
        assert_eq!(other.status(), "running", "{args:?}");
    }
    other.end();
    other.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_damaged_sandbox_hides_no_other_and_is_removed_by_force() {
    let host = Host::new();
    let good = host.sandbox().create();
    for (name, how) in [("sandbox.json", "{\"sandbox\":"), ("sandbox.json", ""), ("networks.json", "{")] {
        let sandbox = host.sandbox().create();
        let member = sandbox.task("echo ready; exec sleep 1000").start();
        member.wait_for_line("ready");
        let pid = member.pid();
        sandbox.kill_shim();
        if name == "networks.json" {
            // A new shim could take over a sandbox with a member that lives.
            kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
            eventually("it has ended", || (!process_exists(pid)).then_some(()));
        }
        fs::write(sandbox.file(name), how).expect("ours");
        let listed = host.bowline(["sandbox", "ls", "--json"]).assert_code(0).json();
        let status = |id: &str| {
            let rows = listed.as_array().expect("a list");
            rows.iter().find(|row| row["id"] == id).map(|row| row["status"].clone())
        };
        assert_eq!(status(good.id()), Some(json!("ready")), "{listed}");
        let expected = if name == "sandbox.json" { "damaged" } else { "dead" };
        assert_eq!(status(sandbox.id()), Some(json!(expected)), "{name}: {listed}");
        assert!(host.bowline(["sandbox", "ls"]).assert_code(0).out().contains(good.id()));
        let ran = host.bowline(["sandbox", "rm", sandbox.id()]);
        ran.assert_refused(125, &[name, "damaged"]);
        assert!(ran.err().contains(&format!("bowline sandbox rm -f {}", sandbox.id())), "{ran}");
        let ran = host.bowline(["sandbox", "rm", "-f", sandbox.id()]);
        ran.assert_code(0);
        assert!(name == "sandbox.json" || ran.err().contains(name), "what networks may have left is said: {ran}");
        assert_ended(&[pid]);
        assert!(!sandbox.file("lock").exists() && !member.file("lock").exists());
    }
}

#[test]
fn gc_ends_what_a_damaged_sandbox_has_left() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = sandbox.task("echo ready; exec sleep 1000").start();
    member.wait_for_line("ready");
    let pid = member.pid();
    sandbox.kill_shim();
    fs::write(sandbox.file("sandbox.json"), "{").expect("ours");
    fs::write(member.file("task.json"), "{").expect("ours");
    host.bowline(["gc", sandbox.id()]).assert_code(0);
    assert_ended(&[pid]);
    for above in ["bowline", "bowline-overhead"] {
        assert!(host.cgroup(&format!("/{above}/{}", sandbox.on_host())).there().is_empty());
    }
    host.bowline(["sandbox", "rm", "-f", sandbox.id()]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn fields_of_a_newer_bowline_in_a_sandboxs_record_are_ignored() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let path = sandbox.file("sandbox.json");
    assert_eq!(json_of(&path)["version"], 1);
    edit(&path, |record| {
        record["news"] = json!(1);
        record["sandbox"]["news"] = json!(1);
    });
    assert_eq!(sandbox.status(), "ready");
    sandbox.kill_shim();
    assert_eq!(sandbox.status(), "dead");
    host.bowline(["sandbox", "rm", sandbox.id()]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_damaged_journal_keeps_nothing_from_its_work() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let journal = host.state().join(".events/journal");
    let whole = read(&journal);
    let text = [&b"\0\xff{}\n{\"time\":"[..], &whole[..whole.len() / 3], b"\n", &whole[..]].concat();
    fs::write(&journal, text).expect("ours");
    let events = host.bowline(["events", "--json"]).assert_code(0).out();
    assert!(events.contains("\"started\""), "{events}");
    assert_eq!(task.status(), "running");
    task.end();
    fs::remove_file(&journal).expect("ours");
    fs::create_dir(&journal).expect("ours");
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_bundles_damaged_record_is_undone_by_its_configuration() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    fs::write(running.bundle.path.join("task.json"), "{").expect("ours");
    containerd.delete_action(&running.bundle);
    eventually("init ends", || (!process_exists(running.pid)).then_some(()));
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn a_durable_tasks_records_are_synced() {
    let host = Host::new();
    let (log, id) = (host.work().join("trace"), host.new_id());
    let mut run = host.command("strace");
    run.args(["-qq", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o"]).arg(&log).arg(binary("bowline"));
    run.args(["run", "--durable", "--rm", "--name", &id, "--", "/bin/sh", "-c", "exit 0"]);
    host.execute(run).assert_code(0);
    let calls = fs::read_to_string(&log).expect("strace writes it");
    for file in ["task.json", "exit.json", ".events/journal"] {
        // Another process may say something before this one's call returns.
        let returns = |line: &str| line.ends_with("= 0") || line.ends_with("<unfinished ...>");
        let is_synced = |line: &&str| line.contains("sync(") && line.contains(file) && returns(line);
        assert!(calls.lines().any(|line| is_synced(&line)), "{file} is not synced:\n{calls}");
    }
    assert!(!calls.contains("= -1"), "{calls}");
    host.assert_nothing_left_without_rm();
}

/// A shim that lives has a task in the cgroup of a sandbox whose record says nothing: that may be a member.
#[test]
fn a_damaged_sandbox_with_a_task_in_its_cgroup_keeps_its_folder() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let cgroup = sandbox.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let task = host.task("exec sleep 1000").toml(&format!("cgroup = '{cgroup}/x'")).start();
    sandbox.kill_shim();
    fs::write(sandbox.file("sandbox.json"), "").expect("ours");
    let ran = host.bowline(["sandbox", "rm", "-f", sandbox.id()]);
    ran.assert_refused(125, &[&cgroup, "is left alone", "record is damaged"]);
    assert!(sandbox.file("lock").exists());
    task.exec("echo well").assert_says("well");
    task.end();
    host.bowline(["sandbox", "rm", "-f", sandbox.id()]).assert_code(0);
}
