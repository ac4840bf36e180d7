//! `run`: create, start, wait, and delete in one.

use std::fs;

use bowline_tests::Host;

use super::SLEEPS;

#[test]
fn its_code_is_that_of_init() {
    let host = Host::new();
    let runtime = host.oci();
    runtime.run(&runtime.bundle().script("exit 7"), &[]).assert_code(7);
}

#[test]
fn its_code_is_128_and_the_signal_that_ended_init() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("echo ready; exec sleep 1000");
    let run = host.spawn_command(runtime.run_command(&bundle, &[]));
    run.wait_for_out("ready");
    runtime.call(&["kill", &bundle.id, "KILL"]).assert_code(0);
    run.finish().assert_code(137);
}

#[test]
fn its_own_errors_have_the_code_1() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().args(&["no-such-program"]);
    let ran = runtime.run(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("no-such-program"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn the_container_goes_with_it() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script("exit 0");
    runtime.run(&bundle, &[]).assert_code(0);
    runtime.assert_gone(&bundle);
}

#[test]
fn keep_keeps_the_container() {
    let host = Host::new();
    if host.reference_fails("runc has it since 1.2") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script("exit 0");
    runtime.run(&bundle, &["--keep"]).assert_code(0);
    let container = runtime.adopt(bundle);
    assert_eq!(container.status(), "stopped");
    container.call("delete", &[]).assert_code(0);
}

#[test]
fn detach_returns_while_it_runs() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let file = host.work().join("pid");
    let run = runtime.run_command(&bundle, &["--detach", "--pid-file", file.to_str().expect("ASCII")]);
    runtime.apart(&bundle.id, run).assert_code(0);
    let container = runtime.adopt(bundle);
    container.wait_for("ready");
    assert_eq!(container.status(), "running");
    assert_eq!(fs::read_to_string(file).expect("it was written"), container.pid().to_string());
}

#[test]
fn detach_with_a_terminal_needs_a_socket() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script(SLEEPS);
    let run = runtime.run_command(&bundle, &["--detach"]);
    let ran = runtime.apart(&bundle.id, run);
    ran.assert_code(1);
    assert!(ran.err().contains("console"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn all_that_was_written_is_there() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.run(&runtime.bundle().script("seq 100000; seq 100000 >&2"), &[]);
    ran.assert_code(0);
    assert_eq!((ran.out().lines().count(), ran.err().lines().count()), (100_000, 100_000));
}

#[test]
fn poststop_hooks_run_before_it_returns() {
    let host = Host::new();
    let runtime = host.oci();
    let file = host.work().join("stopped");
    let bundle = runtime.bundle().script("exit 0").edit(|config| {
        config["hooks"]["poststop"] =
            serde_json::json!([{ "path": "/bin/sh", "args": ["sh", "-c", format!("touch {}", file.display())],
                "env": ["PATH=/bin:/usr/bin"] }]);
    });
    runtime.run(&bundle, &[]).assert_code(0);
    assert!(file.exists());
}

#[test]
fn without_pivot_root_its_root_is_its_own_all_the_same() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime
        .bundle()
        .script("test ! -e /usr/bin/env && ls -d /proc/1 /sys/kernel; echo mine >/mark; exec sleep 1000");
    let container = runtime.created_with(bundle, &["--no-pivot"]);
    container.call("start", &[]).assert_code(0);
    container.wait_for("/proc/1\n/sys/kernel\n");
    container.sh(&[], "cat /mark; cd /; cd ..; ls -d mark").assert_says("mine\nmark");
    // What was taken away below it is the host's still.
    assert!(std::path::Path::new("/proc/self/status").exists() && std::path::Path::new("/sys/kernel").exists());
}
