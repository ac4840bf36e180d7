//! Fields of a configuration that no other test looks at: what the kernel shows inside a container that has them.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Stdio, is_reference};
use bowline_tests::harness::{Trace, hierarchy, lacks, namespace_of, only_v2, skip};
use serde_json::json;

use crate::fields::refused::reference_fails;
use crate::fields::{has_realtime_left, said, said_with};

#[test]
fn a_process_is_as_the_configuration_says() {
    let script = "id -u; id -g; id -G; umask; pwd; echo $A; busybox cat /proc/self/oom_score_adj; \
                  ulimit -Sn; ulimit -Hn; busybox grep -e NoNewPrivs -e Cap /proc/self/status | busybox cut -f2; uname -m";
    let said = said_with(script, |config| {
        let process = &mut config["process"];
        process["user"] = json!({ "uid": 1234, "gid": 2345, "umask": 0o027, "additionalGids": [3456] });
        process["cwd"] = json!("/tmp");
        process["env"].as_array_mut().expect("a list").push(json!("A=b c"));
        process["oomScoreAdj"] = json!(321);
        process["noNewPrivileges"] = json!(false);
        process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 100, "hard": 200 }]);
        process["capabilities"] = json!({
            "bounding": ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SETUID"],
            "permitted": ["CAP_CHOWN", "CAP_KILL"],
            "inheritable": ["CAP_CHOWN"],
            "effective": ["CAP_CHOWN"],
            "ambient": ["CAP_CHOWN"],
        });
    });
    let expected = "1234\n2345\n2345 3456\n0027\n/tmp\nb c\n321\n100\n200\n\
                    0000000000000001\n0000000000000001\n0000000000000001\n00000000000020a1\n0000000000000001\n0\nx86_64";
    assert_eq!(said, expected.replace("x86_64", std::env::consts::ARCH));
}

#[test]
fn a_process_is_scheduled_as_the_configuration_says() {
    if reference_fails("runc 1.1 knows neither") {
        return;
    }
    let script = "busybox cut -d ' ' -f 19,41 /proc/self/stat; busybox ionice";
    let batch = said_with(script, |config| {
        config["process"]["ioPriority"] = json!({ "class": "IOPRIO_CLASS_BE", "priority": 6 });
        config["process"]["scheduler"] = json!({ "policy": "SCHED_BATCH", "nice": 5 });
    });
    assert_eq!(batch, "5 3\nbest-effort: prio 6");
    let own = said_with("read line < /proc/self/stat; set -- $line; shift 40; echo $1", |config| {
        config["process"]["scheduler"] = json!({ "policy": "SCHED_DEADLINE", "flags": ["SCHED_FLAG_RECLAIM"],
                    "runtime": 1000000, "deadline": 20000000, "period": 30000000 });
    });
    assert_eq!(own, "6");
    deadlines_are_those_of_the_configuration();
    if only_v2() || !has_realtime_left() {
        return;
    }
    let realtime = said_with("busybox cut -d ' ' -f 40,41 /proc/self/stat", |config| {
        config["process"]["scheduler"] = json!({ "policy": "SCHED_FIFO", "priority": 3 });
        // A new cgroup has no time for it, and only the root has some to give.
        let path = config["linux"]["cgroupsPath"].as_str().and_then(|path| path.rsplit('/').next()).expect("a path");
        config["linux"]["cgroupsPath"] = json!(format!("/{path}"));
        config["linux"]["resources"]["cpu"] = json!({ "realtimeRuntime": 2000, "realtimePeriod": 1000000 });
    });
    assert_eq!(realtime, "3 1");
}

