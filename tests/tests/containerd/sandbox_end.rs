//! How a sandbox ends, by whomever: what becomes of its members, its pause process and its shim.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::containerd::sandbox_api::{StopSandboxRequest, StopSandboxResponse};
use bowline_tests::harness::containerd::{Bundle, Pod, Sandbox, Stdio, api, make_fifo};
use bowline_tests::harness::{eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// For how long a shim of containerd's keeps its connections once it has given its last answer.
const LINGER: Duration = Duration::from_millis(250);

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
}

/// A member that waits for its end.
fn member(sandbox: &Sandbox, bundle: Bundle, script: &str) -> (Bundle, i32) {
    let bundle = sandbox.member(bundle.script(script), &["network", "ipc", "uts"]);
    let pid = sandbox.run(&bundle);
    (bundle, pid)
}

#[test]
fn stop_takes_the_members_down() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let members = [(); 2].map(|()| member(&sandbox, containerd.bundle(), "sleep 1000 & sleep 1000"));
    let created = containerd.bundle().script("sleep 1000");
    let only_created = sandbox.shim.create(&created, &Stdio::null()).expect("created").cast_signed();
    sandbox.stop(0).expect("stopped");
    for (bundle, pid) in &members {
        assert!(!process_exists(*pid));
        assert_eq!(sandbox.shim.status_at_end(&bundle.id, ""), 137);
    }
    assert!(!process_exists(only_created));
    sandbox.end();
}

#[test]
fn members_have_the_time_that_stop_gives_them() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let bundle = containerd.bundle().script("trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done");
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    sandbox.shim.run(&bundle, &io);
    stdout.wait_for("ready\n");
    let (stubborn, _) = member(&sandbox, containerd.bundle(), "trap '' TERM; while :; do sleep 0.1; done");
    sandbox.stop(1).expect("stopped");
    assert_eq!(sandbox.shim.status_at_end(&bundle.id, ""), 7);
    assert_eq!(sandbox.shim.status_at_end(&stubborn.id, ""), 137);
    sandbox.end();
}

#[test]
fn a_paused_member_is_taken_down_too() {
    let host = Host::new();
    let containerd = host.containerd();
    // Of a pid namespace, whose first process goes when all others have.
    let sandbox = containerd.sandbox(&Pod::default());
    let bundle = sandbox.member(containerd.bundle().script("sleep 1000"), &["pid"]);
    let pid = sandbox.run(&bundle);
    sandbox.shim.pause(&bundle.id).expect("paused");
    sandbox.stop(0).expect("stopped");
    assert!(!process_exists(pid));
    sandbox.end();
}

#[test]
fn a_pause_process_that_somebody_has_stopped_ends_all_the_same() {
    let host = Host::new();
    let sandbox = host.containerd().sandbox(&Pod::default());
    signal(sandbox.pid, Signal::STOP);
    sandbox.stop(0).expect("stopped");
    assert!(!process_exists(sandbox.pid));
    sandbox.end();
}

#[test]
fn the_end_of_the_pause_process_is_that_of_the_sandbox() {
    let host = Host::new();
    let containerd = host.containerd();
    for (how, status) in [(Signal::KILL, 137), (Signal::TERM, 0), (Signal::INT, 0)] {
        // Members have pid namespaces of their own.
        let sandbox = containerd.sandbox(&Pod { pid: 1, ..Pod::default() });
        let (bundle, pid) = member(&sandbox, containerd.bundle(), "sleep 1000");
        let waiting = sandbox.wait_later();
        signal(sandbox.pid, how);
        let ended = waiting.wait().expect("an end");
        assert_eq!(ended.exit_status, status, "{how:?}");
        let told = sandbox.status().expect("it is known");
        assert_eq!((told.state.as_str(), &told.exited_at), ("SANDBOX_NOTREADY", &ended.exited_at));
        assert!(process_exists(pid), "its members are for their manager to take down");
        assert!(sandbox.shim.create(&containerd.bundle(), &Stdio::null()).is_err(), "no further member");
        sandbox.stop(0).expect("stopped");
        assert!(!process_exists(pid));
        assert_eq!(sandbox.shim.status_at_end(&bundle.id, ""), 137);
        assert_eq!(sandbox.wait_later().wait().expect("an end"), ended, "the first end counts");
        sandbox.end();
    }
}

