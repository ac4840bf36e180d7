//! Execs through the task service.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Input, Output, Running, Stdio, make_fifo};
use bowline_tests::harness::{Process, copy_program, eventually, hierarchies, namespace_of, patience, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Adds an exec of `args` that is not started.
#[track_caller]
fn add(running: &Running<'_>, exec: &str, args: &[&str]) {
    let process = running.bundle.process(args);
    running.shim.exec(&running.id, exec, &process, &Stdio::null()).expect("added");
}

/// Runs an exec of this process to its end: its stdout.
#[track_caller]
fn output_of(running: &Running<'_>, exec: &str, process: &Value) -> String {
    let io = running.bundle.fifos(exec);
    let (stdout, _stderr) = io.open();
    running.shim.exec(&running.id, exec, process, &io).expect("added");
    running.shim.start(&running.id, exec).expect("started");
    running.shim.wait(&running.id, exec).expect("an end");
    running.shim.delete(&running.id, exec).expect("deleted");
    stdout.to_end()
}

#[test]
fn an_exec_has_its_own_output_and_status() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, stderr) = io.open();
    let script = ["/bin/sh", "-c", "echo out; echo err >&2; exit 6"];
    let pid = running.shim.run_exec(&running.bundle, "e", &script, &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 6);
    assert_eq!(running.shim.status(&running.id, "e"), "STOPPED");
    let deleted = running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!((deleted.pid.cast_signed(), deleted.exit_status), (pid, 6));
    assert_eq!((stdout.to_end().as_str(), stderr.expect("a FIFO").to_end().as_str()), ("out\n", "err\n"));
    assert_eq!(running.stdout.text(), "");
    running.end();
}

#[test]
fn exec_only_reserves_the_id() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["sleep", "1000"]);
    assert_eq!(running.shim.pids(&running.id).expect("pids").len(), 1);
    let state = running.shim.state(&running.id, "e").expect("a state");
    assert_eq!((state.pid, format!("{:?}", state.status.enum_value())), (0, "Ok(CREATED)".to_owned()));
    assert!([&state.id, &state.exec_id].contains(&&"e".to_owned()), "{state:?}");
    running.shim.delete(&running.id, "e").expect("what was never started can be deleted");
    running.end();
}

#[test]
fn an_id_that_is_taken_is_free_again_after_delete() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["/bin/true"]);
    let process = running.bundle.process(&["/bin/true"]);
    let failure = running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect_err("it is taken");
    assert_eq!(failure.code, Code::ALREADY_EXISTS);
    running.shim.start(&running.id, "e").expect("started");
    running.shim.wait(&running.id, "e").expect("an end");
    let failure = running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect_err("it is not deleted");
    assert_eq!(failure.code, Code::ALREADY_EXISTS);
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!(running.exec("e", "echo again"), (0, "again\n".to_owned()));
    running.end();
}

#[test]
fn a_created_container_takes_execs() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo started");
    let shim = containerd.start(&bundle);
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    let init = shim.create(&bundle, &io).expect("created");
    let process = bundle.process(&["/bin/sh", "-c", "echo from within; readlink /proc/self/ns/pid"]);
    let own = namespace_of(init.cast_signed(), "pid");
    let exec = bundle.fifos("e");
    let (said, _stderr) = exec.open();
    shim.exec(&bundle.id, "e", &process, &exec).expect("added");
    shim.start(&bundle.id, "e").expect("started");
    assert_eq!(shim.status_at_end(&bundle.id, "e"), 0);
    shim.delete(&bundle.id, "e").expect("deleted");
    assert_eq!(said.to_end(), format!("from within\n{own}\n"));
    assert_eq!(shim.status(&bundle.id, ""), "CREATED");
    shim.start(&bundle.id, "").expect("started");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    assert_eq!(stdout.to_end(), "started\n");
    shim.end(&bundle.id);
}

#[test]
fn a_paused_container_takes_no_exec() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.pause(&running.id).expect("paused");
    let process = running.bundle.process(&["/bin/true"]);
    running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect_err("it is paused");
    running.shim.resume(&running.id).expect("resumed");
    assert_eq!(running.exec("e", "echo now"), (0, "now\n".to_owned()));
    running.end();
}

