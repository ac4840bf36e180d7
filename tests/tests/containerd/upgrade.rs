//! The program of containerd's shim is replaced while its containers run, and containerd notices nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, OldShim, Output, Pod, Shim, Stdio, api, make_fifo};
use bowline_tests::harness::cri::parent_of;
use bowline_tests::harness::versions::{stand_in, state_of, upgrade_containerds};
use bowline_tests::harness::{binary, eventually, fds_of, process_exists};
use serde_json::{Value, json};

const SHIM: &str = "containerd-shim-bowline-v1";

/// Shell commands that wait until [`go`] is called.
const UNTIL_GO: &str = "until [ -e /go ]; do sleep 0.02; done; rm /go; ";

/// Has a container go on that waits for it.
fn go(pid: i32) {
    fs::write(format!("/proc/{pid}/root/go"), "").expect("root may");
}

fn has_taken_over(shim: i32) -> bool {
    let command = fs::read_to_string(format!("/proc/{shim}/cmdline")).expect("the shim lives");
    command.contains("take-over")
}

/// Everything that a shim knows, as `bowline inspect --facts` prints it.
fn facts(host: &Host, bundle: &Bundle) -> Value {
    host.bowline(["inspect", "--facts", "--address", bundle.read("address").trim()]).assert_code(0).json()
}

/// Upgrades the only shim, whose id this is.
#[track_caller]
fn upgrade(host: &Host, containerd: &Containerd<'_>, shim: &Shim, id: &str) {
    let pid = shim.pid();
    let ran = upgrade_containerds(host, &state_of(host, containerd), &[]);
    ran.assert_says(&format!("{}/{id}", containerd.namespace()));
    assert_eq!(shim.pid(), pid, "over the same connection, of the same process");
    assert!(has_taken_over(pid));
}

#[test]
fn calls_streams_and_events_go_on() {
    let host = Host::new();
    let containerd = host.containerd();
    // Without limits of its own it has those of containerd.
    let bundle = containerd.bundle().edit(|config| config["process"]["rlimits"] = json!([])).script(&format!(
        "ulimit -n; read line; echo \"got $line\"; {UNTIL_GO} echo more; echo err >&2; read line; echo \"got $line\"; exit 6"
    ));
    let io = bundle.fifos_with_stdin("init");
    let mut running = containerd.run_with(bundle, &io);
    let (id, shim) = (running.id.clone(), &running.shim);
    running.stdout.wait_for("\n");
    let files = running.stdout.text();
    let stdin = running.stdin.as_mut().expect("asked for");
    stdin.write("one\n");
    running.stdout.wait_for("got one");
    let waits = [shim.wait_later(&id, ""), shim.wait_later(&id, "")];
    upgrade(&host, &containerd, shim, &id);
    assert_eq!(
        (shim.status(&id, "").as_str(), shim.connect(&id).expect("an answer").task_pid),
        ("RUNNING", running.pid.cast_unsigned())
    );
    assert_eq!(parent_of(running.pid), Some(shim.pid()));
    go(running.pid);
    running.stdout.wait_for("more");
    running.stderr.as_ref().expect("a FIFO").wait_for("err");
    // What a process may open is as it was before.
    assert_eq!(running.exec("files", "ulimit -n"), (0, files));
    upgrade(&host, &containerd, shim, &id);
    running.stdin.as_mut().expect("asked for").write("two\n");
    running.stdout.wait_for("got two");
    for wait in waits {
        assert_eq!(wait.wait().expect("an end").exit_status, 6);
    }
    containerd.events.wait_for(&id, "exit");
    let told = ["create", "start", "exec-added files", "exec-started files", "exit files", "exit"];
    assert_eq!(containerd.events.of(&id), told);
    running.end();
}

#[test]
fn a_shim_of_before_there_were_upgrades_says_so_and_what_to_do() {
    let host = Host::new();
    let containerd = host.containerd();
    let (running, other) = (containerd.run("exec sleep 1000"), containerd.run("exec sleep 1000"));
    let (state, id) = (state_of(&host, &containerd), format!("{}/{}", containerd.namespace(), running.id));
    let old = OldShim::in_place_of(&running.shim.socket);
    let ran = upgrade_containerds(&host, &state, &[]);
    let told = ran.err();
    for part in [id.as_str(), "runs on as it was", "too old to be upgraded", "kubectl rollout restart"] {
        assert!(ran.code == Some(1) && told.contains(part), "{part}: {ran}");
    }
    assert!(!told.contains("UNIMPLEMENTED"), "{ran}");
    // The others are upgraded all the same.
    assert_eq!(ran.out(), format!("{}/{}", containerd.namespace(), other.id));
    assert!(has_taken_over(other.shim.pid()) && !has_taken_over(running.shim.pid()));
    drop(old);
    other.shim.end(&other.id);
    running.end();
}

