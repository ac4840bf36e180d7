//! `containerd-shim-bowline-v1 start`, called as containerd calls it: what it
//! answers, what serves from then on, and that nothing is left when it fails.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary, cgroup_of, eventually, fds_of, process_exists, status_lines};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const SHIM: &str = "containerd-shim-bowline-v1";
const RUNC_OPTIONS: &str = "containerd.runc.v1.Options";
const GENERIC_OPTIONS: &str = "runtimeoptions.v1.Options";

/// A field of a protobuf message: bytes or text.
fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length > 0x7f {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [bytes, value.to_vec()].concat()
}

fn any(type_url: &str, value: Vec<u8>) -> Vec<u8> {
    [field(1, type_url), field(2, value)].concat()
}

/// What CRI sends to a runtime that it does not know.
fn toml(body: &str) -> Vec<u8> {
    any(GENERIC_OPTIONS, field(3, body))
}

/// One container, as containerd has it.
struct Container<'h> {
    host: &'h Host,
    id: String,
    bundle: PathBuf,
    namespace: String,
    /// The folder for its socket; by default containerd's own.
    sockets: Option<PathBuf>,
}

/// What `start` was given besides.
#[derive(Default)]
struct Said<'a> {
    stdin: Vec<u8>,
    env: Vec<(&'a str, &'a str)>,
    flags: Vec<&'a str>,
}

impl<'h> Container<'h> {
    /// Without a configuration.
    fn new(host: &'h Host) -> Container<'h> {
        let id = host.new_id();
        let bundle = host.work().join(&id);
        fs::create_dir(&bundle).expect("the work folder is writable");
        Container { host, id, bundle, namespace: "default".to_owned(), sockets: None }
    }

    fn configured(self, config: &str) -> Container<'h> {
        fs::write(self.bundle.join("config.json"), config).expect("ours");
        self
    }

    fn in_group(self, group: &str) -> Container<'h> {
        let config = format!(r#"{{"annotations": {{"io.kubernetes.cri.sandbox-id": "{group}"}}}}"#);
        self.configured(&config)
    }

    fn command(&self, said: &Said<'_>) -> Command {
        let mut command = self.host.command(binary(SHIM));
        let stdin = self.host.file("stdin", "");
        fs::write(&stdin, &said.stdin).expect("ours");
        command.args(["-namespace", &self.namespace, "-address", &self.address(), "-publish-binary", "/bin/false"]);
        command.args(["-id", &self.id]).args(&said.flags).arg("start");
        command.current_dir(&self.bundle).stdin(File::open(stdin).expect("it was written"));
        command.env("TTRPC_ADDRESS", self.address() + ".ttrpc").env("GOMAXPROCS", "2").envs(said.env.iter().copied());
        command
    }

    /// containerd's; of each host another, so that tests do not share groups.
    fn address(&self) -> String {
        format!("/run/{}.sock", self.host.prefix())
    }

    fn start(&self, said: Said<'_>) -> Ran {
        run(self.command(&said))
    }

    /// As containerd 2.3 does.
    fn bootstrap(&self, extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut params = [field(1, &self.id), field(2, &self.namespace), field(5, "/new.ttrpc")].concat();
        for extension in extensions {
            params.extend(field(8, field(1, extension)));
        }
        if let Some(sockets) = &self.sockets {
            params.extend(field(9, sockets.to_str().expect("ASCII")));
        }
        params
    }

    fn address_file(&self) -> PathBuf {
        self.bundle.join("address")
    }

