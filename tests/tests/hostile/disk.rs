//! Disks that take nothing when a task ends: no exit is lost, and none is taken for the end of the shim.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::{Process, Ran, eventually, process_exists};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};

const POLITE: &str = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";

/// A state folder with a task in it.
struct Ending<'h> {
    host: &'h Host,
    state: PathBuf,
    id: String,
    pid: i32,
    shim: i32,
}

impl<'h> Ending<'h> {
    fn start(host: &'h Host, state: &Path, flags: &[&str]) -> Ending<'h> {
        Ending::start_script(host, state, flags, POLITE)
    }

    /// One that says that it is ready.
    fn start_script(host: &'h Host, state: &Path, flags: &[&str], script: &str) -> Ending<'h> {
        let ending = Ending::new(host, state);
        let args = [&["start", "--name", &ending.id], flags, &["--", "sh", "-c", script]].concat();
        ending.bowline(&args).assert_code(0);
        eventually("it is ready", || ending.bowline(&["logs", &ending.id]).out().contains("ready").then_some(()));
        ending.known()
    }

    /// In the foreground, and the command.
    fn run(host: &'h Host, state: &Path) -> (Ending<'h>, Process) {
        let ending = Ending::new(host, state);
        let state = state.to_str().expect("ASCII");
        let run = host.spawn(["--state", state, "run", "--name", &ending.id, "--", "sh", "-c", POLITE]);
        run.wait_for_out("ready");
        (ending.known(), run)
    }

    fn new(host: &'h Host, state: &Path) -> Ending<'h> {
        Ending { host, state: state.to_owned(), id: host.new_id(), pid: 0, shim: 0 }
    }

    /// With what is known of it once it runs.
    fn known(mut self) -> Ending<'h> {
        let inspected = self.inspect();
        let number = |field: &str| inspected[field].as_i64().and_then(|n| n.try_into().ok()).expect("a pid");
        (self.pid, self.shim) = (number("pid"), number("shim_pid"));
        self
    }

    #[track_caller]
    fn bowline(&self, args: &[&str]) -> Ran {
        self.host.bowline([&["--state", self.state.to_str().expect("ASCII")], args].concat())
    }

    #[track_caller]
    fn inspect(&self) -> Value {
        self.bowline(&["inspect", &self.id]).assert_code(0).json()
    }

    fn folder(&self) -> PathBuf {
        self.state.join(&self.id)
    }

    /// Asks init to end, without its shim.
    #[track_caller]
    fn end(&self) {
        kill_process(Pid::from_raw(self.pid).expect("a pid"), Signal::TERM).expect("it lives");
        eventually("init has ended", || (!process_exists(self.pid)).then_some(()));
    }

    /// Kills its shim, as a crash would.
    #[track_caller]
    fn crash_shim(&self) {
        kill_process(Pid::from_raw(self.shim).expect("a pid"), Signal::KILL).expect("the shim lives");
        self.wait_until_left();
    }

    #[track_caller]
    fn wait_until_left(&self) {
        eventually(format_args!("the shim {} has left", self.shim), || (!process_exists(self.shim)).then_some(()));
    }

    /// The shim has left, and everybody says how the task has ended.
    #[track_caller]
    fn assert_told(&self) {
        self.wait_until_left();
        let report = self.bowline(&["wait", "--json", &self.id]).assert_code(0).json();
        assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(5), &json!(false)), "{report}");
        assert!(report.get("unwritten").is_none(), "{report}");
        assert_eq!(self.inspect()["status"], "exited");
        assert_eq!(self.ends(), [json!(5)]);
    }

    /// The codes of the ends that the journal tells.
    fn ends(&self) -> Vec<Value> {
        let events = self.bowline(&["events", "--json", &self.id]);
        let lines = String::from_utf8(events.stdout).expect("JSON");
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|event| event["event"] == "exited").map(|event| event["exit_code"].clone()).collect()
    }

    #[track_caller]
    fn rm(&self) {
        self.bowline(&["rm", &self.id]).assert_code(0);
    }
}

/// Fills a disk to its last byte.
fn fill(folder: &Path) -> PathBuf {
    let filler = folder.join("filler");
    // An error, as meant: no byte is free then.
    assert!(fs::write(&filler, vec![0; 8 << 20]).is_err());
    filler
}

