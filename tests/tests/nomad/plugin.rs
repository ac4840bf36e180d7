//! A plugin of Nomad's, from its launch to its end: go-plugin's handshake, its services beside Nomad's own, the agent's
//! three launches.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Launch, driver};
use bowline_tests::harness::{Process, eventually, process_exists, write_program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");

const STDIO: &str = "plugin.GRPCStdio/StreamStdio";

/// The plugin as go-plugin starts it, without a host that talks to it.
fn by_hand(host: &Host, env: &[(&str, &str)]) -> Command {
    let mut command = host.command(driver());
    command.env("PLUGIN_MIN_PORT", "10000").env("PLUGIN_MAX_PORT", "25000").env("PLUGIN_PROTOCOL_VERSIONS", "2");
    command.env("PLUGIN_UNIX_SOCKET_DIR", host.work()).envs(env.iter().copied());
    command
}

/// The line that it says once somebody can connect.
#[track_caller]
fn first_line(plugin: &Process) -> String {
    plugin.wait_for_out("\n");
    plugin.said().lines().next().expect("a line").to_owned()
}

#[track_caller]
fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
}

/// It has left by itself when it was asked to, and in time.
#[track_caller]
fn assert_left(end: &Value) {
    assert_eq!(end["code"], 0, "{end}");
    assert!(end["took_ms"].as_u64() < Some(2000), "{end}");
}

#[test]
fn the_agent_launches_it_three_times() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let first = agent.launch_bare();
    let info = first.base("PluginInfo", json!({})).expect("it says who it is");
    assert_eq!((&info["type"], &info["name"]), (&json!("DRIVER"), &json!("bowline")), "{info}");
    assert!(info["plugin_api_versions"].as_array().is_some_and(|all| all.contains(&json!("v0.1.0"))), "{info}");
    let version = info["plugin_version"].as_str().expect("a version").trim_start_matches('v');
    assert_eq!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3, "{info}");
    let packed = first.encoded("config", &agent.config(json!({}))).expect("its own schema allows it");
    assert_left(&first.kill());

    let second = agent.launch_bare();
    second.configure_packed(&packed, Value::Null).expect("a configuration without the node's");
    assert_left(&second.kill());

    let third = agent.launch();
    let (fingerprint, events) = (third.fingerprint(), third.events());
    assert_eq!(fingerprint.next().expect("at once")["health"], "HEALTHY");
    assert!(!events.has_ended());
    third.ping();
    assert_left(&third.kill());
    for plugin in [&first, &second, &third] {
        assert!(!plugin.socket().exists() && !process_exists(plugin.pid()));
    }
}

#[test]
fn a_launch_alone_makes_nothing() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_bare();
    plugin.base("PluginInfo", json!({})).expect("it says who it is");
    plugin.base("ConfigSchema", json!({})).expect("it has one");
    assert!(!host.state().exists());
    plugin.kill();
}

#[test]
fn whoever_starts_it_by_hand_is_told_what_it_is() {
    let host = Host::new();
    for (what, env) in [("no cookie", None), ("another cookie", Some((COOKIE.0, "deadbeef")))] {
        let ran = host.execute(by_hand(&host, env.as_slice()));
        assert!(ran.code == Some(1) && ran.stdout.is_empty(), "{what}: {ran}");
        assert!(ran.err().contains("Nomad") && ran.err().contains("plugin_dir"), "{what}: {ran}");
    }
}

#[test]
fn a_host_of_another_protocol_is_refused() {
    let host = Host::new();
    for (name, value) in [("PLUGIN_PROTOCOL_VERSIONS", "1,3"), ("PLUGIN_CLIENT_CERT", "-----BEGIN CERTIFICATE-----")] {
        let ran = host.execute(by_hand(&host, &[COOKIE, (name, value)]));
        assert!(ran.code == Some(1) && ran.stdout.is_empty() && !ran.stderr.is_empty(), "{name}: {ran}");
    }
}

#[test]
fn its_line_names_a_socket_that_is_there() {
    let host = Host::new();
    for (env, end) in [(&[COOKIE][..], "|grpc|"), (&[COOKIE, ("PLUGIN_MULTIPLEX_GRPC", "true")], "|grpc||false")] {
        let plugin = host.spawn_command(by_hand(&host, env));
        let line = first_line(&plugin);
        let path = line.strip_prefix("1|2|unix|").and_then(|rest| rest.strip_suffix(end));
        let path = path.unwrap_or_else(|| panic!("{line:?}"));
        assert_eq!(Path::new(path).parent(), Some(host.work().as_path()));
        UnixStream::connect(path).expect("somebody listens");
        drop(plugin);
        fs::remove_file(path).expect("it was killed, and could not");
    }
}

