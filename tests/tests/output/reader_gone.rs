//! A reader that goes ends what writes to it, as in any pipeline: quietly, and
//! with the command's own code.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Task, binary, eventually, fds_of};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Writes to stdout until that fails, and tells on stderr how that ended.
const WRITES_ON: &str = "yes; echo yes: $? >&2; exit 7";

/// A pipeline of which `bowline` is a part, and whose code is that of its first part which fails.
fn pipeline(host: &Host, script: &str) -> Command {
    let mut command = host.command("bash");
    command.args(["-c", &format!("set -o pipefail; {script}")]).env("BOWLINE", binary("bowline"));
    command
}

/// The FIFOs for `stream` that the shim of `task` has open.
fn open_fifos(task: &Task<'_>, stream: &str) -> usize {
    let fds = fds_of(task.shim_pid());
    fds.iter().filter(|target| target.contains("/attach-") && target.ends_with(&format!("/{stream}"))).count()
}

/// `yes` was ended by the reader of its output, and what ran it by nothing.
#[track_caller]
fn assert_ended_by_its_reader(ran: &Ran) {
    ran.assert_code(7);
    assert_eq!((ran.out(), ran.err()), ("y\ny".into(), "yes: 141".into()), "{ran}");
}

#[test]
fn run_ends_with_the_tasks_code_when_its_reader_goes() {
    let host = Host::new();
    for flags in ["", "--log=json", "--log=raw", "-i"] {
        let script = format!("$BOWLINE run --rm {flags} -- sh -c '{WRITES_ON}' | head -n 2");
        assert_ended_by_its_reader(&host.execute(pipeline(&host, &script)));
    }
}

#[test]
fn a_command_that_is_init_sees_its_write_fail() {
    let host = Host::new();
    // SIGPIPE does not end the first process of a pid namespace.
    let ran = host.execute(pipeline(&host, "$BOWLINE run --rm --init=false -- yes | head -n 2"));
    assert_eq!(ran.assert_code(1).out(), "y\ny");
    assert!(ran.err().starts_with("yes: ") && !ran.err().contains("bowline"), "{ran}");
}

#[test]
fn run_ends_though_its_stdin_stays_open() {
    let host = Host::new();
    let (stdin, _open) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let nowhere = File::create("/dev/null").expect("there is one");
    let script = format!("$BOWLINE run -i --rm -- sh -c '{WRITES_ON}' | head -n 2");
    let ran = host.spawn_command_with(pipeline(&host, &script), stdin, nowhere.into()).finish();
    assert_eq!(ran.assert_code(7).err(), "yes: 141");
}

#[test]
fn a_reader_that_goes_before_anything_runs_is_no_error() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    drop(read);
    for args in [&["run", "--rm"][..], &["exec", task.id()]] {
        let mut command = host.command(binary("bowline"));
        command.args(args).args(["--", "sh", "-c", WRITES_ON]);
        let nothing = File::open("/dev/null").expect("there is one");
        let unread = write.try_clone().expect("a descriptor");
        let ran = host.spawn_command_with(command, nothing.into(), unread).finish();
        assert_eq!(ran.assert_code(7).err(), "yes: 141");
    }
    task.end();
}

#[test]
fn the_other_stream_stays_open() {
    let host = Host::new();
    let script = "while echo x >&2; do :; done; echo still here; exit 4";
    // The shell is init: its own write fails, and nothing ends it.
    let script =
        format!("{{ $BOWLINE run --rm --init=false -- sh -c '{script}' 2>&1 >&3 3>&- | head -n 2 >/dev/null; }} 3>&1");
    assert_eq!(host.execute(pipeline(&host, &script)).assert_code(4).out(), "still here");
}

#[test]
fn a_reader_is_missed_before_the_task_writes_again() {
    let host = Host::new();
    let (task, run) = host.task("exec sleep 1000").flag("--log=json").spawn();
    let task = host.adopt(task.id());
    task.wait_until_running();
    eventually("its output is passed on", || (open_fifos(&task, "stdout") == 1).then_some(()));
    run.close_stdout();
    eventually("its output is closed", || (open_fifos(&task, "stdout") == 0).then_some(()));
    assert_eq!(open_fifos(&task, "stderr"), 1, "that has a reader");
    assert_eq!(task.status(), "running");
    task.end();
    run.finish().assert_code(137);
}

#[test]
fn a_task_that_watches_its_reader_ends_with_it() {
    let host = Host::new();
    // tail polls its stdout: it ends though nothing is written to the file any more.
    let (_, run) = host.task("tail -f /etc/passwd; exit 5").spawn();
    run.close_stdout();
    run.finish().assert_code(5);
}

#[test]
fn somebody_attached_is_a_reader_too() {
    let host = Host::new();
    let script = "until [ -e /tmp/go ]; do sleep 0.05; done; echo more; exit 6";
    let (task, run) = host.task(script).spawn();
    let task = host.adopt(task.id());
    task.wait_until_running();
    let attach = host.spawn(["attach", task.id()]);
    eventually("both read", || (open_fifos(&task, "stdout") == 2).then_some(()));
    run.close_stdout();
    eventually("one has gone", || (open_fifos(&task, "stdout") == 1).then_some(()));
    // It may be killed with the task that it lets end.
    let _ = task.exec("touch /tmp/go");
    assert_eq!(attach.finish().assert_code(6).out(), "more");
    assert_eq!(run.finish().assert_code(6).err(), "");
}

