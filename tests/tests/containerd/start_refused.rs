//! `containerd-shim-bowline-v1 start`, when it cannot do what it is asked for: it says why, and nothing is left.

use std::fs::{self, File};

use bowline_tests::Host;
use bowline_tests::harness::containerd::start::{
    Container, GENERIC_OPTIONS, RUNC_OPTIONS, StartInput, any, field, run, toml,
};

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    let sockets = host.work().join("s".repeat(40));
    container.sockets = Some(sockets.clone());
    let ran = container.start(StartInput { stdin: container.bootstrap(&[]), ..StartInput::default() });
    container.assert_refused(&ran, &["too long", "106"]);
    assert!(!sockets.exists());
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
        let ran = container.start(StartInput { stdin, ..StartInput::default() });
        container.assert_refused(&ran, &[part]);
    }
}

#[test]
fn a_configuration_that_is_none_is_refused() {
    let host = Host::new();
    for config in
        ["", "not JSON", "[]", r#"{"annotations": 7}"#, r#"{"annotations": {"io.containerd.runc.v2.group": ".."}}"#]
    {
        let container = Container::new(&host).configured(config);
        container.assert_refused(&container.start(StartInput::default()), &[]);
    }
}

#[test]
fn names_and_flags_that_make_no_sense_are_refused() {
    let host = Host::new();
    for id in ["..", "../x", "a/b", "a..b", ""] {
        let mut container = Container::new(&host);
        container.id = id.to_owned();
        container.assert_refused(&container.start(StartInput::default()), &["id"]);
    }
    let mut container = Container::new(&host);
    container.namespace = "../x".to_owned();
    container.assert_refused(&container.start(StartInput::default()), &["namespace", "../x"]);
    let container = Container::new(&host);
    let ran = container.start(StartInput { flags: vec!["-nonsense"], ..StartInput::default() });
    container.assert_refused(&ran, &["-nonsense"]);
}

#[test]
fn a_cgroup_that_is_not_there_is_refused_and_nothing_left() {
    let host = Host::new();
    let container = Container::new(&host).configured("{}");
    let stdin = any(RUNC_OPTIONS, field(3, "/no/such/cgroup"));
    let ran = container.start(StartInput { stdin, ..StartInput::default() });
    container.assert_refused(&ran, &["ShimCgroup", "/no/such/cgroup"]);
}

#[test]
fn an_address_that_cannot_be_written_leaves_no_socket() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    container.sockets = Some(host.work().join("s"));
    fs::create_dir(container.address_file()).expect("ours");
    let ran = container.start(StartInput { stdin: container.bootstrap(&[]), ..StartInput::default() });
    container.assert_refused(&ran, &["address"]);
    assert_eq!(fs::read_dir(host.work().join("s")).expect("made").count(), 0);
}

#[test]
fn a_reply_that_nobody_takes_leaves_nothing() {
    let host = Host::new();
    let mut container = Container::new(&host).configured("{}");
    container.sockets = Some(host.work().join("s"));
    let mut command = container.command(&StartInput { stdin: container.bootstrap(&[]), ..StartInput::default() });
    command.stdout(File::options().write(true).open("/dev/full").expect("every host has it"));
    let ran = run(command);
    container.assert_refused(&ran, &["stdout"]);
    assert_eq!(fs::read_dir(host.work().join("s")).expect("made").count(), 0);
}
