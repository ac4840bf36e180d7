//! What the kubelet does with pods' cgroups (pkg/kubelet/cm, pkg/kubelet/kuberuntime), asked of bowline by its own
//! commands. Each case is named after the function there that it mirrors; docs/reference-systems.md has the rows that
//! other files test.

use std::fs;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{
    Elsewhere, Limits, Process, Ran, Sandbox, Task, assert_shows, binary, eventually, has_systemd, hierarchy, only_v2,
    process_exists, weight,
};

/// A member that does nothing, with these limits.
fn member<'h>(sandbox: &Sandbox<'h>, limits: &str) -> Task<'h> {
    sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\n{limits}")).start()
}

#[test]
fn get_pod_container_name_of_a_uid_with_dashes_or_underscores() {
    let host = Host::new();
    let name = |args: &[&str]| host.bowline(["cgroup", "name"].iter().chain(args));
    for (uid, slice) in [
        ("a-b-c", "kubepods-podab".replace("ab", "a_b_c")),
        ("-a-", "kubepods-pod_a_".to_owned()),
        ("0", "kubepods-pod0".to_owned()),
        // As of a static pod.
        ("e2eb3b7b9a7a4a0e8b2f1d9d6f0c1a2b", "kubepods-pode2eb3b7b9a7a4a0e8b2f1d9d6f0c1a2b".to_owned()),
    ] {
        let pod = [&*format!("--pod={uid}"), "--qos=guaranteed"];
        name(&pod).assert_says(&format!("/kubepods/pod{uid}"));
        let systemd = format!("/kubepods.slice/{slice}.slice");
        name(&[&pod[..], &["--driver=systemd"]].concat()).assert_says(&systemd);
        for path in [format!("/kubepods/pod{uid}"), systemd, format!("{slice}.slice")] {
            name(&[&path]).assert_says(&format!("pod {uid}\nqos guaranteed\nroot kubepods"));
        }
    }
    // In a slice's name `_` is a dash: one with `_` would be read back as another pod.
    for uid in ["a_b", "_", "a-b_c"] {
        name(&["--pod", uid, "--qos", "guaranteed"]).assert_refused(2, &[uid]);
        let whose = name(&[&format!("/kubepods/pod{uid}")]);
        assert!(!whose.out().contains("qos"), "no pod's: {whose}");
    }
}

/// memory.min and memory.high of a cgroup on v2.
fn memory_qos(read: impl Fn(&str) -> String) -> (String, String) {
    (read("memory.min"), read("memory.high"))
}

#[test]
fn resource_config_for_pod_enforces_memory_qos_on_v2() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let of_pod = || memory_qos(|file| sandbox.cgroup_file("memory", file));
    let of = |task: &Task<'_>| memory_qos(|file| task.cgroup_file("memory", file));
    let both = |min: &str, high: &str| (min.to_owned(), high.to_owned());
    // 128 MiB and 0.9 of the 128 MiB above, in whole pages: as in the kubelet's own tests.
    let one = member(&sandbox, "memory = {limit = '256M', low = '128M'}");
    assert_eq!(of(&one), both("134217728", "255012864"));
    assert_eq!(of_pod(), both("134217728", "255012864"));
    // One that may have just what it asks for is not slowed down.
    let held = member(&sandbox, "memory.limit = '64M'");
    assert_eq!(of(&held), both("67108864", "max"));
    assert_eq!(of_pod(), both("201326592", &slowed_down_at(201_326_592, 335_544_320).to_string()));
    assert_eq!(sandbox.inspect()["budget"]["memory_min_bytes"], 201_326_592);
    // One that asks for nothing: the pod's limit is then what the host has.
    let free = member(&sandbox, "");
    assert_eq!(of(&free), both("0", "max"));
    let (min, high) = of_pod();
    assert_eq!(min, "201326592");
    assert_eq!(high, slowed_down_at(201_326_592, memory_of_host()).to_string());
    // They follow what members are updated to, and who comes and goes.
    one.bowline("update", ["--memory-low=64M"]).assert_code(0);
    assert_eq!(of(&one).0, "67108864");
    assert_eq!(of(&one).1, slowed_down_at(67_108_864, 268_435_456).to_string());
    assert_eq!(of_pod().0, "134217728");
    held.bowline("update", ["--memory=max"]).assert_code(0);
    assert_eq!((of(&held), of_pod().0.as_str()), (both("0", "max"), "67108864"));
    // What a member names itself is its own.
    let own = member(&sandbox, "memory = {limit = '64M', low = '32M', high = '48M'}");
    assert_eq!(of(&own), both("33554432", "50331648"));
    for task in [one, held, free, own] {
        task.end();
    }
    eventually("nobody asks for memory", || (of_pod().0 == "0").then_some(()));
}

