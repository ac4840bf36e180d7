//! Shims of another version of the facts: one version apart works both ways, further apart is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::versions::stand_in;
use bowline_tests::harness::{
    Ran, Task, WRITER, copy_binary, eventually, fds_of, is_debug, touch, wait_for_its_cgroup,
};

const SHIM: &str = "bowline-shim";

fn upgrade_to(task: &Task<'_>, shim: &Path) -> Ran {
    task.bowline("upgrade", ["--shim", shim.to_str().expect("ASCII")])
}

/// Whether a shim runs this program, by what that says at its end; nothing is at the end of the program under test.
fn runs(task: &Task<'_>, says: &str) -> bool {
    fs::read(format!("/proc/{}/exe", task.shim_pid())).expect("it lives").ends_with(says.as_bytes())
}

#[test]
fn one_version_back_and_forth_loses_nothing() {
    let host = Host::new();
    let task = host.task(WRITER).start();
    let program = task.program_pid();
    let waiter = host.spawn(["wait", task.id()]);
    let exec = task.spawn_exec(["--timeout", "300s"], "until [ -e /tmp/exec ]; do sleep 0.02; done; echo done; exit 5");
    exec.read_stdout();
    let mut line = 0;
    for says in ["facts=1;", "facts=3;"] {
        let other = stand_in(&host, SHIM, says);
        for _ in 0..2 {
            upgrade_to(&task, &other).assert_says(task.id());
            assert!(runs(&task, says));
            // The command is the other's elder or younger now.
            task.exec("exit 4").assert_code(4);
            assert_eq!(task.status(), "running");
            task.bowline("stats", ["--json"]).assert_code(0);
            task.bowline("upgrade", []).assert_says(task.id());
            assert!(!runs(&task, says));
            line += 1;
            task.wait_for_line(&format!("line {line}"));
            touch(program, &line.to_string());
        }
    }
    touch(program, "exec");
    let ran = exec.finish();
    ran.assert_code(5);
    assert_eq!(ran.out(), "done");
    task.wait_for_line("line 5");
    touch(program, "end");
    waiter.finish().assert_says("7");
    assert!(!task.log("shim.log").contains("ERROR"), "{}", task.log("shim.log"));
}

#[test]
fn two_versions_apart_is_refused_by_name() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (first, third) = (stand_in(&host, SHIM, "facts=1;"), stand_in(&host, SHIM, "facts=3;"));
    let too_new = stand_in(&host, SHIM, "facts=4;");
    let refused = |shim: &Path, why: &str| {
        let ran = upgrade_to(&task, shim);
        assert!(ran.code != Some(0) && ran.err().contains(why) && ran.err().contains("runs on as it was"), "{ran}");
    };
    refused(&too_new, "it reads facts of version 3 to 4, and this shim writes 1 and 2");
    upgrade_to(&task, &first).assert_says(task.id());
    refused(&third, "it reads facts of version 2 to 3, and this shim writes 0 and 1");
    // By way of the one between the two.
    task.bowline("upgrade", []).assert_says(task.id());
    upgrade_to(&task, &third).assert_says(task.id());
    upgrade_to(&task, &too_new).assert_says(task.id());
    refused(&first, "it reads facts of version 0 to 1, and this shim writes 3 and 4");
    task.exec("exit 3").assert_code(3);
    task.end();
}

#[test]
fn a_program_that_cannot_go_on_executes_the_old_one_again() {
    let host = Host::new();
    let task = host.task(WRITER).start();
    let (shim, program) = (task.shim_pid(), task.program_pid());
    let waiter = host.spawn(["wait", task.id()]);
    task.wait_for_line("line 1");
    task.bowline("upgrade", []).assert_says(task.id());
    // The waiter stays.
    wait_for_its_cgroup(shim);
    eventually("nobody else is connected", || (task.socket_ends() == 2).then_some(()));
    let held = fds_of(shim).len();
    let broken = stand_in(&host, SHIM, "facts=2!;");
    for round in 1..=3 {
        let ran = upgrade_to(&task, &broken);
        assert!(ran.code == Some(126) && ran.err().contains("this program cannot go on"), "{ran}");
        assert!(ran.err().contains("runs on as it was"), "{ran}");
        assert_eq!(task.shim_pid(), shim);
        let command = fs::read_to_string(format!("/proc/{shim}/cmdline")).expect("it lives");
        assert!(command.contains("--refused"), "it was executed: {command}");
        assert!(!runs(&task, "facts=2!;"));
        touch(program, &round.to_string());
        task.wait_for_line(&format!("line {}", round + 1));
        task.exec("exit 4").assert_code(4);
    }
    // From another version too, whose facts the old one reads.
    let third = stand_in(&host, SHIM, "facts=3;");
    upgrade_to(&task, &third).assert_says(task.id());
    assert_eq!(upgrade_to(&task, &broken).code, Some(126));
    assert!(runs(&task, "facts=3;"));
    task.bowline("upgrade", []).assert_says(task.id());
    eventually("nothing is left open", || (fds_of(shim).len() == held).then_some(()));
    touch(program, "end");
    waiter.finish().assert_says("7");
}

