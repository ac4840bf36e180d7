//! `bowline cgroup`: any cgroup by its path. The kernel's files are the
//! witnesses, of whichever version there is.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{
    Elsewhere, Process, Ran, cgroup_of, eventually, hierarchies, hierarchy, only_v2, process_exists,
};

fn cgroup<const N: usize>(host: &Host, verb: &str, path: &str, args: [&str; N]) -> Ran {
    host.bowline(["cgroup", verb, path].into_iter().chain(args))
}

/// One of the test's own, made by the command.
fn made(host: &Host, name: &str) -> Elsewhere {
    let path = format!("/{}-{name}", host.prefix());
    cgroup(host, "ensure", &path, []).assert_says("");
    host.cgroup(&path)
}

/// Runs `script` in it, once it is there.
fn inside(host: &Host, cgroup: &Elsewhere, script: &str) -> Process {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]);
    let process = host.spawn_command(cgroup.inside(&shell));
    cgroup.wait_for(process.pid());
    process
}

#[track_caller]
fn destroy(host: &Host, cgroup: &Elsewhere) {
    self::cgroup(host, "destroy", cgroup.path(), []).assert_says("");
    assert!(cgroup.there().is_empty(), "left: {:?}", cgroup.there());
}

/// The value for this host's version.
fn either<'a>(v1: &'a str, v2: &'a str) -> &'a str {
    if only_v2() { v2 } else { v1 }
}

#[test]
fn a_cgroup_is_made_in_every_hierarchy_found_and_destroyed() {
    let host = Host::new();
    let path = format!("/{}-a/b/c", host.prefix());
    cgroup(&host, "exists", &path, []).assert_code(1);
    for _ in 0..2 {
        cgroup(&host, "ensure", &path, []).assert_says("");
    }
    let there: Vec<PathBuf> = hierarchies().into_iter().map(|(_, mount)| mount.join(&path[1..])).collect();
    assert!(there.iter().all(|folder| folder.is_dir()), "{there:?}");
    let mut told: Vec<PathBuf> =
        cgroup(&host, "exists", &path, []).assert_code(0).out().lines().map(PathBuf::from).collect();
    told.sort();
    let mut expected = there.clone();
    expected.sort();
    assert_eq!(told, expected);
    // It can be joined: a new cpuset of v1 is empty.
    inside(&host, &host.cgroup(&path), "sleep 1000");
    cgroup(&host, "destroy", &format!("/{}-a", host.prefix()), []).assert_says("");
    assert!(!there.iter().any(|folder| folder.exists()), "{there:?}");
    cgroup(&host, "exists", &path, []).assert_code(1);
}

#[test]
fn one_that_is_in_some_hierarchies_is_completed() {
    let host = Host::new();
    let group = host.cgroup(&format!("/{}-a", host.prefix()));
    fs::create_dir(hierarchy("pids").join(&group.path()[1..])).expect("root may");
    // As the kubelet asks: a cgroup that one hierarchy lacks does not hold a pod.
    let missing = if only_v2() { "" } else { &*hierarchy("memory").join(&group.path()[1..]).display().to_string() };
    let found = cgroup(&host, "exists", group.path(), []);
    assert_eq!(found.assert_code(i32::from(!only_v2())).out().lines().count(), 1);
    assert!(found.err().contains(missing), "{found}");
    cgroup(&host, "ensure", group.path(), []).assert_says("");
    cgroup(&host, "exists", group.path(), []).assert_code(0);
    assert_eq!(group.there(), group.folders());
    destroy(&host, &group);
}

