//! Limits: the kernel's files as witness, and that they bite.

use std::fs;
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{cgroup_of, disk, eventually, hierarchies, lacks, only_v2, skip};

const IDLE: &str = "command = 'sleep'\nargs = ['1000']\n";

/// A file of the task's cgroup, named after its controller, and a line of it.
type Line<'a> = (&'a str, &'a str);

/// With these lines in its description, the task's cgroup has this in its file,
/// where the host's controllers are on v1, and that where they are on v2.
#[track_caller]
fn assert_limit(toml: &str, v1: Line<'_>, v2: Line<'_>) {
    assert_file(toml, if only_v2() { v2 } else { v1 });
}

#[track_caller]
fn assert_file(toml: &str, (file, value): Line<'_>) {
    let host = Host::new();
    let task = host.described(&format!("{IDLE}{toml}")).start();
    let controller = file.split('.').next().unwrap_or_default();
    let text = task.cgroup_file(controller, file);
    assert!(text.lines().any(|line| line == value), "{file} should have {value:?} with {toml}, has {text:?}");
    task.end();
}

/// `bowline run` refuses these lines for a reason that has all of `parts`.
#[track_caller]
fn assert_refused(toml: &str, parts: &[&str]) {
    let host = Host::new();
    host.described(&format!("{IDLE}{toml}")).assert_refused(125, parts);
}

#[test]
fn memory_limit() {
    let toml = "memory.limit = '64M'";
    assert_limit(toml, ("memory.limit_in_bytes", "67108864"), ("memory.max", "67108864"));
}

#[test]
fn a_task_is_not_swapped_out_by_default() {
    assert_limit("memory.limit = '64M'", ("memory.swappiness", "0"), ("memory.swap.max", "0"));
}

#[test]
fn swap_counts_beyond_the_memory_limit() {
    let some = "memory = {limit = '64M', swap = '16M'}";
    assert_limit(some, ("memory.memsw.limit_in_bytes", "83886080"), ("memory.swap.max", "16777216"));
    let none = "memory = {limit = '64M', swap = 0}";
    assert_limit(none, ("memory.memsw.limit_in_bytes", "67108864"), ("memory.swap.max", "0"));
    let any = "memory = {limit = '64M', swap = 'max'}";
    assert_limit(any, ("memory.memsw.limit_in_bytes", "9223372036854771712"), ("memory.swap.max", "max"));
}

#[test]
fn memory_low_is_spared() {
    let toml = "memory = {limit = '64M', low = '32M'}";
    assert_limit(toml, ("memory.soft_limit_in_bytes", "33554432"), ("memory.low", "33554432"));
}

#[test]
fn memory_high_is_v2s_and_refused_on_v1() {
    if only_v2() {
        assert_file("memory.high = '64M'", ("memory.high", "67108864"));
    } else {
        assert_refused("memory.high = '64M'", &["memory.high"]);
    }
}

#[test]
fn cpu_limit() {
    assert_limit("cpu.limit = 0.5", ("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000"));
    let toml = "cpu = {limit = 1.5, period = '50ms'}";
    assert_limit(toml, ("cpu.cfs_quota_us", "75000"), ("cpu.max", "75000 50000"));
    assert_limit(toml, ("cpu.cfs_period_us", "50000"), ("cpu.max", "75000 50000"));
}

#[test]
fn cpu_shares() {
    for (shares, weight) in [("2", "1"), ("1024", "100"), ("262144", "10000")] {
        assert_limit(&format!("cpu.shares = {shares}"), ("cpu.shares", shares), ("cpu.weight", weight));
    }
}

#[test]
fn cpuset() {
    assert_file("cpu.cpuset = '0'", ("cpuset.cpus", "0"));
    assert_file("cpu.mems = 0", ("cpuset.mems", "0"));
}

#[test]
fn the_task_may_run_on_the_cpuset_only() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'grep Cpus_allowed_list /proc/self/status']\ncpu.cpuset = '0'";
    host.described(toml).run().assert_says("Cpus_allowed_list:\t0");
}

#[test]
fn pids() {
    assert_file("pids = 17", ("pids.max", "17"));
    assert_file("pids = 'max'", ("pids.max", "max"));
    assert_file("", ("pids.max", "4096"));
}

#[test]
fn rates_of_a_disk() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let limits = "read_bps = '1M', write_bps = '2M', read_iops = 30, write_iops = 40";
    let toml = format!("io.devices = [{{path = '{major}:{minor}', {limits}}}]");
    let on_v2 = format!("{major}:{minor} rbps=1048576 wbps=2097152 riops=30 wiops=40");
    for (file, value) in [("read_bps", 1 << 20), ("write_bps", 2 << 20), ("read_iops", 30), ("write_iops", 40)] {
        let file = format!("blkio.throttle.{file}_device");
        assert_limit(&toml, (&file, &format!("{major}:{minor} {value}")), ("io.max", &on_v2));
    }
}

