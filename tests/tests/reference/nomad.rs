//! What Nomad's executor does (drivers/shared/executor), asked of bowline by its own commands. Each case is named after
//! the function there that it mirrors; docs/reference-systems.md has the rows that other files test.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use bowline_tests::Host;
use bowline_tests::harness::{Root, Task, eventually, only_v2, status_lines};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

/// The masks of all sets of capabilities, as a task of this user reads them inside.
const MASKS: &str = "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2";

/// As Nomad's driver has it.
const COMMAND_FOLDERS: &str = "--set=command_folders=[\"/local\", \"/\"]";

/// A root in which `tool` says where it was found, in each of these folders.
fn root_with_tools(host: &Host, folders: &[&str]) -> Root {
    let root = host.busybox_root();
    for folder in folders {
        root.folder(folder).file(&format!("{folder}/tool"), &format!("#!/bin/sh\necho /{folder} $1\n"), 0o755);
    }
    root
}

#[test]
fn lookup_task_bin_takes_local_then_the_folder_then_path() {
    let host = Host::new();
    let root = root_with_tools(&host, &["local", ".", "bin"]);
    let nomads = || host.task_of(["tool", "me"]).rootfs(root.path()).flag(COMMAND_FOLDERS);
    // PATH alone, by default.
    host.task_of(["tool", "me"]).rootfs(root.path()).run().assert_says("/bin me");
    for (found, gone) in [("/local", "local/tool"), ("/.", "tool"), ("/bin", "bin/tool")] {
        nomads().run().assert_says(&format!("{found} me"));
        fs::remove_file(root.path().join(gone)).expect("ours");
    }
    nomads().assert_refused(127, &["tool", "PATH"]);
}

#[test]
fn lookup_task_bin_finds_what_is_mounted_at_local() {
    let host = Host::new();
    let root = root_with_tools(&host, &["task"]);
    let source = root.path().join("task");
    let toml = format!(
        "command = 'tool'\ncommand_folders = ['/local']\nargs = ['me']\nmounts = [{{source = '{}', destination = '/local', read_only = true}}]",
        source.display()
    );
    // In the view of the host too, whose own /tool nobody sees.
    host.described(&toml).run().assert_says("/task me");
    // A path is no bare command.
    host.described(&toml.replace("'tool'", "'/usr/bin/tool'")).assert_refused(127, &["/usr/bin/tool"]);
}

#[test]
fn lookup_task_bin_passes_over_what_is_no_file() {
    let host = Host::new();
    let root = root_with_tools(&host, &["bin"]);
    root.folder("local/tool").folder("tool");
    host.task_of(["tool", "me"]).rootfs(root.path()).flag(COMMAND_FOLDERS).run().assert_says("/bin me");
    // A folder of the root is not a command that was found.
    host.task_of(["etc"]).rootfs(root.path()).flag(COMMAND_FOLDERS).assert_refused(127, &["etc", "PATH"]);
}

#[test]
fn make_executable_is_never_done_and_nothing_else_runs_instead() {
    let host = Host::new();
    for folder in ["local", "."] {
        let root = root_with_tools(&host, &["bin", folder]);
        let tool = root.path().join(folder).join("tool");
        root.file(&format!("{folder}/tool"), "#!/bin/sh\n", 0o644);
        let at = if folder == "." { "/tool" } else { "/local/tool" };
        host.task_of(["tool"]).rootfs(root.path()).flag(COMMAND_FOLDERS).assert_refused(126, &[at, "not executable"]);
        let mode = fs::metadata(&tool).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        fs::remove_dir_all(root.path()).expect("ours");
    }
}

#[test]
fn exec_looks_for_its_command_in_path_alone() {
    let host = Host::new();
    let root = root_with_tools(&host, &["local", "bin"]);
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    host.bowline(["exec", task.id(), "--", "tool", "me"]).assert_says("/bin me");
    fs::remove_file(root.path().join("bin/tool")).expect("ours");
    host.bowline(["exec", task.id(), "--", "tool"]).assert_refused(127, &["tool"]);
    task.end();
}

/// Whoever runs `MASKS` in such a task, in the order of /proc/PID/status: inheritable, permitted, effective, bounding,
/// ambient.
#[track_caller]
fn assert_masks(host: &Host, user: &str, capabilities: &str, masks: [u64; 5]) {
    let expected = masks.map(|mask| format!("{mask:016x}")).join("\n");
    let toml = format!("user = '{user}'\n{capabilities}");
    let ran = host.task(MASKS).toml(&toml).run();
    assert_eq!(ran.assert_code(0).out(), expected, "{toml}");
}

