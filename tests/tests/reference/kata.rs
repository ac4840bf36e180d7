//! What Kata does of a sandbox's cgroups, function by function, with the kernel's files as witness. What it does
//! besides is in `sandbox::budgets`, `sandbox::limits` and `cgroup::commands`.

use std::fs;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{
    Limits, Process, Sandbox, assert_cgroup_is, eventually, has_systemd, hierarchies, hierarchy, lacks_systemd,
    only_v2, skip, weight,
};
use rustix::process::Signal;
use serde_json::json;

const IDLE: &str = "exec sleep 1000";

/// A process that helps a sandbox.
fn helper(host: &Host) -> Process {
    let mut command = host.command("sleep");
    command.arg("1000");
    host.spawn_command(command)
}

fn end(helper: Process) {
    helper.signal(Signal::KILL);
    helper.finish();
}

#[test]
fn rename_cgroup_path() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("overhead_prefix = 'kata_'\npids = 3").create();
    let overhead = format!("/bowline-overhead/kata_{}", sandbox.on_host());
    assert_eq!(sandbox.inspect()["overhead"], *overhead);
    assert_cgroup_is(sandbox.shim_pid(), &overhead);
    assert_eq!(Limits::of(&overhead).pids, "max");
    let helper = helper(&host);
    sandbox.bowline("charge", [&*helper.pid().to_string()]).assert_code(0);
    assert_cgroup_is(helper.pid(), &overhead);
    let found = host.bowline(["gc", "--dry-run"]).assert_code(0).out();
    assert!(!found.contains(sandbox.id()), "{found}");
    end(helper);
    // After a crash it is known by the record, once.
    sandbox.kill_shim();
    let found = host.bowline(["gc", "--dry-run"]);
    found.assert_code(0);
    let lines = |said: String| said.lines().filter(|line| line.contains(sandbox.id())).count();
    assert_eq!((lines(found.out()), lines(found.err())), (0, 1), "a new shim can take it over: {found}");
    sandbox.rm([]);
    let there = |path: &str| hierarchies().into_iter().map(|(_, mount)| mount.join(&path[1..])).find(|at| at.exists());
    assert_eq!(there(&overhead), None);
}

#[test]
fn rename_cgroup_path_inside_the_sandbox() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("overhead = 'inside'\noverhead_prefix = 'kata_'").create();
    assert_cgroup_is(sandbox.shim_pid(), &format!("/bowline/{}/kata_overhead", sandbox.on_host()));
    sandbox.rm([]);
    host.sandbox()
        .toml("overhead = 'root'\noverhead_prefix = 'kata_'")
        .assert_refused(125, &["overhead_prefix", "beside"]);
    host.sandbox().toml("overhead_prefix = '../'").assert_refused(125, &["overhead_prefix", "../"]);
}

#[test]
fn rename_cgroup_path_by_systemd() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("overhead_prefix = 'kata_'").flag("--cgroup-driver=systemd").create();
    let scope = format!("kata_bowline-{}:overhead.scope", sandbox.on_host());
    let inspected = sandbox.inspect();
    assert_eq!(inspected["overhead_unit"]["name"], *scope);
    assert_cgroup_is(sandbox.shim_pid(), inspected["overhead"].as_str().expect("a path"));
    sandbox.rm([]);
}

#[test]
fn move_to_parent_as_it_is_deleted() {
    let host = Host::new();
    for crash in [false, true] {
        let sandbox = host.sandbox().create();
        let mut helper = helper(&host);
        sandbox.bowline("charge", [&*helper.pid().to_string()]).assert_code(0);
        if crash {
            sandbox.kill_shim();
        }
        let ran = sandbox.bowline("rm", []);
        let told = format!(
            "process {}, which was charged to sandbox {}, is in the root cgroup now",
            helper.pid(),
            sandbox.id()
        );
        assert!(ran.assert_code(0).err().contains(&told), "{crash}: {ran}");
        assert!(helper.is_running(), "it is nobody's to kill");
        assert_cgroup_is(helper.pid(), "/");
        end(helper);
    }
}

#[test]
fn a_helper_moved_in_one_hierarchy_is_found_in_the_others() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    for crash in [false, true] {
        let sandbox = host.sandbox().create();
        let helper = helper(&host);
        sandbox.bowline("charge", [&*helper.pid().to_string()]).assert_code(0);
        fs::write(hierarchy("freezer").join("cgroup.procs"), helper.pid().to_string()).expect("it lives");
        if crash {
            sandbox.kill_shim();
        }
        let ran = sandbox.bowline("rm", []);
        assert!(ran.assert_code(0).err().contains(&helper.pid().to_string()), "{crash}: {ran}");
        assert_cgroup_is(helper.pid(), "/");
        end(helper);
    }
}

