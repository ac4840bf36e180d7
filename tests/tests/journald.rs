//! `--log journald`: each line is an entry with the task's fields; a journal that is away or stuck holds nothing up.
//!
//! Where systemd runs, its journal is asked; elsewhere a socket of the test's own stands in for it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read as _, Seek as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_tests::Host;
use bowline_tests::harness::{eventually, has_systemd, patience};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Whoever has it may stand in for journald.
static PLACE: Mutex<()> = Mutex::new(());

type Entry = BTreeMap<String, Vec<u8>>;

/// Stands in for journald; goes with its socket.
struct Journald {
    socket: UnixDatagram,
}

/// While it is held, no other case stands in for journald.
fn turn() -> MutexGuard<'static, ()> {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journald {
    fn new() -> Journald {
        fs::create_dir_all("/run/systemd/journal").expect("/run is writable");
        let socket = UnixDatagram::bind(SOCKET).expect("nobody else has it");
        socket.set_read_timeout(Some(patience())).expect("set");
        Journald { socket }
    }

    /// The next entry, and whether it came in a file.
    fn next(&self) -> (Entry, bool) {
        let mut bytes = vec![0; 400_000];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let length = received.expect("an entry").bytes;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        match fds.flatten().next() {
            Some(file) => (fields(&in_file(file)), true),
            None => (fields(&bytes[..length]), false),
        }
    }
}

impl Drop for Journald {
    fn drop(&mut self) {
        let _ = fs::remove_file(SOCKET);
        // Made by this test, where nothing else has it.
        let _ = fs::remove_dir("/run/systemd/journal").and_then(|()| fs::remove_dir("/run/systemd"));
    }
}

/// journald takes a file only if it is sealed against every change.
fn in_file(fd: OwnedFd) -> Vec<u8> {
    let seals = fcntl_get_seals(&fd).expect("a file in memory");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL), "{seals:?}");
    let (mut file, mut bytes) = (File::from(fd), Vec::new());
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("readable");
    bytes
}

fn fields(bytes: &[u8]) -> Entry {
    let lines = bytes.strip_suffix(b"\n").expect("each field ends").split(|byte| *byte == b'\n');
    let field = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=').expect("NAME=value");
        (String::from_utf8(line[..at].to_vec()).expect("ASCII"), line[at + 1..].to_vec())
    };
    lines.map(field).collect()
}

