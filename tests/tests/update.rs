//! Limits that change while the task runs: the kernel's files as witness, that
//! they bite, and that a change that fails changes nothing.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Task, disk, eventually, hierarchies, only_v2, skip};
use serde_json::{Value, json};

/// Holds more than 20 MiB in memory of its own, for good.
const HOLDING: &str = "x=$(head -c 20971520 /dev/zero | tr '\\0' x); echo ready; sleep 1000; echo ${#x}";

/// A limit's file in v1 and in v2.
struct File(&'static str, &'static str, &'static str);

const MEMORY: File = File("memory", "memory.limit_in_bytes", "memory.max");
const CPU: File = File("cpu", "cpu.cfs_quota_us", "cpu.max");
const PIDS: File = File("pids", "pids.max", "pids.max");
const CPUSET: File = File("cpuset", "cpuset.cpus", "cpuset.cpus");

impl File {
    #[track_caller]
    fn of(&self, task: &Task<'_>) -> String {
        task.cgroup_file(self.0, self.name())
    }

    fn name(&self) -> &'static str {
        if only_v2() { self.2 } else { self.1 }
    }
}

/// What the kernel has for a CPU limit of so many µs of 100 ms.
fn quota(us: &str) -> String {
    match (only_v2(), us) {
        (true, "-1") => "max 100000".to_owned(),
        (true, us) => format!("{us} 100000"),
        (false, us) => us.to_owned(),
    }
}

#[test]
fn every_limit_of_one_update_is_in_effect_and_in_the_record() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").start();
    let flags = ["--memory=32M", "--cpus=0.5", "--pids=20", "--cpuset=0"];
    task.bowline("update", flags).assert_code(0);
    assert_eq!(MEMORY.of(&task), "33554432");
    assert_eq!(CPU.of(&task), quota("50000"));
    assert_eq!(PIDS.of(&task), "20");
    assert_eq!(CPUSET.of(&task), "0");
    let described = &task.inspect()["task"];
    assert_eq!(described["memory"]["limit"], "32M", "{described}");
    assert_eq!((&described["cpu"]["limit"], &described["pids"]), (&0.5.into(), &20.into()), "{described}");
    let stats = task.stats();
    assert_eq!((&stats["memory"]["limit_bytes"], &stats["pids"]["limit"]), (&(32 << 20).into(), &20.into()));
    task.end();
}

#[test]
fn what_is_not_named_stays() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").flag("--cpus=0.25").flag("--pids=9").start();
    task.bowline("update", ["--pids=10"]).assert_code(0);
    assert_eq!((MEMORY.of(&task), CPU.of(&task)), ("67108864".to_owned(), quota("25000")));
    assert_eq!(PIDS.of(&task), "10");
    task.end();
}

#[test]
fn a_raw_quota_leaves_the_period_as_it_is() {
    let host = Host::new();
    if !only_v2() {
        let task = host.task("exec sleep 1000").start();
        let ran = task.bowline("update", ["--unified=cpu.max=50000"]);
        assert!(ran.is_refusal() && ran.err().contains("cgroup v2"), "{ran}");
        task.end();
        return host.assert_nothing_left();
    }
    let task = host.task("exec sleep 1000").toml("unified = {'cpu.max' = '25000 50000'}").start();
    assert_eq!(CPU.of(&task), "25000 50000");
    task.bowline("update", ["--unified=cpu.max=50000"]).assert_code(0);
    assert_eq!(CPU.of(&task), "50000 50000");
    task.end();
}

#[test]
fn a_limit_can_be_lifted() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").flag("--cpus=0.5").flag("--pids=5").start();
    // As runc and docker write it, and as the kernel does.
    task.bowline("update", ["--memory", "-1", "--cpus=max", "--pids=-1"]).assert_code(0);
    let memory = MEMORY.of(&task);
    assert!(memory == "max" || memory.parse::<u64>().is_ok_and(|bytes| bytes > 1 << 62), "{memory}");
    assert_eq!((CPU.of(&task), PIDS.of(&task)), (quota("-1"), "max".to_owned()));
    assert!(task.stats()["memory"]["limit_bytes"].is_null());
    task.end();
}

