//! Fields of a configuration that are wrong, or right and not done here: Create fails, and the message names them.

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Stdio, is_reference};
use bowline_tests::harness::only_v2;
use serde_json::{Value, json};

/// Sets what is at this place of a configuration: `linux.devices[0].path`.
pub fn set(config: &mut Value, place: &str, value: Value) {
    let mut at = config;
    for part in place.replace("[]", "[0]").replace('[', ".[").split('.') {
        at = match part.strip_prefix('[').and_then(|index| index.strip_suffix(']')) {
            Some(index) => {
                if !at.is_array() {
                    *at = json!([]);
                }
                let index: usize = index.parse().expect("a number");
                let list = at.as_array_mut().expect("a list");
                while list.len() <= index {
                    list.push(Value::Null);
                }
                &mut list[index]
            }
            None => {
                if !at.is_object() {
                    *at = json!({});
                }
                &mut at[part]
            }
        };
    }
    *at = value;
}

/// Each of these values at its place is wrong: it makes Create fail with a message that has the words.
#[track_caller]
pub fn assert_refused(cases: &[(&str, Value, &str)]) {
    assert_fails(Code::INVALID_ARGUMENT, cases);
}

/// Like [`assert_refused`], for what is right, and not done here or on this host.
#[track_caller]
pub fn assert_unsupported(cases: &[(&str, Value, &str)]) {
    assert_fails(Code::FAILED_PRECONDITION, cases);
}

/// Like [`assert_refused`], in a configuration that `edit` has changed.
#[track_caller]
fn assert_refused_in(cases: &[(&str, Value, &str)], edit: impl FnOnce(&mut Value)) {
    assert_fails_in(Code::INVALID_ARGUMENT, cases, edit);
}

#[track_caller]
fn assert_fails(code: Code, cases: &[(&str, Value, &str)]) {
    assert_fails_in(code, cases, |_| {});
}

#[track_caller]
fn assert_fails_in(code: Code, cases: &[(&str, Value, &str)], edit: impl FnOnce(&mut Value)) {
    let host = Host::new();
    let containerd = host.containerd();
    let mut bundle = containerd.bundle().script("sleep 1000").edit(edit);
    let good = bundle.config.clone();
    let shim = containerd.start(&bundle);
    for (place, value, words) in cases {
        bundle = bundle.edit(|config| {
            *config = good.clone();
            set(config, place, value.clone());
        });
        match shim.create(&bundle, &Stdio::null()) {
            Ok(_) => panic!("{place}: {value} is taken"),
            // containerd's shim for runc has its own words, and one code for all.
            Err(_) if is_reference() => {}
            Err(failure) => {
                let is_it = failure.message.contains(words) && failure.code == code;
                assert!(is_it, "{place}: {value}: {failure:?}");
            }
        }
    }
    shim.assert_alive();
    shim.over();
}

/// Whether containerd's own shim is tested, which fails here: says why, and the test is over.
pub fn reference_fails(why: &str) -> bool {
    let host = Host::new();
    let fails = host.reference_fails(why);
    if !fails {
        host.assert_nothing_left();
    }
    fails
}

#[test]
fn a_device_over_another_file_is_refused() {
    if reference_fails("runc keeps the file that is there") {
        return;
    }
    let device = |path: &str| json!([{ "path": path, "type": "c", "major": 1, "minor": 3 }]);
    let two = json!([
        { "path": "/dev/mine", "type": "c", "major": 1, "minor": 3 },
        { "path": "/dev/mine", "type": "c", "major": 1, "minor": 5 },
    ]);
    assert_refused(&[
        ("linux.devices", device("/etc/passwd"), "/etc/passwd"),
        ("linux.devices", device("/dev/shm"), "/dev/shm"),
        ("linux.devices", two, "/dev/mine"),
        ("linux.devices", json!([{ "path": "/dev/x", "type": "a", "major": 1, "minor": 3 }]), "linux.devices"),
        ("linux.devices", json!([{ "path": "/dev/null", "type": "c", "major": 1, "minor": 5 }]), "/dev/null"),
    ]);
}