const DEFAULT: u64 = 0xa804_05fb;
const CHOWN: u64 = 1;
const KILL: u64 = 1 << 5;
const NET_ADMIN: u64 = 1 << 12;

#[test]
fn configure_capabilities_gives_a_non_root_user_added_ones() {
    let host = Host::new();
    let with = DEFAULT | NET_ADMIN;
    let added = "capabilities.add = ['NET_ADMIN']";
    assert_masks(&host, "nobody", added, [NET_ADMIN, NET_ADMIN, NET_ADMIN, with, NET_ADMIN]);
    // Root has them all anyway, and none that a user it becomes would keep.
    assert_masks(&host, "root", added, [0, with, with, with, 0]);
    // What the task has by default is not named, and not kept.
    assert_masks(&host, "nobody", "", [0, 0, 0, DEFAULT, 0]);
    assert_masks(&host, "nobody", "capabilities.drop = ['KILL']", [0, 0, 0, DEFAULT & !KILL, 0]);
    let only = "capabilities = {drop = ['ALL'], add = ['KILL']}";
    assert_masks(&host, "nobody", only, [KILL; 5]);
}

#[test]
fn configure_capabilities_makes_those_ambient_that_are_named_so() {
    let host = Host::new();
    let with = DEFAULT | NET_ADMIN;
    let none = "capabilities = {add = ['NET_ADMIN'], ambient = []}";
    assert_masks(&host, "nobody", none, [0, 0, 0, with, 0]);
    let other = "capabilities = {add = ['NET_ADMIN'], ambient = ['cap_chown']}";
    assert_masks(&host, "nobody", other, [CHOWN, CHOWN, CHOWN, with, CHOWN]);
    assert_masks(&host, "root", other, [CHOWN, with, with, with, CHOWN]);
    // As Nomad has it: all that the task has.
    assert_masks(&host, "nobody", "capabilities.ambient = ['ALL']", [DEFAULT; 5]);
    host.described("command = 'true'\ncapabilities.ambient = ['NET_ADMIN']")
        .assert_refused(125, &["capabilities.ambient", "NET_ADMIN", "capabilities.add"]);
    host.described("command = 'true'\nprofile = 'untrusted'\ncapabilities.ambient = ['CHOWN']")
        .assert_refused(125, &["capabilities.ambient", "untrusted"]);
}

#[test]
fn configure_capabilities_affects_the_task_and_its_execs() {
    let host = Host::new();
    let script = "touch /tmp/mine && chown 0 /tmp/mine && stat -c %u /tmp/mine";
    let root = host.busybox_root();
    let build = |lines: &str| host.task(script).rootfs(root.path()).toml(&format!("user = 'app'\n{lines}"));
    root.folder("tmp").file("tmp/.keep", "", 0o644);
    fs::set_permissions(root.path().join("tmp"), fs::Permissions::from_mode(0o1777)).expect("ours");
    build("capabilities.add = ['CHOWN']").run().assert_says("0");
    fs::remove_file(root.path().join("tmp/mine")).expect("it was made");
    let ran = build("").run();
    assert!(ran.code == Some(1) && ran.err().contains("not permitted"), "{ran}");
    let toml = "user = 'nobody'\ncapabilities.add = ['NET_ADMIN']";
    let task = host.task(IDLE).toml(toml).start();
    let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
    let masks = status_lines(task.program_pid(), &sets);
    assert_eq!(masks.matches("0000000000001000").count(), 4, "{masks}");
    task.exec("grep CapEff /proc/self/status").assert_says("CapEff:\t0000000000001000");
    task.end();
}

#[test]
fn exec_takes_a_command_with_arguments_until_a_deadline() {
    let host = Host::new();
    let task = host.task(IDLE).toml("workdir = '/tmp'\nenv = {WHO = 'me'}\nuser = 'nobody'").start();
    // The task's environment, folder and user; both streams; the exit code.
    let said = task.exec("echo $WHO in $(pwd) as $(id -un); echo oops >&2; exit 7");
    assert_eq!((said.code, said.out().as_str(), said.err().as_str()), (Some(7), "me in /tmp as nobody", "oops"));
    let exec = |args: &[&str]| host.bowline(["exec", task.id()].iter().chain(args));
    exec(&["--", "echo", "-n", "a  b", "$WHO"]).assert_says("a  b $WHO");
    let late = exec(&["--timeout=100ms", "--json", "--", "sleep", "1000"]);
    assert_eq!(late.assert_code(124).json()["timed_out"], true, "{late}");
    exec(&["--timeout=100s", "--", "true"]).assert_code(0);
    // `command is required`.
    exec(&["--"]).assert_code(2);
    exec(&["--", ""]).assert_refused(2, &["command", "empty"]);
    exec(&["--", "no-such-command"]).assert_refused(127, &["no-such-command"]);
    assert_eq!(task.status(), "running");
    task.end();
}