#[test]
fn delete_says_what_was_there() {
    let host = Host::new();
    let cgroup = host.elsewhere("own");
    let answer = |path: &str| host.bowline(["cgroup", "destroy", path, "--json"]).assert_code(0).json();
    assert_eq!(answer(cgroup.path()), json!({"format": 1, "was_there": true, "moved": []}));
    assert_eq!(answer(cgroup.path()), json!({"format": 1, "was_there": false, "moved": []}), "already gone is fine");
}

#[test]
fn add_process_of_none() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    for (pids, why) in [
        (&["4194303"][..], "4194303 is not a process"),
        (&["4194302", "4194303"], "none of 4194302, 4194303 is a process"),
        (&["web", "0", "-1"], "no process is named"),
    ] {
        let ran = host.bowline(["sandbox", "charge", sandbox.id()].into_iter().chain(pids.iter().copied()));
        ran.assert_refused(125, &["nothing is charged", sandbox.id(), why]);
    }
    // What is none beside one that is is skipped.
    let helper = helper(&host);
    let pid = helper.pid().to_string();
    let ran = sandbox.bowline("charge", ["web", "-1", &pid, "4194303"]);
    for skipped in ["web", "-1", "4194303"] {
        assert!(ran.assert_code(0).err().contains(&format!("{skipped} is not a process")), "{ran}");
    }
    assert_cgroup_is(helper.pid(), &format!("/bowline-overhead/{}", sandbox.on_host()));
    end(helper);
}

#[test]
fn update_container_whose_limit_is_lifted() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let [one, two] = [0.2, 0.3].map(|cpus| sandbox.task(IDLE).flag(format!("--cpus={cpus}")).start());
    let ran = one.bowline("update", ["--cpus=max"]);
    let told = format!("{} has no CPU limit of its own, and is held to that of the other members", one.id());
    assert!(ran.assert_code(0).err().contains(&told), "{ran}");
    assert_eq!(sandbox.limits().cpu, "30000 100000");
    // What holds nobody, and what is the same, is not said.
    assert_eq!(two.bowline("update", ["--cpus=0.4"]).assert_code(0).err(), "");
    assert_eq!(two.bowline("update", ["--cpus=max"]).assert_code(0).err(), "");
    assert_eq!(sandbox.limits().cpu, "max 100000");
    sandbox.lose(&one);
    sandbox.lose(&two);
}

/// A sandbox's joint CPU shares, or on v2 its weight; none where that is the kernel's, by systemd.
fn weight_of(sandbox: &Sandbox<'_>) -> Option<u64> {
    let file = sandbox.cgroup("cpu").join(if only_v2() { "cpu.weight" } else { "cpu.shares" });
    let found = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    found.filter(|found| sandbox.inspect()["unit"].is_null() || *found != weight(1024))
}

#[test]
fn update_resources_as_the_last_container_ends() {
    let host = Host::new();
    let drivers = if has_systemd() { vec!["cgroupfs", "systemd"] } else { vec!["cgroupfs"] };
    let budgets = [("members", 1024), ("given", 2), ("pod", 2)];
    for (driver, (budget, none)) in drivers.into_iter().flat_map(|driver| budgets.map(|of| (driver, of))) {
        let build = host.sandbox().toml(&format!("budget = '{budget}'"));
        let sandbox = build.flag(format!("--cgroup-driver={driver}")).create();
        // systemd takes the controller away from a slice without limits, which then has the kernel's own weight.
        let of = |shares| Some(weight(shares)).filter(|_| driver == "cgroupfs" || shares != 1024);
        assert_eq!(weight_of(&sandbox), of(none), "{budget}");
        let member = |shares: u64| {
            sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\ncpu.shares = {shares}")).start()
        };
        let (one, two) = (member(3000), member(500));
        sandbox.lose(&one);
        let shares = weight_of(&sandbox);
        // A pod's go by thousandths of a CPU.
        assert!([of(500), of(499)].contains(&shares), "{budget}: {shares:?}");
        sandbox.lose(&two);
        assert_eq!(weight_of(&sandbox), of(none), "{budget}");
        // Also of one that is killed, and removed at once.
        let last = member(4000);
        last.bowline("rm", ["-f"]).assert_code(0);
        eventually("the last is no member", || (sandbox.inspect()["members"] == json!([])).then_some(()));
        assert_eq!(weight_of(&sandbox), of(none), "{budget}");
        sandbox.rm([]);
    }
}