fn deadlines_are_those_of_the_configuration() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&["/bin/busybox", "sleep", "1000"]).edit(|config| {
        config["process"]["scheduler"] = json!({ "policy": "SCHED_DEADLINE", "flags": ["SCHED_FLAG_RESET_ON_FORK"],
                    "runtime": 1000000, "deadline": 20000000, "period": 30000000 });
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let seen = Command::new("chrt").args(["--pid", &running.pid.to_string()]).output().expect("chrt is installed");
    let seen = String::from_utf8(seen.stdout).expect("text");
    for expected in ["SCHED_DEADLINE|SCHED_RESET_ON_FORK", "1000000/20000000/30000000"] {
        assert!(seen.contains(expected), "{seen}");
    }
    running.end();
}

#[test]
fn devices_are_there_without_a_mount_at_dev() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "for d in null zero full random urandom tty; do test -c /dev/$d && echo $d; done; \
                  readlink /dev/fd; echo x > /dev/null && echo written";
    let bundle = containerd.bundle().script(script).edit(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| !mount["destination"].as_str().expect("a path").starts_with("/dev"));
    });
    assert_eq!(said(&containerd, &bundle), "null\nzero\nfull\nrandom\nurandom\ntty\n/proc/self/fd\nwritten");
}

#[test]
fn an_exec_runs_on_the_cpus_that_it_is_given() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 does not know them") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    let mut process = running.bundle.process(&["/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"]);
    process["execCPUAffinity"] = json!({ "initial": "0", "final": "0, 0" });
    running.shim.exec(&running.id, "e", &process, &io).expect("added");
    running.shim.start(&running.id, "e").expect("started");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!(stdout.to_end(), "Cpus_allowed_list:\t0\n");
    running.end();
}

#[test]
fn names_and_sysctls_are_as_the_configuration_says() {
    if reference_fails("runc 1.1 knows no domainname") {
        return;
    }
    let script = "hostname; cat /proc/sys/kernel/domainname /proc/sys/kernel/msgmax; cat /etc/passwd | busybox wc -c";
    let said = said_with(script, |config| {
        config["hostname"] = json!("knot");
        config["domainname"] = json!("example.org");
        config["linux"]["sysctl"] = json!({ "kernel.msgmax": "4321" });
        config["linux"]["maskedPaths"] = json!(["/etc/passwd"]);
    });
    assert_eq!(said, "knot\nexample.org\n4321\n0");
}

#[test]
fn a_read_only_root_and_paths_cannot_be_written() {
    let script = "for file in /tmp/x /x; do (: >> $file) 2>&1 | grep -c Read-only; done; true";
    let path = said_with(script, |config| config["linux"]["readonlyPaths"] = json!(["/tmp"]));
    assert_eq!(path, "1\n0");
    let unset = said_with(script, |config| {
        config["linux"]["readonlyPaths"] = json!([""]);
        config["linux"]["maskedPaths"] = json!([""]);
    });
    assert_eq!(unset, "0\n0");
    let root = said_with(script, |config| config["root"]["readonly"] = json!(true));
    assert_eq!(root, "1\n1");
}

#[test]
fn a_personality_is_another_machine() {
    if !cfg!(target_arch = "x86_64") || reference_fails("runc 1.1 does not know it") {
        return;
    }
    let said = said_with("uname -m", |config| config["linux"]["personality"] = json!({ "domain": "LINUX32" }));
    assert_eq!(said, "i686");
}

#[test]
fn the_propagation_of_the_root_is_what_the_configuration_says() {
    if reference_fails("runc shares the root only where the host does") {
        return;
    }
    let script = "grep '^[0-9]* [0-9]* [0-9:]* [^ ]* / ' /proc/self/mountinfo >/tmp/root; \
                  busybox grep -c shared: /tmp/root; busybox grep -c master: /tmp/root; true";
    // Shared is among a group of its own: nothing of the host's reaches it.
    for (name, expected) in [("private", "0\n0"), ("shared", "1\n0")] {
        let said = said_with(script, |config| {
            config["linux"]["rootfsPropagation"] = json!(name);
            let tmpfs = json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" });
            config["mounts"].as_array_mut().expect("a list").push(tmpfs);
        });
        assert_eq!(said, expected, "{name}");
    }
}

/// `monotonic` and `boottime`, each with its seconds and nanoseconds.
const OFFSETS: &str = "cat /proc/self/timens_offsets | busybox awk '{print $1, $2, $3}'";

