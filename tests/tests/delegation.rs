//! Tasks below cgroups that are somebody else's: a unit of systemd's that was
//! delegated, and a cgroup that can hand no controllers down. v2 only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{disk, eventually, lacks_systemd, only_v2};

const CGROUPS: &str = "/sys/fs/cgroup";
const IDLE: &str = "command = 'sleep'\nargs = ['1000']\n";

fn systemctl(args: &[&str]) -> bool {
    Command::new("systemctl").args(args).status().is_ok_and(|status| status.success())
}

/// A service with `Delegate=yes` that runs `script`, then sleeps.
struct Unit {
    name: String,
    path: String,
}

impl Unit {
    fn start(host: &Host, script: &str) -> Unit {
        let name = format!("{}.service", host.prefix());
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--collect", "--unit", &name, "--property=Delegate=yes", "/bin/sh", "-c"]);
        command.arg(format!("{script}; exec sleep 1000"));
        assert!(command.status().is_ok_and(|status| status.success()), "systemd-run");
        let path = format!("/system.slice/{name}");
        let unit = Unit { name, path };
        eventually("it sleeps", || {
            let procs =
                [unit.folder().join("inner"), unit.folder()].map(|f| fs::read_to_string(f.join("cgroup.procs")));
            let pid = procs.into_iter().flatten().find_map(|text| text.trim().parse::<i32>().ok())?;
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n").then_some(())
        });
        unit
    }

    fn folder(&self) -> PathBuf {
        Path::new(CGROUPS).join(&self.path[1..])
    }

    fn stop(self) {
        assert!(systemctl(&["is-active", "--quiet", &self.name]), "the task's end has taken the unit along");
        assert!(systemctl(&["stop", &self.name]));
        eventually("its cgroup goes", || (!self.folder().exists()).then_some(()));
    }
}

const MOVES_DOWN: &str =
    "c=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); mkdir $c/inner; echo 0 > $c/inner/cgroup.procs";

#[test]
fn a_task_in_a_delegated_unit_has_its_limits() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let unit = Unit::start(&host, MOVES_DOWN);
    let limits = "memory.limit = '64M'\ncpu.limit = 0.5\npids = 17";
    let task = host.described(&format!("{IDLE}cgroup = '{}/payload'\n{limits}", unit.path)).start();
    assert_eq!(task.cgroup("memory"), unit.folder().join("payload"));
    for (file, value) in [("memory.max", "67108864"), ("cpu.max", "50000 100000"), ("pids.max", "17")] {
        assert_eq!(task.cgroup_file("memory", file), value, "{file}");
    }
    assert_eq!(task.processes(), [task.program_pid()]);
    task.exec("exec tail /dev/zero").assert_code(137);
    assert!(systemctl(&["daemon-reload"]));
    assert_eq!(task.cgroup_file("memory", "memory.max"), "67108864");
    task.end();
    assert!(!unit.folder().join("payload").exists());
    unit.stop();
}

#[test]
fn a_limit_is_refused_below_a_unit_with_processes_of_its_own() {
    if lacks_systemd() || !only_v2() {
        return;
    }
    let host = Host::new();
    let unit = Unit::start(&host, "true");
    let payload = format!("{IDLE}cgroup = '{}/payload'\n", unit.path);
    host.described(&format!("{payload}memory.limit = '64M'")).assert_refused(125, &["memory.max", "67108864"]);
    assert!(!unit.folder().join("payload").exists());
    let handed_down = || fs::read_to_string(unit.folder().join("cgroup.subtree_control")).expect("it is there");
    assert_eq!(handed_down().trim(), "", "the unit is not changed");
    let task = host.described(&format!("{payload}pids = 'max'")).start();
    assert_eq!(handed_down().trim(), "", "the unit is not changed");
    task.exec("echo runs").assert_says("runs");
    task.end();
    unit.stop();
}

#[test]
fn a_limit_without_its_controller_is_refused_by_file_and_value() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let parent = host.elsewhere("parent");
    let mut sleep = host.command("sleep");
    sleep.arg("1000");
    let sleep = host.spawn_command(parent.inside(&sleep));
    eventually("a process is in it", || {
        let [folder] = &parent.folders()[..] else { return None };
        fs::read_to_string(folder.join("cgroup.procs")).is_ok_and(|text| !text.is_empty()).then_some(())
    });
    let below = format!("{IDLE}cgroup = '{}/task'\n", parent.path());
    let (major, minor) = disk().expect("a virtual machine has one");
    let io = format!("io.devices = [{{path = '{major}:{minor}', read_bps = '1M'}}]");
    for (limit, file, value) in [
        ("memory.limit = '64M'", "memory.max", "67108864"),
        ("memory.low = '32M'", "memory.low", "33554432"),
        ("memory.high = '32M'", "memory.high", "33554432"),
        ("cpu.limit = 0.5", "cpu.max", "50000 100000"),
        ("cpu.cpuset = '0'", "cpuset.cpus", "0"),
        ("pids = 17", "pids.max", "17"),
        // The default one.
        ("", "pids.max", "4096"),
        (&io, "io.max", "rbps=1048576"),
    ] {
        let pids = if file == "pids.max" { "" } else { "pids = 'max'\n" };
        host.described(&format!("{below}{pids}{limit}")).assert_refused(125, &[file, value]);
        assert!(!parent.folders()[0].join("task").exists());
    }
    // It needs no controller.
    let task = host.described(&format!("{below}pids = 'max'")).start();
    task.exec_with(["--timeout=50s"], "echo runs").assert_says("runs");
    assert_eq!(task.stats()["memory"]["usage_bytes"], serde_json::Value::Null);
    task.end();
    drop(sleep);
    parent.remove();
}