#[test]
fn a_memory_limit_moves_up_and_down_with_its_swap() {
    let host = Host::new();
    let task = host.described("command = 'sleep'\nargs = ['1000']\nmemory = {limit = '64M', swap = '16M'}").start();
    let swap = || match only_v2() {
        true => task.cgroup_file("memory", "memory.swap.max"),
        false => {
            let both: u64 = task.cgroup_file("memory", "memory.memsw.limit_in_bytes").parse().expect("a number");
            (both - MEMORY.of(&task).parse::<u64>().expect("a number")).to_string()
        }
    };
    for (limit, bytes) in [("128M", "134217728"), ("32M", "33554432"), ("256M", "268435456")] {
        task.bowline("update", [&*format!("--memory={limit}")]).assert_code(0);
        assert_eq!((MEMORY.of(&task).as_str(), swap().as_str()), (bytes, "16777216"));
    }
    // In OCI's terms, memory and swap equal to the limit: no swap.
    task.bowline("update", ["--swap=0"]).assert_code(0);
    assert_eq!(swap(), "0");
    task.end();
}

#[test]
fn a_limit_below_what_is_in_use_is_refused_and_nobody_is_killed() {
    let host = Host::new();
    let task = host.task(HOLDING).flag("--memory=128M").flag("--pids=20").start();
    task.wait_for_line("ready");
    let ran = task.bowline("update", ["--memory=8M", "--pids=30"]);
    ran.assert_refused(125, &[MEMORY.name(), "8388608", "in use"]);
    assert_eq!((MEMORY.of(&task).as_str(), PIDS.of(&task).as_str()), ("134217728", "20"), "nothing is half applied");
    assert_eq!(task.inspect()["task"]["memory"]["limit"], "128M");
    assert_eq!(task.status(), "running");
    assert_eq!(task.stats()["memory"]["oom_kills"], 0);
    let report = task.end();
    assert_eq!(report["oom_killed"], false);
}

#[test]
fn page_cache_is_given_up_for_a_lower_limit() {
    let host = Host::new();
    // On a disk: what is in a tmpfs cannot be given up.
    let disk = tempfile::Builder::new().prefix(host.prefix()).tempdir_in("/var/tmp").expect("a folder");
    let script = "dd if=/dev/zero of=/mnt/file bs=1M count=40 conv=fsync 2>&1 && echo ready; exec sleep 1000";
    let source = disk.path().display();
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{script}']\nmemory.limit = '64M'\nmounts = [{{destination = '/mnt', source = '{source}'}}]"
    );
    let root = host.busybox_root();
    let task = host.described(&toml).rootfs(root.path()).start();
    task.wait_for_line("ready");
    let used = |task: &Task<'_>| task.stats()["memory"]["usage_bytes"].as_u64().expect("a number");
    eventually("the file is in the page cache", || {
        // The kernel may have given up what nobody has read for a while.
        task.exec("cat /mnt/file >/dev/null");
        (used(&task) > 32 << 20).then_some(())
    });
    task.bowline("update", ["--memory=12M"]).assert_code(0);
    assert_eq!(MEMORY.of(&task), "12582912");
    assert!(used(&task) <= 12 << 20);
    let report = task.end();
    assert_eq!(report["oom_killed"], false);
    drop(disk);
}

#[test]
fn a_hog_is_held_to_its_new_limit() {
    let host = Host::new();
    let fifo = host.work().join("go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).expect("ours");
    let script = "read x < /tmp/go; tail /dev/zero; echo survived; exec sleep 1000";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{script}']\nmemory.limit = '1G'\nmounts = [{{destination = '/tmp/go', source = '{}'}}]",
        fifo.display()
    );
    let task = host.described(&toml).start();
    task.bowline("update", ["--memory=24M"]).assert_code(0);
    fs::write(&fifo, "go\n").expect("the task reads");
    task.wait_for_line("survived");
    let memory = &task.stats()["memory"];
    assert!(memory["oom_kills"].as_u64() >= Some(1) && memory["peak_bytes"].as_u64() <= Some(25 << 20), "{memory}");
    task.end();
}

#[test]
fn a_busy_loop_is_held_to_its_new_limit() {
    let host = Host::new();
    let task = host.task("while :; do :; done").start();
    let throttled = || task.stats()["cpu"]["throttled_periods"].as_u64();
    assert_eq!(throttled(), Some(0));
    task.bowline("update", ["--cpus=0.1"]).assert_code(0);
    eventually("it is throttled", || (throttled() > Some(2)).then_some(()));
    task.end();
}

