//! Limits: the kernel's files as witness, and that they bite.

use bowline_tests::Host;
use bowline_tests::harness::{disk, eventually, skip};

const IDLE: &str = "command = 'sleep'\nargs = ['1000']\n";

/// With these lines in its description, this file of the task's cgroup has this value.
#[track_caller]
fn assert_file(toml: &str, controller: &str, file: &str, value: &str) {
    let host = Host::new();
    let task = host.described(&format!("{IDLE}{toml}")).start();
    assert_eq!(task.cgroup_file(controller, file), value, "{file} with {toml}");
    task.end();
    host.assert_nothing_left();
}

#[test]
fn memory_limit() {
    assert_file("memory.limit = '64M'", "memory", "memory.limit_in_bytes", "67108864");
}

#[test]
fn a_task_is_not_swapped_out_by_default() {
    assert_file("memory.limit = '64M'", "memory", "memory.swappiness", "0");
}

#[test]
fn swap_counts_beyond_the_memory_limit() {
    assert_file("memory = {limit = '64M', swap = '16M'}", "memory", "memory.memsw.limit_in_bytes", "83886080");
    assert_file("memory = {limit = '64M', swap = 0}", "memory", "memory.memsw.limit_in_bytes", "67108864");
}

#[test]
fn memory_low_is_the_soft_limit() {
    assert_file("memory = {limit = '64M', low = '32M'}", "memory", "memory.soft_limit_in_bytes", "33554432");
}

#[test]
fn memory_high_is_refused_where_the_kernel_has_none() {
    let host = Host::new();
    host.described(&format!("{IDLE}memory.high = '64M'")).assert_refused(125, &["memory.high"]);
    host.assert_nothing_left();
}

#[test]
fn cpu_limit() {
    assert_file("cpu.limit = 0.5", "cpu", "cpu.cfs_quota_us", "50000");
    assert_file("cpu = {limit = 1.5, period = '50ms'}", "cpu", "cpu.cfs_quota_us", "75000");
    assert_file("cpu = {limit = 1.5, period = '50ms'}", "cpu", "cpu.cfs_period_us", "50000");
}

#[test]
fn cpu_shares() {
    assert_file("cpu.shares = 512", "cpu", "cpu.shares", "512");
}

#[test]
fn cpuset() {
    assert_file("cpu.cpuset = '0'", "cpuset", "cpuset.cpus", "0");
    assert_file("cpu.mems = 0", "cpuset", "cpuset.mems", "0");
}

#[test]
fn the_task_may_run_on_the_cpuset_only() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'grep Cpus_allowed_list /proc/self/status']\ncpu.cpuset = '0'";
    host.described(toml).run().assert_says("Cpus_allowed_list:\t0");
    host.assert_nothing_left();
}

#[test]
fn pids() {
    assert_file("pids = 17", "pids", "pids.max", "17");
    assert_file("pids = 'max'", "pids", "pids.max", "max");
    assert_file("", "pids", "pids.max", "4096");
}

#[test]
fn rates_of_a_disk() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let limits = "read_bps = '1M', write_bps = '2M', read_iops = 30, write_iops = 40";
    let toml = format!("io.devices = [{{path = '{major}:{minor}', {limits}}}]");
    for (file, value) in [("read_bps", 1 << 20), ("write_bps", 2 << 20), ("read_iops", 30), ("write_iops", 40)] {
        let file = format!("blkio.throttle.{file}_device");
        assert_file(&toml, "blkio", &file, &format!("{major}:{minor} {value}"));
    }
}

#[test]
fn flags_set_the_same_limits() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=32M").flag("--cpus=0.25").flag("--pids=5").start();
    assert_eq!(task.cgroup_file("memory", "memory.limit_in_bytes"), "33554432");
    assert_eq!(task.cgroup_file("cpu", "cpu.cfs_quota_us"), "25000");
    assert_eq!(task.cgroup_file("pids", "pids.max"), "5");
    task.end();
    host.assert_nothing_left();
}

#[test]
fn every_process_of_the_task_is_in_the_cgroup_of_every_hierarchy() {
    let host = Host::new();
    let task = host.task("sleep 1000 & sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    eventually("three processes", || (task.processes().len() == 3).then_some(()));
    let cgroup = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    for pid in task.processes() {
        let of = bowline_tests::harness::cgroup_of(pid);
        let v1 = of.iter().filter(|(controllers, _)| !controllers.is_empty());
        for (controllers, path) in v1 {
            assert_eq!(*path, cgroup, "{controllers} of {pid}");
        }
    }
    task.end();
    host.assert_nothing_left();
}

#[test]
fn the_least_memory_that_is_taken_is_enough_to_start() {
    let host = Host::new();
    for _ in 0..10 {
        host.task("echo started").flag("--memory=6M").run().assert_says("started");
    }
    host.assert_nothing_left();
}

#[test]
fn a_task_that_takes_too_much_memory_is_killed_and_the_report_says_why() {
    let host = Host::new();
    let task = host.task("exec tail /dev/zero").flag("--memory=32M").start();
    let report = task.wait();
    report.assert_code(137).assert_killed_by("KILL");
    assert_eq!(report["signal_sent_by_shim"], false);
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &true.into()), "{report:?}");
    assert_eq!(report["oom_cgroup"], task.inspect()["cgroup"]);
    assert!(report.number("memory_peak_bytes") >= 30 << 20, "{report:?}");
    host.assert_nothing_left();
}