#[test]
fn what_is_used_is_what_the_kernel_counts() {
    let host = Host::new();
    let group = made(&host, "a");
    let usage = || cgroup(&host, "usage", group.path(), ["--json"]).assert_code(0).json();
    assert_eq!(usage()["pids"], 0);
    let process = inside(&host, &group, "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; sleep 1000 & wait");
    eventually("both are counted", || (usage()["pids"] == 2).then_some(()));
    let (told, file) = (usage(), either("memory.usage_in_bytes", "memory.current"));
    assert!(told["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{told}");
    assert!(group.read("memory", file).parse::<u64>().is_ok_and(|bytes| bytes > 0));
    assert!(told["cpu_usec"].as_u64().is_some_and(|usec| usec > 1_000), "{told}");
    let plain = cgroup(&host, "usage", group.path(), []);
    assert!(plain.assert_code(0).out().lines().any(|line| line.split_whitespace().eq(["pids", "2"])), "{plain}");
    cgroup(&host, "kill", group.path(), []).assert_says("");
    process.finish();
    destroy(&host, &group);
}

#[test]
fn limits_are_set_shown_and_lifted() {
    let host = Host::new();
    let group = made(&host, "a");
    let flags = ["--cpus=0.5", "--shares=2048", "--memory=64M", "--pids=7", "--cpuset=0", "--mems=0"];
    cgroup(&host, "set", group.path(), flags).assert_says("");
    let cpu = || match only_v2() {
        true => group.read("cpu", "cpu.max"),
        false => format!("{} {}", group.read("cpu", "cpu.cfs_quota_us"), group.read("cpu", "cpu.cfs_period_us")),
    };
    let memory = || group.read("memory", either("memory.limit_in_bytes", "memory.max"));
    assert_eq!((cpu().as_str(), memory().as_str()), ("50000 100000", "67108864"));
    assert_eq!((group.read("pids", "pids.max"), group.read("cpuset", "cpuset.cpus")), ("7".to_owned(), "0".to_owned()));
    let weight = || group.read("cpu", either("cpu.shares", "cpu.weight"));
    assert_eq!(weight(), either("2048", "174"));
    let shown = cgroup(&host, "show", group.path(), ["--json"]).assert_code(0).json();
    for (field, value) in
        [("cpu_quota_usec", 50_000), ("cpu_period_usec", 100_000), ("memory_limit_bytes", 64 << 20), ("pids_limit", 7)]
    {
        assert_eq!(shown[field], value, "{field} in {shown}");
    }
    assert_eq!((&shown["cpuset_cpus"], &shown["cpuset_mems"]), (&"0".into(), &"0".into()), "{shown}");
    let weights = (shown["cpu_shares"].as_u64(), shown["cpu_weight"].as_u64());
    assert_eq!(weights, if only_v2() { (None, Some(174)) } else { (Some(2048), None) });
    let plain = cgroup(&host, "show", group.path(), []);
    assert!(plain.assert_code(0).out().contains("64MiB"), "{plain}");

    cgroup(&host, "reduce-cpu", group.path(), []).assert_says("");
    assert_eq!(weight(), either("2", "1"));
    assert_eq!(cpu(), "50000 100000", "nothing else has changed");

    cgroup(&host, "set", group.path(), ["--cpus=max", "--memory=max", "--pids=max"]).assert_says("");
    assert_eq!((cpu().as_str(), group.read("pids", "pids.max").as_str()), (either("-1 100000", "max 100000"), "max"));
    let shown = cgroup(&host, "show", group.path(), ["--json"]).assert_code(0).json();
    for field in ["cpu_quota_usec", "memory_limit_bytes", "pids_limit"] {
        assert!(shown[field].is_null(), "{field} in {shown}");
    }
    destroy(&host, &group);
}

#[test]
fn huge_pages_are_limited_by_their_size() {
    let host = Host::new();
    let group = made(&host, "a");
    let ran = cgroup(&host, "set", group.path(), ["--hugepages=2MB=64M"]);
    if ran.code == Some(125) {
        // A host without them says so.
        ran.assert_refused(125, &["hugetlb.2MB"]);
    } else {
        ran.assert_says("");
        let shown = cgroup(&host, "show", group.path(), ["--json"]).assert_code(0).json();
        assert_eq!(shown["hugepages"]["2MB"], 64 << 20, "{shown}");
        let files = ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"]
            .map(|file| group.there().iter().find_map(|folder| fs::read_to_string(folder.join(file)).ok()));
        assert!(files.iter().flatten().any(|text| text.trim() == "67108864"), "{files:?}");
        let ran = cgroup(&host, "set", group.path(), ["--hugepages=3MB=6M"]);
        ran.assert_refused(125, &["hugetlb.3MB", "no pages of that size"]);
    }
    destroy(&host, &group);
}

#[test]
fn all_that_is_named_changes_or_nothing() {
    let host = Host::new();
    let group = made(&host, "a");
    cgroup(&host, "set", group.path(), ["--memory=64M", "--pids=7"]).assert_says("");
    let ran = cgroup(&host, "set", group.path(), ["--memory=32M", "--pids=9", "--cpuset=4000"]);
    ran.assert_refused(125, &["cpuset.cpus", group.path()]);
    let ran = cgroup(&host, "set", group.path(), ["--memory=32M", "--pids=99999999"]);
    ran.assert_refused(2, &["--pids", "99999999", "4194304"]);
    assert_eq!(group.read("memory", either("memory.limit_in_bytes", "memory.max")), "67108864");
    assert_eq!(group.read("pids", "pids.max"), "7");
    destroy(&host, &group);
}

#[test]
fn a_limit_of_memory_takes_that_with_swap_along() {
    if only_v2() {
        // There they are two.
        return;
    }
    let host = Host::new();
    let group = made(&host, "a");
    let both = || group.read("memory", "memory.memsw.limit_in_bytes");
    let set = |limit: &str| cgroup(&host, "set", group.path(), [&*format!("--memory={limit}")]).assert_says("").clone();
    set("64M");
    let folder = group.there().into_iter().find(|folder| folder.join("memory.memsw.limit_in_bytes").exists());
    let Some(folder) = folder else {
        destroy(&host, &group);
        return host.assert_nothing_left();
    };
    fs::write(folder.join("memory.memsw.limit_in_bytes"), (80 << 20).to_string()).expect("above the other");
    for (limit, expected) in [("128M", 144 << 20), ("32M", 48 << 20)] {
        set(limit);
        assert_eq!(both(), expected.to_string());
    }
    set("max");
    assert!(both().parse::<u64>().is_ok_and(|both| both > 1 << 60), "{}", both());
    destroy(&host, &group);
}

#[test]
fn a_limit_that_others_forbid_names_them() {
    if only_v2() {
        return; // It has no such rules.
    }
    let host = Host::new();
    let outer = made(&host, "bounds");
    let inner = made(&host, "bounds/inner");
    let refused = |cgroup: &Elsewhere, flag: &str, parts: &[&str]| {
        let ran = self::cgroup(&host, "set", cgroup.path(), [flag]);
        ran.assert_code(125);
        assert!(parts.iter().all(|part| ran.err().contains(part)), "{ran}");
    };
    cgroup(&host, "set", outer.path(), ["--cpus=1"]).assert_says("");
    refused(&inner, "--cpus=1.5", &["the cgroup above it has a quota of 100000 in 100000"]);
    cgroup(&host, "set", inner.path(), ["--cpus=0.5"]).assert_says("");
    refused(&outer, "--cpus=0.2", &["cgroup inner below it has a quota of 50000 in 100000"]);
    assert_eq!(outer.read("cpu", "cpu.cfs_quota_us"), "100000");
    destroy(&host, &inner);
    destroy(&host, &outer);
}

#[test]
fn a_tree_that_keeps_forking_is_killed() {
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/b/c", group.path()));
    cgroup(&host, "ensure", below.path(), []).assert_says("");
    cgroup(&host, "set", group.path(), ["--pids=300"]).assert_says("");
    // Each loop's children are nobody's a moment later, and ignore every other signal.
    let script = "trap '' TERM INT HUP; f() { while :; do (setsid sleep 0.05 &) 2>/dev/null; done; }; f & f & f & f & echo on; wait";
    let process = inside(&host, &below, script);
    process.wait_for_out("on");
    eventually("there are many", || (group.pids().len() > 20).then_some(()));
    cgroup(&host, "kill", group.path(), []).assert_says("");
    let left: Vec<i32> = group.pids().into_iter().filter(|pid| process_exists(*pid)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(process.finish().code, None);
    assert_eq!(below.there(), below.folders(), "the cgroups stay");
    destroy(&host, &group);
}

#[test]
fn a_frozen_tree_is_killed() {
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/b", group.path()));
    cgroup(&host, "ensure", below.path(), []).assert_says("");
    let (one, two) = (inside(&host, &below, "sleep 1000 & wait"), inside(&host, &below, "sleep 1000"));
    // By itself: who thaws its parent does not thaw it.
    for group in [&below, &group] {
        let file = either("freezer.state", "cgroup.freeze");
        let folder = group.there().into_iter().find(|folder| folder.join(file).exists()).expect("a freezer");
        fs::write(folder.join(file), either("FROZEN", "1")).expect("root may");
    }
    cgroup(&host, "kill", group.path(), []).assert_says("");
    for process in [one, two] {
        assert_eq!(process.finish().code, None);
    }
    destroy(&host, &group);
}

#[test]
fn all_below_is_destroyed_with_it() {
    let host = Host::new();
    let group = made(&host, "a");
    let mut processes = Vec::new();
    for name in ["b", "b/c", "b/c/d", "e"] {
        let below = host.cgroup(&format!("{}/{name}", group.path()));
        for folder in below.folders() {
            fs::create_dir(&folder).expect("root may");
        }
        // On v2 a cgroup whose children are limited has no processes of its own; these have none.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            for folder in below.there().iter().filter(|folder| folder.join(file).exists() && !only_v2()) {
                let above = fs::read_to_string(folder.join("..").join(file)).expect("a cpuset");
                fs::write(folder.join(file), above.trim_end()).expect("the parent's own");
            }
        }
        processes.push(inside(&host, &below, "trap '' TERM; sleep 1000 & wait"));
    }
    destroy(&host, &group);
    for process in processes {
        assert_eq!(process.finish().code, None);
    }
}

