//! Commands in a task of Nomad's: script checks, `nomad alloc exec`.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Exit, Plugin, Stream, Task, decoded, encoded};
use bowline_tests::harness::{eventually, is_slow, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::nomad::recover::shim_of;

const IDLE: &str = "exec sleep 1000";

/// A task that sleeps, of a plugin.
#[track_caller]
fn idle(plugin: &Plugin<'_>) -> Task {
    plugin.task(IDLE).start()
}

#[test]
fn a_check_gets_its_output_and_its_exit_code() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (said, exit) = plugin.exec(&task, "echo out; echo err >&2; exit 2", "10s").expect("it runs");
    exit.assert_code(2);
    // The agent reads stdout alone.
    assert_eq!(said, "out\nerr\n");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn every_exit_code_of_a_check_is_its_own() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    for code in 0..=255 {
        plugin.exec(&task, &format!("exit {code}"), "10s").expect("it runs").1.assert_code(code);
    }
    // As a shell has it: the agent reads the exit code alone.
    for (name, code) in [("TERM", 128 + 15), ("KILL", 128 + 9)] {
        let (_, exit) = plugin.exec(&task, &format!("kill -{name} $$"), "10s").expect("it runs");
        exit.assert_killed_by(code - 128);
    }
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn of_much_output_of_a_check_the_end_is_kept() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (said, exit) = plugin.exec(&task, "seq 100000", "10s").expect("it runs");
    exit.assert_code(0);
    assert_eq!(said.len(), 4096);
    assert!(said.ends_with("\n99999\n100000\n"), "{said:?}");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_check_that_times_out_is_killed_with_all_that_it_started() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    // Not before it has said so, where everything takes longer.
    let deadline = if is_slow() { "3s" } else { "0.2s" };
    let (said, exit) = plugin.exec(&task, "echo busy; setsid sleep 4711 & sleep 4711", deadline).expect("it runs");
    // As timeout(1) has it, which is critical to a check; and why, for whoever reads its output.
    exit.assert_code(124);
    assert!(said.starts_with("busy\n") && said.contains("did not end within"), "{said:?}");
    assert!(!host.all_of_it().iter().any(|left| left.contains("sleep 4711")), "{:?}", host.all_of_it());
    // The next one is not disturbed.
    plugin.exec(&task, "exit 1", "10s").expect("it runs").1.assert_code(1);
    assert_eq!(plugin.inspect(&task)["task"]["state"], "RUNNING");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_check_has_the_tasks_rights_environment_and_folder() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(IDLE).env("WHO", "me").config("work_dir", "/local").start();
    let said = |script: &str| plugin.exec(&task, script, "10s").expect("it runs").0;
    assert_eq!(said("echo $WHO $(pwd) $(id -un)"), "me /local nobody\n");
    let rights = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
    let init = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/$(pgrep -o sleep)/status";
    assert_eq!(said(rights), said(init));
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_check_that_cannot_be_executed_is_refused() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let exec = |command: Value| plugin.exec_command(&task, command, "10s").expect_err("it cannot be executed");
    exec(json!(["no-such-command"])).assert_says(&["no-such-command"]);
    exec(json!(["/etc/passwd"])).assert_says(&["/etc/passwd"]);
    assert_eq!(exec(json!([])).code, "InvalidArgument");
    assert_eq!(exec(json!([""])).code, "InvalidArgument");
    plugin.stop(&task, "SIGKILL", "0s");
    plugin.wait(&task);
    exec(json!(["true"])).assert_says(&[]);
    plugin.destroy(&task);
    plugin.kill();
}

/// What a stream has said of its two outputs, and how it ended.
#[track_caller]
fn to_the_end(stream: &Stream) -> (String, String, Exit) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut closed = [false; 2];
    loop {
        let item = stream.next().unwrap_or_else(|| panic!("no exit code: {:?}", stream.end()));
        for (index, (name, text)) in [("stdout", &mut out), ("stderr", &mut err)].into_iter().enumerate() {
            if item[name].is_object() {
                assert!(!closed[index], "{name} goes on after its end: {item}");
                text.extend(decoded(item[name]["data"].as_str().expect("base64")));
                closed[index] = item[name]["close"] == true;
            }
        }
        if item["exited"] == true {
            stream.end().expect("nothing follows");
            assert!(closed[0], "stdout has no end");
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            return (text(out), text(err), Exit(item["result"].clone()));
        }
    }
}

