//! The calls of the task service that do something to a container that runs: signals, pauses, limits, figures.

use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Stdio, api, protobuf};
use bowline_tests::harness::{eventually, only_v2};
use protobuf::well_known_types::any::Any;
use serde_json::json;

#[test]
fn kill_sends_the_signal_to_init() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.01; done");
    running.stdout.wait_for("ready");
    running.shim.kill(&running.id, "", 10).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 5);
    running.end();
}

#[test]
fn a_signal_is_told_as_128_and_its_number() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    running.end();
}

#[test]
fn what_has_ended_cannot_be_killed() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.wait(&running.id, "").expect("an end");
    assert_eq!(running.shim.kill(&running.id, "", 9).expect_err("it has ended").code, Code::NOT_FOUND);
    // Whoever wants nobody left has it.
    running.shim.kill_all(&running.id, 9).expect("nobody is left");
    running.end();
}

#[test]
fn signal_0_asks_whether_a_process_lives() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("trap 'echo signalled' 1 2 3 15; echo ready; while :; do sleep 0.01; done");
    running.stdout.wait_for("ready");
    running.shim.kill(&running.id, "", 0).expect("it lives");
    running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    running.shim.kill(&running.id, "e", 0).expect("it lives");
    running.shim.kill_all(&running.id, 0).expect("they live");
    running.shim.kill(&running.id, "e", 9).expect("sent");
    running.shim.wait(&running.id, "e").expect("an end");
    assert_eq!(running.shim.kill(&running.id, "e", 0).expect_err("it has ended").code, Code::NOT_FOUND);
    running.shim.kill(&running.id, "", 9).expect("sent");
    running.shim.wait(&running.id, "").expect("an end");
    assert_eq!(running.shim.kill(&running.id, "", 0).expect_err("it has ended").code, Code::NOT_FOUND);
    assert_eq!(running.stdout.text(), "ready\n");
    running.end();
}

#[test]
fn kill_of_all_reaches_every_process_of_the_cgroup() {
    let host = Host::new();
    let containerd = host.containerd();
    // Init, the first of its pid namespace, does not hear a signal that it does not ask for.
    let running = containerd.run("setsid sleep 1000 & setsid sleep 1000 & echo ready; wait; echo alone; sleep 1000");
    running.stdout.wait_for("ready");
    eventually("three processes", || (running.shim.pids(&running.id).ok()?.len() == 3).then_some(()));
    running.shim.kill_all(&running.id, 15).expect("sent");
    running.stdout.wait_for("alone");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn a_created_container_can_be_killed() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    shim.kill(&bundle.id, "", 9).expect("sent");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

/// A manager that stops it would wait for its whole grace period.
#[test]
fn a_created_container_ends_by_a_signal_that_ends_processes() {
    let host = Host::new();
    let containerd = host.containerd();
    for signal in [1, 2, 15] {
        let bundle = containerd.bundle();
        let shim = containerd.start(&bundle);
        shim.create(&bundle, &Stdio::null()).expect("created");
        // WINCH ends nothing.
        shim.kill(&bundle.id, "", 28).expect("sent");
        assert_eq!(shim.status(&bundle.id, ""), "CREATED");
        shim.kill(&bundle.id, "", signal).expect("sent");
        assert!(shim.status_at_end(&bundle.id, "") > 128);
        shim.delete(&bundle.id, "").expect("deleted");
        shim.over();
    }
}

#[test]
fn pids_are_those_of_the_cgroup_and_name_the_execs() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000 & wait");
    let exec = running.shim.run_exec(&running.bundle, "e1", &["sleep", "1000"], &Stdio::null());
    eventually("three processes", || (running.shim.pids(&running.id).ok()?.len() == 3).then_some(()));
    let pids = running.shim.pids(&running.id).expect("pids");
    assert!(pids.iter().any(|(pid, exec)| pid.cast_signed() == running.pid && exec.is_none()), "{pids:?}");
    assert!(pids.contains(&(exec.unsigned_abs(), Some("e1".to_owned()))), "{pids:?}");
    running.shim.kill(&running.id, "e1", 9).expect("sent");
    running.shim.wait(&running.id, "e1").expect("an end");
    running.shim.delete(&running.id, "e1").expect("deleted");
    running.end();
}