#[test]
fn a_time_namespace_has_the_offsets_of_the_configuration() {
    if reference_fails("runc 1.1 knows no time namespaces") {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let offsets =
        json!({ "monotonic": { "secs": 7881, "nanosecs": 2_718_281 }, "boottime": { "secs": 1337, "nanosecs": 3 } });
    for users in [false, true] {
        let mut bundle =
            containerd.bundle().script(&format!("{OFFSETS}; busybox cut -d . -f 1 /proc/uptime; sleep 1000"));
        if users {
            bundle = bundle.with_users();
        }
        let bundle = bundle.edit(|config| {
            let linux = &mut config["linux"];
            linux["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "time" }));
            linux["timeOffsets"] = offsets.clone();
        });
        let io = bundle.fifos("init");
        let running = containerd.run_with(bundle, &io);
        let expected = "monotonic 7881 2718281\nboottime 1337 3\n";
        running.stdout.wait_for(expected);
        // The shim's own clocks are the host's, and an exec has the container's.
        assert_eq!(namespace_of(running.shim.pid(), "time"), namespace_of(std::process::id().cast_signed(), "time"));
        assert_eq!(running.exec("e", OFFSETS), (0, expected.to_owned()));
        assert_ne!(namespace_of(running.pid, "time"), namespace_of(running.shim.pid(), "time"));
        let joined = said_with(OFFSETS, |config| {
            let path = format!("/proc/{}/ns/time", running.pid);
            let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
            all.push(json!({ "type": "time", "path": path }));
        });
        assert_eq!(joined, expected.trim_end());
        running.end();
    }
    let none = said_with(OFFSETS, |config| {
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "time" }));
    });
    assert_eq!(none, "monotonic 0 0\nboottime 0 0");
}

#[test]
fn the_memory_policy_is_the_one_of_the_configuration() {
    if reference_fails("runc 1.1 knows no memory policies") {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let policy = "busybox head -n 1 /proc/self/numa_maps | busybox cut -d ' ' -f 2";
    for (wanted, seen) in [
        (json!({ "mode": "MPOL_INTERLEAVE", "nodes": "0" }), "interleave:0"),
        (json!({ "mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"] }), "bind=static:0"),
        (json!({ "mode": "MPOL_DEFAULT" }), "default"),
    ] {
        let bundle = containerd.bundle().script(&format!("{policy}; sleep 1000"));
        let bundle = bundle.edit(|config| config["linux"]["memoryPolicy"] = wanted.clone());
        let io = bundle.fifos("init");
        let running = containerd.run_with(bundle, &io);
        running.stdout.wait_for(&format!("{seen}\n"));
        assert_eq!(running.exec("e", policy), (0, format!("{seen}\n")), "{wanted}");
        running.end();
    }
}

#[test]
fn a_destination_that_names_the_root_on_the_host_is_inside_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("cat /mnt/of-the-root/file");
    let source = host.work().join("source");
    fs::create_dir(&source).expect("ours");
    fs::write(source.join("file"), "text").expect("ours");
    let inside = bundle.rootfs().join("mnt/of-the-root");
    let bind = json!({ "destination": inside, "type": "bind", "source": source, "options": ["rbind"] });
    assert_eq!(said(&containerd, &bundle.mount(&bind)), "text");
}

#[test]
fn a_mount_is_what_the_configuration_says() {
    let host = Host::new();
    let containerd = host.containerd();
    let source = host.work().join("source");
    fs::create_dir(&source).expect("ours");
    fs::write(source.join("file"), "text").expect("ours");
    let script = "cat /mnt/file; grep -e ' /mnt ' -e ' /tmp ' /proc/mounts | busybox cut -d ' ' -f 2-4";
    let bundle = containerd.bundle().script(script);
    let bind = json!({ "destination": "/mnt", "type": "none", "source": source, "options": ["rbind", "ro", "nosuid"] });
    let tmpfs = json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nodev", "size=64k"] });
    let said = said(&containerd, &bundle.mount(&bind).mount(&tmpfs));
    let (text, mounts) = said.split_at(4);
    assert_eq!(text, "text");
    assert!(mounts.contains("/mnt ") && mounts.contains("ro,nosuid"), "{said}");
    assert!(mounts.contains("/tmp tmpfs ") && mounts.contains("nodev") && mounts.contains("size=64k"), "{said}");
}

