//! What the shim watches a task for: each thing provoked, and its report beside
//! the kernel's own counters.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{
    Build, Process, Task, cgroup_of, eventually, has_systemd, hierarchies, hierarchy, makes_futures_again, only_v2,
    process_exists, status_lines,
};
use serde_json::Value;

/// Waits in init until it is told to go on, by `go`.
const UNTIL_GO: &str = "until test -e /tmp/go; do sleep 0.05; done";

/// A task whose init runs `script`, with these lines in its description.
fn watched<'h>(host: &'h Host, script: &str, toml: &str) -> Build<'h> {
    host.described(&format!("command = '/bin/sh'\nargs = ['-c', \"\"\"{script}\"\"\"]\nstop.grace = '1s'\n{toml}"))
}

/// The lines that put this folder of the host at `/tmp/disk`.
fn mounted(folder: &Path) -> String {
    format!("[[mounts]]\nsource = '{}'\ndestination = '/tmp/disk'", folder.display())
}

fn go(task: &Task<'_>) {
    task.exec("touch /tmp/go").assert_code(0);
}

/// Those of its events that have this name.
#[track_caller]
fn told(host: &Host, task: &Task<'_>, name: &str) -> Vec<Value> {
    let ran = host.bowline(["events", "--json", task.id()]);
    let events = ran.assert_code(0).out();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.filter(|event| event["event"] == name).collect()
}

/// Waits until a policy has found something.
#[track_caller]
fn found(host: &Host, task: &Task<'_>, policy: &str) -> Value {
    eventually(format_args!("{policy} is found of {}", task.id()), || {
        told(host, task, "watch").into_iter().find(|event| event["policy"] == policy)
    })
}

#[track_caller]
fn figure(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("{name} in {event}"))
}

/// A line `name number` of a file of the task's cgroup.
#[track_caller]
fn counted(task: &Task<'_>, controller: &str, file: &str, name: &str) -> u64 {
    let text = task.cgroup_file(controller, file);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
}

/// How long the kernel says that `who` of the task has waited for `resource`, in µs.
#[track_caller]
fn waited(task: &Task<'_>, resource: &str, who: &str) -> u64 {
    // Of the v2 hierarchy, also where that has no controller.
    let text = task.cgroup_file("", &format!("{resource}.pressure"));
    let line = text.lines().find_map(|line| line.strip_prefix(who)?.split_once("total="));
    line.and_then(|(_, total)| total.parse().ok()).unwrap_or_else(|| panic!("{who} in {text}"))
}

/// That `who` waits for `resource` is found of a task that runs `script`, for as long as the kernel says; where the
/// kernel does not measure it, the task is refused. `toml` are more lines of its description.
#[track_caller]
fn assert_pressure_is_found(host: &Host, (resource, who): (&str, &str), above_ms: u64, script: &str, toml: &str) {
    let policy = format!("{resource}_pressure");
    let build = watched(host, script, &format!("{toml}\n[watch.{policy}]\nabove = '{above_ms}ms'\nwho = '{who}'"));
    if fs::read(format!("/proc/pressure/{resource}")).is_err() {
        return build.assert_refused(125, &[&format!("watch.{policy}"), "pressure"]);
    }
    let task = build.start();
    let finding = found(host, &task, &policy);
    assert_eq!((figure(&finding, "above_usec"), figure(&finding, "window_usec")), (above_ms * 1000, 2_000_000));
    let waited = waited(&task, resource, who);
    // Who averages over the CPUs at other times gets another sum: the kernel does so for what wakes the shim, which may
    // be before the file says as much.
    assert!((above_ms * 100..=waited).contains(&figure(&finding, "total_usec")), "{finding}, {waited} in all");
    eventually("the kernel says as much", || (self::waited(&task, resource, who) >= above_ms * 1000).then_some(()));
    task.end();
}

/// Where a file of a task is for its host.
fn in_task(task: &Task<'_>, path: &str) -> String {
    format!("/proc/{}/root{path}", task.program_pid())
}

fn kills(task: &Task<'_>) -> u64 {
    let file = if only_v2() { "memory.events" } else { "memory.oom_control" };
    counted(task, "memory", file, "oom_kill")
}

