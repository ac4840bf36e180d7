//! Stdin: `run -i` and `exec -i` pass it on to its end, byte for byte.

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary, much, patience};
use rustix::process::Signal;

/// A pipeline of which `bowline` is a part, with this host's state.
fn shell(host: &Host, script: &str) -> std::process::Command {
    let mut command = host.command("sh");
    command.args(["-c", script]).env("BOWLINE", binary("bowline")).env("BYTES", much().to_string());
    command
}

/// Runs one through which much passes; other cases need their part of the machine.
fn execute(host: &Host, script: &str) -> Ran {
    host.spawn_command(shell(host, script)).finish_within(4 * patience())
}

const SOURCE: &str = "seq 1 200000000 | head -c $BYTES";

#[test]
fn a_gigabyte_passes_into_a_task_whole() {
    let host = Host::new();
    let expected = execute(&host, &format!("{SOURCE} | cksum"));
    let passed = execute(&host, &format!("{SOURCE} | $BOWLINE run -i --rm -- cksum"));
    passed.assert_says(&expected.out());
}

#[test]
fn a_gigabyte_passes_through_an_exec_whole() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let expected = execute(&host, &format!("{SOURCE} | cksum"));
    let script = format!("{SOURCE} | $BOWLINE exec -i {} -- cat | cksum", task.id());
    execute(&host, &script).assert_says(&expected.out());
    task.end();
}

#[test]
fn a_few_bytes_are_there_however_late_the_task_reads() {
    let host = Host::new();
    let script = "printf 'a\\0b' | $BOWLINE run -i --rm -- sh -c 'sleep 0.3; od -An -c'";
    let ran = host.execute(shell(&host, script));
    assert_eq!(ran.assert_code(0).out().split_whitespace().collect::<Vec<_>>(), ["a", "\\0", "b"]);
}

#[test]
fn without_i_stdin_has_ended() {
    let host = Host::new();
    host.execute(shell(&host, "echo no | $BOWLINE run --rm -- cat")).assert_says("");
    let task = host.task("exec sleep 1000").start();
    host.execute(shell(&host, &format!("echo no | $BOWLINE exec {} -- cat", task.id()))).assert_says("");
    task.end();
}

#[test]
fn a_task_that_ends_without_reading_is_not_waited_for() {
    let host = Host::new();
    // The writer goes on for ever: a broken pipe ends it.
    host.execute(shell(&host, "yes | $BOWLINE run -i --rm -- sh -c 'head -n 1; exit 7'; echo $?")).assert_says("y\n7");
}

#[test]
fn a_task_that_closes_its_stdin_breaks_the_pipe_and_runs_on() {
    let host = Host::new();
    let script = "(yes; echo broken >&2) | $BOWLINE run -i --rm -- sh -c 'exec <&-; echo closed; exit 0'";
    host.execute(shell(&host, script)).assert_says("closed");
}

#[test]
fn stdin_can_be_opened_anew_by_the_tasks_user() {
    let host = Host::new();
    let script = "echo again | $BOWLINE run -i --rm --user nobody -- cat /dev/stdin";
    host.execute(shell(&host, script)).assert_says("again");
}

#[test]
fn json_and_stdin_go_together() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let ran = host.execute(shell(&host, &format!("echo in | $BOWLINE exec -i --json {} -- cat", task.id())));
    assert_eq!(ran.assert_code(0).json()["stdout"], "in\n");
    task.end();
}

#[test]
fn a_manager_that_dies_ends_the_tasks_stdin() {
    let host = Host::new();
    let id = host.new_id();
    let (stdin, _open) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let nowhere = std::fs::File::create("/dev/null").expect("there is one");
    let mut run = host.command(binary("bowline"));
    run.args(["run", "-i", "--name", &id, "--", "sh", "-c", "cat; exit 9"]);
    let run = host.spawn_command_with(run, stdin, nowhere.into());
    let task = host.adopt(id);
    task.wait_until_running();
    run.signal(Signal::KILL);
    task.wait().assert_code(9);
    drop(run);
}
