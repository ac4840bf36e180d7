//! One task whose files cannot be read, or a state folder that cannot be written: the others go on.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, Task, binary, eventually, process_exists, storm};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs `bowline` where the state folder is read-only, as a disk is after an error.
fn read_only<const N: usize>(host: &Host, args: [&str; N]) -> Ran {
    let mut command = host.command("unshare");
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    command.args(["--mount", "--propagation=private", "/bin/sh", "-c", script]).arg(host.state());
    command.arg(binary("bowline")).args(args);
    host.execute(command)
}

/// The row of a task.
#[track_caller]
fn row(ran: &Ran, task: &Task<'_>) -> Value {
    let rows = ran.assert_code(0).json();
    let row = rows.as_array().expect("a list").iter().find(|row| row["id"] == task.id()).cloned();
    row.unwrap_or_else(|| panic!("it has no row: {ran}"))
}

#[test]
fn a_read_only_state_folder_hides_no_task() {
    let host = Host::new();
    let [lives, dead] = [(); 2].map(|()| host.task("echo ready; exec sleep 1000").start());
    [&lives, &dead].iter().for_each(|task| task.wait_for_line("ready"));
    dead.kill_shim(dead.shim_pid());
    let listed = read_only(&host, ["ps", "--json"]);
    assert_eq!([&lives, &dead].map(|task| row(&listed, task)["status"].clone()), ["running", "dead"], "{listed}");
    read_only(&host, ["rm", "--exited"]).assert_says("");
    for args in
        [["top", "--once"], ["sandbox", "ls"], ["gc", "--dry-run"], ["inspect", dead.id()], ["stop", lives.id()]]
    {
        read_only(&host, args).assert_code(0);
    }
    dead.end();
}

