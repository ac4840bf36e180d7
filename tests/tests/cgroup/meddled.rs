//! A task whose cgroup somebody else has frozen, emptied or removed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{
    Elsewhere, Task, eventually, hierarchies, hierarchy, is_frozen, only_v2, process_exists, set_frozen,
};
use rustix::process::{Pid, Signal, kill_process};

const POLITE: &str = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done";

/// Moves all processes of the task away, as root may.
fn empty(task: &Task<'_>, elsewhere: &Elsewhere) {
    eventually("its cgroup is empty", || {
        elsewhere.take(&task.all_processes());
        task.all_processes().is_empty().then_some(())
    });
}

/// Removes its cgroup in every hierarchy.
fn remove(task: &Task<'_>) {
    let path = task.inspect()["cgroup"].as_str().expect("a path")[1..].to_owned();
    for (_, mount) in hierarchies() {
        let folder = mount.join(&path);
        eventually(format_args!("{} is removed", folder.display()), || {
            (!folder.exists() || fs::remove_dir(&folder).is_ok()).then_some(())
        });
    }
}

#[test]
fn a_frozen_task_hears_a_stop() {
    let host = Host::new();
    let task = host.task(POLITE).start();
    task.wait_for_line("ready");
    task.freeze();
    task.stop(["--grace=50s"]).assert_code(3);
}

#[test]
fn a_task_frozen_by_others_is_paused_until_it_is_resumed() {
    let host = Host::new();
    let task = host.task("sleep 1000").start();
    task.freeze();
    assert_eq!(task.status(), "paused");
    task.bowline("exec", ["--", "true"]).assert_refused(125, &[task.id(), "frozen"]);
    task.bowline("resume", []).assert_code(0);
    assert_eq!(task.status(), "running");
    task.exec("exit 7").assert_code(7);
    task.end();
}

#[test]
fn a_stranger_in_a_sandbox_is_named_and_ends_by_force() {
    // There the kernel lets nobody into a cgroup whose children have controllers.
    if only_v2() {
        return;
    }
    let host = Host::new();
    for (controller, is_dead) in [("memory", false), ("freezer", false), ("memory", true), ("freezer", true)] {
        let sandbox = host.sandbox().create();
        let task = sandbox.task("sleep 1000").start();
        sandbox.lose(&task);
        let mut sleep = host.command("sleep");
        sleep.arg("1000");
        let mut stranger = host.spawn_command(sleep);
        let path = sandbox.inspect()["cgroup"].as_str().expect("a path").to_owned();
        let procs = hierarchy(controller).join(&path[1..]).join("cgroup.procs");
        fs::write(procs, stranger.pid().to_string()).expect("root may");
        if is_dead {
            sandbox.kill_shim();
        }
        let named = format!("process {} (sleep)", stranger.pid());
        for _ in 0..2 {
            sandbox.bowline("rm", []).assert_refused(125, &[sandbox.id(), &path, &named]);
        }
        assert!(stranger.is_running());
        if !is_dead {
            sandbox.task("echo joined").run().assert_says("joined");
        }
        sandbox.bowline("rm", ["-f"]).assert_code(0);
        assert_eq!(stranger.finish().code, None, "{controller}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn processes_of_one_hierarchy_alone_are_counted_and_killed() {
    // There is one hierarchy alone.
    if only_v2() {
        return;
    }
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & sleep 1001 & echo ready; wait']\ninit = false\n\
                namespaces.pid = 'host'";
    for controller in ["memory", "freezer"] {
        let task = host.described(toml).start();
        task.wait_for_line("ready");
        let (all, elsewhere) = (task.all_processes(), host.elsewhere("aside"));
        let moved = *all.last().expect("it has some");
        for (names, mount) in
            hierarchies().into_iter().filter(|(names, _)| !names.split(',').any(|it| it == controller))
        {
            let procs = mount.join(&elsewhere.path()[1..]).join("cgroup.procs");
            fs::write(procs, moved.to_string()).unwrap_or_else(|error| panic!("{names}: {error}"));
        }
        kill_process(Pid::from_raw(task.pid()).expect("a pid"), Signal::KILL).expect("it lives");
        let report = task.wait();
        assert_eq!(report.number("processes_killed"), 2, "{controller}: {report:?}");
        assert!(!process_exists(moved));
        elsewhere.remove();
    }
}

#[test]
fn a_paused_task_that_somebody_else_thaws_runs() {
    let host = Host::new();
    let task = host.task("sleep 1000").start();
    task.bowline("pause", []).assert_code(0);
    task.freeze();
    assert_eq!(task.status(), "paused");
    task.thaw();
    task.exec("echo in").assert_says("in");
    task.bowline("resume", []).assert_refused(125, &["running"]);
    task.bowline("pause", []).assert_code(0);
    task.thaw();
    assert_eq!(task.status(), "running");
    task.bowline("pause", []).assert_code(0);
    task.thaw();
    // Once more, without a look in between.
    task.bowline("pause", []).assert_code(0);
    assert_eq!(task.status(), "paused");
    task.bowline("exec", ["--", "true"]).assert_refused(125, &["paused"]);
    task.bowline("resume", []).assert_code(0);
    assert_eq!(task.status(), "running");
    let told = host.bowline(["events", "--json", task.id()]);
    let told = ["paused", "resumed"].map(|name| told.out().matches(&format!("\"event\":\"{name}\"")).count());
    assert_eq!(told, [4, 4]);
    task.end();
}

#[test]
fn a_frozen_task_can_be_killed() {
    let host = Host::new();
    for toml in ["", "namespaces.pid = 'host'"] {
        let toml = format!("command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\n{toml}");
        let task = host.described(&toml).start();
        task.wait_for_line("ready");
        task.freeze();
        task.bowline("kill", ["--signal=KILL"]).assert_code(0);
        task.wait().assert_killed_by("KILL");
    }
}

#[test]
fn a_frozen_task_can_be_removed_by_force() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.freeze();
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_frozen_task_is_still_measured() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.freeze();
    let stats = task.stats();
    assert_eq!(stats["pids"]["current"], 2, "the command and its init: {stats}");
    assert!(stats["memory"]["usage_bytes"].is_u64(), "{stats}");
    task.end();
}

#[test]
fn a_deadline_holds_in_a_frozen_task_and_its_exec_never_runs() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    // One group is there already, one is new.
    task.exec_with(["--timeout=50s"], "true").assert_code(0);
    task.freeze();
    for _ in 0..2 {
        let ran = task.exec_with(["--timeout=500ms", "--json"], "echo it runs >&2; exec sleep 1000");
        ran.assert_code(124);
        assert_eq!((&ran.json()["killed"], &ran.json()["stderr"]), (&"cgroup".into(), &"".into()), "{ran}");
    }
    task.thaw();
    eventually("what was killed is gone", || (task.processes() == [task.program_pid()]).then_some(()));
    task.exec_with(["--timeout=50s"], "echo alive").assert_says("alive");
    task.end();
}

