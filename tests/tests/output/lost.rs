//! Output that the caller asked for and that cannot be written: one line on
//! stderr and 125, whatever the task's own code, which the report keeps.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Output, make_fifo};
use bowline_tests::harness::{Ran, Task, binary, eventually, fds_of, touch};
use rustix::pipe::pipe;
use rustix::process::Signal;

/// `bowline ARGS`, with the redirections of a shell.
fn redirected(host: &Host, script: &str) -> Ran {
    let mut command = host.command("sh");
    command.args(["-c", &format!("\"$BOWLINE\" {script}")]).env("BOWLINE", binary("bowline"));
    host.execute(command)
}

/// One line says what is lost and why, and with which code the task ended.
#[track_caller]
fn assert_lost(ran: &Ran, stream: &str, code: &str) {
    ran.assert_refused(125, &["lost", &format!("cannot write to {stream}"), "No space left on device", code]);
    assert_eq!(ran.err().lines().count(), 1, "{ran}");
}

#[test]
fn run_says_that_output_is_lost_and_the_report_keeps_the_code() {
    let host = Host::new();
    for flags in ["", "--log=json", "--json"] {
        let task = host.adopt(host.new_id());
        let ran =
            redirected(&host, &format!("run {flags} --name {} -- sh -c 'echo out; exit 3' >/dev/full", task.id()));
        assert_lost(&ran, "stdout", "3");
        task.wait().assert_code(3);
    }
}

#[test]
fn a_stderr_that_cannot_be_written_is_lost_output_too() {
    let host = Host::new();
    let task = host.adopt(host.new_id());
    let ran = redirected(&host, &format!("run --name {} -- sh -c 'echo out; echo err >&2' 2>/dev/full", task.id()));
    assert_eq!(ran.assert_code(125).out(), "out");
    task.wait().assert_code(0);
}

#[test]
fn a_task_that_writes_on_to_a_full_disk_ends() {
    let host = Host::new();
    let ran = redirected(&host, "run --rm -- sh -c 'yes; exit 9' >/dev/full");
    assert_lost(&ran, "stdout", "9");
}

#[test]
fn what_fits_on_a_disk_is_there() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let file = disk.path().join("out");
    // The shell is init, as SIGPIPE ends seq without a word.
    let ran = redirected(&host, &format!("run --rm -- sh -c 'seq 1 100000; exit 4' >{}", file.display()));
    assert_lost(&ran, "stdout", "4");
    assert_eq!(fs::metadata(&file).expect("it was made").len(), 65_536);
    drop(disk);
}

#[test]
fn a_task_that_writes_nothing_loses_nothing() {
    let host = Host::new();
    assert_eq!(redirected(&host, "run --rm -- sh -c 'exit 3' >/dev/full 2>&1").code, Some(3));
}

#[test]
fn exec_says_that_output_is_lost() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    for flags in ["", "--json", "-i"] {
        let ran = redirected(&host, &format!("exec {flags} {} -- sh -c 'echo out; exit 3' >/dev/full", task.id()));
        assert_lost(&ran, "stdout", "3");
    }
    redirected(&host, &format!("exec {} -- sh -c 'exit 3' >/dev/full", task.id())).assert_code(3);
    task.end();
}

#[test]
fn attach_leaves_and_says_that_output_is_lost() {
    let host = Host::new();
    let task = host.task("while :; do echo x; done").start();
    let ran = redirected(&host, &format!("attach {} >/dev/full", task.id()));
    ran.assert_refused(125, &["lost", "cannot write to stdout", "No space left on device"]);
    assert_eq!(task.status(), "running");
    eventually("nothing of it is left", || (attached(&task) == 0).then_some(()));
    task.end();
}

/// As a `run` of it says.
#[test]
fn attach_says_that_the_tasks_own_file_is_full() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let file = disk.path().join("out");
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'until [ -e /tmp/go ]; do sleep 0.02; done; seq 1 100000; exit 3']\n\
         output.stdout = '{}'",
        file.display()
    );
    let task = host.described(&toml).start();
    let attach = host.spawn(["attach", task.id()]);
    eventually("it is attached", || (attached(&task) > 0).then_some(()));
    touch(task.program_pid(), "go");
    let why = format!("cannot write {} bytes to {}", SEQ - 65_536, file.display());
    let ran = attach.finish();
    // What the file took is passed on.
    for part in ["lost", &why, "No space left on device", "ended with 3"] {
        assert!(ran.assert_code(125).err().contains(part), "{ran}");
    }
    task.bowline("rm", []).assert_code(0);
    drop(disk);
}

