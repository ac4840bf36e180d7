//! State folders that somebody else may change, files in them that are symlinks, and records that were edited: nothing of
//! anybody else's is read, written, ended or removed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Elsewhere, Process, Task, eventually, process_exists, take_lock};
use rustix::process::Signal;
use serde_json::{Value, json};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Every command that goes by the state folder refuses it, and says what is wrong where.
#[track_caller]
fn assert_refused(host: &Host, state: &Path, found: &Path) {
    let (state, found) = (state.to_str().expect("ASCII"), found.to_str().expect("ASCII"));
    for args in [
        &["ps"][..],
        &["run", "--", "true"],
        &["start", "--", "true"],
        &["exec", "x", "--", "true"],
        &["inspect", "x"],
        &["logs", "x"],
        &["events"],
        &["stop", "x"],
        &["rm", "x"],
        &["gc"],
        &["gc", "--dry-run"],
        &["metrics", "--once"],
        &["metrics"],
        &["sandbox", "ls"],
    ] {
        let ran = host.bowline(["--state", state].iter().chain(args));
        ran.assert_refused(125, &[state, found, "not safe"]);
        assert!(ran.err().contains("hint: ") && ran.err().contains("--state"), "{ran}");
    }
}

#[test]
fn a_folder_that_somebody_else_owns_or_may_write_is_refused() {
    let host = Host::new();
    let state = host.work().join("state");
    fs::create_dir(&state).expect("ours");
    for (owner, mode) in [(1234, 0o700), (0, 0o770), (0, 0o702), (0, 0o1777)] {
        chown(&state, Some(owner), None).expect("root may");
        set_mode(&state, mode);
        assert_refused(&host, &state, &state);
    }
    chown(&state, Some(0), None).expect("root may");
    set_mode(&state, 0o755);
    host.bowline(["--state", state.to_str().expect("ASCII"), "ps"]).assert_code(0);
    assert!(fs::read_dir(&state).expect("readable").next().is_none());
}

#[test]
fn so_is_one_on_whose_way_somebody_else_may_put_another() {
    let host = Host::new();
    let above = host.work().join("above");
    let state = above.join("state");
    fs::create_dir_all(&state).expect("ours");
    set_mode(&state, 0o700);
    set_mode(&above, 0o777);
    assert_refused(&host, &state, &above);
    // Before it is there.
    assert_refused(&host, &above.join("new/state"), &above);
    set_mode(&above, 0o755);
    chown(&above, Some(1234), None).expect("root may");
    assert_refused(&host, &state, &above);
    // What a symlink leads to, and whose that is.
    chown(&above, Some(0), None).expect("root may");
    let link = host.work().join("link");
    symlink("above", &link).expect("ours");
    let by_link = link.join("state");
    host.bowline(["--state", by_link.to_str().expect("ASCII"), "ps"]).assert_code(0);
    std::os::unix::fs::lchown(&link, Some(1234), None).expect("root may");
    assert_refused(&host, &by_link, &link);
    // As /tmp is.
    set_mode(&above, 0o1777);
    host.bowline(["--state", state.to_str().expect("ASCII"), "ps"]).assert_code(0);
}

