//! Updates of a task whose cgroup systemd makes: what systemd has a property for is told to it, and the rest outlives
//! what systemd writes. Returns at once on a host without systemd and cgroup v2.

use bowline_tests::Host;
use bowline_tests::harness::{Task, assert_shows, disk, eventually, lacks_systemd, only_v2, show, skip, systemctl};
use serde_json::{Value, json};

const SYSTEMD: &str = "--cgroup-driver=systemd";

fn scope(task: &Task<'_>) -> String {
    format!("bowline-{}.scope", task.on_host())
}

/// A sleeping task in a scope with these raw files.
fn with_files<'h>(host: &'h Host, unified: &str) -> Task<'h> {
    let toml = format!("command = 'sleep'\nargs = ['1000']\nunified = {{{unified}}}");
    host.described(&toml).flag(SYSTEMD).start()
}

fn files<const N: usize>(task: &Task<'_>, names: [&str; N]) -> [String; N] {
    names.map(|file| task.cgroup_file("", file))
}

#[test]
fn raw_values_are_told_to_systemd_and_outlive_later_updates() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let raw = "'memory.max' = '64M', 'pids.max' = '0x20', 'cpu.weight.nice' = '-5', 'cpu.max' = '20000 50000'";
    let task = with_files(&host, raw);
    task.bowline("update", ["--memory-high=50M", "--unified=memory.min=2M"]).assert_code(0);
    assert_eq!(task.cgroup_file("cpu", "cpu.max"), "20000 50000");
    assert_shows(&scope(&task), &["CPUQuotaPerSecUSec=400ms", "CPUQuotaPeriodUSec=50ms"]);
    task.bowline("update", ["--cpus=0.5"]).assert_code(0);
    let found = files(&task, ["memory.max", "memory.high", "memory.min", "pids.max", "cpu.weight", "cpu.max"]);
    assert_eq!(found, ["67108864", "52428800", "2097152", "32", "305", "50000 100000"]);
    let told = ["MemoryMax=67108864", "MemoryHigh=52428800", "MemoryMin=2097152", "TasksMax=32", "CPUWeight=305"];
    assert_shows(&scope(&task), &told);
    assert_eq!(task.inspect()["task"]["unified"]["memory.max"], "64M");
    let replaced = &task.inspect()["task"]["unified"]["cpu.max"];
    assert_eq!((replaced, &task.inspect()["differing_limits"]), (&Value::Null, &Value::Null));
    // What systemd cannot be told would be lost one day.
    for (file, value) in [("memory.max", "64MB"), ("cpuset.cpus", "0-0:1/1"), ("io.max", "8:0 rbps=1M")] {
        task.bowline("update", [&*format!("--unified={file}={value}")]).assert_refused(125, &[file, value]);
    }
    let toml = "command = 'sleep'\nargs = ['1000']\nunified = {'memory.high' = '1.5G'}";
    host.described(toml).flag(SYSTEMD).assert_refused(125, &["memory.high", "1.5G"]);
    assert_eq!(files(&task, ["memory.max", "pids.max"]), ["67108864", "32"]);
    task.end();
}

#[test]
fn files_without_a_property_keep_their_values_across_updates() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'memory.zswap.writeback' = '0'");
    let has = || files(&task, ["memory.oom.group", "cpu.idle", "memory.zswap.writeback"]);
    assert_eq!(has(), ["0", "0", "0"]);
    let both = ["--memory=70M", "--unified=memory.oom.group=1", "--unified=cpu.idle=1"];
    task.bowline("update", both).assert_code(0);
    assert_eq!(has(), ["1", "1", "0"]);
    assert_eq!(task.cgroup_file("memory", "memory.max"), "73400320");
    assert_shows(&scope(&task), &["MemoryMax=73400320", "CPUWeight=idle"]);
    task.bowline("update", ["--pids=30"]).assert_code(0);
    assert_eq!(has(), ["1", "1", "0"]);
    // A weight for what idles is refused, as the kernel does.
    task.bowline("update", ["--pids=31", "--cpu-shares=512"]).assert_refused(125, &["cpu.weight", "idle"]);
    assert_shows(&scope(&task), &["TasksMax=30"]);
    task.bowline("update", ["--unified=cpu.idle=0"]).assert_code(0);
    assert_eq!(files(&task, ["cpu.idle", "cpu.weight"]), ["0", "100"]);
    assert_shows(&scope(&task), &["CPUWeight=100"]);
    task.bowline("update", ["--unified=memory.oom.group=0", "--pids=32"]).assert_code(0);
    assert_eq!(has(), ["0", "0", "0"]);
    task.end();
}