/// Those that Nomad looks up by name (consul-template's signals), with their numbers, except those that no program can
/// handle.
const HANDLED: [(&str, i32); 25] = [
    ("SIGALRM", 14),
    ("SIGBUS", 7),
    ("SIGCONT", 18),
    ("SIGFPE", 8),
    ("SIGHUP", 1),
    ("SIGILL", 4),
    ("SIGINT", 2),
    ("SIGIO", 29),
    ("SIGIOT", 6),
    ("SIGPIPE", 13),
    ("SIGPROF", 27),
    ("SIGQUIT", 3),
    ("SIGSEGV", 11),
    ("SIGSYS", 31),
    ("SIGTERM", 15),
    ("SIGTRAP", 5),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGWINCH", 28),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
];

#[test]
fn signal_takes_every_name_that_signal_lookup_has() {
    let host = Host::new();
    let traps: String = HANDLED.iter().map(|(_, number)| format!("trap 'echo got {number}' {number}; ")).collect();
    let task = host.task(&format!("{traps}echo ready; while :; do sleep 0.02; done")).start();
    task.wait_for_line("ready");
    let kill = |signal: &str| task.bowline("kill", [&format!("--signal={signal}")]);
    for (name, number) in HANDLED {
        kill(name).assert_code(0);
        task.wait_for_line(&format!("got {number}"));
    }
    let state = |expected: &str| {
        eventually(format_args!("it is {expected}"), || {
            status_lines(task.program_pid(), &["State"]).contains(expected).then_some(())
        })
    };
    kill("SIGSTOP").assert_code(0);
    state("T (stopped)");
    kill("SIGCONT").assert_code(0);
    state("S (sleeping)");
    // It asks whether the task lives, and nothing more.
    kill("SIGNULL").assert_code(0);
    for unknown in ["SIGFOO", "SIGNUL", ""] {
        kill(unknown).assert_refused(2, &["signal"]);
    }
    assert_eq!(task.status(), "running");
    kill("SIGKILL").assert_code(0);
    task.wait().assert_killed_by("KILL");
    kill("SIGNULL").assert_refused(125, &[task.id()]);
}

#[test]
fn shutdown_takes_the_same_names() {
    for (name, number) in [("SIGABRT", 6), ("SIGINT", 2), ("SIGQUIT", 3)] {
        let host = Host::new();
        let task = host.task(&format!("trap 'exit {number}' {number}; echo ready; while :; do sleep 0.02; done"));
        let task = task.start();
        task.wait_for_line("ready");
        // One that asks nothing would wait for the grace in vain.
        task.bowline("stop", ["--signal=SIGNULL"]).assert_refused(2, &["signal"]);
        task.stop([&*format!("--signal={name}"), "--grace=50s"]).assert_code(number);
        host.assert_nothing_left();
    }
}

/// What `Stats` measures, by Nomad's names, and where it is in ours.
const CPU_MEASURED: [(&str, &str); 4] = [
    ("System Mode", "cpu.system_usec"),
    ("User Mode", "cpu.user_usec"),
    ("Throttled Periods", "cpu.throttled_periods"),
    ("Throttled Time", "cpu.throttled_usec"),
];
const MEMORY_MEASURED: [(&str, &str); 4] = [
    ("RSS", "memory.anon_bytes"),
    ("Cache", "memory.cache_bytes"),
    ("Usage", "memory.usage_bytes"),
    ("Mapped File", "memory.counters"),
];
/// Where controllers are on v1 alone.
const MEMORY_MEASURED_V1: [(&str, &str); 3] = [
    ("Max Usage", "memory.peak_bytes"),
    ("Kernel Usage", "memory.accounts.kernel.usage_bytes"),
    ("Kernel Max Usage", "memory.accounts.kernel.peak_bytes"),
];

fn figure<'v>(stats: &'v Value, name: &str) -> &'v Value {
    let pointer = format!("/{}", name.replace('.', "/"));
    stats.pointer(&pointer).unwrap_or_else(|| panic!("{pointer} in {stats}"))
}