#[test]
fn a_stopped_shim_is_given_up_and_the_others_are_upgraded() {
    let host = Host::new();
    let containerd = host.containerd();
    let (running, other) = (containerd.run("exec sleep 1000"), containerd.run("exec sleep 1000"));
    let (state, id) = (state_of(&host, &containerd), format!("{}/{}", containerd.namespace(), running.id));
    let shim = rustix::process::Pid::from_raw(running.shim.pid()).expect("a pid");
    rustix::process::kill_process(shim, rustix::process::Signal::STOP).expect("it lives");
    let ran = upgrade_containerds(&host, &state, &[]);
    assert!(ran.code == Some(1) && ran.err().contains(&id) && ran.err().contains("not answering"), "{ran}");
    assert_eq!(ran.out(), format!("{}/{}", containerd.namespace(), other.id));
    rustix::process::kill_process(shim, rustix::process::Signal::CONT).expect("it lives");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    assert!(has_taken_over(other.shim.pid()) && !has_taken_over(running.shim.pid()));
    other.shim.end(&other.id);
    running.end();
}

#[test]
fn a_call_that_has_come_in_part_is_answered() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let other = containerd.dial(&running.shim.socket);
    let request = api::StateRequest { id: running.id.clone(), ..Default::default() };
    let service = "containerd.task.v2.Task";
    let pending = other.client.send_in_two::<api::StateResponse>(service, "State", &request, || {
        // One is the harness's, one asks for this.
        eventually("the connection is there", || {
            (facts(&host, &running.bundle)["connections"].as_array()?.len() >= 3).then_some(())
        });
        upgrade(&host, &containerd, &running.shim, &running.id);
    });
    assert_eq!(pending.wait().expect("answered").pid, running.pid.cast_unsigned());
    running.end();
}

#[test]
fn slow_readers_lose_nothing_and_delete_still_ends_the_output() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let (bundle, shim, id) = (&running.bundle, &running.shim, &running.id);
    let io = bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    stdout.pause();
    // More than both pipes hold, and somebody who keeps the output open.
    let script = format!("sleep 1000 & seq 1 30000; {UNTIL_GO} echo done; exit 3");
    let pid = shim.run_exec(bundle, "e", &["/bin/sh", "-c", &script], &io);
    let wait = shim.wait_later(id, "e");
    upgrade(&host, &containerd, shim, id);
    stdout.resume();
    stdout.wait_for("30000\n");
    go(running.pid);
    assert_eq!(wait.wait().expect("an end").exit_status, 3);
    assert!(!process_exists(pid));
    // It has ended and is known still; what it has left holds its output open.
    upgrade(&host, &containerd, shim, id);
    assert!(!stdout.has_ended());
    shim.delete(id, "e").expect("deleted");
    let expected: String = (1..=30000).map(|n| format!("{n}\n")).chain(["done\n".to_owned()]).collect();
    assert!(stdout.to_end() == expected);
    running.end();
}

#[test]
fn a_logger_goes_on_and_its_process_with_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let logger = "cd \"$(dirname \"$0\")\"; trap '' TERM; cat <&3 >out 5>&- & cat <&4 >err 5>&- & exec 5>&-; wait; echo over >over";
    let script = format!("echo one; {UNTIL_GO} echo two; echo err >&2; exit 5");
    let bundle = containerd.bundle().script(&script);
    let path = bundle.path.join("logger");
    fs::write(&path, logger).expect("the work folder is writable");
    let io = Stdio::uri(&format!("binary:///bin/sh?{}=word", path.display()));
    let shim = containerd.start(&bundle);
    let pid = shim.run(&bundle, &io);
    let wait = shim.wait_later(&bundle.id, "");
    upgrade(&host, &containerd, &shim, &bundle.id);
    // Of an exec too.
    let exec = shim.run_exec(&bundle, "e", &["/bin/sh", "-c", "echo of an exec; sleep 0.2"], &io);
    upgrade(&host, &containerd, &shim, &bundle.id);
    assert_eq!(shim.status_at_end(&bundle.id, "e"), 0, "{exec}");
    go(pid);
    assert_eq!(wait.wait().expect("an end").exit_status, 5);
    eventually("the logger has all", || {
        let both = bundle.path.join("over").exists();
        (both && bundle.read("err") == "err\n").then_some(())
    });
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn terminals_and_files_stay_connected() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_at_terminal("while read line; do echo \"got $line\"; done");
    let (shim, id) = (&running.shim, &running.id);
    running.stdin.as_mut().expect("a terminal has one").write("one\n");
    running.stdout.wait_for("got one");
    let file = host.work().join("exec.log");
    let io = Stdio::uri(&format!("file://{}", file.display()));
    // A daemon that an exec leaves behind goes on writing into the file.
    let script = format!("(echo begun; {UNTIL_GO} echo later) & exit 0");
    shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", &script], &io);
    assert_eq!(shim.status_at_end(id, "e"), 0);
    shim.delete(id, "e").expect("deleted");
    upgrade(&host, &containerd, shim, id);
    running.stdin.as_mut().expect("a terminal has one").write("two\n");
    running.stdout.wait_for("got two");
    shim.resize(id, "", 100, 40).expect("resized");
    go(running.pid);
    eventually("the daemon wrote", || fs::read_to_string(&file).unwrap_or_default().contains("later").then_some(()));
    running.end();
}