/// Where results cannot be written, it is said; where nobody reads them, they are not missed.
#[test]
fn what_lists_says_that_its_output_is_lost() {
    let host = Host::new();
    let task = host.task("echo out; exec sleep 1000").start();
    task.wait_for_line("out");
    let id = task.id();
    let (facts, stats) = (format!("inspect --facts {id}"), format!("stats {id}"));
    let (top, events, inspect, explain) =
        (format!("top --once {id}"), format!("events {id}"), format!("inspect {id}"), format!("explain {id}"));
    for command in [
        "ps",
        "ps --json",
        "ps -q",
        "top --once --json",
        "stats --json",
        "events --json",
        "sandbox ls",
        "metrics --once",
        "doctor",
        "schema",
        "man",
        "completions bash",
        "--help",
        "--version",
        "run --help",
        &facts,
        &stats,
        &top,
        &events,
        &inspect,
        &explain,
    ] {
        let ran = redirected(&host, &format!("{command} >/dev/full"));
        ran.assert_refused(125, &["cannot write to stdout", "No space left on device"]);
        let mut unread = host.command(binary("bowline"));
        unread.args(command.split(' '));
        let ((read, write), (nothing, _)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
        drop(read);
        let ran = host.spawn_command_with(unread, nothing, write).finish();
        assert!(ran.code == Some(0) && ran.err().is_empty(), "{command}: {ran}");
    }
    task.end();
}

fn attached(task: &Task<'_>) -> usize {
    fds_of(task.shim_pid()).iter().filter(|target| target.contains("/attach-")).count()
}

#[test]
fn logs_says_that_output_is_lost() {
    let host = Host::new();
    let task = host.task("echo out; echo err >&2; exec sleep 1000").start();
    task.wait_for_line("out");
    for flags in ["", "--json", "--follow"] {
        let ran = redirected(&host, &format!("logs {flags} {} >/dev/full", task.id()));
        ran.assert_refused(125, &["cannot write to stdout", "No space left on device"]);
    }
    task.end();
}

#[test]
fn rm_removes_whatever_becomes_of_the_output() {
    let host = Host::new();
    for (redirection, code) in [
        ("--rm -- sh -c 'echo out; exit 3' >/dev/full", 125),
        ("--rm --json -- sh -c 'echo out; exit 3' >/dev/full", 125),
        ("--rm --json -- sh -c 'echo out; exit 3' >&-", 3),
        ("--rm -- sh -c 'echo out; exit 3' >&- 2>&-", 3),
        ("--rm -- sh -c 'echo out; exit 3' >/dev/full 2>/dev/full", 125),
        ("--rm --json -- sh -c 'echo out; exit 3' | true", 0),
        ("--rm -- sh -c 'echo out; exit 3' | true", 0),
    ] {
        let ran = redirected(&host, &format!("run {redirection}"));
        assert_eq!(ran.code, Some(code), "{ran}");
        host.bowline(["ps", "-q"]).assert_says("");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_removes_what_a_shim_that_died_has_left() {
    let host = Host::new();
    let (task, run) = host.task("trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done").flag("--rm").spawn();
    run.wait_for_out("ready");
    task.crash_shim();
    run.signal(Signal::TERM);
    run.finish().assert_code(6);
    host.bowline(["ps", "-q"]).assert_says("");
    host.assert_nothing_left_without_rm();
}

/// How many bytes `seq 1 100000` writes.
const SEQ: u64 = 588_895;

#[test]
fn a_full_disk_of_the_tasks_own_file_loses_output() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let file = disk.path().join("out");
    let script = |stream: &str| format!("seq 1 100000 {stream}; exit 3");
    for (output, stream, script) in [
        (format!("stdout = '{}'", file.display()), "stdout", script("")),
        (format!("stderr = '{}'", file.display()), "stderr", script(">&2")),
        (format!("stdout = '{0}', stderr = '{0}'", file.display()), "stderr", script(">&2")),
    ] {
        let toml = format!("command = 'sh'\nargs = ['-c', '{script}']\noutput = {{ {output} }}");
        let build = host.described(&toml);
        let task = host.adopt(build.id());
        let lost = SEQ - 65_536;
        let why = format!("cannot write {lost} bytes to {}", file.display());
        build.run().assert_refused(125, &["lost", &why, "No space left on device", "ended with 3"]);
        assert_eq!(fs::metadata(&file).expect("it was made").len(), 65_536);
        let report = task.wait();
        report.assert_code(3);
        assert_eq!(report.number("output_dropped_bytes"), lost);
        let unwritten = &report["output_unwritten"];
        assert_eq!((&unwritten[0]["stream"], &unwritten[0]["bytes"]), (&stream.into(), &lost.into()), "{unwritten}");
        fs::remove_file(&file).expect("it was made");
    }
    drop(disk);
}

/// What comes later is written, and what is missing is said nevertheless; also by another program or shim.
#[test]
fn a_disk_that_is_full_for_a_while_loses_output_too() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let file = disk.path().join("out");
    let filler = disk.path().join("filler");
    for crashes in [false, true] {
        assert!(fs::write(&filler, vec![0; 1 << 20]).is_err(), "the disk is full");
        let script = "echo lost; while [ ! -e /tmp/room ]; do sleep 0.01; done; echo after; exit 3";
        let toml = format!("command = 'sh'\nargs = ['-c', '{script}']\noutput.stdout = '{}'", file.display());
        let (task, run) = host.described(&toml).spawn();
        host.adopt(task.id());
        task.wait_until_running();
        let dropped = || host.metrics().of_task("output_dropped_bytes_total", task.id(), "");
        eventually("it has nowhere to go", || (dropped() > 0.0).then_some(()));
        assert_eq!(task.status(), "running", "the task goes on");
        match crashes {
            false => drop(task.bowline("upgrade", []).assert_says(task.id())),
            true => task.crash_shim(),
        }
        fs::remove_file(&filler).expect("it was made");
        touch(task.program_pid(), "room");
        run.finish().assert_refused(125, &["lost", "cannot write 5 bytes", "No space left on device", "ended with 3"]);
        assert_eq!(fs::read_to_string(&file).expect("it was made"), "after\n");
        let report = task.wait();
        assert_eq!((&report["output_unwritten"][0]["bytes"], report.number("output_dropped_bytes")), (&5.into(), 5));
        fs::remove_file(&file).expect("it was made");
    }
    drop(disk);
}

/// What is in the pipes goes with the shim, but not what it knew to be lost.
#[test]
fn what_a_dead_shim_knew_to_be_lost_is_told_without_an_init() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let file = disk.path().join("out");
    assert!(fs::write(disk.path().join("filler"), vec![0; 1 << 20]).is_err(), "the disk is full");
    for (stream, terminal) in [("stdout", false), ("stdout", true), ("stderr", false)] {
        let to = if stream == "stderr" { ">&2" } else { "" };
        let script = format!("echo lost {to}; while [ ! -e /tmp/end ]; do sleep 0.01; done; exit 3");
        let output = format!("output.{stream} = '{}'\nterminal = {terminal}\ninit = false", file.display());
        let task = host.described(&format!("command = 'sh'\nargs = ['-c', '{script}']\n{output}")).start();
        host.adopt(task.id());
        let dropped = || host.metrics().of_task("output_dropped_bytes_total", task.id(), "");
        eventually("it has nowhere to go", || (dropped() > 0.0).then_some(()));
        let program = task.program_pid();
        task.crash_shim();
        task.bowline("adopt", []).assert_code(0);
        touch(program, "end");
        let report = task.wait();
        let lost = 5 + u64::from(terminal);
        let unwritten = &report["output_unwritten"][0];
        assert_eq!((&unwritten["stream"], &unwritten["bytes"]), (&stream.into(), &lost.into()), "{unwritten}");
        assert_eq!(report.number("output_dropped_bytes"), lost);
    }
    drop(disk);
}

