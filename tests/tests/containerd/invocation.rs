//! How containerd runs the shim's binary: flags, sockets, what is said on stdout, and where the shim then is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio as Stream;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Stdio, any, shim_binary};
use bowline_tests::harness::{cgroup_of, eventually, fds_of, process_exists};

/// runc's options with one text field.
fn options(field: u8, text: &str) -> bowline_tests::harness::containerd::protobuf::well_known_types::any::Any {
    let length = u8::try_from(text.len()).expect("a short text");
    let mut bytes = vec![field << 3 | 2, length];
    bytes.extend(text.as_bytes());
    any("containerd.runc.v1.Options", bytes)
}

fn proc(pid: i32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a live process").trim_end().to_owned()
}

#[test]
fn the_version_is_told_without_any_flag() {
    let host = Host::new();
    let output = host.command(shim_binary()).arg("-v").output().expect("executable");
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stdout.is_empty());
}

#[test]
fn nothing_but_the_address_is_said() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    containerd.read_log(&bundle);
    let mut command = containerd.command(&bundle, &["start"]);
    let output = command.stdin(Stream::null()).output().expect("executable");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let said = String::from_utf8(output.stdout).expect("an address");
    let socket = Path::new(said.strip_prefix("unix://").expect("an address"));
    assert!(said.len() <= 106 + "unix://".len(), "{said}");
    assert_eq!(said, bundle.read("address"));
    let name = socket.file_name().expect("a name").to_str().expect("ASCII");
    assert!(name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
    containerd.dial(socket).over();
}

#[test]
fn the_socket_is_for_its_owner_alone() {
    let host = Host::new();
    let containerd = host.containerd();
    let shim = containerd.start(&containerd.bundle());
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&shim.socket), 0o600);
    assert_eq!(mode(shim.socket.parent().expect("a folder")) & 0o077, 0o011 & mode(Path::new("/run/containerd/s")));
    shim.over();
}

#[test]
fn one_address_has_one_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let again = containerd.try_start(&bundle, None);
    // The same shim, or that there is one: never a second.
    if let Ok(socket) = again {
        assert_eq!(socket, shim.socket);
        assert_eq!(containerd.dial(&socket).pid(), shim.pid());
    }
    shim.over();
}

#[test]
fn the_shim_is_on_its_own() {
    let host = Host::new();
    let containerd = host.containerd();
    let shim = containerd.start(&containerd.bundle());
    let pid = shim.pid();
    let stat = proc(pid, "stat");
    let fields: Vec<_> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    assert_eq!(fields[2], pid.to_string(), "a process group of its own");
    assert_ne!(fields[1], std::process::id().to_string(), "no child of containerd's");
    shim.over();
}

#[test]
fn the_shim_is_killed_before_containerd_when_memory_runs_out() {
    let host = Host::new();
    let containerd = host.containerd();
    let shim = containerd.start(&containerd.bundle());
    let score = |pid: i32| proc(pid, "oom_score_adj").parse::<i32>().expect("a number");
    let own = score(std::process::id().cast_signed());
    assert_eq!(score(shim.pid()), (own + 1).min(1000));
    shim.over();
}

#[test]
fn a_task_has_not_the_shims_score() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("cat /proc/self/oom_score_adj; sleep 1000");
    running.stdout.wait_for("\n");
    let own = proc(std::process::id().cast_signed(), "oom_score_adj");
    let (own, its): (i32, i32) = (own.parse().expect("a number"), running.stdout.text().trim().parse().expect("one"));
    assert!(its == own || its == own + 1, "{its}");
    running.end();
}

#[test]
fn the_shim_goes_into_the_cgroup_that_it_is_told() {
    let host = Host::new();
    let containerd = host.containerd();
    let elsewhere = host.elsewhere("shims");
    let bundle = containerd.bundle();
    let shim = containerd.start_with(&bundle, Some(&options(3, elsewhere.path())));
    let there = cgroup_of(shim.pid()).values().filter(|path| path.as_str() == elsewhere.path()).count();
    assert!(there > 0, "{:?}", cgroup_of(shim.pid()));
    shim.over();
    elsewhere.remove();
}

#[test]
fn no_fd_of_containerds_stays_open_in_the_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    let shim = containerd.start(&containerd.bundle());
    // Those of start were read to their end already, or this would not have come so far.
    let fds = fds_of(shim.pid());
    assert!(!fds.iter().any(|fd| fd.contains("c.sock") && !fd.contains("ttrpc")), "{fds:?}");
    shim.over();
}

#[test]
fn a_shim_serves_though_it_has_no_log() {
    let host = Host::new();
    if host.reference_fails("it ends when it cannot open its log") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 3");
    let (succeeded, said) = containerd.answer_of(containerd.command(&bundle, &["-debug", "start"]), &[]);
    let said = String::from_utf8(said).expect("an address");
    assert!(succeeded, "{said}");
    let shim = containerd.dial(Path::new(said.strip_prefix("unix://").expect("an address")));
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 3);
    shim.end(&bundle.id);
}

#[test]
fn an_id_may_have_dots_dashes_and_underscores() {
    let host = Host::new();
    let containerd = host.containerd();
    let id = format!("{}.with_all-it.may-have", host.new_id());
    let bundle: Bundle = containerd.bundle_of(&id).script("exit 4");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&id, ""), 4);
    shim.end(&id);
}

#[test]
fn an_action_that_there_is_not_is_an_error() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    for action in [&["-nonsense", "start"][..], &["-id"]] {
        let (succeeded, said) = containerd.answer_of(containerd.command(&bundle, action), &[]);
        assert!(!succeeded && !said.is_empty(), "{action:?}");
    }
}

#[test]
fn a_shim_that_nobody_uses_waits_for_whoever_comes() {
    let host = Host::new();
    let containerd = host.containerd();
    let shim = containerd.start(&containerd.bundle());
    let pid = shim.pid();
    let socket = shim.socket.clone();
    drop(shim);
    eventually("the connection is closed", || (bowline_tests::harness::unix_sockets(&socket) <= 1).then_some(()));
    assert!(process_exists(pid));
    containerd.dial(&socket).over();
}