fn input(text: &str) -> Value {
    json!({"stdin": {"data": encoded(text.as_bytes())}})
}

fn size(height: i32, width: i32) -> Value {
    json!({"tty_size": {"height": height, "width": width}})
}

/// As Nomad's harness does it: a size though there is no terminal, then what is typed, then its end.
#[track_caller]
fn streamed(plugin: &Plugin<'_>, task: &Task, script: &str, stdin: &str) -> (String, String, Exit) {
    let stream = plugin.exec_stream(task, script, false);
    stream.send(size(100, 100));
    if !stdin.is_empty() {
        stream.send(input(stdin));
    }
    stream.send(json!({"stdin": {"close": true}}));
    to_the_end(&stream)
}

#[test]
fn streaming_gives_both_streams_and_the_exit_code() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (out, err, exit) = streamed(&plugin, &task, "echo hello stdout; echo hello stderr >&2; exit 43", "");
    assert_eq!((out.as_str(), err.as_str()), ("hello stdout\n", "hello stderr\n"));
    exit.assert_code(43);
    let (out, _, exit) = streamed(&plugin, &task, "kill -KILL $$", "");
    assert_eq!(out, "");
    exit.assert_killed_by(9);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

/// Not our FIFOs in the task's folder.
#[test]
fn streaming_gives_the_command_pipes() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let script = "for fd in 0 1 2; do readlink /proc/$$/fd/$fd | cut -d: -f1; done";
    let (out, err, exit) = streamed(&plugin, &task, script, "");
    assert_eq!((out.as_str(), err.as_str()), ("pipe\npipe\npipe\n", ""));
    exit.assert_code(0);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn streaming_gives_output_as_it_comes() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let stream = plugin.exec_stream(&task, "for n in 1 2 3; do echo $n; read line; done", false);
    for n in ["1\n", "2\n", "3\n"] {
        let item = stream.next().expect("a line");
        assert_eq!(decoded(item["stdout"]["data"].as_str().expect("base64")), n.as_bytes());
        stream.send(input("go on\n"));
    }
    to_the_end(&stream).2.assert_code(0);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn streaming_passes_stdin_and_its_end() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (out, err, exit) = streamed(&plugin, &task, "echo hello from command; cat", "hello from stdin\n");
    assert_eq!((out.as_str(), err.as_str()), ("hello from command\nhello from stdin\n", ""));
    exit.assert_code(0);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

/// Whether the process can still write to a FIFO of this name.
fn writes_to(pid: i32, name: &str) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten();
    fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.ends_with(name))).any(|fd| {
        let number = fd.file_name();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())).unwrap_or_default();
        // In octal: proc(5).
        let flags = info.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        flags.is_some_and(|flags| flags & 3 != 0)
    })
}