/// As in any pipeline: who has left wants no more.
#[test]
fn a_reader_that_leaves_its_fifo_loses_nothing_of_a_run() {
    let host = Host::new();
    let path = host.work().join("fifo");
    make_fifo(&path);
    let reader = Output::open(&path);
    let script = "echo first; while [ ! -e /tmp/left ]; do sleep 0.01; done; echo more; exit 3";
    let toml = format!("command = 'sh'\nargs = ['-c', '{script}']\noutput.stdout = '{}'", path.display());
    let (task, run) = host.described(&toml).spawn();
    reader.wait_for("first");
    reader.leave();
    touch(task.program_pid(), "left");
    run.finish().assert_code(3);
    let report = task.wait();
    assert_eq!(report.number("output_dropped_bytes"), 5);
    assert!(report["output_unwritten"].is_null());
}

#[test]
fn run_ends_when_its_description_sends_output_to_files() {
    let host = Host::new();
    let file = |name: &str| host.work().join(name).display().to_string();
    for (output, out, err) in [
        (format!("stdout = '{}'", file("out")), "", "err"),
        (format!("stderr = '{}'", file("err")), "out", ""),
        (format!("stdout = '{}', stderr = '{}'", file("both"), file("both")), "", ""),
    ] {
        let toml = format!("command = 'sh'\nargs = ['-c', 'echo out; echo err >&2; exit 3']\noutput = {{ {output} }}");
        let ran = host.described(&toml).run();
        assert_eq!((ran.code, ran.out(), ran.err()), (Some(3), out.into(), err.into()), "{ran}");
    }
    let terminal = format!(
        "command = 'sh'\nargs = ['-c', 'echo out; exit 3']\nterminal = true\noutput.stdout = '{}'",
        file("tty")
    );
    assert_eq!(host.described(&terminal).run().assert_code(3).out(), "out\r");
    let read = |name: &str| fs::read_to_string(file(name)).expect("it was made");
    assert_eq!((read("out"), read("err"), read("tty")), ("out\n".into(), "err\n".into(), "out\r\n".into()));
    assert_eq!(read("both"), "out\nerr\n");
}