#[test]
fn an_exec_as_an_invalid_id_is_refused_and_the_container_lives() {
    let host = Host::new();
    if host.reference_fails("runc has its own words") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for (user, named) in [
        (json!({ "uid": u32::MAX, "gid": 0 }), "process.user.uid"),
        (json!({ "uid": 0, "gid": u32::MAX }), "process.user.gid"),
        (json!({ "uid": 0, "gid": 0, "additionalGids": [u32::MAX] }), "additionalGids"),
    ] {
        let mut process = running.bundle.process(&["/bin/true"]);
        process["user"] = user;
        let added = running.shim.exec(&running.id, "e", &process, &Stdio::null());
        let failure = added.and_then(|_| running.shim.start(&running.id, "e")).expect_err("there is no such id");
        assert!(failure.code == Code::INVALID_ARGUMENT && failure.message.contains(named), "{failure:?}");
        let _ = running.shim.delete(&running.id, "e");
    }
    assert_eq!(running.exec("f", "echo now"), (0, "now\n".to_owned()));
    running.end();
}

#[test]
fn a_container_that_has_ended_takes_no_exec() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exit 0");
    running.shim.wait(&running.id, "").expect("an end");
    let process = running.bundle.process(&["/bin/true"]);
    running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect_err("it has ended");
    running.end();
}

#[test]
fn an_exec_added_before_the_end_of_init_does_not_start_after_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["/bin/true"]);
    running.shim.kill(&running.id, "", 9).expect("sent");
    running.shim.wait(&running.id, "").expect("an end");
    running.shim.start(&running.id, "e").expect_err("init has ended");
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn starting_an_exec_after_init_ended_is_a_failed_precondition() {
    let host = Host::new();
    if host.reference_fails("containerd 1.6 hands on what runc says, with the code UNKNOWN") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["/bin/true"]);
    running.shim.kill(&running.id, "", 9).expect("sent");
    running.shim.wait(&running.id, "").expect("an end");
    let failure = running.shim.start(&running.id, "e").expect_err("init has ended");
    assert_eq!(failure.code, Code::FAILED_PRECONDITION, "{failure:?}");
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn a_command_that_cannot_run_fails_start_as_docker_expects() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for (exec, command, text) in
        [("e1", "nowhere", "executable file not found"), ("e2", "/etc/passwd", "permission denied")]
    {
        add(&running, exec, &[command]);
        let failure = running.shim.start(&running.id, exec).expect_err(command);
        assert!(failure.message.contains("OCI runtime exec failed: "), "{failure:?}");
        assert!(failure.message.contains(text), "{failure:?}");
        running.shim.delete(&running.id, exec).expect("deleted");
    }
    running.end();
}

#[test]
fn whoever_waits_for_an_exec_hears_that_it_did_not_start() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["nowhere"]);
    let waiter = running.shim.wait_later(&running.id, "e");
    running.shim.start(&running.id, "e").expect_err("there is none");
    // With which status, or whether with an error, is not said.
    waiter.wait_for(bowline_tests::harness::patience()).expect("an answer").ok();
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn a_running_exec_cannot_be_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    running.shim.delete(&running.id, "e").expect_err("it runs");
    assert!(process_exists(pid));
    running.shim.kill(&running.id, "e", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 137);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn kill_of_an_exec_reaches_it_alone() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.run_exec(&running.bundle, "e1", &["sleep", "1000"], &Stdio::null());
    running.shim.run_exec(&running.bundle, "e2", &["sleep", "1000"], &Stdio::null());
    running.shim.kill(&running.id, "e1", 15).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, "e1"), 143);
    assert_eq!(running.shim.status(&running.id, "e2"), "RUNNING");
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn an_exec_that_has_no_process_yet_cannot_be_killed() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    add(&running, "e", &["sleep", "1000"]);
    let failure = running.shim.kill(&running.id, "e", 9).expect_err("no process");
    assert_eq!(failure.code, Code::FAILED_PRECONDITION, "{failure:?}");
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn an_exec_that_has_ended_is_not_found_by_kill() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.run_exec(&running.bundle, "e", &["/bin/true"], &Stdio::null());
    running.shim.wait(&running.id, "e").expect("an end");
    assert_eq!(running.shim.kill(&running.id, "e", 9).expect_err("it has ended").code, Code::NOT_FOUND);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn an_exec_runs_as_its_process_says() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let mut process = running.bundle.process(&["/bin/sh", "-c", "id -u; id -g; id -G; pwd; echo $WORD; ulimit -s"]);
    process["user"] = json!({ "uid": 1234, "gid": 2345, "additionalGids": [3456] });
    process["cwd"] = json!("/tmp");
    process["env"].as_array_mut().expect("a list").push(json!("WORD=said"));
    process["rlimits"] = json!([{ "type": "RLIMIT_STACK", "soft": 4 << 20, "hard": 8 << 20 }]);
    assert_eq!(output_of(&running, "e", &process), "1234\n2345\n2345 3456\n/tmp\nsaid\n4096\n");
    running.end();
}

