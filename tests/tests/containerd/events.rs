//! Events to containerd: what each says, their order, and that they arrive though containerd was away.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Output, Stdio, api, protobuf};
use bowline_tests::harness::eventually;
use containerd_shim_protos::events::task::{TaskCreate, TaskExit};
use jiff::Timestamp;
use protobuf::Message as _;
use serde_json::json;

#[test]
fn a_containers_life_is_told_in_order() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 3");
    let pid = running.pid.unsigned_abs();
    let id = running.id.clone();
    let ended = running.shim.wait(&id, "").expect("an end");
    running.shim.delete(&id, "").expect("deleted");
    containerd.events.wait_for(&id, "delete");
    assert_eq!(containerd.events.of(&id), ["create", "start", "exit", "delete"]);
    for event in containerd.events.all() {
        assert_eq!((event.namespace.as_str(), event.pid), (containerd.namespace(), pid), "{event:?}");
    }
    let exit = containerd.events.wait_for(&id, "exit");
    let delete = containerd.events.wait_for(&id, "delete");
    assert_eq!((exit.status, exit.exited_at), (3, ended.exited_at.clone().into_option()));
    assert_eq!((delete.status, delete.exited_at), (3, ended.exited_at.into_option()));
    let exit = TaskExit::parse_from_bytes(&exit.content.value).expect("a TaskExit");
    assert_eq!((&exit.id, &exit.container_id), (&id, &id));
    running.shim.over();
}

#[test]
fn an_exit_is_of_when_init_was_reaped_though_a_hook_still_runs() {
    let host = Host::new();
    let containerd = host.containerd();
    let (gate, at) = (host.work().join("gate"), host.work().join("at"));
    let hook = format!("until [ -e {} ]; do sleep 0.05; done; touch {}", gate.display(), at.display());
    let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", hook]});
    let bundle = containerd.bundle().script("exit 3").edit(|config| config["hooks"] = json!({"poststart": [hook]}));
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created");
    let started = shim.start_later(&bundle.id, "");
    eventually("init was reaped", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    shim.exec(&bundle.id, "late", &bundle.process(&["/bin/true"]), &Stdio::null()).expect("described");
    let refused = shim.start(&bundle.id, "late").expect_err("nothing runs there");
    assert!(refused.message.contains("exited") || refused.message.contains("stopped"), "{refused:?}");
    let opened_at = Timestamp::now();
    fs::write(&gate, "").expect("the test's own");
    started.wait().expect("started");
    let exit = containerd.events.wait_for(&bundle.id, "exit").exited_at.expect("a time");
    assert!(fs::read(&at).is_ok(), "it was told before the hook had ended");
    assert!((exit.seconds, exit.nanos) < (opened_at.as_second(), opened_at.subsec_nanosecond()), "{exit} {opened_at}");
    shim.end(&bundle.id);
}

#[test]
fn create_is_told_with_all_that_was_asked_for() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().rootfs_aside("lower");
    let shim = containerd.start(&bundle);
    let io = bundle.fifos_with_stdin("init");
    let _outputs = io.open();
    let mut request = shim.creation(&bundle, &io);
    request.rootfs = vec![api::Mount {
        type_: "bind".into(),
        source: bundle.path.join("lower").to_str().expect("ASCII").into(),
        options: vec!["rbind".into()],
        ..Default::default()
    }];
    let pid = shim.create_by(&request).expect("created");
    let event = containerd.events.wait_for(&bundle.id, "create");
    let told = TaskCreate::parse_from_bytes(&event.content.value).expect("a TaskCreate");
    assert_eq!((told.container_id.as_str(), told.pid), (bundle.id.as_str(), pid));
    assert_eq!(told.bundle, request.bundle);
    assert_eq!((told.rootfs.len(), &told.rootfs[0].source), (1, &request.rootfs[0].source));
    assert_eq!((&told.io.stdin, &told.io.stdout, &told.io.stderr), (&io.stdin, &io.stdout, &io.stderr));
    shim.end(&bundle.id);
}

#[test]
fn an_execs_life_is_told_in_order() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", "exit 4"], &Stdio::null());
    running.shim.wait(&running.id, "e").expect("an end");
    let exit = containerd.events.wait_for(&running.id, "exit e");
    assert_eq!((exit.status, exit.pid.cast_signed()), (4, pid));
    assert_eq!(containerd.events.wait_for(&running.id, "exec-started e").pid.cast_signed(), pid);
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!(containerd.events.of(&running.id), ["create", "start", "exec-added e", "exec-started e", "exit e"]);
    running.end();
}

#[test]
fn pause_and_resume_are_told() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.pause(&running.id).expect("paused");
    running.shim.resume(&running.id).expect("resumed");
    containerd.events.wait_for(&running.id, "resumed");
    assert_eq!(containerd.events.of(&running.id), ["create", "start", "paused", "resumed"]);
    running.end();
}

