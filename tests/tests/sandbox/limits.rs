//! A sandbox's joint limits: the kernel's files as witness, who is refused, and
//! that they bite. What members make of them is in `sandbox::budgets`.

use std::fs;
use std::time::Instant;

use bowline_tests::Host;
use bowline_tests::harness::{Limits, Sandbox, assert_cgroup_is, eventually, is_slow, only_v2, weight};
use serde_json::{Value, json};

const IDLE: &str = "exec sleep 1000";

/// What a sandbox that nobody limits has on this host: all of it.
fn unlimited() -> Limits {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let limits = sandbox.limits();
    host.assert_nothing_left();
    limits
}

#[test]
fn a_given_budget_is_in_the_kernels_files() {
    let host = Host::new();
    let toml = "cpu = {limit = 1.5, period = '50ms', shares = 512, cpuset = '0'}\n\
                memory = {limit = '64M', low = '32M'}\npids = 50";
    let sandbox = host.sandbox().toml(toml).create();
    let limits = sandbox.limits();
    assert_eq!((limits.cpu.as_str(), limits.weight, limits.cpus.as_str()), ("75000 50000", weight(512), "0"));
    assert_eq!((limits.memory.as_str(), limits.low.as_str(), limits.pids.as_str()), ("67108864", "33554432", "50"));
    let budget = &sandbox.inspect()["budget"];
    assert_eq!((&budget["cpu_quota_usec"], &budget["cpu_period_usec"]), (&75_000.into(), &50_000.into()), "{budget}");
    assert_eq!((&budget["memory_bytes"], &budget["pids"]), (&(64 << 20).into(), &50.into()), "{budget}");
    // A member has its own below it, and none of the joint ones.
    let task = sandbox.task(IDLE).flag("--pids=7").start();
    assert_eq!((task.cgroup_file("pids", "pids.max"), sandbox.limits()), ("7".to_owned(), limits));
    assert!(task.cgroup("pids").starts_with(sandbox.cgroup("pids")), "{:?}", task.cgroup("pids"));
    task.end();
}

#[test]
fn a_joint_limit_that_others_have_changed_is_shown() {
    let host = Host::new();
    let toml = "cpu = {limit = 0.5, shares = 512, cpuset = '0'}\nmemory = {limit = '64M', low = '32M'}\npids = 50";
    let sandbox = host.sandbox().toml(toml).create();
    let member = sandbox.task(IDLE).start();
    assert_eq!(sandbox.inspect()["differing_limits"], Value::Null);
    let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    fs::write(sandbox.cgroup("memory").join(file), "61440000").expect("root may");
    let differing = json!([{"file": file, "asked": "67108864", "is": "61440000"}]);
    assert_eq!(sandbox.inspect()["differing_limits"], differing);
    let sentence = format!("{file} of its sandbox's cgroup is 61440000, not 67108864");
    let explained = member.bowline("explain", []).assert_code(0).out();
    assert!(explained.contains(&sentence) && !explained.contains("nothing holds it back"), "{explained}");
    sandbox.update(["--memory=70M"]);
    assert_eq!(sandbox.inspect()["differing_limits"], Value::Null);
    // Of its members' limits too, whose sum they are.
    let summed = host.sandbox().toml("budget = 'members'").create();
    let tasks = [summed.task(IDLE).flag("--memory=32M").start(), summed.task(IDLE).flag("--memory=16M").start()];
    assert_eq!(summed.inspect()["differing_limits"], Value::Null);
    tasks.iter().chain([&member]).for_each(|task| drop(task.end()));
}

#[test]
fn flags_are_laid_on_top_of_a_description() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("cpu.limit = 0.5\nmemory.limit = '64M'\npids = 50");
    let sandbox = sandbox.flag("--memory=32M").flag("--pids=max").flag("--cpuset=0").create();
    let limits = sandbox.limits();
    assert_eq!((limits.cpu.as_str(), limits.memory.as_str()), ("50000 100000", "33554432"));
    assert_eq!((limits.pids.as_str(), limits.cpus.as_str()), ("max", "0"));
}

#[test]
fn nothing_is_limited_that_nobody_asks_for() {
    let limits = unlimited();
    assert_eq!((limits.cpu.as_str(), limits.memory.as_str(), limits.pids.as_str()), ("max 100000", "max", "max"));
    assert_eq!(limits.weight, weight(2), "the least, as nobody is in it");
}