/// What cannot be removed there is the folder, and not what a task has never had.
#[test]
fn on_a_read_only_state_folder_rm_f_ends_a_task_and_names_it() {
    for toml in ["", "network.mode = 'host'", "network.mode = 'none'", "init = false"] {
        let host = Host::new();
        let task = host.task("echo ready; exec sleep 1000").toml(toml).start();
        task.wait_for_line("ready");
        let pid = task.pid();
        task.kill_shim(task.shim_pid());
        for _ in 0..2 {
            let ran = read_only(&host, ["rm", "-f", task.id()]);
            let folder = task.file("").to_string_lossy().trim_end_matches('/').to_owned();
            ran.assert_refused(125, &[&format!("cannot remove {folder}:"), "Read-only file system"]);
            assert!(!ran.err().contains("--state"), "{ran}");
            assert!(!process_exists(pid), "{ran}");
        }
        let ran = read_only(&host, ["gc", task.id()]);
        assert!(!ran.err().contains("network namespace"), "{ran}");
        task.bowline("rm", ["-f"]).assert_code(0);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn a_folder_in_place_of_a_task_s_file_is_a_row_and_no_obstacle() {
    for name in ["exit.json", "task.json", "lock"] {
        let host = Host::new();
        let [lives, other] = [(); 2].map(|()| host.task("echo ready; exec sleep 1000").start());
        [&lives, &other].iter().for_each(|task| task.wait_for_line("ready"));
        let pid = lives.pid();
        let _ = fs::remove_file(lives.file(name));
        fs::create_dir(lives.file(name)).expect("ours");
        let listed = host.bowline(["ps", "--json"]);
        assert_eq!(row(&listed, &other)["status"], "running", "{name}: {listed}");
        let its = row(&listed, &lives);
        if name == "lock" {
            assert_eq!(its["status"], "running", "who answers needs no lock: {listed}");
        } else {
            assert_eq!((&its["status"], &its["pid"]), (&"damaged".into(), &pid.into()), "{name}: {listed}");
            assert!(its["damage"].as_str().is_some_and(|why| why.contains(name)), "{listed}");
            assert!(host.bowline(["ps"]).assert_code(0).err().contains(name));
        }
        for args in
            [&["stats"][..], &["top", "--once"], &["metrics", "--once"], &["sandbox", "ls"], &["gc", "--dry-run"]]
        {
            let ran = host.bowline(args);
            assert!(["sandbox", "gc"].contains(&args[0]) || ran.out().contains(other.id()), "{name}: {ran}");
        }
        host.bowline(["rm", "--exited"]).assert_code(0);
        lives.exec("echo well").assert_says("well");
        host.bowline(["stop", lives.id()]);
        eventually("it has ended", || (!process_exists(pid)).then_some(()));
        if name == "lock" {
            fs::remove_dir(lives.file(name)).expect("ours");
        }
        host.bowline(["rm", "-f", lives.id()]).assert_code(0);
        other.end();
        host.assert_nothing_left();
    }
}

#[test]
fn a_dead_task_with_an_unreadable_record_is_a_removable_row() {
    for name in ["exit.json", "task.json"] {
        let host = Host::new();
        let task = host.task("echo ready; exec sleep 1000").start();
        task.wait_for_line("ready");
        task.kill_shim(task.shim_pid());
        let _ = fs::remove_file(task.file(name));
        fs::create_dir(task.file(name)).expect("ours");
        let listed = host.bowline(["ps", "--json"]);
        assert_eq!(row(&listed, &task)["status"], "damaged", "{name}: {listed}");
        host.bowline(["rm", "--exited"]).assert_code(0);
        host.bowline(["adopt", "--all"]);
        host.bowline(["rm", "-f", task.id()]).assert_code(0);
        host.assert_nothing_left();
    }
}

/// Creates files until the disk has no inode left. Returns them.
fn fill(folder: &Path) -> Vec<PathBuf> {
    (0..1000).map(|n| folder.join(format!(".fill-{n}"))).take_while(|path| fs::write(path, "").is_ok()).collect()
}

#[test]
fn a_shim_takes_over_where_the_disk_has_no_inode_left() {
    let host = Host::new();
    let state = host.tmpfs("state", "nr_inodes=60,mode=0700");
    let at = format!("--state={}", state.path().display());
    let id = host.new_id();
    let script = "until [ -e /tmp/end ]; do sleep 0.1; done";
    host.bowline(["start", &at, "--name", &id, "--", "/bin/sh", "-c", script]).assert_code(0);
    let kill_shim = || {
        let shim = host.bowline(["inspect", &at, &id]).assert_code(0).json()["shim_pid"].as_i64().expect("a pid");
        let shim = Pid::from_raw(i32::try_from(shim).expect("a pid")).expect("a pid");
        kill_process(shim, Signal::KILL).expect("it lives");
        eventually("the shim is gone", || (!process_exists(shim.as_raw_nonzero().get())).then_some(()));
    };
    kill_shim();
    let full = fill(state.path());
    assert!(full.len() < 1000, "there is a limit");
    host.bowline(["adopt", &at, &id]).assert_code(0);
    kill_shim();
    let wait = host.spawn(["wait", &at, &id]);
    let socket = state.path().join(&id).join("shim.sock");
    eventually("a new shim answers", || UnixStream::connect(&socket).ok());
    // An exec has files of its own.
    full.iter().for_each(|path| fs::remove_file(path).expect("ours"));
    host.bowline(["exec", &at, &id, "--", "/bin/sh", "-c", "echo >/tmp/end"]).assert_code(0);
    assert_eq!(wait.finish().code, Some(0));
    host.bowline(["rm", &at, &id]).assert_code(0);
    drop(state);
}

/// Runs `bowline` where reading a task's file fails with EIO, as on a bad disk: the memory of a process has none at 0.
fn with_bad_block<const N: usize>(host: &Host, file: &Path, args: [&str; N]) -> Ran {
    let mut command = host.command("unshare");
    let script = "mount --bind /proc/$$/mem \"$0\" && \"$@\"";
    command.args(["--mount", "--propagation=private", "/bin/sh", "-c", script]).arg(file);
    command.arg(binary("bowline")).args(args);
    host.execute(command)
}

#[test]
fn a_file_that_the_disk_does_not_give_is_a_row_and_no_obstacle() {
    for name in ["exit.json", "task.json"] {
        let host = Host::new();
        let [bad, other] = [(); 2].map(|()| host.task("echo ready; exec sleep 1000").start());
        [&bad, &other].iter().for_each(|task| task.wait_for_line("ready"));
        if name == "exit.json" {
            bad.bowline("stop", []).assert_code(0);
            eventually("its report is there", || bad.file(name).exists().then_some(()));
        }
        let at = bad.file(name);
        let listed = with_bad_block(&host, &at, ["ps", "--json"]);
        assert_eq!(row(&listed, &other)["status"], "running", "{name}: {listed}");
        let its = row(&listed, &bad);
        assert_eq!(its["status"], "damaged", "{name}: {listed}");
        assert!(its["damage"].as_str().is_some_and(|why| why.contains(name) && why.contains("os error 5")), "{listed}");
        for args in [["rm", "--exited"], ["top", "--once"], ["sandbox", "ls"], ["gc", "--dry-run"]] {
            with_bad_block(&host, &at, args).assert_code(0);
        }
        if name == "task.json" {
            with_bad_block(&host, &at, ["exec", bad.id(), "echo", "well"]).assert_says("well");
            with_bad_block(&host, &at, ["stop", bad.id()]);
            eventually("it has ended", || (bad.status() == "exited").then_some(()));
        }
        host.bowline(["rm", bad.id()]).assert_code(0);
        other.end();
        host.assert_nothing_left();
    }
}

/// What may be in the place of a task's file.
const INSTEAD: [fn(&Path); 5] = [
    |path| fs::create_dir(path).expect("ours"),
    |path| fs::write(path, "").expect("ours"),
    |path| fs::write(path, "{\"version\":1,").expect("ours"),
    |path| fs::write(path, [0xff; 5000]).expect("ours"),
    |path| std::os::unix::fs::symlink("/proc/self/mem", path).expect("ours"),
];

/// Also as a file becomes what it is, and as a shim is killed.
#[test]
fn storm_a_broken_file_of_one_task_hides_none_of_the_others() {
    let names = ["exit.json", "task.json", "lock", "status", "shim.log", "shim.sock"];
    storm(10, |round| {
        let (name, instead) = (names[round % names.len()], INSTEAD[round / names.len() % INSTEAD.len()]);
        let is_killed = round % 2 == 1;
        let host = Host::new();
        let [bad, other] = [(); 2].map(|()| host.task("echo ready; exec sleep 1000").start());
        [&bad, &other].iter().for_each(|task| task.wait_for_line("ready"));
        let looks: Vec<_> = (0..3).map(|_| host.spawn(["ps", "--json"])).collect();
        let at = bad.file(name);
        if is_killed {
            bad.kill_shim(bad.shim_pid());
        }
        let aside = host.work().join("aside");
        let was_there = fs::rename(&at, &aside).is_ok();
        instead(&at);
        let after = host.bowline(["ps", "--json"]);
        for listed in looks.into_iter().map(Process::finish).chain([after]) {
            assert_eq!(row(&listed, &other)["status"], "running", "{name}: {listed}");
            row(&listed, &bad);
        }
        host.bowline(["rm", "--exited"]).assert_code(0);
        other.exec("echo well").assert_says("well");
        let _ = fs::remove_dir(&at).or_else(|_| fs::remove_file(&at));
        if was_there {
            fs::rename(&aside, &at).expect("ours");
        }
        bad.end();
        other.end();
        host.assert_nothing_left();
    });
}
