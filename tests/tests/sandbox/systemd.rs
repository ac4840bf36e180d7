//! Sandboxes whose cgroups systemd makes: a slice with the joint limits, a scope in
//! it for each member, and one elsewhere for the shim. `systemctl show` and the
//! kernel's files as witnesses; returns at once on a host without systemd.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{
    Sandbox, SandboxBuild, Task, assert_forgotten, assert_no_unit_files, assert_shows, cgroup_of, eventually,
    has_systemd, lacks_systemd, only_v2, process_exists, show, systemctl, weight,
};

const SYSTEMD: &str = "--cgroup-driver=systemd";
const IDLE: &str = "exec sleep 1000";

fn escaped(id: &str) -> String {
    id.replace('-', "\\x2d")
}

fn slice(sandbox: &Sandbox<'_>) -> String {
    format!("bowline-{}.slice", escaped(&sandbox.on_host()))
}

fn scope(task: &Task<'_>) -> String {
    format!("bowline-{}.scope", task.on_host())
}

/// One of systemd's with every limit.
fn limited(host: &Host) -> SandboxBuild<'_> {
    let toml = "cpu = {limit = 0.5, cpuset = '0'}\nmemory = {limit = '64M', low = '32M'}\npids = 50";
    host.sandbox().toml(toml).flag(SYSTEMD)
}

/// Nothing of the sandbox and its members is left, nor does systemd know of them.
#[track_caller]
fn assert_gone(host: &Host, units: &[String]) {
    host.assert_nothing_left();
    units.iter().for_each(|unit| assert_forgotten(unit));
    assert_no_unit_files(&[host.prefix(), &escaped(host.prefix())]);
}

/// The units of a sandbox.
fn units(sandbox: &Sandbox<'_>) -> Vec<String> {
    let inspected = sandbox.inspect();
    let name = |field: &str| inspected[field]["name"].as_str().expect("a unit").to_owned();
    vec![name("unit"), name("overhead_unit")]
}

#[test]
fn every_joint_limit_is_a_property_of_the_slice_and_in_its_file() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = limited(&host).create();
    let all = units(&sandbox);
    assert_eq!(all[0], slice(&sandbox));
    let expected = [
        "ActiveState=active",
        "MemoryMax=67108864",
        "MemoryLow=33554432",
        "CPUQuotaPerSecUSec=500ms",
        "TasksMax=50",
        "AllowedCPUs=0",
        "Slice=bowline.slice",
    ];
    assert_shows(&all[0], &expected);
    if only_v2() {
        let limits = sandbox.limits();
        assert_eq!((limits.cpu.as_str(), limits.cpus.as_str()), ("50000 100000", "0"));
        assert_eq!((&*limits.memory, &*limits.low, &*limits.pids), ("67108864", "33554432", "50"));
        let shown = show(&all[0], "ControlGroup");
        assert_eq!(shown, format!("ControlGroup={}", sandbox.inspect()["cgroup"].as_str().expect("a path")));
    }
    assert_gone(&host, &all);
}

#[test]
fn an_update_changes_properties_and_files_or_neither() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = limited(&host).create();
    let all = units(&sandbox);
    let task = sandbox.task(IDLE).flag("--memory=32M").start();
    sandbox.update(["--memory=48M", "--cpus=0.25", "--pids=20"]);
    let changed = ["MemoryMax=50331648", "CPUQuotaPerSecUSec=250ms", "TasksMax=20"];
    assert_shows(&all[0], &changed);
    let before = sandbox.limits();
    if only_v2() {
        assert_eq!((&*before.memory, &*before.cpu, &*before.pids), ("50331648", "25000 100000", "20"));
    }
    sandbox.bowline("update", ["--pids=9", "--memory=16M"]).assert_refused(125, &["32M", "16M"]);
    sandbox.bowline("update", ["--pids=9", "--cpuset=4000"]).assert_refused(125, &["cpuset"]);
    assert_shows(&all[0], &changed);
    assert_eq!(sandbox.limits(), before);
    sandbox.update(["--memory=max", "--cpus=max", "--pids=max"]);
    assert_shows(&all[0], &["MemoryMax=infinity", "CPUQuotaPerSecUSec=infinity", "TasksMax=infinity"]);
    task.end();
    assert_gone(&host, &all);
}

