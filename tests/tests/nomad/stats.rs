//! What Nomad is told without asking for it each time: readings, events, the node's fingerprint; and what bowline's own
//! commands say of Nomad's tasks.

use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Launch, driver};
use bowline_tests::harness::{binary, eventually, only_v2, write_program};
use serde_json::{Value, json};

const BUSY: &str = "(while :; do :; done) & echo ready; wait";

#[test]
fn the_first_reading_comes_at_once_and_has_what_was_measured() {
    let host = Host::alone();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(BUSY).start();
    task.out().wait_for("ready");
    let began = Instant::now();
    let stream = plugin.stats(&task, "1000s");
    let reading = stream.next().expect("a reading")["stats"].clone();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(reading["id"], task.id(), "{reading}");
    assert!(reading["timestamp"].is_string(), "{reading}");
    let (cpu, memory) = (&reading["agg_resource_usage"]["cpu"], &reading["agg_resource_usage"]["memory"]);
    for field in ["SYSTEM_MODE", "USER_MODE", "TOTAL_TICKS", "PERCENT"] {
        assert!(cpu["measured_fields"].as_array().expect("a list").contains(&json!(field)), "{field}: {cpu}");
    }
    let of_version: &[&str] =
        if only_v2() { &["KERNEL_USAGE"] } else { &["KERNEL_USAGE", "MAX_USAGE", "KERNEL_MAX_USAGE"] };
    for field in ["RSS", "CACHE", "USAGE"].iter().chain(of_version) {
        assert!(memory["measured_fields"].as_array().expect("a list").contains(&json!(field)), "{field}: {memory}");
    }
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok()).expect("an integer");
    assert!(number(&memory["usage"]) > 0 && number(&memory["rss"]) > 0, "{memory}");
    stream.cancel();
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn readings_come_at_intervals_with_cpu_as_percent_of_one_core() {
    let host = Host::alone();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(BUSY).start();
    task.out().wait_for("ready");
    let stream = plugin.stats(&task, "0.3s");
    let mut times: Vec<jiff::Timestamp> = Vec::new();
    // On a busy machine the task may wait for the whole of an interval.
    eventually("a reading shows a busy task", || {
        let reading = stream.next().expect("a reading")["stats"].clone();
        times.push(reading["timestamp"].as_str().expect("a time").parse().expect("a time"));
        let cpu = &reading["agg_resource_usage"]["cpu"];
        let figure = |name: &str| cpu[name].as_f64().unwrap_or_else(|| panic!("{name} in {cpu}"));
        // percent / 100 · total compute / cores: of two cores with 1000 MHz each.
        assert!((figure("total_ticks") - figure("percent") * 10.0).abs() < 1.0, "{cpu}");
        assert!(figure("percent") < 250.0, "{cpu}");
        let processes = reading["resource_usage_by_pid"].as_object().expect("a map");
        assert!(processes.len() >= 2 && processes.keys().all(|pid| pid.parse::<i32>().is_ok()), "{processes:?}");
        let busy = processes.values().filter_map(|one| one["cpu"]["user_mode"].as_f64()).fold(0.0, f64::max);
        (times.len() > 2 && figure("percent") > 20.0 && busy > 20.0).then_some(())
    });
    assert!(times.is_sorted() && times.first() != times.last(), "{times:?}");
    stream.cancel();
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn readings_end_with_the_task() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").start();
    let stream = plugin.stats(&task, "0.1s");
    stream.next().expect("a reading");
    plugin.stop(&task, "SIGKILL", "0s");
    plugin.wait(&task);
    while stream.next().is_some() {}
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn events_tell_of_the_start_and_of_a_failing_health_check() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let events = plugin.events();
    let check = json!([{"exec": ["/bin/false"], "interval": "100ms", "retries": 1, "on_unhealthy": "stop"}]);
    let task = plugin.task("trap 'exit 0' INT; while :; do sleep 0.02; done").config("healthcheck", check).start();
    let of_task = |event: &Value, word: &str| {
        event["task_id"] == task.id() && event["message"].as_str().is_some_and(|text| text.contains(word))
    };
    let started = events.wait_for("its start", |event| of_task(event, "executed"));
    assert_eq!(started["task_name"], task.message()["name"], "{started}");
    assert!(started["timestamp"].is_string(), "{started}");
    events.wait_for("its health", |event| of_task(event, "unhealthy"));
    events.wait_for("its end", |event| of_task(event, "Stopped"));
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn events_of_a_watch_come_with_their_figures() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let events = plugin.events();
    let watch = json!([{"throttled": [{"above": "1ms", "every": "100ms"}]}]);
    let task = plugin.task("while :; do :; done").config("cpu_hard_limit", true).config("watch", watch).start();
    let found = events.wait_for("a finding", |event| event["annotations"]["found"].is_string());
    assert_eq!(found["task_id"], task.id());
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn two_streams_of_events_have_the_same_and_one_may_go() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let (one, other) = (plugin.events(), plugin.events());
    one.cancel();
    assert_eq!(one.end().expect_err("it gave up").code, "Canceled");
    let task = plugin.task("exit 0").start();
    other.wait_for("its start", |event| event["task_id"] == task.id());
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn the_fingerprint_says_what_the_node_has() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let stream = plugin.fingerprint();
    let first = stream.next().expect("at once");
    assert_eq!((&first["health"], &first["err"]), (&json!("HEALTHY"), &json!("")), "{first}");
    assert!(!first["health_description"].as_str().expect("text").is_empty(), "{first}");
    let attribute = |name: &str| first["attributes"][format!("driver.bowline.{name}")].clone();
    assert_eq!(attribute("cgroup_version")["string_val"], if only_v2() { "2" } else { "1" }, "{first}");
    assert_eq!(attribute("seccomp")["bool_val"], true, "{first}");
    assert!(
        attribute("apparmor")["bool_val"].is_boolean() && attribute("version")["string_val"].is_string(),
        "{first}"
    );
    // The agent sets this one itself.
    assert!(first["attributes"]["driver.bowline"].is_null(), "{first}");
    plugin.ping();
    assert!(!stream.has_ended());
    plugin.kill();
}

