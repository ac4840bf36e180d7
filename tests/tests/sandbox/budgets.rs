//! What members make of a sandbox's joint limits as they come, go and change, by
//! each rule: the kernel's files as witness.

use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Sandbox, Task, eventually, only_v2, skip, weight};

/// A member that does nothing, with these limits.
fn member<'h>(sandbox: &Sandbox<'h>, limits: &str) -> Task<'h> {
    sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\n{limits}")).start()
}

fn has_two_cpus() -> bool {
    Path::new("/sys/devices/system/cpu/cpu1").exists()
}

#[test]
fn shares_are_the_members_sum_where_no_cpu_limit_is_given() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let shares = || sandbox.limits().weight;
    assert_eq!(shares(), weight(2));
    let one = member(&sandbox, "cpu.shares = 512");
    assert_eq!(shares(), weight(512));
    let two = member(&sandbox, "cpu.shares = 256");
    let modest = member(&sandbox, "");
    assert_eq!(shares(), weight(770), "who asks for none has the least");
    assert_eq!(
        [&one, &two, &modest].map(|task| task.cpu_weight()),
        [512, 256, 2].map(weight),
        "and weighs no more beside others"
    );
    two.bowline("update", ["--cpu-shares=1024"]).assert_code(0);
    assert_eq!((shares(), two.cpu_weight()), (weight(1538), weight(1024)));
    sandbox.lose(&one);
    assert_eq!(shares(), weight(1026));
    let most = member(&sandbox, "cpu.shares = 262144");
    assert_eq!(shares(), weight(262_144));
    let notes = sandbox.inspect()["notes"].to_string();
    assert!(notes.contains("above the most"), "{notes}");
    // A CPU limit takes their place, and gives it back.
    sandbox.update(["--cpus=0.5"]);
    assert_eq!((shares(), sandbox.limits().cpu.as_str()), (weight(1024), "50000 100000"));
    sandbox.update(["--cpus=max"]);
    assert_eq!((shares(), sandbox.limits().cpu.as_str()), (weight(262_144), "max 100000"));
    sandbox.update(["--cpu-shares=300"]);
    assert_eq!(shares(), weight(300), "what is given is not summed");
    for task in [two, modest, most] {
        sandbox.lose(&task);
    }
    assert_eq!(shares(), weight(300));
}

#[test]
fn the_members_limits_make_the_budget_and_follow_them() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'\nmemory.limit = '1G'\npids = 500").create();
    let limits = || sandbox.limits();
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("max 100000", "1073741824"));
    let one = member(&sandbox, "cpu = {limit = 0.2, shares = 300}\nmemory.limit = '64M'");
    assert_eq!((limits().cpu.as_str(), limits().weight), ("20000 100000", weight(300)));
    let two = member(&sandbox, "cpu = {limit = 0.3, shares = 200}");
    assert_eq!((limits().cpu.as_str(), limits().weight), ("50000 100000", weight(300)));
    assert_eq!((limits().memory.as_str(), limits().pids.as_str()), ("1073741824", "500"), "what is given stays");
    // Up, down, and beyond what the kernel takes of a member.
    one.bowline("update", ["--cpus=1"]).assert_code(0);
    assert_eq!((limits().cpu.as_str(), quota_of(&one).as_str()), ("130000 100000", "100000"));
    one.bowline("update", ["--cpus=0.1", "--cpu-shares=100"]).assert_code(0);
    assert_eq!((limits().cpu.as_str(), limits().weight), ("40000 100000", weight(200)));
    one.bowline("update", ["--cpus=1", "--cpuset=4000"]).assert_refused(125, &["cpuset"]);
    assert_eq!((limits().cpu.as_str(), quota_of(&one).as_str()), ("40000 100000", "10000"));
    // Who has none is held to the others', and told.
    let free = member(&sandbox, "");
    assert_eq!(limits().cpu, "40000 100000");
    let notes = sandbox.inspect()["notes"].to_string();
    assert!(notes.contains(free.id()) && notes.contains("CPU limit"), "{notes}");
    one.bowline("update", ["--cpus=max"]).assert_code(0);
    assert_eq!((limits().cpu.as_str(), quota_of(&one).as_str()), ("30000 100000", "max"));
    sandbox.bowline("update", ["--cpus=1"]).assert_refused(125, &["cpu.limit", "members"]);
    sandbox.lose(&two);
    assert_eq!((limits().cpu.as_str(), limits().weight), ("max 100000", weight(100)));
    sandbox.lose(&one);
    sandbox.lose(&free);
    assert_eq!(limits().weight, weight(1024), "the kernel's own, as nobody asks");
}

