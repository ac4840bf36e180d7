//! Statistics: what they say, against the kernel's own files.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Task, Trace, eventually, hierarchies, lacks, only_v2, skip};
use serde_json::Value;

/// The task's folder in the unified hierarchy.
fn unified(task: &Task<'_>) -> std::path::PathBuf {
    let (_, mount) = hierarchies().into_iter().find(|(names, _)| names.is_empty()).expect("cgroup2 is mounted");
    let path = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    mount.join(&path[1..])
}

#[test]
fn what_is_measured_is_named_and_what_is_not_is_null() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let stats = task.stats();
    let measured: Vec<&str> = stats["measured"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    for name in [
        "cpu.usage_usec",
        "cpu.user_usec",
        "cpu.system_usec",
        "cpu.periods",
        "cpu.throttled_periods",
        "cpu.throttled_usec",
        "memory.usage_bytes",
        "memory.peak_bytes",
        "memory.anon_bytes",
        "memory.cache_bytes",
        "memory.inactive_file_bytes",
        "memory.kernel_bytes",
        "memory.limit_bytes",
        "memory.oom_kills",
        "memory.events.max",
        "memory.counters",
        "pids.current",
        "pids.limit",
        "pids.limit_hits",
        "io.devices",
    ] {
        let late = match name {
            "memory.peak_bytes" => lacks("memory.peak"),
            "memory.kernel_bytes" => lacks(name),
            _ => false,
        };
        assert_eq!(measured.contains(&name), !late, "{name} in {measured:?}");
    }
    for name in
        measured.iter().filter(|name| !name.contains("limit") && !name.contains("high") && !name.contains("low"))
    {
        let pointer = format!("/{}", name.replace('.', "/"));
        let value = stats.pointer(&pointer).unwrap_or_else(|| panic!("{pointer} in {stats}"));
        assert!(!value.is_null(), "{name} was measured and is null in {stats}");
    }
    // Without a limit there is none; that is known.
    assert!(stats["memory"]["limit_bytes"].is_null());
    assert_eq!(stats["memory"]["events"]["oom"].is_null(), !measured.contains(&"memory.events.oom"));
    // Those of one version alone.
    let (version, own) = match only_v2() {
        true => (2, ["memory.events.oom_group_kill", "memory.events.oom", "cpu.bursts"]),
        false => (1, ["memory.accounts.kernel.usage_bytes", "memory.under_oom", "cpu.per_cpu_usec"]),
    };
    assert_eq!(stats["cgroup_version"], version);
    for name in own {
        let late = ["memory.events.oom_group_kill", "cpu.bursts"].contains(&name) && lacks(name);
        assert_eq!(measured.contains(&name), !late, "{name} in {measured:?}");
    }
    task.end();
}

#[test]
fn figures_are_those_of_the_kernel() {
    let host = Host::new();
    let script = "x=$(head -c 20971520 /dev/zero | tr '\\0' x); echo ready; sleep 1000; echo ${#x}";
    let task = host.task(script).flag("--memory=128M").start();
    task.wait_for_line("ready");
    let memory = &task.stats()["memory"];
    let figure = |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("{name} in {memory}"));
    assert!((20 << 20..100 << 20).contains(&figure("anon_bytes")), "{memory}");
    assert!(figure("usage_bytes") >= figure("anon_bytes"), "{memory}");
    assert!(lacks("memory.peak") || figure("peak_bytes") >= figure("usage_bytes"), "{memory}");
    let file = if only_v2() { "memory.current" } else { "memory.usage_in_bytes" };
    let kernels: u64 = task.cgroup_file("memory", file).parse().expect("a number");
    assert!(kernels.abs_diff(figure("usage_bytes")) < 2 << 20, "{kernels} and {memory}");
    task.end();
}