/// The path of the cgroup that its shim is charged to, once that is there.
#[track_caller]
fn overhead(task: &Task<'_>) -> String {
    let path = format!("/bowline/{}/overhead", task.on_host());
    let shim = task.shim_pid();
    eventually(format_args!("the shim is in {path}"), || {
        cgroup_of(shim).values().any(|found| *found == path).then(|| path.clone())
    })
}

#[test]
fn a_child_that_was_killed_for_memory_is_told_of_with_its_name() {
    let host = Host::new();
    let script = format!("{UNTIL_GO}; tail /dev/zero; echo survived; exec sleep 1000");
    let task = watched(&host, &script, "memory.limit = '32M'\nwatch.oom = {}").start();
    overhead(&task);
    go(&task);
    task.wait_for_line("survived");
    let finding = found(&host, &task, "oom");
    assert_eq!((figure(&finding, "kills"), &finding["action"]), (kills(&task), &"report".into()));
    let oom = told(&host, &task, "oom").remove(0);
    assert_eq!(figure(&oom, "kills"), kills(&task));
    // The kernel leaves out the line when it kills many in a moment.
    if let Some(last) = oom["last"].as_object() {
        let path = task.inspect()["cgroup"].clone();
        assert_eq!((&last["name"], &last["cgroup"], &oom["init"]), (&"tail".into(), &path, &false.into()), "{oom}");
    }
    let report = task.end();
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &false.into()));
    assert_eq!((&report["stopped_by"], &report["stopped_for"]), (&"request".into(), &Value::Null));
}

#[test]
fn who_kills_itself_after_a_child_was_killed_for_memory_was_not() {
    let host = Host::new();
    let after_a_child = "tail /dev/zero; kill -KILL $$";
    let script = format!("{UNTIL_GO}; {after_a_child}");
    let task = watched(&host, &script, "memory.limit = '32M'\ninit = true").start();
    overhead(&task);
    let ran = task.exec_with(["--json"], after_a_child);
    // Kills are told once they are counted, which the command need not wait for.
    let of_exec = eventually("the kill is told", || told(&host, &task, "oom").into_iter().next());
    // The kernel leaves out the line when it kills many in a moment.
    let killed = if of_exec["last"].is_null() { "oom".into() } else { Value::Null };
    assert_eq!(ran.assert_code(137).json()["killed"], killed, "{ran} {of_exec}");
    go(&task);
    let report = task.wait();
    let all = told(&host, &task, "oom");
    report.assert_killed_by("KILL");
    let is_unknown = all.iter().any(|oom| oom["last"].is_null());
    assert_eq!((&report["oom_killed"], &report["oom_killed_init"]), (&true.into(), &is_unknown.into()), "{all:?}");
}

#[test]
fn a_kill_for_memory_can_stop_the_task() {
    let host = Host::new();
    let script = format!("{UNTIL_GO}; tail /dev/zero; echo survived; exec sleep 1000");
    let task = watched(&host, &script, "memory.limit = '32M'\nwatch.oom.action = 'stop'").start();
    overhead(&task);
    go(&task);
    let report = task.wait();
    assert_eq!((&report["stopped_by"], &report["stopped_for"]["policy"]), (&"watch".into(), &"oom".into()));
    let exited = told(&host, &task, "exited").remove(0);
    assert_eq!(exited["stopped_by"], "watch");
}

#[test]
fn memory_in_use_by_each_part() {
    let host = Host::new();
    // 30 MiB in a file in memory, which is page cache, and 20 MiB in tail.
    let script = "head -c 30M /dev/zero >/tmp/x; (head -c 20M /dev/zero; exec sleep 1000) | tail -c 20M";
    let toml = "[watch.memory]\nabove = '45M'\nanon_above = '15M'\ncache_above = '25M'\nevery = '100ms'";
    let task = watched(&host, script, toml).start();
    for (part, above) in [("total", 45u64 << 20), ("anon", 15 << 20), ("cache", 25 << 20)] {
        let finding = eventually(format_args!("{part} is found"), || {
            told(&host, &task, "watch").into_iter().find(|event| event["part"] == part)
        });
        assert_eq!(figure(&finding, "above_bytes"), above);
        assert!(figure(&finding, "bytes") > above, "{finding}");
    }
    // It grows until both are there, and is then what the kernel says.
    let usage = if only_v2() { "memory.current" } else { "memory.usage_in_bytes" };
    let in_use = || task.cgroup_file("memory", usage).parse::<u64>().expect("a number");
    let total = told(&host, &task, "watch").into_iter().find(|event| event["part"] == "total").expect("found");
    assert!(figure(&total, "bytes") <= in_use().max(60 << 20), "{total}, and the kernel says {}", in_use());
    // On its way there it may have been above more than once.
    eventually("it is well above", || (in_use() > 48 << 20).then_some(()));
    let found = told(&host, &task, "watch").len();
    task.exec("sleep 0.5").assert_code(0);
    assert_eq!(told(&host, &task, "watch").len(), found, "each is told of once while it lasts");
    task.end();
}

