//! The life of a container: create, start, its end, delete, and what `state` says in between.

use bowline_tests::Host;
use bowline_tests::harness::process_exists;
use serde_json::json;

use super::SLEEPS;

#[test]
fn a_created_container_is_created() {
    let host = Host::new();
    let runtime = host.oci();
    assert_eq!(runtime.created(runtime.bundle().script(SLEEPS)).status(), "created");
}

#[test]
fn a_started_container_is_running() {
    let host = Host::new();
    let runtime = host.oci();
    assert_eq!(runtime.started(runtime.bundle().script(SLEEPS)).status(), "running");
}

#[test]
fn a_container_whose_init_has_ended_is_stopped_with_pid_0() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 3"));
    container.wait_until("stopped");
    assert_eq!(container.state()["pid"], 0);
}

#[test]
fn a_paused_container_is_paused_and_a_resumed_one_running() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    assert_eq!(container.status(), "paused");
    container.call("resume", &[]).assert_code(0);
    assert_eq!(container.status(), "running");
}

#[test]
fn a_resume_of_a_running_container_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("resume", &[]).assert_code(1);
}

#[test]
fn a_pause_of_a_stopped_container_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.stop();
    container.call("pause", &[]).assert_code(1);
}

#[test]
fn state_has_all_fields_of_the_specification() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS).annotation("knot", "bowline"));
    let state = container.state();
    let path = container.bundle.path.to_str().expect("ASCII");
    assert_eq!(state["id"], json!(container.id));
    assert_eq!(state["bundle"], path);
    assert_eq!(state["rootfs"], format!("{path}/rootfs"));
    assert_eq!(state["annotations"]["knot"], "bowline");
    assert!(state["ociVersion"].as_str().is_some_and(|version| version.starts_with("1.")), "{state}");
    assert!(state["created"].as_str().is_some_and(|time| time.ends_with('Z') && time.contains('T')), "{state}");
    assert!(state["owner"].is_string(), "{state}");
}

#[test]
fn the_pid_of_state_is_inits() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("readlink /proc/self/ns/pid; exec sleep 1000"));
    container.wait_for("pid:[");
    assert_eq!(container.out().trim_end(), bowline_tests::harness::namespace_of(container.pid(), "pid"));
}

#[test]
fn a_created_init_waits_and_start_runs_the_program() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let pid = container.pid();
    assert!(process_exists(pid) && container.out().is_empty(), "{}", container.out());
    container.call("start", &[]).assert_code(0);
    container.wait_for("ready");
    assert_eq!(container.pid(), pid);
}

#[test]
fn a_second_start_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("start", &[]).assert_code(1);
    assert_eq!(container.status(), "running");
}

#[test]
fn a_start_of_a_stopped_container_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    container.call("start", &[]).assert_code(1);
}

#[test]
fn a_start_whose_init_was_killed_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    container.stop();
    let ran = container.call("start", &[]);
    ran.assert_code(1);
}

#[test]
fn of_two_starts_at_once_one_wins() {
    let host = Host::new();
    if host.reference_fails("the second start of runc 1.1 may wait for ever") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let starts = [(); 2].map(|()| runtime.spawn(&["start", &container.id]));
    let mut codes = starts.map(|start| start.finish().code);
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(1)]);
    container.wait_for("ready");
    assert_eq!(container.out(), "ready\n");
}

#[test]
fn the_state_of_an_unknown_id_is_an_error() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["state", "nobody"]);
    ran.assert_code(1);
    assert!(ran.stdout.is_empty() && ran.err().contains("does not exist"), "{ran}");
}

#[test]
fn the_bundle_may_go_once_the_container_is_created() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    // Its root filesystem is mounted, and so it stays as it is for the container.
    std::fs::remove_file(container.bundle.path.join("config.json")).expect("it was written");
    let aside = host.work().join("aside");
    std::fs::rename(&container.bundle.path, &aside).expect("ours");
    container.call("start", &[]).assert_code(0);
    container.wait_for("ready");
    container.stop();
    container.call("delete", &[]).assert_code(0);
    runtime.assert_gone(&container.bundle);
}

#[test]
fn an_exec_needs_no_bundle() {
    let host = Host::new();
    if host.reference_fails("runc enters the bundle for an exec") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    std::fs::rename(&container.bundle.path, host.work().join("aside")).expect("ours");
    container.sh(&[], "echo in it").assert_says("in it");
}

#[test]
fn containers_of_another_state_folder_are_not_found() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let mut command = host.command(bowline_tests::harness::oci::program());
    command.arg("--root").arg(host.work().join("other")).args(["state", &container.id]);
    let ran = host.execute(command);
    ran.assert_code(1);
    assert!(ran.err().contains("does not exist"), "{ran}");
}
