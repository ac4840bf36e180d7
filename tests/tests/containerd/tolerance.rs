//! What managers ask for and a host lacks: the specification wants a container that starts, and a line in the log.

use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, Shim, Stdio};
use bowline_tests::harness::status_lines;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Masks of the capabilities of who asks.
const MASKS: &str = "grep -E '^Cap' /proc/self/status | cut -f2";

/// Runs `bundle` to its end in a shim of its own: its output.
#[track_caller]
fn said(containerd: &Containerd<'_>, bundle: &Bundle) -> String {
    let shim = containerd.start(bundle);
    let io = bundle.fifos("init");
    let (stdout, stderr) = io.open();
    shim.run(bundle, &io);
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0, "{}", stderr.expect("a FIFO").text());
    shim.end(&bundle.id);
    stdout.to_end().trim().to_owned()
}

/// Runs an exec of this process to its end: its output.
#[track_caller]
fn exec_says(shim: &Shim, bundle: &Bundle, exec: &str, process: &Value) -> String {
    let io = bundle.fifos(exec);
    let (stdout, stderr) = io.open();
    shim.exec(&bundle.id, exec, process, &io).expect("added");
    shim.start(&bundle.id, exec).expect("started");
    assert_eq!(shim.status_at_end(&bundle.id, exec), 0, "{}", stderr.expect("a FIFO").text());
    shim.delete(&bundle.id, exec).expect("deleted");
    stdout.to_end().trim().to_owned()
}

/// Sets of these capabilities, each the same.
fn sets(names: &[&str]) -> Value {
    json!({ "bounding": names, "effective": names, "permitted": names, "inheritable": names, "ambient": names })
}

#[test]
fn an_unknown_capability_is_left_out_of_containers_and_execs() {
    let host = Host::new();
    let containerd = host.containerd();
    let unknown = sets(&["CAP_KILL", "CAP_UNKNOWN", "UNKNOWN_CAP", "CAP_CHOWN"]);
    let expected = ["0000000000000021"; 5].join("\n");
    let bundle = containerd.bundle().script(&format!("{MASKS}; exec sleep 1000"));
    let bundle = bundle.edit(|config| config["process"]["capabilities"] = unknown.clone());
    let shim = containerd.start(&bundle);
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    shim.run(&bundle, &io);
    stdout.wait_for(&expected);
    let process = bundle.process(&["/bin/sh", "-c", MASKS]);
    assert_eq!(exec_says(&shim, &bundle, "e", &process), expected);
    shim.end(&bundle.id);
}

#[test]
fn a_capability_that_the_host_does_not_give_is_left_out() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 applies what it is told, and fails") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(&format!("{MASKS}; exec sleep 1000"));
    let bundle = bundle.edit(|config| config["process"]["capabilities"] = sets(&["CAP_KILL", "CAP_SYS_TIME"]));
    let expected = ["0000000000000020"; 5].join("\n");
    let shim = containerd.start_without(&bundle, "sys_time");
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    shim.run(&bundle, &io);
    stdout.wait_for(&expected);
    let process = bundle.process(&["/bin/sh", "-c", MASKS]);
    assert_eq!(exec_says(&shim, &bundle, "e", &process), expected);
    shim.end(&bundle.id);
}

#[test]
fn an_oom_score_that_may_not_be_lowered_fails_the_create() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 0").edit(|config| config["process"]["oomScoreAdj"] = json!(-5));
    let shim = containerd.start_without(&bundle, "sys_resource");
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("the kernel refuses it");
    assert!(failure.message.contains("oom_score_adj"), "{failure:?}");
    shim.over();
}

#[test]
fn flags_of_the_scheduler_have_the_specification_s_names() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 knows no scheduler") {
        return;
    }
    let containerd = host.containerd();
    let scheduler = json!({"policy": "SCHED_BATCH", "nice": 5, "flags": ["SCHED_FLAG_RESET_ON_FORK"]});
    let bundle = containerd.bundle().script("exec cut -d' ' -f19,41 /proc/self/stat");
    let bundle = bundle.edit(|config| config["process"]["scheduler"] = scheduler);
    assert_eq!(said(&containerd, &bundle), "5 3");

    // Init executes this itself: a child of it would not have the policy.
    let deadline = json!({
        "policy": "SCHED_DEADLINE", "runtime": 1_000_000, "deadline": 10_000_000, "period": 10_000_000,
        "flags": ["SCHED_FLAG_RESET_ON_FORK", "SCHED_FLAG_DL_OVERRUN"],
    });
    let bundle = containerd.bundle().script("exec cut -d' ' -f41 /proc/self/stat");
    let bundle = bundle.edit(|config| config["process"]["scheduler"] = deadline);
    assert_eq!(said(&containerd, &bundle), "6");
}