#[test]
fn what_lasts_is_told_once_whoever_watches() {
    let host = Host::new();
    let toml = "[watch.memory]\ncache_above = '25M'\nevery = '100ms'";
    let fill = "head -c 30M /dev/zero >/tmp/x";
    let task = watched(&host, &format!("{fill}; exec sleep 1000"), toml).flag("--init").start();
    found(&host, &task, "memory");
    // It was above for a part of what it writes.
    eventually("all is written", || (fs::metadata(in_task(&task, "/tmp/x")).ok()?.len() == 30 << 20).then_some(()));
    let adopt = || {
        task.kill_shim(task.shim_pid());
        task.bowline("adopt", []).assert_says(task.id());
    };
    let upgrade = || {
        task.bowline("upgrade", []).assert_says(task.id());
    };
    for take_over in [&adopt as &dyn Fn(), &upgrade, &adopt] {
        take_over();
        task.exec("sleep 0.5").assert_code(0);
        assert_eq!(told(&host, &task, "watch").len(), 1);
    }
    // That it is over is remembered, too: it may begin anew.
    task.exec("rm /tmp/x").assert_code(0);
    let is_recorded = || {
        serde_json::from_str::<Value>(&task.log("task.json"))
            .is_ok_and(|record| record["remembered"]["watched"]["memory"]["rule"][2] != true)
    };
    eventually("it is over", || is_recorded().then_some(()));
    adopt();
    task.exec(fill).assert_code(0);
    eventually("it is told again", || (told(&host, &task, "watch").len() == 2).then_some(()));
    task.end();
}

#[test]
fn a_throttled_loop_has_its_limit_lifted() {
    let host = Host::new();
    let toml = "cpu.limit = 0.1\n[watch.throttled]\nabove = '50ms'\nevery = '300ms'\naction = 'lift'";
    let task = watched(&host, "while :; do :; done", toml).start();
    let finding = found(&host, &task, "throttled");
    assert!(figure(&finding, "usec") > figure(&finding, "above_usec"), "{finding}");
    assert_eq!((figure(&finding, "above_usec"), figure(&finding, "every_usec")), (50_000, 300_000));
    let (unit, name) = if only_v2() { (1, "throttled_usec") } else { (1000, "throttled_time") };
    assert!(figure(&finding, "usec") <= counted(&task, "cpu", "cpu.stat", name) / unit, "{finding}");
    let (file, none) = if only_v2() { ("cpu.max", "max 100000") } else { ("cpu.cfs_quota_us", "-1") };
    eventually("the limit is lifted", || (task.cgroup_file("cpu", file) == none).then_some(()));
    let updated = eventually("that is told", || told(&host, &task, "updated").pop());
    assert_eq!(updated["limits"]["cpu"]["limit"], "unlimited", "{updated}");
    task.end();
}

#[test]
fn a_throttled_loop_can_be_stopped() {
    let host = Host::new();
    let toml = "cpu.limit = 0.1\n[watch.throttled]\nabove = '50ms'\nevery = '300ms'\naction = 'stop'";
    let task = watched(&host, "while :; do :; done", toml).start();
    let report = task.wait();
    assert_eq!((&report["stopped_by"], &report["stopped_for"]["policy"]), (&"watch".into(), &"throttled".into()));
    assert!(report.number("throttled_usec") >= figure(&report["stopped_for"], "usec"), "{report:?}");
}