/// The kernel of v1 counts a member's cgroup for some time after it was removed, and refuses less for the sandbox till
/// then.
#[test]
fn a_member_that_has_ended_leaves_its_time_to_nobody() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let small = member(&sandbox, "cpu.limit = 0.25");
    let large = member(&sandbox, "cpu.limit = 0.5");
    assert_eq!(sandbox.limits().cpu, "75000 100000");
    large.bowline("stop", ["--grace=0"]).assert_code(0);
    eventually("the joint limit is lower", || (sandbox.limits().cpu == "25000 100000").then_some(()));
    for cpus in ["0.5", "0.1"].into_iter().cycle().take(16) {
        host.bowline(["run", "--rm", "--sandbox", sandbox.id(), "--cpus", cpus, "--", "true"]).assert_code(0);
    }
    eventually("the joint limit is as before", || (sandbox.limits().cpu == "25000 100000").then_some(()));
    large.bowline("rm", []).assert_code(0);
    sandbox.lose(&small);
}

/// A member's own CPU time in each period.
fn quota_of(task: &Task<'_>) -> String {
    let text = match only_v2() {
        true => task.cgroup_file("cpu", "cpu.max"),
        false => task.cgroup_file("cpu", "cpu.cfs_quota_us"),
    };
    let quota = text.split(' ').next().expect("a word").to_owned();
    if quota == "-1" { "max".to_owned() } else { quota }
}

