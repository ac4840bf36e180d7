//! `containerd-shim-bowline-v1 start`, called as containerd calls it: what it answers, and what serves from then on.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bowline_tests::Host;
use bowline_tests::harness::containerd::is_reference;
use bowline_tests::harness::containerd::start::{
    Container, RUNC_OPTIONS, SHIM, StartInput, any, arguments, end, environment, field, kill, only, run, serving_all,
    socket, terminate, toml,
};
use bowline_tests::harness::{binary, cgroup_of, eventually, fds_of, status_lines};
use rustix::fs::{CWD, FileType, Mode, OFlags};

#[test]
fn the_reply_is_an_address_that_accepts_connections() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(StartInput::default()));
    assert_eq!(socket.parent(), Some(Path::new("/run/containerd/s")));
    let found = fs::metadata(&socket).expect("it is there");
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let written = fs::read_to_string(container.address_file()).expect("containerd 1 reads it");
    assert_eq!(written, format!("unix://{}", socket.display()));
    end(&host, &socket);
}

#[test]
fn what_serves_has_the_flags_and_nothing_else() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(StartInput { flags: vec!["-debug"], ..StartInput::default() }));
    let pid = only(&host);
    let words = arguments(pid);
    for pair in [["-namespace", "default"], ["-id", &container.id], ["-address", &container.address()]] {
        assert!(words.windows(2).any(|two| two == pair), "{pair:?} in {words:?}");
    }
    assert!(words.contains(&"-debug".to_owned()) && !words.contains(&"start".to_owned()), "{words:?}");
    let environment = environment(pid);
    assert!(environment.contains(&format!("TTRPC_ADDRESS={}.ttrpc", container.address())), "{environment:?}");
    assert!(!environment.iter().any(|variable| variable.starts_with("GOMAXPROCS=")), "{environment:?}");
    // By then it has left the session that it was started in.
    eventually("a session of its own", || (session_of(pid) == pid).then_some(()));
    eventually("it is in /", || (fs::read_link(format!("/proc/{pid}/cwd")).ok()? == Path::new("/")).then_some(()));
    // Its streams, and the descriptor that it has in reserve, which comes last.
    let expected = if is_reference() { 3 } else { 4 };
    let nulls = || fds_of(pid).iter().filter(|to| *to == "/dev/null").count();
    eventually("its streams, and one in reserve", || (nulls() == expected).then_some(()));
    let fds = fds_of(pid);
    assert!(!fds.iter().any(|to| to.contains(host.prefix())), "{fds:?}");
    end(&host, &socket);
}

fn session_of(pid: i32) -> i32 {
    status_lines(pid, &["NSsid"]).split_whitespace().last().and_then(|session| session.parse().ok()).unwrap_or(0)
}

#[test]
fn the_binary_that_serves_cannot_be_written_to() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(StartInput::default()));
    let exe = File::open(format!("/proc/{}/exe", only(&host))).expect("root may");
    // While it runs, nobody can anyway.
    end(&host, &socket);
    let again = File::options().write(true).open(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    let written = again.and_then(|mut binary| binary.write_all(b"\x7f"));
    assert!(written.is_err(), "a task could write to the host's binary through it");
}

#[test]
fn a_group_has_one_process_that_serves() {
    let host = Host::new();
    let [first, second] = [(); 2].map(|()| Container::new(&host).in_group("pod"));
    let [one, other] = [&first, &second].map(|container| socket(&container.start(StartInput::default())));
    assert_eq!(one, other);
    for container in [&first, &second] {
        let written = fs::read_to_string(container.address_file()).expect("containerd 1 reads it");
        assert_eq!(written, format!("unix://{}", one.display()));
    }
    end(&host, &one);
}

#[test]
fn the_runtime_s_own_annotation_counts_before_the_pod_s() {
    let host = Host::new();
    let both = r#"{"annotations": {"io.containerd.runc.v2.group": "g", "io.kubernetes.cri.sandbox-id": "pod"}}"#;
    let first = Container::new(&host).configured(both);
    let second = Container::new(&host).configured(r#"{"annotations": {"io.containerd.runc.v2.group": "g"}}"#);
    let [one, other] = [&first, &second].map(|container| socket(&container.start(StartInput::default())));
    assert_eq!(one, other);
    end(&host, &one);
}

#[test]
fn many_that_start_at_once_find_one_another() {
    let host = Host::new();
    let containers: Vec<_> = (0..8).map(|_| Container::new(&host).in_group("pod")).collect();
    let running: Vec<_> = containers
        .iter()
        .map(|container| {
            let mut command = container.command(&StartInput::default());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is there")
        })
        .collect();
    let mut addresses: Vec<_> = running
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().expect("a child");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        })
        .collect();
    addresses.dedup();
    assert_eq!(addresses.len(), 1);
    let address = String::from_utf8_lossy(&addresses[0]).into_owned();
    end(&host, Path::new(address.trim_start_matches("unix://")));
}

#[test]
fn who_is_of_no_group_or_of_another_namespace_is_served_apart() {
    let host = Host::new();
    let first = Container::new(&host).in_group("pod");
    let mut second = Container::new(&host).in_group("pod");
    second.namespace = "other".to_owned();
    let third = Container::new(&host);
    let sockets = [&first, &second, &third].map(|container| socket(&container.start(StartInput::default())));
    assert!(sockets[0] != sockets[1] && sockets[1] != sockets[2] && sockets[0] != sockets[2]);
    serving_all(&host, 3).into_iter().for_each(terminate);
    assert!(sockets.iter().all(|socket| !socket.exists()));
}