#[test]
fn with_user_namespaces_a_device_over_a_file_is_refused_too() {
    let host = Host::new();
    let containerd = host.containerd();
    let map = json!([{ "containerID": 0, "hostID": 100000, "size": 65536 }]);
    let bundle = containerd.bundle().script("true").edit(|config| {
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "user" }));
        config["linux"]["uidMappings"] = map.clone();
        config["linux"]["gidMappings"] = map;
        config["linux"]["devices"] = json!([{ "path": "/etc/passwd", "type": "c", "major": 1, "minor": 3 }]);
    });
    let shim = containerd.start(&bundle);
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("a file is there");
    assert!(failure.message.contains("/etc/passwd"), "{failure:?}");
    shim.over();
}

#[test]
fn what_runc_refuses_is_refused_too_and_named() {
    let namespaces = |more: Value| json!([{ "type": "pid" }, { "type": "mount" }, more]);
    let map = json!([{ "containerID": 0, "hostID": 100000, "size": 65536 }]);
    let rule = |more: Value| {
        let mut rule = json!({ "allow": true, "access": "rw", "type": "c", "major": 1, "minor": 3 });
        rule.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!([{ "allow": false, "access": "rwm" }, rule])
    };
    let mounts = |more: Value| json!([{ "destination": "/proc", "type": "proc", "source": "proc" }, more]);
    let mut cases = vec![
        ("linux.namespaces", namespaces(json!({ "type": "pid" })), "pid"),
        ("linux.namespaces", namespaces(json!({ "type": "dreams" })), "dreams"),
        ("linux.namespaces", namespaces(json!({ "type": "user" })), "apping"),
        ("linux.sysctl", json!({ "kernel.core_pattern": "|/x" }), "kernel.core_pattern"),
        ("linux.sysctl", json!({ "kernel.hostname": "x" }), "kernel.hostname"),
        ("process.user", json!({ "uid": 3_000_000_000_u32, "gid": 0 }), "process.user.uid"),
        ("process.user", json!({ "uid": 0, "gid": u32::MAX }), "process.user.gid"),
        ("process.user", json!({ "uid": 0, "gid": 0, "additionalGids": [u32::MAX] }), "additionalGids"),
        ("linux.rootfsPropagation", json!("sideways"), "sideways"),
        ("linux.resources.devices", rule(json!({ "type": "p" })), "type"),
        ("linux.resources.devices", rule(json!({ "access": "" })), "access"),
        ("process.rlimits", json!([{ "type": "RLIMIT_NOISE", "hard": 1, "soft": 1 }]), "RLIMIT_NOISE"),
        ("linux.seccomp", json!({ "defaultAction": "SCMP_ACT_DREAM" }), "SCMP_ACT_DREAM"),
        (
            "linux.seccomp",
            json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_DREAM"] }),
            "SCMP_ARCH_DREAM",
        ),
        ("linux.resources.cpu", json!({ "shares": 300_000 }), "shares"),
        ("linux.resources.memory", json!({ "swappiness": 101 }), "swappiness"),
        ("hostname", json!("x".repeat(70)), "hostname"),
        ("mounts", mounts(json!({ "destination": "/", "type": "tmpfs", "source": "x" })), "mount"),
        ("mounts", mounts(json!({ "destination": "/tmp/..", "type": "tmpfs", "source": "x" })), "mount"),
        ("mounts", mounts(json!({ "destination": "/bin/busybox", "type": "tmpfs", "source": "x" })), "not a directory"),
        (
            "mounts",
            mounts(json!({ "destination": "/tmp", "source": "/etc/passwd", "options": ["bind"] })),
            "not a directory",
        ),
        (
            "mounts",
            mounts(json!({ "destination": "/bin/busybox", "source": "/usr", "options": ["bind"] })),
            "not a directory",
        ),
        ("process.cwd", json!("tmp"), "wd"),
        ("linux.readonlyPaths", json!(["/bin/busybox/x"]), "cannot make /bin/busybox/x read-only"),
        ("linux.maskedPaths", json!(["/bin/busybox/x"]), "cannot mask /bin/busybox/x"),
        ("process.args", json!([]), "args"),
        ("process", Value::Null, "process"),
        ("root", Value::Null, "root"),
    ];
    let mut mapped = Vec::new();
    let nope = json!({ "destination": "/tmp", "type": "tmpfs", "source": "x", "options": ["nope"] });
    let mut unsupported =
        vec![("mounts", mounts(nope), "tmpfs"), ("process.selinuxLabel", json!("u:r:t:s0"), "elinux")];
    let (file, named) =
        if only_v2() { (json!({ "no.such": "1" }), "no.such") } else { (json!({ "memory.high": "1" }), "memory.high") };
    unsupported.push(("linux.resources.unified", file, named));
    if !is_reference() {
        // Since runc 1.2, 1.3 and 1.4.
        cases.push(("linux.timeOffsets", json!({ "monotonic": { "secs": 1 } }), "linux.timeOffsets"));
        for (policy, named) in [
            (json!({}), "linux.memoryPolicy"),
            (json!({ "mode": "INTERLEAVE", "nodes": "0" }), "linux.memoryPolicy.mode"),
            (json!({ "mode": "MPOL_PREFERRED", "nodes": "0", "flags": ["badflag"] }), "linux.memoryPolicy.flags"),
            (json!({ "mode": "MPOL_DEFAULT", "nodes": "0-7" }), "requires 0 nodes but got 8"),
            (json!({ "mode": "MPOL_BIND", "nodes": "0-9876543210" }), "linux.memoryPolicy.nodes"),
            (json!({ "mode": "MPOL_BIND", "nodes": "1000" }), "linux.memoryPolicy"),
        ] {
            cases.push(("linux.memoryPolicy", policy, named));
        }
        // Here with another code, or as the task starts.
        for (user, named) in [
            (json!({ "uid": 70000, "gid": 0 }), "process.user.uid: 70000"),
            (json!({ "uid": 0, "gid": 70000 }), "process.user.gid: 70000"),
            (json!({ "uid": 0, "gid": 0, "additionalGids": [5, 70000] }), "process.user.additionalGids: 70000"),
        ] {
            mapped.push(("process.user", user, named));
        }
        let overlapping = json!([
            { "containerID": 0, "hostID": 100000, "size": 10 },
            { "containerID": 9, "hostID": 200000, "size": 10 },
        ]);
        mapped.push(("linux.uidMappings", overlapping.clone(), "linux.uidMappings[1]"));
        mapped.push(("linux.gidMappings", overlapping, "linux.gidMappings[1]"));
        for (owner, named) in [(json!({ "uid": 70000 }), "uid 70000"), (json!({ "gid": 70000 }), "gid 70000")] {
            let mut device = json!({ "path": "/dev/x", "type": "c", "major": 1, "minor": 3 });
            device.as_object_mut().expect("an object").extend(owner.as_object().expect("an object").clone());
            mapped.push(("linux.devices", json!([device]), named));
        }
        cases.push(("linux.uidMappings", map.clone(), "linux.uidMappings"));
        cases.push(("linux.gidMappings", map.clone(), "linux.gidMappings"));
        let priority = json!({ "class": "IOPRIO_CLASS_BE", "priority": 8 });
        cases.push(("process.ioPriority", priority, "process.ioPriority.priority"));
        cases.push(("process.ioPriority", json!({ "priority": 5 }), "process.ioPriority.class"));
        let dream = json!({ "class": "IOPRIO_CLASS_DREAM", "priority": 1 });
        cases.push(("process.ioPriority", dream, "process.ioPriority.class"));
        for flag in ["SCHED_FLAG_DREAM", "SCHED_RESET_ON_FORK"] {
            let scheduler = json!({ "policy": "SCHED_OTHER", "flags": [flag] });
            cases.push(("process.scheduler", scheduler, "process.scheduler.flags"));
        }
        cases.push(("process.scheduler", json!({ "policy": "SCHED_DREAM" }), "process.scheduler.policy"));
        unsupported.push(("process.scheduler", json!({ "policy": "SCHED_ISO" }), "process.scheduler"));
        for architecture in
            ["SCMP_ARCH_MIPS", "SCMP_ARCH_MIPS64", "SCMP_ARCH_PPC", "SCMP_ARCH_PPC64", "SCMP_ARCH_S390X"]
        {
            let filter = json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": [architecture] });
            unsupported.push(("linux.seccomp", filter, architecture));
        }
    }
    assert_refused(&cases);
    assert_unsupported(&unsupported);
    assert_refused_in(&mapped, |config| {
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "user" }));
        config["linux"]["uidMappings"] = map.clone();
        config["linux"]["gidMappings"] = map.clone();
    });
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    let action = |value: Value| ("linux.seccomp", json!({ "defaultAction": value }), "linux.seccomp.defaultAction");
    let none: [&str; 0] = [];
    let mut cases = vec![
        action(json!(false)),
        action(json!({})),
        action(json!(none)),
        action(json!(0)),
        ("linux.seccomp", json!({ "defaultAction": "", "syscalls": "" }), "linux.seccomp"),
        ("linux.seccomp", json!(none), "linux.seccomp"),
        ("hooks", json!(none), "hooks: invalid type: list"),
        ("root", json!(["/x", false]), "root: invalid type: list"),
        ("mounts", json!([["/x", "tmpfs", "t", null, null, null]]), "mounts[0]: invalid type: list"),
        ("linux.resources.pids", json!([3]), "linux.resources.pids: invalid type: list"),
    ];
    if !is_reference() {
        // Since runc 1.1 and 1.2.
        cases.push(("linux.personality", json!({ "domain": 0 }), "linux.personality.domain"));
        cases.push(("process.scheduler", json!({ "policy": 0 }), "process.scheduler.policy"));
        cases.push(("process.ioPriority", json!({ "class": false }), "process.ioPriority.class"));
        cases.push(("process.execCPUAffinity", json!({ "initial": 0 }), "process.execCPUAffinity.initial"));
    }
    assert_refused(&cases);
}

