//! Updates of a task whose cgroup systemd makes: what systemd has a property for is told to it, and the rest outlives
//! what systemd writes. Returns at once on a host without systemd and cgroup v2.

use bowline_tests::Host;
use bowline_tests::harness::{Task, assert_shows, has_systemd, only_v2};

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
    if !has_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = with_files(&host, "'memory.max' = '64M', 'pids.max' = '0x20', 'cpu.weight.nice' = '-5'");
    task.bowline("update", ["--memory-high=50M", "--unified=memory.min=2M"]).assert_code(0);
    task.bowline("update", ["--cpus=0.5"]).assert_code(0);
    let found = files(&task, ["memory.max", "memory.high", "memory.min", "pids.max", "cpu.weight", "cpu.max"]);
    assert_eq!(found, ["67108864", "52428800", "2097152", "32", "305", "50000 100000"]);
    let told = ["MemoryMax=67108864", "MemoryHigh=52428800", "MemoryMin=2097152", "TasksMax=32", "CPUWeight=305"];
    assert_shows(&scope(&task), &told);
    assert_eq!(task.inspect()["task"]["unified"]["memory.max"], "64M");
    // What systemd cannot be told would be lost one day.
    for (file, value) in [("memory.max", "64MB"), ("cpuset.cpus", "0-0:1/1"), ("io.max", "8:0 rbps=1M")] {
        task.bowline("update", [&*format!("--unified={file}={value}")]).assert_refused(125, &[file, value]);
    }
    let toml = "command = 'sleep'\nargs = ['1000']\nunified = {'memory.high' = '1.5G'}";
    host.described(toml).flag(SYSTEMD).assert_refused(125, &["memory.high", "1.5G"]);
    assert_eq!(files(&task, ["memory.max", "pids.max"]), ["67108864", "32"]);
    task.end();
    host.assert_nothing_left();
}