#[test]
fn pressure_is_told_by_the_kernel() {
    let host = Host::new();
    let loops = "while :; do :; done & while :; do :; done";
    assert_pressure_is_found(&host, ("cpu", "some"), 100, loops, "cpu.limit = 0.1");
}

#[test]
fn io_pressure_of_a_task_that_waits_for_its_disk() {
    let host = Host::new();
    let Some(disk) = host.on_disk() else { return };
    // Each block is on the disk before the next is written; which takes an emulated disk hardly longer than its CPU.
    let writes = "while :; do dd if=/dev/zero of=/tmp/disk/$$ bs=64k count=64 conv=notrunc oflag=dsync; done";
    assert_pressure_is_found(&host, ("io", "some"), 1, writes, &mounted(&disk));
}

#[test]
fn being_above_memory_high_is_counted_on_v2_and_refused_on_v1() {
    let host = Host::new();
    let toml = "[watch.memory_high]\nabove = 10\naction = 'stop'";
    if !only_v2() {
        watched(&host, "sleep 1000", toml).assert_refused(125, &["watch.memory_high", "cgroup v2"]);
        return host.assert_nothing_left();
    }
    let limits = "memory = {high = '16M', limit = '256M'}";
    let task = watched(&host, "tail /dev/zero", &format!("{limits}\n{toml}")).start();
    let report = task.wait();
    let finding = &report["stopped_for"];
    assert_eq!((&finding["policy"], &report["stopped_by"]), (&"memory_high".into(), &"watch".into()));
    assert!(figure(finding, "events") > 10, "{finding}");
}

#[test]
fn memory_pressure_of_a_task_that_is_slowed_down() {
    if !only_v2() {
        // There is no memory.high.
        return;
    }
    let host = Host::new();
    let limits = "memory = {high = '16M', limit = '256M'}";
    assert_pressure_is_found(&host, ("memory", "full"), 100, "tail /dev/zero", limits);
}

#[test]
fn memory_pressure_of_a_task_whose_page_cache_does_not_fit() {
    let host = Host::new();
    let Some(disk) = host.on_disk() else { return };
    // What it writes is charged to it, and has to be taken back before it can write on.
    let writes = "while :; do head -c 200M /dev/zero >/tmp/disk/file; done";
    let toml = format!("memory.limit = '16M'\n{}", mounted(&disk));
    assert_pressure_is_found(&host, ("memory", "full"), 100, writes, &toml);
}

/// A process of the host that does nothing, in the cgroup `path` of every
/// hierarchy that has it.
fn stranger(host: &Host, path: &str, variable: Option<String>) -> Process {
    let mut command = Command::new("sleep");
    command.arg("1000").envs(variable.map(|value| ("BOWLINE_SHIM", value)));
    stranger_of(host, path, command)
}

/// A process of the host that runs `command`, in the cgroup `path`.
fn stranger_of(host: &Host, path: &str, command: Command) -> Process {
    let process = host.spawn_command(command);
    for (_, top) in hierarchies() {
        let file = top.join(&path[1..]).join("cgroup.procs");
        if file.exists() {
            fs::write(&file, process.pid().to_string()).expect("a process that lives");
        }
    }
    process
}

fn pids(finding: &Value) -> Vec<i64> {
    let processes = finding["processes"].as_array().expect("a list");
    processes.iter().map(|process| process["pid"].as_i64().expect("a number")).collect()
}

#[test]
fn a_stranger_in_one_hierarchy_alone_is_told_of() {
    let host = Host::new();
    let task = watched(&host, "exec sleep 1000", "[watch.unexpected_processes]\nevery = '100ms'").start();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let stranger = host.spawn_command(command);
    let file = hierarchy("memory").join(&overhead(&task)[1..]).join("cgroup.procs");
    fs::write(file, stranger.pid().to_string()).expect("it lives");
    let finding = found(&host, &task, "unexpected_processes");
    assert_eq!(pids(&finding), [i64::from(stranger.pid())], "{finding}");
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
    task.end();
}