#[test]
fn a_task_is_adopted_by_a_shim_of_another_version() {
    let host = Host::new();
    for says in ["facts=1;", "facts=3;"] {
        let task = host.task("exec sleep 1000").flag("--init").start();
        upgrade_to(&task, &stand_in(&host, SHIM, says)).assert_says(task.id());
        task.kill_shim(task.shim_pid());
        // The program under test reads what the other has written.
        task.bowline("adopt", []).assert_says(task.id());
        assert!(!runs(&task, says));
        task.exec("exit 3").assert_code(3);
        task.end();
    }
}

/// All programs in a folder, whose shim is of another version; the path of its `bowline`.
fn programs_with(host: &Host, says: &str) -> PathBuf {
    let folder = host.work().join(format!("programs-{}", says.trim_end_matches(';')));
    fs::create_dir(&folder).expect("the work folder is writable");
    for name in ["bowline", "bowline-init"] {
        copy_binary(name, &folder.join(name));
    }
    fs::rename(stand_in(host, SHIM, says), folder.join(SHIM)).expect("ours");
    folder.join("bowline")
}

#[test]
fn a_shim_of_another_version_adopts_what_this_one_has_recorded() {
    let host = Host::new();
    for says in ["facts=1;", "facts=3;"] {
        let bowline = programs_with(&host, says);
        let by_other = |args: &[&str]| {
            let mut command = host.command(&bowline);
            command.args(args);
            host.execute(command)
        };
        let task = host.task(WRITER).flag("--init").start();
        task.wait_for_line("line 1");
        let program = task.program_pid();
        task.kill_shim(task.shim_pid());
        by_other(&["adopt", task.id()]).assert_says(task.id());
        assert!(runs(&task, says));
        touch(program, "1");
        task.wait_for_line("line 2");
        task.exec("exit 3").assert_code(3);
        // And back, by way of a record of the other's.
        task.kill_shim(task.shim_pid());
        task.bowline("adopt", []).assert_says(task.id());
        assert!(!runs(&task, says));
        // Whoever launches with the other version finds this one's commands.
        let id = host.new_id();
        by_other(&["start", "--name", &id, "--init", "--", "/bin/sleep", "1000"]).assert_says(&id);
        let theirs = host.adopt(id);
        assert!(runs(&theirs, says));
        theirs.exec("exit 4").assert_code(4);
        theirs.bowline("upgrade", []).assert_says(theirs.id());
        assert!(!runs(&theirs, says));
        theirs.end();
        touch(program, "end");
        task.wait().assert_code(7);
    }
}

#[test]
fn every_command_works_with_a_shim_of_another_version() {
    let host = Host::new();
    for says in ["facts=1;", "facts=3;"] {
        let task =
            host.task("trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done").flag("--memory=64M").start();
        task.wait_for_line("ready");
        upgrade_to(&task, &stand_in(&host, SHIM, says)).assert_says(task.id());
        let waiter = host.spawn(["wait", task.id()]);
        let attached = host.spawn(["attach", "--no-stdin", task.id()]);
        for words in [
            &["inspect"][..],
            &["inspect", "--facts"],
            &["ps", "--json"],
            &["stats", "--json"],
            &["top", "--once"],
            &["logs"],
            &["events", "--json"],
            &["explain"],
            &["pause"],
            &["resume"],
            &["update", "--memory=128M"],
            &["kill", "--signal=0"],
            &["upgrade", "--dry-run"],
            &["adopt"],
        ] {
            let named = if words[0] == "ps" { Vec::new() } else { vec![task.id()] };
            host.bowline([words, &named[..]].concat()).assert_code(0);
        }
        task.exec_with(["--timeout", "10s"], "exit 3").assert_code(3);
        assert_eq!(task.stats()["memory"]["limit_bytes"], 128 << 20);
        assert!(runs(&task, says));
        task.stop(["--grace=50s"]).assert_code(6);
        waiter.finish().assert_says("6");
        attached.finish().assert_code(6);
        task.bowline("rm", []).assert_code(0);
    }
}

#[test]
fn release_binaries_have_no_such_switch() {
    if is_debug() {
        return;
    }
    let text = fs::read(bowline_tests::harness::binary(SHIM)).expect("it is there");
    assert!(!text.windows(6).any(|part| part == b"facts="), "a release reads what its file says at its end");
}
