//! Fields of a configuration that a runtime may forget: each has its effect, or is refused by its name, or the log
//! says that it has none. What the kernel's files show is the witness.

pub mod effect;
pub mod refused;
mod table;

use std::fs;
use std::path::Path;

use crate::doctor::fact;
use crate::fields::refused::{assert_refused, assert_unsupported, reference_fails, set};
use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, Running, Stdio, is_reference};
use bowline_tests::harness::{hierarchies, hierarchy, only_v2, skip};
use serde_json::{Value, json};

/// Runs `script` with this configuration: what it says.
#[track_caller]
pub fn said_with(script: &str, edit: impl FnOnce(&mut Value)) -> String {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(script).edit(edit);
    let said = said(&containerd, &bundle);
    host.assert_nothing_left();
    said
}

/// Runs a bundle to its end: what it says.
#[track_caller]
pub fn said(containerd: &Containerd<'_>, bundle: &Bundle) -> String {
    let io = bundle.fifos("init");
    let shim = containerd.start(bundle);
    let (stdout, stderr) = io.open();
    shim.run(bundle, &io);
    let status = shim.status_at_end(&bundle.id, "");
    let text = stdout.to_end();
    assert_eq!(status, 0, "{text}{}", stderr.map(|stderr| stderr.to_end()).unwrap_or_default());
    shim.end(&bundle.id);
    text.trim_end().to_owned()
}

/// A container that sleeps, with these resources besides.
#[track_caller]
fn limited<'h>(containerd: &Containerd<'h>, place: &str, value: Value) -> Running<'h> {
    let bundle = containerd.bundle().script("sleep 1000");
    let bundle = bundle.edit(|config| set(config, &format!("linux.resources.{place}"), value));
    let io = bundle.fifos("init");
    containerd.run_with(bundle, &io)
}

/// Whether this controller is one of v1's here.
fn is_mounted(controller: &str) -> bool {
    hierarchies().iter().any(|(names, _)| names.split(',').any(|name| name == controller))
}

#[test]
fn the_oom_killer_can_be_switched_off() {
    if only_v2() {
        return assert_unsupported(&[(
            "linux.resources.memory.disableOOMKiller",
            json!(true),
            "memory.disableOOMKiller",
        )]);
    }
    let host = Host::new();
    let containerd = host.containerd();
    let memory = json!({ "limit": 64 << 20, "disableOOMKiller": true, "useHierarchy": true });
    let running = limited(&containerd, "memory", memory);
    assert!(running.cgroup_file("memory", "memory.oom_control").starts_with("oom_kill_disable 1"));
    assert_eq!(running.cgroup_file("memory", "memory.use_hierarchy"), "1");
    running.end();
}

#[test]
fn an_oom_killer_that_is_not_switched_off_stays() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = limited(&containerd, "memory", json!({ "disableOOMKiller": false, "kernel": 0 }));
    if !only_v2() {
        assert!(running.cgroup_file("memory", "memory.oom_control").starts_with("oom_kill_disable 0"));
    }
    running.end();
}

#[test]
fn cpu_time_that_nobody_wants_and_that_was_left_over() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 does not know them") {
        return;
    }
    let burst = if only_v2() { "cpu.max.burst" } else { "cpu.cfs_burst_us" };
    let cpu = json!({ "quota": 50000, "period": 100000, "burst": 20000, "shares": 512, "idle": 1 });
    // Before Linux 5.14.
    if fact(&host.bowline(["doctor", "--json"]), "CPU burst")["state"] == "lacks" {
        host.assert_nothing_left();
        return assert_unsupported(&[("linux.resources.cpu", cpu, burst)]);
    }
    let containerd = host.containerd();
    let running = limited(&containerd, "cpu", cpu);
    let files = |running: &Running<'_>| [running.cgroup_file("cpu", "cpu.idle"), running.cgroup_file("cpu", burst)];
    assert_eq!(files(&running), ["1", "20000"]);
    let none = json!({ "cpu": { "idle": 0, "burst": 0, "shares": 256 } });
    running.shim.update(&running.id, &none).expect("an update");
    assert_eq!(files(&running), ["0", "0"]);
    running.end();
}

