//! Seccomp's notifications: an agent gets the listener of each process's filter, under containerd and from `bowline`.

use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Stdio, is_reference};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

/// Says what becomes of a call that the agent decides on.
const SCRIPT: &str = "mkdir /tmp/x 2>&1 | grep -o 'not implemented'";

/// A profile that asks the agent at `agent` about `call`.
fn profile(agent: &Path, call: &[&str]) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": agent,
        "listenerMetadata": "of the test",
        "syscalls": [{"names": call, "action": "SCMP_ACT_NOTIFY"}],
    })
}

/// Takes the message of so many connections, and decides nothing: once its listener is closed, a call is one that the
/// kernel does not have.
fn agent(host: &Host, connections: usize) -> (PathBuf, JoinHandle<Vec<Value>>) {
    let path = host.work().join("agent.sock");
    let listener = UnixListener::bind(&path).expect("the work folder is writable");
    let one = move |_| {
        let (socket, _) = listener.accept().expect("a connection");
        let mut text = vec![0u8; 65536];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let received = received.expect("a message");
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = rights.flatten().collect();
        assert_eq!(fds.len(), 1, "the listener");
        serde_json::from_slice(&text[..received.bytes]).expect("JSON")
    };
    (path, std::thread::spawn(move || (0..connections).map(one).collect()))
}

#[test]
fn an_agent_gets_the_listeners_of_a_container_and_of_its_exec() {
    for no_new_privs in [false, true] {
        let host = Host::new();
        let containerd = host.containerd();
        let (path, agent) = agent(&host, 2);
        let script = format!("{SCRIPT}; while :; do sleep 1; done");
        let bundle = containerd.bundle().script(&script).annotation("a", "b").edit(|config| {
            config["linux"]["seccomp"] = profile(&path, &["mkdir", "mkdirat"]);
            config["process"]["noNewPrivileges"] = json!(no_new_privs);
        });
        let io = bundle.fifos("init");
        let running = containerd.run_with(bundle, &io);
        running.stdout.wait_for("not implemented");
        assert_eq!(running.exec("e", SCRIPT).1, "not implemented\n");

        let told = agent.join().expect("it has heard");
        for message in &told {
            assert_eq!((&message["fds"], &message["metadata"]), (&json!(["seccompFd"]), &json!("of the test")));
            let state = &message["state"];
            assert!(message["ociVersion"].is_string() && state["ociVersion"].is_string(), "{message}");
            assert_eq!((&state["id"], &state["annotations"]["a"]), (&json!(running.id), &json!("b")));
            assert_eq!(state["bundle"], json!(running.bundle.path), "{message}");
            assert_eq!(state["pid"], running.pid, "the container's is its init's");
        }
        assert_eq!((&told[0]["state"]["status"], &told[0]["pid"]), (&json!("creating"), &json!(running.pid)));
        assert_eq!(told[1]["state"]["status"], "running");
        assert!(told[1]["pid"].as_i64().is_some_and(|pid| pid > 1 && pid != i64::from(running.pid)), "{}", told[1]);
        running.end();
    }
}

#[test]
fn the_listener_comes_while_the_container_is_created() {
    let host = Host::new();
    let containerd = host.containerd();
    let (path, agent) = agent(&host, 1);
    let bundle = containerd.bundle().script("exit 3").edit(|config| {
        config["linux"]["seccomp"] = profile(&path, &["mkdir", "mkdirat"]);
    });
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created");
    let told = agent.join().expect("it has heard").remove(0);
    assert_eq!((&told["state"]["status"], &told["pid"]), (&json!("creating"), &json!(pid)));
    assert_eq!(shim.status(&bundle.id, ""), "CREATED");
    shim.start(&bundle.id, "").expect("started");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 3);
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn an_agent_that_takes_no_listener_fails_the_create_or_exec() {
    let host = Host::new();
    let containerd = host.containerd();
    // More than a socket has room for: the agent leaves in the middle.
    let long = "x".repeat(1 << 20);
    for takes_first in [false, true] {
        let path = host.work().join(format!("agent-{takes_first}.sock"));
        let listener = UnixListener::bind(&path).expect("the work folder is writable");
        let agent = std::thread::spawn(move || {
            if takes_first {
                let (mut socket, _) = listener.accept().expect("a connection");
                std::io::copy(&mut socket, &mut std::io::sink()).expect("a message");
            }
            let (mut socket, _) = listener.accept().expect("a connection");
            socket.read_exact(&mut [0; 64]).expect("the beginning of a message");
        });
        let bundle = containerd.bundle().script("sleep 1000").annotation("a", &long).edit(|config| {
            config["linux"]["seccomp"] = profile(&path, &["mkdir", "mkdirat"]);
        });
        let shim = containerd.start(&bundle);
        let created = shim.create(&bundle, &Stdio::null());
        let failed = if takes_first {
            created.expect("the agent has taken it");
            shim.start(&bundle.id, "").expect("started");
            shim.exec(&bundle.id, "e", &bundle.process(&["/bin/true"]), &Stdio::null()).expect("added");
            let failed = shim.start(&bundle.id, "e").map(drop);
            shim.delete(&bundle.id, "e").expect("deleted");
            shim.kill(&bundle.id, "", 9).expect("sent");
            shim.wait(&bundle.id, "").expect("an end");
            shim.delete(&bundle.id, "").expect("deleted");
            failed
        } else {
            created.map(drop)
        };
        let failure = failed.expect_err("the agent has gone");
        if !is_reference() {
            assert!(failure.message.contains(path.to_str().expect("ASCII")), "{failure:?}");
            assert!(failure.message.contains("listener"), "{failure:?}");
        }
        agent.join().expect("it has heard");
        shim.over();
    }
}

#[test]
fn what_nobody_could_decide_on_is_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    let nobody = host.work().join("nobody.sock");
    let mut by_default = profile(&nobody, &[]);
    by_default["defaultAction"] = json!("SCMP_ACT_NOTIFY");
    by_default["syscalls"] = json!([{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]);
    for (profile, named) in [
        (profile(&nobody, &["mkdir"]), "listenerPath"),
        (profile(Path::new(""), &["mkdir"]), "listenerPath"),
        (profile(&nobody, &["write"]), "write"),
        (by_default, "default action"),
    ] {
        let bundle = containerd.bundle().script("true").edit(|config| config["linux"]["seccomp"] = profile.clone());
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err("nobody listens");
        if !is_reference() {
            assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{failure:?}");
            assert!(failure.message.contains(named), "{named}: {failure:?}");
        }
        shim.over();
    }
    // Without a call to decide on, it does not matter that nobody listens.
    let bundle = containerd.bundle().script("echo runs").edit(|config| {
        config["linux"]["seccomp"] = profile(&nobody, &[]);
        config["linux"]["seccomp"]["syscalls"] = json!([{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}]);
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    assert_eq!(running.stdout.to_end(), "runs\n");
    running.end();
}

#[test]
fn an_agent_gets_the_listener_of_a_task() {
    let host = Host::new();
    let (path, agent) = agent(&host, 1);
    let profile = host.file("profile.json", &profile(&path, &["mkdir", "mkdirat"]).to_string());
    let root = host.busybox_root();
    let toml = format!("command = 'sh'\nargs = ['-c', \"{SCRIPT}\"]\nseccomp = '{}'", profile.display());
    host.described(&toml).rootfs(root.path()).run().assert_says("not implemented");
    let told = agent.join().expect("it has heard").remove(0);
    assert_eq!((&told["metadata"], &told["state"]["status"]), (&json!("of the test"), &json!("creating")));
}
