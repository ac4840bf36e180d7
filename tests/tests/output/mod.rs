//! Output: nothing lost, and nobody held up by a reader or a disk.

mod lost;
mod reader_gone;

use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::eventually;

const MUCH: usize = 100_000_000;
/// Writes 100 MB of which no two places look alike, and exits at once.
const WRITE_MUCH: &str = "seq 1 20000000 | head -c 100000000";

fn much() -> Vec<u8> {
    let mut text = Vec::with_capacity(MUCH + 16);
    for n in 1_u32.. {
        if text.len() >= MUCH {
            break;
        }
        text.extend_from_slice(n.to_string().as_bytes());
        text.push(b'\n');
    }
    text.truncate(MUCH);
    text
}

#[track_caller]
fn assert_same(found: &[u8], expected: &[u8]) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        found.len() == expected.len() && differs.is_none(),
        "{} bytes instead of {}, the first wrong one at {differs:?}",
        found.len(),
        expected.len()
    );
}

#[test]
fn a_hundred_megabytes_before_an_exit_all_pass_through_run() {
    let host = Host::new();
    let ran = host.task(WRITE_MUCH).run();
    ran.assert_code(0);
    assert_same(&ran.stdout, &much());
}

#[test]
fn a_hundred_megabytes_before_an_exit_all_reach_the_log() {
    let host = Host::new();
    let task = host.task(WRITE_MUCH).flag("--log=raw").flag("--log-size=1G").start();
    let report = task.wait();
    assert_eq!(report.number("output_dropped_bytes"), 0);
    assert_same(&std::fs::read(task.file("stdout.log")).expect("the log"), &much());
}

#[test]
fn output_goes_to_the_files_of_the_description() {
    let host = Host::new();
    let (out, err) = (host.file("out", "before\n"), host.work().join("err"));
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'echo out; echo err >&2']\noutput = {{stdout = '{}', stderr = '{}'}}",
        out.display(),
        err.display()
    );
    let task = host.described(&toml).start();
    task.wait();
    let read = |path: &Path| std::fs::read_to_string(path).expect("it was made");
    assert_eq!((read(&out), read(&err)), ("before\nout\n".into(), "err\n".into()), "appended, or made");
}

#[test]
fn a_reader_that_stops_reading_holds_up_its_own_stream_only() {
    let host = Host::new();
    let script = "seq 1 1000000 & for i in 1 2 3; do echo err $i >&2; sleep 0.1; done; wait; echo all >&2";
    let (task, run) = host.task(script).spawn();
    // stderr is read, stdout is not: seq is held up, the shell is not.
    run.wait_for_err("err 3");
    task.exec("echo answered").assert_says("answered");
    assert!(task.stats()["cpu"]["usage_usec"].as_u64() > Some(0));
    assert_eq!(task.status(), "running");
    let ran = run.finish();
    ran.assert_code(0);
    assert!(ran.err().ends_with("all"), "{ran}");
    let expected: String = (1..=1_000_000).map(|n| format!("{n}\n")).collect();
    assert_same(&ran.stdout, expected.as_bytes());
}

#[test]
fn a_task_that_never_stops_writing_lets_its_shim_answer() {
    let host = Host::new();
    let task = host.task("yes >&2 & exec yes").start();
    assert_eq!(task.status(), "running");
    task.stats();
    task.exec("echo answered").assert_says("answered");
    task.end();
}

#[test]
fn a_slow_reader_gets_everything_after_the_exit() {
    let host = Host::new();
    // More than one pipe holds, less than all of those on the way do.
    let (task, run) = host.task("seq 1 15000").spawn();
    run.read_stderr();
    eventually("it has exited", || task.file("exit.json").exists().then_some(()));
    let ran = run.finish();
    let expected: String = (1..=15_000).map(|n| format!("{n}\n")).collect();
    assert_same(&ran.assert_code(0).stdout, expected.as_bytes());
}

