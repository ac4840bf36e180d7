//! After the death of a shim, or of containerd: what `delete` finds out and takes away, and what a new containerd sees.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Stdio, api};
use bowline_tests::harness::{eventually, hierarchies, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

#[test]
fn delete_takes_down_what_a_dead_shim_has_left() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000 & sleep 1000");
    running.shim.kill_shim();
    let deleted = containerd.delete_action(&running.bundle);
    assert_eq!(deleted.exit_status, 137, "killed, as nothing else is known");
    assert_eq!(deleted.pid.cast_signed(), running.pid);
    assert!(deleted.exited_at.as_ref().is_some_and(|time| time.seconds > 0));
    assert!(!process_exists(running.pid));
    // containerd goes by the connection; the socket's file is its to remove.
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn delete_removes_only_parent_cgroups_made_for_the_container() {
    let host = Host::new();
    if host.reference_fails("runc removes the container's own alone") {
        return;
    }
    let containerd = host.containerd();
    let ours = |bundle: Bundle| {
        let path = format!("{}/above/nearer/{}", containerd.cgroups(), bundle.id);
        bundle.script("sleep 1000").edit(|config| config["linux"]["cgroupsPath"] = json!(path))
    };
    // In each hierarchy, what is there before is somebody else's.
    let tops: Vec<_> = hierarchies().into_iter().map(|(_, mount)| mount.join(&containerd.cgroups()[1..])).collect();
    tops.iter().for_each(|top| fs::create_dir(top).expect("root may"));
    for created_only in [false, true] {
        let bundle = ours(containerd.bundle());
        let shim = containerd.start(&bundle);
        shim.create(&bundle, &Stdio::null()).expect("created");
        if !created_only {
            shim.start(&bundle.id, "").expect("started");
        }
        shim.kill_shim();
        assert!(tops.iter().any(|top| top.join("above/nearer").exists()), "it has made them");
        containerd.delete_action(&bundle);
        for top in &tops {
            assert!(!top.join("above").exists(), "{} is left", top.join("above").display());
            assert!(top.exists(), "{} was there before", top.display());
        }
        let _ = fs::remove_file(&shim.socket);
    }
    // What somebody has put there meanwhile stays, with what it is in.
    let bundle = ours(containerd.bundle());
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    shim.kill_shim();
    let strangers = tops[0].join("above/stranger");
    fs::create_dir(&strangers).expect("root may");
    containerd.delete_action(&bundle);
    assert!(strangers.exists() && !tops[0].join("above/nearer").exists());
    assert!(tops[1..].iter().all(|top| !top.join("above").exists()));
    let _ = fs::remove_file(&shim.socket);
    for path in [strangers, tops[0].join("above")].iter().chain(&tops) {
        fs::remove_dir(path).expect("it is empty");
    }
}

#[test]
fn delete_of_what_was_created_and_not_started_leaves_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    shim.kill_shim();
    assert_eq!(containerd.delete_action(&bundle).exit_status, 137);
    let _ = fs::remove_file(&shim.socket);
}

#[test]
fn delete_without_a_container_is_no_error() {
    let host = Host::new();
    if host.reference_fails("it needs the bundle's file `runtime`") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    shim.kill_shim();
    assert_eq!(containerd.delete_action(&bundle).exit_status, 137);
    let _ = fs::remove_file(&shim.socket);
}

