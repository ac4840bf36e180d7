//! Records that are not of the folder they are in, or that name what is another's: nobody else is ended or taken over,
//! and it is said which field tells.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Task, eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::damaged_records::{assert_ended, edit, read};

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp");
    assert!(copied.success());
}

fn status(host: &Host, id: &str) -> Value {
    let rows = host.bowline(["ps", "--json"]).assert_code(0).json();
    rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == id)).expect("a row")["status"].clone()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&read(path)).expect("JSON")
}

/// What asks for a task is refused with these words.
#[track_caller]
fn assert_refused(host: &Host, id: &str, named: &[&str]) -> Vec<Ran> {
    let all = [&["adopt", id][..], &["exec", id, "--", "true"], &["kill", id], &["stop", id], &["wait", id]];
    let all = all.map(|args| host.bowline(args));
    for ran in &all {
        ran.assert_refused(125, named);
    }
    all.into()
}

#[test]
fn a_copy_of_a_folder_is_refused_and_removed_alone() {
    let host = Host::new();
    let parent = host.elsewhere("parent");
    let place = format!("cgroup = '{}/described'", parent.path());
    for (toml, is_dead) in [("", false), ("", true), (&*place, false), (&*place, true)] {
        let task = host.task("exec sleep 1000").toml(toml).start();
        let pid = task.pid();
        if is_dead {
            task.kill_shim(task.shim_pid());
        }
        for args in [&["rm", "-f"][..], &["start", "--replace", "--", "true"]] {
            let id = host.new_id();
            let folder = host.state().join(&id);
            copy(&task.file(""), &folder);
            let ran = host.bowline(["adopt", &id]);
            ran.assert_refused(125, &["`folder`", task.id()]);
            assert!(ran.err().contains(&format!("`bowline rm -f {id}` removes this copy alone")), "{ran}");
            for args in [&["exec", &id, "--", "true"][..], &["stop", &id], &["inspect", &id], &["rm", &id]] {
                host.bowline(args).assert_refused(125, &["`folder`", task.id()]);
            }
            assert_eq!(status(&host, &id), "damaged");
            host.bowline(["gc", &id]).assert_says("");
            let named = match args {
                ["rm", ..] => vec!["rm", "-f", &id],
                _ => vec!["start", "--replace", "--name", &id, "--", "true"],
            };
            host.bowline(named).assert_code(0);
            if args[0] == "start" {
                host.adopt(&id).wait();
                host.bowline(["rm", &id]).assert_code(0);
            }
            assert!(process_exists(pid) && !folder.exists());
        }
        task.exec("echo well").assert_says("well");
        task.end();
        task.bowline("rm", []).assert_code(0);
    }
    parent.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_folder_that_was_moved_says_where_it_belongs() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (pid, id) = (task.pid(), host.new_id());
    let (there, elsewhere) = (host.state().join(task.id()), host.state().join(&id));
    for is_dead in [false, true] {
        if is_dead {
            task.kill_shim(task.shim_pid());
        }
        fs::rename(&there, &elsewhere).expect("ours");
        assert_eq!(status(&host, &id), "damaged");
        for args in [&["inspect", &id][..], &["rm", &id], &["rm", "-f", &id]] {
            let ran = host.bowline(args);
            ran.assert_refused(125, &["`folder`", task.id()]);
            assert!(ran.err().contains(&format!("move it back to {}", there.display())), "{ran}");
        }
        if is_dead {
            host.bowline(["adopt", &id]).assert_refused(125, &["`folder`", task.id()]);
        }
        host.bowline(["gc", &id, task.id()]).assert_code(0);
        assert!(process_exists(pid) && elsewhere.exists());
        fs::rename(&elsewhere, &there).expect("ours");
        task.exec("echo well").assert_says("well");
    }
    task.end();
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

/// What the record of `from` says of its cgroup, and with `pids` of its init, is written into that of `to`.
fn take_on(from: &Task<'_>, to: &Task<'_>, pids: bool) {
    let other = json_of(&from.file("task.json"));
    let fields = if pids { &["cgroup", "identity", "pid", "pid_started"][..] } else { &["cgroup", "identity"] };
    edit(&to.file("task.json"), |record| fields.iter().for_each(|field| record[*field] = other[*field].clone()));
}

#[test]
fn a_record_with_another_tasks_cgroup_ends_nobody_else() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let place = format!("cgroup = '/{}/described'", host.prefix());
    let others = [
        host.task("exec sleep 1000").start(),
        host.task("exec sleep 1000").toml(&place).start(),
        host.task("exec sleep 1000").in_sandbox(&sandbox).start(),
    ];
    for (other, pids) in others.iter().flat_map(|other| [(other, false), (other, true)]) {
        let task = host.task("exec sleep 1000").start();
        let (pid, whole) = (task.pid(), read(&task.file("task.json")));
        task.kill_shim(task.shim_pid());
        take_on(other, &task, pids);
        assert_refused(&host, task.id(), if pids { &["`cgroup`"] } else { &["`"] });
        host.bowline(["gc", task.id()]).assert_code(0);
        task.bowline("rm", ["-f"]).assert_refused(125, &[&pid.to_string()]);
        assert!(process_exists(pid), "it may be the task's");
        other.exec("echo well").assert_says("well");
        fs::write(task.file("task.json"), whole).expect("ours");
        task.bowline("rm", ["-f"]).assert_code(0);
        assert_ended(&[pid]);
    }
    others.iter().for_each(|other| drop(other.end()));
    sandbox.rm(["-f"]);
}