#[test]
fn a_process_in_a_non_utf_8_cgroup_ends_with_the_task() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'";
    for freezes in [false, true] {
        let task = host.described(toml).start();
        task.wait_for_line("ready");
        let child = task.processes().into_iter().find(|pid| *pid != task.program_pid()).expect("the sleep");
        for (names, _) in hierarchies() {
            let hidden = task.cgroup(names.split(',').next().expect("a name")).join(OsStr::from_bytes(b"caf\xe9"));
            fs::create_dir(&hidden).expect("root may");
            // Those of a cpuset begin without any.
            for set in ["cpuset.cpus", "cpuset.mems"].map(|set| (hidden.with_file_name(set), hidden.join(set))) {
                let _ = fs::copy(set.0, set.1);
            }
            fs::write(hidden.join("cgroup.procs"), child.to_string()).expect("it lives");
            if freezes {
                // As a task may that has the rights to its cgroup.
                let _ = fs::write(hidden.join("freezer.state"), "FROZEN");
            }
        }
        task.bowline("kill", ["--signal=KILL"]).assert_code(0);
        task.wait().assert_killed_by("KILL");
        assert!(!process_exists(child));
    }
}

/// Its folder in the hierarchy by which bowline finds the processes of a task on v1.
fn freezer_of(elsewhere: &Elsewhere) -> PathBuf {
    hierarchy("freezer").join(&elsewhere.path()[1..])
}

#[test]
fn a_process_moved_out_of_one_hierarchy_ends_with_the_task() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'";
    for frozen in [false, true] {
        let task = host.described(toml).start();
        task.wait_for_line("ready");
        let child = task.processes().into_iter().find(|pid| *pid != task.program_pid()).expect("the sleep");
        let freezer = freezer_of(&elsewhere);
        fs::write(freezer.join("cgroup.procs"), child.to_string()).expect("it lives");
        set_frozen(&freezer, frozen);
        task.bowline("kill", ["--signal=KILL"]).assert_code(0);
        task.wait().assert_killed_by("KILL");
        eventually("it has ended", || (!process_exists(child)).then_some(()));
        set_frozen(&freezer, false);
    }
    elsewhere.remove();
}