/// On v1 a frozen process ends only once it is thawed, or moved away from where it is frozen.
#[test]
fn an_exec_killed_by_name_while_frozen_ends() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let (bundle, shim, id) = (&running.bundle, &running.shim, &running.id);
    let execs = ["a", "b", "c", "d"];
    for exec in execs {
        shim.run_exec(bundle, exec, &["/bin/sleep", "1000"], &Stdio::null());
    }
    shim.pause(id).expect("paused");
    for exec in execs {
        // The shim has no time to see that it is frozen.
        shim.kill(id, exec, 9).expect("sent");
        upgrade(&host, &containerd, shim, id);
        assert_eq!(shim.status_at_end(id, exec), 137, "{exec}");
    }
    assert_eq!(shim.status(id, ""), "PAUSED");
    shim.resume(id).expect("resumed");
    running.end();
}

#[test]
fn a_container_that_was_created_starts_afterwards() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo runs; exit 4");
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    let (stdout, _stderr) = io.open();
    let pid = shim.create(&bundle, &io).expect("created");
    upgrade(&host, &containerd, &shim, &bundle.id);
    assert_eq!(shim.status(&bundle.id, ""), "CREATED");
    assert_eq!(shim.start(&bundle.id, ""), Ok(pid));
    assert_eq!(shim.status_at_end(&bundle.id, ""), 4);
    assert_eq!(stdout.to_end(), "runs\n");
    shim.end(&bundle.id);
}

#[test]
fn events_still_to_be_sent_arrive_once_and_in_order() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let (bundle, shim, id) = (&running.bundle, &running.shim, &running.id);
    containerd.events.wait_for(id, "start");
    containerd.events.hang();
    for exec in ["a", "b", "c"] {
        shim.run_exec(bundle, exec, &["/bin/true"], &Stdio::null());
        assert_eq!(shim.status_at_end(id, exec), 0);
    }
    upgrade(&host, &containerd, shim, id);
    shim.run_exec(bundle, "d", &["/bin/true"], &Stdio::null());
    assert_eq!(shim.status_at_end(id, "d"), 0);
    containerd.events.go_on();
    let exits = || containerd.events.of(id).into_iter().filter(|event| event.contains("exit")).collect::<Vec<_>>();
    eventually("all have arrived", || (exits().len() >= 4).then_some(()));
    let told = exits();
    let names: Vec<bool> = ["a", "b", "c", "d"].iter().zip(&told).map(|(name, event)| event.contains(name)).collect();
    assert_eq!((names, told.len()), (vec![true; 4], 4), "{told:?}");
    running.end();
}

#[test]
fn a_sandbox_and_its_members_go_on() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { network: 2, hostname: "web-0", ..Pod::default() });
    let state = state_of(&host, &containerd);
    let says = format!("{}/{}", containerd.namespace(), sandbox.id);
    // Without a member first, when containerd alone says whose shim it is.
    let binary = binary(SHIM);
    fs::write(sandbox.bundle.path.join("shim-binary-path"), binary.to_str().expect("ASCII")).expect("writable");
    let wait = sandbox.wait_later();
    assert_eq!(upgrade_containerds(&host, &state, &[]).assert_code(0).out(), says);
    let members: Vec<Bundle> = (0..3)
        .map(|number| {
            let bundle = containerd.bundle().script(&format!("{UNTIL_GO} exit {}", 5 + number));
            let member = sandbox.member(bundle, &["ipc", "uts"]);
            // As containerd does for each container of a pod.
            fs::write(member.path.join("address"), sandbox.bundle.read("address")).expect("writable");
            member
        })
        .collect();
    let pids: Vec<i32> = members.iter().map(|member| sandbox.run(member)).collect();
    let waits: Vec<_> = members.iter().map(|member| sandbox.shim.wait_later(&member.id, "")).collect();
    assert_eq!(upgrade_containerds(&host, &state, &[members[1].id.as_str()]).assert_code(0).out(), says);
    sandbox.ping().expect("it is ready");
    assert_eq!(sandbox.status().expect("an answer").pid, sandbox.pid.cast_unsigned());
    for (number, (pid, wait)) in (5..).zip(pids.iter().zip(waits)).take(2) {
        go(*pid);
        assert_eq!(wait.wait().expect("an end").exit_status, number);
    }
    assert_eq!(sandbox.shim.status(&members[2].id, ""), "RUNNING");
    sandbox.stop(0).expect("stopped");
    wait.wait().expect("the end of the sandbox");
    sandbox.end();
}