#[test]
fn an_exec_without_rlimits_has_those_of_the_container() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 takes those of who runs it") {
        return host.assert_nothing_left();
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        config["process"]["rlimits"] = json!([{ "type": "RLIMIT_STACK", "soft": 4 << 20, "hard": 8 << 20 }]);
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    for (exec, none) in [("null", Value::Null), ("empty", json!([]))] {
        let mut process = running.bundle.process(&["/bin/sh", "-c", "ulimit -s"]);
        process["rlimits"] = none;
        assert_eq!(output_of(&running, exec, &process), "4096\n", "{exec}");
    }
    running.end();
}

#[test]
fn an_exec_has_the_rights_of_its_process_and_no_more() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let mut process = running.bundle.process(&["grep", "-E", "^(CapEff|CapBnd|NoNewPrivs)", "/proc/self/status"]);
    let chown = json!(["CAP_CHOWN"]);
    process["capabilities"] = json!({ "bounding": chown, "effective": chown, "permitted": chown });
    let expected = "CapEff:\t0000000000000001\nCapBnd:\t0000000000000001\nNoNewPrivs:\t1\n";
    assert_eq!(output_of(&running, "e", &process), expected);
    running.end();
}

#[test]
fn an_exec_is_in_the_namespaces_and_the_cgroup_of_the_container() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    for kind in ["mnt", "pid", "net", "ipc", "uts"] {
        let of = |pid| bowline_tests::harness::namespace_of(pid, kind);
        assert_eq!(of(pid), of(running.pid), "{kind}");
    }
    let of = bowline_tests::harness::cgroup_of;
    eventually("the same cgroups", || (of(pid) == of(running.pid)).then_some(()));
    running.end();
}

#[test]
fn execs_end_with_the_container() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.run_exec(&running.bundle, "e", &["sleep", "1000"], &Stdio::null());
    let waiter = running.shim.wait_later(&running.id, "e");
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(waiter.wait().expect("an end").exit_status, 137);
    assert!(!process_exists(pid));
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

/// A program in the container that whoever executes it waits for, in execve itself, for as long as the process that
/// this returns lives: that has a lease on it (fcntl(2), "Leases"), and says `wanted` once somebody waits.
fn hold(host: &Host, running: &Running<'_>) -> Process {
    let program = running.bundle.rootfs().join("bin/busybox-held");
    copy_program(&running.bundle.rootfs().join("bin/busybox"), &program);
    let lease = "$| = 1; $SIG{IO} = sub { print qq(wanted\\n) }; open(my $file, '<', $ARGV[0]) or die $!; \
        fcntl($file, 1024, 1) or die $!; print qq(held\\n); sleep 1000 while 1";
    let mut perl = host.command("perl");
    perl.args(["-e", lease]).arg(program);
    let holder = host.spawn_command(perl);
    holder.read_stdout();
    holder.wait_for_out("held\n");
    holder
}

