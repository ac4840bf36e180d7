//! `--die-with-parent`: the task ends with the client that runs it, and with whoever started that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Process, Report, Task, eventually, fds_of, skip_version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FLAG: &str = "--die-with-parent";

/// Where [`POLITE`] writes.
const WRITES: &str = "/last";

/// Has something to do where it is asked to end.
const POLITE: &str = "trap 'echo bye >/last/words; exit 6' TERM; echo ready; while :; do sleep 0.02; done";

/// A task that ends with its client, and the file that it writes at its end.
fn polite(host: &Host) -> (Build<'_>, PathBuf) {
    let folder = host.work().join(host.new_id());
    fs::create_dir(&folder).expect("ours");
    let build = host.task(POLITE).flag(FLAG).flag(format!("--volume={}:{WRITES}", folder.display()));
    (build, folder.join("words"))
}

fn running(build: Build<'_>) -> (Task<'_>, Process) {
    let (task, client) = build.spawn();
    client.wait_for_out("ready");
    task.wait_until_recorded();
    (task, client)
}

fn kill(client: Process) {
    client.signal(Signal::KILL);
    client.finish();
}

/// It has ended by itself within its grace, as its caller had gone.
#[track_caller]
fn assert_ended_with_caller(task: &Task<'_>, words: &Path) -> Report {
    let report = task.wait();
    assert_eq!((&report["exit_code"], &report["stopped_by"]), (&6.into(), &"caller".into()), "{report:?}");
    assert_eq!(fs::read_to_string(words).expect("written"), "bye\n");
    report
}

#[track_caller]
fn wait_until_removed(task: &Task<'_>) {
    eventually(format_args!("{} is removed", task.id()), || (!task.file("").exists()).then_some(()));
}

/// The script starts the command that follows it.
fn by_shell<'h>(host: &'h Host, script: &str, build: &Build<'h>) -> (Task<'h>, Process) {
    let process = host.spawn_command(build.under(["sh", "-c", script, "sh"], "run"));
    (host.adopt(build.id()), process)
}

#[test]
fn a_task_has_its_grace_when_its_client_is_killed() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let (task, client) = running(build);
    let record: Value = serde_json::from_str(&task.log("task.json")).expect("JSON");
    let named = &record["ends_with"];
    assert_eq!((&named[0][0], &named[1][0]), (&client.pid().into(), &std::process::id().into()), "{named}");
    kill(client);
    assert_ended_with_caller(&task, &words);
    let found = task.bowline("explain", ["--json"]).assert_code(0).json();
    assert_eq!(found["findings"][0]["kind"], "stopped_by_caller", "{found}");
    host.assert_nothing_left();
}

#[test]
fn one_that_does_not_end_is_killed_after_its_grace() {
    let host = Host::new();
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let (task, client) = running(host.task(deaf).flag(FLAG).flag("--stop-timeout=200ms"));
    kill(client);
    let report = task.wait();
    assert_eq!(report.assert_killed_by("KILL")["stopped_by"], "caller", "{report:?}");
    host.assert_nothing_left();
}

#[test]
fn it_ends_with_the_process_that_started_its_client() {
    let host = Host::new();
    let go = host.work().join("go");
    for is_killed in [true, false] {
        let script = format!(r#""$@" & until [ -e {} ]; do sleep 0.02; done"#, go.display());
        let (build, words) = polite(&host);
        let (task, shell) = by_shell(&host, &script, &build);
        shell.wait_for_out("ready");
        task.wait_until_recorded();
        match is_killed {
            true => shell.signal(Signal::KILL),
            false => fs::write(&go, "").expect("ours"),
        }
        assert_ended_with_caller(&task, &words);
        // The client lives, and says why its task has ended.
        let said = shell.finish();
        assert!(said.err().contains("was stopped: the process that started this command has ended"), "{said}");
    }
    host.assert_nothing_left();
}

#[test]
fn a_client_whose_starter_had_gone_counts_alone() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let script = r#"p=$$; (while [ -e /proc/$p/exe ]; do sleep 0.02; done; sh -c 'echo $PPID'; exec "$@") &"#;
    let (task, shell) = by_shell(&host, script, &build);
    shell.wait_for_out("ready");
    task.wait_until_recorded();
    let client: i32 = shell.said().lines().next().and_then(|pid| pid.parse().ok()).expect("its pid");
    assert_eq!(task.status(), "running");
    kill_process(Pid::from_raw(client).expect("a pid"), Signal::KILL).expect("it lives");
    assert_ended_with_caller(&task, &words);
    shell.finish();
    host.assert_nothing_left();
}

#[test]
fn a_caller_that_gives_up_leaves_nothing_running() {
    let host = Host::new();
    let python =
        "import subprocess, sys\ntry: subprocess.run(sys.argv[1:], timeout=2)\nexcept subprocess.TimeoutExpired: pass";
    for program in [["timeout", "-s", "KILL", "2"], ["python3", "-I", "-c", python]] {
        let found = Command::new(program[0]).arg("--version").output();
        if !found.is_ok_and(|ran| ran.status.success()) {
            skip_version(&format!("there is no {}", program[0]));
            continue;
        }
        let (build, words) = polite(&host);
        let caller = host.spawn_command(build.under(program, "run"));
        caller.wait_for_out("ready");
        assert_ended_with_caller(&host.adopt(build.id()), &words);
        caller.finish();
    }
    host.assert_nothing_left();
}

