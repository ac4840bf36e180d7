//! `stats --watch` and `top`: live views.

use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Screen, Task, binary, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";
const BUSY: &str = "while :; do :; done";

/// A shell in which `bowline ARGS` is followed by what the terminal is like.
fn in_shell<'h>(host: &'h Host, args: &str) -> Screen<'h> {
    let script = format!(
        "trap : INT QUIT; stty -a >before; \"$0\" {args}; echo \"ended with $?\"; stty -a >after; cmp before after && echo same; read -r x"
    );
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("cd {} && {script}", host.work().display())).arg(binary("bowline"));
    host.screen_of(shell, 80, 24)
}

fn end(tasks: &[Task<'_>]) {
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn with_json_a_watch_prints_one_line_per_reading_to_the_end() {
    let host = Host::new();
    let task = host.task(BUSY).start();
    let watch = host.spawn(["stats", "--watch", "--json", "--interval=100ms", task.id()]);
    let is_busy =
        |line: &str| serde_json::from_str(line).is_ok_and(|reading: Value| reading["cpu_percent"].as_f64() > Some(5.0));
    watch.read_stdout();
    eventually("two readings, and that it is busy", || {
        let said = watch.said();
        (said.lines().count() > 2 && said.lines().any(is_busy)).then_some(())
    });
    task.end();
    let ran = watch.finish();
    let lines: Vec<Value> =
        ran.assert_code(0).out().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|reading| reading["id"] == task.id()), "{ran}");
}

#[test]
fn a_watch_ends_with_its_task_despite_a_later_one_of_its_name() {
    let host = Host::new();
    let first = host.task("exec sleep 1000").start();
    let watch = host.spawn(["stats", "--watch", "--json", "--interval=100ms", first.id()]);
    watch.read_stdout();
    watch.wait_for_out("cpu");
    host.task("exec sleep 1000").named(first.id()).flag("--replace").start();
    watch.finish().assert_code(0);
    first.end();
}

#[test]
fn a_watch_follows_a_new_shim_and_names_a_task_that_gets_none() {
    let host = Host::new();
    let [one, other] = [0, 1].map(|_| host.task(IDLE).flag("--init").start());
    let watch = host.spawn(["stats", "--watch", "--json", "--interval=100ms", one.id(), other.id()]);
    let readings = |task: &Task<'_>| watch.said().lines().filter(|line| line.contains(task.id())).count();
    let goes_on = |task: &Task<'_>| {
        let so_far = readings(task);
        eventually("two readings more", || (readings(task) > so_far + 1).then_some(()));
    };
    goes_on(&other);
    one.crash_shim();
    goes_on(&one);
    let shim = other.shim_pid();
    watch.signal(Signal::STOP);
    other.kill_shim(shim);
    let before = other.log("task.json");
    other.change_record(|record| record["identity"]["boot"] = "another".into());
    watch.signal(Signal::CONT);
    goes_on(&one);
    one.end();
    let ran = watch.finish();
    ran.assert_code(125);
    assert!(ran.err().contains(other.id()) && !ran.err().contains(one.id()), "{ran}");
    std::fs::write(other.file("task.json"), before).expect("writable");
    other.end();
}

#[test]
fn a_live_table_shows_tasks_as_they_come_and_go() {
    let host = Host::new();
    let first = host.task(IDLE).start();
    let screen = host.screen(["stats", "--watch", "--interval=100ms"]);
    screen.wait_for(first.id());
    assert_eq!(screen.modes(), (false, true), "no cursor, the other screen");
    let second = host.task(IDLE).start();
    let shown = screen.wait_for(second.id());
    assert!(shown.starts_with("ID ") && shown.lines().count() == 4, "{shown}");
    first.end();
    screen.wait_until("the first is gone", |shown| !shown.contains(first.id()) && shown.contains(second.id()));
    screen.press(["q"]);
    assert_eq!(screen.wait_for_end(), 0);
    assert_eq!(screen.modes(), (true, false));
    screen.close();
    second.end();
}

#[test]
fn a_live_view_fits_the_terminal_also_when_that_changes() {
    let host = Host::new();
    let tasks: Vec<Task<'_>> = (0..3).map(|_| host.task(IDLE).start()).collect();
    let mut command = Command::new(binary("bowline"));
    command.args(["top", "--interval=1h"]);
    let screen = host.screen_of(command, 80, 24);
    screen.wait_until("all three, with their inits", |shown| shown.lines().count() == 8);
    screen.resize(30, 4);
    screen.wait_until("one of them, cut", |shown| {
        shown.lines().count() == 4
            && shown.lines().nth(2) == Some("+5 more")
            && shown.lines().next().is_some_and(|head| head.contains("PID") && !head.contains("COMMAND"))
    });
    screen.resize(80, 24);
    screen.wait_until("all three again", |shown| shown.lines().count() == 8 && shown.contains("COMMAND"));
    screen.press(["C-c"]);
    assert_eq!(screen.wait_for_end(), 0);
    screen.close();
    end(&tasks);
}

#[test]
fn however_a_live_view_ends_the_terminal_is_as_it_was() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    for (args, key) in [("top", "q"), ("top", "C-c"), ("stats --watch", "q"), ("stats --watch", "C-c")] {
        let screen = in_shell(&host, args);
        screen.wait_for("CPU %");
        screen.press([key]);
        assert_eq!(screen.wait_for("same"), "ended with 0\nsame");
        assert_eq!(screen.modes(), (true, false));
        screen.close();
    }
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        let screen = in_shell(&host, "top");
        screen.wait_for("CPU %");
        let shell = screen.pid();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let top = std::fs::read_to_string(children).expect("the shell lives").trim().parse().expect("one child");
        kill_process(Pid::from_raw(top).expect("a pid"), signal).expect("it lives");
        assert_eq!(screen.wait_for("same"), format!("ended with {}\nsame", 128 + signal.as_raw()));
        assert_eq!(screen.modes(), (true, false));
        screen.close();
    }
    task.end();
}