#[test]
fn its_socket_is_private_whatever_the_umask() {
    let host = Host::new();
    let plugin = by_hand(&host, &[COOKIE]);
    let mut command = host.command("/bin/sh");
    command.args(["-c", "umask 000; exec \"$0\""]).arg(plugin.get_program());
    command.envs(plugin.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let plugin = host.spawn_command(command);
    let line = first_line(&plugin);
    let path = line.split('|').nth(3).expect("a path");
    assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o777, 0o600);
    drop(plugin);
}

#[test]
fn a_group_may_be_given_its_socket() {
    let host = Host::new();
    let plugin = host.spawn_command(by_hand(&host, &[COOKIE, ("PLUGIN_UNIX_SOCKET_GROUP", "65534")]));
    let line = first_line(&plugin);
    let path = line.split('|').nth(3).expect("a path");
    let socket = fs::metadata(path).expect("it is there");
    assert_eq!((socket.gid(), socket.permissions().mode() & 0o777), (65534, 0o660));
    drop(plugin);
    let ran = host.execute(by_hand(&host, &[COOKIE, ("PLUGIN_UNIX_SOCKET_GROUP", "no-such-group")]));
    assert!(ran.code == Some(1) && ran.err().contains("no-such-group"), "{ran}");
}

#[test]
fn a_host_that_would_multiplex_connects_all_the_same() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    // go-plugin takes "|false" for a refusal, and says that the plugin must support it; no line of another form.
    let Err(refusal) = agent.try_launch(&Launch::new(&driver()).multiplexed()) else { panic!("it does not multiplex") };
    assert!(refusal.message.contains("multiplex"), "{refusal}");
}

#[test]
fn sigint_of_the_agents_group_does_not_end_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    signal(plugin.pid(), Signal::INT);
    plugin.ping();
    assert_left(&plugin.kill());
}

#[test]
fn its_output_and_its_broker_are_streams_that_stay_open() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    // go-plugin itself has opened the first.
    let streams = [plugin.open(STDIO, json!({})), plugin.open(STDIO, json!({})), {
        let broker = plugin.open("plugin.GRPCBroker/StartStream", Value::Null);
        broker.send(json!({"service_id": 7, "network": "unix", "address": "/nowhere"}));
        broker
    }];
    plugin.ping();
    assert!(streams.iter().all(|stream| !stream.has_ended()));
    let logged = plugin.logs();
    assert!(!logged.iter().any(|entry| entry.to_string().contains("stopping recv loop")), "{logged:?}");
    streams[0].cancel();
    assert_eq!(streams[0].end().expect_err("it was given up").code, "Canceled");
    plugin.ping();
    assert_left(&plugin.kill());
}

#[test]
fn its_health_is_that_of_one_service() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let check = |service: &str| plugin.call("grpc.health.v1.Health/Check", json!({"service": service}));
    assert_eq!(check("plugin").expect("go-plugin asks so")["status"], "SERVING");
    assert_eq!(check("nobody").expect_err("there is none").code, "NotFound");
    plugin.kill();
}

#[test]
fn its_log_is_one_object_a_line_and_all_text() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let (script, log) = (host.work().join("plugin"), host.work().join("stderr"));
    write_program(&script, &format!("#!/bin/sh\nexec {} 2>{}\n", driver().display(), log.display()));
    let launch = Launch::new(&script).env(&["BOWLINE_LOG=trace"]);
    let plugin = agent.try_launch(&launch).expect("it can be launched");
    plugin.configure(agent.config(json!({}))).expect("it takes it");
    plugin.task("true").field("user", "no-such-user".repeat(10_000)).assert_refused(&[]);
    plugin.kill();
    let text = fs::read_to_string(&log).expect("it was made");
    assert!(!text.is_empty());
    for line in text.lines() {
        assert!(line.len() < 64 * 1024, "{} bytes", line.len());
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let fields = entry.as_object().unwrap_or_else(|| panic!("{line}"));
        assert!(fields.values().all(Value::is_string), "{line}");
        let level = entry["@level"].as_str().expect("a level");
        assert!(["trace", "debug", "info", "warn", "error"].contains(&level), "{line}");
        assert!(entry["@message"].is_string(), "{line}");
        // 2006-01-02T15:04:05.000000Z07:00
        let time = entry["@timestamp"].as_str().expect("a time");
        let (seconds, rest) = time.split_once('.').unwrap_or_else(|| panic!("{line}"));
        assert_eq!((seconds.len(), rest[..6].parse::<u32>().is_ok()), (19, true), "{line}");
        assert!(rest[6..] == *"Z" || rest[6..].len() == 6, "{line}");
    }
}