#[test]
fn update_resources_of_members_whose_periods_differ() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let member = |cpu: &str| sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\n{cpu}")).start();
    let fast = member("cpu.limit = 1");
    let slow = member("cpu = {limit = 0.1, period = '1s'}");
    // The sum in the longer period is 0.2 CPUs. On v1 the kernel holds the first to that, and takes no less than it has.
    let joint = |sandbox: &Sandbox<'_>| {
        let budget = sandbox.inspect()["budget"].clone();
        (budget["cpu_quota_usec"].clone(), budget["cpu_period_usec"].clone())
    };
    let expected = if only_v2() { 200_000 } else { 1_000_000 };
    assert_eq!(joint(&sandbox), (json!(expected), json!(1_000_000)));
    let notes = sandbox.inspect()["notes"].to_string();
    assert!(notes.contains("which is less"), "{notes}");
    sandbox.task("true").run().assert_code(0);
    fast.end();
    let expected = (json!(100_000), json!(1_000_000));
    eventually("the sandbox has what is left", || (joint(&sandbox) == expected).then_some(()));
    slow.end();
    sandbox.rm([]);
}

/// Whether the host's root cgroup has time for realtime scheduling that no other has been given.
fn has_realtime() -> bool {
    let top = hierarchy("cpu");
    let time = |folder: PathBuf| -> Option<i64> {
        fs::read_to_string(folder.join("cpu.rt_runtime_us")).ok()?.trim().parse().ok()
    };
    let others: i64 = fs::read_dir(&top).into_iter().flatten().flatten().filter_map(|entry| time(entry.path())).sum();
    time(top).is_some_and(|all| all - others >= 100_000)
}

#[test]
fn cpu_resources_with_realtime() {
    let host = Host::new();
    if only_v2() || !hierarchy("cpu").join("cpu.rt_runtime_us").exists() {
        let sandbox = host.sandbox().toml("cpu.realtime = '1ms'");
        sandbox.assert_refused(125, &["cpu.realtime", "only cgroup v1"]);
        return host.assert_nothing_left();
    }
    if !has_realtime() {
        skip("other cgroups have all the time of realtime processes");
        return host.assert_nothing_left();
    }
    // A new cgroup has none: what is above the sandbox gets some by hand.
    let above = host.elsewhere("rt");
    let file = |path: &str, file: &str| {
        let path = hierarchy("cpu").join(&path[1..]).join(file);
        fs::read_to_string(path).expect("a file of the cgroup").trim().to_owned()
    };
    fs::write(hierarchy("cpu").join(&above.path()[1..]).join("cpu.rt_runtime_us"), "50000").expect("root may");
    let build = host.sandbox().toml(&format!("budget = 'members'\nplace = '{}/'", above.path()));
    let sandbox = build.create();
    let at = sandbox.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let joint = || [file(&at, "cpu.rt_runtime_us"), file(&at, "cpu.rt_period_us")];
    assert_eq!(joint()[0], "0");
    let member = |realtime: &str| {
        sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\ncpu.realtime = '{realtime}'")).start()
    };
    let one = member("2ms");
    assert_eq!(joint(), ["2000", "1000000"]);
    let two = member("3ms");
    assert_eq!(joint(), ["5000", "1000000"]);
    assert_eq!(two.cgroup_file("cpu", "cpu.rt_runtime_us"), "3000");
    let budget = sandbox.inspect()["budget"].clone();
    assert_eq!((&budget["cpu_realtime_usec"], &budget["cpu_realtime_period_usec"]), (&json!(5000), &json!(1_000_000)));
    // Up and down.
    one.bowline("update", ["--realtime=10ms"]).assert_code(0);
    assert_eq!((joint()[0].as_str(), one.cgroup_file("cpu", "cpu.rt_runtime_us").as_str()), ("13000", "10000"));
    one.bowline("update", ["--realtime=1ms"]).assert_code(0);
    assert_eq!((joint()[0].as_str(), one.cgroup_file("cpu", "cpu.rt_runtime_us").as_str()), ("4000", "1000"));
    sandbox.lose(&one);
    assert_eq!(joint()[0], "3000");
    sandbox.lose(&two);
    assert_eq!(joint()[0], "0", "what nobody has is the others' to have");
    sandbox.bowline("update", ["--realtime=1ms"]).assert_refused(125, &["cpu.realtime", "members"]);
    sandbox.rm([]);
    // Nothing above has any of it where nobody gave it some.
    host.sandbox()
        .toml("cpu.realtime = '4ms'")
        .assert_refused(125, &["cpu.rt_runtime_us", "the cgroup above has less"]);
    host.described("command = 'true'\ncpu.realtime = '4ms'")
        .assert_refused(125, &["cpu.rt_runtime_us", "the cgroup above"]);
    // One that is given holds the members.
    let given = host.sandbox().toml(&format!("cpu.realtime = '4ms'\nplace = '{}/'", above.path())).create();
    given
        .described("command = 'true'\ncpu.realtime = '5ms'")
        .assert_refused(125, &["cpu.realtime", "5000 µs of every 1000000 µs", "4000 µs"]);
    given.rm([]);
    let none = host.sandbox().create();
    none.described("command = 'true'\ncpu.realtime = '5ms'")
        .assert_refused(125, &["cpu.realtime", "its sandbox has none"]);
    none.rm([]);
    host.bowline(["cgroup", "destroy", above.path()]).assert_code(0);
}
