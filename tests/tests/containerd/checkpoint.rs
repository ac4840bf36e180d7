//! Checkpoints by criu, and tasks that are made from them. What restores is
//! asked of hosts whose criu works: elsewhere these return at once.

use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::protobuf::Message as _;
use bowline_tests::harness::containerd::protobuf::well_known_types::empty::Empty;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Output, Running, Shim, Stdio, any, api};
use bowline_tests::harness::{eventually, write_program};
use containerd_shim_protos::shim::oci;

/// Counts, by builtins alone but for the wait.
const COUNTER: &str = "i=0; while :; do echo count $i; i=$((i+1)); sleep 0.1; done";

fn criu_works() -> bool {
    Command::new("criu").arg("check").output().is_ok_and(|criu| criu.status.success())
}

fn has_criu() -> bool {
    Command::new("criu").arg("--version").output().is_ok()
}

/// A host for what is asked where `met`, and not of the reference, for this reason.
fn host_if(met: bool, reference_fails: &str) -> Option<Host> {
    let host = met.then(Host::new)?;
    (!host.reference_fails(reference_fails)).then_some(host)
}

fn images(host: &Host) -> PathBuf {
    host.work().join("images")
}

fn checkpoint(running: &Running<'_>, images: &Path, exit: bool) -> Result<Empty, (Code, String)> {
    let options = oci::CheckpointOptions { exit, ..Default::default() };
    let options = any("containerd.runc.v1.CheckpointOptions", options.write_to_bytes().expect("bytes"));
    let request = api::CheckpointTaskRequest {
        id: running.id.clone(),
        path: images.to_str().expect("ASCII").to_owned(),
        options: Some(options).into(),
        ..Default::default()
    };
    let answer = running.shim.send::<Empty>("Checkpoint", &request).wait();
    answer.map_err(|failure| (failure.code, failure.message))
}

/// The largest number that was counted to.
fn counted(output: &Output) -> u64 {
    let text = output.text();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.strip_prefix("count ")?.parse().ok()).max().unwrap_or(0)
}

/// One that has counted to three.
#[track_caller]
fn counting<'h>(containerd: &Containerd<'h>, bundle: Bundle) -> Running<'h> {
    let bundle = bundle.script(COUNTER);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.stdout.wait_for("count 3\n");
    running
}

/// The bundle `second`, created from the images: not started. Its streams are
/// of the same kind as those that it had.
#[track_caller]
fn restored(containerd: &Containerd<'_>, images: &Path) -> (Bundle, Shim, (Output, Option<Output>), u32) {
    let bundle = containerd.bundle_of("second").script(COUNTER);
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    let (stdout, stderr) = io.open();
    let mut request = shim.creation(&bundle, &io);
    request.checkpoint = images.to_str().expect("ASCII").to_owned();
    let pid = shim.create_by(&request).expect("restored");
    (bundle, shim, (stdout, stderr), pid)
}

#[test]
fn a_counter_goes_on_counting_where_its_checkpoint_was_made() {
    let Some(host) = host_if(criu_works(), "runc's checkpoints are its own") else { return };
    let containerd = host.containerd();
    let running = counting(&containerd, containerd.bundle_of("first"));
    checkpoint(&running, &images(&host), true).expect("a checkpoint");
    running.wait_for_end();
    let reached = counted(&running.stdout);
    let id = running.id.clone();
    running.end();
    assert_eq!(containerd.events.of(&id), ["create", "start", "checkpointed", "exit", "delete"]);

    let (bundle, shim, (stdout, _stderr), pid) = restored(&containerd, &images(&host));
    assert_eq!(shim.status(&bundle.id, ""), "CREATED");
    assert_eq!(stdout.text(), "", "it waits for its start");
    assert_eq!(shim.start(&bundle.id, "").expect("started"), pid);
    stdout.wait_for(&format!("count {}\n", reached + 5));
    assert!(!stdout.text().contains("count 0\n"), "{}", stdout.text());
    assert_eq!(shim.status(&bundle.id, ""), "RUNNING");
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    assert!(cgroup.lines().any(|line| line.ends_with("/second")), "{cgroup}");
    shim.kill(&bundle.id, "", 9).expect("killed");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    shim.end(&bundle.id);
}