#[test]
fn a_task_moved_into_a_frozen_cgroup_can_be_stopped() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    let freezer = freezer_of(&elsewhere);
    for (grace, code) in [("--grace=50s", 3), ("--grace=0", 137)] {
        for toml in ["", "namespaces.pid = 'host'"] {
            let task = host.described(&format!("command = 'sh'\nargs = ['-c', \"{POLITE}\"]\n{toml}")).start();
            task.wait_for_line("ready");
            eventually("all are elsewhere", || {
                for pid in task.all_processes() {
                    let _ = fs::write(freezer.join("cgroup.procs"), pid.to_string());
                }
                task.all_processes().is_empty().then_some(())
            });
            set_frozen(&freezer, true);
            task.stop([grace]).assert_code(code);
            set_frozen(&freezer, false);
        }
    }
    elsewhere.remove();
}

#[test]
fn a_pause_names_what_was_moved_out_of_its_reach() {
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    // At the root too, which cannot be frozen.
    for at in [freezer_of(&elsewhere), hierarchy("freezer")] {
        let task = host.described("command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']").start();
        task.wait_for_line("ready");
        let child = task.processes().into_iter().find(|pid| *pid != task.program_pid()).expect("the sleep");
        // On v2 nothing but a known process tells that it is the task's.
        let moved = if only_v2() { task.program_pid() } else { child };
        fs::write(at.join("cgroup.procs"), moved.to_string()).expect("it lives");
        let folder = task.cgroup("freezer");
        task.bowline("pause", []).assert_refused(125, &[&format!("process {moved} ("), &folder.display().to_string()]);
        assert!(!is_frozen(&folder) && task.status() == "running");
        task.exec("echo alive").assert_says("alive");
        fs::write(folder.join("cgroup.procs"), moved.to_string()).expect("it lives");
        task.bowline("pause", []).assert_code(0);
        assert!(is_frozen(&folder) && task.status() == "paused");
        task.bowline("resume", []).assert_code(0);
        task.bowline("kill", ["--signal=KILL"]).assert_code(0);
        task.wait().assert_killed_by("KILL");
    }
    elsewhere.remove();
}

#[test]
fn a_stop_names_a_frozen_cgroup_above_and_waits_for_its_thaw() {
    let host = Host::new();
    let above = host.elsewhere("above");
    let freezer = freezer_of(&above);
    for (grace, is_thawed, code) in [("--grace=1h", true, 3), ("--grace=1s", false, 137)] {
        let toml = format!("command = 'sh'\nargs = ['-c', \"{POLITE}\"]\ncgroup = '{}/t'", above.path());
        let task = host.described(&toml).start();
        task.wait_for_line("ready");
        set_frozen(&freezer, true);
        let stop = host.spawn(["stop", grace, task.id()]);
        stop.wait_for_err(&freezer.display().to_string());
        set_frozen(&freezer, !is_thawed);
        stop.finish().assert_code(0);
        task.wait().assert_code(code);
        set_frozen(&freezer, false);
        // One that is not frozen is not said to be.
        let task = host.described(&toml).start();
        task.wait_for_line("ready");
        let ran = task.bowline("stop", ["--grace=50s"]);
        assert_eq!((ran.code, ran.err()), (Some(0), String::new()));
    }
    above.remove();
}

#[test]
fn a_task_whose_cgroup_was_emptied_is_stopped_all_the_same() {
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    for (grace, code) in [("--grace=50s", 3), ("--grace=0", 137)] {
        let task = host.task(POLITE).start();
        task.wait_for_line("ready");
        empty(&task, &elsewhere);
        let stats = task.stats();
        assert_eq!(stats["pids"]["current"], 0, "{stats}");
        // Its limits are the task's still.
        task.exec("echo here").assert_says("here");
        task.exec_with(["--timeout=50s"], "exit 4").assert_code(4);
        task.stop([grace]).assert_code(code);
    }
    elsewhere.remove();
}

#[test]
fn a_task_whose_cgroup_was_removed_says_so_and_can_be_stopped() {
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    for (grace, code) in [("--grace=50s", 3), ("--grace=0", 137)] {
        let task = host.task(POLITE).start();
        task.wait_for_line("ready");
        let path = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
        empty(&task, &elsewhere);
        remove(&task);
        let stats = task.stats();
        for (group, field) in [("cpu", "usage_usec"), ("memory", "usage_bytes"), ("pids", "current")] {
            assert!(stats[group][field].is_null(), "{group}.{field} in {stats}");
        }
        task.bowline("stats", []).assert_code(0);
        task.bowline("exec", ["--", "true"]).assert_refused(125, &[&path]);
        task.bowline("exec", ["--timeout=50s", "--", "true"]).assert_refused(125, &[&path]);
        task.bowline("pause", []).assert_refused(125, &[&path]);
        assert_eq!(task.status(), "running");
        let report = task.stop([grace]);
        report.assert_code(code);
        // CPU time is known from init, where that was reaped before the report.
        assert!(report["memory_peak_bytes"].is_null(), "{report:?}");
    }
    elsewhere.remove();
}