    /// It failed, said so, and has left nothing.
    #[track_caller]
    fn assert_refused(&self, ran: &Ran, parts: &[&str]) {
        ran.assert_code(1);
        assert!(ran.stdout.is_empty(), "no reply\n{ran}");
        assert!(ran.err().starts_with("containerd-shim-bowline-v1: "), "{ran}");
        for part in parts {
            assert!(ran.err().contains(part), "the message should have {part:?}\n{ran}");
        }
        assert!(!self.address_file().is_file(), "an address of nobody");
        assert!(serving(self.host).is_empty(), "somebody serves");
        let left = fs::read_dir(&self.bundle).expect("ours").flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| name != "config.json" && name != "address").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn run(mut command: Command) -> Ran {
    // What serves must not have them: this waits for their end.
    let output = command.output().expect("it is there");
    Ran { command: SHIM.to_owned(), code: output.status.code(), stdout: output.stdout, stderr: output.stderr }
}

/// A plain reply: the path of the socket.
#[track_caller]
fn socket(ran: &Ran) -> PathBuf {
    ran.assert_code(0);
    assert!(ran.stderr.is_empty(), "containerd reads it as part of the reply\n{ran}");
    let path = ran.out().strip_prefix("unix://").map(PathBuf::from).unwrap_or_else(|| panic!("no address\n{ran}"));
    UnixStream::connect(&path).unwrap_or_else(|error| panic!("{error}\n{ran}"));
    path
}

fn arguments(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// What serves on this host: every process with a socket of this test's.
fn serving(host: &Host) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("procfs").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| {
        let words = arguments(*pid);
        words.iter().any(|word| word == "-listener-fd") && words.iter().any(|word| word.contains(host.prefix()))
    };
    pids.filter(ours).collect()
}

#[track_caller]
fn only(host: &Host) -> i32 {
    serving_all(host, 1)[0]
}

/// All that serve, which are so many. One that was just started has no command
/// line for a moment.
#[track_caller]
fn serving_all(host: &Host, count: usize) -> Vec<i32> {
    let all = eventually("somebody serves", || Some(serving(host)).filter(|all| all.len() >= count));
    assert_eq!(all.len(), count, "{all:?} serve");
    all
}

fn kill(pid: i32) {
    let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("it runs");
    pidfd_send_signal(&pidfd, Signal::KILL).expect("root may");
    eventually("its end", || (!process_exists(pid)).then_some(()));
}

/// Asks `pid` to end, once it listens to that.
fn terminate(pid: i32) {
    eventually("it handles SIGTERM", || {
        let caught = status_lines(pid, &["SigCgt"]);
        let caught = u64::from_str_radix(caught.split_whitespace().last()?, 16).ok()?;
        (caught & 1 << (Signal::TERM.as_raw() - 1) != 0).then_some(())
    });
    // Its handler is there a moment before what it tells: one may be lost.
    let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("it runs");
    eventually("its end", || {
        let _ = pidfd_send_signal(&pidfd, Signal::TERM);
        (!process_exists(pid)).then_some(())
    });
}

/// Ends what serves, which removes its socket.
fn end(host: &Host, socket: &Path) {
    terminate(only(host));
    assert!(!socket.exists(), "{} is left", socket.display());
}

fn environment(pid: i32) -> Vec<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    environ.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[test]
fn the_reply_is_an_address_that_accepts_connections() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(Said::default()));
    assert_eq!(socket.parent(), Some(Path::new("/run/containerd/s")));
    let found = fs::metadata(&socket).expect("it is there");
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let written = fs::read_to_string(container.address_file()).expect("containerd 1 reads it");
    assert_eq!(written, format!("unix://{}", socket.display()));
    end(&host, &socket);
    host.assert_nothing_left();
}

#[test]
fn what_serves_has_the_flags_and_nothing_else() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(Said { flags: vec!["-debug"], ..Said::default() }));
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
    let fds = fds_of(pid);
    assert_eq!(fds.iter().filter(|to| *to == "/dev/null").count(), 3, "{fds:?}");
    assert!(!fds.iter().any(|to| to.contains(host.prefix())), "{fds:?}");
    end(&host, &socket);
    host.assert_nothing_left();
}

fn session_of(pid: i32) -> i32 {
    status_lines(pid, &["NSsid"]).split_whitespace().last().and_then(|session| session.parse().ok()).unwrap_or(0)
}

#[test]
fn the_binary_that_serves_cannot_be_written_to() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let socket = socket(&container.start(Said::default()));
    let exe = File::open(format!("/proc/{}/exe", only(&host))).expect("root may");
    // While it runs, nobody can anyway.
    end(&host, &socket);
    let again = File::options().write(true).open(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    let written = again.and_then(|mut binary| binary.write_all(b"\x7f"));
    assert!(written.is_err(), "a task could write to the host's binary through it");
    host.assert_nothing_left();
}

