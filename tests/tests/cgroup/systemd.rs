//! Cgroups that systemd makes: `systemctl show` and the kernel's files as
//! witnesses. What needs systemd returns at once on a host without; that a bus
//! is missing, hangs or talks nonsense is tried on every host.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{
    Ran, Task, assert_forgotten, assert_shows, binary, cgroup_of, disk, eventually, has_systemd, lacks_systemd,
    only_v2, show, skip, systemctl,
};
use serde_json::Value;

const SYSTEMD: &str = "--cgroup-driver=systemd";

fn scope(id: &str) -> String {
    format!("bowline-{id}.scope")
}

fn slice(id: &str) -> String {
    format!("bowline-{}.slice", id.replace('-', "\\x2d"))
}

/// Nothing of the task, whose cgroup systemd has made, is left.
#[track_caller]
fn assert_gone(host: &Host, id: &str) {
    host.assert_nothing_left();
    let name = host.named(id);
    for unit in [scope(&name), slice(&name), format!("bowline-{name}:overhead.scope")] {
        assert_forgotten(&unit);
    }
    let left = fs::read_dir("/run/systemd/transient").into_iter().flatten().flatten();
    let left: Vec<PathBuf> = left.map(|entry| entry.path()).collect();
    let left: Vec<&PathBuf> = left.iter().filter(|path| path.to_string_lossy().contains(id)).collect();
    assert!(left.is_empty(), "{left:?}");
}

const EVERYTHING: [&str; 5] = ["--memory=64M", "--cpus=0.5", "--pids=50", "--log=json", SYSTEMD];

fn limited(host: &Host) -> Task<'_> {
    let build =
        host.described("command = 'sleep'\nargs = ['1000']\ncpu.shares = 2048\ncpu.cpuset = '0'\nio.weight = 200");
    EVERYTHING.into_iter().fold(build, |build, flag| build.flag(flag)).start()
}

#[test]
fn every_limit_is_a_property_and_in_its_file() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = limited(&host);
    let unit = scope(&task.on_host());
    let expected = [
        "ActiveState=active",
        "MemoryMax=67108864",
        "MemorySwapMax=0",
        "CPUQuotaPerSecUSec=500ms",
        "CPUQuotaPeriodUSec=100ms",
        "TasksMax=50",
        "AllowedCPUs=0",
        "Delegate=yes",
        "DevicePolicy=auto",
        "CollectMode=inactive-or-failed",
    ];
    assert_shows(&unit, &expected);
    assert_shows(&unit, &[&*format!("Slice={}", slice(&task.on_host()))]);
    if only_v2() {
        let path = task.cgroup("memory").to_string_lossy().into_owned();
        let shown = show(&unit, "ControlGroup");
        assert!(path.ends_with(shown.trim_start_matches("ControlGroup=")), "{path} and {shown}");
        assert_eq!(show(&unit, "CPUWeight"), format!("CPUWeight={}", task.cgroup_file("cpu", "cpu.weight")));
        assert_eq!(task.cgroup_file("memory", "memory.max"), "67108864");
        assert_eq!(task.cgroup_file("cpu", "cpu.max"), "50000 100000");
        assert_eq!(task.cgroup_file("pids", "pids.max"), "50");
        assert_eq!(task.cgroup_file("cpuset", "cpuset.cpus"), "0");
    }
    let stats = task.stats();
    assert_eq!((&stats["pids"]["current"], &stats["pids"]["limit"]), (&2.into(), &50.into()), "{stats}");
    assert_eq!(stats["processes"].as_array().map(Vec::len), Some(2), "the command and its init alone: {stats}");
    task.end();
    assert_gone(&host, task.id());
}

#[test]
fn an_update_changes_properties_and_files() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = limited(&host);
    let unit = scope(&task.on_host());
    task.bowline("update", ["--memory=32M", "--cpus=1.5", "--pids=20"]).assert_code(0);
    let changed = ["MemoryMax=33554432", "CPUQuotaPerSecUSec=1.500000s", "TasksMax=20"];
    let shown = show(&unit, "CPUQuotaPerSecUSec");
    assert!(["CPUQuotaPerSecUSec=1.5s", changed[1]].contains(&&*shown), "{shown}");
    assert_shows(&unit, &[changed[0], changed[2]]);
    let files = || {
        ["memory.max", "cpu.max", "pids.max"]
            .map(|file| task.cgroup_file(file.split('.').next().unwrap_or_default(), file))
    };
    if only_v2() {
        assert_eq!(files(), ["33554432", "150000 100000", "20"]);
    }
    // What is refused changes neither.
    task.bowline("update", ["--memory=16M", "--cpuset=4000"]).assert_refused(125, &["cpuset"]);
    assert_shows(&unit, &[changed[0]]);
    task.bowline("update", ["--memory=max", "--cpus=max", "--pids=max"]).assert_code(0);
    assert_shows(&unit, &["MemoryMax=infinity", "CPUQuotaPerSecUSec=infinity", "TasksMax=infinity"]);
    if only_v2() {
        assert_eq!(files(), ["max", "max 100000", "max"]);
    }
    task.end();
    assert_gone(&host, task.id());
}