#[test]
fn a_sandboxs_record_takes_no_other_sandbox_over() {
    let host = Host::new();
    let other = host.sandbox().flag("--share-pid").create();
    let member = host.task("exec sleep 1000").in_sandbox(&other).start();
    let its = json_of(&other.file("sandbox.json"));
    for fields in [&["cgroup", "overhead"][..], &["overhead"], &["pause_pid", "pause_started"]] {
        let sandbox = host.sandbox().flag("--share-pid").create();
        sandbox.kill_shim();
        edit(&sandbox.file("sandbox.json"), |record| {
            fields.iter().for_each(|field| record[*field] = its[*field].clone());
        });
        host.bowline(["adopt", sandbox.id()]).assert_refused(125, &[&format!("`{}`", fields[0])]);
        host.bowline(["gc", sandbox.id()]).assert_code(0);
        host.bowline(["sandbox", "rm", "-f", sandbox.id()]).assert_code(0);
        member.exec("echo well").assert_says("well");
        assert!(process_exists(other.pause_pid()) && other.status() == "ready");
        for above in ["bowline", "bowline-overhead"] {
            host.bowline(["cgroup", "destroy", &format!("/{above}/{}", sandbox.on_host())]);
        }
    }
    for is_dead in [false, true] {
        if is_dead {
            other.kill_shim();
        }
        let id = host.new_id();
        copy(&host.state().join(other.id()), &host.state().join(&id));
        for args in [&["adopt", &id][..], &["sandbox", "rm", &id], &["sandbox", "inspect", &id]] {
            host.bowline(args).assert_refused(125, &["`folder`", other.id()]);
        }
        host.bowline(["sandbox", "rm", "-f", &id]).assert_code(0);
        assert!(!host.state().join(&id).exists());
        member.exec("echo well").assert_says("well");
    }
    other.rm(["-f"]);
}