#[test]
fn what_runc_knows_in_part_is_refused_by_name() {
    if reference_fails("some it leaves out, some it refuses in other words") {
        return;
    }
    let none: [&str; 0] = [];
    let beyond = json!({ "bounding": ["CAP_KILL"], "permitted": none, "effective": ["CAP_KILL"] });
    let bind = json!([{ "destination": "/tmp", "options": ["bind"] }]);
    let hosts = json!([{ "type": "mount" }, { "type": "network", "path": "proc/self/ns/net" }]);
    assert_refused(&[
        ("linux.namespaces", hosts, "linux.namespaces[1].path"),
        ("process.env", json!(["x"]), "process.env"),
        ("process.env", json!(["A=1", "B=\0"]), "process.env[1]"),
        ("process.args", json!(["/bin/sh", "-c", "exit\0"]), "process.args[2]"),
        ("process.consoleSize", json!({ "height": 70_000, "width": 1 }), "process.consoleSize"),
        ("process.capabilities", beyond, "process.capabilities.effective"),
        ("process.rlimits", json!([{ "type": "RLIMIT_NOFILE", "hard": 1, "soft": 2 }]), "RLIMIT_NOFILE"),
        ("process.execCPUAffinity", json!({ "initial": "x" }), "execCPUAffinity"),
        ("process.execCPUAffinity", json!({ "final": "1-0" }), "process.execCPUAffinity.final"),
        ("linux.cgroupsPath", json!("/a/../b"), "/a/../b"),
        ("hooks", json!({ "createRuntime": [{ "path": "x" }] }), "createRuntime hook"),
        ("hooks", json!({ "createRuntime": [{ "path": "/x", "timeout": 0 }] }), "createRuntime hook"),
        ("hooks", json!({ "poststart": [{ "path": "x" }] }), "poststart hook"),
        ("hooks", json!({ "poststop": [{ "path": "x" }] }), "poststop hook"),
        ("hooks", json!({ "poststop": [{ "path": "/x", "timeout": 0 }] }), "poststop hook"),
        ("linux.maskedPaths", json!(["/"]), "maskedPaths"),
        ("linux.maskedPaths", json!(["/tmp/.."]), "maskedPaths"),
        ("mounts", bind, "source"),
    ]);
}