#[test]
fn stdin_closed_before_the_shim_opens_it_is_read_to_its_end() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let shim = Pid::from_raw(shim_of(&task)).expect("a pid");
    kill_process(shim, Signal::STOP).expect("it lives");
    let stream = plugin.exec_stream(&task, "cat", false);
    stream.send(input("typed before\n"));
    eventually("the plugin has the FIFO", || writes_to(plugin.pid(), "stdin").then_some(()));
    stream.send(json!({"stdin": {"close": true}}));
    eventually("the plugin has closed it", || (!writes_to(plugin.pid(), "stdin")).then_some(()));
    kill_process(shim, Signal::CONT).expect("it lives");
    let (out, _, exit) = to_the_end(&stream);
    assert_eq!(out, "typed before\n");
    exit.assert_code(0);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn streaming_takes_ten_megabytes_in_one_message() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (out, _, exit) = streamed(&plugin, &task, "wc -c", &"x".repeat(10_000_000));
    exit.assert_code(0);
    assert_eq!(out.trim(), "10000000");
    let (out, _, exit) = streamed(&plugin, &task, "head -c 10000000 /dev/zero | tr '\\0' y", "");
    exit.assert_code(0);
    assert_eq!((out.len(), out.trim_matches('y')), (10_000_000, ""));
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn without_a_terminal_there_is_none() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let (_, err, exit) = streamed(&plugin, &task, "stty size", "");
    exit.assert_code(1);
    assert!(err.contains("Inappropriate ioctl for device"), "{err:?}");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_terminal_echoes_and_has_the_size_that_it_is_given() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let stream = plugin.exec_stream(&task, "tty; read go; stty size; read word; echo got $word; exit 9", true);
    stream.send(size(100, 120));
    stream.send(input("go\n"));
    // Once it has read the size, it waits for a word.
    let mut seen = String::new();
    while !seen.contains("100 120") {
        let item = stream.next().expect("what the terminal shows");
        seen += &String::from_utf8_lossy(&decoded(item["stdout"]["data"].as_str().expect("base64")));
    }
    stream.send(input("secret\n"));
    let (rest, err, exit) = to_the_end(&stream);
    let seen = seen + &rest;
    exit.assert_code(9);
    assert!(seen.contains("/dev/pts/") && seen.contains("secret\r\ngot secret\r\n") && err.is_empty(), "{seen:?}");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_terminal_resized_before_the_command_has_the_last_size() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    for _ in 0..5 {
        let stream = plugin.exec_stream(&task, "read go; stty size", true);
        for rows in 1..=9 {
            stream.send(size(10 * rows, 7 * rows));
        }
        stream.send(input("go\n"));
        let (out, _, exit) = to_the_end(&stream);
        exit.assert_code(0);
        assert!(out.contains("90 63"), "{out:?}");
    }
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_terminal_that_is_resized_tells_its_program() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done";
    let stream = plugin.exec_stream(&task, script, true);
    stream.next().expect("it is ready");
    stream.send(size(33, 44));
    let (out, _, exit) = to_the_end(&stream);
    exit.assert_code(0);
    assert!(out.contains("33 44"), "{out:?}");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_client_that_goes_away_takes_its_command_along() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    for tty in [false, true] {
        let stream = plugin.exec_stream(&task, "echo ready; exec sleep 4711", tty);
        stream.next().expect("it is ready");
        stream.cancel();
        eventually("it ends", || (!host.all_of_it().iter().any(|left| left.contains("sleep 4711"))).then_some(()));
    }
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn checks_go_on_after_their_shim_was_replaced_or_upgraded() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let check = |code: i32| plugin.exec(&task, &format!("exit {code}"), "10s").expect("it runs").1;
    check(1).assert_code(1);
    host.bowline(["upgrade", "--all"]).assert_code(0);
    check(2).assert_code(2);
    let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
    let id = listed[0]["id"].as_str().expect("text").to_owned();
    let shim = host.bowline(["inspect", &id]).assert_code(0).json()["shim_pid"].as_i64().expect("a pid");
    let shim: i32 = shim.try_into().expect("a pid");
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("it is gone", || (!process_exists(shim)).then_some(()));
    // The connection that the checks before have used is closed.
    check(3).assert_code(3);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_stream_that_does_not_begin_as_it_should_is_refused() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let begin = |first: Value| {
        let stream = plugin.driver_stream("ExecTaskStreaming", Value::Null);
        stream.send(first);
        stream.end().expect_err("it is refused")
    };
    assert_eq!(begin(input("x")).code, "InvalidArgument");
    let setup = |id: &str, command: Value| json!({"setup": {"task_id": id, "command": command}});
    assert_eq!(begin(setup("c0ffee/web/0", json!(["true"]))).code, "NotFound");
    assert_eq!(begin(setup(task.id(), json!([]))).code, "InvalidArgument");
    begin(setup(task.id(), json!(["no-such-command"]))).assert_says(&["no-such-command"]);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_stream_ends_when_its_task_does() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = idle(&plugin);
    let stream = plugin.exec_stream(&task, "echo ready; exec sleep 1000", false);
    stream.next().expect("it is ready");
    plugin.stop(&task, "SIGKILL", "0s");
    plugin.wait(&task).assert_killed_by(9);
    while stream.next().is_some() {}
    plugin.destroy(&task);
    plugin.kill();
}