/// Whether the host has time for realtime processes that no other cgroup has been given.
pub fn has_realtime_left() -> bool {
    let time = |folder: &Path| fs::read_to_string(folder.join("cpu.rt_runtime_us")).ok()?.trim().parse::<i64>().ok();
    let top = hierarchy("cpu");
    let others =
        fs::read_dir(&top).into_iter().flatten().flatten().filter_map(|entry| time(&entry.path())).sum::<i64>();
    let left = time(&top).is_some_and(|all| all - others >= 100_000);
    if !left {
        skip("other cgroups have all the time of realtime processes");
    }
    left
}

#[test]
fn time_for_realtime_processes() {
    if only_v2() || !hierarchy("cpu").join("cpu.rt_runtime_us").exists() {
        return assert_unsupported(&[("linux.resources.cpu.realtimeRuntime", json!(10000), "cpu.realtimeRuntime")]);
    }
    if !has_realtime_left() {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    // Below the root, which has such time to give: a new cgroup has none.
    let path = format!("/{}", bundle.id);
    let bundle = bundle.edit(|config| {
        config["linux"]["cgroupsPath"] = json!(path);
        config["linux"]["resources"]["cpu"] = json!({ "realtimeRuntime": 2000, "realtimePeriod": 500000 });
    });
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    let folder = hierarchy("cpu").join(&path[1..]);
    let file = |name: &str| fs::read_to_string(folder.join(name)).expect("a file of the cgroup").trim().to_owned();
    assert_eq!([file("cpu.rt_runtime_us"), file("cpu.rt_period_us")], ["2000", "500000"]);
    shim.end(&bundle.id);
}

#[test]
fn the_class_and_priorities_of_packets() {
    let classified = [("linux.resources.network.classID", json!(7), "network.classID")];
    let priorities = json!([{ "name": "lo", "priority": 3 }]);
    let prioritized = [("linux.resources.network.priorities", priorities.clone(), "network.priorities")];
    if !is_mounted("net_cls") {
        assert_unsupported(&classified);
    } else {
        let host = Host::new();
        let containerd = host.containerd();
        let running = limited(&containerd, "network.classID", json!(7));
        assert_eq!(running.cgroup_file("net_cls", "net_cls.classid"), "7");
        running.end();
    }
    if !is_mounted("net_prio") {
        assert_unsupported(&prioritized);
    } else {
        let host = Host::new();
        let containerd = host.containerd();
        let running = limited(&containerd, "network.priorities", priorities);
        assert!(running.cgroup_file("net_prio", "net_prio.ifpriomap").contains("lo 3"));
        running.end();
    }
}

#[test]
fn an_rdma_device_that_is_not_there_is_refused() {
    let most = json!({ "mlx5_9": { "hcaHandles": 3, "hcaObjects": 10000 } });
    let cases = [("linux.resources.rdma", most, "rdma.max")];
    if has_controller("rdma") { assert_refused(&cases) } else { assert_unsupported(&cases) }
}

#[test]
fn a_leaf_weight_that_no_kernel_has_is_refused() {
    if hierarchy("blkio").join("blkio.leaf_weight").exists() {
        return;
    }
    let device = json!([{ "major": 8, "minor": 0, "leafWeight": 100 }]);
    assert_unsupported(&[
        ("linux.resources.blockIO.leafWeight", json!(100), "blockIO.leafWeight"),
        ("linux.resources.blockIO.weightDevice", device, "leafWeight"),
    ]);
    let host = Host::new();
    let containerd = host.containerd();
    limited(&containerd, "blockIO", json!({ "weight": 0, "leafWeight": 0 })).end();
}

/// Whether this host has a controller, of either version.
fn has_controller(name: &str) -> bool {
    let unified = hierarchies().into_iter().find(|(names, _)| names.is_empty()).map(|(_, mount)| mount);
    let names = unified.and_then(|mount| fs::read_to_string(mount.join("cgroup.controllers")).ok()).unwrap_or_default();
    is_mounted(name) || names.split_whitespace().any(|known| known == name)
}

#[test]
fn huge_pages_are_limited_or_refused() {
    let limits = json!([{ "pageSize": "2MB", "limit": 4 << 20 }]);
    if is_reference() || !has_controller("hugetlb") {
        return assert_unsupported(&[("linux.resources.hugepageLimits", limits, "hugetlb")]);
    }
    let host = Host::new();
    let containerd = host.containerd();
    let running = limited(&containerd, "hugepageLimits", limits);
    let file = if is_mounted("hugetlb") { "hugetlb.2MB.limit_in_bytes" } else { "hugetlb.2MB.max" };
    assert_eq!(running.cgroup_file("hugetlb", file), (4 << 20).to_string());
    running.end();
}

#[test]
fn huge_pages_without_a_size_the_host_has_are_refused() {
    let of = |size: Value| json!([{ "pageSize": "2MB", "limit": 4 << 20 }, size]);
    let named = "linux.resources.hugepageLimits[1].pageSize";
    let field = "linux.resources.hugepageLimits";
    assert_refused(&[
        (field, of(json!({ "limit": 4 << 20 })), named),
        (field, of(json!({ "pageSize": "", "limit": 4 << 20 })), named),
    ]);
    assert_unsupported(&[(field, of(json!({ "pageSize": "3MB", "limit": 6 << 20 })), named)]);
}

#[test]
fn a_terminal_has_the_size_that_the_configuration_says() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("busybox stty size; sleep 1000").terminal();
    let bundle = bundle.edit(|config| config["process"]["consoleSize"] = json!({ "height": 31, "width": 97 }));
    let io = bundle.fifos_of_terminal("init");
    let running = containerd.run_with(bundle, &io);
    running.stdout.wait_for("31 97");

    let io = running.bundle.fifos_of_terminal("e");
    let (stdout, _) = io.open();
    let mut process = running.bundle.process(&["/bin/sh", "-c", "busybox stty size"]);
    process["terminal"] = json!(true);
    process["consoleSize"] = json!({ "height": 22, "width": 77 });
    running.shim.exec(&running.id, "e", &process, &io).expect("added");
    running.shim.start(&running.id, "e").expect("started");
    stdout.wait_for("22 77");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    running.shim.delete(&running.id, "e").expect("deleted");
    running.end();
}