#[test]
fn the_shim_stays_while_the_sandbox_does_whoever_else_goes() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let (bundle, _) = member(&sandbox, containerd.bundle(), "sleep 1000");
    sandbox.shim.remove(&bundle.id);
    // As containerd says with every container that goes.
    sandbox.shim.shutdown(&bundle.id).expect("nothing to do");
    sandbox.ping().expect("it lives");
    let (bundle, _) = member(&sandbox, containerd.bundle(), "sleep 1000");
    sandbox.shim.remove(&bundle.id);
    sandbox.end();
}

#[test]
fn the_shim_of_a_stopped_sandbox_goes_with_its_last_member() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let shim = sandbox.shim.pid();
    let members = [(); 2].map(|()| member(&sandbox, containerd.bundle(), "sleep 1000").0);
    sandbox.stop(0).expect("stopped");
    sandbox.shim.delete(&members[0].id, "").expect("it has ended");
    assert_eq!(sandbox.state(), "SANDBOX_NOTREADY", "one is left");
    sandbox.shim.delete(&members[1].id, "").expect("it has ended, and is told so");
    sandbox.assert_gone(shim);
    assert_eq!(containerd.events.of(&members[1].id), ["create", "start", "exit", "delete"]);
}

#[test]
fn shutdown_leaves_nothing_of_a_sandbox_that_is_full_of_life() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let (_, pid) = member(&sandbox, containerd.bundle(), "sleep 1000");
    let mounted = containerd.bundle().script("sleep 1000").rootfs_aside("lower");
    let source = mounted.path.join("lower").to_str().expect("ASCII").to_owned();
    let mut request = sandbox.shim.creation(&mounted, &Stdio::null());
    let options = vec!["rbind".to_owned(), "rw".to_owned()];
    let bind = api::Mount { type_: "bind".into(), source, options, ..Default::default() };
    request.rootfs = vec![bind];
    sandbox.shim.create_by(&request).expect("created");
    sandbox.end();
    assert!(!process_exists(pid));
    assert_eq!(fs::read_dir(mounted.rootfs()).expect("a folder").count(), 0, "still mounted");
}

#[test]
fn a_sandbox_that_never_was_is_shut_down_too() {
    let host = Host::new();
    let containerd = host.containerd();
    containerd.new_sandbox().end();
    let created = containerd.new_sandbox();
    created.create(|_| ()).expect("created");
    let waiting = created.wait_later();
    created.stop(0).expect("stopped");
    assert_eq!(waiting.wait().expect("an end").exit_status, 0);
    created.end();
}

#[test]
fn who_asks_the_shim_to_end_ends_all() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod::default());
    let (_, pid) = member(&sandbox, containerd.bundle(), "sleep 1000");
    let shim = sandbox.shim.pid();
    signal(shim, Signal::TERM);
    sandbox.assert_gone(shim);
    assert!(!process_exists(pid));
}

#[test]
fn the_sandbox_s_delete_alone_cleans_up_after_a_killed_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    for shared in [0, 1] {
        let sandbox = containerd.sandbox(&Pod { pid: shared, ..Pod::default() });
        let members = [(); 2].map(|()| member(&sandbox, containerd.bundle(), "sleep 1000 & sleep 1000"));
        sandbox.shim.kill_shim();
        eventually("the pause process dies with it", || (!process_exists(sandbox.pid)).then_some(()));
        // Members of such a sandbox get no `delete` of their own, and may have lost their bundles by then.
        fs::remove_dir_all(&members[0].0.path).expect("ours");
        assert_eq!(containerd.delete_action(&sandbox.bundle).exit_status, 137);
        for (_, pid) in &members {
            assert!(!process_exists(*pid));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
        assert!(!mounts.contains(sandbox.bundle.path.to_str().expect("ASCII")), "{mounts}");
        containerd.delete_action(&sandbox.bundle);
        let _ = fs::remove_file(&sandbox.shim.socket);
    }
}