#[test]
fn what_did_not_start_is_not_told_to_have_started() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let process = running.bundle.process(&["nowhere"]);
    running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect("added");
    running.shim.start(&running.id, "e").expect_err("there is none");
    running.shim.delete(&running.id, "e").expect("deleted");
    running.shim.pause(&running.id).expect("paused");
    containerd.events.wait_for(&running.id, "paused");
    assert!(!containerd.events.of(&running.id).contains(&"exec-started e".to_owned()));
    running.end();
}

#[test]
fn a_failed_create_is_not_told() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["nowhere"]);
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect_err("there is no such command");
    let bundle = bundle.script("exit 0");
    shim.run(&bundle, &Stdio::null());
    containerd.events.wait_for(&bundle.id, "exit");
    assert_eq!(containerd.events.of(&bundle.id), ["create", "start", "exit"]);
    shim.end(&bundle.id);
}

#[test]
fn the_exits_of_execs_are_told_before_that_of_init() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for exec in ["e1", "e2", "e3"] {
        running.shim.run_exec(&running.bundle, exec, &["sleep", "1000"], &Stdio::null());
    }
    running.shim.kill(&running.id, "", 9).expect("sent");
    containerd.events.wait_for(&running.id, "exit");
    let mut exits = containerd.events.of(&running.id).split_off(8);
    exits[..3].sort_unstable();
    assert_eq!(exits, ["exit e1", "exit e2", "exit e3", "exit"]);
    running.end();
}

#[test]
fn without_a_pid_namespace_exits_of_execs_still_come_first() {
    let host = Host::new();
    if host.reference_fails("init's exit is told before those of execs") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000 & exec sleep 1000").without_namespace("pid");
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    for exec in ["e1", "e2"] {
        running.shim.run_exec(&running.bundle, exec, &["sleep", "1000"], &Stdio::null());
    }
    running.shim.kill(&running.id, "", 9).expect("sent");
    containerd.events.wait_for(&running.id, "exit");
    let mut exits = containerd.events.of(&running.id).split_off(6);
    exits[..2].sort_unstable();
    assert_eq!(exits, ["exit e1", "exit e2", "exit"]);
    running.end();
}

#[test]
fn each_exit_is_told_once() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for number in 0..20 {
        assert_eq!(running.exec(&format!("e{number}"), "exit 0").0, 0);
    }
    let id = running.id.clone();
    running.end();
    let all = containerd.events.of(&id);
    let exits: Vec<_> = all.iter().filter(|event| event.starts_with("exit")).collect();
    assert_eq!(exits.len(), 21, "{exits:?}");
}

#[test]
fn events_while_containerd_is_away_arrive_when_it_is_back() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    containerd.events.wait_for(&running.id, "start");
    containerd.events.stop();
    let expected: Vec<_> = (0..5)
        .flat_map(|number| {
            assert_eq!(running.exec(&format!("e{number}"), "exit 0").0, 0);
            ["exec-added", "exec-started", "exit"].map(|what| format!("{what} e{number}"))
        })
        .collect();
    containerd.events.come_back();
    containerd.events.wait_for(&running.id, "exit e4");
    eventually("all of it", || (containerd.events.of(&running.id).len() >= 17).then_some(()));
    let mut told = containerd.events.of(&running.id).split_off(2);
    if bowline_tests::harness::containerd::is_reference() {
        // It tries each of them again by itself, in whatever order.
        told.sort_unstable_by_key(|event| expected.iter().position(|one| one == event));
    }
    assert_eq!(told, expected);
    running.end();
}

#[test]
fn no_call_waits_for_a_containerd_that_hangs() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    containerd.events.hang();
    for number in 0..5 {
        assert_eq!(running.exec(&format!("e{number}"), "exit 0").0, 0);
    }
    let pid = running.shim.pid();
    containerd.events.go_on();
    containerd.events.wait_for(&running.id, "exit e4");
    assert_eq!(running.shim.pid(), pid);
    running.end();
}

#[test]
fn a_shim_lives_though_there_was_never_a_containerd_to_tell() {
    let host = Host::new();
    let containerd = host.containerd();
    containerd.events.stop();
    let running = containerd.run("echo ready; sleep 1000");
    running.stdout.wait_for("ready");
    assert_eq!(running.exec("e", "exit 2").0, 2);
    containerd.events.come_back();
    containerd.events.wait_for(&running.id, "create");
    containerd.events.wait_for(&running.id, "exit e");
    running.end();
}

#[test]
fn after_delete_all_output_has_been_written() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo last words");
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    let stdout = Output::open(io.stdout.as_ref());
    let _stderr = Output::open(io.stderr.as_ref());
    shim.run(&bundle, &io);
    containerd.events.wait_for(&bundle.id, "exit");
    shim.delete(&bundle.id, "").expect("deleted");
    assert_eq!(stdout.to_end(), "last words\n");
    shim.over();
}
