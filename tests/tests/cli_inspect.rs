//! What is known of tasks, and templates for it.

use bowline_tests::Host;

#[test]
fn a_template_is_filled_for_each_task() {
    let host = Host::new();
    let (running, ended) = (host.task("exec sleep 1000").start(), host.task("exit 3").start());
    ended.wait();
    let ran =
        host.bowline(["inspect", running.id(), ended.id(), "--format", "{{.id}} {{ status }} {{ exit.exit_code }}"]);
    ran.assert_says(&format!("{} running \n{} exited 3", running.id(), ended.id()));
    running.bowline("inspect", ["-f", "{{ pid }}"]).assert_says(&running.pid().to_string());
    running.bowline("inspect", ["-f", "{{ task.args | json }}"]).assert_says("[\"-c\",\"exec sleep 1000\"]");
    running.end();
    host.assert_nothing_left();
}

#[test]
fn a_field_that_there_is_not_is_named() {
    let host = Host::new();
    let task = host.task("exit 3").start();
    task.wait();
    for (template, name) in
        [("{{ pidd }}", "pidd"), ("{{.exit.code}}", "exit.code"), ("{{ task.memory.limits }}", "task.memory.limits")]
    {
        task.bowline("inspect", ["--format", template]).assert_refused(2, &["--format", name]);
    }
    // Known, but not said of this task.
    task.bowline("inspect", ["--format={{ task.memory.limit }}"]).assert_says("");
    for template in ["{{", "{{ id | nonsense }}", "{% if %}"] {
        task.bowline("inspect", ["--format", template]).assert_refused(2, &["--format"]);
    }
    host.assert_nothing_left();
}

#[test]
fn of_several_tasks_it_is_a_list_of_those_that_there_are() {
    let host = Host::new();
    let (one, two) = (host.task("true").start(), host.task("true").start());
    one.wait();
    two.wait();
    let ran = host.bowline(["inspect", two.id(), "nobody", one.id()]);
    let found = ran.assert_code(125).json();
    assert_eq!((&found[0]["id"], &found[1]["id"]), (&two.id().into(), &one.id().into()));
    assert!(ran.err().contains("nobody"), "{ran}");
    host.assert_nothing_left();
}

#[test]
fn start_can_answer_as_json() {
    let host = Host::new();
    let id = host.new_id();
    let started = host.bowline(["start", "--json", "--name", &id, "--", "sleep", "1000"]).assert_code(0).json();
    let task = host.adopt(&id);
    assert_eq!((&started["id"], &started["pid"]), (&id.as_str().into(), &task.pid().into()));
    task.end();
    host.assert_nothing_left();
}