#[test]
fn what_goes_meanwhile_has_gone() {
    let host = Host::new();
    let group = made(&host, "a");
    let mut folders = Vec::new();
    for at in group.folders() {
        for name in (0..40).map(|n| format!("{n}")) {
            fs::create_dir(at.join(&name)).expect("root may");
            folders.push(at.join(name));
        }
    }
    let all: Vec<Process> = (0..3).map(|_| host.spawn(["cgroup", "destroy", group.path()])).collect();
    for folder in folders.iter().rev() {
        // An error means that another was faster.
        let _ = fs::remove_dir(folder);
    }
    for ran in all.into_iter().map(Process::finish) {
        ran.assert_says("");
    }
    assert!(group.there().is_empty(), "{:?}", group.there());
    destroy(&host, &group);
}

#[test]
fn what_cannot_be_ended_is_moved_to_the_parent() {
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/b", group.path()));
    cgroup(&host, "ensure", below.path(), []).assert_says("");
    let process = inside(&host, &below, "exec sleep 1000");
    let file = either("freezer.state", "cgroup.freeze");
    let freezer = group.there().into_iter().find(|folder| folder.join(file).exists()).expect("a freezer");
    fs::write(freezer.join(file), either("FROZEN", "1")).expect("root may");
    let ran = host.bowline_that_frees_nobody(&["cgroup", "destroy", below.path()]);
    ran.assert_code(0);
    assert!(below.there().is_empty(), "{:?}", below.there());
    if only_v2() {
        // There what is frozen dies.
        assert_eq!(process.finish().code, None);
    } else {
        assert!(ran.err().contains(&process.pid().to_string()), "{ran}");
        assert_eq!(group.pids(), [process.pid()], "{:?}", cgroup_of(process.pid()));
        fs::write(freezer.join(file), "THAWED").expect("root may");
        assert_eq!(process.finish().code, None, "it dies of what it was sent");
    }
    destroy(&host, &group);
}