#[test]
fn a_reader_that_pauses_gets_everything_after_the_shim_has_left() {
    let host = Host::new();
    // All pipes on the way hold that much, those behind the shim seldom do.
    let script = "until [ -e /tmp/go ]; do sleep 0.05; done; seq 1 32000";
    let (task, run) = host.task(script).spawn();
    let task = host.adopt(task.id());
    task.wait_until_running();
    // It may be killed with the task that it lets end.
    let _ = task.exec("touch /tmp/go");
    run.read_stderr();
    eventually("the shim has left", || (task.socket_ends() == 0).then_some(()));
    let ran = run.finish();
    let expected: String = (1..=32_000).map(|n| format!("{n}\n")).collect();
    assert_same(&ran.assert_code(0).stdout, expected.as_bytes());
}

#[test]
fn a_reader_that_goes_away_ends_what_writes_to_it_alone() {
    let host = Host::new();
    let (_, run) = host.task("seq 1 300000; echo $? >&2; exit 7").spawn();
    run.close_stdout();
    let ran = run.finish();
    assert_eq!((ran.code, ran.err()), (Some(7), "141".into()), "SIGPIPE, as in any pipeline: {ran}");
}

#[test]
fn a_log_that_cannot_be_written_blocks_nobody_and_is_counted() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'seq 1 100000; exit 3']\noutput.stdout = '/dev/full'";
    let task = host.described(toml).start();
    let report = task.wait();
    report.assert_code(3);
    assert_eq!(report.number("output_dropped_bytes"), 588_895);
    assert!(report["stdout_tail"].as_str().is_some_and(|tail| tail.ends_with("\n100000\n")), "{report:?}");
}

#[test]
fn a_log_on_a_disk_that_fills_up_blocks_nobody_and_is_counted() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let log = disk.path().join("log");
    let toml = format!("command = 'sh'\nargs = ['-c', 'seq 1 100000; exit 3']\noutput.stdout = '{}'", log.display());
    let task = host.described(&toml).start();
    let report = task.wait();
    report.assert_code(3);
    let written = std::fs::metadata(&log).expect("a log").len();
    assert_eq!(written + report.number("output_dropped_bytes"), 588_895);
    drop(disk);
}

#[test]
fn output_may_be_a_fifo_and_its_reader_may_go() {
    let host = Host::new();
    let fifo = host.work().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let mut cat = host.command("head");
    cat.args(["-n", "1"]).arg(&fifo);
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'echo ready >&2; seq 1 100000; exit 3']\noutput.stdout = '{}'",
        fifo.display()
    );
    let (task, start) = host.described(&toml).spawn_start();
    // The reader may come late.
    eventually("its shim waits for a reader", || task.file("exit.json.new").exists().then_some(()));
    let reader = host.spawn_command(cat);
    reader.read_stdout();
    start.finish().assert_code(0);
    task.wait().assert_code(3);
    assert_eq!(reader.finish().out(), "1");
}

#[test]
fn a_fifo_without_a_reader_is_refused() {
    let host = Host::new();
    let fifo = host.work().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let toml = format!("command = 'true'\noutput.stdout = '{}'", fifo.display());
    host.described(&toml).assert_refused(125, &["output", &fifo.to_string_lossy()]);
}

#[test]
fn a_log_in_a_folder_that_does_not_exist_is_refused() {
    let host = Host::new();
    let log = host.work().join("missing/log");
    host.described(&format!("command = 'true'\noutput.stderr = '{}'", log.display()))
        .assert_refused(125, &["output", &log.to_string_lossy()]);
}

#[test]
fn late_output_of_a_daemon_started_by_an_exec_harms_nobody() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let ran = task.exec("(sleep 0.2; echo late) & echo early");
    ran.assert_code(0);
    assert!(ran.out().starts_with("early"), "{ran}");
    task.exec("echo alive").assert_says("alive");
    task.end();
}