#[test]
fn a_mount_s_owners_are_mapped() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 does not know them") {
        return;
    }
    let containerd = host.containerd();
    let source = host.work().join("owned");
    fs::create_dir(&source).expect("ours");
    fs::write(source.join("file"), "").expect("ours");
    chown(source.join("file"), Some(10), Some(11)).expect("root may");
    let bundle = containerd.bundle().script("stat -c '%u %g' /mnt/file");
    let map = |host: u32| json!([{ "containerID": 0, "hostID": host, "size": 100 }]);
    let bundle = bundle.mount(&json!({
        "destination": "/mnt", "type": "bind", "source": source, "options": ["rbind"],
        "uidMappings": map(500), "gidMappings": map(700),
    }));
    if lacks("fsopen") || lacks("mount_setattr") {
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err("refused");
        assert!(failure.message.contains("cannot be idmapped by this kernel"), "{failure:?}");
        shim.over();
        return host.assert_nothing_left();
    }
    assert_eq!(said(&containerd, &bundle), "510 711");
}

#[test]
fn a_user_namespace_maps_what_the_configuration_says() {
    let script = "cat /proc/self/uid_map /proc/self/gid_map | busybox awk '{print $1, $2, $3}'";
    let said = said_with(script, |config| {
        let linux = &mut config["linux"];
        linux["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "user" }));
        linux["uidMappings"] = json!([{ "containerID": 0, "hostID": 100000, "size": 1000 }]);
        linux["gidMappings"] = json!([{ "containerID": 0, "hostID": 200000, "size": 2000 }]);
    });
    assert_eq!(said, "0 100000 1000\n0 200000 2000");
}

#[test]
fn a_namespace_is_new_or_the_one_at_its_path() {
    let host = Host::new();
    let containerd = host.containerd();
    let first = containerd.run("sleep 1000");
    let script = "for kind in ipc uts; do busybox readlink /proc/self/ns/$kind; done";
    let bundle = containerd.bundle().script(script).without_namespace("ipc");
    let path = format!("/proc/{}/ns/ipc", first.pid);
    let bundle = bundle.edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        all.push(json!({ "type": "ipc", "path": path }));
    });
    let said = said(&containerd, &bundle);
    let [ipc, uts] =
        ["ipc", "uts"].map(|kind| fs::read_link(format!("/proc/{}/ns/{kind}", first.pid)).expect("it runs"));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], ipc.to_str().expect("ASCII"));
    assert_ne!(lines[1], uts.to_str().expect("ASCII"));
    first.end();
}

#[test]
fn limits_are_those_of_the_configuration() {
    let host = Host::new();
    let containerd = host.containerd();
    let disk = bowline_tests::harness::disk();
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        let resources = &mut config["linux"]["resources"];
        resources["memory"] = json!({
            "limit": 64 << 20, "reservation": 32 << 20, "swap": 96 << 20, "checkBeforeUpdate": true
        });
        resources["cpu"] = json!({ "shares": 512, "quota": 25000, "period": 50000, "cpus": "0", "mems": "0" });
        resources["pids"] = json!({ "limit": 17 });
        if let Some((major, minor)) = disk {
            let rate = |rate: u64| json!([{ "major": major, "minor": minor, "rate": rate }]);
            resources["blockIO"] = json!({
                "throttleReadBpsDevice": rate(1 << 20), "throttleWriteBpsDevice": rate(2 << 20),
                "throttleReadIOPSDevice": rate(30), "throttleWriteIOPSDevice": rate(40),
            });
        }
        if !only_v2() {
            resources["memory"]["swappiness"] = json!(7);
        } else {
            resources["unified"] = json!({ "memory.high": "50331648" });
        }
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let mut expected = if only_v2() {
        vec![
            ("memory", "memory.max", "67108864"),
            ("memory", "memory.low", "33554432"),
            ("memory", "memory.swap.max", "33554432"),
            ("memory", "memory.high", "50331648"),
            ("cpu", "cpu.max", "25000 50000"),
        ]
    } else {
        vec![
            ("memory", "memory.limit_in_bytes", "67108864"),
            ("memory", "memory.soft_limit_in_bytes", "33554432"),
            ("memory", "memory.memsw.limit_in_bytes", "100663296"),
            ("memory", "memory.swappiness", "7"),
            ("cpu", "cpu.shares", "512"),
            ("cpu", "cpu.cfs_quota_us", "25000"),
            ("cpu", "cpu.cfs_period_us", "50000"),
        ]
    };
    expected.extend([("pids", "pids.max", "17"), ("cpuset", "cpuset.cpus", "0"), ("cpuset", "cpuset.mems", "0")]);
    for (controller, file, value) in expected {
        assert_eq!(running.cgroup_file(controller, file), value, "{file}");
    }
    match disk {
        None => skip("this host has no disk"),
        Some((major, minor)) if only_v2() => {
            let all = format!("{major}:{minor} rbps=1048576 wbps=2097152 riops=30 wiops=40");
            assert_eq!(running.cgroup_file("io", "io.max"), all);
        }
        Some((major, minor)) => {
            for (file, rate) in [("read_bps", 1 << 20), ("write_bps", 2 << 20), ("read_iops", 30), ("write_iops", 40)] {
                let file = format!("blkio.throttle.{file}_device");
                assert_eq!(running.cgroup_file("blkio", &file), format!("{major}:{minor} {rate}"));
            }
        }
    }
    running.end();
}