#[test]
fn processes_beyond_a_new_limit_stay_and_no_more_come() {
    let host = Host::new();
    let task = host.task("sleep 1000 & sleep 1000 & sleep 1000 & echo ready; wait").start();
    task.wait_for_line("ready");
    eventually("all of them", || (task.processes().len() == 4).then_some(()));
    task.bowline("update", ["--pids=2"]).assert_code(0);
    assert_eq!(task.processes().len(), 4);
    // The exec itself gets in, as health checks must; it can start nothing.
    let ran = task.exec("sleep 0 && echo forked");
    assert_ne!(ran.out(), "forked", "{ran}");
    task.end();
}

#[test]
fn io_weights_have_their_whole_range() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let files = ["io.weight", "io.bfq.weight", "blkio.weight", "blkio.bfq.weight"];
    let folder = task.cgroup("blkio");
    let folder = if folder.exists() { folder } else { task.cgroup("io") };
    let Some(file) = files.iter().find(|file| folder.join(file).exists()) else {
        task.end();
        host.assert_nothing_left();
        return skip("this kernel has no weights of block devices");
    };
    for (weight, v2) in [(10, 1), (100, 910), (1000, 10_000)] {
        task.bowline("update", [&*format!("--io=weight={weight}")]).assert_code(0);
        let found = fs::read_to_string(folder.join(file)).expect("it is there");
        let expected = if *file == "io.weight" { v2 } else { weight };
        assert_eq!(found.lines().next().map(|l| l.trim_start_matches("default ")), Some(&*expected.to_string()));
    }
    task.bowline("update", ["--io=weight=9"]).assert_refused(2, &["io.weight", "9"]);
    task.end();
}

#[test]
fn rates_of_a_disk_change_and_are_lifted() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let toml =
        format!("command = 'sleep'\nargs = ['1000']\nio.devices = [{{path = '{major}:{minor}', read_bps = '1M'}}]");
    let task = host.described(&toml).start();
    let rates = || match only_v2() {
        true => task.cgroup_file("io", "io.max"),
        false => {
            let file = |name: &str| task.cgroup_file("blkio", &format!("blkio.throttle.{name}_device"));
            format!("{} {}", file("read_bps"), file("write_iops"))
        }
    };
    let expected = |read: &str, write: &str| match only_v2() {
        true => format!("{major}:{minor} rbps={read} wbps=max riops=max wiops={write}"),
        false => format!("{major}:{minor} {read} {major}:{minor} {write}"),
    };
    task.bowline("update", [&*format!("--io={major}:{minor},read_bps=2M,write_iops=30")]).assert_code(0);
    assert_eq!(rates(), expected("2097152", "30"));
    task.bowline("update", [&*format!("--io={major}:{minor},read_bps=max,write_iops=max")]).assert_code(0);
    assert_eq!(rates().trim(), "");
    task.end();
}

#[test]
fn a_paused_task_can_be_updated() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("pause", []).assert_code(0);
    task.bowline("update", ["--memory=48M"]).assert_code(0);
    assert_eq!((MEMORY.of(&task).as_str(), task.status().as_str()), ("50331648", "paused"));
    task.end();
}

#[test]
fn updates_at_the_same_time_come_one_after_the_other() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let updates: Vec<_> = (20..30).map(|n| host.spawn(["update", task.id(), &format!("--pids={n}")])).collect();
    for update in updates {
        update.finish().assert_code(0);
    }
    let last = PIDS.of(&task);
    assert_eq!(task.inspect()["task"]["pids"].to_string(), last, "file and record agree");
    task.end();
}

/// A cgroup of the test's with one CPU, whatever the host has.
fn parent_of_one_cpu(host: &Host) -> String {
    let name = format!("{}-parent", host.prefix());
    for (_, mount) in hierarchies() {
        let folder = mount.join(&name);
        fs::create_dir(&folder).expect("root may");
        if only_v2() {
            // Handed down to it, and by it to the task.
            fs::write(mount.join("cgroup.subtree_control"), "+cpuset").expect("root may");
        }
        if folder.join("cpuset.mems").exists() {
            let mems = fs::read_to_string(mount.join("cpuset.mems")).unwrap_or_else(|_| "0".to_owned());
            fs::write(folder.join("cpuset.mems"), mems.trim()).expect("the host's");
            fs::write(folder.join("cpuset.cpus"), "0").expect("the host has a CPU");
        }
    }
    format!("/{name}")
}

