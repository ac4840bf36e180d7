//! A sandbox's life: who is a member, who is refused, and that whatever happens to
//! shim, members or cgroups, nothing is left.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{Elsewhere, Sandbox, Task, eventually, fds_of, hierarchies, process_exists, status_lines};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const IDLE: &str = "exec sleep 1000";

/// The folders of its joint cgroup.
fn folders(sandbox: &Sandbox<'_>) -> Vec<PathBuf> {
    let path = sandbox.inspect()["cgroup"].as_str().expect("a path")[1..].to_owned();
    hierarchies().into_iter().map(|(_, mount)| mount.join(&path)).collect()
}

/// It is no member any more, and all that this asks for is done.
#[track_caller]
fn wait_until_left(sandbox: &Sandbox<'_>, task: &Task<'_>) {
    eventually(format_args!("{} is no member", task.id()), || {
        let members = sandbox.inspect()["members"].clone();
        (!members.as_array().expect("a list").contains(&task.id().into())).then_some(())
    });
}

#[test]
fn a_member_is_a_task_to_every_command() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").create();
    let task = sandbox.task("trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    assert_eq!(sandbox.inspect()["members"], json!([task.id()]));
    let inspected = task.inspect();
    assert_eq!((&inspected["status"], &inspected["sandbox"]), (&json!("running"), &json!(sandbox.id())));
    assert_eq!(inspected["shim_pid"], sandbox.shim_pid());
    let listed = host.bowline(["ps", "--quiet", "--filter", &format!("sandbox={}", sandbox.id())]);
    listed.assert_says(task.id());
    task.exec("echo inside").assert_says("inside");
    task.exec_with(["--timeout=50s"], "exit 3").assert_code(3);
    task.bowline("logs", []).assert_says("ready");
    task.bowline("pause", []).assert_code(0);
    assert_eq!(task.status(), "paused");
    task.bowline("resume", []).assert_code(0);
    assert!(task.stats()["memory"]["usage_bytes"].as_u64() > Some(0));
    task.bowline("rm", []).assert_refused(125, &[task.id(), "not ended"]);
    task.stop(["--grace=50s"]).assert_code(5);
    assert_eq!(task.status(), "exited");
    task.bowline("rm", []).assert_code(0);
    assert_eq!((&sandbox.inspect()["tasks"], &sandbox.inspect()["members"]), (&json!([]), &json!([])));
    // Its id is free again, for this shim too.
    let forced = sandbox.task(IDLE).named(task.id()).start();
    forced.bowline("rm", ["-f"]).assert_code(0);
    sandbox.task("exit 4").run().assert_code(4);
    sandbox.rm([]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn tasks_and_sandboxes_share_one_space_of_ids() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = host.task(IDLE).start();
    host.sandbox().named(task.id()).try_create().assert_refused(125, &[task.id(), "exists"]);
    host.sandbox().named(sandbox.id()).try_create().assert_refused(125, &[sandbox.id(), "exists"]);
    for build in [host.task("true"), sandbox.task("true")] {
        build.named(sandbox.id()).try_start().assert_refused(125, &[sandbox.id(), "exists"]);
    }
    sandbox.task("true").named(task.id()).assert_refused_as_taken();
    assert_eq!((task.status().as_str(), sandbox.status().as_str()), ("running", "ready"));
    let member = sandbox.task(IDLE).start();
    host.task("true").named(member.id()).assert_refused_as_taken();
    task.end();
    member.end();
}

#[test]
fn each_is_told_from_the_other() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let task = host.task(IDLE).start();
    let told = |ran: bowline_tests::harness::Ran, id: &str, hint: &str| {
        ran.assert_refused(125, &[id]);
        assert!(ran.err().contains(hint), "{ran}");
    };
    for verb in ["inspect", "stats", "stop", "wait", "logs", "rm"] {
        told(host.bowline([verb, sandbox.id()]), "is a sandbox", "bowline sandbox inspect");
    }
    told(host.bowline(["exec", sandbox.id(), "--", "true"]), "is a sandbox", "bowline sandbox inspect");
    for verb in ["inspect", "stats", "rm"] {
        told(host.bowline(["sandbox", verb, task.id()]), "is a task", "bowline inspect");
    }
    told(host.bowline(["sandbox", "update", task.id(), "--pids=9"]), "is a task", "bowline inspect");
    let into_a_task = host.task("true").flag(format!("--sandbox={}", task.id()));
    told(into_a_task.try_start(), "is a task", "bowline inspect");
    let unknown = host.new_id();
    for verb in ["inspect", "stats", "rm"] {
        told(host.bowline(["sandbox", verb, &unknown]), &unknown, "bowline sandbox ls");
    }
    told(host.task("true").flag(format!("--sandbox={unknown}")).try_start(), &unknown, "bowline sandbox ls");
    host.bowline(["sandbox", "rm", "-f", &unknown]).assert_code(0);
    host.bowline(["sandbox", "ls", "--quiet"]).assert_says(sandbox.id());
    assert_eq!(host.bowline(["ps", "--quiet"]).out(), task.id(), "ps lists tasks");
    task.end();
}

