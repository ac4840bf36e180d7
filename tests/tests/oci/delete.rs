//! `delete`: in which states, and what goes with it.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{eventually, process_exists};

use super::SLEEPS;

#[test]
fn a_stopped_container_is_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    container.call("delete", &[]).assert_code(0);
    runtime.assert_gone(&container.bundle);
}

#[test]
fn a_created_container_is_killed_and_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let pid = container.pid();
    container.call("delete", &[]).assert_code(0);
    runtime.assert_gone(&container.bundle);
    eventually("init ends", || (!process_exists(pid)).then_some(()));
}

#[test]
fn a_running_container_is_not_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.call("delete", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("running"), "{ran}");
    assert_eq!(container.status(), "running");
}

#[test]
fn a_paused_container_is_not_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    let ran = container.call("delete", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("paused"), "{ran}");
    assert_eq!(container.status(), "paused");
}

#[test]
fn force_deletes_a_running_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("delete", &["--force"]).assert_code(0);
    runtime.assert_gone(&container.bundle);
}

#[test]
fn force_deletes_a_paused_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    container.call("delete", &["--force"]).assert_code(0);
    runtime.assert_gone(&container.bundle);
}

#[test]
fn force_ignores_an_unknown_id() {
    let host = Host::new();
    let runtime = host.oci();
    runtime.call(&["delete", "--force", "nobody"]).assert_code(0);
}

#[test]
fn an_unknown_id_is_an_error_without_force() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["delete", "nobody"]);
    ran.assert_code(1);
    assert!(ran.err().contains("does not exist"), "{ran}");
}

#[test]
fn the_cgroup_stays_until_delete() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    assert!(!runtime.cgroup(&container.bundle).there().is_empty());
    container.call("delete", &[]).assert_code(0);
    assert!(runtime.cgroup(&container.bundle).there().is_empty());
}

#[test]
fn delete_ends_who_outlives_an_init_without_a_pid_namespace() {
    let host = Host::new();
    let runtime = host.oci();
    let script = "sleep 1000 & echo ready; exit 0";
    let container = runtime.started(runtime.bundle().without_namespace("pid").script(script));
    container.wait_until("stopped");
    container.call("delete", &["--force"]).assert_code(0);
    runtime.assert_gone(&container.bundle);
}

#[test]
fn a_container_with_a_torn_record_is_deleted_by_force() {
    let host = Host::new();
    if host.reference_fails("it keeps a container whose state is torn") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let pid = container.pid();
    fs::write(runtime.root().join(&container.id).join("task.json"), "{").expect("ours");
    let ran = container.call("delete", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("delete --force"), "{ran}");
    assert!(process_exists(pid));
    container.call("delete", &["--force"]).assert_code(0);
    assert!(!process_exists(pid));
    runtime.assert_gone(&container.bundle);
}

#[test]
fn a_state_folder_without_a_record_is_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    // The state folder is as the runtime makes it.
    runtime.created(runtime.bundle().script(SLEEPS));
    let folder = runtime.root().join("torn");
    fs::create_dir(&folder).expect("ours");
    runtime.call(&["delete", "--force", "torn"]).assert_code(0);
    assert!(!folder.exists());
}

#[test]
fn an_id_is_free_again_after_delete() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    container.call("delete", &[]).assert_code(0);
    runtime.create(&container.bundle, &[]).assert_code(0);
    assert_eq!(container.status(), "created");
}