#[test]
fn an_exec_starting_as_the_container_is_killed_ends_before_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let holder = hold(&host, &running);
    add(&running, "e", &["/bin/busybox-held", "sh", "-c", "exit 7"]);
    let waiters = [running.shim.wait_later(&running.id, "e"), running.shim.wait_later(&running.id, "")];
    let start = running.shim.start_later(&running.id, "e");
    holder.wait_for_out("wanted\n");
    running.shim.kill(&running.id, "", 9).expect("sent");
    for waiter in waiters {
        assert!(waiter.wait_for(patience()).is_some(), "it hangs");
    }
    let started = start.wait_for(patience()).expect("an answer").is_ok();
    containerd.events.wait_for(&running.id, "exit");
    let mut expected = vec!["create", "start", "exec-added e"];
    if started {
        // Killed on its way into its program, it has run none of it.
        expected.extend(["exec-started e", "exit e"]);
        assert_eq!(containerd.events.wait_for(&running.id, "exit e").status, 137);
    }
    expected.push("exit");
    assert_eq!(containerd.events.of(&running.id), expected);
    drop(holder);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn an_exec_that_outlives_its_container_has_its_end_reported() {
    let host = Host::new();
    if host.reference_fails("it tells init's exit before those of execs without a pid namespace") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["sleep", "1000"]).without_namespace("pid");
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let holder = hold(&host, &running);
    add(&running, "e", &["/bin/busybox-held", "sh", "-c", "exit 7"]);
    let waiter = running.shim.wait_later(&running.id, "e");
    let start = running.shim.start_later(&running.id, "e");
    holder.wait_for_out("wanted\n");
    // Out of its cgroup nothing that ends the container finds it, as one that is deep in the kernel.
    let pids = running.cgroup_file("pids", "cgroup.procs");
    let pid = pids.lines().find(|pid| **pid != running.pid.to_string()).expect("the exec is there");
    for (_, hierarchy) in hierarchies() {
        fs::write(hierarchy.join("cgroup.procs"), pid).expect("root may");
    }
    running.shim.kill(&running.id, "", 9).expect("sent");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    containerd.events.wait_for(&running.id, "exit");
    drop(holder);
    assert_eq!(waiter.wait_for(patience()).expect("it hangs").expect("an end").exit_status, 7);
    assert_eq!(start.wait_for(patience()).expect("it hangs").expect("started").pid.to_string(), pid);
    containerd.events.wait_for(&running.id, "exit e");
    let told = containerd.events.of(&running.id);
    assert_eq!(told, ["create", "start", "exec-added e", "exit", "exec-started e", "exit e"]);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn an_exec_whose_logger_is_not_ready_at_the_end_never_starts() {
    let host = Host::new();
    if host.reference_fails("it tells no end before the logger is ready") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let gate = running.bundle.path.join("gate");
    make_fifo(&gate);
    let logger = running.bundle.path.join("logger");
    fs::write(&logger, format!("read line <{}; exec 5>&-; cat <&3 >/dev/null", gate.display())).expect("ours");
    let io = Stdio::uri(&format!("binary:///bin/sh?{}=x", logger.display()));
    let process = running.bundle.process(&["sleep", "1000"]);
    running.shim.exec(&running.id, "e", &process, &io).expect("added");
    let waiter = running.shim.wait_later(&running.id, "e");
    let start = running.shim.start_later(&running.id, "e");
    // It can be opened once the logger reads there.
    let mut gate = Input::open(&gate);
    kill_process(Pid::from_raw(running.pid).expect("a pid"), Signal::KILL).expect("init lives");
    running.wait_for_end();
    assert_eq!(running.shim.status_at_end(&running.id, ""), 137);
    containerd.events.wait_for(&running.id, "exit");
    gate.write("\n");
    start.wait_for(patience()).expect("it hangs").expect_err("its container has ended");
    assert!(waiter.wait_for(patience()).is_some(), "it hangs");
    assert_eq!(containerd.events.of(&running.id), ["create", "start", "exec-added e", "exit"]);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn a_process_that_is_no_json_is_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let added = running.shim.exec(&running.id, "e", &json!("nonsense"), &Stdio::null());
    // Whether it is noticed at once is not said.
    let started = added.and_then(|_| {
        let started = running.shim.start(&running.id, "e");
        running.shim.delete(&running.id, "e").expect("deleted");
        started
    });
    started.expect_err("no process");
    assert_eq!(running.exec("e", "echo alive").1, "alive\n");
    running.end();
}

#[test]
fn what_an_exec_leaves_running_does_not_hold_up_its_delete() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", "sleep 1000 & echo done"], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    // Within the drain of ten seconds, and some.
    let deleted = running.shim.delete_later(&running.id, "e").wait_for(std::time::Duration::from_secs(20));
    deleted.expect("an answer").expect("deleted");
    // It is in the pipe; whoever reads that may be slower.
    eventually("its output", || (stdout.text() == "done\n").then_some(()));
    running.end();
}

#[test]
fn the_output_of_an_exec_ends_at_delete_though_held_open() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, stderr) = io.open();
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", "sleep 1000 & echo done"], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    // Until then it may write more.
    assert!(!stdout.has_ended());
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!((stdout.to_end().as_str(), stderr.expect("a FIFO").to_end().as_str()), ("done\n", ""));
    assert_eq!(running.shim.pids(&running.id).expect("pids").len(), 2, "what it left runs on");
    running.end();
}

#[test]
fn what_an_exec_left_running_writes_until_the_exec_is_deleted() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    let script = "{ until [ -e /tmp/go ]; do sleep 0.1; done; echo later; sleep 1000; } & echo done";
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", script], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    assert_eq!(running.exec("go", "touch /tmp/go").0, 0);
    eventually("what is written later", || (stdout.text() == "done\nlater\n").then_some(()));
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!(stdout.to_end(), "done\nlater\n");
    running.end();
}

#[test]
fn an_exec_with_more_output_than_its_fifo_is_deleted_unread() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, _stderr) = (Output::open_paused(io.stdout.as_ref()), Output::open(io.stderr.as_ref()));
    let script = "head -c 100000 /dev/zero | tr '\\0' x; i=0; while [ $i -lt 100 ]; do echo y; i=$((i+1)); done";
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", script], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    let deleted = running.shim.delete_later(&running.id, "e").wait_for(std::time::Duration::from_secs(20));
    deleted.expect("an answer").expect("deleted");
    stdout.resume();
    assert_eq!(stdout.to_end().len(), 100_200);
    running.end();
}
