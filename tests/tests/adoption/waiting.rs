//! Whoever waits for a task goes on under its new shim: `wait`, `run` and `attach`.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Task, WRITER, eventually, fds_of, process_exists, touch};
use rustix::process::{Pid, Signal, kill_process};

/// The first so many lines of [`WRITER`].
fn lines(count: usize) -> String {
    (1..=count).map(|n| format!("line {n}\n")).collect()
}

/// Whether the shim has the streams of an `attach` open.
fn is_read(task: &Task<'_>) -> bool {
    fds_of(task.shim_pid_on_disk()).iter().any(|name| name.contains("/attach-"))
}

#[test]
fn who_waits_learns_the_real_exit_code_and_no_output_is_lost() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    let program = task.program_pid();
    let waiters: Vec<_> = (0..5).map(|_| host.spawn(["wait", task.id()])).collect();
    eventually("all wait", || (task.socket_ends() > waiters.len()).then_some(()));
    for line in 1..=4 {
        task.wait_for_line(&format!("line {line}"));
        task.crash_shim();
        touch(program, &line.to_string());
    }
    task.wait_for_line("line 5");
    touch(program, "end");
    for waiter in waiters {
        waiter.finish().assert_says("7");
    }
    assert_eq!(task.said("stdout"), lines(5));
    assert_eq!(task.takeovers(), 4, "one of five is first each time");
    assert_eq!(task.wait()["shim_died"], false);
}

#[test]
fn a_run_in_the_foreground_goes_on_reading() {
    let host = Host::new();
    let (task, run) = host.task(WRITER).flag("--init").spawn();
    run.read_stdout();
    run.wait_for_out("line 1\n");
    let program = task.program_pid();
    for line in 1..=3 {
        run.wait_for_out(&format!("line {line}\n"));
        task.crash_shim();
        touch(program, &line.to_string());
    }
    run.wait_for_out("line 4\n");
    touch(program, "end");
    let ran = run.finish();
    ran.assert_code(7);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), lines(4));
}

#[test]
fn an_interrupt_of_a_run_stops_the_task_under_its_new_shim() {
    let host = Host::new();
    let (task, run) = host.task("trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done").flag("--init").spawn();
    run.wait_for_out("ready");
    task.crash_shim();
    eventually("there is a new shim", || (task.takeovers() == 1).then_some(()));
    run.signal(Signal::INT);
    run.finish().assert_code(6);
}

#[test]
fn who_is_attached_is_attached_again() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    let attached = host.spawn(["attach", "--no-stdin", task.id()]);
    attached.read_stdout();
    eventually("it is attached", || is_read(&task).then_some(()));
    touch(program, "1");
    attached.wait_for_out("line 2\n");
    task.crash_shim();
    eventually("it is attached again", || (task.takeovers() == 1 && is_read(&task)).then_some(()));
    touch(program, "2");
    attached.wait_for_out("line 3\n");
    touch(program, "end");
    attached.finish().assert_code(7);
}

#[test]
fn attach_has_the_code_of_a_task_that_ends_before_it_reattaches() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    let attached = host.spawn(["attach", "--no-stdin", task.id()]);
    eventually("it is attached", || is_read(&task).then_some(()));
    // What the shim answers now comes after its answer to `attach`.
    let shim = task.shim_pid();
    attached.signal(Signal::STOP);
    task.kill_shim(shim);
    touch(program, "end");
    eventually("the program has ended", || (!process_exists(program)).then_some(()));
    attached.signal(Signal::CONT);
    attached.finish().assert_code(7);
}

#[test]
fn attach_goes_on_though_the_next_shim_dies_before_it_answers() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    let attached = host.spawn(["attach", "--no-stdin", task.id()]);
    attached.read_stdout();
    eventually("it is attached", || is_read(&task).then_some(()));
    let shim = task.shim_pid();
    attached.signal(Signal::STOP);
    task.kill_shim(shim);
    host.bowline(["adopt", task.id()]).assert_says(task.id());
    let next = task.shim_pid();
    kill_process(Pid::from_raw(next).expect("a pid"), Signal::STOP).expect("it lives");
    let others = task.socket_ends();
    attached.signal(Signal::CONT);
    // It looks whether the next one is there and whether it serves, and then asks it to attach and sleeps.
    let stat = format!("/proc/{}/stat", attached.pid());
    let sleeps = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
    eventually("the next shim is asked", || (task.socket_ends() >= others + 3 && sleeps()).then_some(()));
    task.crash_shim();
    eventually("it is attached again", || (task.takeovers() == 2 && is_read(&task)).then_some(()));
    touch(program, "1");
    attached.wait_for_out("line 2\n");
    touch(program, "end");
    attached.finish().assert_code(7);
}

/// Such as one that wanted to take the task over, and was stopped.
#[test]
fn who_has_the_lock_and_is_stopped_keeps_no_reader_waiting() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.kill_shim(task.shim_pid());
    let mut command = host.command("flock");
    command.arg("--no-fork").arg(task.file("lock")).args(["sh", "-c", "echo locked; exec sleep 1000"]);
    let holder = host.spawn_command(command);
    holder.wait_for_out("locked");
    holder.signal(Signal::STOP);
    let listed = host.bowline(["ps", "-a"]).assert_code(0).out();
    assert!(listed.contains("not answering"), "{listed}");
    assert_eq!(task.status(), "not answering");
    holder.signal(Signal::CONT);
    drop(holder);
    task.bowline("adopt", []).assert_code(0);
    task.end();
}