#[test]
fn huge_pages_are_limited_where_there_are_any() {
    let host = Host::new();
    let build = host.sandbox().toml("budget = 'given'\nhugepages = {2MB = '8M'}");
    let ran = build.try_create();
    if ran.code != Some(0) {
        ran.assert_refused(125, &["hugetlb"]);
        return host.assert_nothing_left();
    }
    let sandbox = host.adopt_sandbox(build.id());
    // The one controller that a hybrid host may have on v2.
    let folder = sandbox.cgroup("hugetlb");
    let files = ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"].map(|file| folder.join(file));
    let file = files.iter().find(|file| file.exists()).expect("one of the two");
    let limit = || fs::read_to_string(file).expect("it is there").trim_end().to_owned();
    assert_eq!(limit(), "8388608");
    sandbox.update(["--hugepages=2MB=4M"]);
    assert_eq!(limit(), "4194304");
    let large = sandbox.described("command = 'sleep'\nargs = ['1000']\nhugepages = {2MB = '6M'}");
    large.assert_refused(125, &["hugepages.2MB", "6M", "4M"]);
    let none = host.sandbox().toml("budget = 'given'\nhugepages = {3MB = '6M'}");
    none.assert_refused(125, &["hugetlb.3MB", "no pages of that size"]);
}

#[test]
fn an_update_changes_what_it_names_in_the_files_and_the_record() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("cpu.limit = 0.5\nmemory.limit = '64M'\npids = 50").create();
    let task = sandbox.task(IDLE).flag("--memory=16M").start();
    sandbox.update(["--memory=32M", "--cpus=0.25", "--pids=20", "--cpuset=0"]);
    let limits = sandbox.limits();
    assert_eq!((limits.cpu.as_str(), limits.memory.as_str()), ("25000 100000", "33554432"));
    assert_eq!((limits.pids.as_str(), limits.cpus.as_str()), ("20", "0"));
    let described = &sandbox.inspect()["sandbox"];
    assert_eq!((&described["memory"]["limit"], &described["pids"]), (&"32M".into(), &20.into()), "{described}");
    let on_disk: serde_json::Value =
        serde_json::from_slice(&fs::read(sandbox.file("sandbox.json")).expect("a record")).expect("JSON");
    assert_eq!(&on_disk["sandbox"], described);
    sandbox.update(["--memory=max", "--cpus=max", "--pids=max"]);
    let limits = sandbox.limits();
    assert_eq!((limits.cpu.as_str(), limits.memory.as_str(), limits.pids.as_str()), ("max 100000", "max", "max"));
    task.end();
}

/// With these flags an update of `sandbox` is refused, and changes nothing.
#[track_caller]
fn assert_update_refused<const N: usize>(sandbox: &Sandbox<'_>, flags: [&str; N], code: i32, parts: &[&str]) {
    let before = (sandbox.limits(), sandbox.inspect());
    sandbox.bowline("update", flags).assert_refused(code, parts);
    assert_eq!((sandbox.limits(), sandbox.inspect()), before, "{flags:?}");
}

#[test]
fn a_budget_below_a_member_s_is_refused_and_nothing_changes() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("cpu.limit = 0.5\nmemory.limit = '64M'\npids = 50").create();
    let task = sandbox.task(IDLE).flag("--memory=32M").flag("--cpus=0.4").start();
    assert_update_refused(&sandbox, ["--pids=20", "--memory=16M"], 125, &["memory.limit", task.id(), "32M", "16M"]);
    assert_update_refused(&sandbox, ["--pids=20", "--cpus=0.3"], 125, &["cpu.limit", task.id(), "0.4", "0.3"]);
    // What the kernel refuses last.
    assert_update_refused(&sandbox, ["--pids=20", "--cpuset=4000"], 125, &["cpuset"]);
    assert_update_refused(&sandbox, ["--pids=20", "--unified=memory.oom.group=1"], 2, &["unified"]);
    assert_update_refused(&sandbox, ["--io=weight=500"], 2, &["io"]);
    task.end();
}