#[test]
fn delete_tells_the_real_status_when_the_shim_has_seen_the_end() {
    let host = Host::new();
    if host.reference_fails("it keeps no status: 137 always") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("exit 7");
    let ended = running.shim.wait(&running.id, "").expect("an end");
    running.shim.kill_shim();
    let deleted = containerd.delete_action(&running.bundle);
    assert_eq!((deleted.exit_status, deleted.pid.cast_signed()), (7, running.pid));
    assert_eq!(deleted.exited_at, ended.exited_at);
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn delete_can_be_repeated() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    containerd.delete_action(&running.bundle);
    containerd.delete_action(&running.bundle);
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn delete_does_without_the_bundles_files() {
    let host = Host::new();
    if host.reference_fails("it needs the bundle's file `runtime`") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    for name in ["config.json", "init.pid", "address", "options.json", "runtime"] {
        // An error means that it was not there.
        let _ = fs::remove_file(running.bundle.path.join(name));
    }
    containerd.delete_action(&running.bundle);
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn delete_unmounts_the_root_filesystem() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").rootfs_aside("lower");
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    let source = bundle.path.join("lower").to_str().expect("ASCII").to_owned();
    let options = vec!["rbind".to_owned(), "ro".to_owned()];
    request.rootfs = vec![api::Mount { type_: "bind".into(), source, options, ..Default::default() }];
    shim.create_by(&request).expect("created");
    shim.start(&bundle.id, "").expect("started");
    shim.kill_shim();
    containerd.delete_action(&bundle);
    assert_eq!(fs::read_dir(bundle.rootfs()).expect("a folder").count(), 0, "still mounted");
    let _ = fs::remove_file(&shim.socket);
}

#[test]
fn delete_harms_no_stranger_who_has_the_pid_now() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    kill_process(Pid::from_raw(running.pid).expect("a pid"), Signal::KILL).expect("init lives on");
    running.wait_for_end();
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("1000");
    let mut stranger = host.spawn_command(sleep);
    fs::write(running.bundle.path.join("init.pid"), stranger.pid().to_string()).expect("the work folder is writable");
    containerd.delete_action(&running.bundle);
    assert!(stranger.is_running());
    drop(stranger);
    let _ = fs::remove_file(&running.shim.socket);
    drop(running);
}

#[test]
fn each_member_of_a_dead_pod_is_taken_down_by_its_delete() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let new = || containerd.bundle().script("sleep 1000").annotation("io.containerd.runc.v2.group", &group);
    let bundles = [new(), new()];
    let shims = bundles.each_ref().map(|bundle| containerd.start(bundle));
    let pids = bundles.each_ref().map(|bundle| shims[0].run(bundle, &Stdio::null()));
    shims[0].kill_shim();
    for (bundle, pid) in bundles.iter().zip(pids) {
        assert_eq!(containerd.delete_action(bundle).exit_status, 137);
        assert!(!process_exists(pid));
    }
    let _ = fs::remove_file(&shims[0].socket);
}

#[test]
fn an_id_can_be_used_again_after_delete() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill_shim();
    containerd.delete_action(&running.bundle);
    let shim = containerd.start(&running.bundle);
    let bundle = running.bundle.script("exit 5");
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 5);
    shim.end(&bundle.id);
}

#[test]
fn a_new_containerd_finds_everything_as_it_was() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let exec = running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    let address = running.bundle.read("address");
    let again = containerd.dial(address.strip_prefix("unix://").expect("an address").as_ref());
    assert_eq!(again.connect(&running.id).expect("connected").task_pid.cast_signed(), running.pid);
    let mut pids: Vec<_> = again.pids(&running.id).expect("pids").iter().map(|(pid, _)| pid.cast_signed()).collect();
    pids.sort_unstable();
    let mut expected = vec![running.pid, exec];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert_eq!(again.status(&running.id, ""), "RUNNING");
    assert_eq!(again.state(&running.id, "e").expect("a state").pid.cast_signed(), exec);
    again.kill(&running.id, "e", 9).expect("sent");
    assert_eq!(again.status_at_end(&running.id, "e"), 137);
    again.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn an_end_without_a_containerd_is_known_to_the_next_one() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_with_stdin("read line; exit 6");
    let socket = running.shim.socket.clone();
    let pid = running.shim.pid();
    let stdin = running.stdin.take().expect("a FIFO");
    let again = containerd.dial(&socket);
    drop(std::mem::replace(&mut running.shim, again));
    let mut stdin = stdin;
    stdin.write("go\n");
    running.wait_for_end();
    assert!(process_exists(pid));
    assert_eq!(running.shim.status_at_end(&running.id, ""), 6);
    running.end();
}

#[test]
fn a_shim_that_gets_sigterm_ends_and_removes_its_socket() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let pid = shim.pid();
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("a live shim");
    eventually("the shim ends", || (!process_exists(pid)).then_some(()));
    assert!(!shim.socket.exists());
}