#[test]
fn a_group_has_one_process_that_serves() {
    let host = Host::new();
    let [first, second] = [(); 2].map(|()| Container::new(&host).in_group("pod"));
    let [one, other] = [&first, &second].map(|container| socket(&container.start(Said::default())));
    assert_eq!(one, other);
    for container in [&first, &second] {
        let written = fs::read_to_string(container.address_file()).expect("containerd 1 reads it");
        assert_eq!(written, format!("unix://{}", one.display()));
    }
    end(&host, &one);
    host.assert_nothing_left();
}

#[test]
fn the_runtime_s_own_annotation_counts_before_the_pod_s() {
    let host = Host::new();
    let both = r#"{"annotations": {"io.containerd.runc.v2.group": "g", "io.kubernetes.cri.sandbox-id": "pod"}}"#;
    let first = Container::new(&host).configured(both);
    let second = Container::new(&host).configured(r#"{"annotations": {"io.containerd.runc.v2.group": "g"}}"#);
    let [one, other] = [&first, &second].map(|container| socket(&container.start(Said::default())));
    assert_eq!(one, other);
    end(&host, &one);
    host.assert_nothing_left();
}

#[test]
fn many_that_start_at_once_find_one_another() {
    let host = Host::new();
    let containers: Vec<_> = (0..8).map(|_| Container::new(&host).in_group("pod")).collect();
    let running: Vec<_> = containers
        .iter()
        .map(|container| {
            let mut command = container.command(&Said::default());
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
    host.assert_nothing_left();
}

#[test]
fn who_is_of_no_group_or_of_another_namespace_is_served_apart() {
    let host = Host::new();
    let first = Container::new(&host).in_group("pod");
    let mut second = Container::new(&host).in_group("pod");
    second.namespace = "other".to_owned();
    let third = Container::new(&host);
    let sockets = [&first, &second, &third].map(|container| socket(&container.start(Said::default())));
    assert!(sockets[0] != sockets[1] && sockets[1] != sockets[2] && sockets[0] != sockets[2]);
    serving_all(&host, 3).into_iter().for_each(terminate);
    assert!(sockets.iter().all(|socket| !socket.exists()));
    host.assert_nothing_left();
}

#[test]
fn a_socket_that_a_dead_shim_left_is_replaced() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let left = socket(&container.start(Said::default()));
    kill(only(&host));
    assert!(left.exists());
    assert_eq!(socket(&container.start(Said::default())), left);
    end(&host, &left);
    host.assert_nothing_left();
}

#[test]
fn bootstrap_parameters_are_answered_in_their_own_form() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    let sockets = host.work().join("s");
    container.sockets = Some(sockets.clone());
    let stranger = any("io.example.Own", vec![1, 2]);
    let stdin = container.bootstrap(&[stranger, any(RUNC_OPTIONS, Vec::new())]);
    let ran = container.start(Said { stdin, ..Said::default() });
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
    host.assert_nothing_left();
}

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    let sockets = host.work().join("s".repeat(40));
    container.sockets = Some(sockets.clone());
    let ran = container.start(Said { stdin: container.bootstrap(&[]), ..Said::default() });
    container.assert_refused(&ran, &["too long", "106"]);
    assert!(!sockets.exists());
    host.assert_nothing_left();
}

#[test]
fn what_stdin_should_not_have_is_refused() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let cases = [
        (b"\xff\xff\xff".to_vec(), "stdin"),
        (b"not protobuf at all".to_vec(), "stdin"),
        (any("io.example.Own", Vec::new()), "io.example.Own"),
        (any(RUNC_OPTIONS, vec![0xff]), RUNC_OPTIONS),
        (toml("SystemdCgroups = true"), "SystemdCgroups"),
        (any(GENERIC_OPTIONS, field(2, "/nonexistent/options.toml")), "/nonexistent/options.toml"),
    ];
    for (stdin, part) in cases {
        let ran = container.start(Said { stdin, ..Said::default() });
        container.assert_refused(&ran, &[part]);
    }
    host.assert_nothing_left();
}