#[test]
fn memory_that_is_in_use_cannot_be_taken_away() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("memory.limit = '128M'\npids = 50").create();
    let holding = "x=$(head -c 20971520 /dev/zero | tr '\\0' x); echo ready; sleep 1000; echo ${#x}";
    let task = sandbox.task(holding).start();
    task.wait_for_line("ready");
    assert_update_refused(&sandbox, ["--pids=20", "--memory=8M"], 125, &["memory", "8388608", "in use"]);
    assert_eq!(task.end()["oom_killed"], false);
}

#[test]
fn a_member_that_cannot_fit_is_refused_with_both_figures() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("cpu.limit = 0.5\nmemory.limit = '64M'").create();
    let one = sandbox.task(IDLE).flag("--memory=64M").flag("--cpus=0.5").start();
    let before = (sandbox.limits(), sandbox.inspect());
    for (flag, field, asked, has) in
        [("--memory=65M", "memory.limit", "65M", "64M"), ("--cpus=0.6", "cpu.limit", "0.6", "0.5")]
    {
        let build = sandbox.task(IDLE).flag(flag);
        let (id, cgroup) = (build.id().to_owned(), sandbox.cgroup("freezer").join(build.id()));
        build.assert_refused(125, &[field, &id, asked, has]);
        assert!(!cgroup.exists(), "{}", cgroup.display());
    }
    // Neither can one that is there already.
    one.bowline("update", ["--pids=20", "--memory=65M"]).assert_refused(125, &["memory.limit", "65M", "64M"]);
    one.bowline("update", ["--pids=20", "--cpus=0.6"]).assert_refused(125, &["cpu.limit", "0.6", "0.5"]);
    assert_ne!(one.cgroup_file("pids", "pids.max"), "20");
    assert_eq!((sandbox.limits(), sandbox.inspect()), before);
    one.end();
}

#[test]
fn a_launch_that_fails_is_counted_no_more() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let before = sandbox.limits();
    host.task_of(["/no/such/command"])
        .in_sandbox(&sandbox)
        .toml("cpu.shares = 5000")
        .assert_refused(127, &["/no/such/command"]);
    let outside = sandbox.described("command = 'sleep'\nargs = ['1000']\ncpu = {shares = 5000, cpuset = '4000'}");
    outside.assert_refused(125, &["cpuset"]);
    assert_eq!((sandbox.limits(), &sandbox.inspect()["members"]), (before, &serde_json::json!([])));
}

#[test]
fn an_unenforceable_limit_is_refused_unless_best_effort() {
    let host = Host::new();
    let toml = "memory = {limit = '64M', high = '48M'}\npids = 50";
    let best_effort = host.sandbox().toml(toml).flag("--cgroup=best-effort");
    if only_v2() {
        let sandbox = best_effort.create();
        assert_eq!(sandbox.limits().high.as_deref(), Some("50331648"));
        assert!(sandbox.inspect()["unenforced"].is_null());
        sandbox.update(["--memory-high=40M"]);
        assert_eq!(sandbox.limits().high.as_deref(), Some("41943040"));
        return host.assert_nothing_left();
    }
    host.sandbox().toml(toml).assert_refused(125, &["memory.high"]);
    let ran = best_effort.try_create();
    ran.assert_says(best_effort.id());
    assert!(ran.err().contains("not enforced: ") && ran.err().contains("memory.high"), "{ran}");
    let sandbox = host.adopt_sandbox(best_effort.id());
    let unenforced = || sandbox.inspect()["unenforced"].to_string();
    assert!(unenforced().contains("memory.high"), "{}", unenforced());
    let limits = sandbox.limits();
    assert_eq!((limits.memory.as_str(), limits.pids.as_str()), ("67108864", "50"), "all else is enforced");
    assert!(sandbox.inspect()["budget"]["memory_high_bytes"].is_null(), "{}", sandbox.inspect());
    // Members come and go, and other limits change: it is no better enforced.
    sandbox.task(IDLE).toml("cpu.shares = 300").start().end();
    sandbox.update(["--pids=40"]);
    assert!(unenforced().contains("memory.high"), "{}", unenforced());
    assert_eq!(sandbox.limits().pids, "40");
    // What the kernel refuses besides is not half done.
    assert_update_refused(&sandbox, ["--pids=30", "--memory-high=47M", "--cpuset=4000"], 125, &["cpuset"]);
    sandbox.update(["--memory-high=max"]);
    assert_eq!(unenforced(), "null", "what nobody asks for needs no enforcing");
}