#[test]
fn default_devices_take_owner_and_mode_of_the_configuration() {
    if reference_fails("runc then denies the device, unless a rule allows it") {
        return;
    }
    let stat = "stat -c '%n %a %u %g %t:%T' /dev/null /dev/zero /dev/mine";
    let devices = json!([
        { "path": "/dev/zero", "type": "c", "major": 1, "minor": 5, "fileMode": 0o640, "uid": 5, "gid": 6 },
        // Some managers send the bits of the type along.
        { "path": "/dev/null", "type": "u", "major": 1, "minor": 3, "fileMode": 0o020622 },
        { "path": "/dev/mine", "type": "c", "major": 1, "minor": 7 },
    ]);
    let said = said_with(stat, |config| config["linux"]["devices"] = devices);
    assert_eq!(said, "/dev/null 622 0 0 1:3\n/dev/zero 640 5 6 1:5\n/dev/mine 666 0 0 1:7");
}

#[test]
fn without_capabilities_a_container_has_none() {
    let script = "grep Cap /proc/self/status | cut -f2 | sort -u; mount -t tmpfs x /tmp 2>/dev/null || echo denied";
    for none in [Value::Null, json!({}), json!({ "bounding": ["CHOWN", "cap_kill", "Setuid"] })] {
        let said = said_with(script, |config| config["process"]["capabilities"] = none.clone());
        assert_eq!(said, "0000000000000000\ndenied", "{none}");
    }
}

#[test]
fn structures_of_nothing_are_unset() {
    let mut places = vec!["linux.seccomp", "linux.intelRdt", "solaris", "windows", "vm"];
    if !is_reference() {
        // Since runc 1.2.
        places.extend(["zos", "process.scheduler", "linux.personality"]);
    }
    for place in places {
        assert_eq!(said_with("echo runs", |config| set(config, place, json!({}))), "runs", "{place}");
    }
    if !is_reference() {
        let zero = json!({ "monotonic": { "secs": 0 } });
        let (monitoring, affinity) = (json!({ "enableMonitoring": false }), json!({ "initial": "" }));
        for (place, unset) in [
            ("linux.intelRdt", monitoring),
            ("linux.timeOffsets", zero),
            ("process.execCPUAffinity", affinity),
            ("process.ioPriority", json!({ "class": "", "priority": 0 })),
            ("vm", json!({ "kernel": { "path": "" } })),
            ("vm", json!({ "hypervisor": { "path": "" }, "kernel": { "path": "", "parameters": [] } })),
        ] {
            assert_eq!(said_with("echo runs", |config| set(config, place, unset)), "runs", "{place}");
        }
    }
    let unset = [
        json!({ "defaultAction": "" }),
        json!({ "defaultAction": "", "syscalls": [], "architectures": ["SCMP_ARCH_X86_64"] }),
    ];
    for unset in unset {
        assert_eq!(said_with("echo runs", |config| set(config, "linux.seccomp", unset)), "runs");
    }
    let rule = json!({ "names": null, "action": "SCMP_ACT_ALLOW", "args": null });
    for (place, null) in [
        ("linux.seccomp", json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule] })),
        ("process.user", json!({ "uid": null, "gid": null })),
        ("linux.maskedPaths", Value::Null),
    ] {
        assert_eq!(said_with("echo runs", |config| set(config, place, null)), "runs", "{place}");
    }
    // Docker's -1, as Go writes an unsigned number.
    let memory = json!({ "limit": 64 << 20, "swappiness": u64::MAX });
    assert_eq!(said_with("echo runs", |config| set(config, "linux.resources.memory", memory)), "runs");
}