#[test]
fn a_reload_of_systemd_leaves_the_limits_and_the_task() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task =
        host.task("sleep 1000").flag("--memory=64M").flag("--cpus=0.123").flag("--pids=50").flag(SYSTEMD).start();
    let files = || {
        let all = ["memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max"];
        all.map(|file| task.cgroup_file("", file))
    };
    let before = files();
    // Whole percents, rounded up: what systemd can keep.
    assert_eq!(before[2], "13000 100000");
    systemctl(&["daemon-reload"]);
    // Whatever systemd writes, it has written once a job of its is done.
    systemctl(&["start", "--", &slice(&task.on_host())]);
    assert_eq!(files(), before);
    let Some((major, minor)) = disk() else { return skip("no disk") };
    let read =
        "head -c 1 /dev/disk 2>&1 | wc -c; head -c 1 /dev/disk >/dev/null && echo READ; head -c 1 /dev/zero | wc -c";
    let ran = task.exec(&format!("mknod /dev/disk b {major} {minor}; {read}"));
    assert!(!ran.out().contains("READ") && ran.out().lines().last() == Some("1"), "{ran}");
    assert_eq!(task.status(), "running");
    task.end();
    assert_gone(&host, task.id());
}

#[test]
fn an_exec_lands_in_the_scope() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task("sleep 1000").flag(SYSTEMD).start();
    let init = cgroup_of(task.pid());
    let exec = task.spawn_exec([], "echo here; sleep 1000");
    exec.wait_for_out("here");
    let timed = task.spawn_exec(["--timeout=1000s"], "echo here; sleep 1000");
    timed.wait_for_out("here");
    for pid in task.all_processes() {
        let found = cgroup_of(pid);
        for (controllers, path) in &found {
            assert!(path.starts_with(&init[controllers]), "{pid} is in {found:?}, init in {init:?}");
        }
    }
    assert!(task.processes().len() >= 3, "{:?}", task.processes());
    assert!(init.values().any(|path| path.ends_with(&scope(&task.on_host()))), "{init:?}");
    task.end();
    exec.finish();
    timed.finish();
    assert_gone(&host, task.id());
}

#[test]
fn a_path_of_a_unit_goes_to_systemd_by_itself() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let parent = format!("{}.slice", host.prefix());
    let toml = format!("command = 'sleep'\nargs = ['1000']\ncgroup = '{parent}:web:a b'\nmemory.limit = '64M'");
    let task = host.described(&toml).start();
    let unit = "web-a\\x20b.scope";
    assert_shows(unit, &["ActiveState=active", "MemoryMax=67108864", &format!("Slice={parent}")]);
    let path = task.cgroup("memory").to_string_lossy().into_owned();
    assert!(path.ends_with(&format!("/{parent}/{unit}")), "{path}");
    task.end();
    task.bowline("rm", []).assert_code(0);
    assert_forgotten(unit);
    // It is not ours to stop.
    assert_shows(&parent, &["ActiveState=active"]);
    systemctl(&["stop", "--", &parent]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_oom_kill_is_reported_although_the_scope_is_removed() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    // systemd escapes the dash in the name of the slice, and the kernel's log the backslash.
    let id = format!("{}-b", host.new_id());
    for kills in 1..4 {
        let task = host
            .task("x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}")
            .named(&id)
            .flag("--memory=16M")
            .flag(SYSTEMD)
            .start();
        let report = task.wait();
        report.assert_killed_by("KILL");
        assert_eq!((&report["oom_killed"], &report["oom_cgroup"]), (&true.into(), &task.inspect()["cgroup"]));
        assert_eq!(report["memory_limit_bytes"], 16 << 20);
        task.bowline("rm", []).assert_code(0);
        let told = host.bowline(["events", "--json", &id]);
        let told: Vec<Value> = told.out().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let told: Vec<&Value> = told.iter().filter(|event| event["event"] == "oom").collect();
        // The kernel counts the last of a killed group late.
        assert!(told.len() >= kills && told.iter().any(|event| !event["last"].is_null()), "{told:?}");
    }
    assert_gone(&host, &id);
}

