//! Standard streams and other descriptors: the caller's own, and only those that are asked for.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Bundle;
use bowline_tests::harness::oci::Runtime;
use serde_json::json;

use super::SLEEPS;

const USER: u32 = 1000;

fn as_user(bundle: Bundle) -> Bundle {
    bundle.edit(|config| config["process"]["user"] = json!({ "uid": USER, "gid": USER }))
}

/// A command with what a shell prepares for it.
fn prepared(host: &Host, before: &str, command: &Command, after: &str) -> Command {
    let mut shell = host.command("sh");
    shell.args(["-c", &format!("{before} exec \"$@\" {after}"), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

fn create(runtime: &Runtime<'_>, bundle: &Bundle, flags: &[&str]) -> Command {
    let path = bundle.path.to_str().expect("ASCII");
    runtime.command(&[&["create", "--bundle", path], flags, &[&bundle.id]].concat())
}

fn stream_of(pid: i32, fd: i32) -> String {
    fs::read_link(format!("/proc/{pid}/fd/{fd}")).expect("it is open").to_string_lossy().into_owned()
}

#[test]
fn the_streams_of_init_are_those_of_create() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("echo out; echo err >&2; exec sleep 1000"));
    container.wait_for("out");
    for (fd, name) in [(1, "stdout"), (2, "stderr")] {
        let path = runtime.stream(&container.id, name);
        assert_eq!(stream_of(container.pid(), fd), path.to_str().expect("ASCII"));
    }
}

#[test]
fn both_streams_keep_apart() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.run(&runtime.bundle().script("echo out; echo err >&2"), &[]);
    ran.assert_says("out");
    assert_eq!(ran.err(), "err");
}

#[test]
fn stdin_is_the_callers() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("cat");
    let text = host.file("text", "from the caller");
    let stdin = fs::File::open(text).expect("ours");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let process = host.spawn_command_with(runtime.run_command(&bundle, &[]), stdin.into(), writer.into());
    process.finish().assert_code(0);
    assert_eq!(std::io::read_to_string(reader).expect("a pipe"), "from the caller");
}

#[test]
fn a_user_opens_its_streams_again() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = as_user(runtime.bundle().script("echo out >/dev/stdout; echo err >/dev/stderr"));
    let ran = runtime.run(&bundle, &[]);
    ran.assert_says("out");
    assert_eq!(ran.err(), "err");
}

#[test]
fn a_user_of_an_exec_opens_its_streams_again() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.sh(&["--user", "1000:1000"], "echo out >/dev/stdout; echo err >/dev/stderr");
    ran.assert_says("out");
    assert_eq!(ran.err(), "err");
}

#[test]
fn the_null_device_is_not_given_away() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = as_user(runtime.bundle().script("exit 0"));
    let mut command = runtime.run_command(&bundle, &[]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    assert_eq!(command.status().expect("it is executable").code(), Some(0));
    assert_eq!(fs::metadata("/dev/null").expect("it is there").uid(), 0);
}

const IS_OPEN: &str = "[ -e /proc/self/fd/$1 ] && cat <&$1 || echo closed";

/// Says what its descriptor 3 and 4 have, or that they are closed.
fn telling() -> String {
    format!("look() {{ {IS_OPEN}; }}; look 3; look 4; exec sleep 1000")
}

#[test]
fn other_descriptors_are_closed() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(&telling());
    let file = host.file("three", "three\n");
    let command = prepared(&host, "", &create(&runtime, &bundle, &[]), &format!("3<{}", file.display()));
    runtime.apart(&bundle.id, command).assert_code(0);
    let container = runtime.adopt(bundle);
    container.call("start", &[]).assert_code(0);
    container.wait_for("closed\nclosed");
}

#[test]
fn preserve_fds_passes_on_the_first_ones() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(&telling());
    let [three, four] = ["three", "four"].map(|name| host.file(name, &format!("{name}\n")));
    let given = format!("3<{} 4<{}", three.display(), four.display());
    let command = prepared(&host, "", &create(&runtime, &bundle, &["--preserve-fds", "1"]), &given);
    runtime.apart(&bundle.id, command).assert_code(0);
    let container = runtime.adopt(bundle);
    container.call("start", &[]).assert_code(0);
    container.wait_for("three\nclosed");
}

/// Runs a shell in a started container by `exec`, with a descriptor 3.
fn exec_with(host: &Host, flags: &[&str], file: &Path) -> String {
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let script = format!("look() {{ {IS_OPEN}; }}; look 3");
    let arguments = [&["exec"], flags, &[&container.id, "/bin/sh", "-c", &script]].concat();
    let command = prepared(host, "", &runtime.command(&arguments), &format!("3<{}", file.display()));
    host.execute(command).assert_code(0).out()
}

#[test]
fn other_descriptors_are_closed_for_an_exec() {
    let host = Host::new();
    assert_eq!(exec_with(&host, &[], &host.file("three", "three\n")), "closed");
}

#[test]
fn preserve_fds_passes_on_those_of_an_exec() {
    let host = Host::new();
    assert_eq!(exec_with(&host, &["--preserve-fds", "1"], &host.file("three", "three\n")), "three");
}

#[test]
fn more_preserved_descriptors_than_there_are_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let ran = runtime.create(&bundle, &["--preserve-fds", "9"]);
    ran.assert_code(1);
    runtime.assert_gone(&bundle);
}

#[test]
fn sockets_that_systemd_passed_are_passed_on() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("echo $LISTEN_FDS for $LISTEN_PID of $$; cat <&3; exec sleep 1000");
    let file = host.file("three", "three\n");
    let before = "export LISTEN_PID=$$ LISTEN_FDS=1;";
    let command = prepared(&host, before, &create(&runtime, &bundle, &[]), &format!("3<{}", file.display()));
    runtime.apart(&bundle.id, command).assert_code(0);
    let container = runtime.adopt(bundle);
    container.call("start", &[]).assert_code(0);
    container.wait_for("1 for 1 of 1\nthree");
}

#[test]
fn preserved_descriptors_come_after_sockets() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(&telling());
    let [three, four] = ["three", "four"].map(|name| host.file(name, &format!("{name}\n")));
    let given = format!("3<{} 4<{}", three.display(), four.display());
    let before = "export LISTEN_PID=$$ LISTEN_FDS=1;";
    let command = prepared(&host, before, &create(&runtime, &bundle, &["--preserve-fds", "1"]), &given);
    runtime.apart(&bundle.id, command).assert_code(0);
    let container = runtime.adopt(bundle);
    container.call("start", &[]).assert_code(0);
    container.wait_for("three\nfour");
}

#[test]
fn the_caller_s_environment_is_not_the_container_s() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("env");
    let ran = runtime.run(&bundle, &[]);
    ran.assert_code(0);
    assert!(!ran.out().contains("BOWLINE_TEST"), "{ran}");
}

#[test]
fn preserve_fds_gives_away_no_descriptor_of_the_runtime() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    // A runtime may refuse so many.
    if runtime.create(&bundle, &["--preserve-fds", "9"]).code == Some(0) {
        let container = runtime.adopt(bundle);
        container.call("start", &[]).assert_code(0);
        container.wait_for("ready");
        let fds = bowline_tests::harness::fds_of(container.pid());
        assert_eq!(fds.len(), 3, "{fds:?}");
    }
}
