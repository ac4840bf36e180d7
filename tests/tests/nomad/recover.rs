//! Tasks of Nomad's whose agent, plugin or shim ends before them.

use std::fs;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Agent, Plugin, Task, decoded, encoded};
use bowline_tests::harness::{eventually, fds_of, is_slow, process_exists, status_lines};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Counts on stdout until it is told to end by SIGTERM, and then exits with 7.
const COUNTER: &str = "trap 'exit 7' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done";

#[track_caller]
fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("it is gone", || (!process_exists(pid)).then_some(()));
}

/// What the driver has had Nomad keep.
fn state(task: &Task) -> Value {
    let state = decoded(task.answer()["handle"]["driver_state"].as_str().expect("base64"));
    serde_json::from_slice(&state).expect("JSON, but for a driver of another version")
}

#[track_caller]
pub fn shim_of(task: &Task) -> i32 {
    state(task)["shim_pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a pid")
}

/// The handle after a restart, with this for the driver's state.
fn with_state(task: &Task, state: &str) -> Value {
    let mut handle = task.handle_after_restart();
    handle["driver_state"] = json!(encoded(state.as_bytes()));
    handle
}

/// Kills the plugin, and has the agent launch it again.
#[track_caller]
pub fn relaunched<'h>(agent: &Agent<'h>, plugin: Plugin<'h>) -> Plugin<'h> {
    relaunched_with(agent, plugin, json!({}))
}

/// Like [`relaunched`], with this in the driver's configuration.
#[track_caller]
pub fn relaunched_with<'h>(agent: &Agent<'h>, plugin: Plugin<'h>, config: Value) -> Plugin<'h> {
    kill(plugin.pid());
    plugin.kill();
    // It had no time for that itself.
    let _ = fs::remove_file(plugin.socket());
    agent.launch_with(config)
}

#[test]
fn a_task_lives_on_and_is_found_again_without_its_config() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    task.out().wait_for("line 2\n");
    plugin.kill();
    let plugin = agent.launch();
    plugin.recover(&task).expect("it lives");
    assert_eq!(plugin.inspect(&task)["task"]["state"], "RUNNING");
    let (said, _) = plugin.exec(&task, "echo alive", "10s").expect("it runs");
    assert_eq!(said, "alive\n");
    plugin.stats(&task, "1s").next().expect("a reading");
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(7);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_plugin_killed_while_somebody_waits_loses_no_exit_code() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    // It has its trap by then.
    task.out().wait_for("line 1\n");
    let wait = plugin.begin_wait(&task);
    let plugin = relaunched(&agent, plugin);
    assert!(wait.next().is_none() && wait.end().is_err(), "the agent sees that the plugin is gone");
    plugin.recover(&task).expect("it lives");
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(7);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_that_ended_meanwhile_has_its_real_exit_code() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("until [ -e /local/go ]; do sleep 0.02; done; exit 11").start();
    kill(plugin.pid());
    plugin.kill();
    let _ = fs::remove_file(plugin.socket());
    fs::write(task.local("go"), "").expect("ours");
    eventually("it has ended", || (!process_exists(shim_of(&task))).then_some(()));
    let plugin = agent.launch();
    plugin.recover(&task).expect("its report is there");
    plugin.wait(&task).assert_code(11);
    assert_eq!(plugin.inspect(&task)["task"]["state"], "EXITED");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_whose_shim_was_killed_is_taken_over() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    task.out().wait_for("line 2\n");
    kill(shim_of(&task));
    plugin.recover(&task).expect("its own init holds it");
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(7);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn the_plugin_replaces_a_killed_shim_without_the_agent() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    let wait = plugin.begin_wait(&task);
    task.out().wait_for("line 2\n");
    kill(shim_of(&task));
    plugin.stop(&task, "SIGTERM", "100s");
    assert_eq!(wait.next().expect("the end")["result"]["exit_code"], 7);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn shim_and_plugin_killed_and_the_task_ended_meanwhile() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("until [ -e /local/go ]; do sleep 0.02; done; exit 12").start();
    let shim = shim_of(&task);
    kill(shim);
    let plugin = relaunched(&agent, plugin);
    fs::write(task.local("go"), "").expect("ours");
    plugin.recover(&task).expect("its own init has its exit code");
    plugin.wait(&task).assert_code(12);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn output_goes_on_after_every_restart() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    task.out().wait_for("line 2\n");
    // The agent's reader ends with it, and another comes.
    task.out().stop_reading();
    let plugin = relaunched(&agent, plugin);
    task.out().read();
    plugin.recover(&task).expect("it lives");
    let before = task.out().length();
    eventually("more of its output", || (task.out().length() > before).then_some(()));
    // A FIFO ends with its last writer: the agent's reader too, and another comes.
    kill(shim_of(&task));
    task.out().all();
    task.out().read();
    plugin.recover(&task).expect("its own init holds it");
    let before = task.out().length();
    eventually("more of its output", || (task.out().length() > before).then_some(()));
    plugin.stop(&task, "SIGTERM", "100s");
    plugin.wait(&task).assert_code(7);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn recovering_twice_changes_nothing() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    for _ in 0..3 {
        plugin.recover(&task).expect("it lives");
    }
    assert!(process_exists(shim_of(&task)));
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_task_that_is_gone_is_lost_and_said_to_be() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exit 0").start();
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    let refusal = plugin.recover(&task).expect_err("nothing is left of it");
    refusal.assert_says(&["lost"]);
    plugin.destroy_id(task.id(), true).expect("what the agent does then");
    plugin.kill();
}