fn remove(parent: &str) {
    for (_, mount) in hierarchies() {
        fs::remove_dir(mount.join(&parent[1..])).expect("it is empty");
    }
}

#[test]
fn a_cpuset_outside_the_parent_s_is_refused_and_nothing_changes() {
    if !Path::new("/sys/devices/system/cpu/cpu1").exists() {
        return skip("this host has one CPU");
    }
    let host = Host::new();
    let parent = parent_of_one_cpu(&host);
    let toml = format!("command = 'sleep'\nargs = ['1000']\nmemory.limit = '64M'\npids = 9\ncgroup = '{parent}/task'");
    let task = host.described(&toml).start();
    let before = CPUSET.of(&task);
    let flags = ["--memory=32M", "--cpus=0.5", "--cpuset=1", "--pids=20"];
    task.bowline("update", flags).assert_refused(125, &["cpuset.cpus", "1", "parent"]);
    assert_eq!((MEMORY.of(&task).as_str(), PIDS.of(&task).as_str()), ("67108864", "9"));
    assert_eq!((CPU.of(&task), CPUSET.of(&task)), (quota("-1"), before));
    assert_eq!(task.inspect()["task"]["pids"], 9);
    task.bowline("update", ["--cpuset=0"]).assert_code(0);
    task.end();
    // A launch refuses it too.
    host.described(&format!("{toml}\ncpu.cpuset = '1'")).assert_refused(125, &["cpuset.cpus", "1"]);
    remove(&parent);
}

#[test]
fn a_value_that_the_kernel_refuses_is_named_with_its_file() {
    let Some((major, _)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--pids=9").start();
    // No such device behind these numbers.
    let io = format!("--io={major}:1048575,read_bps=1M");
    let file = if only_v2() { "io.max" } else { "blkio.throttle.read_bps_device" };
    task.bowline("update", ["--pids=20", &io]).assert_refused(125, &[file, &format!("{major}:1048575")]);
    assert_eq!(PIDS.of(&task), "9");
    task.end();
}

#[test]
fn an_unknown_file_is_refused_and_named() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--pids=9").start();
    let parts: &[&str] = if only_v2() { &["memory.nonsense", "7"] } else { &["unified", "cgroup v2"] };
    task.bowline("update", ["--pids=20", "--unified=memory.nonsense=7"]).assert_refused(125, parts);
    task.bowline("update", ["--unified=cgroup.procs=1"]).assert_refused(2, &["cgroup.procs"]);
    assert_eq!(PIDS.of(&task), "9");
    task.end();
}

#[test]
fn a_raw_file_changes_on_v2() {
    if !only_v2() {
        // There are none on v1: see the test above.
        return;
    }
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    task.bowline("update", ["--unified=memory.oom.group=1", "--memory-high=48M"]).assert_code(0);
    assert_eq!(task.cgroup_file("memory", "memory.oom.group"), "1");
    assert_eq!(task.cgroup_file("memory", "memory.high"), "50331648");
    task.bowline("update", ["--unified=memory.oom.group=7"]).assert_refused(125, &["memory.oom.group", "7"]);
    assert_eq!(task.cgroup_file("memory", "memory.oom.group"), "1");
    task.end();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").start();
    for (flag, code, parts) in [
        ("--memory=1M", 2, ["memory.limit", "1M"]),
        ("--pids=0", 2, ["pids", "0"]),
        ("--cpuset=4096", 125, ["cpu.cpuset", "4096"]),
        ("--memory=lots", 2, ["--memory", "lots"]),
        ("--io=/dev/null", 2, ["--io", "/dev/null"]),
        ("--io=8:0,speed=9", 2, ["--io", "speed"]),
        ("--io=/dev/null,read_bps=1M", 125, ["io.devices[0].path", "/dev/null"]),
        ("--nonsense=1", 2, ["--nonsense", "argument"]),
        ("--hugepages=3MB=4M", 125, ["hugepages", "3MB"]),
    ] {
        task.bowline("update", [flag]).assert_refused(code, &parts);
    }
    task.bowline("update", []).assert_refused(2, &["nothing to change"]);
    assert_eq!(MEMORY.of(&task), "67108864");
    task.end();
}