#[test]
fn deadlines_beside_a_choice_of_cpus_fail_the_create() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 knows no scheduler") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 0").edit(|config| {
        config["linux"]["resources"]["cpu"] = json!({"cpus": "0"});
        config["process"]["scheduler"] = json!({
            "policy": "SCHED_DEADLINE", "runtime": 1_000_000, "deadline": 10_000_000, "period": 10_000_000,
        });
    });
    let shim = containerd.start(&bundle);
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("the kernel refuses it");
    for named in ["process.scheduler", "SCHED_DEADLINE", "cpu.cpus"] {
        assert!(failure.message.contains(named), "{failure:?}");
    }
    shim.over();
}

#[test]
fn a_process_without_a_user_is_root() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("id -u; id -g; exec sleep 1000");
    let bundle = bundle.edit(|config| {
        config["process"].as_object_mut().expect("an object").remove("user");
    });
    let shim = containerd.start(&bundle);
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    shim.run(&bundle, &io);
    stdout.wait_for("0\n0");
    let process = bundle.process(&["/bin/sh", "-c", "id -u; id -g"]);
    assert!(process.get("user").is_none());
    assert_eq!(exec_says(&shim, &bundle, "e", &process), "0\n0");
    let mut process = process;
    process["user"] = json!({ "uid": 7 });
    assert_eq!(exec_says(&shim, &bundle, "f", &process), "7\n0");
    shim.end(&bundle.id);
}

/// The CPUs that the calling process may run on.
const CPUS: &str = "grep Cpus_allowed_list /proc/self/status | cut -f2";

#[test]
fn a_shim_that_is_pinned_later_pins_no_container_and_no_exec() {
    let host = Host::new();
    if host.reference_fails("runc before 1.3 hands its own affinity on") {
        return;
    }
    let everywhere = status_lines(std::process::id().cast_signed(), &["Cpus_allowed_list"]);
    let everywhere = everywhere.split('\t').nth(1).expect("a list").trim().to_owned();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(&format!("{CPUS}; exec sleep 1000"));
    let shim = containerd.start(&bundle);
    pin(shim.pid());
    let io = bundle.fifos("init");
    let (stdout, _stderr) = io.open();
    shim.run(&bundle, &io);
    stdout.wait_for("\n");
    assert_eq!(stdout.text().trim(), everywhere);
    let process = bundle.process(&["/bin/sh", "-c", CPUS]);
    assert_eq!(exec_says(&shim, &bundle, "e", &process), everywhere);
    shim.end(&bundle.id);
}

fn pin(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a pid");
    assert!(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists());
    let mut first = rustix::thread::CpuSet::new();
    first.set(0);
    rustix::thread::sched_setaffinity(Some(pid), &first).expect("pinned");
}

#[test]
fn an_exec_runs_on_the_cpus_that_it_asks_for() {
    let host = Host::new();
    if host.reference_fails("runc before 1.3 knows no affinity of execs") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let bundle = bundle.edit(|config| config["process"]["execCPUAffinity"] = json!({ "initial": "0", "final": "1" }));
    let shim = containerd.start(&bundle);
    let pid = shim.run(&bundle, &Stdio::null());
    let everywhere = status_lines(std::process::id().cast_signed(), &["Cpus_allowed_list"]);
    assert_eq!(status_lines(pid, &["Cpus_allowed_list"]), everywhere, "it is not for init");
    let of_init = bundle.process(&["/bin/sh", "-c", CPUS]);
    assert_eq!(exec_says(&shim, &bundle, "configured", &of_init), "1");
    let mut left_out = of_init.clone();
    left_out.as_object_mut().expect("an object").remove("execCPUAffinity");
    assert_eq!(exec_says(&shim, &bundle, "left-out", &left_out), "1", "the container's own counts");
    for (id, affinity, cpus) in [
        ("final", json!({ "final": "0" }), "0"),
        ("both", json!({ "initial": "1", "final": "0-1" }), "0-1"),
        ("initial", json!({ "initial": "1" }), "1"),
    ] {
        let mut process = of_init.clone();
        process["execCPUAffinity"] = affinity;
        assert_eq!(exec_says(&shim, &bundle, id, &process), cpus, "{id}");
    }
    let mut process = of_init.clone();
    process["execCPUAffinity"] = json!({ "final": "zero" });
    let failure = shim.exec(&bundle.id, "bad", &process, &Stdio::null()).expect_err("it is no list");
    assert!(failure.message.contains("execCPUAffinity"), "{failure:?}");
    let mut process = of_init;
    process["execCPUAffinity"] = json!({ "final": "1000" });
    shim.exec(&bundle.id, "none", &process, &Stdio::null()).expect("added");
    let failure = shim.start(&bundle.id, "none").expect_err("there is no such CPU");
    assert!(failure.message.contains("execCPUAffinity"), "{failure:?}");
    shim.delete(&bundle.id, "none").expect("deleted");
    let pid = Pid::from_raw(pid).expect("a pid");
    kill_process(pid, Signal::KILL).expect("init lives");
    shim.wait(&bundle.id, "").expect("an end");
    shim.end(&bundle.id);
}