#[test]
fn user_and_system_time_are_parts_of_all_cpu_time() {
    let host = Host::new();
    let task = host.task("while :; do :; done").start();
    eventually("it has used some", || (task.stats()["cpu"]["user_usec"].as_u64() > Some(200_000)).then_some(()));
    let ran = task.bowline("stats", []);
    let said = ran.assert_code(0).out();
    let times = said.lines().next().and_then(|line| line.split_once('(')).map_or("", |(_, times)| times);
    let times: Vec<f64> = times.split(' ').filter_map(|word| word.parse().ok()).take(3).collect();
    let [all, user, system] = times[..] else { panic!("{ran}") };
    assert!((all - user - system).abs() < 0.3, "{ran}");
    task.end();
}

#[test]
fn of_time_that_no_tick_has_met_no_parts_are_told() {
    let host = Host::new();
    // On v1 the kernel samples the parts, and measures the whole.
    let found = (0..20).find_map(|_| {
        let task = host.task("exec sleep 1000").start();
        let cpu = task.stats()["cpu"].clone();
        let said = task.bowline("stats", []).assert_code(0).out();
        let is_same = task.stats()["cpu"]["usage_usec"] == cpu["usage_usec"];
        task.end();
        let parts = ["user_usec", "system_usec"].iter().filter_map(|part| cpu[*part].as_u64()).sum::<u64>();
        (is_same && (parts == 0 || only_v2())).then_some((cpu, parts, said))
    });
    let (cpu, parts, said) = found.expect("one is short enough");
    assert!(cpu["usage_usec"].as_u64() > Some(0), "{cpu}");
    assert_eq!(said.contains("in all: user -, system -)"), parts == 0, "{said}");
}

#[test]
fn each_process_has_its_own_cpu_time_and_memory() {
    let host = Host::new();
    let task = host.task("(while :; do :; done) & sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    let exec = task.spawn_exec(["--timeout=1000s"], "echo in; exec sleep 1001");
    exec.wait_for_out("in");
    let stats = eventually("all processes, one with some CPU time", || {
        let stats = task.stats();
        let all = stats["processes"].as_array().expect("a list");
        let busy = all.iter().any(|p| p["user_usec"].as_u64() > Some(100_000));
        // One spins; what it used between two readings is a rate. On a busy machine it may have no turn in between.
        let rates = stats["process_cpu_percent"].as_object().expect("by pid");
        let is_fast = rates.values().any(|rate| rate.as_f64() > Some(20.0));
        (all.len() == 5 && busy && is_fast).then(|| stats.clone())
    });
    let processes = stats["processes"].as_array().expect("a list");
    let pids: Vec<i64> = processes.iter().filter_map(|p| p["pid"].as_i64()).collect();
    assert_eq!(pids, task.all_processes().into_iter().map(i64::from).collect::<Vec<_>>());
    for process in processes {
        // Of so few pages as init's the kernel counts none.
        let rss = process["rss_bytes"].as_u64();
        assert!((process["name"] == "bowline-init" || rss > Some(4096)) && process["threads"] == 1, "{process}");
    }
    let execs: Vec<_> = processes.iter().filter(|p| !p["exec"].is_null()).collect();
    assert_eq!(execs.len(), 1, "{stats}");
    assert_eq!(execs[0]["name"], "sleep");
    // Of the whole task at about the same time.
    let percent = stats["cpu_percent"].as_f64().expect("two readings");
    assert!(percent > 1.0 && percent < 250.0, "{percent}");
    task.end();
    exec.finish();
}

/// The disk that a file is on, by its numbers; nothing for one on no disk.
fn disk_of(path: &Path) -> Option<String> {
    let device = rustix::fs::stat(path).expect("it is there").st_dev;
    let link = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut folder = fs::canonicalize(link).ok()?;
    if folder.join("partition").exists() {
        folder.pop();
    }
    fs::read_to_string(folder.join("dev")).ok().map(|numbers| numbers.trim().to_owned())
}

#[test]
fn what_was_written_to_a_disk_is_counted() {
    let host = Host::new();
    let folder = tempfile::Builder::new().prefix(host.prefix()).tempdir_in("/var/tmp").expect("a folder");
    let Some(disk) = disk_of(folder.path()) else { return skip("/var/tmp is on no disk") };
    // Past the page cache: v1 charges what is written back later to nobody.
    let script = "dd if=/dev/zero of=/mnt/file bs=64k count=32 oflag=direct 2>&1 && echo ready; exec sleep 1000";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{script}']\nmounts = [{{destination = '/mnt', source = '{}'}}]",
        folder.path().display()
    );
    let task = host.described(&toml).start();
    task.wait_for_line("ready");
    let stats = task.stats();
    let all = stats["io"]["devices"].as_array().expect("a list");
    let found = all.iter().find(|d| d["device"] == *disk).unwrap_or_else(|| panic!("{disk} in {stats}"));
    assert!(found["write_bytes"].as_u64() >= Some(2 << 20) && found["writes"].as_u64() >= Some(1), "{found}");
    task.end();
    drop(folder);
}