#[test]
fn the_weight_of_a_disk_is_set_or_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    let (major, minor) = bowline_tests::harness::disk().unwrap_or((8, 0));
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        let device = json!([{ "major": major, "minor": minor, "weight": 300 }]);
        config["linux"]["resources"]["blockIO"] = json!({ "weight": 500, "weightDevice": device });
    });
    let shim = containerd.start(&bundle);
    match shim.create(&bundle, &Stdio::null()) {
        // Which schedulers have weights, and for which disks, is the kernel's business.
        Err(failure) => {
            let of_the_host = failure.code == Code::FAILED_PRECONDITION || failure.code == Code::INVALID_ARGUMENT;
            assert!(is_reference() || of_the_host && failure.message.contains("weight"), "{failure:?}");
            shim.over();
        }
        Ok(_) => {
            let folder = hierarchy("blkio").join(&containerd.cgroups()[1..]).join(&bundle.id);
            let read = |name: &&str| fs::read_to_string(folder.join(name)).ok();
            // The scheduler's own file, else the kernel's, which counts to 10000.
            let files: [_; 2] = if only_v2() {
                [("io.bfq.weight", "default 500"), ("io.weight", "default 4950")]
            } else {
                [("blkio.bfq.weight", "500"), ("blkio.weight", "500")]
            };
            let found = files.iter().find_map(|(name, expected)| read(name).map(|text| (text, *expected)));
            let (text, expected) = found.expect("one of them is there");
            assert_eq!(text.lines().next(), Some(expected), "{text}");
            shim.end(&bundle.id);
        }
    }
}

#[test]
fn the_cgroup_is_at_its_path() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pids = running.cgroup_file("pids", "cgroup.procs");
    assert!(pids.lines().any(|pid| pid == running.pid.to_string()), "{pids}");
    running.end();
    // As runc cleans it.
    let script = "busybox sed -n 's/.*:pids:\\|^0:://p' /proc/self/cgroup | busybox head -n 1";
    for odd in ["/OWN", "//OWN", "/OWN/", "/./OWN"] {
        let said = said_with(script, |config| {
            let own = config["linux"]["cgroupsPath"].as_str().expect("a path").to_owned();
            config["linux"]["cgroupsPath"] = json!(odd.replace("OWN", own.trim_start_matches('/')));
            let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
            all.retain(|namespace| namespace["type"] != "cgroup");
        });
        assert!(said.len() > 1 && !said.contains("//") && !said.ends_with('/'), "{odd}: {said}");
    }
}