#[test]
fn nothing_is_written_through_a_symlink() {
    let host = Host::new();
    let victim = host.file("victim", "precious");
    let task = host.task("exec sleep 1000").start();
    let journal = host.state().join(".events/journal");
    fs::remove_file(&journal).expect("there are events");
    symlink(&victim, &journal).expect("ours");
    fs::remove_file(task.file("exit.json.new")).expect("room for the report");
    symlink(&victim, task.file("exit.json.new")).expect("ours");
    symlink(&victim, task.file("task.json.new")).expect("ours");
    task.bowline("update", ["--memory", "100M"]);
    let next = host.task("true").start();
    next.wait();
    // The journal is not followed when it is read either.
    let ran = host.bowline(["events"]);
    assert!(!ran.out().contains("precious"), "{ran}");
    fs::remove_file(&journal).expect("it is still the symlink");
    task.stop(["--grace=0"]);
    assert_eq!(fs::read_to_string(&victim).expect("still there"), "precious");
    assert!(victim.symlink_metadata().expect("there").is_file());
    host.bowline(["rm", "-f", task.id(), next.id()]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn nothing_is_read_through_a_symlink() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    let kept = host.work().join("kept");
    let path = task.file("exit.json");
    fs::rename(&path, &kept).expect("it is there");
    symlink(&kept, &path).expect("ours");
    let ran = host.bowline(["rm", task.id()]);
    ran.assert_refused(125, &["exit.json"]);
    assert!(ran.err().contains("symlink"), "{ran}");
    fs::rename(&kept, &path).expect("ours");
    // Nobody holds a lock that is none, and who holds what it leads to has nothing to do with it.
    let lock = task.file("lock");
    fs::rename(&lock, &kept).expect("it is there");
    symlink(&kept, &lock).expect("ours");
    let _held = take_lock(&kept);
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

/// A process of somebody else's, in a cgroup of its own.
fn stranger(host: &Host) -> (Elsewhere, Process) {
    let elsewhere = host.elsewhere("stranger");
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let process = host.spawn_command(elsewhere.inside(&sleep));
    elsewhere.wait_for(process.pid());
    (elsewhere, process)
}

/// A task whose shim has died before it.
fn dead(host: &Host) -> Task<'_> {
    let task = host.task("exec sleep 1000").start();
    task.kill_shim(task.shim_pid());
    task
}

/// Changes what a record says.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut record: Value = serde_json::from_slice(&fs::read(path).expect("a record")).expect("JSON");
    change(&mut record);
    fs::write(path, record.to_string()).expect("ours");
}

/// Removes what an edited record has kept from being found.
#[track_caller]
fn clean_up(host: &Host, task: &Task<'_>) {
    host.bowline(["cgroup", "destroy", &format!("/bowline/{}", task.on_host())]);
}