#[test]
fn only_pressure_is_absent_where_it_is_switched_off() {
    if fs::metadata("/proc/pressure/cpu").is_err() {
        return skip("this kernel measures no pressure");
    }
    if lacks("cgroup.pressure") {
        return;
    }
    let host = Host::new();
    let task = host.task("while :; do :; done").start();
    let some = |stats: &Value| stats["cpu"]["pressure"]["some"]["total_usec"].as_u64();
    assert!(some(&task.stats()).is_some());
    let switch = unified(&task).join("cgroup.pressure");
    fs::write(&switch, "0").expect("root may");
    let stats = task.stats();
    for group in ["cpu", "memory", "io"] {
        assert!(stats[group]["pressure"].is_null(), "{stats}");
        let name = format!("{group}.pressure");
        assert!(!stats["measured"].as_array().expect("a list").contains(&name.into()), "{stats}");
    }
    assert!(stats["cpu"]["usage_usec"].is_u64() && stats["memory"]["usage_bytes"].is_u64(), "{stats}");
    fs::write(&switch, "1").expect("root may");
    assert!(some(&task.stats()).is_some());
    task.end();
}

#[test]
fn a_second_reading_opens_no_path() {
    let host = Host::new();
    let task = host.task("sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    task.exec_with(["--timeout=50s"], "true").assert_code(0);
    eventually("both processes", || (task.processes().len() == 2).then_some(()));
    task.stats();
    let trace = Trace::of(&host, task.shim_pid(), ["-e", "trace=open,openat,openat2,pread64"]);
    task.stats();
    let traced = eventually("two readings in the trace", || {
        let text = trace.so_far();
        (text.matches("pread64").count() > 40).then_some(text)
    });
    // Files that this kernel does not have are looked for again, and v1 gives a
    // list anew to a new fd alone.
    let wanted = |line: &&str| line.contains("ENOENT") || (!only_v2() && line.contains("\"cgroup.procs\""));
    let opened: Vec<_> = traced.lines().filter(|line| line.starts_with("open") && !wanted(line)).collect();
    assert!(opened.is_empty(), "{opened:#?}");
    trace.end();
    task.end();
}

#[test]
fn a_process_is_listed_whatever_its_name_is() {
    let host = Host::new();
    let task = host.task("printf '\\377\\033[2J\\377' > /proc/$$/comm; echo ready; sleep 1000; :").start();
    task.wait_for_line("ready");
    let of_json: Vec<Value> = task.stats()["processes"].as_array().expect("a list").clone();
    let names = |pid: i32| of_json.iter().find(|one| one["pid"] == pid).map(|one| one["name"].clone());
    assert_eq!(task.processes().into_iter().filter(|pid| names(*pid).is_none()).count(), 0, "{of_json:?}");
    assert!(of_json.iter().any(|one| one["name"] == "\u{fffd}\u{1b}[2J\u{fffd}"), "{of_json:?}");
    for table in [host.bowline(["stats", task.id()]), host.bowline(["top", "--once"])] {
        table.assert_code(0);
        assert!(table.out().contains("\u{fffd}") && !table.out().contains('\u{1b}'), "{table}");
    }
    task.end();
}