#[test]
fn a_task_of_the_boot_before_is_lost() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    let shim = shim_of(&task);
    plugin.destroy_by_force(&task);
    eventually("its shim has left", || (!process_exists(shim)).then_some(()));
    // /run is empty after a boot, and any process may have that pid by now: this one has.
    let mut kept = state(&task);
    kept["shim_pid"] = json!(std::process::id());
    plugin.recover_handle(with_state(&task, &kept.to_string())).expect_err("it is gone").assert_says(&["lost"]);
    plugin.kill();
}

#[test]
fn a_task_recorded_in_an_earlier_boot_is_lost_and_cleaned_up() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    task.out().wait_for("line 2\n");
    // As a power cut does: all processes and cgroups are gone, and the state folder was on a disk.
    let kept = state(&task);
    let folder = PathBuf::from(kept["folder"].as_str().expect("text"));
    let plugin = relaunched(&agent, plugin);
    kill(shim_of(&task));
    let cgroup = kept["cgroup"].as_str().expect("text").trim_start_matches('/');
    let mounts = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten().map(|entry| entry.path());
    for there in mounts.chain(["/sys/fs/cgroup".into()]).map(|mount| mount.join(cgroup)).filter(|path| path.is_dir()) {
        eventually(format_args!("{} is empty", there.display()), || {
            let pids = fs::read_to_string(there.join("cgroup.procs")).unwrap_or_default();
            let pids = pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            for pid in pids {
                let _ = kill_process(pid, Signal::KILL);
            }
            fs::remove_dir(&there).is_ok().then_some(())
        });
    }
    let record = folder.join("task.json");
    let mut text: Value = serde_json::from_str(&fs::read_to_string(&record).expect("it is there")).expect("JSON");
    assert!(text["identity"]["boot"].is_string(), "{text}");
    text["identity"]["boot"] = json!("00000000-0000-0000-0000-000000000000");
    fs::write(&record, text.to_string()).expect("ours");
    plugin.recover(&task).expect_err("it is gone").assert_says(&["lost", "earlier boot"]);
    assert!(!folder.exists());
    plugin.destroy_id(task.id(), true).expect("what the agent does then");
    task.remove_cgroups();
    plugin.kill();
}

#[test]
fn a_shim_and_init_that_died_leave_nothing_after_a_recovery() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").config("init", false).start();
    // Its init first, so that nobody holds its exit code.
    let shim = shim_of(&task);
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::STOP).expect("it lives");
    let init = host.all_of_it().into_iter().find(|left| left.contains("sleep 1000")).expect("it runs");
    let init = init.split([' ', ':']).nth(1).and_then(|pid| pid.parse().ok()).expect("process PID: …");
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("both are gone", || (!process_exists(shim) && !process_exists(init)).then_some(()));
    match plugin.recover(&task) {
        Err(refusal) => drop(refusal.assert_says(&["lost"])),
        // Where the kernel tells, its end is known; where it does not, the new shim may find that out a moment later.
        Ok(()) => {
            let told = plugin.begin_wait(&task).next().expect("an answer");
            let is_lost = told["err"].as_str().is_some_and(|error| error.contains("nobody knows"));
            assert!(is_lost || told["result"]["signal"] == 9, "{told}");
        }
    }
    plugin.destroy_id(task.id(), true).expect("whatever is left");
    task.remove_cgroups();
    plugin.kill();
}