#[test]
fn stats_has_every_measured_field() {
    let host = Host::new();
    let task = host.task("(while :; do :; done) & echo ready; wait").flag("--cpus=0.2").flag("--memory=64M").start();
    task.wait_for_line("ready");
    let stats = eventually("it was throttled", || {
        let stats = task.stats();
        (stats["cpu"]["throttled_usec"].as_u64() > Some(0)).then_some(stats)
    });
    let of_version: &[(&str, &str)] = if only_v2() { &[] } else { &MEMORY_MEASURED_V1 };
    for (theirs, ours) in CPU_MEASURED.iter().chain(&MEMORY_MEASURED).chain(of_version) {
        let found = figure(&stats, ours);
        assert!(!found.is_null(), "{theirs}: {ours} in {stats}");
    }
    assert!(stats["memory"]["counters"][if only_v2() { "file_mapped" } else { "mapped_file" }].is_u64(), "{stats}");
    assert!(stats["cpu"]["throttled_periods"].as_u64() > Some(0), "{stats}");
    // Swap, where this kernel counts it.
    let measured: Vec<&str> = stats["measured"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(measured.contains(&"memory.swap_bytes"), !stats["memory"]["swap_bytes"].is_null(), "{stats}");
    // Percent, of all and of each process; both modes and the memory of each process.
    assert!(stats["cpu_percent"].as_f64() > Some(0.0), "{stats}");
    assert_by_pid(&task, &stats);
    task.end();
}

#[track_caller]
fn assert_by_pid(task: &Task<'_>, stats: &Value) {
    let processes = stats["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), task.all_processes().len(), "{stats}");
    for process in processes {
        for name in ["user_usec", "system_usec", "rss_bytes"] {
            assert!(process[name].is_u64(), "{name} in {process}");
        }
        assert!(stats["process_cpu_percent"][process["pid"].to_string()].is_number(), "{stats}");
    }
}

#[test]
fn stats_comes_at_an_interval() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let watch = host.spawn(["stats", "--watch", "--json", "--interval=100ms", task.id()]);
    eventually("there are three readings", || (watch.said().lines().count() >= 3).then_some(()));
    watch.signal(rustix::process::Signal::INT);
    let ran = watch.finish();
    let readings = ran.out().lines().map(str::to_owned).collect::<Vec<_>>();
    let read_at = |line: &String| serde_json::from_str::<Value>(line).map(|stats| stats["read_at"].to_string()).ok();
    let times: std::collections::BTreeSet<_> = readings.iter().filter_map(read_at).collect();
    assert!(times.len() >= 3, "{ran}");
    task.end();
}

/// The CPU time in each period and the period itself, as the kernel has them.
fn quota(task: &Task<'_>) -> String {
    if only_v2() {
        return task.cgroup_file("cpu", "cpu.max");
    }
    let file = |name: &str| task.cgroup_file("cpu", name);
    format!("{} {}", file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"))
}

#[test]
fn configure_cgroups_takes_cpu_fractions_down_to_a_thousandth() {
    let host = Host::new();
    // So little time is not enough to start in.
    let start = |period: &str| {
        host.described(&format!("command = 'sleep'\nargs = ['1000']\ncpu = {{limit = 1, period = '{period}'}}")).start()
    };
    for (period, limit, expected) in [
        ("100ms", "0.125", "12500 100000"),
        ("100ms", "0.01", "1000 100000"),
        // The least quota is a millisecond; of a second that is a thousandth.
        ("1s", "0.001", "1000 1000000"),
    ] {
        let task = start(period);
        task.bowline("update", [&format!("--cpus={limit}")]).assert_code(0);
        assert_eq!(quota(&task), expected, "{limit} of {period}");
        task.bowline("update", ["--cpus=1"]).assert_code(0);
        task.end();
    }
    let task = start("100ms");
    task.bowline("update", ["--cpus=0.001"]).assert_refused(2, &["cpu.limit", "100 µs", "at least 1000"]);
    assert_eq!(quota(&task), "100000 100000");
    task.end();
    for (limit, parts) in [
        ("{limit = 0.001}", ["cpu.limit", "100 µs", "at least 1000"]),
        ("{limit = 0.0009, period = '1s'}", ["cpu.limit", "900 µs", "at least 1000"]),
    ] {
        host.described(&format!("command = 'true'\ncpu = {limit}")).assert_refused(125, &parts);
    }
}