#[test]
fn many_tasks_of_one_name_come_and_go() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    for _ in 0..5 {
        host.task("exit 3").named(&id).flag(SYSTEMD).run().assert_code(3);
        host.bowline(["rm", &id]).assert_code(0);
    }
    assert_gone(&host, &id);
}

#[test]
fn a_pause_and_a_stop_work_in_a_scope() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task("trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done").flag(SYSTEMD).start();
    task.wait_for_line("ready");
    task.bowline("pause", []).assert_code(0);
    assert_eq!(task.status(), "paused");
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    task.bowline("resume", []).assert_code(0);
    task.stop(["--grace=60s"]).assert_code(7);
    assert_gone(&host, task.id());
}

#[test]
fn a_task_that_systemd_thaws_is_not_paused() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task("sleep 1000").flag(SYSTEMD).start();
    task.bowline("pause", []).assert_code(0);
    let unit = scope(&task.on_host());
    systemctl(&["freeze", "--", &unit]);
    assert_eq!(task.status(), "paused");
    systemctl(&["thaw", "--", &unit]);
    assert_eq!(task.status(), "running");
    task.exec("echo in").assert_says("in");
    task.end();
    assert_gone(&host, task.id());
}

#[test]
fn rm_ends_the_scope_of_a_task_whose_shim_has_died() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let toml =
        "command = 'sh'\nargs = ['-c', 'setsid sleep 1000 & echo ready; exec sleep 1000']\nnamespaces.pid = 'host'";
    let task = host.described(toml).flag(SYSTEMD).start();
    task.wait_for_line("ready");
    task.kill_shim(task.shim_pid());
    assert_shows(&scope(&task.on_host()), &["ActiveState=active"]);
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_gone(&host, task.id());
}

#[test]
fn the_shim_is_charged_to_a_scope_of_its_own() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task("sleep 1000").flag(SYSTEMD).start();
    let overhead = format!("bowline-{}:overhead.scope", task.on_host());
    let shim = task.shim_pid();
    eventually("the shim is there", || cgroup_of(shim).values().any(|path| path.ends_with(&overhead)).then_some(()));
    assert_shows(&overhead, &["ActiveState=active", &format!("Slice={}", slice(&task.on_host()))]);
    task.end();
    assert_gone(&host, task.id());
}

#[test]
fn a_unit_of_somebody_elses_is_not_taken() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    let mut other = host.command("systemd-run");
    other.args(["--quiet", "--collect", "--scope", "--unit", &scope(&host.named(&id)), "--", "sleep", "1000"]);
    let other = host.spawn_command(other);
    eventually("it runs", || show(&scope(&host.named(&id)), "ActiveState").ends_with("=active").then_some(()));
    let ran = host.bowline(["start", "--name", &id, SYSTEMD, "--", "/bin/sleep", "1000"]);
    ran.assert_refused(125, &[&scope(&host.named(&id)), "org.freedesktop.systemd1.UnitExists"]);
    assert_shows(&scope(&host.named(&id)), &["ActiveState=active"]);
    systemctl(&["stop", "--", &scope(&host.named(&id))]);
    other.finish();
    assert_gone(&host, &id);
}

#[test]
fn a_unit_that_has_failed_is_forgotten_for_a_task_of_its_name() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    let mut other = host.command("systemd-run");
    other.args([
        "--quiet",
        "--scope",
        "--unit",
        &scope(&host.named(&id)),
        "--property=RuntimeMaxSec=1",
        "--",
        "sleep",
        "1000",
    ]);
    host.spawn_command(other).finish();
    eventually("it has failed", || show(&scope(&host.named(&id)), "ActiveState").ends_with("=failed").then_some(()));
    let task = host.task("sleep 1000").named(&id).flag(SYSTEMD).start();
    assert_shows(&scope(&host.named(&id)), &["ActiveState=active"]);
    task.end();
    assert_gone(&host, &id);
}

#[test]
fn a_slice_that_systemd_has_made_by_itself_ends_with_the_task() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    let (slice, unit) = (slice(&host.named(&id)), format!("other-{id}.scope"));
    let mut other = host.command("systemd-run");
    other.args(["--quiet", "--collect", "--scope", "--unit", &unit, "--slice", &slice, "--", "sleep", "1000"]);
    let other = host.spawn_command(other);
    eventually("it runs", || show(&unit, "ActiveState").ends_with("=active").then_some(()));
    let task = host.task("sleep 1000").named(&id).flag(SYSTEMD).start();
    assert_shows(&slice, &["StopWhenUnneeded=no"]);
    systemctl(&["stop", "--", &unit]);
    other.finish();
    task.end();
    assert_gone(&host, &id);
}

