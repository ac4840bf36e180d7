//! What is known of tasks.

use bowline_tests::Host;

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