#[test]
fn strangers_in_the_shims_cgroup_are_told_of() {
    let host = Host::new();
    let toml = "[watch.unexpected_processes]\nevery = '100ms'";
    let task = watched(&host, "exec sleep 1000", toml).start();
    let path = overhead(&task);
    let expected = stranger(&host, &path, Some(task.id().to_owned()));
    let first = stranger(&host, &path, None);
    let finding = found(&host, &task, "unexpected_processes");
    assert_eq!(pids(&finding), [i64::from(first.pid())], "{finding}");
    assert_eq!((&finding["processes"][0]["name"], &finding["others"]), (&"sleep".into(), &0.into()));
    let others: Vec<Process> = (0..6).map(|_| stranger(&host, &path, None)).collect();
    let all = eventually("all are told of, five by name", || {
        told(&host, &task, "watch").into_iter().find(|event| pids(event).len() == 5 && event["others"] == 2)
    });
    assert!(!pids(&all).contains(&i64::from(expected.pid())), "{all}");
    for process in others.into_iter().chain([first, expected]) {
        process.signal(rustix::process::Signal::KILL);
        process.finish();
    }
    task.end();
}

#[test]
fn the_command_line_of_a_stranger_is_told_up_to_64_characters() {
    let host = Host::new();
    let toml = "[watch.unexpected_processes]\nevery = '100ms'";
    let task = watched(&host, "exec sleep 1000", toml).start();
    let line = format!("sleep\n\u{fc} {}", "x".repeat(80));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "kill -STOP $$", &line]);
    let stranger = stranger_of(&host, &overhead(&task), command);
    let finding = found(&host, &task, "unexpected_processes");
    assert_eq!(pids(&finding), [i64::from(stranger.pid())], "{finding}");
    let told = finding["processes"][0]["command"].as_str().expect("text");
    let whole = format!("/bin/sh -c kill -STOP $$ sleep \u{fc} {}", "x".repeat(80));
    assert_eq!(told, whole.chars().take(64).collect::<String>(), "{finding}");
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
    task.end();
}

#[test]
fn a_zombie_in_the_shims_cgroup_is_nobody() {
    let host = Host::new();
    let toml = "[watch.unexpected_processes]\nevery = '100ms'";
    let task = watched(&host, "exec sleep 1000", toml).start();
    let path = overhead(&task);
    // It goes on as a program that waits for no child: the child, which has said its pid, stays as a zombie.
    let go = host.work().join("go");
    let script = "until test -e $0; do sleep 0.05; done; sh -c 'echo $$' & exec sleep 1000";
    let mut command = host.command("/bin/sh");
    command.env("BOWLINE_SHIM", task.id()).args(["-c", script]).arg(&go);
    let parent = stranger_of(&host, &path, command);
    parent.read_stdout();
    fs::write(go, "").expect("the work folder is writable");
    let child: i32 = eventually("the child has ended", || {
        let pid: i32 = parent.said().trim().parse().ok()?;
        status_lines(pid, &["State"]).contains('Z').then_some(pid)
    });
    assert!(cgroup_of(child).values().any(|at| *at == path), "it is there");
    // Once somebody was found, the shim has looked twice.
    let stranger = stranger(&host, &path, None);
    let finding = found(&host, &task, "unexpected_processes");
    assert_eq!((pids(&finding), &finding["others"]), (vec![i64::from(stranger.pid())], &0.into()), "{finding}");
    for process in [stranger, parent] {
        process.signal(rustix::process::Signal::KILL);
        process.finish();
    }
    task.end();
}

#[test]
fn swapped_memory_counts_as_in_use() {
    // Not on a machine of others': it gets swap.
    if !(only_v2() && has_systemd()) {
        return;
    }
    let host = Host::alone();
    let Some(disk) = host.on_disk() else { return };
    let file = disk.join("swap");
    let file = file.to_str().expect("ASCII");
    let sh = |script: String| {
        let done = Command::new("/bin/sh").args(["-c", &script]).status().expect("it runs");
        assert!(done.success(), "{script}: {done}");
    };
    sh(format!(
        "dd if=/dev/zero of={file} bs=1M count=128 status=none; chmod 600 {file}; mkswap -q {file}; swapon {file}"
    ));
    // Of 60 MiB of its own no more than 32 are in memory.
    let script = "(head -c 60M /dev/zero; exec sleep 1000) | tail -c 60M";
    let toml = "memory = {limit = '32M', swap = '96M'}\nwatch.memory = {above = '40M', every = '100ms'}";
    let task = watched(&host, script, toml).start();
    let finding = found(&host, &task, "memory");
    assert_eq!((&finding["part"], figure(&finding, "above_bytes")), (&"total".into(), 40 << 20), "{finding}");
    assert!(figure(&finding, "bytes") > 40 << 20, "{finding}");
    let in_kernel = |file: &str| task.cgroup_file("memory", file).parse::<u64>().expect("a number");
    assert!(in_kernel("memory.max") == 32 << 20 && in_kernel("memory.current") <= 32 << 20);
    task.end();
    sh(format!("swapoff {file}; rm {file}"));
}