#[test]
fn a_limit_of_no_processes_is_one() {
    let host = Host::new();
    if host.reference_fails("runc takes it for none before version 1.4") {
        return;
    }
    let containerd = host.containerd();
    let running = limited(&containerd, "pids", json!({ "limit": 0 }));
    let now = || running.cgroup_file("pids", "pids.max");
    assert_eq!(now(), "1");
    for (limit, expected) in [(20, "20"), (0, "1"), (-1, "max")] {
        running.shim.update(&running.id, &json!({ "pids": { "limit": limit } })).expect("an update");
        assert_eq!(now(), expected, "{limit}");
    }
    running.end();
    let running = limited(&containerd, "pids", json!({}));
    assert_eq!(running.cgroup_file("pids", "pids.max"), "max");
    running.end();
}

#[test]
fn an_update_of_nothing_changes_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = limited(&containerd, "pids", json!({ "limit": 77 }));
    let unset = json!({ "pids": { "limit": null }, "memory": { "limit": null } });
    for nothing in [Value::Null, json!({}), json!({ "pids": null }), json!({ "pids": {} }), unset] {
        running.shim.update(&running.id, &nothing).expect("an update");
        assert_eq!(running.cgroup_file("pids", "pids.max"), "77", "{nothing}");
    }
    let list = running.shim.update(&running.id, &json!([])).map(drop).expect_err("a list");
    assert!(is_reference() || list.message.contains("invalid type: list"), "{list:?}");
    running.end();
}

#[test]
fn what_has_no_effect_is_in_the_log() {
    let host = Host::new();
    if host.reference_fails("runc knows some of it, and is silent about the rest") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        config["linux"]["resources"]["memory"] = json!({ "kernel": 64 << 20, "kernelTCP": 32 << 20, "swappiness": 7 });
        config["freebsd"] = json!({ "devices": [] });
        config["process"]["user"]["shoes"] = json!(44);
        config["process"]["scheduler"] = json!({ "policy": "SCHED_IDLE", "nice": 1 });
        config["process"]["ioPriority"] = json!({ "class": "IOPRIO_CLASS_IDLE", "priority": 5 });
        config["process"]["capabilities"] = json!({ "bounding": ["CAP_KILL"], "ambient": ["CAP_KILL"] });
        config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/no/agent" });
    });
    let (shim, log) = containerd.start_heard(&bundle);
    shim.run(&bundle, &Stdio::null());
    for field in [
        "memory.kernel ",
        "memory.kernelTCP ",
        "freebsd ",
        "process.user.shoes ",
        "process.scheduler.nice ",
        "process.ioPriority.priority ",
        "linux.seccomp.listenerPath ",
    ] {
        log.wait_for(&format!("{field}has no effect"));
    }
    log.wait_for("process.capabilities.ambient: [CAP_KILL] have no effect");
    if only_v2() {
        log.wait_for("memory.swappiness has no effect");
    }
    shim.end(&bundle.id);
}

#[test]
fn a_rule_for_all_kinds_of_one_number_is_for_no_other() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "busybox mknod /dev/loop c 10 237; busybox mknod /dev/full2 c 1 7; \
                  cat /dev/loop 2>&1 | grep -c 'not permitted'; head -c 1 /dev/full2 | busybox wc -c";
    let bundle = containerd.bundle().script(script).edit(|config| {
        let rules = json!([{ "allow": false, "access": "rwm" }, { "allow": true, "type": "a", "major": 1, "minor": 7, "access": "r" }]);
        config["linux"]["resources"]["devices"] = rules;
        config["process"]["capabilities"]["bounding"].as_array_mut().expect("a list").push(json!("CAP_MKNOD"));
    });
    // runc takes this rule for every device.
    if !host.reference_fails("runc takes this rule for every device") {
        assert_eq!(said(&containerd, &bundle), "1\n1");
    }
}