/// A folder of which nothing can be changed by its path until it is dropped; what is open can still be written.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn make(path: &Path) -> ReadOnly {
        mount_bind(path, path).expect("root may mount");
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "").expect("root may remount");
        ReadOnly(path.to_owned())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn an_exit_is_recorded_on_a_disk_without_a_free_byte() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let task = Ending::start(&host, disk.path(), &[]);
    let filler = fill(disk.path());
    task.end();
    task.wait_until_left();
    let report = task.bowline(&["wait", "--json", &task.id]).assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(5), &json!(false)), "{report}");
    fs::remove_file(filler).expect("it was made");
    task.rm();
    drop(disk);
}

#[test]
fn a_task_is_taken_over_on_a_disk_without_a_free_byte() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let task = Ending::start(&host, disk.path(), &["--init"]);
    let filler = fill(disk.path());
    task.crash_shim();
    task.bowline(&["adopt", &task.id]).assert_says(&task.id);
    task.bowline(&["exec", &task.id, "--", "true"]).assert_code(0);
    fs::remove_file(&filler).expect("it was made");
    eventually("the record names its new shim", || (task.inspect()["shim_pid"] != task.shim).then_some(()));
    fill(disk.path());
    task.bowline(&["stop", "--grace=50s", &task.id]).assert_code(0);
    let report = task.bowline(&["wait", "--json", &task.id]).assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(5), &json!(false)), "{report}");
    fs::remove_file(filler).expect("it was made");
    task.rm();
    drop(disk);
}

#[test]
fn so_is_a_sandbox_with_its_members() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let state = disk.path().to_str().expect("ASCII");
    let bowline = |args: &[&str]| host.bowline([&["--state", state], args].concat());
    let (sandbox, member) = (host.new_id(), host.new_id());
    bowline(&["sandbox", "create", "--name", &sandbox, "--share-pid"]).assert_says(&sandbox);
    let start = ["start", "--sandbox", &sandbox, "--name", &member, "--init", "--", "sh", "-c", POLITE];
    bowline(&start).assert_code(0);
    eventually("it is ready", || bowline(&["logs", &member]).out().contains("ready").then_some(()));
    let shim = bowline(&["sandbox", "inspect", &sandbox]).assert_code(0).json()["shim_pid"].as_i64();
    let shim = shim.and_then(|pid| pid.try_into().ok()).expect("a pid");
    let filler = fill(disk.path());
    kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("the shim lives");
    eventually("its shim is gone", || (!process_exists(shim)).then_some(()));
    bowline(&["adopt", &sandbox]).assert_says(&sandbox);
    bowline(&["exec", &member, "--", "true"]).assert_code(0);
    bowline(&["stop", "--grace=50s", &member]).assert_code(0);
    let report = bowline(&["wait", "--json", &member]).assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(5), &json!(false)), "{report}");
    fs::remove_file(filler).expect("it was made");
    bowline(&["sandbox", "rm", &sandbox]).assert_code(0);
    drop(disk);
}

#[test]
fn a_report_longer_than_its_reserved_room_drops_its_output() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    // Each byte takes six in JSON.
    let script = "head -c 4096 /dev/zero | tr '\\0' '\\1'; trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    // What is kept of output for another shim, below bowline-init, makes room as it goes.
    let task = Ending::start_script(&host, disk.path(), &["--set=init=false"], script);
    let filler = fill(disk.path());
    task.end();
    task.wait_until_left();
    let report = task.bowline(&["wait", "--json", &task.id]).assert_code(0).json();
    assert_eq!((&report["exit_code"], &report["stdout_tail"]), (&json!(5), &Value::Null), "{report}");
    fs::remove_file(filler).expect("it was made");
    task.rm();
    drop(disk);
}

#[test]
fn an_exit_is_recorded_on_a_disk_without_a_free_inode() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=4m,nr_inodes=100,mode=0700");
    let task = Ending::start(&host, disk.path(), &[]);
    let more = disk.path().join("more");
    fs::create_dir(&more).expect("an inode");
    let taken = (0..100).take_while(|n| File::create(more.join(n.to_string())).is_ok()).count();
    assert!(taken < 100, "none is free");
    task.end();
    task.assert_told();
    fs::remove_dir_all(more).expect("it was made");
    task.rm();
    drop(disk);
}

#[test]
fn an_exit_is_recorded_by_a_shim_without_a_free_descriptor() {
    let host = Host::new();
    let task = Ending::start(&host, &host.state(), &[]);
    host.adopt(task.id.clone());
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Pid::from_raw(task.shim), Resource::Nofile, none).expect("root may");
    task.end();
    task.assert_told();
}