/// runc takes the path without `..`, which may lead anywhere.
#[test]
fn a_device_is_not_made_elsewhere() {
    if reference_fails("it follows the path") {
        return;
    }
    let device = |path: &str| json!([{ "path": path, "type": "c", "major": 1, "minor": 3 }]);
    let cases = ["/dev/../etc/x", "/proc/x"].map(|path| ("linux.devices", device(path), path));
    assert_refused(&cases);
}

#[test]
fn what_runc_leaves_out_without_a_word_is_refused() {
    if reference_fails("runc leaves them out") {
        return;
    }
    let twice = json!([
        { "type": "RLIMIT_NOFILE", "hard": 64, "soft": 64 },
        { "type": "RLIMIT_NOFILE", "hard": 32, "soft": 32 },
    ]);
    let rule = |more: Value| {
        let mut rule = json!({ "allow": true, "access": "rw", "type": "c", "major": 1, "minor": 3 });
        rule.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!([{ "allow": false, "access": "rwm" }, rule])
    };
    let filter = |rule: Value| json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule] });
    let memory = "linux.resources.memory";
    let (scheduler, seccomp) = ("process.scheduler", "linux.seccomp");
    assert_refused(&[
        ("ociVersion", json!("2.0.0"), "ociVersion"),
        ("ociVersion", json!("one"), "ociVersion"),
        ("process.rlimits", twice, "RLIMIT_NOFILE"),
        ("process.consoleSize", json!({ "height": 70000, "width": 1 }), "consoleSize"),
        (scheduler, json!({ "policy": "SCHED_BATCH", "nice": 20 }), "scheduler.nice"),
        (scheduler, json!({ "policy": "SCHED_OTHER", "priority": 1 }), "scheduler.priority"),
        (scheduler, json!({ "policy": "SCHED_OTHER", "runtime": 1000000 }), "scheduler.runtime"),
        (scheduler, json!({ "policy": "SCHED_OTHER", "flags": ["SCHED_FLAG_RECLAIM"] }), "SCHED_FLAG_RECLAIM"),
        (scheduler, json!({ "policy": "SCHED_FIFO", "flags": ["SCHED_FLAG_DL_OVERRUN"] }), "SCHED_FLAG_DL_OVERRUN"),
        ("process.user.umask", json!(0o1777), "process.user.umask"),
        ("linux.resources.devices", rule(json!({ "access": "rx" })), "devices[1].access"),
        ("linux.resources.devices", json!([{ "allow": false }]), "linux.resources.devices[0].access"),
        ("linux.devices", json!([{ "path": "/dev/x", "type": "c", "major": 4096, "minor": 0 }]), "4096:0"),
        ("linux.devices", json!([{ "path": "/dev/x", "type": "b", "major": 1, "minor": 1 << 20 }]), "1:1048576"),
        ("process.oomScoreAdj", json!(1001), "process.oomScoreAdj"),
        (
            seccomp,
            filter(json!({ "names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [
                { "index": 0, "value": 1, "op": "SCMP_CMP_EQ" }, { "index": 6, "value": 1, "op": "SCMP_CMP_EQ" },
            ] })),
            "linux.seccomp.syscalls[0].args[1].index: 6",
        ),
        (
            seccomp,
            filter(json!({ "names": ["mkdir"], "action": "SCMP_ACT_KILL", "errnoRet": 7 })),
            "syscalls[0].errnoRet",
        ),
        (seccomp, json!({ "defaultAction": "SCMP_ACT_LOG", "defaultErrnoRet": 7 }), "linux.seccomp.defaultErrnoRet"),
        (
            seccomp,
            json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerMetadata": "x" }),
            "linux.seccomp.listenerMetadata",
        ),
        ("linux.resources.devices", rule(json!({ "major": 4294967296u64 })), "devices[1].major"),
        ("linux.resources.devices", rule(json!({ "minor": -2 })), "devices[1].minor"),
        (memory, json!({ "limit": 64 << 20, "swap": -2 }), "memory.swap"),
        (memory, json!({ "limit": -5 }), "memory.limit"),
        (memory, json!({ "limit": 64 << 20, "swap": 32 << 20 }), "swap"),
    ]);
}
