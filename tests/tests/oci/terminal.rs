//! Terminals: sent to a console socket, or relayed to the caller's.

use std::fs;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use bowline_tests::harness::oci::Taker;
use serde_json::json;

use super::SLEEPS;

/// Reads from a terminal until it has shown this.
#[track_caller]
fn wait_for(terminal: &OwnedFd, text: &str) {
    rustix::io::ioctl_fionbio(terminal, true).expect("a terminal");
    let mut reader = File::from(terminal.try_clone().expect("an fd"));
    let mut seen = Vec::new();
    eventually(format_args!("{text:?} on the terminal"), || {
        let mut chunk = [0; 4096];
        if let Ok(length) = reader.read(&mut chunk) {
            seen.extend_from_slice(&chunk[..length]);
        }
        String::from_utf8_lossy(&seen).contains(text).then_some(())
    });
}

fn type_keys(terminal: &OwnedFd, keys: &str) {
    File::from(terminal.try_clone().expect("an fd")).write_all(keys.as_bytes()).expect("a terminal");
}

const ECHOES: &str = "read line; echo \"<$line>\"; exec sleep 1000";

#[test]
fn a_console_socket_gets_the_terminal_of_init() {
    let host = Host::new();
    let runtime = host.oci();
    let taker = Taker::listen(&host, "c.sock");
    let container =
        runtime.created_with(runtime.bundle().terminal().script(ECHOES), &["--console-socket", &taker.path]);
    let (terminal, _) = taker.take();
    container.call("start", &[]).assert_code(0);
    type_keys(&terminal, "knot\r");
    wait_for(&terminal, "<knot>");
}

#[test]
fn a_console_socket_gets_the_name_of_the_terminal() {
    let host = Host::new();
    let runtime = host.oci();
    let taker = Taker::listen(&host, "c.sock");
    runtime.created_with(runtime.bundle().terminal().script(ECHOES), &["--console-socket", &taker.path]);
    assert!(taker.take().1.contains("/ptmx"));
}

#[test]
fn a_console_socket_gets_the_terminal_of_an_exec() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let taker = Taker::listen(&host, "c.sock");
    let flags = ["exec", "--tty", "--detach", "--console-socket", &taker.path];
    let arguments = [&flags[..], &[&container.id, "/bin/sh", "-c", ECHOES]].concat();
    runtime.call_apart("exec", &arguments).assert_code(0);
    let (terminal, _) = taker.take();
    type_keys(&terminal, "knot\r");
    wait_for(&terminal, "<knot>");
}

#[test]
fn the_terminal_is_in_the_container_s_devpts() {
    let host = Host::new();
    let runtime = host.oci();
    let taker = Taker::listen(&host, "c.sock");
    let script = "tty() { readlink /proc/self/fd/0; }; tty; ls -l /dev/console; exec sleep 1000";
    let container =
        runtime.created_with(runtime.bundle().terminal().script(script), &["--console-socket", &taker.path]);
    let (terminal, _) = taker.take();
    container.call("start", &[]).assert_code(0);
    wait_for(&terminal, "/dev/pts/0");
}

#[test]
fn the_terminal_has_the_size_of_the_configuration() {
    let host = Host::new();
    let runtime = host.oci();
    let taker = Taker::listen(&host, "c.sock");
    let bundle = runtime.bundle().terminal().script(ECHOES);
    let bundle = bundle.edit(|config| config["process"]["consoleSize"] = json!({ "height": 33, "width": 111 }));
    runtime.created_with(bundle, &["--console-socket", &taker.path]);
    let size = rustix::termios::tcgetwinsize(taker.take().0).expect("a terminal");
    assert_eq!((size.ws_row, size.ws_col), (33, 111));
}

#[test]
fn a_terminal_without_a_socket_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script(SLEEPS);
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("console"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_detached_exec_with_a_terminal_needs_a_socket() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.exec(&["--tty", "--detach"], &["true"]);
    ran.assert_code(255);
    assert!(ran.err().contains("console"), "{ran}");
}

#[test]
fn a_console_socket_that_nobody_listens_at_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script(SLEEPS);
    let ran = runtime.create(&bundle, &["--console-socket", "/nowhere.sock"]);
    ran.assert_code(1);
    assert!(ran.err().contains("/nowhere.sock"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_console_socket_that_is_a_file_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script(SLEEPS);
    let file = host.file("file", "");
    let ran = runtime.create(&bundle, &["--console-socket", file.to_str().expect("ASCII")]);
    ran.assert_code(1);
    runtime.assert_gone(&bundle);
}

#[test]
fn run_relays_the_terminal() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script("echo ready; read line; echo \"<$line>\"; exit 3");
    let terminal = host.command_in_terminal(&runtime.run_command(&bundle, &[]));
    terminal.wait_for("ready");
    terminal.type_keys("knot\r");
    terminal.wait_for("<knot>");
    terminal.finish().assert_code(3);
}

#[test]
fn lines_that_go_to_no_terminal_end_as_they_do() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script("echo one; echo two");
    let run = runtime.run_command(&bundle, &[]);
    let out = host.work().join("out");
    let mut command = host.command("sh");
    command.args(["-c", &format!("exec \"$@\" >{}", out.display()), "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    host.command_in_terminal(&command).finish().assert_code(0);
    assert_eq!(fs::read_to_string(out).expect("it was written"), "one\ntwo\n");
}

#[test]
fn exec_relays_the_terminal() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let script = "test -t 0 && test -t 1 && echo ready; read line; echo \"<$line>\"; exit 3";
    let exec = runtime.command(&["exec", "--tty", &container.id, "/bin/sh", "-c", script]);
    let terminal = host.command_in_terminal(&exec);
    terminal.wait_for("ready");
    terminal.type_keys("knot\r");
    terminal.wait_for("<knot>");
    terminal.finish().assert_code(3);
}

#[test]
fn the_caller_s_terminal_is_raw_and_restored() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let exec = runtime.command(&["exec", "-t", &container.id, "/bin/sh", "-c", "echo ready; read line"]);
    let terminal = host.command_in_terminal(&exec);
    terminal.wait_for("ready");
    terminal.wait_until_raw();
    terminal.type_keys("\r");
    eventually("it is as before", || terminal.is_restored().then_some(()));
    terminal.finish().assert_code(0);
}

#[test]
fn a_new_size_of_the_caller_s_terminal_is_passed_on() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let script = "while :; do busybox stty size; sleep 0.05; done";
    let exec = runtime.command(&["exec", "-t", &container.id, "/bin/sh", "-c", script]);
    let terminal = host.command_in_terminal(&exec);
    terminal.wait_for("24 80");
    terminal.resize(33, 111);
    // There is no driver that sends it to the group of a terminal that a test has opened.
    terminal.process().signal(rustix::process::Signal::WINCH);
    terminal.wait_for("33 111");
}

#[test]
fn keys_for_signals_reach_the_container_s_terminal() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let script = "trap 'echo got it; exit 4' INT; echo ready; while :; do sleep 0.05; done";
    let exec = runtime.command(&["exec", "-t", &container.id, "/bin/sh", "-c", script]);
    let terminal = host.command_in_terminal(&exec);
    terminal.wait_for("ready");
    terminal.wait_until_raw();
    terminal.type_keys("\x03");
    terminal.wait_for("got it");
    terminal.finish().assert_code(4);
}