#[test]
fn a_launch_that_fails_leaves_no_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    host.task_of(["/no/such/command"]).named(&id).flag(SYSTEMD).assert_refused(127, &["/no/such/command"]);
    let toml = "command = 'sleep'\nargs = ['1000']\nunified = {'memory.nonsense' = '1'}";
    host.described(toml).named(&id).flag(SYSTEMD).assert_refused(125, &["memory.nonsense"]);
    assert_gone(&host, &id);
}

/// `bowline start` with the driver systemd and this for its bus.
fn start_with_bus(host: &Host, address: &str) -> Ran {
    let mut bowline = host.command(binary("bowline"));
    bowline.env("DBUS_SYSTEM_BUS_ADDRESS", address).args(["start", SYSTEMD]);
    bowline.args(["--name", &host.new_id(), "--", "/bin/sleep", "1000"]);
    host.execute(bowline)
}

#[test]
fn a_host_without_a_bus_is_told_so() {
    let host = Host::new();
    let missing = host.work().join("missing");
    let address = format!("unix:path={}", missing.display());
    let ran = start_with_bus(&host, &address);
    ran.assert_refused(125, &["cannot reach systemd", &address]);
    host.assert_nothing_left();
    if !has_systemd() {
        host.task("sleep 1000")
            .flag(SYSTEMD)
            .assert_refused(125, &["cannot reach systemd", "/run/dbus/system_bus_socket"]);
        let by_path = "command = 'sleep'\nargs = ['1000']\ncgroup = 'a.slice:b:c'";
        host.described(by_path).assert_refused(125, &["cannot reach systemd"]);
        host.assert_nothing_left();
    }
}

#[test]
fn a_bus_that_hangs_is_given_up_and_the_shim_answers_meanwhile() {
    let host = Host::new();
    let socket = host.work().join("bus");
    let bus = UnixListener::bind(&socket).expect("a short path");
    let id = host.new_id();
    let mut bowline = host.command(binary("bowline"));
    bowline.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", socket.display()));
    bowline.args(["start", SYSTEMD, "--name", &id, "--", "/bin/sleep", "1000"]);
    let mut start = host.spawn_command(bowline);
    // It is let in and never hears anything.
    let (connected, _) = bus.accept().expect("the shim's worker");
    host.bowline(["ps", "--json"]).assert_code(0);
    assert!(start.is_running(), "the shim answered while the bus did not");
    start.read_stdout();
    start.read_stderr();
    start.finish().assert_refused(125, &["did not answer within 5s", "bus"]);
    drop((connected, bus));
}

#[test]
fn a_bus_that_talks_nonsense_or_hangs_up_is_an_error() {
    let host = Host::new();
    for nonsense in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"", b"REJECTED\r\n", b"OK \r\n", &[0xff; 4096]] {
        let socket = host.work().join(format!("bus-{}", nonsense.len()));
        let bus = UnixListener::bind(&socket).expect("a short path");
        let talking = std::thread::spawn(move || {
            let (mut stream, _) = bus.accept().expect("the shim's worker");
            // It may have gone by then.
            let _ = stream.write_all(nonsense);
        });
        start_with_bus(&host, &format!("unix:path={}", socket.display()))
            .assert_refused(125, &["cannot reach systemd"]);
        talking.join().expect("it spoke");
    }
}

#[test]
fn driver_and_path_that_do_not_go_together_are_refused() {
    let host = Host::new();
    let at = |path: &str| format!("command = 'sleep'\nargs = ['1000']\ncgroup = '{path}'");
    host.described(&at("a.slice:b:c")).flag("--cgroup-driver=cgroupfs").assert_refused(125, &["b-c.scope", "cgroupfs"]);
    host.described(&at("/a/b")).flag(SYSTEMD).assert_refused(125, &["/a/b", "slice:prefix:name"]);
    host.described(&at("a:b:c")).assert_refused(125, &["\"a\"", ".slice"]);
    host.described(&at("a--b.slice:b:c")).assert_refused(125, &["a--b.slice"]);
    host.described(&at(&format!(":b:{}", "c".repeat(300)))).assert_refused(125, &["255"]);
    let mut bowline = host.command(binary("bowline"));
    bowline.env("BOWLINE_CGROUP_DRIVER", "openrc").args(["start", "--", "/bin/true"]);
    host.execute(bowline).assert_refused(2, &["openrc"]);
}