#[test]
fn members_are_scopes_in_the_slice_and_their_limits_move_its() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'\npids = 300").flag(SYSTEMD).create();
    let mut all = units(&sandbox);
    let member = |limits: &str| {
        let task = sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\n{limits}")).start();
        assert_shows(&scope(&task), &["ActiveState=active", &*format!("Slice={}", slice(&sandbox))]);
        task
    };
    let one = member("cpu.limit = 0.2\nmemory.limit = '64M'");
    assert_shows(&all[0], &["MemoryMax=67108864", "CPUQuotaPerSecUSec=200ms", "TasksMax=300"]);
    let two = member("cpu.limit = 0.3\nmemory.limit = '32M'");
    assert_shows(&all[0], &["MemoryMax=100663296", "CPUQuotaPerSecUSec=500ms"]);
    assert_shows(&scope(&two), &["MemoryMax=33554432", "CPUQuotaPerSecUSec=300ms"]);
    two.bowline("update", ["--memory=128M", "--cpus=0.1"]).assert_code(0);
    assert_shows(&all[0], &["MemoryMax=201326592", "CPUQuotaPerSecUSec=300ms"]);
    assert_shows(&scope(&two), &["MemoryMax=134217728", "CPUQuotaPerSecUSec=100ms"]);
    if only_v2() {
        let limits = sandbox.limits();
        assert_eq!((&*limits.memory, &*limits.cpu, limits.weight), ("201326592", "30000 100000", weight(307)));
        assert!(two.cgroup("memory").starts_with(sandbox.cgroup("memory")), "{:?}", two.cgroup("memory"));
    }
    all.extend([scope(&one), scope(&two)]);
    two.end();
    eventually("it is counted no more", || (show(&all[0], "MemoryMax") == "MemoryMax=67108864").then_some(()));
    assert_shows(&all[0], &["CPUQuotaPerSecUSec=200ms", "ActiveState=active"]);
    one.end();
    assert_gone(&host, &all);
}

#[test]
fn a_reload_of_systemd_leaves_the_joint_limits() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let sandbox = limited(&host).create();
    let all = units(&sandbox);
    let task = sandbox.task(IDLE).flag("--memory=32M").start();
    sandbox.update(["--pids=40"]);
    let before = (sandbox.limits(), task.cgroup_file("memory", "memory.max"));
    systemctl(&["daemon-reload"]);
    // Whatever systemd writes, it has written once a job of its is done.
    systemctl(&["start", "--", &all[0]]);
    assert_eq!((sandbox.limits(), task.cgroup_file("memory", "memory.max")), before);
    assert_eq!(task.status(), "running");
    task.end();
    assert_gone(&host, &all);
}

#[test]
fn shim_pause_and_helpers_are_in_a_scope_elsewhere() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = limited(&host).flag("--share-pid").create();
    let all = units(&sandbox);
    let mut command = host.command("sleep");
    command.arg("1000");
    let mut helper = host.spawn_command(command);
    let ran = sandbox.bowline("charge", [&*helper.pid().to_string(), "4194303"]);
    assert!(ran.assert_code(0).err().contains("4194303"), "{ran}");
    for pid in [sandbox.shim_pid(), sandbox.pause_pid(), helper.pid()] {
        let found = cgroup_of(pid);
        assert!(found.values().any(|path| path.ends_with(&all[1])), "{pid}: {found:?}");
        assert!(!found.values().any(|path| path.contains(&all[0])), "{pid}: {found:?}");
    }
    assert_shows(&all[1], &["ActiveState=active", "MemoryMax=infinity"]);
    sandbox.rm([]);
    assert!(helper.is_running(), "it is nobody's to kill");
    helper.signal(rustix::process::Signal::KILL);
    helper.finish();
    assert_gone(&host, &all);
}