#[test]
fn without_enforcement_nothing_is_written() {
    let host = Host::new();
    let off = host.sandbox().flag("--cgroup=off").create();
    let untouched = off.limits();
    assert_eq!((untouched.cpu.as_str(), untouched.memory.as_str()), ("max 100000", "max"));
    assert_eq!(untouched.weight, weight(1024), "the kernel's own");
    let task = off.task(IDLE).flag("--memory=32M").toml("cpu.shares = 300").start();
    assert_eq!(off.limits(), untouched);
    assert_eq!(task.cgroup_file("pids", "pids.max"), "4096", "the member's own are its own");
    let ran = off.bowline("update", ["--pids=20"]);
    assert!(ran.assert_code(0).err().contains("pids is ignored, as cgroup is \"off\""), "{ran}");
    assert_eq!(off.limits(), untouched);
    task.end();
}

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    let host = Host::new();
    host.sandbox().flag("--cpus=0.009").assert_refused(2, &["cpu.limit", "900 µs", "1000"]);
    host.sandbox().toml("cpu = {limit = 0.5, period = '1ms'}").assert_refused(125, &["cpu.limit", "500 µs"]);
    host.sandbox().flag("--qos=golden").assert_refused(2, &["qos", "golden"]);
    host.sandbox().toml("qos = 'golden'").assert_refused(125, &["qos", "golden"]);
    host.sandbox().toml("budget = 'generous'").assert_refused(125, &["budget", "generous"]);
    host.sandbox().flag("--cgroup=maybe").assert_refused(2, &["cgroup", "maybe"]);
    host.sandbox().toml("cpu.shares = -1").assert_refused(125, &["cpu.shares", "-1"]);
    let least = host.sandbox().flag("--cpus=0.01").create();
    assert_eq!(least.limits().cpu, "1000 100000");
    host.sandbox().toml("cpu.period = '50ms'\nbudget = 'members'").assert_refused(125, &["cpu.period", "members"]);
    let period = host.sandbox().toml("cpu.period = '50ms'").create();
    assert_eq!(period.limits().cpu, "max 50000");
    assert_update_refused(&least, ["--cpus=0.009"], 2, &["cpu.limit", "900 µs"]);
    let large = host.sandbox().flag("--cpuset=4000");
    large.assert_refused(125, &["cpuset.cpus", "4000"]);
}

/// CPU time of all members together so far, in µs.
fn used_usec(sandbox: &Sandbox<'_>) -> u64 {
    let stat = match only_v2() {
        true => sandbox.cgroup_file("cpu", "cpu.stat"),
        false => format!("usage_usec {}", nanoseconds(sandbox) / 1000),
    };
    stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok()).expect("a number")
}

fn nanoseconds(sandbox: &Sandbox<'_>) -> u64 {
    sandbox.cgroup_file("cpuacct", "cpuacct.usage").parse().expect("a number")
}

#[test]
fn two_busy_loops_are_held_to_the_joint_limit_together() {
    let host = Host::alone();
    let sandbox = host.sandbox().flag("--cpus=0.2").create();
    let tasks: Vec<_> = (0..2).map(|_| sandbox.task("while :; do :; done").start()).collect();
    let begun = eventually("both run", || {
        let both = tasks.iter().all(|task| task.stats()["cpu"]["usage_usec"].as_u64() > Some(5_000));
        both.then(|| (Instant::now(), used_usec(&sandbox)))
    });
    // 3 s and more of 0.2 CPUs.
    let (elapsed, used) = eventually("they have used 600 ms more", || {
        let used = used_usec(&sandbox) - begun.1;
        (used > 600_000).then(|| (begun.0.elapsed(), used))
    });
    let cpus = used as f64 / elapsed.as_micros() as f64;
    assert!(cpus < 0.22, "{cpus} CPUs: {used} µs in {elapsed:?}");
    assert!(cpus > 0.18 || is_slow(), "{cpus} CPUs: {used} µs in {elapsed:?}");
    assert!(sandbox.stats()["cpu"]["throttled_periods"].as_u64() > Some(10), "{}", sandbox.stats());
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn a_hog_is_killed_at_the_joint_limit_and_the_others_live_on() {
    for own in ["--memory=60M", "--pids=100"] {
        let host = Host::new();
        let sandbox = host.sandbox().flag("--memory=64M").create();
        let other = sandbox.task("x=$(head -c 10485760 /dev/zero | tr '\\0' x); echo ready; read y; echo ${#x}");
        let other = other.flag("--interactive").start();
        other.wait_for_line("ready");
        let hog = sandbox.task("exec tail /dev/zero").flag(own).start();
        let report = hog.wait();
        report.assert_killed_by("KILL");
        assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &true.into()), "{report:?}");
        assert_eq!(report["oom_cgroup"], sandbox.inspect()["cgroup"], "{report:?}");
        assert!(sandbox.stats()["memory"]["peak_bytes"].as_u64() > Some(60 << 20), "{}", sandbox.stats());
        assert_eq!((other.status().as_str(), &sandbox.inspect()["members"]), ("running", &[other.id()][..].into()));
        assert_eq!(other.end()["oom_killed"], false);
        host.assert_nothing_left();
    }
}