fn text(entry: &Entry, name: &str) -> String {
    entry.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// Whether systemd's own journal is there, which nobody stands in for.
fn has_journald() -> bool {
    has_systemd() && Path::new(SOCKET).exists()
}

#[test]
fn each_line_is_an_entry_with_the_tasks_fields() {
    if has_journald() {
        return;
    }
    let (host, _turn) = (Host::new(), turn());
    let journald = Journald::new();
    let script =
        "echo out; echo err >&2; sleep 0.2; head -c 250000 /dev/zero | tr '\\0' x; echo; printf '\\377 no end'";
    let task = host.task(script).flag("--log=journald").start();
    let said: Vec<(Entry, bool)> = (0..4).map(|_| journald.next()).collect();
    for (entry, _) in &said {
        for (name, value) in [
            ("CONTAINER_NAME", task.id()),
            ("CONTAINER_ID", task.id()),
            ("SYSLOG_IDENTIFIER", task.id()),
            ("BOWLINE_TASK", task.id()),
        ] {
            assert_eq!(text(entry, name), value);
        }
        assert_eq!(Path::new(&text(entry, "BOWLINE_STATE")), host.state());
    }
    let find = |message: &str| said.iter().map(|(entry, _)| entry).find(|entry| text(entry, "MESSAGE") == message);
    for (message, stream, priority) in [("out", "stdout", "6"), ("err", "stderr", "3")] {
        let entry = find(message).unwrap_or_else(|| panic!("no entry {message}"));
        assert_eq!((text(entry, "BOWLINE_STREAM"), text(entry, "PRIORITY")), (stream.to_owned(), priority.to_owned()));
    }
    let (large, in_file) = &said[2];
    assert_eq!((large["MESSAGE"].len(), *in_file), (250_000, true));
    let (last, _) = &said[3];
    assert_eq!(
        (&last["MESSAGE"][..], text(last, "CONTAINER_PARTIAL_MESSAGE")),
        (&b"\xff no end"[..], "true".to_owned())
    );
    assert_eq!(task.wait()["output_dropped_bytes"], 0);
    let hint = format!("journalctl BOWLINE_TASK={}", task.id());
    let refused = task.bowline("logs", []);
    assert!(refused.assert_refused(125, &["is in the journal"]).err().contains(&hint), "{refused}");
    assert!(!task.file("log.json").exists() && !task.file("stdout.log").exists());
}

#[test]
fn a_host_without_a_journal_refuses_and_nothing_is_left() {
    if has_journald() {
        return;
    }
    let (host, turn) = (Host::new(), turn());
    host.task("true").flag("--log=journald").assert_refused(125, &["cannot reach the journal", SOCKET]);
    drop(turn);
    host.task("true").flag("--log=journald").flag("--log-size=1M").assert_refused(2, &["log.max_size", "journald"]);
}

#[test]
fn a_journal_that_goes_away_blocks_nothing_and_loss_is_counted() {
    if has_journald() {
        return;
    }
    let (host, _turn) = (Host::new(), turn());
    let journald = Journald::new();
    let script = "echo first; until [ -e /tmp/gone ]; do sleep 0.02; done; echo lost; touch /tmp/said; \
                  until [ -e /tmp/back ]; do sleep 0.02; done; echo last";
    let task = host.task(script).flag("--log=journald").start();
    assert_eq!(text(&journald.next().0, "MESSAGE"), "first");
    drop(journald);
    task.exec("touch /tmp/gone").assert_code(0);
    eventually("it was said", || (task.exec("test -e /tmp/said").code == Some(0)).then_some(()));
    let journald = Journald::new();
    // The task may end, and the exec with it, as soon as the file is there.
    task.exec("touch /tmp/back");
    let (note, last) = (journald.next().0, journald.next().0);
    assert_eq!((text(&note, "BOWLINE_DROPPED"), text(&note, "PRIORITY")), ("5".to_owned(), "4".to_owned()));
    assert_eq!(text(&last, "MESSAGE"), "last");
    assert_eq!(task.wait()["output_dropped_bytes"], 5);
}

#[test]
fn a_journal_that_is_stuck_holds_nothing_up() {
    if has_journald() {
        return;
    }
    let (host, _turn) = (Host::new(), turn());
    let journald = Journald::new();
    let task = host.task("seq 100000").flag("--log=journald").start();
    // Nobody reads meanwhile.
    let report = task.wait();
    let dropped = report["output_dropped_bytes"].as_u64().expect("a number");
    assert!(dropped > 500_000, "{dropped} of 588,895 bytes");
    assert_eq!(text(&journald.next().0, "MESSAGE"), "1");
}

#[test]
fn the_journal_of_systemd_has_the_entries() {
    if !has_journald() {
        return;
    }
    let host = Host::new();
    let script = "echo out; echo err >&2; head -c 250000 /dev/zero | tr '\\0' x; echo";
    let task = host.task(script).flag("--log=journald").start();
    assert_eq!(task.wait()["output_dropped_bytes"], 0);
    let name = format!("CONTAINER_NAME={}", task.id());
    let entries: Vec<Value> = eventually("the journal has all", || {
        let _ = Command::new("journalctl").arg("--sync").output();
        let mut journalctl = Command::new("journalctl");
        journalctl.args(["--no-pager", "--all", "--output=json", &name]);
        let out = host.execute(journalctl).assert_code(0).out();
        let entries: Vec<Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (entries.len() == 3).then_some(entries)
    });
    let of = |message: &str| {
        entries.iter().find(|entry| entry["MESSAGE"] == message).unwrap_or_else(|| panic!("no {message}"))
    };
    assert_eq!((&of("out")["PRIORITY"], &of("err")["PRIORITY"]), (&"6".into(), &"3".into()));
    assert_eq!((&of("out")["SYSLOG_IDENTIFIER"], &of("err")["BOWLINE_STREAM"]), (&task.id().into(), &"stderr".into()));
    let longest = entries.iter().filter_map(|entry| entry["MESSAGE"].as_str().map(str::len)).max();
    assert_eq!(longest, Some(250_000));
}
