//! Seccomp's notifications: who listens is handed each process's listener.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::{Test, is_reference};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("the_listener_of_a_filter_is_handed_to_who_is_to_decide", handed),
    ("an_exec_has_a_listener_of_its_own", exec),
    ("a_profile_that_nobody_listens_for_is_refused", refused),
];

fn with_profile(script: &str) -> (Test, UnixListener) {
    let test = Test::new(script);
    let agent = test.path("agent.sock");
    let listener = UnixListener::bind(&agent).expect("free");
    let profile = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": agent.display().to_string(),
        "listenerMetadata": "of the test",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY"}],
    });
    (test.set("/linux/seccomp", profile).set("/annotations", json!({"a": "b"})), listener)
}

/// Takes what comes with so many connections, and decides nothing: a call whose
/// listener is closed is one that the kernel does not have.
fn agent(listener: UnixListener, connections: usize) -> JoinHandle<Vec<Value>> {
    std::thread::spawn(move || {
        let one = |_| {
            let (socket, _) = listener.accept().expect("a connection");
            let mut text = vec![0u8; 65536];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                .expect("it comes");
            let rights = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fds: Vec<OwnedFd> = rights.flatten().collect();
            assert_eq!(fds.len(), 1, "the listener");
            serde_json::from_slice(&text[..received.bytes]).expect("JSON")
        };
        (0..connections).map(one).collect()
    })
}

const SCRIPT: &str = "busybox mkdir /mnt/x 2>&1 | grep -o 'not implemented'; touch /mnt/touched && echo touched";

fn handed() {
    for no_new_privileges in [false, true] {
        let (test, listener) = with_profile(SCRIPT);
        let agent = agent(listener, 1);
        let test = test.set("/process/noNewPrivileges", json!(no_new_privileges));
        assert_eq!(test.run().said(), "not implemented\ntouched");
        let told = agent.join().expect("it has heard").remove(0);
        assert_eq!((&told["fds"], &told["metadata"]), (&json!(["seccompFd"]), &json!("of the test")));
        assert_eq!((&told["state"]["status"], &told["state"]["annotations"]), (&json!("creating"), &json!({"a": "b"})));
        if !is_reference() {
            assert!(told["pid"].as_i64().is_some_and(|pid| pid > 1), "{told}");
            assert_eq!(told["pid"], told["state"]["pid"]);
            assert_eq!(told["state"]["id"], "test");
        }
    }
}

fn exec() {
    if is_reference() {
        return;
    }
    let (test, listener) = with_profile("while ! [ -e /mnt/done ]; do busybox usleep 10000; done");
    let agent = agent(listener, 2);
    let mut process = test.config["process"].clone();
    // Once it has said all: with its init an exec is killed.
    process["args"] = json!(["sh", "-c", format!("{SCRIPT}; touch /mnt/done")]);
    assert_eq!(test.exec(&process).run().said(), "not implemented\ntouched");
    let told = agent.join().expect("it has heard");
    assert_eq!(told[1]["state"]["status"], "running");
    assert_eq!(told[1]["state"]["pid"], told[0]["pid"], "the container's is its init's");
    assert_ne!(told[1]["pid"], told[0]["pid"]);
}

fn refused() {
    if is_reference() {
        return;
    }
    let (test, listener) = with_profile("true");
    drop(listener);
    let ended = test.run();
    assert!(ended.error().contains("listenerPath"), "{ended:?}");
}
