//! `--json`: each object says the version of its form.

use bowline_tests::Host;
use serde_json::Value;

/// Whether it is an object that says its form, or a list of such.
fn says_its_form(value: &Value) -> bool {
    match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(says_its_form),
        object => object["format"] == 1,
    }
}

#[test]
fn every_output_says_the_version_of_its_form() {
    let host = Host::new();
    let task = host.task("echo hi; exec sleep 1000").start();
    let other = host.task("exec sleep 1000").start();
    let sandbox = host.sandbox().create();
    let (id, of_both) = (task.id(), [task.id(), other.id()]);
    let cgroup = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    for args in [
        &["inspect", id][..],
        &["inspect", of_both[0], of_both[1]],
        &["inspect", "--facts", id],
        &["ps", "--json"],
        &["stats", "--json", id],
        &["stats", "--json"],
        &["top", "--json"],
        &["explain", "--json", id],
        &["doctor", "--json"],
        &["exec", "--json", id, "true"],
        &["cgroup", "usage", "--json", &cgroup],
        &["cgroup", "show", "--json", &cgroup],
        &["cgroup", "name", "--json", "--sandbox", "x"],
        &["sandbox", "inspect", sandbox.id()],
        &["sandbox", "ls", "--json"],
        &["sandbox", "stats", "--json", sandbox.id()],
        &["run", "--rm", "--json", "true"],
    ] {
        let ran = host.bowline(args);
        assert!(says_its_form(&ran.json()), "{ran}");
    }
    let ran = host.bowline(["events", "--json", id]);
    let lines: Vec<Value> = ran.out().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(!lines.is_empty() && lines.iter().all(says_its_form), "{ran}");
    // Whoever reads these has another version to look at.
    for args in [&["logs", "--json", id][..], &["schema"], &["schema", "--limits"]] {
        let ran = host.bowline(args);
        assert!(!ran.assert_code(0).out().contains("\"format\": 1"), "{ran}");
    }
    task.end();
    other.end();
    for args in [&["wait", "--json", id][..], &["wait", "--json", of_both[0], of_both[1]]] {
        let ran = host.bowline(args);
        assert!(says_its_form(&ran.json()), "{ran}");
    }
    let started = host.new_id();
    let ran = host.bowline(["start", "--json", "--name", &started, "true"]);
    assert!(says_its_form(&ran.json()), "{ran}");
    host.adopt(&started).wait();
    sandbox.rm([]);
}