#[test]
fn a_fork_bomb_stops_at_the_joint_limit() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--pids=20").create();
    let other = sandbox.task(IDLE).start();
    let bomb = sandbox.task("(while :; do sleep 1000 & done) 2>&1; echo stopped; exec sleep 1000").start();
    bomb.wait_for_line("stopped");
    assert_eq!(sandbox.cgroup_file("pids", "pids.max"), "20");
    assert!(bomb.all_processes().len() >= 17, "{:?}", bomb.all_processes());
    let current: u64 = sandbox.cgroup_file("pids", "pids.current").parse().expect("a number");
    assert!(current <= 20, "{current}");
    assert_eq!(other.status(), "running");
    bomb.end();
    other.end();
}

#[test]
fn shim_and_helpers_are_charged_outside_the_sandbox_s_limits() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").flag("--pids=2").flag("--cpus=0.1").create();
    let overhead = format!("/bowline-overhead/{}", sandbox.on_host());
    assert_eq!(sandbox.inspect()["overhead"], *overhead);
    assert_cgroup_is(sandbox.shim_pid(), &overhead);
    let limits = Limits::of(&overhead);
    assert_eq!((limits.cpu.as_str(), limits.memory.as_str(), limits.pids.as_str()), ("max 100000", "max", "max"));
    let mut command = host.command("sleep");
    command.arg("1000");
    let helper = host.spawn_command(command);
    let pid = helper.pid().to_string();
    let ran = sandbox.bowline("charge", [&pid, "4194303"]);
    ran.assert_code(0);
    assert!(ran.err().contains("4194303") && !ran.err().contains(&pid), "{ran}");
    assert_cgroup_is(helper.pid(), &overhead);
    assert_eq!(sandbox.processes(), [0; 0], "it counts for nothing inside");
    // A member does not change where they are.
    let task = sandbox.task(IDLE).start();
    assert_cgroup_is(sandbox.shim_pid(), &overhead);
    task.end();
    helper.signal(rustix::process::Signal::KILL);
    helper.finish();
}

#[test]
fn a_helper_that_outlives_its_sandbox_is_let_go() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let mut command = host.command("sleep");
    command.arg("1000");
    let mut helper = host.spawn_command(command);
    sandbox.bowline("charge", [&*helper.pid().to_string()]).assert_code(0);
    sandbox.rm([]);
    assert!(helper.is_running(), "it is nobody's to kill");
    assert_cgroup_is(helper.pid(), "/");
    helper.signal(rustix::process::Signal::KILL);
    helper.finish();
}

#[test]
fn a_helper_is_let_go_when_the_shim_has_died_too() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let mut command = host.command("sleep");
    command.arg("1000");
    let mut helper = host.spawn_command(command);
    sandbox.bowline("charge", [&*helper.pid().to_string()]).assert_code(0);
    sandbox.task(IDLE).start();
    sandbox.kill_shim();
    sandbox.rm(["-f"]);
    assert!(helper.is_running(), "it is nobody's to kill");
    assert_cgroup_is(helper.pid(), "/");
    helper.signal(rustix::process::Signal::KILL);
    helper.finish();
}
