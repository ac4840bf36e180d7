//! State folders that cannot be used: an error that names the path, nothing left.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, copy_binary};

const NOBODY: u32 = 65534;

fn run_in(host: &Host, state: &Path) -> Ran {
    host.bowline([
        "--state".as_ref(),
        state.as_os_str(),
        "run".as_ref(),
        "--name".as_ref(),
        host.new_id().as_ref(),
        "--".as_ref(),
        "true".as_ref(),
    ])
}

fn as_nobody(host: &Host, args: &[&str]) -> Ran {
    // Where anybody can execute it.
    let copy = host.work().join("bowline");
    copy_binary("bowline", &copy);
    copy_binary("bowline-shim", &host.work().join("bowline-shim"));
    let mut command = host.command(copy);
    command.args(args).uid(NOBODY).gid(NOBODY);
    host.execute(command)
}

#[test]
fn a_full_disk_is_named() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=16k");
    let filler = vec![0; 1 << 20];
    // An error, as meant: no byte is free then.
    assert!(fs::write(disk.path().join("filler"), filler).is_err());
    run_in(&host, disk.path()).assert_refused(125, &[&disk.path().to_string_lossy()]);
    let left: Vec<_> = fs::read_dir(disk.path()).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "filler" || name.to_string_lossy().starts_with('.')), "{left:?}");
    drop(disk);
}

#[test]
fn a_disk_without_a_free_inode_is_named() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,nr_inodes=1");
    run_in(&host, &disk.path().join("state")).assert_refused(125, &[&disk.path().to_string_lossy()]);
    drop(disk);
}

#[test]
fn a_disk_that_fills_up_during_the_launch_leaves_no_folder() {
    for inodes in 3..12 {
        let host = Host::new();
        let disk = host.tmpfs("disk", &format!("size=1m,nr_inodes={inodes}"));
        let state = disk.path().join("state");
        let ran = run_in(&host, &state);
        if ran.code != Some(0) {
            ran.assert_refused(125, &[&disk.path().to_string_lossy()]);
        }
        let names = fs::read_dir(&state).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
        assert!(left.is_empty() || ran.code == Some(0), "{inodes} inodes: {left:?}\n{ran}");
        drop(disk);
        host.assert_nothing_left();
    }
}

/// Either nothing runs, or a later shim takes over what does.
#[test]
fn a_disk_that_fills_up_during_the_launch_leaves_no_task_unknown() {
    let (mut refused, mut taken_over) = (0, 0);
    for inodes in (8..60).step_by(2).chain([21, 23, 25, 27, 29, 31]) {
        let host = Host::new();
        let disk = host.tmpfs("disk", &format!("size=1m,mode=0700,nr_inodes={inodes}"));
        let (state, id) = (disk.path().to_string_lossy().into_owned(), host.new_id());
        let ran = host.bowline(["--state", &state, "start", "--name", &id, "sleep", "1000"]);
        if ran.code != Some(0) {
            refused += 1;
            drop(disk);
            host.assert_nothing_left();
            continue;
        }
        taken_over += 1;
        let shown = |field: &str| host.bowline(["--state", &state, "inspect", &id, "--format", field]).out();
        let (shim, program) = (shown("{{.shim_pid}}"), shown("{{.pid}}"));
        let mut more = host.command("sh");
        more.args(["-c", &format!("kill -KILL {shim} && mount -o remount,nr_inodes=10000 {state}")]);
        host.execute(more).assert_code(0);
        host.bowline(["--state", &state, "gc"]).assert_code(0);
        host.bowline(["--state", &state, "adopt", &id]).assert_code(0);
        assert_eq!((shown("{{.pid}}"), &*shown("{{.status}}")), (program, "running"), "{inodes} inodes");
        host.bowline(["--state", &state, "rm", "-f", &id]).assert_code(0);
        drop(disk);
    }
    assert!(refused > 2 && taken_over > 2, "{refused} refused, {taken_over} taken over");
}