#[test]
fn room_that_somebody_has_cleaned_up_is_made_again() {
    let host = Host::new();
    let task = Ending::start(&host, &host.state(), &[]);
    host.adopt(task.id.clone());
    let room = task.folder().join("exit.json.new");
    // One byte says that the command was executed.
    assert!(fs::metadata(&room).is_ok_and(|meta| meta.len() == 1 && meta.blocks() > 0), "a page is reserved");
    fs::remove_file(room).expect("it is there");
    task.end();
    task.assert_told();
}

#[test]
fn a_report_refused_by_a_read_only_disk_is_kept_until_written() {
    let host = Host::new();
    let state = host.work().join("state");
    let task = Ending::start(&host, &state, &[]);
    let read_only = ReadOnly::make(&state);
    task.end();
    task.bowline(&["wait", &task.id]).assert_says("5");
    let report = task.bowline(&["wait", "--json", &task.id]).assert_code(0).json();
    let why = report["unwritten"].as_str().unwrap_or_else(|| panic!("no reason in {report}"));
    assert!(why.contains("exit.json"), "{why}");
    let listed = task.bowline(&["ps"]);
    assert!(listed.out().contains("exited (5) ") && listed.out().contains(" ago, unwritten"), "{listed}");
    assert_eq!(task.bowline(&["ps", "--json"]).json()[0]["unwritten"], why);
    assert_eq!(task.inspect()["exit"]["exit_code"], 5);
    for flags in [&["rm"][..], &["rm", "-f"]] {
        task.bowline(&[flags, &[&task.id]].concat()).assert_refused(125, &[&task.id]);
    }
    // It is asked to leave, and has something to do still.
    kill_process(Pid::from_raw(task.shim).expect("a pid"), Signal::TERM).expect("it lives");
    assert_eq!(task.inspect()["exit"]["exit_code"], 5);
    assert_eq!(task.ends(), [Value::Null; 0], "not before the report");
    drop(read_only);
    task.assert_told();
    task.rm();
}

#[test]
fn a_run_with_an_unwritable_report_says_so_and_does_not_wait() {
    let host = Host::new();
    let state = host.work().join("state");
    let (task, run) = Ending::run(&host, &state);
    let read_only = ReadOnly::make(&state);
    task.end();
    let ran = run.finish();
    ran.assert_code(5);
    assert!(ran.err().contains("not written yet") && ran.err().contains(&task.id), "{ran}");
    assert!(process_exists(task.shim), "it keeps the report");
    drop(read_only);
    task.assert_told();
    task.rm();
}

#[test]
fn a_report_is_not_written_to_what_is_mounted_over_its_folder() {
    let host = Host::new();
    let state = host.work().join("state");
    let task = Ending::start(&host, &state, &[]);
    let cgroup =
        bowline_tests::harness::hierarchy("pids").join(&task.inspect()["cgroup"].as_str().expect("a path")[1..]);
    let cover = host.tmpfs(&format!("state/{}", task.id), "size=1m");
    task.end();
    // What comes after the report.
    eventually("its cgroup is gone", || (!cgroup.exists()).then_some(()));
    assert_eq!(fs::read_dir(cover.path()).expect("a folder").count(), 0);
    drop(cover);
    task.assert_told();
    task.rm();
}

#[test]
fn a_sandbox_is_not_removed_with_a_report_that_is_not_written() {
    let host = Host::new();
    let state = host.work().join("state");
    let path = state.to_str().expect("ASCII").to_owned();
    let sandbox = host.new_id();
    host.bowline(["--state", &path, "sandbox", "create", "--name", &sandbox, "--network=none"]).assert_code(0);
    let task = Ending::start(&host, &state, &["--sandbox", &sandbox]);
    let read_only = ReadOnly::make(&state);
    task.end();
    task.bowline(&["wait", &task.id]).assert_says("5");
    let removed = task.bowline(&["sandbox", "rm", "-f", &sandbox]);
    removed.assert_refused(125, &[&task.id, "not written"]);
    drop(read_only);
    eventually("it is written", || task.folder().join("exit.json").exists().then_some(()));
    assert_eq!(task.bowline(&["wait", "--json", &task.id]).json()["exit_code"], 5);
    task.bowline(&["sandbox", "rm", &sandbox]).assert_code(0);
    task.wait_until_left();
}

#[test]
fn a_container_is_deleted_though_its_bundle_is_read_only() {
    let host = Host::new();
    if host.reference_fails("the end is never heard of") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exec sleep 1000");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    let read_only = ReadOnly::make(&bundle.path);
    shim.end(&bundle.id);
    drop(read_only);
}