#[test]
fn weight_of_all_disks() {
    // Which of the schedulers that know a weight a kernel has, its files say.
    let known = ["io.weight", "io.bfq.weight", "blkio.weight", "blkio.bfq.weight"];
    let Some(file) = known.into_iter().find(|file| kernel_has(file)) else {
        return assert_refused("io.weight = 510", &[if only_v2() { "io.weight" } else { "blkio.weight" }]);
    };
    let host = Host::new();
    let task = host.described(&format!("{IDLE}io.weight = 510")).start();
    let found = task.cgroup_file(if only_v2() { "io" } else { "blkio" }, file);
    // Only io.weight has a range of its own.
    let expected = if file == "io.weight" { "5051" } else { "510" };
    assert_eq!(found.lines().next().map(|line| line.trim_start_matches("default ")), Some(expected));
    task.end();
}

#[test]
fn huge_pages() {
    let toml = "hugepages = {2MB = '4M'}";
    // On a hybrid host the controller may be on v2 while the others are on v1.
    let on_v1 = hierarchies().iter().any(|(names, _)| names.split(',').any(|name| name == "hugetlb"));
    let on_v2 = hierarchies().iter().filter(|(names, _)| names.is_empty()).any(|(_, mount)| {
        let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        controllers.split_whitespace().any(|name| name == "hugetlb")
    });
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() || !(on_v1 || on_v2) {
        return assert_refused(toml, &["hugepages", "2MB"]);
    }
    let host = Host::new();
    let task = host.described(&format!("{IDLE}{toml}")).start();
    let file = if on_v1 { "hugetlb.2MB.limit_in_bytes" } else { "hugetlb.2MB.max" };
    assert_eq!(task.cgroup_file("hugetlb", file), "4194304");
    task.end();
}

/// Whether a cgroup on this host has such a file; found in one made for it.
fn kernel_has(file: &str) -> bool {
    let host = Host::new();
    let task = host.described(IDLE).start();
    let has = hierarchies()
        .iter()
        .any(|(_, mount)| mount.join(&task.inspect()["cgroup"].as_str().expect("a path")[1..]).join(file).exists());
    task.end();
    host.assert_nothing_left();
    has
}

#[test]
fn files_of_v2_can_be_set_as_they_are() {
    if !only_v2() {
        return assert_refused("unified = {'memory.oom.group' = '1'}", &["unified"]);
    }
    assert_file("unified = {'memory.oom.group' = '1'}", ("memory.oom.group", "1"));
    assert_file("unified = {'memory.min' = '4194304'}", ("memory.min", "4194304"));
    assert_refused("unified = {'memory.nothing' = '17'}", &["memory.nothing", "17"]);
    assert_refused("unified = {'memory.max' = 'plenty'}", &["memory.max", "plenty"]);
}

#[test]
fn flags_set_the_same_limits() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=32M").flag("--cpus=0.25").flag("--pids=5").start();
    let (memory, cpu, quota) = if only_v2() {
        ("memory.max", "cpu.max", "25000 100000")
    } else {
        ("memory.limit_in_bytes", "cpu.cfs_quota_us", "25000")
    };
    assert_eq!(task.cgroup_file("memory", memory), "33554432");
    assert_eq!(task.cgroup_file("cpu", cpu), quota);
    assert_eq!(task.cgroup_file("pids", "pids.max"), "5");
    task.end();
}

#[test]
fn every_process_is_in_the_tasks_cgroup_of_every_hierarchy() {
    let host = Host::new();
    let task = host.task("sleep 1000 & sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    eventually("three processes", || (task.processes().len() == 3).then_some(()));
    let cgroup = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    for pid in task.all_processes() {
        let of = cgroup_of(pid);
        // The v2 hierarchy of a hybrid host is joined too.
        for (controllers, path) in of {
            assert_eq!(path, cgroup, "{controllers} of {pid}");
        }
    }
    task.end();
}

#[test]
fn the_least_memory_that_is_taken_is_enough_to_start() {
    let host = Host::new();
    for _ in 0..10 {
        host.task("echo started").flag("--memory=6M").run().assert_says("started");
    }
}

#[test]
fn the_report_of_a_task_killed_at_its_memory_limit_says_why() {
    let host = Host::new();
    let task = host.task("exec tail /dev/zero").flag("--memory=32M").start();
    let report = task.wait();
    report.assert_code(137).assert_killed_by("KILL");
    assert_eq!(report["signal_sent_by_shim"], false);
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &true.into()), "{report:?}");
    assert_eq!(report["oom_cgroup"], task.inspect()["cgroup"]);
    assert!(lacks("memory.peak") || report.number("memory_peak_bytes") >= 30 << 20, "{report:?}");
}

#[test]
fn an_oom_kill_of_a_child_is_reported_though_init_goes_on() {
    let host = Host::new();
    let task = host.task("tail /dev/zero; echo survived; exit 3").flag("--memory=32M").start();
    let report = task.wait();
    report.assert_code(3);
    assert!(report["signal"].is_null(), "{report:?}");
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &false.into()), "{report:?}");
    assert_eq!(task.said("stdout"), "survived\n");
}

