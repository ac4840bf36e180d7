//! A shim whose tasks idle makes no system call, whatever program took its place and whatever it passes on.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Containerd, Output, Running, Stdio};
use bowline_tests::harness::versions::{state_of, upgrade_containerds};
use bowline_tests::harness::{Sandbox, Task, Trace, binary, eventually, storm};

/// Says that it runs, and does nothing more.
const IDLES: &str = "echo begun; exec sleep 1000";

/// Fails unless the shim comes to rest.
#[track_caller]
fn assert_idle(host: &Host, shim: i32) {
    let trace = Trace::of(host, shim, ["-f"]);
    trace.wait_until_idle("the shim");
    trace.end();
}

/// A sandbox of members and execs that have every kind of stream that `bowline` connects.
fn with_all_streams(host: &Host, then: impl FnOnce(&Sandbox<'_>, &[&Task<'_>])) {
    let sandbox = host.sandbox().create();
    let member = || host.task(IDLES).in_sandbox(&sandbox);
    let file = host.work().join("out");
    let at_terminal = member().flag("-it").start();
    let at_file = member().toml(&format!("output.stdout = '{}'", file.display())).start();
    let unlogged = member().flag("--log=none").start();
    let (task, run) = member().flag("-i").spawn();
    run.read_stdout();
    run.wait_for_out("begun\n");
    let exec = task.spawn_exec([], IDLES);
    exec.read_stdout();
    exec.wait_for_out("begun\n");
    task.exec_with(["-d"], IDLES).assert_code(0);
    // An input that says nothing.
    let (read, _write) = rustix::pipe::pipe().expect("a pipe");
    let mut command = host.command(binary("bowline"));
    command.args(["exec", "-i", task.id(), "--", "sh", "-c", "echo begun; exec cat"]);
    let (said, heard) = rustix::pipe::pipe().expect("a pipe");
    let fed = host.spawn_command_with(command, read, heard);
    rustix::io::read(&said, &mut [0; 6]).expect("it begins");
    let attached = host.spawn(["attach", "--no-stdin", unlogged.id()]);
    let terminal = at_terminal.in_terminal("attach", []);
    let exec_at_terminal = task.in_terminal("exec", ["-it", "--", "sh", "-c", IDLES]);
    exec_at_terminal.wait_for("begun");
    let is_attached = |target: &String| target.contains("/attach-") && target.ends_with("/stdout");
    let attachments = || bowline_tests::harness::fds_of(sandbox.shim_pid()).into_iter().filter(is_attached).count();
    eventually("all are attached", || (attachments() >= 3).then_some(()));
    then(&sandbox, &[&task, &at_terminal, &at_file, &unlogged]);
    for ends in [&unlogged, &at_file, &at_terminal, &task] {
        ends.end();
    }
    drop((attached, exec, fed, terminal, exec_at_terminal));
    run.finish();
    sandbox.rm([]);
}

#[test]
fn after_upgrades_with_every_kind_of_stream() {
    let host = Host::new();
    with_all_streams(&host, |sandbox, _| {
        for _ in 0..2 {
            host.bowline(["upgrade", sandbox.id()]).assert_says(sandbox.id());
            assert_idle(&host, sandbox.shim_pid());
        }
    });
}

/// A container whose execs have every kind of stream that containerd asks for.
struct Connected<'h> {
    running: Running<'h>,
    outputs: Vec<Output>,
}

impl<'h> Connected<'h> {
    fn new(host: &Host, containerd: &Containerd<'h>) -> Connected<'h> {
        let running = containerd.run_with_stdin(IDLES);
        running.stdout.wait_for("begun");
        let (bundle, shim, id) = (&running.bundle, &running.shim, &running.id);
        let logger = bundle.path.join("logger");
        fs::write(&logger, "exec 5>&-; exec cat <&3 >/dev/null").expect("the work folder is writable");
        let unconnected = [
            Stdio::null(),
            Stdio::uri(&format!("file://{}", host.work().join("exec.log").display())),
            Stdio::uri(&format!("binary:///bin/sh?{}=word", logger.display())),
        ];
        for (number, io) in unconnected.iter().enumerate() {
            shim.run_exec(bundle, &format!("unconnected{number}"), &["/bin/sh", "-c", IDLES], io);
        }
        let mut outputs = Vec::new();
        // Without a terminal, as `ctr task exec` does.
        let io = bundle.fifos("plain");
        let (stdout, stderr) = io.open();
        shim.run_exec(bundle, "plain", &["/bin/sh", "-c", IDLES], &io);
        outputs.extend([stdout].into_iter().chain(stderr));
        // It has ended; what it has left holds its output, and nobody deletes it.
        let io = bundle.fifos("ended");
        let (stdout, stderr) = io.open();
        shim.run_exec(bundle, "ended", &["/bin/sh", "-c", "echo begun; sleep 1000 & exit 3"], &io);
        assert_eq!(shim.status_at_end(id, "ended"), 3);
        outputs.extend([stdout].into_iter().chain(stderr));
        // Its reader takes nothing.
        let io = bundle.fifos("unread");
        let stdout = Output::open_paused(io.stdout.as_ref());
        let stderr = Output::open(io.stderr.as_ref());
        shim.run_exec(bundle, "unread", &["/bin/sh", "-c", "echo begun >&2; exec yes"], &io);
        stderr.wait_for("begun");
        outputs.extend([stdout, stderr]);
        outputs.iter().step_by(2).take(2).for_each(|stdout| stdout.wait_for("begun"));
        Connected { running, outputs }
    }
}

#[test]
fn after_upgrades_with_every_kind_of_stream_of_containerds() {
    let host = Host::new();
    let containerd = host.containerd();
    let Connected { running, outputs } = Connected::new(&host, &containerd);
    let wait = running.shim.wait_later(&running.id, "plain");
    for _ in 0..2 {
        upgrade_containerds(&host, &state_of(&host, &containerd), &[]).assert_code(0);
        assert_idle(&host, running.shim.pid());
    }
    running.shim.kill(&running.id, "plain", 9).expect("it runs");
    assert_eq!(wait.wait().expect("an end").exit_status, 137);
    drop(outputs);
    running.end();
}

#[test]
fn after_another_shim_has_taken_over() {
    let host = Host::new();
    with_all_streams(&host, |sandbox, members| {
        sandbox.crash_shim();
        members[0].exec("true").assert_code(0);
        assert_idle(&host, sandbox.shim_pid());
    });
}

#[test]
fn storm_upgrades_with_an_exec_in_flight() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    storm(2, |round| {
        let exec = format!("e{round}");
        let io = running.bundle.fifos(&exec);
        let (stdout, _stderr) = io.open();
        let args = ["/bin/sh", "-c", "echo begun; exec sleep 1000"];
        running.shim.exec(&running.id, &exec, &running.bundle.process(&args), &io).expect("added");
        let start = running.shim.start_later(&running.id, &exec);
        upgrade_containerds(&host, &state_of(&host, &containerd), &[]).assert_code(0);
        start.wait().expect("started");
        stdout.wait_for("begun");
        assert_idle(&host, running.shim.pid());
        running.shim.kill(&running.id, &exec, 9).expect("it runs");
        assert_eq!(running.shim.status_at_end(&running.id, &exec), 137);
        running.shim.delete(&running.id, &exec).expect("deleted");
    });
    running.end();
}