#[test]
fn what_is_on_a_full_disk_can_be_removed() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let state = disk.path().to_string_lossy().into_owned();
    let [id, pod, other] = [host.new_id(), host.new_id(), host.new_id()];
    let bowline = |args: &[&str]| host.bowline([&["--state", &state], args].concat());
    bowline(&["start", "--name", &id, "sleep", "1000"]).assert_code(0);
    for sandbox in [&pod, &other] {
        bowline(&["sandbox", "create", "--name", sandbox]).assert_code(0);
        bowline(&["start", "--name", &format!("{sandbox}-m"), "--sandbox", sandbox, "sleep", "1000"]).assert_code(0);
    }
    let _ = fs::write(disk.path().join("filler"), vec![0; 4 << 20]);
    bowline(&["sandbox", "rm", "-f", &pod]).assert_code(0);
    let _ = fs::write(disk.path().join("filler2"), vec![0; 4 << 20]);
    bowline(&["rm", "-f", &format!("{other}-m")]).assert_code(0);
    bowline(&["sandbox", "rm", &other]).assert_code(0);
    bowline(&["stop", &id]).assert_code(0);
    bowline(&["rm", &id]).assert_code(0);
    drop(disk);
    host.assert_nothing_left();
}

#[test]
fn an_update_on_a_full_disk_changes_nothing() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let (state, id, pod) = (disk.path().to_string_lossy().into_owned(), host.new_id(), host.new_id());
    let bowline = |args: &[&str]| host.bowline([&["--state", &state], args].concat());
    bowline(&["start", "--name", &id, "--pids", "50", "sleep", "1000"]).assert_code(0);
    bowline(&["sandbox", "create", "--name", &pod, "--pids", "60"]).assert_code(0);
    let _ = fs::write(disk.path().join("filler"), vec![0; 4 << 20]);
    bowline(&["update", &id, "--pids", "77"]).assert_refused(125, &["No space left on device"]);
    bowline(&["sandbox", "update", &pod, "--pids", "78"]).assert_refused(125, &["No space left on device"]);
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    let task = bowline(&["inspect", &id]).json();
    assert_eq!((&task["task"]["pids"], &task["differing_limits"]), (&50.into(), &serde_json::Value::Null), "{task}");
    assert_eq!(bowline(&["stats", "--json", &id]).json()["pids"]["limit"], 50);
    let sandbox = bowline(&["sandbox", "inspect", &pod]).json();
    assert_eq!((&sandbox["sandbox"]["pids"], &sandbox["budget"]["pids"]), (&60.into(), &60.into()), "{sandbox}");
    bowline(&["update", &id, "--pids", "77"]).assert_code(0);
    bowline(&["rm", "-f", &id]).assert_code(0);
    bowline(&["sandbox", "rm", &pod]).assert_code(0);
    drop(disk);
}

#[test]
fn a_read_only_disk_is_named() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    disk.read_only();
    for state in [disk.path().to_owned(), disk.path().join("state")] {
        run_in(&host, &state).assert_refused(125, &[&state.to_string_lossy()]);
    }
    drop(disk);
}

#[test]
fn a_state_folder_that_is_a_file_is_named() {
    let host = Host::new();
    let file = host.file("state", "");
    run_in(&host, &file).assert_refused(125, &[&file.to_string_lossy()]);
}

#[test]
fn no_permission_is_named() {
    let host = Host::new();
    let state = host.work().join("state");
    fs::create_dir(&state).expect("a folder");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("ours");
    let path = state.to_string_lossy().into_owned();
    as_nobody(&host, &["--state", &path, "run", "--", "true"]).assert_refused(125, &["permission denied"]);
    as_nobody(&host, &["--state", &path, "inspect", "x"]).assert_refused(125, &[&path]);
    as_nobody(&host, &["--state", &path, "ps"]).assert_refused(125, &[&path]);
    assert_eq!(fs::read_dir(&state).expect("a folder").count(), 0);
}

#[test]
fn no_privilege_is_a_clear_error_and_leaves_nothing() {
    let host = Host::new();
    let state = host.work().join("own");
    fs::create_dir(&state).expect("a folder");
    chown(&state, Some(NOBODY), Some(NOBODY)).expect("root may give away");
    let path = state.to_string_lossy().into_owned();
    as_nobody(&host, &["--state", &path, "run", "--name", &host.new_id(), "--", "true"]).assert_refused(125, &[]);
    let names = fs::read_dir(&state).expect("a folder").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_disk_that_fills_up_while_the_task_runs_loses_no_exit() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=1m,mode=0700");
    let state = disk.path().to_string_lossy().into_owned();
    let id = host.new_id();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let run = host.spawn(["--state", &state, "run", "--name", &id, "--", "sh", "-c", script]);
    run.wait_for_out("ready");
    let _ = fs::write(disk.path().join("filler"), vec![0; 4 << 20]);
    host.bowline(["--state", &state, "stop", &id, "--grace=50s"]).assert_code(0);
    run.finish().assert_code(5);
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    host.bowline(["--state", &state, "rm", &id]).assert_code(0);
    drop(disk);
}