#[test]
fn a_sandbox_with_running_members_is_removed_by_force_alone() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let running = sandbox.task("trap '' TERM; echo ready; while :; do sleep 1; done").start();
    running.wait_for_line("ready");
    let ended = sandbox.task("exit 3").start();
    ended.wait().assert_code(3);
    let ran = sandbox.bowline("rm", []);
    ran.assert_refused(125, &[sandbox.id(), running.id()]);
    assert!(!ran.err().contains(ended.id()) && ran.err().contains("rm -f"), "{ran}");
    assert_eq!((running.status().as_str(), sandbox.status().as_str()), ("running", "ready"));
    sandbox.task("true").run().assert_code(0);
    let waiting = host.spawn(["wait", running.id()]);
    eventually("it waits", || (sandbox_ends(&host, &sandbox) >= 2).then_some(()));
    sandbox.rm(["-f"]);
    assert!(!running.file("").exists() && !ended.file("").exists(), "members' folders go along");
    waiting.finish().assert_code(0);
    host.assert_nothing_left_without_rm();
}

/// How many connections its shim has, and one.
fn sandbox_ends(host: &Host, sandbox: &Sandbox<'_>) -> usize {
    bowline_tests::harness::unix_sockets(&host.state().join(sandbox.id()).join("shim"))
}

#[test]
fn an_id_is_free_again_once_its_sandbox_is_gone() {
    let host = Host::new();
    let id = host.new_id();
    for _ in 0..3 {
        let sandbox = host.sandbox().named(&id).flag("--pids=50").flag("--share-pid").create();
        sandbox.task("true").run().assert_code(0);
        sandbox.rm([]);
    }
    host.task("echo free").named(&id).run().assert_says("free");
}

#[test]
fn a_sandbox_that_is_removed_while_members_start_leaves_nothing() {
    let host = Host::new();
    for round in 0..8 {
        let sandbox = host.sandbox().create();
        let first = (round % 2 == 0).then(|| sandbox.task(IDLE).start());
        let starts: Vec<_> = (0..4).map(|_| sandbox.task(IDLE).spawn_start()).collect();
        let removals: Vec<_> = (0..2).map(|_| host.spawn(["sandbox", "rm", "-f", sandbox.id()])).collect();
        for (task, start) in starts {
            let ran = start.finish();
            // Started and killed, refused, or broken off by the end of the shim.
            assert!(ran.code == Some(0) || ran.err().starts_with("bowline: "), "{}: {ran}", task.id());
        }
        for removal in removals {
            let ran = removal.finish();
            assert!(ran.code == Some(0) || ran.err().starts_with("bowline: "), "{ran}");
        }
        // Whoever was too late may have left a folder in use; nobody uses it now.
        host.bowline(["sandbox", "rm", "-f", sandbox.id()]).assert_code(0);
        assert!(first.is_none_or(|task| !task.file("").exists()));
    }
}