#[test]
fn nothing_changes_where_the_program_cannot_take_over() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run(&format!("{UNTIL_GO} echo done; exit 3"));
    let state = state_of(&host, &containerd);
    let (shim, pid) = (&running.shim, running.shim.pid());
    let held = || fds_of(pid).len();
    let before = shim.settled_fds();
    let refused = |program: &Path, why: &str| {
        let ran = upgrade_containerds(&host, &state, &["--shim", program.to_str().expect("ASCII")]);
        assert!(ran.code != Some(0) && ran.err().contains(why), "{why}: {ran}");
        assert!(ran.err().contains("runs on as it was"), "{ran}");
    };
    refused(&PathBuf::from("/bin/true"), "it is no shim of bowline");
    refused(&binary("bowline-shim"), "not the shim for this manager");
    refused(&binary("bowline"), "it is no shim of bowline");
    refused(&stand_in(&host, SHIM, "facts=4;"), "it reads facts of version 3 to 4, and this shim writes 1 and 2");
    refused(&stand_in(&host, SHIM, "facts=2!;"), "this program cannot go on");
    let unknown = upgrade_containerds(&host, &state, &["nobody"]);
    assert!(unknown.code == Some(125) && unknown.err().contains("named nobody"), "{unknown}");
    eventually("nothing is left open", || (held() == before).then_some(()));
    upgrade_containerds(&host, &state, &["--dry-run"]).assert_code(0);
    assert_eq!(shim.status(&running.id, ""), "RUNNING");
    go(running.pid);
    assert_eq!(shim.status_at_end(&running.id, ""), 3);
    assert_eq!(running.stdout.to_end(), "done\n");
    running.end();
}

#[test]
fn what_an_older_version_has_no_place_for_is_refused_by_name() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let (state, first) = (state_of(&host, &containerd), stand_in(&host, SHIM, "facts=1;"));
    let (shim, id) = (&running.shim, &running.id);
    let to_first = || upgrade_containerds(&host, &state, &["--shim", first.to_str().expect("ASCII")]);
    let io = running.bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", "echo begun; exec sleep 1000"], &io);
    stdout.wait_for("begun");
    let refused = to_first();
    assert!(refused.code != Some(0) && refused.err().contains("output that a manager can end"), "{refused}");
    shim.kill(id, "e", 9).expect("it runs");
    assert_eq!(shim.status_at_end(id, "e"), 137);
    shim.delete(id, "e").expect("deleted");
    to_first().assert_code(0);
    assert_eq!(shim.status(id, ""), "RUNNING");
    upgrade(&host, &containerd, shim, id);
    assert_eq!(running.exec("after", "echo in"), (0, "in\n".to_owned()));
    running.end();
}

#[test]
fn calls_are_answered_while_the_shim_is_busy() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    // An exec whose FIFO nobody opens: its start waits for a reader, for some seconds.
    let (bundle, shim, id) = (&running.bundle, &running.shim, &running.id);
    let fifo = bundle.path.join("unread");
    make_fifo(&fifo);
    let io = Stdio { stdout: fifo.to_str().expect("ASCII").to_owned(), ..Stdio::null() };
    shim.exec(id, "e", &bundle.process(&["/bin/true"]), &io).expect("added");
    let start = shim.start_later(id, "e");
    let upgrade = host.spawn(["upgrade", &format!("--containerd={}", state_of(&host, &containerd).display())]);
    eventually("the upgrade is begun", || (facts(&host, bundle)["shim"]["upgrades"]["begun"] == 1).then_some(()));
    let state = shim.send::<api::StateResponse>("State", &api::StateRequest { id: id.clone(), ..Default::default() });
    assert!(state.wait_for(Duration::from_secs(2)).is_some(), "containerd waits two seconds for it");
    assert!(!has_taken_over(shim.pid()));
    let _reader = Output::open(&fifo);
    start.wait().expect("started");
    upgrade.finish().assert_code(0);
    assert!(has_taken_over(shim.pid()));
    assert_eq!(shim.status_at_end(id, "e"), 0);
    running.end();
}