#[test]
fn messages_may_have_ten_megabytes() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let long = "x".repeat(10_000_000);
    plugin.try_stop(&long, "SIGTERM", "1s").expect("nobody knows such a task");
    let task = plugin.task("exec sleep 1000").start();
    let error = plugin.signal(&task, &long).expect_err("no such signal");
    assert!(error.message.len() < 10_000, "{} bytes", error.message.len());
    plugin.ping();
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn it_leaves_in_time_whatever_is_asked_of_it_and_the_tasks_stay() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("echo ready; exec sleep 1000").start();
    task.out().wait_for("ready");
    let streams = [
        plugin.begin_wait(&task),
        plugin.stats(&task, "0.1s"),
        plugin.exec_stream(&task, "echo ready; exec sleep 4711", true),
        plugin.events(),
        plugin.fingerprint(),
    ];
    streams[1].next().expect("a reading");
    streams[2].next().expect("it is ready");
    assert_left(&plugin.kill());
    // By this the agent knows that it is to ask the next process of the plugin.
    for stream in &streams {
        while stream.next().is_some() {}
        let code = stream.end().expect_err("it could go on for ever").code;
        // Or the host was the first to close the connection.
        assert!(code == "Unavailable" || code == "Canceled", "{code}");
    }
    // The shim ends it once the plugin's connection has gone.
    eventually("the exec has ended", || {
        (!host.all_of_it().iter().any(|left| left.contains("sleep 4711"))).then_some(())
    });
    let next = agent.launch();
    next.recover(&task).expect("it lives");
    assert_eq!(next.inspect(&task)["task"]["state"], "RUNNING");
    next.destroy_by_force(&task);
    next.kill();
}

#[test]
fn two_plugins_do_not_touch_each_others_tasks() {
    let host = Host::new();
    let (Some(one), Some(other)) = (host.nomad(), host.nomad()) else { return };
    let (one, other) = (one.launch(), other.launch());
    let (first, second) = (one.task("exec sleep 1000").start(), other.task("exec sleep 1000").start());
    assert_ne!(first.id(), second.id());
    signal(one.pid(), Signal::KILL);
    fs::remove_file(one.socket()).expect("it had no time for that");
    assert_eq!(other.inspect(&second)["task"]["state"], "RUNNING");
    other.recover(&first).expect("whoever asks first");
    for task in [&first, &second] {
        other.destroy_by_force(task);
    }
    other.kill();
}

#[test]
fn the_next_agent_finds_it_again_after_the_first_was_killed() {
    let host = Host::new();
    let (Some(first), Some(second)) = (host.nomad(), host.nomad()) else { return };
    let plugin = first.launch();
    let task = plugin.task("echo ready; exec sleep 1000").start();
    task.out().wait_for("ready");
    first.die();
    // Nobody reads its log any more, and it goes on.
    let again = second.reattach(&plugin);
    again.task("true").field("user", "no-such-user").assert_refused(&["no-such-user"]);
    assert_eq!(again.inspect(&task)["task"]["state"], "RUNNING");
    let stdio = again.open(STDIO, json!({}));
    again.ping();
    assert!(!stdio.has_ended());
    again.destroy_by_force(&task);
    again.kill();
    eventually("it has left", || (!process_exists(again.pid())).then_some(()));
    assert!(!again.socket().exists());
}

#[test]
fn it_says_of_every_call_that_it_does_not_know_that_it_does_not() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let create = plugin.driver("CreateNetwork", json!({"alloc_id": "a", "hostname": "h"}));
    assert_eq!(create.expect_err("the agent makes networks").code, "Unimplemented");
    plugin.ping();
    plugin.kill();
}
