//! The calls of the task service about a container: what each does, at its edges too, and with which code it fails.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Stdio, api, protobuf};
use bowline_tests::harness::{eventually, process_exists};
use serde_json::json;

/// How containerd's shims write that there is no time: absent, or Go's zero.
fn is_no_time(time: &protobuf::MessageField<protobuf::well_known_types::timestamp::Timestamp>) -> bool {
    time.as_ref().is_none_or(|time| time.seconds == -62_135_596_800)
}

#[test]
fn a_container_is_created_started_waited_for_and_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 7");
    let shim = containerd.start(&bundle);
    let pid = shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 7);
    let deleted = shim.delete(&bundle.id, "").expect("deleted");
    assert_eq!((deleted.pid, deleted.exit_status), (pid.unsigned_abs(), 7));
    assert!(!is_no_time(&deleted.exited_at));
    assert_eq!(shim.state(&bundle.id, "").expect_err("it is gone").code, Code::NOT_FOUND);
    shim.over();
}

#[test]
fn create_leaves_its_notes_in_the_bundle() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created");
    assert_eq!(bundle.read("init.pid"), pid.to_string());
    for name in ["options.json", "runtime"] {
        let metadata = bundle.path.join(name).metadata().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    shim.end(&bundle.id);
}

#[test]
fn init_does_not_run_before_it_is_started() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo runs; sleep 1000");
    let shim = containerd.start(&bundle);
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    shim.create(&bundle, &io).expect("created");
    assert_eq!(shim.status(&bundle.id, ""), "CREATED");
    assert_eq!(stdout.text(), "");
    shim.start(&bundle.id, "").expect("started");
    stdout.wait_for("runs");
    assert_eq!(shim.status(&bundle.id, ""), "RUNNING");
    shim.end(&bundle.id);
}

#[test]
fn a_second_create_of_an_id_is_refused_and_the_first_lives_on() {
    let host = Host::new();
    if host.reference_fails("it hands on what runc says, with the code UNKNOWN") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let failure = running.shim.create(&running.bundle, &Stdio::null()).expect_err("it is there");
    assert_eq!(failure.code, Code::ALREADY_EXISTS, "{failure:?}");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    assert_eq!(running.exec("e", "echo alive").1, "alive\n");
    running.end();
}

#[test]
fn a_command_that_cannot_run_fails_create_as_docker_expects() {
    let host = Host::new();
    let containerd = host.containerd();
    for (command, text) in [("nowhere", "executable file not found"), ("/etc/passwd", "permission denied")] {
        let bundle = containerd.bundle().args(&[command]);
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err(command);
        assert!(failure.message.contains("OCI runtime create failed: "), "{failure:?}");
        assert!(failure.message.contains(text), "{failure:?}");
        assert_eq!(shim.state(&bundle.id, "").expect_err("there is none").code, Code::NOT_FOUND);
        shim.over();
    }
}

#[test]
fn a_failed_create_can_be_repeated_once_the_reason_is_gone() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["nowhere"]);
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect_err("there is no such command");
    let bundle = bundle.script("exit 3");
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 3);
    shim.end(&bundle.id);
}

#[test]
fn a_container_cannot_be_started_twice() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.start(&running.id, "").expect_err("it runs");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn what_has_ended_cannot_be_started() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.wait(&running.id, "").expect("an end");
    running.shim.start(&running.id, "").expect_err("it has ended");
    running.end();
}

#[test]
fn start_answers_though_init_has_ended_before() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["/bin/true"]);
    let shim = containerd.start(&bundle);
    for _ in 0..10 {
        shim.run(&bundle, &Stdio::null());
        assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
        shim.delete(&bundle.id, "").expect("deleted");
    }
    shim.over();
}

#[test]
fn a_running_container_cannot_be_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.delete(&running.id, "").expect_err("it runs");
    assert!(process_exists(running.pid));
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn a_container_that_was_never_started_can_be_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created").cast_signed();
    shim.delete(&bundle.id, "").expect("deleted");
    eventually("init is gone", || (!process_exists(pid)).then_some(()));
    shim.over();
}

#[test]
fn a_second_delete_finds_nothing_and_does_no_harm() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.wait(&running.id, "").expect("an end");
    running.shim.delete(&running.id, "").expect("deleted");
    assert_eq!(running.shim.delete(&running.id, "").expect_err("gone").code, Code::NOT_FOUND);
    running.shim.over();
}

#[test]
fn every_call_about_an_unknown_container_says_so() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let shim = &running.shim;
    let process = running.bundle.process(&["true"]);
    let calls = [
        ("State", shim.state("x", "").err()),
        ("Start", shim.start("x", "").err()),
        ("Delete", shim.delete("x", "").err()),
        ("Pids", shim.pids("x").err()),
        ("Pause", shim.pause("x").err()),
        ("Resume", shim.resume("x").err()),
        ("Kill", shim.kill("x", "", 9).err()),
        ("Exec", shim.exec("x", "e", &process, &Stdio::null()).err()),
        ("ResizePty", shim.resize("x", "", 80, 25).err()),
        ("CloseIO", shim.close_stdin("x", "").err()),
        ("Update", shim.update("x", &json!({})).err()),
        ("Wait", shim.wait("x", "").err()),
        ("Stats", shim.stats("x").err()),
    ];
    for (call, failure) in calls {
        assert_eq!(failure.unwrap_or_else(|| panic!("{call} succeeds")).code, Code::NOT_FOUND, "{call}");
    }
    running.end();
}