#[test]
fn a_node_without_the_shim_is_unhealthy_and_says_how_to_fix_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let empty = host.work().join("empty");
    std::fs::create_dir(&empty).expect("the work folder is writable");
    let plugin = agent.launch_with(json!({"bin_dir": empty}));
    let stream = plugin.fingerprint();
    let first = stream.next().expect("at once");
    assert_eq!(first["health"], "UNHEALTHY", "{first}");
    let said = first["health_description"].as_str().expect("text");
    assert!(said.contains("bowline-shim") && said.contains("bin_dir"), "{said}");
    plugin.task("true").assert_refused(&["bowline-shim"]);
    // Once that is done, the same stream says so.
    for name in ["bowline", "bowline-shim", "bowline-init"] {
        std::os::unix::fs::symlink(binary(name), empty.join(name)).expect("the folder is ours");
    }
    let fixed = stream.next().expect("it lasts");
    assert_eq!(fixed["health"], "HEALTHY", "{fixed}");
    let task = plugin.task("true").start();
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_driver_that_is_switched_off_is_not_detected() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"enabled": false}));
    assert_eq!(plugin.fingerprint().next().expect("at once")["health"], "UNDETECTED");
    plugin.kill();
}

#[test]
fn the_node_has_what_the_driver_is_made_for() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let all = plugin.driver("Capabilities", json!({})).expect("it has some")["capabilities"].clone();
    assert_eq!((&all["send_signals"], &all["exec"]), (&json!(true), &json!(true)), "{all}");
    // Neither hard links nor copies of the host's files.
    assert_eq!(all["fs_isolation"], "IMAGE", "{all}");
    assert_eq!(all["network_isolation_modes"], json!(["HOST", "GROUP"]), "{all}");
    assert_eq!((&all["must_create_network"], &all["mount_configs"]), (&json!(false), &json!("ANY_MOUNTS")), "{all}");
    assert_eq!(all["disable_log_collection"], false, "{all}");
    plugin.kill();
}

#[test]
fn bowline_sees_the_tasks_of_nomad_by_their_job() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("exec sleep 1000").config("labels", json!([{"tier": "front"}])).start();
    let rows = host.bowline(["ps", "--json"]).assert_code(0).json();
    let labels = &rows[0]["labels"];
    let message = task.message();
    for (label, value) in [
        ("job", &message["job_name"]),
        ("group", &message["task_group_name"]),
        ("task", &message["name"]),
        ("allocation", &message["alloc_id"]),
        ("namespace", &message["namespace"]),
        ("tier", &json!("front")),
    ] {
        assert_eq!(&labels[label], value, "{label} in {rows}");
    }
    let id = rows[0]["id"].as_str().expect("text");
    let explained = host.bowline(["explain", id]).assert_code(0).out();
    let job = format!("job={}", message["job_name"].as_str().expect("text"));
    assert!(explained.lines().any(|line| line.starts_with("labels ") && line.contains(&job)), "{explained}");
    let metrics = host.bowline(["metrics", "--once"]).assert_code(0).out();
    let told = metrics.lines().find(|line| line.starts_with("bowline_task_nomad_info{"));
    let told = told.unwrap_or_else(|| panic!("{metrics}"));
    for (label, value) in [
        ("task", id),
        ("nomad_job", message["job_name"].as_str().expect("text")),
        ("nomad_group", message["task_group_name"].as_str().expect("text")),
        ("nomad_task", message["name"].as_str().expect("text")),
        ("nomad_allocation", message["alloc_id"].as_str().expect("text")),
        ("nomad_namespace", message["namespace"].as_str().expect("text")),
    ] {
        assert!(told.contains(&format!("{label}=\"{value}\"")), "{label}: {told}");
    }
    let found = host.bowline(["doctor"]).out();
    let line = found.lines().find(|line| line.contains("Nomad's driver")).unwrap_or_else(|| panic!("{found}"));
    assert!(line.starts_with("+ ") && line.contains("nomad-driver-bowline; 1 task of Nomad in"), "{line}");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn whoever_wraps_the_plugin_names_the_folder_of_the_shim() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let script = host.work().join("plugin");
    write_program(&script, &format!("#!/bin/sh\nexec {}\n", driver().display()));
    let plugin = agent.try_launch(&Launch::new(&script)).expect("it can be launched");
    let bin = driver().parent().expect("a folder").to_owned();
    plugin.configure(agent.config(json!({"bin_dir": bin}))).expect("it takes it");
    let task = plugin.task("exit 4").start();
    plugin.wait(&task).assert_code(4);
    plugin.destroy(&task);
    plugin.kill();
}
