//! A Nomad task: its start, its signals, its end, and what the driver reports about it.

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Plugin, Task};
use bowline_tests::harness::{eventually, process_exists};
use serde_json::{Value, json};

#[test]
fn a_task_runs_and_its_exit_code_is_told() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("echo out; echo err >&2; exit 3").start();
    plugin.wait(&task).assert_code(3);
    assert_eq!((task.out().all(), task.err().all()), ("out\n".into(), "err\n".into()));
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn the_handle_has_the_configuration_that_came() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exit 0").env("GREETING", "hello").start();
    let handle = &task.answer()["handle"];
    for key in ["id", "name", "alloc_id", "alloc_dir", "env", "stdout_path", "job_name", "msgpack_driver_config"] {
        assert_eq!(handle["config"][key], task.message()[key], "{key}");
    }
    assert!(handle["version"].as_i64() >= Some(1), "{handle}");
    assert_eq!(handle["state"], "RUNNING");
    assert!(handle["driver_state"].as_str().is_some_and(|state| !state.is_empty()), "{handle}");
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn exit_codes_are_those_of_the_program() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for code in [0, 1, 2, 125, 126, 127, 128, 137, 143, 255] {
        let task = plugin.task(&format!("exit {code}")).start();
        plugin.wait(&task).assert_code(code);
        plugin.destroy(&task);
    }
    plugin.kill();
}

#[test]
fn a_signal_that_ends_it_is_told() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("USR1", 10)] {
        let task = plugin.task(&format!("kill -{name} $$")).start();
        plugin.wait(&task).assert_killed_by(number);
        plugin.destroy(&task);
    }
    plugin.kill();
}

/// Starts a task that is ready for signals.
#[track_caller]
fn ready(plugin: &Plugin<'_>, trap: &str) -> Task {
    let task = plugin.task(&format!("{trap}; echo ready; while :; do sleep 0.02; done")).start();
    task.out().wait_for("ready");
    task
}

#[test]
fn stop_sends_the_signal_and_lets_it_end_by_itself() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for signal in ["SIGINT", "SIGTERM", "SIGHUP"] {
        let task = ready(&plugin, &format!("trap 'exit 7' {}", &signal[3..]));
        plugin.stop(&task, signal, "100s");
        plugin.wait(&task).assert_code(7);
        plugin.destroy(&task);
    }
    plugin.kill();
}

#[test]
fn stop_without_a_signal_sends_sigint_as_nomads_executor_does() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap 'exit 2' INT");
    plugin.stop(&task, "", "100s");
    plugin.wait(&task).assert_code(2);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn stop_kills_after_two_seconds_whoever_ignores_sigint() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap '' INT");
    let began = std::time::Instant::now();
    plugin.stop(&task, "SIGINT", "2s");
    plugin.wait(&task).assert_killed_by(9);
    assert!(began.elapsed() >= std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn stop_with_no_time_kills_at_once() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap '' INT");
    plugin.stop(&task, "SIGINT", "0s");
    plugin.wait(&task).assert_killed_by(9);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn stop_twice_and_stop_of_what_nobody_knows_are_no_errors() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap 'exit 0' TERM");
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(0);
    plugin.stop(&task, "SIGTERM", "100s");
    for unknown in [task.id().replace("web", "other"), String::new(), "../../etc".to_owned()] {
        plugin.try_stop(&unknown, "SIGTERM", "1s").expect("an error costs the agent minutes");
        plugin.destroy_id(&unknown, false).expect("an error costs the agent minutes");
        plugin.destroy_id(&unknown, true).expect("an error costs the agent minutes");
    }
    plugin.destroy(&task);
    plugin.destroy_id(task.id(), false).expect("it is gone already");
    plugin.stop(&task, "SIGTERM", "1s");
    plugin.kill();
}

#[test]
fn a_second_stop_may_shorten_the_wait() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap 'echo asked' TERM");
    let slow = plugin.driver_stream("StopTask", json!({"task_id": task.id(), "signal": "SIGTERM", "timeout": "1000s"}));
    task.out().wait_for("asked");
    plugin.stop(&task, "SIGTERM", "0s");
    plugin.wait(&task).assert_killed_by(9);
    slow.end().expect("it was stopped");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_that_runs_is_destroyed_by_force_alone() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").start();
    let refusal = plugin.destroy_id(task.id(), false).expect_err("it runs");
    refusal.assert_says(&["has not ended"]);
    assert_eq!(plugin.inspect(&task)["task"]["state"], "RUNNING");
    let wait = plugin.begin_wait(&task);
    plugin.destroy_by_force(&task);
    // Whoever waits is told how it ended, or that it is gone.
    while wait.next().is_some() {}
    assert_eq!(plugin.begin_wait(&task).end().expect_err("it is gone").code, "NotFound");
    plugin.kill();
}