#[test]
fn every_call_about_an_unknown_exec_says_so() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let (shim, id) = (&running.shim, running.id.as_str());
    let calls = [
        ("State", shim.state(id, "x").err()),
        ("Start", shim.start(id, "x").err()),
        ("Delete", shim.delete(id, "x").err()),
        ("Kill", shim.kill(id, "x", 9).err()),
        ("ResizePty", shim.resize(id, "x", 80, 25).err()),
        ("Wait", shim.wait(id, "x").err()),
    ];
    for (call, failure) in calls {
        assert_eq!(failure.unwrap_or_else(|| panic!("{call} succeeds")).code, Code::NOT_FOUND, "{call}");
    }
    running.end();
}

#[test]
fn the_stdin_of_an_unknown_exec_cannot_be_closed() {
    let host = Host::new();
    if host.reference_fails("CloseIO forgets to say NotFound in gRPC's code: it is UNKNOWN") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    assert_eq!(running.shim.close_stdin(&running.id, "x").expect_err("there is none").code, Code::NOT_FOUND);
    running.end();
}

#[test]
fn all_who_wait_are_told() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let waiters: Vec<_> = (0..20).map(|_| running.shim.wait_later(&running.id, "")).collect();
    let elsewhere = containerd.dial(&running.shim.socket);
    let far = elsewhere.wait_later(&running.id, "");
    running.shim.kill(&running.id, "", 9).expect("sent");
    for waiter in waiters.into_iter().chain([far]) {
        let answer = waiter.wait().expect("an end");
        assert_eq!(answer.exit_status, 137);
        assert!(!is_no_time(&answer.exited_at));
    }
    drop(elsewhere);
    running.end();
}

#[test]
fn wait_answers_at_once_when_the_end_has_been() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 9");
    running.wait_for_end();
    let first = running.shim.wait(&running.id, "").expect("an end");
    let second = running.shim.wait(&running.id, "").expect("the same end");
    assert_eq!((first.exit_status, &first.exited_at), (9, &second.exited_at));
    running.end();
}

#[test]
fn whoever_waits_may_hang_up() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.pid();
    let fds = || bowline_tests::harness::fds_of(pid).len();
    let before = running.shim.settled_fds();
    for _ in 0..20 {
        let other = containerd.dial(&running.shim.socket);
        let _unanswered = other.wait_later(&running.id, "");
        other.assert_alive();
    }
    eventually("the connections are closed", || (fds() <= before).then_some(()));
    running.end();
}

#[test]
fn state_says_what_create_was_told_and_how_it_goes() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let state = running.shim.state(&running.id, "").expect("a state");
    let path = |name: &str| running.bundle.path.join(name).to_str().expect("ASCII").to_owned();
    assert_eq!(state.id, running.id);
    assert_eq!(Path::new(&state.bundle), running.bundle.path);
    assert_eq!(state.pid.cast_signed(), running.pid);
    assert_eq!((state.stdin.clone(), state.stdout.clone(), state.stderr.clone()), {
        (String::new(), path("init-stdout"), path("init-stderr"))
    });
    assert!(!state.terminal);
    assert!(is_no_time(&state.exited_at), "{state:?}");
    running.shim.kill(&running.id, "", 15).expect("sent");
    running.shim.kill(&running.id, "", 9).expect("sent");
    running.shim.wait(&running.id, "").expect("an end");
    let state = running.shim.state(&running.id, "").expect("a state");
    assert_eq!(format!("{:?}", state.status.enum_value()), "Ok(STOPPED)");
    assert_eq!(state.exit_status, 137);
    assert!(!is_no_time(&state.exited_at), "{state:?}");
    running.end();
}

#[test]
fn connect_tells_who_is_there_even_of_unknown_ids() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let answer = running.shim.connect(&running.id).expect("connected");
    assert_eq!(answer.task_pid.cast_signed(), running.pid);
    let unknown = running.shim.connect("unknown").expect("connected");
    assert_eq!((unknown.shim_pid, unknown.task_pid), (answer.shim_pid, 0));
    assert!(process_exists(answer.shim_pid.cast_signed()));
    running.end();
}

#[test]
fn shutdown_does_nothing_while_a_container_remains() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.shutdown(&running.id).expect("nothing to do");
    running.shim.shutdown(&running.id).expect("nothing to do");
    running.shim.wait(&running.id, "").expect("an end");
    running.shim.shutdown(&running.id).expect("nothing to do: it is not deleted");
    running.shim.assert_alive();
    running.end();
}

#[test]
fn both_versions_of_the_service_are_on_one_socket() {
    let host = Host::new();
    if host.reference_fails("containerd 1.6 and 1.7 have version 2 alone") {
        return;
    }
    let containerd = host.containerd();
    let mut running = containerd.run("sleep 1000");
    running.shim.service = "containerd.task.v3.Task";
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    assert_eq!(running.exec("e", "exit 3").0, 3);
    running.end();
}

#[test]
fn an_unknown_call_is_unimplemented_and_the_shim_lives() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let failure = running.shim.send::<api::StateResponse>("Nonsense", &api::StateRequest::new()).wait();
    assert_eq!(failure.expect_err("there is none").code, Code::UNIMPLEMENTED);
    running.shim.assert_alive();
    running.end();
}