#[test]
fn a_socket_that_a_dead_shim_left_is_replaced() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let left = socket(&container.start(StartInput::default()));
    kill(only(&host));
    assert!(left.exists());
    assert_eq!(socket(&container.start(StartInput::default())), left);
    end(&host, &left);
}

#[test]
fn bootstrap_parameters_are_answered_in_their_own_form() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    let sockets = host.work().join("s");
    container.sockets = Some(sockets.clone());
    let stranger = any("io.example.Own", vec![1, 2]);
    let stdin = container.bootstrap(&[stranger, any(RUNC_OPTIONS, Vec::new())]);
    let ran = container.start(StartInput { stdin, ..StartInput::default() });
    ran.assert_code(0);
    let address = fs::read_to_string(container.address_file()).expect("written in any case");
    let version = [1 << 3, 3];
    assert_eq!(ran.stdout, [&version[..], &field(2, &address), &field(3, "ttrpc")].concat(), "{ran}");
    let socket = PathBuf::from(address.trim_start_matches("unix://"));
    assert_eq!(socket.parent(), Some(sockets.as_path()));
    assert_eq!(fs::metadata(&sockets).expect("made").permissions().mode() & 0o777, 0o700);
    UnixStream::connect(&socket).expect("it listens");
    assert!(environment(only(&host)).contains(&"TTRPC_ADDRESS=/new.ttrpc".to_owned()));
    end(&host, &socket);
}

#[test]
fn the_shim_is_charged_where_its_options_say() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let elsewhere = host.elsewhere("shims");
    let stdin = toml(&format!("ShimCgroup = {:?}", elsewhere.path()));
    let socket = socket(&container.start(StartInput { stdin, ..StartInput::default() }));
    let pid = only(&host);
    assert!(cgroup_of(pid).values().all(|path| path == elsewhere.path()), "{:?}", cgroup_of(pid));
    end(&host, &socket);
    elsewhere.remove();
}

#[test]
fn the_kernel_takes_the_shim_before_its_parent() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let score = |pid: &str| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
    for (parent, expected) in [("0", "1"), ("700", "701"), ("1000", "1000")] {
        // A containerd with that score.
        let command = container.command(&StartInput::default());
        let mut shell = host.command("/bin/sh");
        shell.args(["-c", &format!("echo {parent} > /proc/self/oom_score_adj; \"$0\" \"$@\"; exit $?")]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(&container.bundle).stdin(Stdio::null());
        let socket = socket(&run(shell));
        assert_eq!(score(&only(&host).to_string()).trim(), expected);
        end(&host, &socket);
    }
}

#[test]
fn what_is_asked_of_the_scheduler_is_done_or_refused() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let ran = container.start(StartInput { env: vec![("SCHED_CORE", "1")], ..StartInput::default() });
    if ran.code == Some(0) {
        end(&host, &socket(&ran));
    } else {
        container.assert_refused(&ran, &["SCHED_CORE"]);
    }
}

#[test]
fn it_tells_what_it_is_to_whoever_asks() {
    let host = Host::new();
    let mut command = host.command(binary(SHIM));
    command.arg("-v").stdin(Stdio::null());
    let ran = run(command);
    ran.assert_code(0);
    assert!(ran.out().starts_with("containerd-shim-bowline-v1:\n  Version:  "), "{ran}");

    let mut command = host.command(binary(SHIM));
    let options = any(RUNC_OPTIONS, vec![9 << 3, 1]);
    let stdin = host.file("options", "");
    fs::write(&stdin, &options).expect("ours");
    command.arg("-info").stdin(File::open(&stdin).expect("ours"));
    let ran = run(command);
    ran.assert_code(0);
    assert!(ran.stderr.is_empty(), "{ran}");
    assert!(ran.stdout.starts_with(&field(1, "io.containerd.bowline.v1")), "{ran}");
    let has = |part: &[u8]| ran.stdout.windows(part.len()).any(|bytes| bytes == part);
    assert!(has(&field(3, &options)), "the options come back\n{ran}");
    assert!(has(b"types.containerd.io/opencontainers/runtime-spec/1/features/Features"), "{ran}");
    assert!(has(b"\"rro\""), "recursive read-only mounts\n{ran}");
}

#[test]
fn what_goes_wrong_while_serving_is_in_containerd_s_log() {
    let host = Host::new();
    let container = Container::new(&host);
    let fifo = container.bundle.join("log");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("root may");
    // As containerd does, before it starts the shim.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut log = File::options().read(true).custom_flags(nonblocking).open(&fifo).expect("ours");
    let mut command = host.command(binary(SHIM));
    command.args(["-namespace", "default", "-id", &container.id, "-listener-fd", "99"]);
    command.current_dir(&container.bundle).stdin(Stdio::null());
    run(command).assert_code(1);
    let mut told = String::new();
    log.read_to_string(&mut told).expect("whoever wrote has gone");
    assert!(told.starts_with("time=\""), "{told}");
    assert!(told.contains(" level=error msg=\"the listening socket was not handed down\""), "{told}");
    assert!(told.ends_with(" runtime=io.containerd.bowline.v1\n"), "{told}");
}