/// What a cgroup of v2 is never reclaimed of, in bytes.
fn min_of(path: &str) -> String {
    let file = hierarchy("memory").join(path).join("memory.min");
    fs::read_to_string(&file).map_or_else(|_| "gone".to_owned(), |text| text.trim().to_owned())
}

/// The kernel honours memory.min only as far as the cgroup above has it.
#[test]
fn set_memory_qos_has_the_sum_of_all_pods_above_them() {
    if !only_v2() {
        return;
    }
    // Other cases have pods too.
    let host = Host::alone();
    for (driver, above) in [("cgroupfs", "bowline"), ("systemd", "bowline.slice")] {
        if driver == "systemd" && !has_systemd() {
            continue;
        }
        let pod = || host.sandbox().flag(format!("--cgroup-driver={driver}")).toml("budget = 'pod'").create();
        let (one, two, plain) = (pod(), pod(), host.sandbox().flag(format!("--cgroup-driver={driver}")).create());
        let first = member(&one, "memory.limit = '64M'");
        member(&plain, "memory.limit = '16M'");
        assert_eq!(min_of(above), "67108864", "{driver}");
        member(&two, "memory = {limit = '64M', low = '32M'}");
        assert_eq!(min_of(above), "100663296", "{driver}");
        if driver == "systemd" {
            assert_shows("bowline.slice", &["MemoryMin=100663296"]);
        }
        first.bowline("update", ["--memory=128M"]).assert_code(0);
        assert_eq!(min_of(above), "167772160", "{driver}");
        one.rm(["-f"]);
        assert_eq!(min_of(above), "33554432", "{driver}");
        // What a shim that died has left counts until it is removed.
        two.kill_shim();
        assert_eq!(min_of(above), "33554432", "{driver}");
        two.rm(["-f"]);
        assert_eq!(min_of(above), "0", "{driver}");
        plain.rm(["-f"]);
    }
}

/// Where one is slowed down that asks for `request` bytes and has at most `limit`.
fn slowed_down_at(request: u64, limit: u64) -> u64 {
    (request + (limit - request) * 9 / 10) / 4096 * 4096
}

/// What is taken for the limit of a pod that has none, in bytes.
fn memory_of_host() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("procfs");
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("a line");
    let kib: u64 = total.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

#[test]
fn resource_config_for_pod_has_no_memory_qos_on_v1() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let one = member(&sandbox, "memory = {limit = '256M', low = '128M'}");
    let budget = sandbox.inspect()["budget"].clone();
    assert!(budget["memory_min_bytes"].is_null() && budget["memory_high_bytes"].is_null(), "{budget}");
    assert_eq!(sandbox.limits().memory, "268435456");
    one.end();
}

#[test]
fn memory_qos_is_of_pods_alone() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    for lines in ["", "budget = 'members'", "budget = 'pod'\ncgroup = 'off'"] {
        let sandbox = host.sandbox().toml(lines).create();
        let one = member(&sandbox, "memory = {limit = '256M', low = '128M'}");
        let both = memory_qos(|file| one.cgroup_file("memory", file));
        assert_eq!(both, ("0".to_owned(), "max".to_owned()), "{lines}");
        one.end();
    }
}

#[test]
fn milli_cpu_to_quota_and_shares_of_a_thousandth_of_a_cpu() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let limits = || sandbox.limits();
    // So little time is not enough to start in.
    let one = member(&sandbox, "cpu = {limit = 1, period = '1s'}");
    one.bowline("update", ["--cpus=0.001"]).assert_code(0);
    // The pod's quota is at least a millisecond of its own period, and its shares are at least 2.
    assert_eq!((limits().cpu.as_str(), limits().weight), ("1000 100000", weight(2)));
    let two = member(&sandbox, "cpu.limit = 0.125");
    assert_eq!((limits().cpu.as_str(), limits().weight), ("12600 100000", weight(129)));
    sandbox
        .described("command = 'true'\ncpu.limit = 0.001")
        .assert_refused(125, &["cpu.limit", "100 µs", "at least 1000"]);
    one.bowline("update", ["--cpus=1"]).assert_code(0);
    one.end();
    two.end();
}

#[test]
fn generate_linux_container_resources_has_2_shares_by_default() {
    let host = Host::new();
    let sandbox = host.sandbox().toml("budget = 'pod'").create();
    let asks = member(&sandbox, "cpu.shares = 512");
    let none = member(&sandbox, "");
    let own = |task: &Task<'_>| Limits::of(task.inspect()["cgroup"].as_str().expect("a path")).weight;
    assert_eq!((own(&asks), own(&none)), (weight(512), weight(2)));
    asks.end();
    none.end();
}