#[test]
fn a_task_whose_state_is_unreadable_can_still_be_destroyed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    let plugin = relaunched(&agent, plugin);
    let kept = state(&task);
    let text = kept.to_string();
    let length = if is_slow() { 1_000_000 } else { 10_000_000 };
    let mut newer = kept.clone();
    newer["version"] = json!(4711);
    for (what, damaged, parts) in [
        ("newer", newer.to_string(), &["newer", "4711"][..]),
        ("cut short", text[..text.len() / 2].to_owned(), &["damaged"]),
        ("empty", String::new(), &["damaged"]),
        ("no JSON", "\0\u{1}".repeat(100), &["damaged"]),
        ("long", format!("{{\"version\": 1, \"task_id\": \"{}\"}}", "x".repeat(length)), &["damaged"]),
    ] {
        let refusal = plugin.recover_handle(with_state(&task, &damaged)).expect_err(what);
        refusal.assert_says(parts);
        assert!(refusal.message.len() < 10_000, "{what}: {} bytes", refusal.message.len());
    }
    plugin.recover_handle(json!({"version": 1})).expect_err("no state at all");
    plugin.driver("RecoverTask", json!({})).expect_err("no handle at all");
    plugin.ping();
    // All that the agent has then is the id.
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn another_starts_state_is_not_taken_for_this_tasks() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    let mut kept = state(&task);
    kept["nonce"] = json!("another");
    plugin.recover_handle(with_state(&task, &kept.to_string())).expect_err("another start").assert_says(&["lost"]);
    let other = plugin.task(COUNTER).start();
    plugin.recover_handle(with_state(&task, &state(&other).to_string())).expect_err("another task");
    for task in [&task, &other] {
        assert_eq!(plugin.inspect(task)["task"]["state"], "RUNNING");
        plugin.destroy_by_force(task);
    }
    plugin.kill();
}

#[test]
fn a_shim_has_nothing_of_the_plugins() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let theirs = fds_of(plugin.pid());
    let task = plugin.task("exec sleep 1000").start();
    let shim = shim_of(&task);
    // Pipes, sockets: each has a number of its own.
    let shared: Vec<_> = fds_of(shim)
        .into_iter()
        .filter(|fd| (fd.starts_with("pipe:") || fd.starts_with("socket:")) && theirs.contains(fd))
        .collect();
    assert!(shared.is_empty(), "{shared:?}");
    let stat = fs::read_to_string(format!("/proc/{shim}/stat")).expect("it lives");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // Its group and its session: the fields 5 and 6.
    assert_eq!((fields[2], fields[3]), (&*shim.to_string(), &*shim.to_string()), "{stat}");
    assert_eq!(status_lines(shim, &["Threads"]), "Threads:\t1");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn neither_shim_nor_task_is_in_the_cgroup_of_the_agents_service() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let service = host.elsewhere("service");
    service.take(&[plugin.pid()]);
    let task = plugin.task("echo ready; exec sleep 1000").start();
    task.out().wait_for("ready");
    // Whoever stops the service kills all that is in there.
    assert_eq!(service.pids(), [plugin.pid()]);
    plugin.destroy_by_force(&task);
    plugin.driver("Shutdown", json!({})).expect("the agent says so before it ends");
    plugin.kill();
    service.remove();
}

#[test]
fn a_task_is_upgraded_below_the_plugin() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(COUNTER).start();
    task.out().wait_for("line 2\n");
    let wait = plugin.begin_wait(&task);
    host.bowline(["upgrade", "--all"]).assert_code(0);
    let before = task.out().length();
    eventually("more of its output", || (task.out().length() > before).then_some(()));
    plugin.stop(&task, "SIGTERM", "100s");
    assert_eq!(wait.next().expect("the end")["result"]["exit_code"], 7);
    plugin.destroy(&task);
    plugin.kill();
}