#[test]
fn what_has_idled_has_its_weight_again() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    for driver in [SYSTEMD, "--cgroup-driver=cgroupfs"] {
        let toml = "command = 'sleep'\nargs = ['1000']\ncpu.shares = 512\nunified = {'cpu.idle' = '1'}";
        let task = host.described(toml).flag(driver).start();
        let has = || files(&task, ["cpu.idle", "cpu.weight"]);
        let idles = || task.cgroup_file("", "cpu.idle") == "1";
        assert!(idles(), "{driver}");
        task.bowline("update", ["--cpu-shares=2048"]).assert_refused(125, &["cpu.weight", "idle", "cpu.idle to 0"]);
        task.bowline("update", ["--unified=cpu.idle=0"]).assert_code(0);
        assert_eq!(has(), ["0", "59"], "{driver}");
        task.bowline("update", ["--cpu-shares=1024", "--unified=cpu.idle=1"]).assert_code(0);
        assert!(idles(), "{driver}");
        task.bowline("update", ["--unified=cpu.idle=0"]).assert_code(0);
        assert_eq!((has(), &task.inspect()["differing_limits"]), (["0", "100"].map(str::to_owned), &Value::Null));
        task.end();
    }
}

#[test]
fn a_raw_value_after_a_typed_one_accuses_nobody() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let (major, minor) = disk().expect("the machine has one");
    for driver in [SYSTEMD, "--cgroup-driver=cgroupfs"] {
        let task = host.task("exec sleep 1000").flag(driver).flag("--cpu-shares=512").start();
        let device = format!("/dev/block/{major}:{minor}");
        task.bowline("update", ["--io", &*format!("{device},read_bps=1M,write_bps=1M")]).assert_code(0);
        let raw = format!("--unified=io.max={major}:{minor} rbps=2097152");
        task.bowline("update", [&*raw, "--unified=cpu.weight.nice=5"]).assert_code(0);
        assert_eq!(files(&task, ["cpu.weight"]), ["33"]);
        assert!(task.cgroup_file("", "io.max").contains("rbps=2097152 wbps=1048576"), "{driver}");
        assert_eq!(task.inspect()["differing_limits"], Value::Null, "{driver}");
        task.end();
    }
}

#[test]
fn a_limit_that_was_lifted_is_in_no_report() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag(SYSTEMD).flag("--memory=50M").flag("--pids=20").start();
    task.bowline("update", ["--memory=max", "--pids=max"]).assert_code(0);
    let report = task.stop(["--grace=0"]);
    assert_eq!((&report["memory_limit_bytes"], &report["pids_limit"]), (&Value::Null, &Value::Null), "{report:?}");
}

#[test]
fn what_others_have_systemd_write_over_comes_back_at_an_update() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'pids.max' = '50'");
    let names = ["memory.oom.group", "cpu.idle", "pids.max", "memory.max"];
    let both = ["--memory=70M", "--unified=memory.oom.group=1", "--unified=cpu.idle=1"];
    task.bowline("update", both).assert_code(0);
    systemctl(&["set-property", "--runtime", "--", &scope(&task), "TasksMax=20", "CPUWeight=30"]);
    eventually("systemd has written", || (task.cgroup_file("", "pids.max") == "20").then_some(()));
    assert_eq!(files(&task, names), ["0", "0", "20", "73400320"]);
    task.bowline("update", ["--memory=71M"]).assert_code(0);
    assert_eq!(files(&task, names), ["1", "1", "20", "74448896"]);
    assert_shows(&scope(&task), &["CPUWeight=idle"]);
    // And what somebody writes there, by hand.
    std::fs::write(task.cgroup("memory").join("memory.oom.group"), "0").expect("root may");
    task.bowline("update", ["--cpus=0.5"]).assert_code(0);
    assert_eq!(files(&task, names), ["1", "1", "20", "74448896"]);
    task.end();
}

#[test]
fn a_word_on_compressed_pages_is_told_to_systemd() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'memory.zswap.writeback' = '0'");
    let knows = show(&scope(&task), "MemoryZSwapWriteback");
    if knows.trim().is_empty() {
        return skip("this systemd has no such property");
    }
    assert_eq!(knows.trim(), "MemoryZSwapWriteback=no");
    systemctl(&["set-property", "--runtime", "--", &scope(&task), "TasksMax=99"]);
    eventually("systemd has written", || (task.cgroup_file("", "pids.max") == "99").then_some(()));
    assert_eq!(task.cgroup_file("", "memory.zswap.writeback"), "0");
    task.bowline("update", ["--unified=memory.zswap.writeback=1"]).assert_code(0);
    assert_shows(&scope(&task), &["MemoryZSwapWriteback=yes"]);
    task.end();
}