#[test]
fn slice_and_scopes_stay_when_a_new_shim_adopts_the_sandbox() {
    if lacks_systemd() {
        return;
    }
    for flag in ["--share-pid", "--pids=60"] {
        let host = Host::new();
        let sandbox = limited(&host).flag(flag).create();
        let mut all = units(&sandbox);
        let task = sandbox.task("trap 'exit 4' TERM; echo ready; while :; do sleep 0.1; done").start();
        task.wait_for_line("ready");
        all.push(scope(&task));
        let limits = sandbox.limits();
        sandbox.kill_shim();
        task.exec("true").assert_code(0);
        assert_eq!((sandbox.status().as_str(), sandbox.limits()), ("ready", limits));
        let found = cgroup_of(sandbox.shim_pid());
        assert!(found.values().any(|path| path.ends_with(&all[1])), "{found:?}");
        sandbox.task("exit 3").run().assert_code(3);
        task.stop(["--grace=50s"]).assert_code(4);
        sandbox.rm([]);
        assert_gone(&host, &all);
    }
}

#[test]
fn a_kill_at_the_joint_limit_is_reported_and_the_others_live_on() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").flag(SYSTEMD).create();
    let mut all = units(&sandbox);
    let other = sandbox.task(IDLE).start();
    let hog = sandbox.task("exec tail /dev/zero").start();
    let report = hog.wait();
    report.assert_killed_by("KILL");
    assert_eq!(report["oom_killed"], true, "{report:?}");
    assert_eq!(report["oom_cgroup"], sandbox.inspect()["cgroup"], "{report:?}");
    assert_eq!(other.status(), "running");
    all.extend([scope(&hog), scope(&other)]);
    // Nobody knows where systemd has removed the scope, with its counts, before they are read.
    assert_ne!(other.end()["oom_killed"], true);
    assert_gone(&host, &all);
}

#[test]
fn rm_ends_slice_and_scopes_of_a_sandbox_whose_shim_has_died() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = limited(&host).flag("--share-pid").create();
    let mut all = units(&sandbox);
    let tasks: Vec<_> =
        (0..2).map(|_| sandbox.task("setsid sleep 1000 & echo ready; exec sleep 1000").start()).collect();
    tasks.iter().for_each(|task| task.wait_for_line("ready"));
    all.extend(tasks.iter().map(scope));
    let pids: Vec<i32> = tasks.iter().flat_map(Task::processes).collect();
    sandbox.kill_shim();
    assert_eq!(sandbox.status(), "dead");
    // Without -f it would leave what a new shim can take over.
    sandbox.rm(["-f"]);
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when rm returns");
    assert_gone(&host, &all);
}

#[test]
fn sandboxes_of_one_name_come_and_go_and_leave_no_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    let mut all = Vec::new();
    for _ in 0..3 {
        let sandbox = limited(&host).named(&id).create();
        all = units(&sandbox);
        sandbox.task("exit 3").run().assert_code(3);
        host.task_of(["/no/such/command"]).in_sandbox(&sandbox).assert_refused(127, &["/no/such/command"]);
        sandbox.rm(["-f"]);
    }
    limited(&host).named(&id).flag("--cpuset=4000").assert_refused(125, &["cpuset"]);
    assert_gone(&host, &all);
    let left = fs::read_dir("/sys/fs/cgroup/bowline.slice").into_iter().flatten().flatten();
    let left: Vec<_> =
        left.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&escaped(&id))).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn systemd_that_cannot_be_reached_is_told_and_nothing_is_left() {
    if has_systemd() {
        return;
    }
    let host = Host::new();
    limited(&host).assert_refused(125, &["cannot reach systemd"]);
}
