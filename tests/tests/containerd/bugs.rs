//! Bugs that shims for containerd have shipped, each with the test that would have caught it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Input, Output, Stdio, api, is_reference, make_fifo};
use bowline_tests::harness::{eventually, fds_of, is_slow, only_v2, patience, process_exists};
use serde_json::json;

/// How often, unless the machine is slow.
fn times(usual: usize, slow: usize) -> usize {
    if is_slow() { slow } else { usual }
}

/// How soon containerd wants State answered.
const STATE_WITHIN: Duration = Duration::from_secs(2);

#[track_caller]
fn assert_state_is_answered(shim: &bowline_tests::harness::containerd::Shim, id: &str) {
    let request = api::StateRequest { id: id.into(), ..Default::default() };
    let answer = shim.send::<api::StateResponse>("State", &request).wait_for(STATE_WITHIN);
    assert!(answer.is_some(), "State was not answered within {STATE_WITHIN:?}");
}

#[test]
fn bug_01_every_exit_is_reported_though_containerd_was_away() {
    let host = Host::new();
    if host.reference_fails("it tries each event five times and then drops it") {
        return;
    }
    let count = times(500, 100);
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    containerd.events.stop();
    for number in 0..count {
        let exec = format!("e{number}");
        running.shim.run_exec(&running.bundle, &exec, &["/bin/true"], &Stdio::null());
        assert_eq!(running.shim.status_at_end(&running.id, &exec), 0);
        running.shim.delete(&running.id, &exec).expect("deleted");
    }
    containerd.events.come_back();
    containerd.events.wait_for(&running.id, &format!("exit e{}", count - 1));
    let told = containerd.events.of(&running.id);
    let exits: Vec<_> = told.iter().filter(|event| event.starts_with("exit ")).cloned().collect();
    let expected: Vec<_> = (0..count).map(|number| format!("exit e{number}")).collect();
    assert_eq!(exits, expected);
    running.end();
}

#[test]
fn bug_02_an_end_that_races_the_start_of_an_exec_is_told() {
    let host = Host::new();
    let containerd = host.containerd();
    for round in 0..times(30, 5) {
        let running = containerd.run("sleep 1000");
        let process = running.bundle.process(&["sleep", "1000"]);
        for exec in ["e1", "e2"] {
            running.shim.exec(&running.id, exec, &process, &Stdio::null()).expect("added");
        }
        let waiter = running.shim.wait_later(&running.id, "");
        let starts = [running.shim.start_later(&running.id, "e1"), running.shim.start_later(&running.id, "e2")];
        let pid = rustix::process::Pid::from_raw(running.pid).expect("a pid");
        // At another moment of the starts in every other round.
        if round % 2 == 1 {
            containerd.events.wait_for(&running.id, "exec-started e1");
        }
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("init lives");
        assert_eq!(waiter.wait().expect("an end").exit_status, 137);
        for start in starts {
            // Whether it has come about does not matter; there is an answer.
            assert!(start.wait_for(patience()).is_some());
        }
        containerd.events.wait_for(&running.id, "exit");
        for exec in ["e1", "e2"] {
            // One that did not start has no end that is told.
            assert!(running.shim.wait_later(&running.id, exec).wait_for(patience()).is_some());
            running.shim.delete(&running.id, exec).expect("deleted");
        }
        running.shim.delete(&running.id, "").expect("deleted");
        running.shim.over();
    }
}