#[test]
fn a_child_that_takes_too_much_memory_is_reported_though_init_goes_on() {
    let host = Host::new();
    let task = host.task("tail /dev/zero; echo survived; exit 3").flag("--memory=32M").start();
    let report = task.wait();
    report.assert_code(3);
    assert!(report["signal"].is_null(), "{report:?}");
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &false.into()), "{report:?}");
    assert_eq!(task.log("stdout.log"), "survived\n");
    host.assert_nothing_left();
}

#[test]
fn an_exec_that_takes_too_much_memory_is_the_tasks_lack_of_memory() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=32M").start();
    task.exec("exec tail /dev/zero").assert_code(137);
    assert_eq!(task.status(), "running");
    assert!(task.stats()["memory"]["oom_kills"].as_u64() >= Some(1));
    let report = task.end();
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &false.into()), "{report:?}");
    host.assert_nothing_left();
}

#[test]
fn a_fork_bomb_is_stopped_by_the_pids_limit() {
    let host = Host::new();
    let bomb = "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i + 1)); done";
    let task = host.task(&format!("({bomb}) 2>/dev/null; echo done; exec sleep 1000")).flag("--pids=16").start();
    task.wait_for_line("done");
    assert!(task.processes().len() <= 16, "{:?}", task.processes());
    let met = task.cgroup_file("pids", "pids.events");
    assert!(met.lines().any(|line| line.starts_with("max ") && line != "max 0"), "{met}");
    let stats = task.stats();
    assert!(stats["pids"]["current"].as_u64() <= Some(16) && stats["pids"]["limit"] == 16, "{stats}");
    task.end();
    host.assert_nothing_left();
}

#[test]
fn a_task_that_takes_too_much_cpu_is_throttled_and_the_report_counts_it() {
    let host = Host::new();
    let task = host.task("while :; do :; done").flag("--cpus=0.1").start();
    eventually("it is throttled", || (task.stats()["cpu"]["throttled_periods"].as_u64() > Some(2)).then_some(()));
    let report = task.end();
    assert!(report.number("throttled_periods") > 2 && report.number("throttled_usec") > 0, "{report:?}");
    host.assert_nothing_left();
}

#[test]
fn stats_have_every_field() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").start();
    let stats = task.stats();
    assert_eq!(stats["id"], task.id());
    assert!(stats["read_at"].as_str().is_some_and(|t| t.parse::<jiff::Timestamp>().is_ok()), "{stats}");
    for (group, fields) in [
        ("cpu", ["usage_usec", "user_usec", "system_usec", "throttled_periods", "throttled_usec"].as_slice()),
        ("memory", &["usage_bytes", "peak_bytes", "limit_bytes", "oom_kills"]),
        ("pids", &["current", "limit"]),
    ] {
        for field in fields {
            assert!(stats[group][field].is_u64(), "{group}.{field} in {stats}");
        }
    }
    assert_eq!(stats["memory"]["limit_bytes"], 64 << 20);
    assert_eq!(stats["pids"]["current"], 1);
    task.bowline("stats", []).assert_code(0);
    task.end();
    host.assert_nothing_left();
}

#[test]
fn stats_of_a_task_that_has_exited_are_an_error() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    task.bowline("stats", []).assert_refused(125, &[task.id()]);
    host.assert_nothing_left();
}

#[test]
fn the_cgroup_may_be_chosen() {
    let host = Host::new();
    let path = format!("/{}-parent/child", host.prefix());
    let task = host.described(&format!("{IDLE}cgroup = '{path}'\npids = 3")).start();
    assert_eq!(task.inspect()["cgroup"], path);
    assert_eq!(task.cgroup_file("pids", "pids.max"), "3");
    task.end();
    host.assert_nothing_left();
}

#[test]
fn oom_score_and_rlimits_are_as_described() {
    let host = Host::new();
    let shell = "cat /proc/self/oom_score_adj; ulimit -Sn; ulimit -Hn; ulimit -c";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{shell}']\noom_score_adj = 500\nrlimits = {{nofile = '256:1024', core = 0}}"
    );
    host.described(&toml).run().assert_says("500\n256\n1024\n0");
    host.assert_nothing_left();
}

#[test]
fn the_shims_own_oom_score_stays() {
    let host = Host::new();
    let task = host.described(&format!("{IDLE}oom_score_adj = 500")).start();
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", task.shim_pid())).expect("a live shim");
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("procfs");
    assert_eq!(score, own);
    task.end();
    host.assert_nothing_left();
}