#[test]
fn pids_follow_what_comes_and_goes() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pids = || running.shim.pids(&running.id).expect("pids").len();
    assert_eq!(pids(), 1);
    running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    assert_eq!(pids(), 2);
    running.shim.kill(&running.id, "e", 9).expect("sent");
    running.shim.wait(&running.id, "e").expect("an end");
    assert_eq!(pids(), 1);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn kill_of_all_reaches_an_exec_started_after_pids_were_read() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    assert_eq!(running.shim.pids(&running.id).expect("pids").len(), 1);
    running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    running.shim.kill_all(&running.id, 15).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 143);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn pause_freezes_and_resume_thaws() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("while :; do echo x; sleep 0.01; done");
    running.stdout.wait_for("x");
    running.shim.pause(&running.id).expect("paused");
    assert_eq!(running.shim.status(&running.id, ""), "PAUSED");
    let frozen = if only_v2() { ("", "cgroup.freeze", "1") } else { ("freezer", "freezer.state", "FROZEN") };
    assert_eq!(running.cgroup_file(frozen.0, frozen.1), frozen.2);
    running.shim.resume(&running.id).expect("resumed");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    let before = running.stdout.len();
    eventually("it goes on", || (running.stdout.len() > before).then_some(()));
    running.end();
}

#[test]
fn pause_and_resume_out_of_place_are_errors() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    shim.pause(&bundle.id).expect_err("it is not started");
    shim.resume(&bundle.id).expect_err("it is not started");
    shim.start(&bundle.id, "").expect("started");
    shim.resume(&bundle.id).expect_err("it runs");
    shim.pause(&bundle.id).expect("paused");
    shim.pause(&bundle.id).expect_err("it is paused");
    shim.resume(&bundle.id).expect("resumed");
    shim.kill(&bundle.id, "", 9).expect("sent");
    shim.wait(&bundle.id, "").expect("an end");
    shim.pause(&bundle.id).expect_err("it has ended");
    shim.resume(&bundle.id).expect_err("it has ended");
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn a_paused_container_can_be_killed() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.pause(&running.id).expect("paused");
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    assert_eq!(running.shim.status(&running.id, ""), "STOPPED");
    running.end();
}

#[test]
fn update_changes_limits_of_what_runs() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let limit = 64 << 20;
    running.shim.update(&running.id, &json!({ "memory": { "limit": limit } })).expect("updated");
    let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    assert_eq!(running.cgroup_file("memory", file), limit.to_string());
    running.end();
}

#[test]
fn a_memory_limit_that_is_lifted_takes_the_one_with_swap_along() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").memory(64 << 20);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.shim.update(&running.id, &json!({ "memory": { "limit": -1 } })).expect("updated");
    let files: &[&str] = if only_v2() {
        &["memory.max", "memory.swap.max"]
    } else {
        &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    };
    for file in files {
        let value = running.cgroup_file("memory", file);
        assert!(value == "max" || value.parse::<u64>().is_ok_and(|most| most > 1 << 62), "{file}: {value}");
    }
    running.end();
}

#[test]
fn update_of_what_has_ended_is_an_error() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.wait(&running.id, "").expect("an end");
    running.shim.update(&running.id, &json!({ "memory": { "limit": 64 << 20 } })).expect_err("it has ended");
    running.end();
}

#[test]
fn stats_come_in_the_type_of_the_cgroup_version() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let stats = running.shim.stats(&running.id).expect("stats");
    if only_v2() {
        use containerd_shim_protos::cgroups_v2::metrics::Metrics;
        assert_eq!(stats.type_url, "io.containerd.cgroups.v2.Metrics");
        let metrics = <Metrics as protobuf::Message>::parse_from_bytes(&stats.value).expect("metrics");
        assert!(metrics.pids.current >= 1 && metrics.memory.usage > 0 && metrics.cpu.usage_usec > 0, "{metrics:?}");
        assert!(metrics.memory.usage_limit > 1 << 62, "{metrics:?}");
    } else {
        use containerd_shim_protos::cgroups::metrics::Metrics;
        assert_eq!(stats.type_url, "io.containerd.cgroups.v1.Metrics");
        let metrics = <Metrics as protobuf::Message>::parse_from_bytes(&stats.value).expect("metrics");
        assert!(metrics.pids.current >= 1 && metrics.memory.usage.usage > 0 && metrics.cpu.usage.total > 0);
        assert!(metrics.memory.usage.limit > 1 << 62, "{metrics:?}");
    }
    running.end();
}