#[test]
fn bug_02_an_end_before_start_blocks_nobody() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created");
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("init is held");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    shim.start(&bundle.id, "").expect_err("it has ended");
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn bug_03_the_exit_of_init_is_told_last() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let shim = containerd.start(&bundle);
    for round in 1..=times(100, 10) {
        shim.run(&bundle, &Stdio::null());
        shim.run_exec(&bundle, "e", &["sleep", "1000"], &Stdio::null());
        shim.kill(&bundle.id, "", 9).expect("sent");
        shim.wait(&bundle.id, "e").expect("an end");
        shim.delete(&bundle.id, "e").expect("deleted");
        shim.wait(&bundle.id, "").expect("an end");
        shim.delete(&bundle.id, "").expect("deleted");
        eventually("its last event", || {
            let told = containerd.events.of(&bundle.id);
            (told.iter().filter(|event| *event == "delete").count() == round).then_some(())
        });
    }
    let mut all = containerd.events.of(&bundle.id);
    if is_reference() {
        // On v1 it takes the removal of a cgroup for a kill, now and then.
        all.retain(|event| event != "oom");
    }
    let expected = ["create", "start", "exec-added e", "exec-started e", "exit e", "exit", "delete"];
    for (round, told) in all.chunks(expected.len()).enumerate() {
        assert_eq!(told, expected, "round {round}");
    }
    shim.over();
}

#[test]
fn bug_04_no_exit_of_many_fast_execs_is_lost() {
    let host = Host::new();
    if host.reference_fails("one of them hangs, as the bug says") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let process = running.bundle.process(&["/bin/sh", "-c", "exit 3"]);
    let ids: Vec<String> = (0..64).map(|number| format!("e{number}")).collect();
    for id in &ids {
        running.shim.exec(&running.id, id, &process, &Stdio::null()).expect("added");
    }
    let waiters: Vec<_> = ids.iter().map(|id| running.shim.wait_later(&running.id, id)).collect();
    let starts: Vec<_> = ids.iter().map(|id| running.shim.start_later(&running.id, id)).collect();
    for start in starts {
        assert!(start.wait().expect("started").pid > 0);
    }
    for waiter in waiters {
        assert_eq!(waiter.wait().expect("an end").exit_status, 3);
    }
    for id in &ids {
        containerd.events.wait_for(&running.id, &format!("exit {id}"));
        running.shim.delete(&running.id, id).expect("deleted");
    }
    running.end();
}

/// Streams whose logger is not ready for as long as nobody opens the gate.
fn gated(bundle: &Bundle) -> (PathBuf, Stdio) {
    let gate = bundle.path.join("gate");
    make_fifo(&gate);
    let logger = bundle.path.join("logger");
    let script = format!("read line <{}; exec 5>&-; cat <&3 >/dev/null", gate.display());
    fs::write(&logger, script).expect("the work folder is writable");
    (gate, Stdio::uri(&format!("binary:///bin/sh?{}=x", logger.display())))
}

#[test]
fn bug_06_a_create_whose_caller_gives_up_is_seen_through() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["/nowhere"]);
    let (gate, io) = gated(&bundle);
    let shim = containerd.start(&bundle);
    let patience = Duration::from_millis(100);
    let create = shim.send_within::<api::CreateTaskResponse>(patience, "Create", &shim.creation(&bundle, &io));
    let mut gate = Input::open(&gate);
    assert_eq!(create.wait().expect_err("nobody opens").code, Code::DEADLINE_EXCEEDED);
    gate.write("\n");
    // It fails, and nothing of it is left that would keep the shim.
    eventually("the end of the create", || {
        shim.state(&bundle.id, "").is_err_and(|failure| failure.code == Code::NOT_FOUND).then_some(())
    });
    shim.over();
}

#[test]
fn bug_05_state_is_answered_while_a_create_stalls() {
    let host = Host::new();
    if host.reference_fails("one lock for Create and State") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 0");
    let (gate, io) = gated(&bundle);
    let shim = containerd.start(&bundle);
    let create = shim.send::<api::CreateTaskResponse>("Create", &shim.creation(&bundle, &io));
    let mut gate = Input::open(&gate);
    assert_state_is_answered(&shim, &bundle.id);
    shim.assert_alive();
    gate.write("\n");
    create.wait().expect("created");
    shim.start(&bundle.id, "").expect("started");
    shim.end(&bundle.id);
}

