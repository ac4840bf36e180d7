//! A sandbox that somebody has frozen from outside: a member that is to end does, and the others stay as they are. On
//! v1 a process below a frozen cgroup does not even die.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::{Process, Sandbox, Task, eventually, only_v2, process_exists};
use rustix::process::{Pid, Signal, kill_process};

/// In namespaces of its own, whose end ends all; and where nothing ends by itself.
const PID_NAMESPACES: [&str; 2] = ["private", "host"];

/// A member with a process beside its init; SIGTERM alone ends neither.
fn member<'h>(sandbox: &Sandbox<'h>, pids: &str) -> Task<'h> {
    let script = r#"trap "" TERM; setsid sleep 1000 & echo ready; exec sleep 1000"#;
    let toml = format!("command = 'sh'\nargs = ['-c', '{script}']\nnamespaces.pid = '{pids}'");
    let task = sandbox.described(&toml).start();
    task.wait_for_line("ready");
    task
}

/// How long a process has been on a processor, in nanoseconds.
fn on_cpu(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it lives");
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("a number")
}

/// Has a member of a frozen sandbox ended by `end`, beside one that would use all of a processor.
fn ends(end: impl Fn(&Host, &Sandbox<'_>, &Task<'_>)) {
    for pids in PID_NAMESPACES {
        let host = Host::new();
        let sandbox = host.sandbox().create();
        let busy = sandbox.task("echo ready; while :; do :; done").start();
        busy.wait_for_line("ready");
        let task = member(&sandbox, pids);
        sandbox.freeze();
        let processes = task.processes();
        assert!(processes.len() > 1, "{processes:?}");
        let (pid, before) = (busy.pid(), on_cpu(busy.pid()));
        end(&host, &sandbox, &task);
        for pid in processes {
            assert!(!process_exists(pid), "{pid} of a member with pids of {pids} lives on");
        }
        assert!(sandbox.is_frozen(), "nobody has thawed it");
        let ran = on_cpu(pid) - before;
        assert!(ran < 20_000_000, "the other member has run for {ran} ns");
        sandbox.rm(["-f"]);
        host.assert_nothing_left_without_rm();
    }
}

#[test]
fn a_member_of_a_frozen_sandbox_is_removed_by_force() {
    ends(|_, _, task| {
        task.bowline("rm", ["-f"]).assert_code(0);
    });
}

#[test]
fn a_member_of_a_frozen_sandbox_is_killed() {
    ends(|_, _, task| {
        task.bowline("kill", []).assert_code(0);
        task.wait().assert_killed_by("KILL");
    });
}

#[test]
fn a_member_of_a_frozen_sandbox_is_stopped_after_its_grace() {
    ends(|_, _, task| {
        task.stop(["--grace=100ms"]).assert_killed_by("KILL");
    });
}

#[test]
fn a_member_of_a_frozen_sandbox_is_ended_past_a_silent_shim() {
    for how in [&["stop", "--grace=100ms"][..], &["kill"]] {
        ends(|host, sandbox, task| {
            let shim = Pid::from_raw(sandbox.shim_pid()).expect("a pid");
            kill_process(shim, Signal::STOP).expect("it lives");
            host.bowline(how.iter().copied().chain([task.id()])).assert_code(0);
            kill_process(shim, Signal::CONT).expect("it lives");
            task.wait().assert_killed_by("KILL");
        });
    }
}

#[test]
fn what_is_in_a_cgroup_below_a_frozen_one_is_killed() {
    ends(|host, _, task| {
        let path = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
        host.bowline(["cgroup", "kill", &path]).assert_code(0);
        task.wait().assert_killed_by("KILL");
    });
}

/// Waits until the process beside those of `task` is gone.
#[track_caller]
fn wait_until_alone(task: &Task<'_>, processes: &[i32]) {
    eventually("the exec's processes are gone", || (task.processes() == processes).then_some(()));
}