#[test]
fn the_log_has_what_was_written_while_there_was_a_reader() {
    let host = Host::new();
    let script = format!("echo kept; until [ -e /tmp/go ]; do sleep 0.05; done; {WRITES_ON}");
    let (task, run) = host.task(&script).flag("--log=json").spawn();
    let task = host.adopt(task.id());
    task.wait_for_line("kept");
    run.close_stdout();
    // It may be killed with the task that it lets end.
    let _ = task.exec("touch /tmp/go");
    assert_eq!(run.finish().assert_code(7).err(), "yes: 141");
    let logged = task.bowline("logs", []);
    assert_eq!(logged.assert_code(0).out().lines().next(), Some("kept"));
    assert_eq!(task.wait().number("output_dropped_bytes"), 0, "a reader that goes loses nothing that it wanted");
}

#[test]
fn a_member_of_a_sandbox_loses_its_reader_like_any_task() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let script = format!("$BOWLINE run --rm --sandbox {} -- sh -c '{WRITES_ON}' | head -n 2", sandbox.id());
    assert_ended_by_its_reader(&host.execute(pipeline(&host, &script)));
    sandbox.rm([]);
}

#[test]
fn exec_ends_with_the_commands_code_when_its_reader_goes() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    for flags in ["", "-i", "--timeout=1h"] {
        let script = format!("$BOWLINE exec {flags} {} -- sh -c '{WRITES_ON}' | head -n 2", task.id());
        assert_ended_by_its_reader(&host.execute(pipeline(&host, &script)));
    }
    task.end();
}

#[test]
fn attach_leaves_when_its_reader_goes() {
    let host = Host::new();
    let tasks = [
        host.task("exec sleep 1000").start(),
        host.task("exec sleep 1000").flag("-i").start(),
        host.task("exec sleep 1000").flag("-t").start(),
        // Its stderr never ends.
        host.task("yes >&2 & exec yes").start(),
    ];
    for task in tasks {
        let attach = host.spawn_unread(["attach", task.id()]);
        attach.read_stderr();
        eventually("it is attached", || (open_fifos(&task, "stdout") == 1).then_some(()));
        attach.close_stdout();
        let left = attach.finish();
        left.assert_code(0);
        assert!(!left.err().contains("bowline"), "{left}");
        assert_eq!(task.status(), "running");
        eventually("it is no longer attached", || {
            (open_fifos(&task, "stdout") == 0 && open_fifos(&task, "stderr") == 0).then_some(())
        });
        task.end();
    }
}

#[test]
fn a_terminal_that_hangs_up_lets_the_task_write_to_its_end() {
    let host = Host::new();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&master).expect("ours");
    unlockpt(&master).expect("ours");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("its other end");
    let task = host.adopt(host.new_id());
    let script = "trap 'seq 1 50000; exit $?' TERM; echo ready; while :; do sleep 0.1; done";
    let mut run = host.command("setsid");
    run.arg("--ctty").arg(binary("bowline")).args(["run", "--name", task.id(), "--", "sh", "-c", script]);
    let run = host.spawn_command_with(run, slave.try_clone().expect("a descriptor"), slave);
    let mut said = BufReader::new(File::from(master));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), "ready");
    drop(said);
    run.finish().assert_code(0);
    task.wait().assert_code(0);
}

#[test]
fn a_socket_without_its_peer_is_no_reader() {
    let host = Host::new();
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--rm", "--", "sh", "-c", WRITES_ON]);
    let nothing = File::open("/dev/null").expect("there is one");
    let run = host.spawn_command_with(run, nothing.into(), OwnedFd::from(theirs));
    drop(ours);
    assert_eq!(run.finish().assert_code(7).err(), "yes: 141");
}

#[test]
fn a_socket_that_nothing_is_read_from_gets_everything() {
    let host = Host::new();
    let (mut ours, theirs) = UnixStream::pair().expect("a socket");
    // As a service has that writes to systemd's journal.
    theirs.shutdown(Shutdown::Read).expect("a socket");
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--rm", "--", "echo", "out"]);
    let nothing = File::open("/dev/null").expect("there is one");
    let run = host.spawn_command_with(run, nothing.into(), OwnedFd::from(theirs));
    run.finish().assert_code(0);
    let mut said = String::new();
    ours.read_to_string(&mut said).expect("text");
    assert_eq!(said, "out\n");
}

#[test]
fn a_pipe_that_does_not_block_gets_everything() {
    let host = Host::new();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    rustix::io::ioctl_fionbio(&write, true).expect("a pipe");
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--rm", "--", "seq", "1", "300000"]);
    let nothing = File::open("/dev/null").expect("there is one");
    let run = host.spawn_command_with(run, nothing.into(), write);
    // The pipe fills up first.
    eventually("nothing more fits in", || {
        rustix::io::ioctl_fionread(&read).is_ok_and(|bytes| bytes >= 60_000).then_some(())
    });
    let said = std::io::read_to_string(File::from(read)).expect("text");
    run.finish().assert_code(0);
    assert_eq!((said.lines().count(), said.lines().last()), (300_000, Some("300000")));
}

#[test]
fn commands_that_print_are_quiet_when_their_reader_goes() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    drop(read);
    let id = task.id();
    for args in [
        &["explain", id][..],
        &["explain", "--json", id],
        &["stats", id],
        &["stats", "--json", id],
        &["stats", "--watch", "--json", "--interval=100ms"],
        &["stats", "--watch", "--interval=100ms"],
        &["top", "--once"],
        &["completions", "bash"],
        &["man"],
        &["ps"],
        &["ps", "-q"],
        &["inspect", id],
        &["events"],
        &["logs", "--follow", id],
        &["schema"],
        &["doctor"],
    ] {
        let mut command = host.command(binary("bowline"));
        command.args(args);
        let nothing = File::open("/dev/null").expect("there is one");
        let unread = write.try_clone().expect("a descriptor");
        let ran = host.spawn_command_with(command, nothing.into(), unread).finish();
        assert_eq!((ran.code, ran.err()), (Some(0), String::new()), "{ran}");
    }
    task.end();
}