#[test]
fn stats_after_the_end_are_the_last_reading_until_delete() {
    let host = Host::new();
    if host.reference_fails("it answers with zeros on v1") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exec dd if=/dev/zero of=/dev/null bs=256M count=1").memory(64 << 20);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    // At once, as containerd asks to learn whether memory ran out, and when nothing is left to be read.
    let first = oom_kills(&running.shim.stats(&running.id).expect("stats"));
    for (controller, _) in bowline_tests::harness::hierarchies() {
        let cgroup = running.cgroup(controller.split(',').next().unwrap_or_default());
        eventually("its cgroup goes", || (!cgroup.exists()).then_some(()));
    }
    let last = oom_kills(&running.shim.stats(&running.id).expect("stats"));
    assert!(first >= 1 && last == first, "{first} {last}");
    running.shim.delete(&running.id, "").expect("deleted");
    assert_eq!(running.shim.stats(&running.id).expect_err("deleted").code, Code::NOT_FOUND);
    running.shim.over();
}

/// How many processes the OOM killer has killed.
fn oom_kills(stats: &Any) -> u64 {
    if stats.type_url == "io.containerd.cgroups.v2.Metrics" {
        use containerd_shim_protos::cgroups_v2::metrics::Metrics;
        let metrics = <Metrics as protobuf::Message>::parse_from_bytes(&stats.value).expect("metrics");
        return metrics.memory_events.oom_kill;
    }
    use containerd_shim_protos::cgroups::metrics::Metrics;
    <Metrics as protobuf::Message>::parse_from_bytes(&stats.value).expect("metrics").memory_oom_control.oom_kill
}

#[test]
fn no_terminal_to_resize_and_no_stdin_to_close_are_no_error() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.resize(&running.id, "", 100, 30).expect("nothing to do");
    running.shim.close_stdin(&running.id, "").expect("nothing to do");
    running.end();
}

#[test]
fn a_checkpoint_without_criu_fails_and_names_what_is_missing() {
    let host = Host::new();
    if host.reference_fails("where there is no criu in its PATH, it finds no runc either") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    // Where nobody finds criu, and all else is.
    let bin = host.work().join("bin");
    std::fs::create_dir(&bin).expect("the work folder is writable");
    let mut command = containerd.command(&bundle, &["start"]);
    command.env("PATH", &bin);
    containerd.read_log(&bundle);
    let (succeeded, said) = containerd.answer_of(command, &[]);
    let said = String::from_utf8(said).expect("an address");
    assert!(succeeded, "{said}");
    let shim = containerd.dial(Path::new(said.strip_prefix("unix://").expect("an address")));
    shim.run(&bundle, &Stdio::null());
    let path = host.work().join("image").to_str().expect("ASCII").to_owned();
    let request = api::CheckpointTaskRequest { id: bundle.id.clone(), path, ..Default::default() };
    let answer = shim.send::<protobuf::well_known_types::empty::Empty>("Checkpoint", &request).wait();
    let failure = answer.expect_err("there is no criu");
    assert_eq!(failure.code, Code::FAILED_PRECONDITION, "{failure:?}");
    assert!(failure.message.to_lowercase().contains("criu"), "{failure:?}");
    assert_eq!(shim.status(&bundle.id, ""), "RUNNING");
    shim.end(&bundle.id);
}

#[test]
fn what_its_shim_knows_can_be_asked_for() {
    let host = Host::new();
    if host.reference_fails("it tells nobody what it knows") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let socket = running.shim.socket.to_str().expect("ASCII");
    let address = format!("unix://{socket}");
    for address in [socket, &address] {
        let facts = host.bowline(["inspect", "--facts", "--address", address]).assert_code(0).json();
        assert_eq!(facts["tasks"][&running.id]["life"], "running");
        let known = &facts["containerd"]["containers"][&running.id];
        assert_eq!((&known["init"]["status"], &known["init"]["exit"]), (&"running".into(), &json!(null)));
        assert_eq!(facts["containerd"]["namespace"], containerd.namespace());
        assert!(facts["containerd"]["events"]["waiting"].is_array(), "{facts}");
        let connections = facts["connections"].as_array().expect("a list");
        assert!(connections.iter().any(|one| one["open"][0]["method"] == "Facts"), "{connections:?}");
    }
    host.bowline(["inspect", "--facts", "--address", "/nowhere"]).assert_refused(125, &["/nowhere"]);
    host.bowline(["inspect", "--address", socket]).assert_refused(2, &["--facts"]);
    running.end();
}