#[test]
fn a_live_view_can_be_left_while_a_shim_does_not_answer() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let screen = host.screen(["stats", "--watch", "--interval=100ms"]);
    screen.wait_for(task.id());
    let shim = Pid::from_raw(task.shim_pid()).expect("a pid");
    kill_process(shim, Signal::STOP).expect("it lives");
    screen.press(["q"]);
    assert_eq!(screen.wait_for_end(), 0);
    kill_process(shim, Signal::CONT).expect("it lives");
    screen.close();
    task.end();
}

#[test]
fn top_puts_the_busiest_process_first_with_its_task_and_exec() {
    let host = Host::new();
    let tasks = [host.task(IDLE).start(), host.task(IDLE).start()];
    let busy = tasks[1].spawn_exec(["--timeout=1000s"], "echo in; while :; do :; done");
    busy.wait_for_out("in");
    let screen = host.screen(["top", "--interval=100ms"]);
    screen.wait_until("the busy one first", |shown| {
        let first: Vec<&str> = shown.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        first.get(1) == Some(&tasks[1].id()) && first.get(2) != Some(&"-") && first.last() == Some(&"sh")
    });
    screen.close();
    let rows = host.bowline(["top", "--json"]).assert_code(0).json();
    assert_eq!((&rows[0]["task"], rows.as_array().map(Vec::len)), (&tasks[1].id().into(), Some(5)), "{rows}");
    let once = host.bowline(["top", tasks[0].id()]);
    let shown = once.assert_code(0).out();
    let mut names: Vec<_> = shown.lines().skip(1).filter_map(|row| row.split(' ').next_back()).collect();
    names.sort_unstable();
    assert_eq!(names, ["bowline-init", "sleep"], "{once}");
    end(&tasks);
    busy.finish();
}

/// The tasks of a live table of `stats`, in its order.
fn order(shown: &str) -> Vec<&str> {
    let rows = shown.lines().skip(1).filter(|row| !row.starts_with("TOTAL") && !row.starts_with('+'));
    rows.filter_map(|row| row.split(' ').next()).collect()
}

#[test]
fn a_live_view_is_sorted_by_cpu_or_by_memory() {
    let host = Host::new();
    let large = host.task("head -c 30M /dev/zero >/tmp/large; echo ready; exec sleep 1000").start();
    large.wait_for_line("ready");
    let busy = host.task(BUSY).start();
    let by_cpu = vec![busy.id(), large.id()];
    let by_memory = vec![large.id(), busy.id()];
    let screen = host.screen(["stats", "--watch", "--interval=100ms"]);
    screen.wait_until("the busy one first", |shown| order(shown) == by_cpu);
    screen.press(["m"]);
    screen.wait_until("the large one first", |shown| order(shown) == by_memory);
    screen.press(["c"]);
    screen.wait_until("the busy one first again", |shown| order(shown) == by_cpu);
    screen.press(["i"]);
    let mut by_id = by_cpu.clone();
    by_id.sort_unstable();
    screen.wait_until("by their ids", |shown| order(shown) == by_id);
    screen.press(["q"]);
    assert_eq!(screen.wait_for_end(), 0);
    screen.close();
    let once = host.bowline(["stats", "--sort=memory"]).assert_code(0).out();
    assert_eq!(order(&once), by_memory, "{once}");
    let processes = host.bowline(["top", "--once", "--sort", "cpu"]).assert_code(0).out();
    assert!(processes.lines().nth(1).is_some_and(|row| row.contains(busy.id())), "{processes}");
    for command in ["top", "stats"] {
        host.bowline([command, "--sort=size"]).assert_refused(2, &["--sort"]);
    }
    end(&[large, busy]);
}

#[test]
fn a_live_view_counts_what_does_not_fit_and_has_a_line_for_all() {
    let host = Host::new();
    let tasks: Vec<Task<'_>> = (0..5).map(|_| host.task(IDLE).flag("--init=false").start()).collect();
    for (columns, rows, cut) in [(80, 6, true), (200, 50, false)] {
        for view in [&["stats", "--watch", "--interval=100ms"][..], &["top", "--interval=100ms"]] {
            let mut command = Command::new(binary("bowline"));
            command.args(view);
            let screen = host.screen_of(command, columns, rows);
            let shown = screen.wait_until("the last line is that of all", |shown| {
                shown.lines().last().is_some_and(|last| last.contains("TOTAL") && last.contains('5'))
            });
            let lines: Vec<&str> = shown.lines().collect();
            assert!(lines.iter().all(|line| line.chars().count() <= columns.into()), "{shown}");
            match cut {
                true => assert_eq!((lines.len(), lines[4]), (6, "+2 more"), "{shown}"),
                false => assert!(lines.len() == 7 && !shown.contains(" more"), "{shown}"),
            }
            screen.press(["q"]);
            assert_eq!(screen.wait_for_end(), 0);
            screen.close();
        }
    }
    end(&tasks);
}

#[test]
fn an_interval_that_would_do_nothing_else_is_refused() {
    let host = Host::new();
    for interval in ["0", "1ms", "x", ""] {
        host.bowline(["top", "--interval", interval]).assert_refused(2, &["--interval"]);
        host.bowline(["stats", "--watch", "--interval", interval]).assert_refused(2, &["--interval"]);
    }
}