#[test]
fn a_task_that_has_exited_cannot_be_updated() {
    let host = Host::new();
    let task = host.task("true").start();
    task.wait();
    task.bowline("update", ["--pids=9"]).assert_refused(125, &[task.id(), "exited"]);
    host.bowline(["update", "no-such-task", "--pids=9"]).assert_refused(125, &["no-such-task"]);
}

#[test]
fn huge_pages_are_limited_on_either_hierarchy() {
    let Ok(pages) = fs::read_dir("/sys/kernel/mm/hugepages") else { return skip("this kernel has no huge pages") };
    let has_2mb = pages.flatten().any(|entry| entry.file_name() == "hugepages-2048kB");
    if !has_2mb {
        return skip("this kernel has no huge pages of 2 MB");
    }
    let host = Host::new();
    let task = host.described("command = 'sleep'\nargs = ['1000']\nhugepages = {2MB = '4M'}").start();
    let folder = task.cgroup("hugetlb");
    let file = ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"].into_iter().find(|file| folder.join(file).exists());
    let limit = || fs::read_to_string(folder.join(file.expect("a limit's file"))).expect("readable").trim().to_owned();
    assert_eq!(limit(), "4194304");
    task.bowline("update", ["--hugepages=2MB=8M"]).assert_code(0);
    assert_eq!(limit(), "8388608");
    let pages = &task.stats()["hugepages"]["2MB"];
    assert_eq!((&pages["usage_bytes"], &pages["limit_bytes"]), (&0.into(), &(8 << 20).into()), "{pages}");
    // The kernel counts whole pages, which is nobody's change.
    task.bowline("update", ["--hugepages=2MB=3M"]).assert_code(0);
    assert_eq!((limit().as_str(), &task.inspect()["differing_limits"]), ("2097152", &Value::Null));
    task.end();
}

#[test]
fn a_limit_by_its_field_replaces_the_raw_value() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let raw = "unified = {'pids.max' = '32', 'memory.max' = '64M', 'memory.high' = '60M', 'memory.min' = '1k', \
               'cpu.max' = '20000 50000', 'cpu.weight' = '50'}";
    let task = host.task("exec sleep 1000").toml(raw).start();
    let differing = || task.inspect()["differing_limits"].clone();
    assert_eq!((task.cgroup_file("memory", "memory.min"), differing()), ("0".to_owned(), Value::Null));
    let flags = ["--pids=41", "--memory=70M", "--memory-high=50M", "--cpus=0.5", "--cpu-shares=1024"];
    task.bowline("update", flags).assert_code(0);
    let is =
        || ["pids.max", "memory.max", "memory.high", "cpu.max", "cpu.weight"].map(|file| task.cgroup_file("", file));
    let asked = ["41", "73400320", "52428800", "50000 100000", "100"];
    assert_eq!((is(), differing()), (asked.map(str::to_owned), Value::Null));
    assert_eq!(task.inspect()["task"]["unified"], json!({"memory.min": "1k"}));
    task.bowline("update", ["--unified=memory.high=48M", "--unified=pids.max=40"]).assert_code(0);
    task.kill_shim(task.shim_pid());
    task.exec("true").assert_code(0);
    task.bowline("update", ["--cpus=0.25"]).assert_code(0);
    let asked = ["40", "73400320", "50331648", "25000 100000", "100"];
    assert_eq!((is(), differing()), (asked.map(str::to_owned), Value::Null));
    let explained = task.bowline("explain", []).assert_code(0).out();
    assert!(!explained.contains("somebody else"), "{explained}");
    task.end();
}

#[test]
fn a_period_without_a_limit_is_in_effect() {
    let host = Host::new();
    let file = File("cpu", "cpu.cfs_period_us", "cpu.max");
    let value = |us: &str| if only_v2() { format!("max {us}") } else { us.to_owned() };
    let task = host.task("exec sleep 1000").toml("cpu.period = '50ms'").start();
    assert_eq!(file.of(&task), value("50000"));
    task.end();
}