/// What a container with these rules can open of the control of loop devices (10:237), the host's console (5:1), and its
/// own null device.
#[track_caller]
pub fn openable(rules: &Value) -> String {
    let script = "busybox mknod /dev/loop c 10 237; busybox mknod /dev/con c 5 1; \
                  for d in loop con null; do (: < /dev/$d) 2> /dev/null && echo $d; done; true";
    let said = said_with(script, |config| {
        config["linux"]["resources"]["devices"] = rules.clone();
        let sets = config["process"]["capabilities"].as_object_mut().expect("sets");
        sets.values_mut().for_each(|set| set.as_array_mut().expect("a list").push(json!("CAP_MKNOD")));
    });
    said.replace('\n', " ")
}

#[test]
fn a_device_that_no_rule_allows_cannot_be_opened() {
    let one = |allow: bool, major: u32, minor: u32| json!({ "allow": allow, "type": "c", "major": major, "minor": minor, "access": "rwm" });
    let none = json!({ "allow": false, "access": "rwm" });
    let both = if fs::File::open("/dev/loop-control").is_ok() { "loop null" } else { "null" };
    let cases = [
        (json!([]), "null"),
        (json!([none]), "null"),
        (json!([one(false, 1, 5)]), "null"),
        (json!([one(true, 1, 5)]), "null"),
        (json!([one(true, 10, 237)]), both),
        (json!([{ "allow": false, "type": "a", "access": "rwm" }, one(true, 10, 237)]), both),
        (json!([{ "allow": false, "type": "", "access": "rwm" }, one(true, 10, 237)]), both),
    ];
    for (rules, opened) in cases {
        assert_eq!(openable(&rules), opened, "{rules}");
    }
}

#[test]
fn letters_of_access_to_devices_have_any_order() {
    let rule = |access: &str| json!({ "allow": true, "type": "c", "major": 10, "minor": 237, "access": access });
    let script = "busybox mknod /dev/loop c 10 237; (: < /dev/loop) 2>&1 | grep -c 'not permitted'; \
                  (: >> /dev/loop) 2>&1 | grep -c 'not permitted'; true";
    for (access, expected) in [("mr", "0\n1"), ("mwr", "0\n0"), ("wr", "0\n0")] {
        let said = said_with(script, |config| {
            config["linux"]["resources"]["devices"] = json!([{ "allow": false, "access": "mwr" }, rule(access)]);
            let sets = config["process"]["capabilities"].as_object_mut().expect("sets");
            sets.values_mut().for_each(|set| set.as_array_mut().expect("a list").push(json!("CAP_MKNOD")));
        });
        assert_eq!(said, expected, "{access}");
    }
}

#[test]
fn an_update_leaves_the_devices_alone() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let rules = json!([{ "allow": false, "access": "rwm" }, { "allow": true, "type": "", "access": "r" }]);
    running.shim.update(&running.id, &json!({ "devices": rules, "cpu": { "shares": 512 } })).expect("an update");
    assert_eq!(running.exec("e", "echo yes > /dev/null && echo yes"), (0, "yes\n".to_owned()));
    running.end();
}

#[test]
fn on_v2_a_limit_with_swap_is_never_lost() {
    if !only_v2() {
        return;
    }
    assert_refused(&[("linux.resources.memory", json!({ "swap": 64 << 20 }), "memory.swap")]);
    let host = Host::new();
    let containerd = host.containerd();
    let running = limited(&containerd, "memory", json!({ "limit": 64 << 20, "swap": 96 << 20 }));
    let swap = |running: &Running<'_>| running.cgroup_file("memory", "memory.swap.max");
    assert_eq!(swap(&running), (32 << 20).to_string());
    running.shim.update(&running.id, &json!({ "memory": { "swap": 80 << 20 } })).expect("an update");
    assert_eq!(swap(&running), (16 << 20).to_string(), "memory and swap together");
    let less = running.shim.update(&running.id, &json!({ "memory": { "swap": 32 << 20 } }));
    assert!(less.expect_err("less than memory alone").message.contains("swap"));
    assert_eq!(swap(&running), (16 << 20).to_string());
    running.end();
}