#[test]
fn bug_06_a_delete_whose_caller_has_gone_is_seen_through() {
    let host = Host::new();
    let containerd = host.containerd();
    for _ in 0..10 {
        let bundle = containerd.bundle().script("exit 0").rootfs_aside("lower");
        let shim = containerd.start(&bundle);
        let mut request = shim.creation(&bundle, &Stdio::null());
        let source = bundle.path.join("lower").to_str().expect("ASCII").to_owned();
        request.rootfs =
            vec![api::Mount { type_: "bind".into(), source, options: vec!["rbind".into()], ..Default::default() }];
        shim.create_by(&request).expect("created");
        shim.start(&bundle.id, "").expect("started");
        shim.wait(&bundle.id, "").expect("an end");
        let hasty = containerd.dial(&shim.socket);
        let unanswered = hasty.delete_later(&bundle.id, "");
        drop((unanswered, hasty));
        // The first one, or this one if the first has not arrived.
        let _ = shim.delete(&bundle.id, "");
        eventually("it is gone", || shim.state(&bundle.id, "").err());
        eventually("it is unmounted", || (fs::read_dir(bundle.rootfs()).ok()?.count() == 0).then_some(()));
        shim.over();
    }
}

#[test]
fn bug_07_no_output_is_lost_at_a_fast_exit() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("head -c 1000000 /dev/zero; echo; echo end");
    let shim = containerd.start(&bundle);
    for round in 0..times(200, 20) {
        let io = bundle.fifos(&format!("r{round}"));
        let (stdout, _stderr) = io.open();
        shim.run(&bundle, &io);
        shim.wait(&bundle.id, "").expect("an end");
        shim.delete(&bundle.id, "").expect("deleted");
        eventually("the end of the output", || stdout.has_ended().then_some(()));
        let bytes = stdout.bytes();
        assert_eq!(bytes.len(), 1_000_005, "round {round}");
        assert!(bytes.ends_with(b"\nend\n"), "round {round}");
    }
    shim.over();
}

#[test]
fn bug_07_no_output_of_an_exec_is_lost_either() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for round in 0..times(50, 10) {
        let (status, text) = running.exec(&format!("e{round}"), "head -c 1000000 /dev/zero; echo; echo end");
        assert_eq!((status, text.len()), (0, 1_000_005), "round {round}");
    }
    running.end();
}

#[test]
fn bug_08_a_log_that_cannot_be_written_to_holds_nobody_up() {
    let host = Host::new();
    if host.reference_fails("it does, as the bug says") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("trap '' PIPE; head -c 3000000 /dev/zero; exit 0");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::uri("file:///dev/full"));
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    shim.end(&bundle.id);
}

#[test]
fn bug_08_an_unread_container_can_be_killed_and_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run("yes");
    running.stdout.wait_for("y\ny\n");
    let path = running.bundle.path.join("init-stderr");
    drop(std::mem::replace(&mut running.stdout, Output::open_paused(&path)));
    assert_state_is_answered(&running.shim, &running.id);
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    // Within the drain of ten seconds, and some.
    let deleted = running.shim.delete_later(&running.id, "").wait_for(Duration::from_secs(20));
    deleted.expect("an answer").expect("deleted");
    running.shim.over();
}

#[test]
fn bug_09_failed_starts_leave_no_fds() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.pid();
    let mut process = running.bundle.process(&["nowhere"]);
    let fail = |exec: &str, process: &serde_json::Value, io: &Stdio| {
        let _outputs = io.open();
        let added = running.shim.exec(&running.id, exec, process, io);
        added.expect("added");
        running.shim.start(&running.id, exec).expect_err("there is none");
        running.shim.delete(&running.id, exec).expect("deleted");
    };
    let mut before = 0;
    for round in 0..times(100, 20) {
        let io = running.bundle.fifos_with_stdin(&format!("p{round}"));
        process["terminal"] = json!(false);
        fail("e", &process, &io);
        let io = running.bundle.fifos_of_terminal(&format!("t{round}"));
        process["terminal"] = json!(true);
        fail("e", &process, &io);
        if round == 4 {
            before = running.shim.settled_fds();
        }
    }
    eventually("no more fds than before", || (fds_of(pid).len() <= before + 2).then_some(()));
    running.end();
}