#[test]
fn an_exec_in_a_frozen_sandbox_ends_at_its_deadline() {
    let host = Host::new();
    for pids in PID_NAMESPACES {
        let sandbox = host.sandbox().create();
        let task = member(&sandbox, pids);
        let processes = task.processes();
        let begun = task.spawn_exec(["--timeout=2s"], "setsid sleep 1000 & echo begun; exec sleep 1000");
        begun.wait_for_out("begun");
        sandbox.freeze();
        begun.finish().assert_code(124);
        wait_until_alone(&task, &processes);
        task.exec_with(["--timeout=200ms"], "exec sleep 1000").assert_code(124);
        wait_until_alone(&task, &processes);
        assert!(sandbox.is_frozen(), "nobody has thawed it");
        sandbox.rm(["-f"]);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_exec_in_a_paused_task_ends_at_its_deadline() {
    let host = Host::new();
    let task = host.task("echo ready; while :; do sleep 1000; done").start();
    task.wait_for_line("ready");
    let processes = task.processes();
    let begun = task.spawn_exec(["--timeout=2s"], "echo begun; exec sleep 1000");
    begun.wait_for_out("begun");
    task.bowline("pause", []).assert_code(0);
    begun.finish().assert_code(124);
    wait_until_alone(&task, &processes);
    assert_eq!(task.status(), "paused");
    task.end();
}

#[test]
fn an_exec_in_a_paused_container_can_be_killed() {
    let host = Host::new();
    if host.reference_fails("on v1 it dies once the container goes on") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    running.shim.pause(&running.id).expect("paused");
    running.shim.kill(&running.id, "e", 9).expect("killed");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 137);
    assert_eq!(running.shim.status(&running.id, ""), "PAUSED");
    running.shim.delete(&running.id, "e").expect("deleted");
    running.shim.resume(&running.id).expect("resumed");
    running.end();
}

#[test]
fn a_member_frozen_during_its_launch_is_removed_by_force() {
    let host = Host::new();
    for pids in PID_NAMESPACES {
        let sandbox = host.sandbox().create();
        sandbox.freeze();
        let toml = format!("command = 'sleep'\nargs = ['1000']\nnamespaces.pid = '{pids}'");
        let (task, start) = sandbox.described(&toml).spawn_start();
        eventually("its init is in the cgroup", || (!sandbox.processes().is_empty()).then_some(()));
        eventually("it is gone, or said to be in use", || {
            let ran = task.bowline("rm", ["-f"]);
            assert!(ran.code == Some(0) || ran.err().contains("try again"), "{ran}");
            (ran.code == Some(0)).then_some(())
        });
        start.finish().assert_refused(125, &[task.id()]);
        assert!(sandbox.is_frozen() && sandbox.processes().is_empty());
        sandbox.rm([]);
    }
    host.assert_nothing_left_without_rm();
}

/// Whoever freezes it again and again does so also between the signal and the end.
#[test]
fn a_member_that_is_frozen_repeatedly_is_removed_by_force() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    for pids in PID_NAMESPACES {
        let sandbox = host.sandbox().create();
        let members: Vec<_> = (0..4).map(|_| member(&sandbox, pids)).collect();
        let files = members.iter().map(|task| task.cgroup("freezer")).chain([sandbox.cgroup("freezer")]);
        let files: Vec<_> = files.map(|dir| dir.join("freezer.state")).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // One that is gone cannot be frozen.
                    files.iter().for_each(|file| drop(fs::write(file, "FROZEN")));
                }
            });
            let ran: Vec<_> = members.iter().map(|task| host.spawn(["rm", "-f", task.id()])).collect();
            let ran: Vec<_> = ran.into_iter().map(Process::finish).collect();
            over.store(true, Ordering::Relaxed);
            for ran in ran {
                ran.assert_code(0);
            }
        });
        sandbox.rm(["-f"]);
    }
    host.assert_nothing_left_without_rm();
}
