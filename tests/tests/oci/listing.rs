//! What only reads: `list`, `ps`, `features`, `--version`, and the log of errors.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::is_reference;
use bowline_tests::harness::oci::program;
use bowline_tests::harness::only_v2;
use serde_json::{Value, json};

use super::SLEEPS;

#[test]
fn list_is_a_table() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let ran = runtime.call(&["list"]);
    let text = ran.assert_code(0).out();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"], "{ran}");
    let pid = container.pid().to_string();
    let path = container.bundle.path.to_str().expect("ASCII");
    assert_eq!(rows[1][..4], [&container.id, &pid, "created", path], "{ran}");
    assert_eq!(rows.len(), 2, "{ran}");
}

#[test]
fn list_is_json_with_all_that_state_has() {
    let host = Host::new();
    let runtime = host.oci();
    let containers = [(); 2].map(|()| runtime.created(runtime.bundle().script(SLEEPS)));
    let list = runtime.call(&["list", "--format", "json"]).assert_code(0).json();
    let list = list.as_array().expect("a list");
    assert_eq!(list.len(), 2);
    for container in &containers {
        let row = list.iter().find(|row| row["id"] == json!(container.id)).expect("it is listed");
        for field in ["pid", "status", "bundle", "rootfs", "created"] {
            assert_eq!(row[field], container.state()[field], "{field}");
        }
    }
}

#[test]
fn list_q_is_ids_alone() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    runtime.call(&["list", "-q"]).assert_says(&container.id);
}

#[test]
fn a_list_of_nothing_is_no_error() {
    let host = Host::new();
    let runtime = host.oci();
    runtime.call(&["list", "-q"]).assert_says("");
    assert_eq!(runtime.call(&["list", "-f", "json"]).assert_code(0).json(), Value::Null);
}

#[test]
fn an_unknown_format_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["list", "--format", "yaml"]);
    ran.assert_code(1);
    assert!(ran.err().contains("format"), "{ran}");
}

#[test]
fn ps_as_json_is_the_pids_of_the_host() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("sleep 1000 & echo ready; exec sleep 1000"));
    container.wait_for("ready");
    let pids = container.call("ps", &["--format", "json"]).assert_code(0).json();
    let mut pids: Vec<i32> = serde_json::from_value(pids).expect("a list of numbers");
    pids.sort_unstable();
    assert_eq!(pids, runtime.cgroup(&container.bundle).pids());
    assert!(pids.len() == 2 && pids.contains(&container.pid()), "{pids:?}");
}

#[test]
fn ps_is_a_table_of_the_container_alone() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exec sleep 1234"));
    container.wait_until("running");
    let pid = container.pid().to_string();
    let shown = || container.call("ps", &[]).assert_code(0).out();
    let text = bowline_tests::harness::eventually("it sleeps", || Some(shown()).filter(|text| text.contains("1234")));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("PID") && lines[1].contains(&pid), "{text}");
}

#[test]
fn ps_takes_options_of_ps() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.wait_for("ready");
    let ran = runtime.call(&["ps", &container.id, "-o", "pid,stat", "-e"]);
    let head: Vec<String> = ran.assert_code(0).out().split_whitespace().map(str::to_owned).collect();
    assert_eq!(head[..3], ["PID".to_owned(), "STAT".to_owned(), container.pid().to_string()], "{ran}");
}

#[test]
fn features_is_json_alone() {
    let host = Host::new();
    let runtime = host.oci();
    let features = runtime.call(&["features"]).assert_code(0).json();
    assert_eq!(features["ociVersionMin"], "1.0.0", "{features}");
    let hooks = features["hooks"].as_array().expect("a list");
    assert!(hooks.contains(&json!("createRuntime")), "{features}");
}

#[test]
fn the_first_line_of_version_is_a_name_and_a_version() {
    let host = Host::new();
    let mut command = host.command(program());
    command.arg("--version");
    let ran = host.execute(command);
    let text = ran.assert_code(0).out();
    let words: Vec<&str> = text.lines().next().expect("a line").split(' ').collect();
    let name = if is_reference() { "runc" } else { "bowline-oci" };
    assert_eq!(words[..2], [name, "version"], "{ran}");
    assert!(words.len() == 3 && words[2].starts_with(|digit: char| digit.is_ascii_digit()), "{ran}");
    assert!(text.lines().any(|line| line.starts_with("spec: 1.")), "{ran}");
}

#[test]
fn an_error_goes_to_stderr_as_one_line() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["state", "nobody"]);
    assert!(ran.stdout.is_empty() && ran.err().lines().count() == 1, "{ran}");
}

#[test]
fn a_log_in_json_has_the_error() {
    let host = Host::new();
    let runtime = host.oci();
    let log = host.work().join("log");
    let ran = runtime.call(&["--log", log.to_str().expect("ASCII"), "--log-format", "json", "state", "nobody"]);
    ran.assert_code(1);
    let text = fs::read_to_string(&log).expect("it was written");
    let line: Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
    assert_eq!(line["level"], "error");
    assert!(line["msg"].as_str().is_some_and(|message| message.contains("does not exist")), "{line}");
    let time = line["time"].as_str().expect("a time");
    time.parse::<jiff::Timestamp>().expect("as RFC 3339 has it");
    assert!(ran.err().contains("does not exist"), "stderr has it too: {ran}");
}

