//! OOM kills: told, and before the exit.

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;

const LIMIT: u64 = 64 << 20;
/// Wants four times as much.
const GREEDY: &str = "dd if=/dev/zero of=/dev/null bs=256M count=1";

#[test]
fn an_oom_kill_of_a_container_is_reported_before_its_exit() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(&format!("exec {GREEDY}")).memory(LIMIT);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    containerd.events.wait_for(&bundle.id, "exit");
    assert_eq!(containerd.events.of(&bundle.id), ["create", "start", "oom", "exit"]);
    shim.end(&bundle.id);
}

#[test]
fn a_kill_of_a_child_is_told_while_the_container_lives_on() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(&format!("{GREEDY}; echo $?; sleep 1000")).memory(LIMIT);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.stdout.wait_for("137");
    containerd.events.wait_for(&running.id, "oom");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn an_exec_killed_for_want_of_memory_is_told() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").memory(LIMIT);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    assert_eq!(running.exec("e", &format!("exec {GREEDY}")).0, 137);
    containerd.events.wait_for(&running.id, "oom");
    running.end();
}

#[test]
fn a_kill_by_somebody_is_none_for_want_of_memory() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").memory(LIMIT);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.shim.kill(&running.id, "", 9).expect("sent");
    let id = running.id.clone();
    running.end();
    assert_eq!(containerd.events.of(&id), ["create", "start", "exit", "delete"]);
}

#[test]
fn an_end_for_another_reason_is_never_reported_as_an_oom_kill() {
    let host = Host::new();
    if host.reference_fails("on v1 it takes the removal of a cgroup for a kill, now and then") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 0").memory(LIMIT);
    let shim = containerd.start(&bundle);
    for _ in 0..30 {
        shim.run(&bundle, &Stdio::null());
        shim.wait(&bundle.id, "").expect("an end");
        shim.delete(&bundle.id, "").expect("deleted");
    }
    shim.over();
    host.assert_nothing_left();
    assert!(!containerd.events.of(&bundle.id).contains(&"oom".to_owned()));
}
