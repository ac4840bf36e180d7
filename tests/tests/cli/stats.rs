//! `stats` of several tasks.

use bowline_tests::Host;
use bowline_tests::harness::Task;
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";
const BUSY: &str = "while :; do :; done";

fn end(tasks: &[Task<'_>]) {
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn stats_of_several_or_of_all_that_run_are_a_line_each() {
    let host = Host::new();
    let tasks = [host.task(IDLE).flag("--memory=64M").start(), host.task(BUSY).start(), host.task("true").start()];
    tasks[2].wait();
    for args in [&["stats"][..], &["stats", tasks[1].id(), tasks[0].id()]] {
        let ran = host.bowline(args);
        let out = ran.assert_code(0).out();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3, "{ran}");
        assert!(lines[0].starts_with("ID ") && lines[0].contains("MEM USAGE / LIMIT"), "{ran}");
        assert!(lines[1].starts_with(tasks[0].id()) && lines[1].contains("/ 64MiB"), "{ran}");
        assert!(lines[2].starts_with(tasks[1].id()), "{ran}");
    }
    let all = host.bowline(["stats", "--json"]).assert_code(0).json();
    let ids: Vec<&Value> = all.as_array().expect("a list").iter().map(|reading| &reading["id"]).collect();
    assert_eq!(ids, [tasks[0].id(), tasks[1].id()]);
    assert!(all[1]["cpu_percent"].as_f64() > Some(5.0), "{all}");
    end(&tasks);
}

#[test]
fn stats_of_one_that_has_ended_and_one_that_runs_tell_both() {
    let host = Host::new();
    let tasks = [host.task(IDLE).start(), host.task("true").start()];
    tasks[1].wait();
    let ran = host.bowline(["stats", tasks[0].id(), tasks[1].id()]);
    ran.assert_code(125);
    assert!(ran.out().contains(tasks[0].id()) && ran.err().contains(tasks[1].id()), "{ran}");
    end(&tasks);
}

#[test]
fn a_task_that_is_removed_meanwhile_is_no_failure_of_its_shim() {
    let host = Host::new();
    for _ in 0..10 {
        let task = host.task("exec sleep 1000").start();
        let readers =
            [&["stats", task.id()][..], &["stats", "--json", task.id()], &["stats"]].map(|args| host.spawn(args));
        task.bowline("rm", ["-f"]).assert_code(0);
        for ran in readers.map(|reader| reader.finish()) {
            let gone = ["there is no task named", "has exited"].iter().any(|why| ran.err().contains(why));
            assert!(ran.code == Some(0) || ran.code == Some(125) && gone, "{ran}");
        }
    }
    host.assert_nothing_left_without_rm();
}