#[test]
fn a_configuration_that_is_none_is_refused() {
    let host = Host::new();
    for config in
        ["", "not JSON", "[]", r#"{"annotations": 7}"#, r#"{"annotations": {"io.containerd.runc.v2.group": ".."}}"#]
    {
        let container = Container::new(&host).configured(config);
        container.assert_refused(&container.start(Said::default()), &[]);
    }
    host.assert_nothing_left();
}

#[test]
fn names_and_flags_that_make_no_sense_are_refused() {
    let host = Host::new();
    for id in ["..", "../x", "a/b", "a..b", ""] {
        let mut container = Container::new(&host);
        container.id = id.to_owned();
        container.assert_refused(&container.start(Said::default()), &["id"]);
    }
    let mut container = Container::new(&host);
    container.namespace = "../x".to_owned();
    container.assert_refused(&container.start(Said::default()), &["namespace", "../x"]);
    let container = Container::new(&host);
    let ran = container.start(Said { flags: vec!["-nonsense"], ..Said::default() });
    container.assert_refused(&ran, &["-nonsense"]);
    host.assert_nothing_left();
}

#[test]
fn the_shim_is_charged_where_its_options_say() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let elsewhere = host.elsewhere("shims");
    let stdin = toml(&format!("ShimCgroup = {:?}", elsewhere.path()));
    let socket = socket(&container.start(Said { stdin, ..Said::default() }));
    let pid = only(&host);
    assert!(cgroup_of(pid).values().all(|path| path == elsewhere.path()), "{:?}", cgroup_of(pid));
    end(&host, &socket);
    elsewhere.remove();
    host.assert_nothing_left();
}

#[test]
fn a_cgroup_that_is_not_there_is_refused_and_nothing_left() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let stdin = any(RUNC_OPTIONS, field(3, "/no/such/cgroup"));
    let ran = container.start(Said { stdin, ..Said::default() });
    container.assert_refused(&ran, &["ShimCgroup", "/no/such/cgroup"]);
    host.assert_nothing_left();
}

#[test]
fn the_kernel_takes_the_shim_before_its_parent() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let score = |pid: &str| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
    for (parent, expected) in [("0", "1"), ("700", "701"), ("1000", "1000")] {
        // A containerd with that score.
        let command = container.command(&Said::default());
        let mut shell = container.host.command("/bin/sh");
        shell.args(["-c", &format!("echo {parent} > /proc/self/oom_score_adj; \"$0\" \"$@\"; exit $?")]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(&container.bundle).stdin(Stdio::null());
        let socket = socket(&run(shell));
        assert_eq!(score(&only(&host).to_string()).trim(), expected);
        end(&host, &socket);
    }
    host.assert_nothing_left();
}

#[test]
fn what_is_asked_of_the_scheduler_is_done_or_refused() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let ran = container.start(Said { env: vec![("SCHED_CORE", "1")], ..Said::default() });
    if ran.code == Some(0) {
        end(&host, &socket(&ran));
    } else {
        container.assert_refused(&ran, &["SCHED_CORE"]);
    }
    host.assert_nothing_left();
}

#[test]
fn an_address_that_cannot_be_written_leaves_no_socket() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    container.sockets = Some(host.work().join("s"));
    fs::create_dir(container.address_file()).expect("ours");
    let ran = container.start(Said { stdin: container.bootstrap(&[]), ..Said::default() });
    container.assert_refused(&ran, &["address"]);
    assert_eq!(fs::read_dir(host.work().join("s")).expect("made").count(), 0);
    host.assert_nothing_left();
}

#[test]
fn a_reply_that_nobody_takes_leaves_nothing() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    container.sockets = Some(host.work().join("s"));
    let mut command = container.command(&Said { stdin: container.bootstrap(&[]), ..Said::default() });
    command.stdout(File::options().write(true).open("/dev/full").expect("every host has it"));
    let ran = run(command);
    container.assert_refused(&ran, &["stdout"]);
    assert_eq!(fs::read_dir(host.work().join("s")).expect("made").count(), 0);
    host.assert_nothing_left();
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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
}