#[test]
fn a_checkpoint_leaves_its_task_running_unless_it_is_to_end() {
    let Some(host) = host_if(criu_works(), "runc's checkpoints are its own") else { return };
    let containerd = host.containerd();
    let running = counting(&containerd, containerd.bundle());
    checkpoint(&running, &images(&host), false).expect("a checkpoint");
    let reached = counted(&running.stdout);
    running.stdout.wait_for(&format!("count {}\n", reached + 5));
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn a_paused_task_is_still_paused_after_its_checkpoint() {
    let Some(host) = host_if(criu_works(), "runc's checkpoints are its own") else { return };
    let containerd = host.containerd();
    let running = counting(&containerd, containerd.bundle_of("first"));
    running.shim.pause(&running.id).expect("paused");
    checkpoint(&running, &images(&host), false).expect("a checkpoint");
    assert_eq!(running.shim.status(&running.id, ""), "PAUSED");
    let reached = counted(&running.stdout);
    running.shim.resume(&running.id).expect("resumed");
    running.stdout.wait_for(&format!("count {}\n", reached + 5));
    running.shim.kill(&running.id, "", 9).expect("killed");
    running.wait_for_end();
    running.end();

    let (bundle, shim, (stdout, _stderr), pid) = restored(&containerd, &images(&host));
    assert_eq!(shim.start(&bundle.id, "").expect("started"), pid);
    stdout.wait_for(&format!("count {}\n", reached + 5));
    shim.kill(&bundle.id, "", 9).expect("killed");
    shim.status_at_end(&bundle.id, "");
    shim.end(&bundle.id);
}

#[test]
fn a_restored_task_that_is_not_started_can_be_deleted() {
    let Some(host) = host_if(criu_works(), "runc's checkpoints are its own") else { return };
    let containerd = host.containerd();
    let running = counting(&containerd, containerd.bundle_of("first"));
    checkpoint(&running, &images(&host), true).expect("a checkpoint");
    running.wait_for_end();
    running.end();
    let (bundle, shim, (stdout, _stderr), _) = restored(&containerd, &images(&host));
    assert_eq!(stdout.text(), "", "it was never started");
    shim.end(&bundle.id);
}

#[test]
fn what_is_no_checkpoint_is_refused_and_leaves_nothing() {
    let Some(host) = host_if(has_criu(), "runc looks at it when it is started") else { return };
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(COUNTER);
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.checkpoint = host.work().to_str().expect("ASCII").to_owned();
    let failure = shim.create_by(&request).expect_err("it has no images");
    assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{failure:?}");
    assert!(failure.message.contains("no checkpoint"), "{failure:?}");
    shim.create(&bundle, &Stdio::null()).expect("the id is free");
    shim.end(&bundle.id);
}

/// A criu that does what `script` says, with its verb as `$1`, and puts down its arguments; and options that name it
/// and where it works.
fn stand_in(host: &Host, script: &str) -> (PathBuf, oci::Options) {
    let path = host.work().join("stand-in");
    let called = host.work().join("called");
    write_program(&path, &format!("#!/bin/sh\necho \"$@\" >>{}\n{script}\n", called.display()));
    let text = |path: &Path| path.to_str().expect("ASCII").to_owned();
    let mut options = oci::Options { criu_work_path: text(&host.work().join("criu")), ..Default::default() };
    // CriuPath, which containerd 2 knows no more.
    options.special_fields.mut_unknown_fields().add_length_delimited(8, text(&path).into_bytes());
    (called, options)
}

fn with(options: &oci::Options) -> impl FnOnce(&mut api::CreateTaskRequest) {
    let bytes = options.write_to_bytes().expect("bytes");
    move |request| request.options = Some(any("containerd.runc.v1.Options", bytes)).into()
}

#[test]
fn the_options_name_criu_its_work_folder_and_its_images() {
    let host = Host::new();
    if host.reference_fails("runc runs what is in PATH, and containerd reads where the images are") {
        return;
    }
    let containerd = host.containerd();
    let work = host.work().join("criu").display().to_string();
    let failing =
        format!("if [ $1 = restore ]; then echo '(0) Error (s.c:1): not today' >{work}/restore.log; exit 1; fi");
    let (called, mut options) = stand_in(&host, &failing);
    let bundle = containerd.bundle_of("first").script("sleep 1000");
    let io = bundle.fifos("init");
    let running = containerd.run_by(bundle, &io, with(&options));
    checkpoint(&running, &images(&host), false).expect("what it says it has done");
    containerd.events.wait_for(&running.id, "checkpointed");

    options.criu_image_path = images(&host).to_str().expect("ASCII").to_owned();
    let bundle = containerd.bundle_of("second");
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    with(&options)(&mut request);
    let failure = shim.create_by(&request).expect_err("it says that it cannot");
    assert!(failure.message.contains("not today"), "{failure:?}");
    assert!(failure.message.contains(&format!("{work}/restore.log")), "{failure:?}");
    let called = std::fs::read_to_string(called).expect("it was run");
    for verb in ["dump", "restore"] {
        let line = called.lines().find(|line| line.starts_with(verb)).unwrap_or_else(|| panic!("no {verb}: {called}"));
        let expected = format!("--images-dir {} --work-dir {work} ", images(&host).display());
        assert!(line.contains(&expected), "{line}");
    }
    shim.over();
    running.end();
}

#[test]
fn an_end_during_a_checkpoint_that_hangs_is_reported() {
    let host = Host::new();
    if host.reference_fails("runc runs what is in PATH") {
        return;
    }
    let containerd = host.containerd();
    let (called, options) = stand_in(&host, "exec sleep 1000");
    let bundle = containerd.bundle().script("sleep 1000");
    let io = bundle.fifos("init");
    let running = containerd.run_by(bundle, &io, with(&options));
    let request = api::CheckpointTaskRequest {
        id: running.id.clone(),
        path: images(&host).to_str().expect("ASCII").to_owned(),
        ..Default::default()
    };
    let first = running.shim.send::<Empty>("Checkpoint", &request);
    eventually("criu runs", || called.exists().then_some(()));
    let second = running.shim.send::<Empty>("Checkpoint", &request);
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    containerd.events.wait_for(&running.id, "exit");
    assert_eq!(containerd.events.of(&running.id), ["create", "start", "exit"]);
    for checkpoint in [first, second] {
        let failure = checkpoint.wait().expect_err("there is nothing to be saved any more");
        assert_eq!(failure.code, Code::FAILED_PRECONDITION, "{failure:?}");
    }
    let called = std::fs::read_to_string(called).expect("it was run");
    assert_eq!(called.lines().count(), 1, "once only: {called}");
    running.end();
}

#[test]
fn a_criu_that_is_not_where_the_options_say_is_named() {
    let host = Host::new();
    if host.reference_fails("runc runs what is in PATH") {
        return;
    }
    let containerd = host.containerd();
    let (_, options) = stand_in(&host, "");
    std::fs::remove_file(host.work().join("stand-in")).expect("ours");
    let bundle = containerd.bundle().script("sleep 1000");
    let io = bundle.fifos("init");
    let running = containerd.run_by(bundle, &io, with(&options));
    let (code, message) = checkpoint(&running, &images(&host), false).expect_err("there is none");
    assert_eq!(code, Code::FAILED_PRECONDITION, "{message}");
    assert!(message.contains("stand-in"), "{message}");
    running.end();
}

#[test]
fn a_task_that_does_not_run_or_is_unknown_has_no_checkpoint() {
    let Some(host) = host_if(true, "its codes are UNKNOWN") else { return };
    let containerd = host.containerd();
    let mut running = containerd.run("exit 0");
    running.wait_for_end();
    let (code, message) = checkpoint(&running, &images(&host), false).expect_err("it has ended");
    assert_eq!(code, Code::FAILED_PRECONDITION, "{message}");
    let id = std::mem::replace(&mut running.id, "unknown".to_owned());
    let (code, message) = checkpoint(&running, &images(&host), false).expect_err("it is unknown");
    assert_eq!(code, Code::NOT_FOUND, "{message}");
    running.id = id;
    running.end();
}

#[test]
fn a_failing_criu_is_named_with_its_log_and_the_task_runs_on() {
    let Some(host) = host_if(has_criu() && !criu_works(), "its code is UNKNOWN") else { return };
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let (code, message) = checkpoint(&running, &images(&host), false).expect_err("criu fails here");
    assert_eq!(code, Code::FAILED_PRECONDITION, "{message}");
    assert!(message.contains("criu dump failed: ") && message.contains("dump.log"), "{message}");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}