#[test]
fn bug_09_failed_creates_leave_no_fds() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["nowhere"]);
    let shim = containerd.start(&bundle);
    let pid = shim.pid();
    let mut before = 0;
    for round in 0..times(100, 20) {
        let io = bundle.fifos_with_stdin(&format!("p{round}"));
        let _outputs = io.open();
        shim.create(&bundle, &io).expect_err("there is no such command");
        if round == 4 {
            before = fds_of(pid).len();
        }
    }
    eventually("no more fds than before", || (fds_of(pid).len() <= before + 2).then_some(()));
    shim.over();
}

#[test]
fn bug_10_a_kill_by_the_pods_own_limit_is_told_before_the_exit() {
    let host = Host::new();
    if !only_v2() {
        // v1 has no cgroup.subtree_control, and its own test.
        return host.assert_nothing_left();
    }
    let containerd = host.containerd();
    let limit: u64 = 64 << 20;
    let parent = std::path::Path::new("/sys/fs/cgroup").join(host.prefix());
    fs::create_dir(&parent).expect("root may");
    fs::write(parent.join("memory.max"), limit.to_string()).expect("root may");
    fs::write(parent.join("memory.swap.max"), "0").expect("root may");
    let bundle = containerd.bundle().memory(limit).script("exec dd if=/dev/zero of=/dev/null bs=256M count=1");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    containerd.events.wait_for(&bundle.id, "exit");
    assert_eq!(containerd.events.of(&bundle.id), ["create", "start", "oom", "exit"]);
    shim.end(&bundle.id);
}

#[test]
fn bug_10_a_kill_of_init_is_told_each_time_and_before_the_exit() {
    let host = Host::new();
    if host.reference_fails("on v1 it takes the removal of a cgroup for a kill, now and then") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().memory(64 << 20).script("exec dd if=/dev/zero of=/dev/null bs=256M count=1");
    let shim = containerd.start(&bundle);
    for round in 1..=times(20, 3) {
        shim.run(&bundle, &Stdio::null());
        assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
        shim.delete(&bundle.id, "").expect("deleted");
        eventually("its last event", || {
            let told = containerd.events.of(&bundle.id);
            (told.iter().filter(|event| *event == "delete").count() == round).then_some(())
        });
    }
    for (round, told) in containerd.events.of(&bundle.id).chunks(5).enumerate() {
        assert_eq!(told, ["create", "start", "oom", "exit", "delete"], "round {round}");
    }
    shim.over();
}

#[test]
fn bug_11_a_stdin_that_nobody_reads_holds_nobody_up() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_with_stdin("sleep 1000");
    let mut stdin = running.stdin.take().expect("a FIFO");
    let writer = std::thread::spawn(move || {
        // Until there is no room, and then until the reader has gone.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stdin.write(vec![b'x'; 1_000_000])));
    });
    for number in 0..5 {
        assert_state_is_answered(&running.shim, &running.id);
        assert_eq!(running.exec(&format!("e{number}"), "exit 2").0, 2);
    }
    running.shim.remove(&running.id);
    running.shim.over();
    writer.join().expect("it ends with the reader");
}

#[test]
fn bug_12_no_shim_is_left_when_the_pause_container_ends_first() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let new = || containerd.bundle().script("sleep 1000").annotation("io.kubernetes.cri.sandbox-id", &group);
    let (pause, app) = (new(), new());
    let shim = containerd.start(&pause);
    shim.run(&pause, &Stdio::null());
    let second = containerd.start(&app);
    second.run(&app, &Stdio::null());
    let pid = shim.pid();
    shim.kill(&pause.id, "", 9).expect("sent");
    shim.wait(&pause.id, "").expect("an end");
    shim.delete(&pause.id, "").expect("deleted");
    shim.shutdown(&pause.id).expect("nothing to do: one remains");
    assert_eq!(second.status(&app.id, ""), "RUNNING");
    second.remove(&app.id);
    let _ = second.shutdown(&app.id);
    eventually("the shim ends", || (!process_exists(pid)).then_some(()));
}