#[test]
fn a_sandbox_that_lost_its_cgroup_refuses_members_but_not_rm() {
    for everywhere in [true, false] {
        let host = Host::new();
        let sandbox = host.sandbox().flag("--pids=50").create();
        let folders = folders(&sandbox);
        let some = if everywhere { folders.len() } else { 1 };
        folders.iter().take(some).for_each(|folder| fs::remove_dir(folder).expect("it is empty"));
        let build = sandbox.task("true");
        let id = build.id().to_owned();
        let ran = build.try_start();
        ran.assert_refused(125, &["/bowline/", sandbox.id(), "removed by somebody else"]);
        assert!(ran.err().contains("bowline sandbox rm"), "{ran}");
        assert!(!host.state().join(id).exists(), "nothing is made of it");
        assert_eq!(sandbox.status(), "ready");
        sandbox.bowline("stats", []).assert_code(0);
        if everywhere {
            sandbox.bowline("update", ["--pids=20"]).assert_code(125);
            assert_eq!(sandbox.inspect()["sandbox"]["pids"], 50);
        }
        sandbox.rm([]);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn a_sandbox_that_somebody_has_frozen_can_be_removed_by_force() {
    for dead in [false, true] {
        let host = Host::new();
        let sandbox = host.sandbox().create();
        let task = sandbox.described("command = 'sleep'\nargs = ['1000']\nnamespaces.pid = 'host'").start();
        sandbox.freeze();
        assert_eq!(task.status(), "running");
        if dead {
            sandbox.kill_shim();
        }
        sandbox.rm(["-f"]);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn one_of_many_who_make_the_same_sandbox_has_it() {
    let host = Host::new();
    let id = host.new_id();
    let begun: Vec<_> = (0..6).map(|_| host.sandbox().named(&id).flag("--network=none").spawn()).collect();
    let ended: Vec<_> = begun.into_iter().map(bowline_tests::harness::Process::finish).collect();
    let (made, refused): (Vec<_>, Vec<_>) = ended.iter().partition(|ran| ran.code == Some(0));
    assert_eq!(made.len(), 1, "{ended:?}");
    for ran in refused {
        ran.assert_refused(125, &[&id, "exists"]);
    }
    host.adopt_sandbox(&id).task("true").run().assert_code(0);
}

#[test]
fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let host = Host::new();
    for (toml, part) in [
        ("network.mode = '/no/such/namespace'", "/no/such/namespace"),
        ("share_pid = true\nnetwork.sysctls = {'net.no.such' = '1'}\nnetwork.mode = 'none'", "net.no.such"),
        ("cpu.cpuset = '4000'", "cpuset"),
    ] {
        host.sandbox().toml(toml).assert_refused(125, &[part]);
    }
}

/// What comes about while a task is launched, in this order: a file of its folder.
const MOMENTS: [&str; 6] = ["", "lock", "shim.sock", "rootfs", "task.json", "log.json"];

#[test]
fn who_starts_a_task_may_be_killed_at_any_moment() {
    for in_sandbox in [true, false] {
        let host = Host::new();
        let sandbox = host.sandbox().create();
        for moment in MOMENTS {
            let build = if in_sandbox { sandbox.task(IDLE) } else { host.task(IDLE) };
            let (task, start) = build.spawn_start();
            let file = task.file(moment);
            eventually(file.display(), || file.exists().then_some(()));
            start.signal(Signal::KILL);
            start.finish();
            eventually("its folder is nobody's, or its task's", || {
                let ran = host.bowline(["rm", "-f", task.id()]);
                (ran.code == Some(0) && !task.file("").exists()).then_some(())
            });
        }
        sandbox.task("true").run().assert_code(0);
        sandbox.rm(["-f"]);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn leftovers_of_a_killed_starter_of_a_member_are_removed() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    for flags in [&[][..], &["-f"]] {
        // A folder without a lock holder, unknown to the sandbox's shim.
        let id = host.new_id();
        let folder = host.state().join(&id);
        fs::create_dir(&folder).expect("the test's own");
        fs::write(folder.join("lock"), "").expect("the test's own");
        symlink(format!("../{}/shim.sock", sandbox.id()), folder.join("shim.sock")).expect("the test's own");
        assert_eq!(host.bowline(["inspect", &id]).json()["status"], "dead");
        host.bowline(["rm"].iter().chain(flags).copied().chain([id.as_str()])).assert_code(0);
        assert!(!folder.exists());
    }
    sandbox.rm([]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_is_being_launched_can_be_removed_by_force() {
    for in_sandbox in [true, false] {
        let host = Host::new();
        let sandbox = host.sandbox().create();
        for moment in MOMENTS {
            let build = if in_sandbox { sandbox.task(IDLE) } else { host.task(IDLE) };
            let (task, start) = build.spawn_start();
            let file = task.file(moment);
            eventually(file.display(), || file.exists().then_some(()));
            eventually("it is gone, or told to be in use", || {
                let ran = host.bowline(["rm", "-f", task.id()]);
                assert!(ran.code == Some(0) || ran.err().contains("try again"), "{ran}");
                (ran.code == Some(0)).then_some(())
            });
            start.finish();
            assert!(!task.file("").exists(), "{moment}");
        }
        sandbox.rm([]);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn rm_cleans_up_after_a_shim_that_dies_as_members_come_and_go() {
    let host = Host::new();
    for moment in MOMENTS {
        let sandbox = host.sandbox().flag("--share-pid").create();
        let ends = sandbox.task(IDLE).start();
        let starts: Vec<_> = (0..3).map(|_| sandbox.task(IDLE).spawn_start()).collect();
        let stop = host.spawn(["stop", "--grace=0", ends.id()]);
        let file = starts[0].0.file(moment);
        eventually(file.display(), || file.exists().then_some(()));
        sandbox.crash_shim();
        for (_, start) in starts {
            start.finish();
        }
        stop.finish();
        // Whoever started or stopped one may have had a new shim take the sandbox over.
        sandbox.rm(["-f"]);
    }
    host.assert_nothing_left_without_rm();
}

/// Moves all processes of the task away, as root may, and removes its cgroup.
fn empty_and_remove(task: &Task<'_>, elsewhere: &Elsewhere) {
    let path = task.inspect()["cgroup"].as_str().expect("a path")[1..].to_owned();
    eventually("its cgroup is empty", || {
        elsewhere.take(&task.all_processes());
        task.all_processes().is_empty().then_some(())
    });
    for (_, mount) in hierarchies() {
        let folder = mount.join(&path);
        eventually(format_args!("{} is removed", folder.display()), || {
            (!folder.exists() || fs::remove_dir(&folder).is_ok()).then_some(())
        });
    }
}

#[test]
fn a_member_whose_cgroup_somebody_has_removed_ends_as_any_other() {
    let host = Host::new();
    let elsewhere = host.elsewhere("elsewhere");
    let sandbox = host.sandbox().flag("--pids=50").create();
    let other = sandbox.task(IDLE).start();
    let task = sandbox.task("trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done").start();
    task.wait_for_line("ready");
    empty_and_remove(&task, &elsewhere);
    task.bowline("exec", ["--", "true"]).assert_refused(125, &[task.id()]);
    task.stop(["--grace=50s"]).assert_code(3);
    wait_until_left(&sandbox, &task);
    assert_eq!(sandbox.inspect()["members"], json!([other.id()]));
    sandbox.task("true").run().assert_code(0);
    other.end();
    sandbox.rm([]);
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

/// A sandbox whose two members have daemons, in the host's pid namespace or a
/// shared one, and whose shim has died.
fn with_a_dead_shim<'h>(host: &'h Host, flags: &[&str]) -> (Sandbox<'h>, Task<'h>, Task<'h>) {
    let build =
        flags.iter().fold(host.sandbox().flag("--pids=50").flag("--network=none"), |build, flag| build.flag(*flag));
    let sandbox = build.create();
    let own = if flags.is_empty() { "namespaces.pid = 'host'" } else { "" };
    let toml = format!("command = 'sh'\nargs = ['-c', 'setsid sleep 1000 & echo ready; exec sleep 1000']\n{own}");
    let start = || {
        let task = sandbox.described(&toml).start();
        task.wait_for_line("ready");
        eventually("two processes", || (task.processes().len() == 2).then_some(()));
        task
    };
    let (one, two) = (start(), start());
    sandbox.kill_shim();
    (sandbox, one, two)
}

#[test]
fn a_shim_that_died_is_told_of_and_rm_undoes_everything() {
    for flags in [&["--share-pid"][..], &[]] {
        // A refusal leaves a new shim.
        for refused in [false, true] {
            let host = Host::new();
            let (sandbox, one, two) = with_a_dead_shim(&host, flags);
            let pids: Vec<i32> = one.all_processes().into_iter().chain(two.all_processes()).collect();
            assert_eq!((sandbox.status().as_str(), one.status().as_str()), ("dead", "dead"));
            let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
            assert!(listed.as_array().is_some_and(|all| all.iter().all(|task| task["status"] == "dead")), "{listed}");
            assert!(host.bowline(["sandbox", "ls"]).out().contains("dead"));
            if refused {
                sandbox.bowline("rm", []).assert_refused(125, &[one.id(), two.id()]);
            }
            sandbox.bowline("rm", ["-f"]).assert_code(0);
            assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when rm returns");
            host.assert_nothing_left_without_rm();
        }
    }
}

#[test]
fn a_member_of_a_dead_shim_is_removed_and_the_others_stay() {
    let host = Host::new();
    let (sandbox, one, two) = with_a_dead_shim(&host, &[]);
    let (ones, twos) = (one.all_processes(), two.all_processes());
    one.bowline("rm", ["-f"]).assert_code(0);
    assert!(!ones.iter().any(|pid| process_exists(*pid)));
    assert!(!one.file("").exists() && twos.iter().all(|pid| process_exists(*pid)), "the other lives on");
    assert_eq!((sandbox.status().as_str(), two.status().as_str()), ("dead", "dead"));
    // Without force it is not ended, and gets a new shim, with the sandbox.
    two.bowline("rm", []).assert_refused(125, &[two.id(), "has not ended"]);
    assert_eq!((sandbox.status().as_str(), two.status().as_str()), ("ready", "running"));
    assert!(twos.iter().all(|pid| process_exists(*pid)));
    two.bowline("rm", ["-f"]).assert_code(0);
    assert!(!twos.iter().any(|pid| process_exists(*pid)));
    sandbox.rm([]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_shim_asked_to_leave_ends_its_members_and_cleans_up() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").flag("--network=none").create();
    let polite = "trap 'echo bye; exit 6' TERM; echo ready; while :; do sleep 0.1; done";
    let tasks: Vec<_> = (0..3).map(|_| sandbox.task(polite).start()).collect();
    tasks.iter().for_each(|task| task.wait_for_line("ready"));
    let (folders, overhead, pause) = (folders(&sandbox), sandbox.overhead("memory"), sandbox.pause_pid());
    let shim = sandbox.shim_pid();
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::TERM).expect("the shim lives");
    for task in &tasks {
        task.wait().assert_code(6);
        assert!(task.said("stdout").ends_with("bye\n"));
    }
    eventually("the shim has gone", || (!process_exists(shim)).then_some(()));
    assert!(!process_exists(pause) && !overhead.exists(), "taken down");
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(host.prefix()), "{mounts}");
    assert_eq!(tasks[0].status(), "exited");
}

#[test]
fn a_shim_that_is_asked_to_leave_without_members_takes_all_down() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let shim = sandbox.shim_pid();
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::TERM).expect("the shim lives");
    eventually("the shim has gone", || (!process_exists(shim)).then_some(()));
    sandbox.task("true").assert_refused(125, &[sandbox.id()]);
}

#[test]
fn thirty_members_at_once_have_one_shim_with_one_thread() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--pids=500").create();
    let shim = sandbox.shim_pid();
    let begun: Vec<_> = (0..30).map(|n| sandbox.task(&format!("echo {n}; {IDLE}")).spawn_start()).collect();
    let tasks: Vec<_> = begun.into_iter().map(|(task, start)| (start.finish().assert_code(0), task).1).collect();
    assert_eq!(sandbox.inspect()["members"].as_array().map(Vec::len), Some(30));
    let shims = |task: &Task<'_>| task.shim_pid();
    assert!(tasks.iter().all(|task| shims(task) == shim), "one shim");
    assert_eq!(status_lines(shim, &["Threads"]), "Threads:\t1");
    for (n, task) in tasks.iter().enumerate() {
        task.wait_for_line(&n.to_string());
    }
    let execs: Vec<_> = tasks.iter().map(|task| task.spawn_exec([], "echo inside")).collect();
    for exec in execs {
        exec.finish().assert_says("inside");
    }
    let (stopped, killed) = tasks.split_at(15);
    let stops: Vec<_> = stopped.iter().map(|task| host.spawn(["stop", "--grace=0", task.id()])).collect();
    for stop in stops {
        stop.finish().assert_code(0);
    }
    assert!(killed.iter().all(|task| task.status() == "running"));
    sandbox.rm(["-f"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_shims_fds_are_as_many_after_a_hundred_members_as_before() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let shim = sandbox.shim_pid();
    let run = |times: usize| {
        for _ in 0..times {
            sandbox.task("true").flag("--rm").run().assert_code(0);
        }
        eventually("all have left", || (sandbox.inspect()["members"] == json!([])).then_some(()));
    };
    run(3);
    let mut before = fds_of(shim);
    run(100);
    // What came with the last connection goes in its own time.
    eventually("no more than before", || {
        let now = fds_of(shim);
        if now.len() < before.len() {
            before = now.clone();
        }
        (now.len() <= before.len()).then_some(())
    });
    assert_eq!(sandbox.inspect()["tasks"], json!([]));
}

#[test]
fn no_two_have_their_cgroups_in_each_other() {
    let host = Host::new();
    let at = |path: &str| format!("/{}-ecs/all{path}", host.prefix());
    let placed = |path: &str| host.sandbox().toml(&format!("place = '{}'", at(path)));
    let one = placed("/one").flag("--network=none").create();
    for (path, relation) in [("/one", "is that of"), ("/one/in", "is below that of"), ("", "is above that of")] {
        placed(path).assert_refused(125, &["place", relation, one.id()]);
        let task = host.task(IDLE).toml(&format!("cgroup = '{}'", at(path)));
        task.assert_refused(125, &["cgroup", relation, one.id()]);
    }
    let two = placed("/two").create();
    let task = host.task(IDLE).toml(&format!("cgroup = '{}'", at("/three"))).start();
    placed("/three/in").assert_refused(125, &["place", "is below that of", task.id()]);
    let member = two.task(IDLE).start();
    one.rm([]);
    assert_eq!((member.status().as_str(), task.status().as_str()), ("running", "running"));
    task.end();
    placed("/three").create().rm([]);
    two.rm(["-f"]);
    // Whoever has made it went while others were below.
    host.bowline(["cgroup", "destroy", &format!("/{}-ecs", host.prefix())]).assert_code(0);
}
