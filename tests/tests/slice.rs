//! `run --slice`: in a scope below a slice where systemd makes one; else refused, or outside, and that is said.

use bowline_tests::Host;
use bowline_tests::harness::{Build, assert_forgotten, cgroup_of, lacks_systemd, only_v2, show};
use serde_json::Value;

/// Has nobody speak to systemd.
const NO_BUS: &str = "unix:path=/nowhere/bus";

/// A slice of systemd's that nothing limits.
const SLICE: &str = "system.slice";
const OPTIONAL: &str = "--slice=system.slice,optional";

/// `bowline run` with these flags where no systemd can be reached.
fn without_systemd(host: &Host, flags: &[&str], script: &str) -> bowline_tests::harness::Ran {
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    command.env("DBUS_SYSTEM_BUS_ADDRESS", NO_BUS).arg("run").arg("--name").arg(host.new_id()).args(flags);
    command.args(["--", "/bin/sh", "-c", script]);
    host.execute(command)
}

#[test]
fn a_command_is_in_a_scope_below_the_slice() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag(format!("--slice={SLICE}")).start();
    let scope = format!("bowline-{}.scope", task.on_host());
    assert_eq!(show(&scope, "Slice"), format!("Slice={SLICE}"));
    if only_v2() {
        assert_eq!(cgroup_of(task.pid())[""], format!("/{SLICE}/{scope}"));
    }
    // That it is there holds it to nothing.
    let not_enforced = serde_json::json!({"slice": SLICE, "enforced": false, "reason": "nothing limits system.slice"});
    assert_eq!(task.inspect()["enforcement"], not_enforced);
    task.end();
    assert_eq!(report(&host, task.id())["enforcement"], not_enforced);
    host.assert_nothing_left();
    assert_forgotten(&scope);
}

fn report(host: &Host, id: &str) -> Value {
    host.bowline(["wait", "--json", id]).json()
}

#[test]
fn where_systemd_refuses_nothing_runs() {
    let host = Host::new();
    let ran = without_systemd(&host, &["--slice", SLICE], "echo it runs");
    ran.assert_refused(125, &["cannot reach systemd by the bus at unix:path=/nowhere/bus"]);
    assert!(ran.err().ends_with("\nhint: `--slice SLICE,optional` starts it outside of the slice then"), "{ran}");
    host.assert_nothing_left();
}

#[test]
fn where_systemd_refuses_it_may_be_started_outside_which_is_said() {
    let host = Host::new();
    let ran = without_systemd(&host, &[OPTIONAL, "--json", "--rm"], "echo out; echo err >&2; exit 3");
    ran.assert_code(3);
    let report = ran.json();
    let enforcement = &report["enforcement"];
    assert_eq!((&enforcement["slice"], &enforcement["enforced"]), (&SLICE.into(), &false.into()), "{ran}");
    let reason = enforcement["reason"].as_str().expect("a reason");
    assert!(reason.contains("cannot reach systemd by the bus at unix:path=/nowhere/bus"), "{ran}");
    assert!(ran.err().starts_with("bowline: task "), "{ran}");
    assert!(ran.err().contains(" runs outside of system.slice, whose limits do not hold for it: "), "{ran}");
    assert!(ran.err().contains(reason) && ran.err().lines().count() == 1, "{ran}");
    assert_eq!((&report["stdout_tail"], &report["stderr_tail"]), (&"out\n".into(), &"err\n".into()));
}

#[test]
fn limits_of_its_own_hold_outside_of_the_slice_too() {
    let host = Host::new();
    let id = host.new_id();
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    command.env("DBUS_SYSTEM_BUS_ADDRESS", NO_BUS).args(["start", OPTIONAL, "--memory=32M", "--name", &id]);
    let ran = host.execute({
        command.args(["--", "/bin/sleep", "1000"]);
        command
    });
    ran.assert_code(0);
    assert!(ran.err().contains("runs outside of system.slice"), "{ran}");
    let task = host.adopt(id);
    let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    assert_eq!(task.cgroup_file("memory", file), "33554432");
    assert_eq!(task.inspect()["enforcement"]["enforced"], false);
    task.end();
}

#[test]
fn an_impossible_limit_is_refused_in_or_outside_the_slice() {
    let host = Host::new();
    let build = host.described("command = 'true'\ncpu.cpuset = '4000'");
    build.flag(OPTIONAL).assert_refused(125, &["cpuset"]);
}

#[test]
fn without_a_slice_nothing_is_said_of_it() {
    let host = Host::new();
    let ran = host.task("exit 0").flag("--json").run();
    ran.assert_code(0);
    assert_eq!((&ran.json()["enforcement"], ran.err().as_str()), (&Value::Null, ""), "{ran}");
}

#[test]
fn what_is_no_slice_or_goes_with_none_is_bad_usage() {
    let host = Host::new();
    let slice = |slice: &str| host.task("exit 0").flag(format!("--slice={slice}"));
    let refused = |build: Build<'_>, part: &str| {
        let ran = build.run();
        assert!(ran.code == Some(2) && ran.err().contains(part), "{part}\n{ran}");
    };
    refused(slice("system"), "none of .service, .scope, .slice");
    refused(slice("../a.slice"), "'/'");
    refused(slice("cron.service"), "is no slice");
    refused(slice("system.slice,maybe"), "','");
    refused(slice("-.slice"), "root of all slices");
    refused(slice(SLICE).flag("--cgroup-driver=cgroupfs"), "cgroup driver is cgroupfs");
    refused(slice(SLICE).flag("--sandbox=x"), "cannot be used with");
    refused(slice(SLICE).toml("cgroup = '/a/b'"), "its description has the cgroup \"/a/b\"");
}