#[test]
fn a_record_that_was_edited_ends_nobody_else() {
    let host = Host::new();
    let (elsewhere, process) = stranger(&host);
    let other = host.task("exec sleep 1000").start();
    let others = other.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let theirs = elsewhere.path().to_owned();
    for path in [&*theirs, &others, "/", "..", "../..", &format!("/bowline/../{theirs}"), "/bowline", "bowline", ""] {
        for field in ["cgroup", "overhead"] {
            let task = dead(&host);
            edit(&task.file("task.json"), |record| record[field] = json!(path));
            // Nothing but what is known to be nobody's.
            let listed = host.bowline(["gc", "--dry-run"]).assert_code(0).out();
            assert!(!listed.contains(&theirs), "{listed}");
            let ran = host.bowline(["rm", "-f", task.id()]);
            ran.assert_code(0);
            assert!(
                ran.err().contains("left alone") && ran.err().contains("look into it yourself"),
                "{field} {path}: {ran}"
            );
            assert!(!task.file("task.json").exists(), "the folder goes");
            clean_up(&host, &task);
        }
    }
    assert!(process_exists(process.pid()) && !elsewhere.there().is_empty());
    assert_eq!(other.status(), "running");
    other.end();
    other.bowline("rm", []).assert_code(0);
    process.signal(Signal::KILL);
    process.finish();
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_cut_short_ends_nobody_in_its_intended_cgroup() {
    let host = Host::new();
    let (elsewhere, process) = stranger(&host);
    let task = dead(&host);
    // As it is from the moment of the launch until the cgroup is its own.
    edit(&task.file("task.json"), |record| {
        record["identity"]["cgroups"] = json!({});
        record["cgroup"] = json!(elsewhere.path());
        record["task"]["cgroup"] = json!(elsewhere.path());
    });
    let ran = host.bowline(["rm", "-f", task.id()]);
    assert!(ran.assert_code(0).err().contains("left alone"), "{ran}");
    assert!(process_exists(process.pid()) && !elsewhere.there().is_empty());
    clean_up(&host, &task);
    process.signal(Signal::KILL);
    process.finish();
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_record_of_another_boot_or_version_ends_no_stranger() {
    let host = Host::new();
    let (elsewhere, process) = stranger(&host);
    type Edit<'a> = &'a dyn Fn(&mut Value);
    let edits: [(&str, Edit<'_>); 4] = [
        ("another boot", &|record| record["identity"]["boot"] = json!("0b0c0d0e-0000-4000-8000-000000000000")),
        ("another inode", &|record| {
            for file in record["identity"]["cgroups"].as_object_mut().expect("hierarchies").values_mut() {
                file[1] = json!(file[1].as_u64().expect("an inode") + 1);
            }
        }),
        ("no identity", &|record| {
            record.as_object_mut().expect("an object").remove("identity");
            record["cgroup"] = json!(elsewhere.path());
        }),
        ("a launch that was cut short", &|record| {
            record["identity"].as_object_mut().expect("an object").remove("cgroups");
            record["cgroup"] = json!(elsewhere.path());
        }),
    ];
    for (what, change) in edits {
        let task = dead(&host);
        let record: Value = serde_json::from_str(&task.log("task.json")).expect("JSON");
        let pid = record["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        edit(&task.file("task.json"), change);
        let ran = task.bowline("rm", ["-f"]);
        if !["another boot", "another inode"].contains(&what) {
            // The task's own is where bowline makes it.
            assert!(ran.assert_code(0).err().contains("left alone"), "{what}: {ran}");
            clean_up(&host, &task);
            continue;
        }
        // Its init lives, and may be the task's: somebody has to look.
        ran.assert_refused(125, &[&pid.to_string()]);
        assert!(process_exists(pid) && task.file("task.json").exists(), "{what}: {ran}");
        let is_elsewhere = what == "another inode";
        // What is there has its name, and is not what the record says.
        assert_eq!(ran.err().contains(&format!("/bowline/{}/{}", task.on_host(), task.id())), is_elsewhere, "{ran}");
        clean_up(&host, &task);
        task.bowline("rm", ["-f"]).assert_code(0);
    }
    // Where nobody but the task can be, an older record will do; and who is init is not gone by.
    let task = dead(&host);
    edit(&task.file("task.json"), |record| {
        record.as_object_mut().expect("an object").remove("identity");
        record["pid"] = json!(process.pid());
        record["a field of a later version"] = json!({ "x": 1 });
    });
    let ran = task.bowline("rm", ["-f"]);
    assert!(!ran.assert_code(0).err().contains("left alone"), "{ran}");
    assert!(process_exists(process.pid()) && !elsewhere.there().is_empty());
    process.signal(Signal::KILL);
    process.finish();
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_sandboxs_record_that_was_edited_ends_nobody_else() {
    let host = Host::new();
    let (elsewhere, process) = stranger(&host);
    for field in ["cgroup", "overhead"] {
        let sandbox = host.sandbox().create();
        sandbox.kill_shim();
        let path = host.state().join(sandbox.id()).join("sandbox.json");
        edit(&path, |record| record[field] = json!(elsewhere.path()));
        let ran = host.bowline(["sandbox", "rm", "-f", sandbox.id()]);
        ran.assert_code(0);
        assert!(ran.err().contains("left alone"), "{field}: {ran}");
        for above in ["bowline", "bowline-overhead"] {
            host.bowline(["cgroup", "destroy", &format!("/{above}/{}", sandbox.on_host())]);
        }
    }
    assert!(process_exists(process.pid()) && !elsewhere.there().is_empty());
    process.signal(Signal::KILL);
    process.finish();
    elsewhere.remove();
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_bundles_record_that_was_edited_ends_nobody_else() {
    let host = Host::new();
    if host.reference_fails("its records are in other files") {
        return;
    }
    let (elsewhere, process) = stranger(&host);
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    let record = running.bundle.path.join("task.json");
    let kept = fs::read(&record).expect("a record");
    edit(&record, |record| record["cgroup"] = json!(elsewhere.path()));
    containerd.delete_action(&running.bundle);
    assert!(process_exists(process.pid()) && !elsewhere.there().is_empty());
    // Its own cgroup, which the configuration names, is known by its identity.
    eventually("init ends", || (!process_exists(running.pid)).then_some(()));
    fs::write(&record, kept).expect("ours");
    containerd.delete_action(&running.bundle);
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
    process.signal(Signal::KILL);
    process.finish();
    elsewhere.remove();
}
