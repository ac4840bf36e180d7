//! What is written to the files of a sandbox's joint cgroup, as strace sees it:
//! what changes, once, and nothing else.

use std::collections::BTreeMap;

use bowline_tests::Host;
use bowline_tests::harness::{Sandbox, Task, Trace, eventually, only_v2};

/// How often the shim, and who works for it, has written to each file of the
/// joint cgroup while `act` went on. Files by which processes and controllers
/// move do not count.
#[track_caller]
fn written(host: &Host, sandbox: &Sandbox<'_>, act: impl FnOnce()) -> BTreeMap<String, usize> {
    let flags = ["-f", "-y", "-s", "64", "-e", "trace=write,pwrite64,writev"];
    let trace = Trace::of(host, sandbox.shim_pid(), flags);
    act();
    let trace = trace.end();
    let cgroup = sandbox.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let mut counts = BTreeMap::new();
    for line in trace.lines() {
        // 4711 write(9</sys/fs/cgroup/pids/bowline/shop/pids.max>, "50", 2) = 2
        let path = line.split_once('<').and_then(|(_, rest)| Some(rest.split_once('>')?.0)).unwrap_or_default();
        let (folder, file) = path.rsplit_once('/').unwrap_or_default();
        let moves = file == "tasks" || file.starts_with("cgroup.");
        if folder.starts_with("/sys/fs/cgroup") && folder.ends_with(&cgroup) && !moves {
            *counts.entry(file.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Ends a member, and waits until the budget is without it.
#[track_caller]
fn leave(sandbox: &Sandbox<'_>, task: &Task<'_>) {
    task.end();
    let counted = || sandbox.inspect()["members"].as_array().expect("a list").contains(&task.id().into());
    eventually("the budget is without it", || (!counted()).then_some(()));
}

/// Each of these files, which are named as on v1, once.
fn once(files: &[&str]) -> BTreeMap<String, usize> {
    let here = |file| match file {
        "memory.limit_in_bytes" if only_v2() => "memory.max",
        "cpu.cfs_quota_us" | "cpu.cfs_period_us" if only_v2() => "cpu.max",
        "cpu.shares" if only_v2() => "cpu.weight",
        file => file,
    };
    files.iter().map(|file| (here(*file).to_owned(), 1)).collect()
}

/// A quota and its period are written together.
const CPU_TIME: [&str; 2] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"];

#[test]
fn an_update_writes_each_file_that_changes_once() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").flag("--cpus=0.5").flag("--pids=50").create();
    let update = |flags: &[&str]| {
        written(&host, &sandbox, || {
            let args = ["sandbox", "update", sandbox.id()].into_iter().chain(flags.iter().copied());
            host.bowline(args).assert_code(0);
        })
    };
    assert_eq!(update(&["--pids=60"]), once(&["pids.max"]));
    assert_eq!(update(&["--memory=96M", "--pids=60"]), once(&["memory.limit_in_bytes"]));
    let all = [&CPU_TIME[..], &["memory.limit_in_bytes", "pids.max"]].concat();
    assert_eq!(update(&["--memory=128M", "--cpus=1", "--pids=70"]), once(&all));
    assert_eq!(update(&["--memory=128M", "--cpus=1", "--pids=70"]), once(&[]), "all of it is in effect");
}

#[test]
fn a_member_writes_what_the_rule_makes_of_it_once() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    // What members ask for is spared, on v2 alone.
    let spared: &[&str] = if only_v2() { &["memory.min"] } else { &[] };
    let memory = [&["memory.limit_in_bytes"], spared].concat();
    let all = [&CPU_TIME[..], &["cpu.shares"], &memory].concat();
    // Without members the pod is slowed down when it uses most of the host's memory; these may have what they ask for.
    let lifted: &[&str] = if only_v2() { &["memory.high"] } else { &[] };
    let mut tasks = Vec::new();
    for first in [true, false] {
        let counts = written(&host, &sandbox, || {
            tasks.push(sandbox.task("exec sleep 1000").flag("--memory=32M").flag("--cpus=0.25").start());
        });
        assert_eq!(counts, once(&[&all[..], if first { lifted } else { &[] }].concat()));
    }
    let counts = written(&host, &sandbox, || {
        tasks[0].bowline("update", ["--memory=48M"]).assert_code(0);
    });
    assert_eq!(counts, once(&memory));
    let counts = written(&host, &sandbox, || leave(&sandbox, &tasks[1]));
    assert_eq!(counts, once(&all));
    tasks[0].end();
}

#[test]
fn members_of_a_budget_that_is_given_write_nothing() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=64M").flag("--cpus=0.5").create();
    let counts = written(&host, &sandbox, || {
        let task = sandbox.task("exec sleep 1000").flag("--memory=32M").flag("--cpus=0.25").start();
        task.bowline("update", ["--memory=48M"]).assert_code(0);
        leave(&sandbox, &task);
    });
    assert_eq!(counts, once(&[]));
}

#[test]
fn what_a_member_had_that_ran_out_of_memory_is_given_back() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'members'").create();
    let stays = sandbox.task("exec sleep 1000").flag("--cpus=0.1").start();
    let greedy = "x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 1000";
    let ran = sandbox.task(greedy).flag("--cpus=0.8").flag("--memory=6M").run();
    ran.assert_code(137);
    eventually("its CPU time is given back", || {
        (sandbox.cgroup_file("cpu", "cpu.cfs_quota_us") == "10000").then_some(())
    });
    drop(stays);
    sandbox.rm(["-f"]);
    host.assert_nothing_left_without_rm();
}