#[test]
fn what_a_scope_starts_with_outlives_updates_and_reloads() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'memory.oom.group' = '1', 'cpu.idle' = '1'");
    let has = || files(&task, ["memory.oom.group", "cpu.idle"]);
    assert_eq!(has(), ["1", "1"]);
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    assert_eq!(has(), ["1", "1"]);
    systemctl(&["daemon-reload"]);
    // What systemd is asked after a reload, it answers once it has written.
    systemctl(&["set-property", "--runtime", "--", &scope(&task), "TasksMax=77"]);
    eventually("systemd has written", || (task.cgroup_file("pids", "pids.max") == "77").then_some(()));
    assert_eq!(has(), ["1", "1"]);
    // systemd would still end the whole scope.
    task.bowline("update", ["--unified=memory.oom.group=0"]).assert_refused(125, &["OOMPolicy", "kill"]);
    assert_eq!(has(), ["1", "1"]);
    task.end();
}

#[test]
fn systemd_is_told_the_old_values_where_an_update_is_refused() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'memory.oom.group' = '0', 'cpu.weight' = '50'");
    let names = ["memory.max", "memory.min", "pids.max", "cpu.weight", "cpu.max", "cpuset.cpus.effective"];
    let (before, shown) = (files(&task, names), show(&scope(&task), "MemoryMax,MemoryMin,TasksMax,CPUWeight"));
    let refused = [
        "--memory=48M",
        "--pids=30",
        "--cpus=0.3",
        "--cpuset=0",
        "--unified=memory.min=1M",
        "--unified=memory.oom.group=7",
    ];
    task.bowline("update", refused).assert_refused(125, &["memory.oom.group"]);
    assert_eq!(files(&task, names), before);
    assert_eq!(show(&scope(&task), "MemoryMax,MemoryMin,TasksMax,CPUWeight"), shown);
    let idle = ["--unified=cpu.idle=1", "--unified=memory.oom.group=7"];
    task.bowline("update", idle).assert_refused(125, &["memory.oom.group"]);
    assert_eq!(files(&task, names), before);
    assert_shows(&scope(&task), &["CPUWeight=50"]);
    // A limit below what is in use kills nothing.
    task.exec("head -c 30000000 /dev/zero >/dev/shm/full").assert_code(0);
    task.bowline("update", ["--memory=10M", "--swap=0"]).assert_refused(125, &["memory.max", "in use"]);
    assert_shows(&scope(&task), &["MemoryMax=infinity"]);
    assert_eq!((task.status(), files(&task, names)), ("running".to_owned(), before));
    task.end();
}

#[test]
fn a_limit_that_others_change_is_shown_beside_the_one_asked() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task("sleep 1000").flag("--memory=64M").flag("--cpus=0.25").flag(SYSTEMD).start();
    assert_eq!(task.inspect()["differing_limits"], Value::Null);
    systemctl(&["set-property", "--runtime", "--", &scope(&task), "MemoryMax=100M"]);
    eventually("systemd has written", || (task.cgroup_file("", "memory.max") == "104857600").then_some(()));
    let differing = json!([{"file": "memory.max", "asked": "67108864", "is": "104857600"}]);
    assert_eq!(task.inspect()["differing_limits"], differing);
    let explained = task.bowline("explain", []);
    let sentence = "memory.max of its cgroup is 104857600, not 67108864";
    assert!(explained.assert_code(0).out().contains(sentence), "{explained}");
    // An update of something else leaves that to whoever has changed it.
    task.bowline("update", ["--pids=40"]).assert_code(0);
    assert_eq!(task.inspect()["differing_limits"], differing);
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    assert_eq!(task.inspect()["differing_limits"], Value::Null);
    task.end();
}

#[test]
fn a_group_that_is_killed_for_want_of_memory_is_reported() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host
        .task("sleep 1000 & x=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 1000")
        .flag("--memory=16M")
        .flag("--set=unified.\"memory.oom.group\"=1")
        .flag(SYSTEMD)
        .start();
    let report = task.wait();
    report.assert_killed_by("KILL");
    assert_eq!(report["oom_killed"], true);
    assert!(report.number("oom_kills") > 0, "{report:?}");
}

#[test]
fn what_systemd_kills_has_figures() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task("head -c 3000000 /dev/zero | tr '\\0' x >/dev/shm/x; echo ready; exec sleep 1000");
    let task = task.flag("--memory=64M").flag(SYSTEMD).start();
    task.wait_for_line("ready");
    systemctl(&["kill", "--signal=KILL", "--", &scope(&task)]);
    let report = task.wait();
    report.assert_killed_by("KILL");
    assert_eq!(report["signal_sent_by_shim"], false);
    assert!(report.number("cpu_usec") > 0, "{report:?}");
    assert_eq!(report["oom_killed"], false, "{report:?}");
}
