//! Several that replace, remove and wait for what has one name, at the same time: each is about what was there, never
//! about what another has just started.

use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{Process, Ran, patience, storm};

const IDLE: &str = "exec sleep 1000";

/// It succeeded, or was refused with a message that names `id`, and with no advice to do what was done.
fn assert_settled(ran: &Ran, id: &str) {
    if ran.code != Some(0) {
        ran.assert_refused(125, &[id]);
        assert!(!ran.err().contains("anew with --replace"), "{ran}");
    }
}

/// All have ended while what they started lives on: nobody waits for that.
fn all_end(commands: Vec<Process>) -> Vec<Ran> {
    commands.into_iter().map(|command| command.finish_within(patience())).collect()
}

#[test]
fn tasks_that_replace_each_other_leave_one() {
    let host = Host::new();
    let first = host.task(IDLE).start();
    storm(6, |round| {
        let wait = host.spawn(["wait", first.id()]);
        let replace = || host.task(IDLE).named(first.id()).flag("--replace").spawn_start().1;
        let ran = all_end((0..3).map(|_| replace()).collect());
        ran.iter().for_each(|ran| assert_settled(ran, first.id()));
        assert!(ran.iter().any(|ran| ran.code == Some(0)), "round {round}: one has started it\n{ran:?}");
        assert_eq!(first.status(), "running", "round {round}");
        // It began before the first was replaced, or when none had the name, or while the next was being launched.
        let waited = wait.finish_within(patience());
        if waited.out() != "137" {
            waited.assert_refused(125, &[first.id()]);
        }
    });
    first.end();
}

#[test]
fn sandboxes_that_replace_each_other_leave_one() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    storm(4, |round| {
        let replace = || host.sandbox().named(sandbox.id()).flag("--replace").spawn();
        let ran = all_end((0..3).map(|_| replace()).collect());
        for ran in &ran {
            assert_settled(ran, sandbox.id());
            // It is no task, and no shim has died.
            let wrong = ["no task named", "died", "broke off"].iter().find(|wrong| ran.err().contains(**wrong));
            assert_eq!(wrong, None, "round {round}: {ran}");
        }
        assert!(ran.iter().any(|ran| ran.code == Some(0)), "round {round}: one has made it\n{ran:?}");
        assert_eq!(sandbox.status(), "ready", "round {round}");
    });
    sandbox.rm(["-f"]);
}

#[test]
fn members_that_replace_each_other_leave_one() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let first = sandbox.task(IDLE).start();
    storm(4, |round| {
        let replace = || sandbox.task(IDLE).named(first.id()).flag("--replace").spawn_start().1;
        let ran = all_end((0..3).map(|_| replace()).collect());
        ran.iter().for_each(|ran| assert_settled(ran, first.id()));
        assert!(ran.iter().any(|ran| ran.code == Some(0)), "round {round}: one has started it\n{ran:?}");
        assert_eq!(first.status(), "running", "round {round}");
    });
    first.end();
}

#[test]
fn members_that_come_as_their_sandbox_goes_run_or_are_told_so() {
    let host = Host::new();
    storm(10, |round| {
        let sandbox = host.sandbox().create();
        let members = (0..3).map(|of| {
            std::thread::sleep(Duration::from_millis((of * round as u64) % 7));
            sandbox.task("true").flag("--rm").spawn().1
        });
        let members: Vec<Process> = members.collect();
        std::thread::sleep(Duration::from_millis(4 * (round as u64 % 8)));
        host.bowline(["sandbox", "rm", "-f", sandbox.id()]).assert_code(0);
        for ran in all_end(members) {
            // Killed with the sandbox.
            if !matches!(ran.code, Some(0 | 137)) {
                let text = ran.err();
                let is_told = ["is being removed", "there is no sandbox named"].iter().any(|why| text.contains(why));
                assert!(ran.code == Some(125) && is_told && text.contains(sandbox.id()), "round {round}: {ran}");
            }
        }
    });
}

#[test]
fn members_that_come_before_their_sandbox_run_or_are_told_so() {
    let host = Host::new();
    storm(10, |round| {
        let sandbox = host.sandbox();
        let name = sandbox.id();
        let create = sandbox.spawn();
        let members = (0..6).map(|of| {
            std::thread::sleep(Duration::from_millis((of + round as u64) % 5));
            let member = host.task("true").flag("--rm").flag(format!("--sandbox={name}"));
            member.spawn().1
        });
        let members: Vec<Process> = members.collect();
        create.finish_within(patience()).assert_code(0);
        for ran in all_end(members) {
            if ran.code != Some(0) {
                let text = ran.err();
                let is_told = ["is still being made", "there is no sandbox named"].iter().any(|why| text.contains(why));
                assert!(ran.code == Some(125) && is_told && text.contains(name), "round {round}: {ran}");
            }
        }
        host.bowline(["sandbox", "rm", "-f", name]).assert_code(0);
    });
}

#[test]
fn rm_and_stop_beside_a_restart_end_and_leave_what_follows() {
    let host = Host::new();
    storm(8, |round| {
        let first = host.task(IDLE).start();
        let restart = host.task(IDLE).named(first.id()).flag("--replace").spawn_start().1;
        std::thread::sleep(Duration::from_millis(5 * (round as u64 % 10)));
        let others = ["rm", "stop"].map(|verb| match verb {
            "rm" => host.spawn(["rm", "-f", first.id()]),
            _ => host.spawn(["stop", "--grace=0", first.id()]),
        });
        let others = all_end(others.into_iter().collect());
        let restarted = restart.finish_within(patience());
        others[0].assert_code(0);
        assert_settled(&others[1], first.id());
        assert_settled(&restarted, first.id());
        host.bowline(["rm", "-f", first.id()]).assert_code(0);
    });
}