#[test]
fn a_log_has_the_error_of_a_create() {
    let host = Host::new();
    let runtime = host.oci();
    let log = host.work().join("log");
    let bundle = runtime.bundle().args(&["no-such-program"]);
    let path = bundle.path.to_str().expect("ASCII");
    let flags = ["--log", log.to_str().expect("ASCII"), "--log-format", "json", "create", "--bundle", path];
    runtime.call_apart(&bundle.id, &[&flags[..], &[&bundle.id]].concat()).assert_code(1);
    let text = fs::read_to_string(&log).expect("it was written");
    let line: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert!(line["msg"].as_str().is_some_and(|message| message.contains("no-such-program")), "{line}");
}

#[test]
fn a_container_is_created_with_a_log() {
    let host = Host::new();
    let runtime = host.oci();
    let log = host.work().join("log");
    let bundle = runtime.bundle().script(SLEEPS);
    let path = bundle.path.to_str().expect("ASCII");
    let flags = ["--log", log.to_str().expect("ASCII"), "--log-format", "json", "create", "--bundle", path];
    runtime.call_apart(&bundle.id, &[&flags[..], &[&bundle.id]].concat()).assert_code(0);
    let fds = bowline_tests::harness::fds_of(runtime.adopt(bundle).pid());
    assert!(!fds.iter().any(|fd| fd.ends_with("/w/log")), "the container has no log: {fds:?}");
}

#[test]
fn a_log_is_appended_to() {
    let host = Host::new();
    let runtime = host.oci();
    let log = host.file("log", "{\"level\":\"info\"}\n");
    runtime.call(&["--log", log.to_str().expect("ASCII"), "--log-format", "json", "state", "nobody"]);
    let text = fs::read_to_string(&log).expect("it is there");
    assert!(text.starts_with("{\"level\":\"info\"}\n") && text.lines().count() == 2, "{text}");
}

#[test]
fn spec_writes_a_configuration_that_runs() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle();
    fs::remove_file(bundle.path.join("config.json")).expect("it was written");
    let mut command = runtime.command(&["spec"]);
    command.current_dir(&bundle.path);
    host.execute(command).assert_code(0);
    let text = fs::read_to_string(bundle.path.join("config.json")).expect("it was written");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(["echo", "hello"]);
    config["linux"]["cgroupsPath"] = bundle.config["linux"]["cgroupsPath"].clone();
    let bundle = bundle.write(&config.to_string());
    runtime.run(&bundle, &[]).assert_says("hello");
}

#[test]
fn a_row_of_json_begins_with_the_version_and_the_id() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let text = runtime.call(&["list", "-f", "json"]).out();
    let id = format!(",\"id\":\"{}\",\"pid\":", container.id);
    assert!(text.starts_with("[{\"ociVersion\":\"") && text.contains(&id), "{text}");
}

#[test]
fn spec_asks_for_a_cgroup_namespace_on_v2_alone() {
    let host = Host::new();
    let runtime = host.oci();
    let folder = host.work().join("spec");
    fs::create_dir(&folder).expect("ours");
    runtime.call(&["spec", "--bundle", folder.to_str().expect("ASCII")]).assert_code(0);
    let text = fs::read_to_string(folder.join("config.json")).expect("it was written");
    let config: Value = serde_json::from_str(&text).expect("JSON");
    let namespaces = config["linux"]["namespaces"].as_array().expect("a list");
    assert_eq!(namespaces.iter().any(|namespace| namespace["type"] == "cgroup"), only_v2());
}

#[test]
fn debug_says_what_is_called() {
    let host = Host::new();
    let runtime = host.oci();
    let log = host.work().join("log");
    let log = log.to_str().expect("ASCII");
    let bundle = runtime.bundle().script("exit 0");
    let path = bundle.path.to_str().expect("ASCII");
    let flags = ["--debug", "--log", log, "--log-format", "json"];
    runtime.call(&[&flags[..], &["run", "--bundle", path, &bundle.id]].concat()).assert_code(0);
    let text = fs::read_to_string(log).expect("it is there");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut called = lines.into_iter().filter(|line| line["level"] == "debug");
    assert!(called.any(|line| line.to_string().contains("run")), "{text}");
    assert!(!text.contains(path), "arguments may be secret: {text}");
}

#[test]
fn spec_overwrites_no_configuration() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle();
    let mut command = runtime.command(&["spec"]);
    command.current_dir(&bundle.path);
    host.execute(command).assert_code(1);
    assert_eq!(bundle.read("config.json"), serde_json::to_string_pretty(&bundle.config).expect("JSON"));
}

#[test]
fn the_help_of_a_command_ends_with_0() {
    let host = Host::new();
    let ran = host.oci().call(&["create", "--help"]);
    assert!(ran.assert_code(0).out().contains("--bundle"), "{ran}");
}
