//! Who calls itself a shim is none: only a process of root's beside us that holds the lock of the folder is.

use std::fs;
use std::os::unix::process::CommandExt as _;

use bowline_tests::Host;
use bowline_tests::harness::{Process, Task, eventually, process_exists};
use rustix::process::Signal;

/// Executes a shell by another name.
const AS: &str = "exec {'/bin/sh'} @ARGV or die $!";

/// A script that goes on as the shim of `id`.
fn as_shim(host: &Host, id: &str) -> String {
    let folder = host.state().join(id);
    format!("exec perl -e \"{AS}\" bowline-shim -c 'echo ready; sleep 1000; :' --folder {}", folder.display())
}

/// A process on the host by the name of a shim, of the task `id`, as this user.
fn on_host(host: &Host, name: &str, id: &str, uid: u32) -> Process {
    let mut command = host.command("perl");
    let script = "trap 'kill $!; exit' TERM; sleep 1000 & echo ready; wait";
    command.uid(uid).gid(uid).args(["-e", AS, name, "-c", script, "--folder"]);
    command.arg(host.state().join(id));
    let process = host.spawn_command(command);
    process.read_stdout();
    process.wait_for_out("ready");
    process
}

/// Kills the shim of the task, and leaves nothing in its record.
fn lose(task: &Task<'_>) -> i32 {
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    fs::write(task.file("task.json"), "").expect("ours");
    pid
}

#[track_caller]
fn assert_is_cleaned_up(host: &Host, task: &Task<'_>) {
    let pid = lose(task);
    let listed = host.bowline(["gc", "--dry-run", task.id()]).assert_code(0).out();
    assert!(listed.starts_with(&format!("task {}: ", task.id())), "{listed}");
    let ran = task.bowline("rm", ["-f"]);
    assert!(!ran.assert_code(0).err().contains("left alone"), "{ran}");
    eventually("the task is gone", || (!process_exists(pid)).then_some(()));
}

#[test]
fn a_task_by_the_name_of_its_shim_is_cleaned_up() {
    for toml in ["", "namespaces.pid = 'host'"] {
        let host = Host::new();
        let id = host.new_id();
        let task = host.task(&as_shim(&host, &id)).toml(toml).named(&id).start();
        task.wait_for_line("ready");
        assert_is_cleaned_up(&host, &task);
        host.assert_nothing_left();
    }
}

#[test]
fn a_task_by_the_name_of_another_engines_shim_is_cleaned_up() {
    for name in ["conmon", "containerd-shim-runc-v2"] {
        let host = Host::new();
        let script = format!("exec perl -e \"{AS}\" {name} -c 'echo ready; sleep 1000; :'");
        let task = host.task(&script).toml("namespaces.pid = 'host'").start();
        task.wait_for_line("ready");
        assert_is_cleaned_up(&host, &task);
        host.assert_nothing_left();
    }
}

#[test]
fn a_process_of_the_host_by_the_name_of_a_shim_owns_nothing() {
    let host = Host::new();
    for uid in [0, 65534] {
        let task = host.task("echo ready; exec sleep 1000").start();
        task.wait_for_line("ready");
        let impostor = on_host(&host, "bowline-shim", task.id(), uid);
        assert_is_cleaned_up(&host, &task);
        impostor.signal(Signal::TERM);
        impostor.finish();
    }
}

#[test]
fn what_is_left_alone_and_lives_keeps_its_handle() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let path = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let folders = host.cgroup(&path).there();
    let into: Vec<String> = folders.iter().map(|at| format!("echo $! >{}/cgroup.procs;", at.display())).collect();
    let script = format!("sleep 1000 >/dev/null 2>&1 & {} echo in; wait", into.concat());
    let mut engine = host.command("perl");
    engine.args(["-e", AS, "conmon", "-c", &script]);
    let engine = host.spawn_command(engine);
    engine.read_stdout();
    engine.wait_for_out("in");
    let pid = lose(&task);
    for _ in 0..2 {
        let ran = task.bowline("rm", ["-f"]);
        ran.assert_refused(125, &[&pid.to_string(), task.id()]);
        assert!(process_exists(pid) && task.file("task.json").exists(), "{ran}");
    }
    engine.signal(Signal::KILL);
    engine.finish();
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(!process_exists(pid));
}