/// Pods below a root of the test's own, of each class.
struct Pods<'h> {
    host: &'h Host,
    root: String,
    all: Vec<(String, Elsewhere)>,
}

impl<'h> Pods<'h> {
    fn new(host: &'h Host) -> Pods<'h> {
        let root = host.prefix().replace('_', "-");
        let all = ["pod1", "burstable/pod2", "besteffort/pod3"].map(|below| {
            let path = format!("/{root}/{below}-{root}");
            host.bowline(["cgroup", "ensure", &path]).assert_says("");
            let uid = format!("{}-{root}", &below[below.len() - 1..]);
            (uid, host.cgroup(&path))
        });
        Pods { host, root, all: all.into() }
    }

    fn uid(&self, index: usize) -> &str {
        &self.all[index].0
    }

    fn cgroup(&self, index: usize) -> &Elsewhere {
        &self.all[index].1
    }

    fn has(&self, index: usize) -> bool {
        !self.cgroup(index).there().is_empty()
    }

    /// A process of no shim in a container of the pod.
    fn process_in(&self, index: usize) -> Process {
        let path = format!("{}/container", self.cgroup(index).path());
        self.host.bowline(["cgroup", "ensure", &path]).assert_says("");
        let container = self.host.cgroup(&path);
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let process = self.host.spawn_command(container.inside(&sleep));
        container.wait_for(process.pid());
        process
    }

    fn list(&self, text: &str) -> String {
        self.host.file("alive", text).to_str().expect("ASCII").to_owned()
    }

    fn gc(&self, args: &[&str]) -> Ran {
        self.host.bowline(self.gc_of_ours().iter().map(String::as_str).chain(args.iter().copied()))
    }

    /// Others run at the same time, and have orphans too.
    fn gc_of_ours(&self) -> Vec<String> {
        let uids = self.all.iter().map(|(uid, _)| uid.clone());
        ["gc", "--pods-root", &self.root].map(str::to_owned).into_iter().chain(uids).collect()
    }

    fn end(self) {
        self.host.bowline(["cgroup", "destroy", &format!("/{}", self.root)]).assert_code(0);
        self.host.assert_nothing_left();
    }
}

#[test]
fn cleanup_orphaned_pod_cgroups_takes_those_that_no_list_names() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let (listed, orphan) = (pods.process_in(0), pods.process_in(1));
    let list = pods.list(&format!("# alive\n{}\n\n", pods.uid(0)));
    let ran = pods.gc(&["--alive", &list, "--dry-run"]);
    let lines = ran.assert_code(0).out();
    assert!(lines.contains(&format!("pod {}: it is not among", pods.uid(1))), "{ran}");
    assert!(!lines.contains(pods.uid(0)) && pods.has(1), "{ran}");
    let ran = pods.gc(&["--alive", &list, "--json"]);
    let rows = ran.assert_code(0).json();
    let removed: Vec<_> = rows.as_array().expect("a list").iter().map(|row| (&row["id"], &row["removed"])).collect();
    assert_eq!(removed, [(&pods.uid(1).into(), &true.into()), (&pods.uid(2).into(), &true.into())], "{ran}");
    assert_eq!(orphan.finish().code, None, "it was killed");
    assert!(pods.has(0) && !pods.has(1) && !pods.has(2));
    assert!(process_exists(listed.pid()), "a pod that is listed is touched by nobody");
    // Without a list it is an orphan: no shim has started what is in it.
    pods.gc(&[]).assert_code(0);
    assert_eq!(listed.finish().code, None);
    assert!(!pods.has(0));
    pods.end();
}

#[test]
fn cleanup_orphaned_pod_cgroups_reads_the_list_from_stdin_too() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let mut shell = host.command("/bin/sh");
    shell.args(["-c", "list=$1; shift; printf \"$list\" | \"$0\" \"$@\" --alive -"]).arg(binary("bowline"));
    shell.arg(format!("{}\\n{}\\n", pods.uid(0), pods.uid(2))).args(pods.gc_of_ours());
    host.execute(shell).assert_code(0);
    assert_eq!((pods.has(0), pods.has(1), pods.has(2)), (true, false, true));
    pods.end();
}

