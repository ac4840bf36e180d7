//! Where the output of a task of Nomad's goes: FIFOs whose readers come, go, or never come.

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use serde_json::json;

#[test]
fn all_output_has_been_written_when_the_task_has_ended() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("seq 1 200000; echo err >&2; seq 200001 200002").start();
    plugin.wait(&task).assert_code(0);
    let out = task.out().all();
    assert_eq!((out.lines().count(), out.lines().last()), (200_002, Some("200002")));
    assert_eq!(task.err().all(), "err\n");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_whose_output_nobody_reads_any_more_runs_and_ends() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    // More than a pipe holds, and than the shim keeps.
    let task = plugin
        .task("until [ -e /local/go ]; do sleep 0.02; done; head -c 5000000 /dev/zero; echo over >/local/over; exit 3")
        .start();
    task.out().stop_reading();
    task.err().stop_reading();
    std::fs::write(task.local("go"), "").expect("ours");
    eventually("it has written all of it", || task.local("over").exists().then_some(()));
    plugin.wait(&task).assert_code(3);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_is_stopped_though_nobody_reads_any_more() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("trap 'exit 5' TERM; while :; do head -c 100000 /dev/zero; done").start();
    eventually("it writes", || (task.out().length() > 0).then_some(()));
    task.out().stop_reading();
    task.err().stop_reading();
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(5);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_reader_that_dies_stops_no_task_and_the_next_one_reads_on() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script =
        "n=0; until [ -e /local/end ]; do n=$((n+1)); echo line $n; echo $n >/local/n; sleep 0.02; done; echo last";
    let task = plugin.task(script).start();
    task.out().wait_for("line 2\n");
    let number =
        || std::fs::read_to_string(task.local("n")).ok().and_then(|n| n.trim().parse::<u32>().ok()).unwrap_or(0);
    for _ in 0..3 {
        task.out().stop_reading();
        task.err().stop_reading();
        let before = number();
        eventually("it goes on", || (number() > before + 3).then_some(()));
        task.out().read();
        task.err().read();
        let now = number();
        task.out().wait_for(&format!("line {}\n", now + 3));
    }
    std::fs::write(task.local("end"), "").expect("ours");
    plugin.wait(&task).assert_code(0);
    assert!(task.out().all().ends_with("last\n"));
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn fifos_that_nobody_reads_are_refused_after_a_while() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    plugin.task("true").unread().assert_refused(&["stdout.fifo", "reader"]);
    plugin.ping();
    plugin.kill();
}

/// As Nomad's own executor waits for who reads: its logmon may be slow.
#[test]
fn a_task_whose_fifos_are_read_late_is_started() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build = plugin.task("echo out; echo err >&2").unread();
    let folder = build.folder();
    let (name, logs) = (folder.file_name().expect("its name"), folder.parent().expect("above").join("alloc/logs"));
    let readers = ["stdout", "stderr"].map(|stream| {
        let mut shell = host.command("/bin/sh");
        let script = "until [ -e \"$0\" ]; do sleep 0.01; done; sleep 0.3; exec cat \"$0\"";
        shell.args(["-c", script]).arg(logs.join(format!(".{}.{stream}.fifo", name.display())));
        host.spawn_command(shell)
    });
    let task = build.start();
    plugin.wait(&task).assert_code(0);
    for (reader, text) in readers.into_iter().zip(["out", "err"]) {
        reader.finish().assert_says(text);
    }
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn output_may_go_nowhere() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let nowhere = |path: &str| {
        let build = plugin.task("echo out; echo err >&2; exit 6").unread();
        build.field("stdout_path", path).field("stderr_path", path).start()
    };
    for path in ["/dev/null", ""] {
        let task = nowhere(path);
        plugin.wait(&task).assert_code(6);
        plugin.destroy(&task);
    }
    plugin.kill();
}

#[test]
fn an_agent_may_have_no_log_collected() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"disable_log_collection": true}));
    let told = plugin.driver("Capabilities", json!({})).expect("it tells");
    assert_eq!(told["capabilities"]["disable_log_collection"], true, "{told}");
    // Nomad names FIFOs all the same, and makes none.
    let missing = json!(host.work().join("none/fifo"));
    let build = plugin.task("echo out; echo err >&2; exit 6").unread();
    let task = build.field("stdout_path", missing.clone()).field("stderr_path", missing).start();
    plugin.wait(&task).assert_code(6);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_path_for_output_that_is_not_there_is_refused() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let path = json!(host.work().join("none/fifo"));
    plugin.task("true").field("stdout_path", path).assert_refused(&["none/fifo"]);
    plugin.kill();
}

#[test]
fn a_task_can_open_its_streams_again() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("echo out >/dev/stdout; echo err >/dev/stderr; wc -c </dev/stdin").start();
    plugin.wait(&task).assert_code(0);
    assert_eq!((task.out().all(), task.err().all()), ("out\n0\n".into(), "err\n".into()));
    plugin.destroy(&task);
    plugin.kill();
}