#[test]
fn a_system_call_gets_the_answer_of_its_rule() {
    if reference_fails("runc 1.1 knows no flags") {
        return;
    }
    let script = "mkdir /tmp/a 2>&1 | grep -o 'Function not implemented'; busybox chmod 4755 /tmp 2>&1 | grep -o 'No data'; \
                  busybox chmod 755 /tmp && echo yes; grep Seccomp: /proc/self/status | busybox cut -f2";
    let said = said_with(script, |config| {
        let sets =
            |index: u32| json!([{ "index": index, "value": 0o4000, "valueTwo": 0o4000, "op": "SCMP_CMP_MASKED_EQ" }]);
        let no_data = |name: &str, mode: u32| json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 61, "args": sets(mode) });
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
            "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [
                { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": rustix::io::Errno::NOSYS.raw_os_error() },
                no_data("chmod", 1),
                no_data("fchmodat", 2),
            ],
        });
    });
    assert_eq!(said, "Function not implemented\nNo data\nyes\n2");
}

#[test]
fn a_filter_is_loaded_with_the_flags_of_the_configuration() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 knows no flags") {
        return;
    }
    let containerd = host.containerd();
    let (log, spec_allow) = ("SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW");
    // There is one thread, and nothing to synchronise.
    for (flag, loaded) in [(log, log), (spec_allow, spec_allow), ("SECCOMP_FILTER_FLAG_TSYNC", "0")] {
        let bundle = containerd.bundle().args(&["/bin/true"]).edit(|config| {
            config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW", "flags": [flag],
                "syscalls": [{ "names": ["mkdir"], "action": "SCMP_ACT_ERRNO" }] });
        });
        let shim = containerd.start(&bundle);
        let trace = Trace::of(&host, shim.pid(), ["-f", "-e", "trace=seccomp"]);
        shim.run(&bundle, &Stdio::null());
        shim.status_at_end(&bundle.id, "");
        let trace = trace.end();
        assert!(trace.contains(&format!("seccomp(SECCOMP_SET_MODE_FILTER, {loaded}, ")), "{flag}: {trace}");
        shim.end(&bundle.id);
    }
}

#[test]
fn a_listener_gets_the_filter() {
    let host = Host::new();
    let containerd = host.containerd();
    let path = host.work().join("listener");
    let listener = UnixListener::bind(&path).expect("a short path");
    // Without room for a descriptor the kernel closes it: then nobody answers, and the call is not there.
    let told = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the shim connects");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("JSON");
        text
    });
    let script = "mkdir /tmp/a 2>&1 | grep -o 'Function not implemented'";
    let bundle = containerd.bundle().script(script).edit(|config| {
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": path, "listenerMetadata": "of the test",
            "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY" }],
        });
    });
    assert_eq!(said(&containerd, &bundle), "Function not implemented");
    let told: serde_json::Value = serde_json::from_str(&told.join().expect("it ends")).expect("JSON");
    assert_eq!((&told["metadata"], &told["state"]["id"]), (&json!("of the test"), &json!(bundle.id)));
}

#[test]
fn hooks_run_at_all_their_points_with_arguments_and_environment() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("true");
    let said = bundle.path.join("said");
    let hook = |name: &str, file: &str| {
        let script = format!("busybox cat > /dev/null; echo $0 $A >> {file}");
        json!([{ "path": "/bin/busybox", "args": ["sh", "-c", script, name], "env": ["A=b", "PATH=/bin:/usr/bin"], "timeout": 20 }])
    };
    let file = said.to_str().expect("ASCII");
    let bundle = bundle.edit(|config| {
        config["hooks"] = json!({
            "prestart": hook("prestart", file), "createRuntime": hook("createRuntime", file),
            "createContainer": hook("createContainer", file), "startContainer": hook("startContainer", "/said"),
            "poststart": hook("poststart", file), "poststop": hook("poststop", file),
        });
    });
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    shim.status_at_end(&bundle.id, "");
    let inside = bundle.rootfs().join("said");
    shim.end(&bundle.id);
    let told = fs::read_to_string(&said).expect("hooks write it");
    assert_eq!(told, "prestart b\ncreateRuntime b\ncreateContainer b\npoststart b\npoststop b\n");
    assert_eq!(fs::read_to_string(inside).expect("a hook writes it"), "startContainer b\n");
}

#[test]
fn a_hook_that_takes_too_long_fails_create() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("true").edit(|config| {
        config["hooks"] =
            json!({ "createRuntime": [{ "path": "/bin/busybox", "args": ["sleep", "1000"], "timeout": 1 }] });
    });
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect_err("a hook that never ends");
    shim.over();
}