#[test]
fn a_client_that_is_stopped_has_not_ended() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let (task, client) = running(build);
    client.signal(Signal::STOP);
    // The pidfds are opened again.
    task.bowline("upgrade", []).assert_says(task.id());
    assert_eq!(task.status(), "running");
    client.signal(Signal::CONT);
    assert_eq!(task.status(), "running");
    kill(client);
    assert_ended_with_caller(&task, &words);
    host.assert_nothing_left();
}

#[test]
fn its_next_shim_goes_on_with_that() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let (task, client) = running(build);
    // A client that goes on would have the task taken over.
    client.signal(Signal::STOP);
    task.kill_shim(task.shim_pid_on_disk());
    task.bowline("adopt", []).assert_says(task.id());
    assert_eq!(task.status(), "running");
    kill(client);
    assert_ended_with_caller(&task, &words);
    host.assert_nothing_left();
}

#[test]
fn a_caller_that_ended_without_a_shim_is_found_out() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let (task, client) = running(build);
    client.signal(Signal::STOP);
    task.kill_shim(task.shim_pid_on_disk());
    kill(client);
    assert!(!words.exists(), "nobody was there to stop it");
    task.bowline("adopt", []).assert_code(0);
    assert_ended_with_caller(&task, &words);
    host.assert_nothing_left();
}

#[test]
fn a_member_ends_with_its_client_and_its_sandbox_goes_on() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let (build, words) = polite(&host);
    let (member, client) = running(build.in_sandbox(&sandbox));
    let other = sandbox.task(POLITE).start();
    kill(client);
    assert_ended_with_caller(&member, &words);
    assert_eq!(other.status(), "running");
    other.end();
    sandbox.task("exit 9").flag("--rm").run().assert_code(9);
    sandbox.rm(["-f"]);
    host.assert_nothing_left();
}

#[test]
fn the_next_shim_of_a_sandbox_ends_a_member_with_its_client() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let (build, words) = polite(&host);
    let (member, client) = running(build.in_sandbox(&sandbox));
    client.signal(Signal::STOP);
    member.kill_shim(sandbox.shim_pid());
    host.bowline(["adopt", sandbox.id()]).assert_says(sandbox.id());
    assert_eq!(member.status(), "running");
    kill(client);
    assert_ended_with_caller(&member, &words);
    sandbox.rm(["-f"]);
    host.assert_nothing_left();
}

#[test]
fn with_rm_nothing_is_left_of_it() {
    let host = Host::new();
    let (build, words) = polite(&host);
    let (task, client) = running(build.flag("--rm"));
    kill(client);
    wait_until_removed(&task);
    assert_eq!(fs::read_to_string(words).expect("written"), "bye\n");
    host.bowline(["wait", task.id()]).assert_refused(125, &["was removed", "it ended with 6"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_ends_first_has_its_own_code() {
    let host = Host::new();
    let ran = host.task("echo out; exit 3").flag(FLAG).flag("--json").run();
    assert!(ran.assert_code(3).json()["stopped_by"].is_null(), "{ran}");
    let ran = host.task("echo out; exit 3").flag(FLAG).flag("--rm").run();
    assert_eq!((ran.assert_code(3).out().as_str(), ran.err().as_str()), ("out", ""), "{ran}");
    host.assert_nothing_left();
}

#[test]
fn nobody_detaches_from_it() {
    let host = Host::new();
    let command = ["--name", &host.new_id(), "--", "true"];
    for (flags, parts) in [
        (&["run", "-d", FLAG][..], &["--die-with-parent", "--detach"][..]),
        (&["run", "-it", FLAG, "--detach-keys", "ctrl-x"], &["--die-with-parent", "--detach-keys"]),
        (&["start", FLAG], &["--die-with-parent"]),
    ] {
        host.bowline([flags, &command].concat()).assert_refused(2, parts);
    }
    let ran = host.bowline([&["start", FLAG][..], &command].concat());
    assert!(ran.err().contains("\nhint: `bowline run --die-with-parent`"), "{ran}");
    let script = "stty raw -echo; echo ready; head -c 2 | od -An -tx1";
    let (task, terminal) = host.task(script).flag("-it").flag(FLAG).run_in_terminal();
    terminal.wait_for("ready");
    terminal.type_keys("\x10\x11");
    terminal.wait_for("10 11");
    terminal.finish().assert_code(0);
    assert_eq!(task.wait()["stopped_by"], Value::Null);
    host.assert_nothing_left();
}

#[test]
fn the_variable_for_detach_keys_is_no_error() {
    let host = Host::new();
    let mut command = host.task("exit 3").flag(FLAG).flag("--rm").command("run");
    command.env("BOWLINE_DETACH_KEYS", "ctrl-x");
    host.execute(command).assert_code(3);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_shim_holds_pidfds_only_where_the_flag_is() {
    let host = Host::new();
    let pidfds = |flag: &str| {
        let (task, client) = running(host.task("echo ready; exec sleep 1000").flag(flag));
        let held = fds_of(task.shim_pid()).iter().filter(|fd| fd.contains("pidfd")).count();
        task.stop([]);
        client.finish();
        held
    };
    assert_eq!(pidfds(FLAG), pidfds("--init") + 2);
    host.assert_nothing_left();
}
