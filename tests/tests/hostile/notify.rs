//! A task that misuses the socket for messages to the service manager. The test sends to the same socket from outside.

use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Task, fds_of};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::pipe;

use crate::service::{Manager, SAY};

/// A socket like the task's own.
fn connected(task: &Task<'_>) -> UnixDatagram {
    let socket = UnixDatagram::unbound().expect("a socket");
    socket.connect(task.file("notify")).expect("it is there");
    socket
}

#[test]
fn what_floods_its_manager_waits() {
    let host = Host::new();
    let manager = Manager::new();
    let flood = r#"exec perl -MIO::Socket -e '
        $to = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{NOTIFY_SOCKET}) or die "$!";
        while (1) { $to->send("STATUS=" . "x" x 4000) }'"#;
    let (task, client) = manager.runs(&host, &host.task(flood));
    manager.hears();
    let (began, most) = (Instant::now(), 50);
    for _ in 0..most {
        manager.hears();
    }
    assert!(began.elapsed() >= Duration::from_millis(10) * (most - 11), "{:?}", began.elapsed());
    // It stops as any other.
    client.signal(rustix::process::Signal::TERM);
    client.finish().assert_code(143);
    task.wait();
    host.assert_nothing_left();
}

#[test]
fn a_forged_message_changes_nothing_of_its_unit() {
    let host = Host::new();
    let manager = Manager::new();
    let long = "x".repeat(4090);
    let script = format!(
        "{SAY} say MAINPID=1 'NOTIFYACCESS=all\nFDSTOREREMOVE=1' 'STATUS={long}' '' 'BUSERROR=a' \
         'WATCHDOG_USEC=1\nREADY=1\nFDSTORE=1\nFDPOLL=0' STOPPING=1"
    );
    let (_task, client) = manager.runs(&host, &host.task(&script));
    client.finish().assert_says("");
    assert_eq!(manager.hears().0, "READY=1");
    assert_eq!(manager.hears().0, "STOPPING=1");
    manager.hears_nothing_more();
    host.assert_nothing_left();
}

#[test]
fn descriptors_that_come_with_a_message_are_closed() {
    let host = Host::new();
    let manager = Manager::new();
    let (task, client) = manager.runs(&host, &host.task(&format!("{SAY} say READY=1; exec sleep 1000")));
    manager.hears();
    let before = fds_of(client.pid()).len();
    let (reads, writes) = pipe().expect("a pipe");
    for text in ["FDSTORE=1", "STATUS=with a file"] {
        let given = [writes.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        with.push(SendAncillaryMessage::ScmRights(&given));
        sendmsg(connected(&task), &[IoSlice::new(text.as_bytes())], &mut with, SendFlags::empty()).expect("sent");
    }
    drop(writes);
    assert_eq!(manager.hears().0, "STATUS=with a file");
    let mut rest = Vec::new();
    std::fs::File::from(reads).read_to_end(&mut rest).expect("nobody else has its other end");
    assert_eq!(fds_of(client.pid()).len(), before);
    task.end();
    client.finish();
    host.assert_nothing_left();
}

#[test]
fn what_nobody_reads_holds_up_nobody_else() {
    let host = Host::new();
    let manager = Manager::new();
    // The manager's queue is full: the relay waits, and the task with it, and both end all the same.
    let script =
        format!("{SAY} for i in 1 2 3 4 5 6 7 8; do say STATUS=a STATUS=b STATUS=c STATUS=d; done; exec sleep 1000");
    let (task, client) = manager.runs(&host, &host.task(&script));
    manager.hears();
    task.stop(["--grace=0s"]);
    client.finish().assert_code(137);
    host.assert_nothing_left();
}