#[test]
fn a_start_action_for_a_member_finds_the_sandbox_s_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { pid: 1, ..Pod::default() });
    // As those do that take a shim for one of version 2.
    let bundle = containerd.bundle().annotation("io.kubernetes.cri.sandbox-id", &sandbox.id);
    let bundle = sandbox.member(bundle.script("sleep 1000"), &["network", "ipc", "uts"]);
    let shim = containerd.start(&bundle);
    assert_eq!(shim.socket, sandbox.shim.socket);
    shim.run(&bundle, &Stdio::null());
    shim.remove(&bundle.id);
    shim.shutdown(&bundle.id).expect("nothing to do");
    sandbox.ping().expect("it lives");
    sandbox.end();
}

#[test]
fn a_member_being_created_during_stop_is_not_left_behind() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { pid: 1, ..Pod::default() });
    // A hook that ends when we say so holds the creation up.
    let gate = host.work().join("gate");
    make_fifo(&gate);
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        let hook =
            json!({"path": "/bin/sh", "args": ["sh", "-c", format!("echo > {0}; read x < {0}", gate.display())]});
        config["hooks"] = json!({"createRuntime": [hook]});
    });
    let creating =
        sandbox.shim.send::<api::CreateTaskResponse>("Create", &sandbox.shim.creation(&bundle, &Stdio::null()));
    fs::read_to_string(&gate).expect("the hook writes");
    let request = StopSandboxRequest { sandbox_id: sandbox.id.clone(), ..Default::default() };
    let stopping = sandbox.send::<StopSandboxResponse>("StopSandbox", &request);
    eventually("it is no longer ready", || (sandbox.state() == "SANDBOX_NOTREADY").then_some(()));
    // Also where nobody reads any more.
    let mut opened = fs::File::options().read(true).write(true).open(&gate).expect("a FIFO");
    opened.write_all(b"go on\n").expect("there is room");
    stopping.wait().expect("stopped");
    assert!(creating.wait().is_err(), "it is no member");
    sandbox.end();
}

#[test]
fn shutdown_answers_once_the_socket_is_gone_before_hanging_up() {
    let host = Host::alone();
    if host.reference_fails("it removes its socket later") {
        return;
    }
    let containerd = host.containerd();
    for round in 0..20 {
        let asked = Instant::now();
        let (shim, pid) = if round % 2 == 0 {
            let bundle = containerd.bundle().script("exit 0");
            let shim = containerd.start(&bundle);
            let pid = shim.pid();
            shim.shutdown(&bundle.id).unwrap_or_else(|failure| panic!("round {round}: {failure:?}"));
            (shim, pid)
        } else {
            let sandbox = containerd.sandbox(&Pod::default());
            let pid = sandbox.shim.pid();
            sandbox.shutdown().unwrap_or_else(|failure| panic!("round {round}: {failure:?}"));
            (sandbox.shim, pid)
        };
        assert!(!shim.socket.exists(), "round {round}");
        // A client in Go that finds both the answer and the end of the connection takes either. Nothing tells that the
        // end has not come: a fifth of the time for which the shim keeps it is waited, unless the machine makes more of it.
        std::thread::sleep(LINGER / 5);
        assert!(!shim.client.has_ended() || asked.elapsed() >= LINGER, "round {round}");
        drop(shim);
        eventually("the shim ends", || (!process_exists(pid)).then_some(()));
    }
}