#[test]
fn cpus_are_those_that_members_name_and_all_when_nobody_does() {
    if !has_two_cpus() {
        return skip("this host has one CPU");
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let (cpus, all) = (|| sandbox.limits().cpus, sandbox.limits().cpus);
    // One that names none is there already.
    let free = member(&sandbox, "");
    let frees = || free.exec("grep Cpus_allowed_list /proc/self/status").out().replace("Cpus_allowed_list:\t", "");
    let one = member(&sandbox, "cpu.cpuset = '0'");
    assert_eq!((cpus(), frees()), ("0".to_owned(), "0".to_owned()));
    one.bowline("update", ["--cpuset=1"]).assert_code(0);
    assert_eq!((cpus(), frees()), ("1".to_owned(), "1".to_owned()));
    let two = member(&sandbox, "cpu.cpuset = '0'");
    assert_eq!((cpus(), frees()), ("0-1".to_owned(), "0-1".to_owned()));
    sandbox.lose(&one);
    assert_eq!((cpus(), frees()), ("0".to_owned(), "0".to_owned()));
    sandbox.lose(&two);
    assert_eq!((cpus(), frees()), (all.clone(), all));
    sandbox.lose(&free);
}

#[test]
fn cpus_that_are_given_move_with_the_members_that_name_none() {
    if !has_two_cpus() {
        return skip("this host has one CPU");
    }
    let host = Host::new();
    let sandbox = host.sandbox().flag("--cpuset=0-1").create();
    let free = member(&sandbox, "");
    let pinned = member(&sandbox, "cpu.cpuset = '1'");
    let of = |task: &Task<'_>| task.exec("grep Cpus_allowed_list /proc/self/status").out();
    sandbox.update(["--cpuset=1"]);
    assert_eq!((sandbox.limits().cpus.as_str(), of(&free).as_str()), ("1", "Cpus_allowed_list:\t1"));
    if !only_v2() {
        // v2 gives a member what it has of its CPUs, or its parent's.
        sandbox.bowline("update", ["--cpuset=0"]).assert_refused(125, &["cpuset.cpus"]);
        assert_eq!((sandbox.limits().cpus.as_str(), of(&free).as_str()), ("1", "Cpus_allowed_list:\t1"));
    }
    sandbox.update(["--cpuset=0-1"]);
    assert_eq!((sandbox.limits().cpus.as_str(), of(&free).as_str()), ("0-1", "Cpus_allowed_list:\t0-1"));
    assert_eq!(of(&pinned), "Cpus_allowed_list:\t1");
    free.end();
    pinned.end();
}

#[test]
fn a_pod_has_what_its_members_ask_for_and_may_have() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'\npids = 300").create();
    let limits = || sandbox.limits();
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str(), limits().pids.as_str()), ("max 100000", "max", "300"));
    let one = member(&sandbox, "cpu.limit = 0.2\nmemory.limit = '64M'");
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("20000 100000", "67108864"));
    assert_eq!(limits().weight, weight(204), "1024 a CPU");
    let two = member(&sandbox, "cpu = {limit = 0.3, shares = 102}\nmemory.limit = '32M'");
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("50000 100000", "100663296"));
    assert_eq!(limits().weight, weight(307));
    two.bowline("update", ["--memory=128M", "--cpus=0.1"]).assert_code(0);
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("30000 100000", "201326592"));
    // A limit is only the whole's if every member has one.
    let free = member(&sandbox, "memory.limit = '16M'");
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("max 100000", "218103808"));
    let none = member(&sandbox, "");
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("max 100000", "max"));
    assert_eq!(
        [&one, &two, &free, &none].map(|task| task.cpu_weight()),
        [204, 102, 2, 2].map(weight),
        "as in the kubelet's pods"
    );
    one.bowline("update", ["--cpus=0.5"]).assert_code(0);
    assert_eq!(one.cpu_weight(), weight(512));
    one.bowline("update", ["--cpus=0.2"]).assert_code(0);
    sandbox.lose(&none);
    sandbox.lose(&free);
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("30000 100000", "201326592"));
    sandbox.bowline("update", ["--memory=1G"]).assert_refused(125, &["memory.limit", "pod"]);
    sandbox.update(["--pids=200"]);
    assert_eq!((limits().pids.as_str(), limits().memory.as_str()), ("200", "201326592"));
    sandbox.lose(&two);
    sandbox.lose(&one);
    assert_eq!((limits().cpu.as_str(), limits().memory.as_str()), ("max 100000", "max"));
    assert_eq!(limits().weight, weight(2));
}

#[test]
fn a_pods_huge_pages_come_and_go_with_its_members() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let build = sandbox.described("command = 'sleep'\nargs = ['1000']\nhugepages = {2MB = '8M'}");
    let id = build.id().to_owned();
    let ran = build.try_start();
    if ran.code != Some(0) {
        ran.assert_refused(125, &["hugetlb"]);
        return host.assert_nothing_left();
    }
    let one = host.adopt(id);
    let two = member(&sandbox, "hugepages = {2MB = '4M'}");
    let folder = sandbox.cgroup("hugetlb");
    let files = ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"].map(|file| folder.join(file));
    let file = files.iter().find(|file| file.exists()).expect("one of the two");
    let limit = || std::fs::read_to_string(file).expect("it is there").trim_end().to_owned();
    assert_eq!(limit(), "12582912");
    sandbox.lose(&one);
    assert_eq!(limit(), "4194304");
    sandbox.lose(&two);
    assert!(limit() == "max" || limit().parse::<u64>().is_ok_and(|bytes| bytes > 1 << 62), "{}", limit());
}