#[test]
fn cleanup_orphaned_pod_cgroups_refuses_an_invalid_list() {
    let host = Host::new();
    let pods = Pods::new(&host);
    for (text, parts) in [
        ("", ["alive", "names no pod"]),
        ("# none\n\n", ["alive", "names no pod"]),
        ("1-a\n2_b\n", ["2_b", "line 2"]),
        ("/kubepods/pod1\n", ["/kubepods/pod1", "line 1"]),
        ("a b\n", ["a b", "line 1"]),
    ] {
        let list = pods.list(text);
        pods.gc(&["--alive", &list]).assert_refused(2, &parts);
    }
    let missing = host.work().join("missing");
    pods.gc(&["--alive", missing.to_str().expect("ASCII")]).assert_refused(125, &["missing", "No such file"]);
    assert!((0..3).all(|index| pods.has(index)), "nothing is removed");
    pods.end();
}

#[test]
fn cleanup_orphaned_pod_cgroups_spares_a_pod_with_a_live_shim() {
    use std::os::unix::process::CommandExt as _;
    let host = Host::new();
    let pods = Pods::new(&host);
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let inside = pods.cgroup(0).inside(&sleep);
    let mut shim = host.command("/bin/sh");
    shim.arg0("/usr/bin/containerd-shim-runc-v2")
        .args(["-c", "\"$0\" \"$@\" & wait", "/bin/sh"])
        .args(inside.get_args());
    let shim = host.spawn_command(shim);
    eventually("it is in the pod", || (!pods.cgroup(0).pids().is_empty()).then_some(()));
    // The pod may be younger than the list.
    let list = pods.list(&format!("{}\n{}\n", pods.uid(1), pods.uid(2)));
    for flags in [&["--alive", &list, "--dry-run"][..], &["--alive", &list]] {
        let ran = pods.gc(flags);
        assert_eq!(ran.assert_code(0).out(), "", "{ran}");
        let said = format!("pod {} is left alone: it is not among the pods that are alive", pods.uid(0));
        assert!(ran.err().contains(&said), "{ran}");
    }
    let pids = pods.cgroup(0).pids();
    assert!(pids.iter().all(|pid| process_exists(*pid)), "{pids:?}");
    shim.signal(rustix::process::Signal::KILL);
    eventually("it has gone", || (!process_exists(shim.pid())).then_some(()));
    pods.gc(&["--alive", &list]).assert_code(0);
    shim.finish();
    assert!(!pods.has(0) && pods.has(1) && pods.has(2));
    pods.end();
}

/// Runs `gc` where the kernel refuses to remove any folder.
fn gc_that_removes_nothing(pods: &Pods<'_>, list: &str) -> Ran {
    let mut strace = pods.host.command("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=unlinkat,rmdir"]);
    strace.args(["-e", "inject=unlinkat,rmdir:error=EBUSY"]).arg(binary("bowline"));
    strace.args(pods.gc_of_ours()).args(["--alive", list]);
    pods.host.execute(strace)
}

#[test]
fn reduce_cpu_limits_and_destroy_report_all_errors_together() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let (first, second) = (pods.process_in(0), pods.process_in(1));
    let list = pods.list(pods.uid(2));
    let ran = gc_that_removes_nothing(&pods, &list);
    let said = ran.assert_code(125).err();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "each pod's errors in one line: {ran}");
    for (line, index) in lines.iter().zip([0, 1]) {
        // All that kept it from being removed: each hierarchy's.
        let errors = line.matches("cannot remove cgroup").count();
        assert!(line.contains(pods.uid(index)) && errors == pods.cgroup(index).folders().len(), "{ran}");
    }
    // What could not be removed has the least CPU time, and no process: nobody was spared for another's sake.
    for index in [0, 1] {
        assert_eq!(Limits::of(pods.cgroup(index).path()).weight, weight(2), "pod {index}");
        assert!(pods.cgroup(index).pids().is_empty(), "pod {index}");
    }
    assert_eq!([first.finish().code, second.finish().code], [None, None]);
    assert_eq!(Limits::of(pods.cgroup(2).path()).weight, weight(1024), "the one that is alive keeps its own");
    pods.gc(&["--alive", &list]).assert_code(0);
    assert_eq!((pods.has(0), pods.has(1), pods.has(2)), (false, false, true));
    pods.end();
}

#[test]
fn try_killing_cgroup_processes_ends_a_pod_that_keeps_forking() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let mut forks = Command::new("/bin/sh");
    forks.args(["-c", "f() { while :; do (setsid sleep 0.05 &); done; }; f & f & f & wait"]);
    let process = host.spawn_command(pods.cgroup(1).inside(&forks));
    eventually("there are many", || (pods.cgroup(1).pids().len() > 15).then_some(()));
    let list = pods.list(pods.uid(0));
    pods.gc(&["--alive", &list]).assert_code(0);
    assert_eq!(process.finish().code, None);
    assert_eq!((pods.has(0), pods.has(1), pods.has(2)), (true, false, false));
    pods.end();
}