#[test]
fn an_oom_kill_of_an_exec_counts_as_one_of_the_task() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=32M").start();
    task.exec("exec tail /dev/zero").assert_code(137);
    assert_eq!(task.status(), "running");
    assert!(task.stats()["memory"]["oom_kills"].as_u64() >= Some(1));
    let report = task.end();
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &false.into()), "{report:?}");
}

#[test]
fn a_fork_bomb_is_stopped_by_the_pids_limit() {
    let host = Host::new();
    let bomb = "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i + 1)); done";
    let task = host.task(&format!("({bomb}) 2>/dev/null; echo done; exec sleep 1000")).flag("--pids=16").start();
    task.wait_for_line("done");
    assert!(task.all_processes().len() <= 16, "{:?}", task.all_processes());
    let met = task.cgroup_file("pids", "pids.events");
    assert!(met.lines().any(|line| line.starts_with("max ") && line != "max 0"), "{met}");
    let stats = task.stats();
    assert!(stats["pids"]["current"].as_u64() <= Some(16) && stats["pids"]["limit"] == 16, "{stats}");
    task.end();
}

#[test]
fn throttling_at_the_cpu_limit_is_counted_in_the_report() {
    let host = Host::new();
    let task = host.task("while :; do :; done").flag("--cpus=0.1").start();
    eventually("it is throttled", || (task.stats()["cpu"]["throttled_periods"].as_u64() > Some(2)).then_some(()));
    let report = task.end();
    assert!(report.number("throttled_periods") > 2 && report.number("throttled_usec") > 0, "{report:?}");
}

#[test]
fn a_task_above_memory_high_is_slowed_down_and_not_killed() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.described("command = 'tail'\nargs = ['/dev/zero']\nmemory.high = '16M'").start();
    let events = || task.cgroup_file("memory", "memory.events");
    eventually("it meets memory.high", || {
        events().lines().any(|line| line.starts_with("high ") && line != "high 0").then_some(())
    });
    assert!(events().lines().any(|line| line == "oom_kill 0"), "{}", events());
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn a_task_that_writes_too_fast_is_held_to_the_rate_of_the_disk() {
    // In a virtual machine /tmp is none.
    let device = std::fs::metadata("/var/tmp").expect("a folder").st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let whole = std::fs::read_dir("/sys/block").into_iter().flatten().flatten().any(|entry| {
        std::fs::read_to_string(entry.path().join("dev")).is_ok_and(|dev| dev.trim_end() == format!("{major}:{minor}"))
    });
    if !whole {
        // The virtual machine's is one.
        assert!(!only_v2(), "/var/tmp is on no disk: {major}:{minor}");
        return;
    }
    let host = Host::alone();
    let folder = tempfile::Builder::new().prefix(host.prefix()).tempdir_in("/var/tmp").expect("root may");
    let toml = format!(
        "command = 'dd'\nargs = ['if=/dev/zero', 'of=/disk/file', 'bs=64K', 'count=48', 'oflag=direct']\n\
         mounts = [{{source = '{}', destination = '/disk'}}]\n\
         io.devices = [{{path = '{major}:{minor}', write_bps = '1M'}}]",
        folder.path().display()
    );
    let started = Instant::now();
    host.described(&toml).run().assert_code(0);
    // 3 MiB at 1 MiB a second; the kernel counts in slices, and lets one pass.
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    drop(folder);
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
            // cgroup v2 has memory.peak since Linux 5.19.
            let absent = only_v2() && *field == "peak_bytes" && !task.cgroup("memory").join("memory.peak").exists();
            assert_eq!(stats[group][field].is_u64(), !absent, "{group}.{field} in {stats}");
        }
    }
    assert_eq!(stats["memory"]["limit_bytes"], 64 << 20);
    assert_eq!(stats["pids"]["current"], 2, "the command and its init");
    task.bowline("stats", []).assert_code(0);
    task.end();
}

#[test]
fn stats_of_a_task_that_has_exited_are_an_error() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    task.bowline("stats", []).assert_refused(125, &[task.id()]);
}

#[test]
fn the_cgroup_may_be_chosen() {
    let host = Host::new();
    let path = format!("/{}-parent/child", host.prefix());
    let task = host.described(&format!("{IDLE}cgroup = '{path}'\npids = 3")).start();
    assert_eq!(task.inspect()["cgroup"], path);
    assert_eq!(task.cgroup_file("pids", "pids.max"), "3");
    task.end();
}

#[test]
fn oom_score_and_rlimits_are_as_described() {
    let host = Host::new();
    let shell = "cat /proc/self/oom_score_adj; ulimit -Sn; ulimit -Hn; ulimit -c";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{shell}']\noom_score_adj = 500\nrlimits = {{nofile = '256:1024', core = 0}}"
    );
    host.described(&toml).run().assert_says("500\n256\n1024\n0");
}

#[test]
fn the_shims_own_oom_score_stays() {
    let host = Host::new();
    let task = host.described(&format!("{IDLE}oom_score_adj = 500")).start();
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", task.shim_pid())).expect("a live shim");
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("procfs");
    assert_eq!(score, own);
    task.end();
}