#[test]
fn the_class_is_what_members_make_or_the_one_that_is_given() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let class = |sandbox: &Sandbox<'_>| sandbox.inspect()["class"].as_str().expect("a class").to_owned();
    assert_eq!(class(&sandbox), "best-effort");
    let held = member(&sandbox, "cpu.limit = 0.2\nmemory.limit = '64M'");
    assert_eq!(class(&sandbox), "guaranteed");
    held.bowline("update", ["--cpus=max"]).assert_code(0);
    assert_eq!(class(&sandbox), "burstable");
    held.bowline("update", ["--cpus=0.2"]).assert_code(0);
    assert_eq!(class(&sandbox), "guaranteed");
    let free = member(&sandbox, "");
    assert_eq!(class(&sandbox), "burstable");
    sandbox.lose(&held);
    assert_eq!(class(&sandbox), "best-effort");
    let listed = host.bowline(["sandbox", "ls"]).out();
    assert!(listed.contains(sandbox.id()) && listed.contains("best-effort"), "{listed}");
    sandbox.lose(&free);
    let given = host.sandbox().flag("--qos=Burstable").create();
    member(&given, "cpu.limit = 0.2\nmemory.limit = '64M'").end();
    assert_eq!(class(&given), "burstable");
}

#[test]
fn members_that_come_and_go_at_the_same_time_are_all_counted() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let begun: Vec<_> = (0..8)
        .map(|_| sandbox.described("command = 'sleep'\nargs = ['1000']\ncpu.limit = 0.05").spawn_start())
        .collect();
    let tasks: Vec<Task<'_>> = begun.into_iter().map(|(task, start)| (start.finish().assert_code(0), task).1).collect();
    assert_eq!(sandbox.limits().cpu, "40000 100000");
    let (updated, ended) = tasks.split_at(4);
    let updates: Vec<_> = updated.iter().map(|task| host.spawn(["update", task.id(), "--cpus=0.1"])).collect();
    let stops: Vec<_> = ended.iter().map(|task| host.spawn(["stop", "--grace=0", task.id()])).collect();
    for process in updates.into_iter().chain(stops) {
        process.finish().assert_code(0);
    }
    eventually("four are left", || (sandbox.inspect()["members"].as_array()?.len() == 4).then_some(()));
    assert_eq!(sandbox.limits().cpu, "40000 100000");
    updated.iter().for_each(|task| sandbox.lose(task));
    assert_eq!(sandbox.limits().cpu, "max 100000");
}

#[test]
fn updates_at_the_same_time_come_one_after_the_other() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").create();
    let task = member(&sandbox, "memory.limit = '32M'");
    let good = (20..30).map(|n| format!("--pids={n}"));
    // Every other one is refused, and must not undo what the next one does.
    let all: Vec<String> = good.flat_map(|pids| [pids, "--memory=16M".to_owned()]).collect();
    let updates: Vec<_> = all.iter().map(|flag| host.spawn(["sandbox", "update", sandbox.id(), flag])).collect();
    for (update, flag) in updates.into_iter().zip(&all) {
        let ran = update.finish();
        if flag.starts_with("--pids") {
            ran.assert_code(0)
        } else {
            ran.assert_refused(125, &["16M", "32M"])
        };
    }
    let inspected = sandbox.inspect();
    assert_eq!(inspected["sandbox"]["pids"].to_string(), sandbox.limits().pids, "file and record agree");
    assert_eq!((&inspected["sandbox"]["memory"]["limit"], &*sandbox.limits().memory), (&"64M".into(), "67108864"));
    task.end();
}

#[test]
fn a_raw_limit_that_a_budget_counts_is_refused() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let task = member(&sandbox, "cpu.limit = 0.5\nmemory.limit = '80M'");
    for (raw, field) in [("memory.max=120M", "memory.limit"), ("cpu.max=80000 100000", "cpu.limit")] {
        task.bowline("update", [&*format!("--unified={raw}")])
            .assert_refused(125, &[raw.split('=').next().expect("a file"), field]);
    }
    assert_eq!(task.cgroup_file("", "memory.max"), "83886080");
    sandbox
        .described("command = 'true'\nunified = {'memory.max' = '64M'}")
        .assert_refused(125, &["unified.memory.max", "memory.limit"]);
    let idle = member(&sandbox, "unified = {'cpu.idle' = '1'}");
    assert_eq!(idle.cgroup_file("", "cpu.idle"), "1");
    sandbox.lose(&idle);
    sandbox.lose(&task);
}
