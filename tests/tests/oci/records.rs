//! Records of containers that were edited, copied, or written by a later version: no call acts on what they name.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use bowline_tests::Host;
use bowline_tests::harness::oci::{Container, Runtime};
use bowline_tests::harness::process_exists;
use serde_json::{Value, json};

use super::SLEEPS;
use crate::damaged_records::{edit, read};

fn lacks_records(host: &Host) -> bool {
    host.reference_fails("its records are in other files")
}

fn record(runtime: &Runtime<'_>, container: &Container<'_>) -> PathBuf {
    runtime.root().join(&container.id).join("task.json")
}

/// Each call that acts, but `delete --force`, is refused with these words.
#[track_caller]
fn assert_refused(container: &Container<'_>, named: &[&str]) {
    let all = [
        container.kill("USR1"),
        container.kill("KILL"),
        container.call("pause", &[]),
        container.call("resume", &[]),
        container.sh(&[], "true"),
        container.call("delete", &[]),
    ];
    for ran in all {
        assert_ne!(ran.code, Some(0), "{ran}");
        assert!(named.iter().all(|named| ran.err().contains(named)), "{ran}");
    }
}

struct Stranger(Child);

impl Stranger {
    fn new() -> Stranger {
        Stranger(Command::new("sleep").arg("1000").spawn().expect("sleep"))
    }

    /// Its pid, and when it started.
    fn named(&self) -> [Value; 2] {
        let pid = self.0.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
        [json!(pid), json!(started)]
    }

    #[track_caller]
    fn assert_lives(&mut self) {
        assert!(self.0.try_wait().expect("a child").is_none());
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_record_that_names_a_stranger_signals_nobody() {
    let host = Host::new();
    if lacks_records(&host) {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let (pid, file) = (container.pid(), record(&runtime, &container));
    let mut stranger = Stranger::new();
    let [its, started] = stranger.named();
    edit(&file, |record| (record["pid"], record["pid_started"]) = (its.clone(), started));
    assert_refused(&container, &["`pid` in its record", "delete --force"]);
    let ran = container.call("state", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("`pid` in its record"), "{ran}");
    stranger.assert_lives();
    assert!(process_exists(pid));
    // What is known to be the container's ends.
    let ran = container.call("delete", &["--force"]);
    ran.assert_code(1);
    assert!(ran.err().contains(&its.to_string()) && ran.err().contains("remove `pid` from"), "{ran}");
    assert!(!process_exists(pid));
    stranger.assert_lives();
    edit(&file, |record| drop(record.as_object_mut().expect("fields").remove("pid")));
    container.call("delete", &["--force"]).assert_code(0);
    stranger.assert_lives();
    runtime.assert_gone(&container.bundle);
}

#[test]
fn a_record_that_names_no_process_ends_nothing_without_force() {
    let host = Host::new();
    if lacks_records(&host) {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let pid = container.pid();
    edit(&record(&runtime, &container), |record| record["pid_started"] = json!(1));
    let ran = container.call("delete", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("`pid` and `pid_started` in its record"), "{ran}");
    assert!(process_exists(pid));
    container.call("delete", &["--force"]).assert_code(0);
    assert!(!process_exists(pid));
}

#[test]
fn a_record_of_a_later_version_is_refused() {
    let host = Host::new();
    if lacks_records(&host) {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let (pid, file) = (container.pid(), record(&runtime, &container));
    let whole = read(&file);
    edit(&file, |record| record["version"] = json!(1000));
    assert_refused(&container, &["version: its form is 1000"]);
    for reads in ["state", "ps"] {
        let ran = container.call(reads, &[]);
        ran.assert_code(1);
        assert!(ran.err().contains("version: its form is 1000"), "{ran}");
    }
    assert_eq!(runtime.call(&["list", "-f", "json"]).assert_code(0).json()[0]["status"], "unknown");
    assert!(process_exists(pid));
    for path in ["", "/", "..", "x"] {
        fs::write(&file, &whole).expect("ours");
        edit(&file, |record| record["cgroup"] = json!(path));
        assert_refused(&container, &["`cgroup` in its record"]);
        assert!(process_exists(pid));
    }
    fs::write(&file, &whole).expect("ours");
    edit(&file, |record| record["version"] = json!(1000));
    container.call("delete", &["--force"]).assert_code(0);
    runtime.assert_gone(&container.bundle);
    assert!(!process_exists(pid));
}

#[test]
fn a_record_with_another_containers_cgroup_ends_nobody_else() {
    let host = Host::new();
    if lacks_records(&host) {
        return;
    }
    let runtime = host.oci();
    let other = runtime.started(runtime.bundle().script(SLEEPS));
    let its: Value = serde_json::from_slice(&read(&record(&runtime, &other))).expect("JSON");
    for fields in [&["cgroup", "identity"][..], &["cgroup", "identity", "pid", "pid_started"]] {
        let container = runtime.started(runtime.bundle().script(SLEEPS));
        let file = record(&runtime, &container);
        let whole = read(&file);
        edit(&file, |record| fields.iter().for_each(|field| record[*field] = its[*field].clone()));
        assert_refused(&container, &["`cgroup` in its record"]);
        let ran = container.call("delete", &["--force"]);
        ran.assert_code(1);
        assert_eq!(other.status(), "running", "{ran}");
        fs::write(&file, whole).expect("ours");
        container.call("delete", &["--force"]).assert_code(0);
    }
}

#[test]
fn a_copy_of_a_containers_folder_is_deleted_alone() {
    let host = Host::new();
    if lacks_records(&host) {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let id = host.new_id();
    let folders = [runtime.root().join(&container.id), runtime.root().join(&id)];
    let copied = Command::new("cp").arg("-a").args(folders).status().expect("cp");
    assert!(copied.success());
    for args in [&["kill", &id, "KILL"][..], &["state", &id], &["pause", &id], &["delete", &id]] {
        let ran = runtime.call(args);
        ran.assert_code(1);
        assert!(ran.err().contains("`folder` in its record"), "{ran}");
    }
    runtime.call(&["delete", "--force", &id]).assert_code(0);
    assert!(!runtime.root().join(&id).exists());
    assert_eq!(container.status(), "running");
}