#[test]
fn gc_leaves_alone_what_rm_does() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (pid, whole) = (task.pid(), read(&task.file("task.json")));
    task.kill_shim(task.shim_pid());
    let boot = |record: &mut Value| record["identity"]["boot"] = json!("0b0c0d0e-0000-4000-8000-000000000000");
    let inode = |record: &mut Value| {
        for file in record["identity"]["cgroups"].as_object_mut().expect("hierarchies").values_mut() {
            file[1] = json!(file[1].as_u64().expect("an inode") + 1);
        }
    };
    for damage in [&boot as &dyn Fn(&mut Value), &inode] {
        edit(&task.file("task.json"), damage);
        let ran = host.bowline(["gc", task.id()]);
        ran.assert_says("");
        assert!(ran.err().contains("is left alone: its record names another cgroup than there is"), "{ran}");
        assert!(process_exists(pid));
        task.bowline("rm", ["-f"]).assert_refused(125, &[&pid.to_string()]);
        assert!(process_exists(pid));
        fs::write(task.file("task.json"), &whole).expect("ours");
    }
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_ended(&[pid]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_cgroup_or_a_pid_that_no_task_has_is_named() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (pid, whole) = (task.pid(), read(&task.file("task.json")));
    task.kill_shim(task.shim_pid());
    let cgroups = ["", "/", "..", "x/y", "/x/../y"].map(|path| ("cgroup", json!(path)));
    for (field, value) in cgroups.into_iter().chain([1, 0, -1].map(|pid| ("pid", json!(pid)))) {
        edit(&task.file("task.json"), |record| record[field] = value);
        for ran in assert_refused(&host, task.id(), &[&format!("`{field}` in its record")]) {
            assert!(ran.err().contains(&format!("`bowline rm -f {}`", task.id())), "{ran}");
        }
        assert!(process_exists(pid));
        fs::write(task.file("task.json"), &whole).expect("ours");
    }
    // Nobody is told to end the host's first process.
    let stat = fs::read_to_string("/proc/1/stat").expect("it lives");
    let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
    edit(&task.file("task.json"), |record| (record["pid"], record["pid_started"]) = (json!(1), json!(started)));
    let ran = task.bowline("rm", ["-f"]);
    ran.assert_refused(125, &["process 1"]);
    assert!(ran.err().contains("hint: remove `pid` from"), "{ran}");
    assert_ended(&[pid]);
    edit(&task.file("task.json"), |record| drop(record.as_object_mut().expect("fields").remove("pid")));
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn who_names_another_folder_in_its_record_is_not_given_up() {
    let host = Host::new();
    let other = host.task("exec sleep 1000").start();
    for pids in ["host", "new"] {
        let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\ninit = false";
        let toml = if pids == "host" { format!("{toml}\nnamespaces.pid = 'host'") } else { toml.to_owned() };
        let task = host.described(&toml).start();
        task.wait_for_line("ready");
        let (init, all, whole) = (task.pid(), task.all_processes(), read(&task.file("task.json")));
        task.kill_shim(task.shim_pid());
        edit(&task.file("task.json"), |record| record["folder"] = json!(other.id()));
        let refused = || {
            let ran = task.bowline("rm", ["-f"]);
            ran.assert_refused(125, &["`folder`", other.id(), "another task"]);
            assert!(ran.err().contains(&format!("write \"{}\" into `folder`", task.id())), "{ran}");
            host.bowline(["gc", task.id()]).assert_says("");
        };
        refused();
        assert!(all.iter().all(|pid| process_exists(*pid)));
        if pids == "host" {
            kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
            eventually("its init is gone", || (!process_exists(init)).then_some(()));
            refused();
        }
        fs::write(task.file("task.json"), whole).expect("ours");
        task.bowline("rm", ["-f"]).assert_code(0);
        assert_ended(&all);
    }
    // Of which nothing lives, there is nothing to give up.
    let task = host.task("exec sleep 1000").start();
    let pids = task.all_processes();
    task.kill_shim(task.shim_pid());
    edit(&task.file("task.json"), |record| record["folder"] = json!(other.id()));
    for pid in &pids {
        // The first may take the others with it.
        let _ = kill_process(Pid::from_raw(*pid).expect("a pid"), Signal::KILL);
    }
    eventually("it has ended", || (!pids.iter().any(|pid| process_exists(*pid))).then_some(()));
    task.bowline("rm", ["-f"]).assert_code(0);
    other.exec("echo well").assert_says("well");
    other.end();
    for path in [format!("/bowline/{}", task.on_host()), format!("/bowline-overhead/{}", task.on_host())] {
        host.bowline(["cgroup", "destroy", &path]);
    }
}