#[test]
fn any_number_may_wait_and_for_as_long_as_it_is_not_destroyed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap 'exit 5' USR1");
    let waits: Vec<_> = (0..20).map(|_| plugin.begin_wait(&task)).collect();
    assert!(waits.iter().all(|wait| !wait.has_ended()));
    // One that gives up disturbs no other.
    waits[0].cancel();
    assert_eq!(waits[0].end().expect_err("it gave up").code, "Canceled");
    plugin.signal(&task, "SIGUSR1").expect("it runs");
    for wait in &waits[1..] {
        assert_eq!(wait.next().expect("the end")["result"]["exit_code"], 5);
    }
    for _ in 0..2 {
        plugin.wait(&task).assert_code(5);
    }
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn calls_about_a_task_that_nobody_knows_are_refused() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let id = json!({"task_id": "c0ffee/web/00000000"});
    for method in ["WaitTask", "InspectTask", "SignalTask", "ExecTask"] {
        let refusal = plugin.driver(method, id.clone()).expect_err(method);
        assert_eq!(refusal.code, "NotFound", "{method}: {refusal}");
        // By these words the agent knows it.
        refusal.assert_says(&["task not found for given id"]);
    }
    assert_eq!(plugin.driver_stream("TaskStats", id).end().expect_err("nobody").code, "NotFound");
    plugin.ping();
    plugin.kill();
}

#[test]
fn background_children_end_with_the_leader() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let marker = format!("BOWLINE_CHILD={}", host.prefix());
    let task = plugin.task(&format!("(env {marker} sleep 1000 &); setsid env {marker} sleep 1000 & exit 0")).start();
    plugin.wait(&task).assert_code(0);
    assert_eq!(host.all_of_it().iter().filter(|left| left.contains("sleep 1000")).count(), 0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn inspect_tells_of_a_task_that_runs_and_of_one_that_has_ended() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").start();
    let running = plugin.inspect(&task);
    assert_eq!(
        (&running["task"]["state"], &running["task"]["id"]),
        (&json!("RUNNING"), &json!(task.id())),
        "{running}"
    );
    assert_eq!(running["task"]["name"], task.message()["name"], "{running}");
    let started = time(&running["task"]["started_at"]);
    plugin.stop(&task, "SIGTERM", "0s");
    plugin.wait(&task);
    let ended = plugin.inspect(&task);
    assert_eq!(ended["task"]["state"], "EXITED", "{ended}");
    assert_eq!(ended["task"]["started_at"], running["task"]["started_at"], "{ended}");
    assert!(time(&ended["task"]["completed_at"]) >= started, "{ended}");
    assert_eq!(ended["task"]["result"]["signal"], 9, "{ended}");
    plugin.destroy(&task);
    plugin.kill();
}

#[track_caller]
fn time(value: &Value) -> jiff::Timestamp {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_signal_reaches_the_program() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = ready(&plugin, "trap 'echo hup' HUP; trap 'echo usr1' USR1");
    for (signal, said) in [("SIGHUP", "hup"), ("SIGUSR1", "usr1")] {
        plugin.signal(&task, signal).expect("it has such a name");
        task.out().wait_for(said);
    }
    for unknown in ["SIGFOO", ""] {
        let refusal = plugin.signal(&task, unknown).expect_err("no such signal");
        assert_eq!(refusal.code, "InvalidArgument", "{refusal}");
    }
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_task_of_an_allocation_may_start_again_under_another_id() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let allocation = std::rc::Rc::new(plugin.allocation());
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo $0 >>/alloc/data/starts; exit 1"]});
    let build = || plugin.task_in(allocation.clone(), "web", config.clone());
    for starts in 1..=3 {
        let task = build().start();
        plugin.wait(&task).assert_code(1);
        plugin.destroy(&task);
        for stream in [task.out(), task.err()] {
            std::fs::remove_file(stream.path()).expect("the agent's own");
        }
        let lines = std::fs::read_to_string(allocation.dir().join("alloc/data/starts")).expect("written");
        assert_eq!(lines.lines().count(), starts);
    }
    plugin.kill();
}

#[test]
fn the_same_start_twice_makes_one_task() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").start();
    let again = plugin.driver("StartTask", json!({"task": task.message()}));
    let refusal = again.expect_err("it is there");
    // Another attempt may succeed, once that is gone: the agent looks for this.
    assert_eq!((refusal.code.as_str(), refusal.recoverable), ("FailedPrecondition", Some(true)), "{refusal}");
    assert_eq!(plugin.inspect(&task)["task"]["state"], "RUNNING");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn what_the_agent_kills_by_the_cgroup_has_ended_by_a_signal() {
    if bowline_tests::harness::only_v2() && bowline_tests::harness::lacks("cgroup.kill") {
        return;
    }
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("sleep 1000 & echo ready; exec sleep 1000").start();
    task.out().wait_for("ready");
    task.kill_cgroup();
    plugin.wait(&task).assert_killed_by(9);
    // The shim is not in there, and goes on to serve.
    assert_eq!(plugin.inspect(&task)["task"]["state"], "EXITED");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_knows_its_users_name() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let whose = |user: &str, env: serde_json::Value| {
        let build = plugin.task("echo \"$USER $LOGNAME\"").field("user", user).field("env", env);
        let task = build.start();
        plugin.wait(&task).assert_code(0);
        let said = task.out().all();
        plugin.destroy(&task);
        said
    };
    assert_eq!(whose("", serde_json::json!({})), "nobody nobody\n");
    assert_eq!(whose("daemon", serde_json::json!({"USER": "other"})), "other daemon\n");
    plugin.kill();
}

#[test]
fn many_tasks_at_once() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let tasks: Vec<Task> = (0..10).map(|code| plugin.task(&format!("exit {code}")).start()).collect();
    for (code, task) in (0..).zip(&tasks) {
        plugin.wait(task).assert_code(code);
    }
    tasks.iter().for_each(|task| plugin.destroy(task));
    let pid = plugin.pid();
    plugin.kill();
    eventually("it has left", || (!process_exists(pid)).then_some(()));
}
