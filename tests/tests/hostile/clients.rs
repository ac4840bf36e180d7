//! Clients of a shim's socket that mean it no good: frames without end, connections without number, other users.
//!
//! Garbage, frames of a hundred megabytes, and no room for a connection: `containerd_bad_input.rs`.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Ran, eventually, fds_of, patience, status_lines};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const NOBODY: u32 = 65534;

/// The resident memory of a process, in kB.
fn memory(pid: i32) -> u64 {
    let line = status_lines(pid, &["VmRSS"]);
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Ten clients of `socket` claim frames of 4 GB, and send 4 MB of each: that is thrown away as it comes, or the shim
/// hangs up. `served` holds meanwhile, and the shim does not grow.
fn claims_of_4_gb(socket: &Path, shim: i32, served: impl Fn()) {
    served();
    let before = memory(shim);
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let mut client = UnixStream::connect(socket).expect("our own");
            client.set_write_timeout(Some(patience())).expect("a socket");
            client.write_all(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 0]).expect("a socket");
            // More than a socket holds: it goes on once the shim has read of it.
            if let Err(error) = client.write_all(&[b'x'; 4_000_000]) {
                let hung_up = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
                assert!(hung_up, "neither read nor refused: {error}");
            }
            served();
            client
        })
        .collect();
    let after = memory(shim);
    assert!(after < before + 8_000, "{before} kB became {after}");
    drop(clients);
    served();
}

#[test]
fn frames_of_4_gb_do_not_fill_a_shim() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    claims_of_4_gb(&task.file("shim.sock"), task.shim_pid(), || assert_eq!(task.status(), "running"));
    task.end();
}

#[test]
fn frames_of_4_gb_do_not_fill_containerds_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let served = || assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    claims_of_4_gb(&running.shim.socket, running.shim.pid(), served);
    running.end();
}

/// A thousand connections to `socket` of which each has sent half a header; `served` holds meanwhile and afterwards.
fn a_thousand_half_open(socket: &Path, shim: i32, served: impl Fn()) {
    let sockets = || fds_of(shim).iter().filter(|fd| fd.starts_with("socket:")).count();
    let before = sockets();
    let clients: Vec<_> = (0..1000)
        .map(|_| {
            let mut client = UnixStream::connect(socket).expect("our own");
            client.write_all(&[0, 0, 1, 0, 0]).expect("a socket");
            client
        })
        .collect();
    eventually("it has taken them all", || (sockets() >= clients.len()).then_some(()));
    served();
    drop(clients);
    eventually("their connections are closed", || (sockets() <= before).then_some(()));
    served();
}

/// As many descriptors as may be had: for us, and for the shims that we start.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= 4096), "the hard limit of descriptors is {:?}", limit.maximum);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to the hard limit");
}

#[test]
fn a_thousand_half_open_connections_to_a_shim_hold_up_nobody() {
    more_descriptors();
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    a_thousand_half_open(&task.file("shim.sock"), task.shim_pid(), || {
        assert_eq!(task.status(), "running");
        task.exec("echo served").assert_says("served");
    });
    task.end();
}

#[test]
fn half_open_connections_to_containerds_shim_hold_up_nobody() {
    more_descriptors();
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    a_thousand_half_open(&running.shim.socket, running.shim.pid(), || {
        let other = containerd.dial(&running.shim.socket);
        assert_eq!(other.status(&running.id, ""), "RUNNING");
    });
    running.end();
}

/// What a user without rights gets at these sockets, and of these files and folders: a line for each.
fn tries(host: &Host, paths: &[PathBuf]) -> Ran {
    let script = "use Socket; for (@ARGV) { \
        if (-S $_ || /sock|\\/s\\//) { socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; \
          if (!connect($s, sockaddr_un($_))) { print \"connect: $!\\n\"; next } \
          syswrite($s, \"\\0\\0\\0\\1\\0\\0\\0\\1\\1\\0x\"); my $n = sysread($s, my $b, 10); \
          print $n ? \"answered\" : 'hung up', \"\\n\"; } \
        elsif (-d $_) { print opendir(my $d, $_) ? 'listed' : \"opendir: $!\", \"\\n\" } \
        else { print open(my $f, '<', $_) ? 'read' : \"open: $!\", \"\\n\" } }";
    let mut command = host.command("perl");
    // A broken pipe is how the shim hangs up.
    command.args(["-e", &format!("$SIG{{PIPE}} = 'IGNORE'; {script}")]).args(paths).uid(NOBODY).gid(NOBODY);
    host.execute(command)
}

#[test]
fn other_users_reach_neither_sockets_nor_state() {
    let host = Host::new();
    let task = host.task("echo secret; exec sleep 1000").start();
    task.wait_for_line("secret");
    let files = ["shim.sock", "task.json", "log.json", "shim.log"].map(|name| task.file(name));
    let ran = tries(&host, &[&[host.state(), task.file("")], &files[..]].concat());
    ran.assert_code(0);
    assert_eq!(ran.out().lines().count(), 6, "{ran}");
    assert!(ran.out().lines().all(|line| line.ends_with("Permission denied")), "{ran}");
    // Root is answered at the same socket, so that it is no accident.
    assert_eq!(task.status(), "running");

    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    tries(&host, std::slice::from_ref(&running.shim.socket)).assert_says("connect: Permission denied");
    running.shim.end(&running.id);
    task.end();
}

#[test]
fn other_users_are_hung_up_on_even_where_folders_are_open() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let socket = task.file("shim.sock");
    // A state folder that others may write is refused to root itself: so they may look only.
    for (path, mode) in [(host.state(), 0o755), (task.file(""), 0o777), (socket.clone(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
    }
    for _ in 0..20 {
        tries(&host, std::slice::from_ref(&socket)).assert_says("hung up");
    }
    assert_eq!(task.status(), "running", "root is served");
    assert!(task.log("shim.log").contains("65534"), "the shim's log tells who it was");
    task.end();
}