#[test]
fn nobody_removes_what_it_is_in_itself() {
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/b", group.path()));
    cgroup(&host, "ensure", below.path(), []).assert_says("");
    for verb in ["kill", "destroy"] {
        let mut bowline = host.command(bowline_tests::harness::binary("bowline"));
        bowline.args(["cgroup", verb, group.path()]);
        host.execute(below.inside(&bowline)).assert_refused(125, &[group.path(), "this very process"]);
    }
    destroy(&host, &group);
}

#[test]
fn nobody_removes_what_it_is_in_below_a_name_that_is_no_utf_8() {
    let host = Host::new();
    let group = made(&host, "a");
    let mut script = OsString::new();
    // Those of v1's cpuset begin without processors.
    let takes_any = |folder: &&PathBuf| only_v2() || !folder.join("cpuset.cpus").exists();
    for folder in group.folders().iter().filter(takes_any) {
        let below = folder.join(OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir(&below).expect("root may");
        for part in [OsStr::new("echo 0 > '"), below.as_os_str(), OsStr::new("/cgroup.procs'; ")] {
            script.push(part);
        }
    }
    script.push("exec \"$0\" \"$@\"");
    let mut shell = host.command("/bin/sh");
    shell.arg("-ec").arg(script).arg(bowline_tests::harness::binary("bowline")).args(["cgroup", "kill", group.path()]);
    // A caller that is not found out freezes itself.
    host.spawn_command(shell).finish().assert_refused(125, &[group.path(), "this very process"]);
    destroy(&host, &group);
}

/// What the next test runs: this very program, of which one thread waits for
/// another. By itself it is no test.
#[test]
fn two_threads_that_wait() {
    if std::env::var_os("BOWLINE_TEST_THREADS").is_some() {
        park_forever();
    }
}

fn park_forever() {
    loop {
        std::thread::park();
    }
}

fn threads_of(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}

#[test]
fn a_single_thread_is_placed() {
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/threads", group.path()));
    cgroup(&host, "ensure", below.path(), ["--threaded"]).assert_says("");
    cgroup(&host, "ensure", below.path(), ["--threaded"]).assert_says("");
    let mut waits = Command::new(std::env::current_exe().expect("a test has a path"));
    waits.args(["--exact", "cgroup::commands::two_threads_that_wait", "--test-threads=2"]);
    waits.env("BOWLINE_TEST_THREADS", "1").arg0("waits");
    let process = host.spawn_command(group.inside(&waits));
    let pid = process.pid();
    let tids = eventually("a second thread", || Some(threads_of(pid)).filter(|tids| tids.len() > 1));
    let tid = *tids.iter().find(|tid| **tid != pid).expect("a second");

    let ran = cgroup(&host, "place", below.path(), ["--tid", &tid.to_string(), "0", "-1", "2147483646", "x"]);
    ran.assert_code(0);
    for skipped in ["0", "-1", "2147483646", "\"x\""] {
        assert!(ran.err().contains(&format!("skipped {skipped}: ")), "{ran}");
    }
    let of = |tid: i32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/cgroup")).expect("it lives");
    let placed = of(tid).lines().filter(|line| line.ends_with(&format!(":{}", below.path()))).count();
    let expected = hierarchies().iter().filter(|(names, _)| !names.is_empty() || only_v2()).count();
    assert_eq!(placed, expected, "{}", of(tid));
    assert!(!of(pid).contains(below.path()), "the other one stays: {}", of(pid));

    cgroup(&host, "place", below.path(), ["--tid", "0"]).assert_code(125);
    destroy(&host, &group);
    assert_eq!(process.finish().code, None);
}

#[test]
fn the_threads_of_a_threaded_cgroup_go_back_to_the_parent() {
    if !only_v2() {
        // There a process is killed that has a thread there.
        return;
    }
    let host = Host::new();
    let group = made(&host, "a");
    let below = host.cgroup(&format!("{}/threads", group.path()));
    cgroup(&host, "ensure", below.path(), ["--threaded"]).assert_says("");
    let process = inside(&host, &group, "exec sleep 1000");
    cgroup(&host, "place", below.path(), ["--tid", &process.pid().to_string()]).assert_says("");
    let ran = cgroup(&host, "destroy", below.path(), []);
    assert!(ran.assert_code(0).err().contains(&process.pid().to_string()), "{ran}");
    assert!(process_exists(process.pid()) && below.there().is_empty());
    assert_eq!(cgroup_of(process.pid()).get("").map(String::as_str), Some(group.path()));
    destroy(&host, &group);
    process.finish();
}

/// What systemd says of a unit's property.
fn property(unit: &str, name: &str) -> String {
    let shown = Command::new("systemctl").args(["show", "--property", name, "--value", "--", unit]).output();
    String::from_utf8(shown.expect("systemctl runs").stdout).expect("text").trim().to_owned()
}

#[test]
fn a_slice_is_systemds_to_make_change_and_stop() {
    if !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    let host = Host::new();
    // "-" nests.
    let slice = format!("{}.slice", host.prefix());
    let group = host.cgroup(&format!("/{}.slice/{slice}", host.prefix().split('-').next().unwrap_or_default()));
    for _ in 0..2 {
        cgroup(&host, "ensure", group.path(), []).assert_says("");
    }
    assert_eq!(property(&slice, "ActiveState"), "active");
    assert!(!group.there().is_empty());
    cgroup(&host, "set", group.path(), ["--memory=64M", "--pids=7"]).assert_says("");
    assert_eq!((property(&slice, "MemoryMax"), property(&slice, "TasksMax")), ("67108864".to_owned(), "7".to_owned()));
    assert_eq!(group.read("pids", "pids.max"), "7");
    let process = inside(&host, &group, "trap '' TERM; sleep 1000 & wait");
    cgroup(&host, "destroy", group.path(), []).assert_says("");
    assert_eq!(process.finish().code, None);
    assert!(group.there().is_empty(), "{:?}", group.there());
    assert_eq!(property(&slice, "ActiveState"), "inactive");
    cgroup(&host, "ensure", &format!("{}/{}-x.scope", group.path(), host.prefix()), [])
        .assert_refused(125, &[".scope", "process"]);
}

#[test]
fn a_path_that_cannot_be_meant_is_bad_usage() {
    let host = Host::new();
    for path in ["", "/", "a/b", "/a/../b", "/..", "..", "/a/", "//a", "/a//b", "/a/./b"] {
        for verb in ["exists", "ensure", "usage", "show", "reduce-cpu", "kill", "destroy"] {
            cgroup(&host, verb, path, []).assert_refused(2, &["PATH"]);
        }
        cgroup(&host, "set", path, ["--pids=1"]).assert_refused(2, &["PATH"]);
        cgroup(&host, "place", path, ["--tid=1"]).assert_refused(2, &["PATH"]);
    }
}

#[test]
fn flags_that_cannot_be_meant_are_bad_usage() {
    let host = Host::new();
    let group = made(&host, "a");
    for flag in [
        "--cpus=0",
        "--cpus=0.001",
        "--shares=1",
        "--shares=262145",
        "--memory=x",
        "--pids=0",
        "--pids=-2",
        "--cpuset=x",
        "--hugepages=2MB",
        "--hugepages=2MB=x",
        "--disk=3",
    ] {
        let name = flag.split('=').next().unwrap_or_default();
        cgroup(&host, "set", group.path(), [flag]).assert_refused(2, &[name]);
    }
    cgroup(&host, "set", group.path(), []).assert_refused(2, &["--cpus"]);
    cgroup(&host, "place", group.path(), []).assert_refused(2, &["--tid"]);
    cgroup(&host, "usage", group.path(), []).assert_code(0);
    assert_eq!(group.read("pids", "pids.max"), "max");
    destroy(&host, &group);
}

#[test]
fn one_that_is_not_there_is_named_and_what_should_go_has_gone() {
    let host = Host::new();
    let path = format!("/{}-nowhere/x", host.prefix());
    for verb in ["usage", "show", "reduce-cpu"] {
        cgroup(&host, verb, &path, []).assert_refused(125, &[&path]);
    }
    cgroup(&host, "set", &path, ["--pids=7"]).assert_refused(125, &[&path]);
    cgroup(&host, "place", &path, ["--tid=1"]).assert_refused(125, &[&path]);
    for verb in ["kill", "destroy"] {
        cgroup(&host, verb, &path, []).assert_says("");
    }
    assert!(host.cgroup(&path).there().is_empty(), "nothing was made");
}

#[test]
fn a_task_that_runs_is_measured_and_limited_by_its_path() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--memory=64M").start();
    let path = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let shown = cgroup(&host, "show", &path, ["--json"]).assert_code(0).json();
    assert_eq!((&shown["memory_limit_bytes"], &shown["pids_limit"]), (&(64 << 20).into(), &4096.into()), "{shown}");
    cgroup(&host, "set", &path, ["--memory=96M"]).assert_says("");
    assert_eq!(task.stats()["memory"]["limit_bytes"], 96 << 20);
    cgroup(&host, "kill", &path, []).assert_says("");
    task.wait().assert_killed_by("KILL");
}

#[test]
fn a_limit_of_no_memory_is_refused() {
    let host = Host::new();
    for size in ["0", "1", "4095"] {
        let ran = host.bowline(["cgroup", "set", "/bowline-test-none", "--memory", size]);
        ran.assert_refused(2, &["--memory", "no memory"]);
    }
}
