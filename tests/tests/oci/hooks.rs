//! Hooks: when each runs, what it reads, and what the failure of one does.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use serde_json::{Value, json};

use super::SLEEPS;

fn hook(script: &str) -> Value {
    json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin"]})
}

fn keep(host: &Host, name: &str) -> Value {
    json!([hook(&format!("cat >{}", host.work().join(name).display()))])
}

fn state_at(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the hook has run")).expect("JSON")
}

/// The state that the hook at `point` has read once the container is created, started, and deleted.
fn state_of(host: &Host, point: &str) -> (Value, i32) {
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).annotation("knot", "bowline");
    let bundle = bundle.edit(|config| config["hooks"][point] = keep(host, point));
    let container = runtime.created(bundle);
    let pid = container.pid();
    let at = host.work().join(point);
    let of_create = ["prestart", "createRuntime", "createContainer"].contains(&point);
    assert_eq!(at.exists(), of_create, "{point} on create");
    container.call("start", &[]).assert_code(0);
    assert_eq!(at.exists(), of_create || point == "poststart", "{point} on start");
    container.stop();
    assert_eq!(at.exists(), of_create || point == "poststart", "{point} at the end");
    container.call("delete", &[]).assert_code(0);
    let state = state_at(&at);
    assert_eq!(state["id"], json!(container.id));
    assert_eq!(state["bundle"], container.bundle.path.to_str().expect("ASCII"));
    assert_eq!(state["annotations"]["knot"], "bowline");
    (state, pid)
}

#[test]
fn a_prestart_hook_reads_creating_and_inits_pid() {
    let host = Host::new();
    let (state, pid) = state_of(&host, "prestart");
    assert_eq!((&state["status"], &state["pid"]), (&json!("creating"), &json!(pid)));
}

#[test]
fn a_create_runtime_hook_reads_creating_and_inits_pid() {
    let host = Host::new();
    let (state, pid) = state_of(&host, "createRuntime");
    assert_eq!((&state["status"], &state["pid"]), (&json!("creating"), &json!(pid)));
}

#[test]
fn a_create_container_hook_reads_creating() {
    let host = Host::new();
    let (state, _) = state_of(&host, "createContainer");
    assert_eq!(state["status"], "creating");
}

#[test]
fn a_poststart_hook_reads_running_and_inits_pid() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 runs poststart hooks on create") {
        return;
    }
    let (state, pid) = state_of(&host, "poststart");
    assert_eq!((&state["status"], &state["pid"]), (&json!("running"), &json!(pid)));
}

#[test]
fn a_poststop_hook_runs_on_delete_and_reads_stopped() {
    let host = Host::new();
    let (state, _) = state_of(&host, "poststop");
    assert_eq!(state["status"], "stopped");
}

#[test]
fn a_start_container_hook_runs_inside_and_reads_created() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("cat /tmp/state; exec sleep 1000");
    let bundle = bundle.edit(|config| config["hooks"]["startContainer"] = json!([hook("cat >/tmp/state")]));
    let path = bundle.rootfs().join("tmp/state");
    let container = runtime.created(bundle);
    assert!(!path.exists(), "it does not run on create");
    container.call("start", &[]).assert_code(0);
    container.wait_for("}");
    assert_eq!(state_at(&path)["status"], "created");
}

#[test]
fn hooks_of_a_point_run_in_their_order() {
    let host = Host::new();
    let runtime = host.oci();
    let file = host.work().join("order");
    let say = |text: &str| hook(&format!("echo {text} >>{}", file.display()));
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| config["hooks"]["createRuntime"] = json!([say("one"), say("two")]));
    runtime.created(bundle);
    assert_eq!(fs::read_to_string(file).expect("they have run"), "one\ntwo\n");
}

#[test]
fn a_create_runtime_hook_that_fails_undoes_the_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| config["hooks"]["createRuntime"] = json!([hook("exit 9")]));
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("hook") && ran.err().contains('9'), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_create_container_hook_that_fails_undoes_the_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| config["hooks"]["createContainer"] = json!([hook("exit 9")]));
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("hook"), "{ran}");
    runtime.assert_gone(&bundle);
}

/// The reference prints all of it.
#[test]
fn of_a_hook_that_says_much_the_end_is_told() {
    let host = Host::new();
    let runtime = host.oci();
    for point in ["createRuntime", "createContainer"] {
        let bundle = runtime.bundle().script(SLEEPS);
        let script = "i=0; while [ $i -lt 900 ]; do i=$((i+1)); echo noise$i >&2; done; echo the cause >&2; exit 1";
        let bundle = bundle.edit(|config| config["hooks"][point] = json!([hook(script)]));
        let ran = runtime.create(&bundle, &[]);
        ran.assert_code(1);
        assert!(ran.err().contains("noise1") && ran.err().contains("the cause"), "{ran}");
    }
}

#[test]
fn the_program_does_not_run_where_a_start_container_hook_fails() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| config["hooks"]["startContainer"] = json!([hook("exit 9")]));
    let container = runtime.created(bundle);
    container.call("start", &[]);
    container.wait_until("stopped");
    assert_eq!(container.out(), "");
}

#[test]
fn a_start_fails_whose_container_is_killed_in_its_last_hooks() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| {
        config["hooks"]["startContainer"] = json!([hook("echo >/tmp/begun; sleep 1000; :")]);
    });
    let begun = bundle.rootfs().join("tmp/begun");
    let container = runtime.created(bundle);
    let start = runtime.spawn(&["start", &container.id]);
    eventually("the hook runs", || begun.exists().then_some(()));
    container.kill("KILL").assert_code(0);
    start.finish().assert_code(1);
    container.wait_until("stopped");
    assert_eq!(container.out(), "");
}

#[test]
fn a_hook_that_takes_too_long_undoes_the_create() {
    let host = Host::new();
    let runtime = host.oci();
    let mut slow = hook("exec sleep 1000");
    slow["timeout"] = json!(1);
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| config["hooks"]["createRuntime"] = json!([slow]));
    runtime.create(&bundle, &[]).assert_code(1);
    runtime.assert_gone(&bundle);
}

#[test]
fn a_poststop_hook_that_fails_does_not_keep_the_container() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let bundle = bundle.edit(|config| config["hooks"]["poststop"] = json!([hook("exit 9")]));
    let container = runtime.created(bundle);
    container.call("delete", &[]);
    runtime.assert_gone(&container.bundle);
}