#[test]
fn a_stranger_can_stop_the_task_and_is_let_go() {
    let host = Host::new();
    let toml = "[watch.unexpected_processes]\nevery = '100ms'\naction = 'stop'";
    let task = watched(&host, "exec sleep 1000", toml).start();
    let stranger = stranger(&host, &overhead(&task), None);
    let report = task.wait();
    assert_eq!(report["stopped_for"]["processes"][0]["pid"], stranger.pid(), "{report:?}");
    assert!(process_exists(stranger.pid()), "it is not the task's, and lives on");
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let host = Host::new();
    let strays = "watch.unexpected_processes = {}";
    for mode in ["inherit", "root"] {
        let build = watched(&host, "sleep 1000", strays).flag(format!("--shim-cgroup={mode}"));
        build.assert_refused(125, &["watch.unexpected_processes", "no cgroup of its own"]);
    }
}

#[test]
fn a_threshold_that_makes_no_sense_is_refused_with_its_field() {
    let host = Host::new();
    for (toml, parts) in [
        ("watch.throttled.above = '-1s'", ["watch.throttled.above", "-1s"]),
        ("watch.throttled.above = 0", ["watch.throttled.above", "is 0"]),
        ("watch.throttled.above = '10M'", ["watch.throttled.above", "10M"]),
        ("watch.memory.above = '10s'", ["watch.memory.above", "10s"]),
        ("watch.memory.above = 0", ["watch.memory.above", "is 0"]),
        ("watch.memory_high.above = -1", ["watch.memory_high.above", "-1"]),
        ("watch.cpu_pressure.above = '10%'", ["watch.cpu_pressure.above", "10%"]),
        ("watch.oom.action = 'restart'", ["watch.oom.action", "restart"]),
    ] {
        watched(&host, "sleep 1000", toml).assert_refused(125, &parts);
    }
}

#[test]
fn a_fork_bomb_is_no_stranger() {
    let host = Host::new();
    let toml = "pids = 20\n[watch.unexpected_processes]\nevery = '100ms'\naction = 'stop'";
    let task = watched(&host, "sh -c 'while :; do sleep 1000 & done'; exec sleep 1000", toml).start();
    let path = overhead(&task);
    eventually("the bomb has met its limit", || {
        let events = task.cgroup_file("pids", "pids.events");
        events.lines().any(|line| line.strip_prefix("max ").is_some_and(|n| n != "0")).then_some(())
    });
    // Until the shim has looked at somebody twice, it has looked at the bomb.
    let stranger = stranger(&host, &path, None);
    let report = task.wait();
    assert_eq!(pids(&report["stopped_for"]), [i64::from(stranger.pid())]);
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
}

#[test]
fn what_the_kernel_tells_of_by_itself_wakes_nobody_up() {
    if makes_futures_again() {
        return;
    }
    let host = Host::new();
    let pressure =
        if fs::exists("/proc/pressure/io").is_ok_and(|there| there) { "io_pressure.above = '1s'" } else { "" };
    let task = watched(&host, "exec sleep 1000", &format!("[watch]\noom = {{}}\n{pressure}")).start();
    let shim = task.shim_pid();
    let switches = || status_lines(shim, &["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"]);
    let after = |script: &str| {
        host.task(script).run().assert_code(0);
        switches()
    };
    eventually("it has settled", || (switches() == after("sleep 0.5")).then_some(()));
    assert_eq!(switches(), after("sleep 2"));
    task.end();
}
