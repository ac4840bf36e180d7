//! The process: what surrounds it, and what is refused.

use serde_json::json;

use crate::{Test, is_reference};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("names_are_those_of_the_configuration", names),
    ("sysctls_are_set_in_its_namespaces", sysctls),
    ("it_is_scheduled_as_asked", scheduling),
    ("it_sees_another_kind_of_linux", personality),
    ("what_is_not_inheritable_is_not_ambient", ambient),
    ("an_exec_runs_on_its_cpus", affinity),
    ("what_is_not_done_is_refused_by_name", refused),
];

fn names() {
    if is_reference() {
        return;
    }
    let test = Test::new("cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname");
    assert_eq!(test.set("/domainname", json!("example.org")).run().said(), "test\nexample.org");
}

fn sysctls() {
    let test = Test::new("cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax");
    let test = test.set("/linux/sysctl", json!({"net.ipv4.ip_forward": "1", "kernel.msgmax": "4096"}));
    assert_eq!(test.run().said(), "1\n4096");
    for key in ["vm.swappiness", "kernel.core_pattern", "net/../vm/swappiness"] {
        if is_reference() && key.contains("..") {
            // It would set the host's.
            continue;
        }
        let test = Test::new("true").set("/linux/sysctl", json!({key: "1"}));
        assert!(test.run().error().contains(key), "{key}");
    }
}

fn scheduling() {
    let script = "cut -d ' ' -f 41 /proc/self/stat; busybox ionice";
    let test = Test::new(&script.replace("cut", "busybox cut"))
        .set("/process/ioPriority", json!({"class": "IOPRIO_CLASS_BE", "priority": 6}))
        .set("/process/scheduler", json!({"policy": "SCHED_BATCH", "nice": 5}));
    if !is_reference() {
        assert_eq!(test.run().said(), "3\nbest-effort: prio 6");
    }
}

fn personality() {
    let test = Test::new("busybox uname -m").set("/linux/personality", json!({"domain": "LINUX32"}));
    if cfg!(target_arch = "x86_64") && !is_reference() {
        assert_eq!(test.run().said(), "i686");
    }
}

fn ambient() {
    let script = "grep -e CapAmb -e CapEff /proc/self/status";
    let caps = json!(["CAP_KILL", "CAP_CHOWN"]);
    let all =
        json!({"bounding": caps, "permitted": caps, "effective": caps, "ambient": caps, "inheritable": ["CAP_KILL"]});
    let user = json!({"uid": 1000, "gid": 1000});
    let test = Test::new(script).set("/process/capabilities", all.clone()).set("/process/user", user.clone());
    assert_eq!(test.run().said(), "CapEff:\t0000000000000020\nCapAmb:\t0000000000000020");
    let mut none = all;
    none["inheritable"] = json!([]);
    let test = Test::new(script).set("/process/capabilities", none).set("/process/user", user);
    assert_eq!(test.run().said(), "CapEff:\t0000000000000000\nCapAmb:\t0000000000000000");
}

fn affinity() {
    if is_reference() {
        return;
    }
    let test = Test::new("while ! [ -e /mnt/done ]; do busybox usleep 10000; done");
    let script = "grep Cpus_allowed_list /proc/self/status; touch /mnt/done";
    let mut process = test.config["process"].clone();
    process["args"] = json!(["sh", "-c", script]);
    process["execCPUAffinity"] = json!({"initial": "0", "final": "0"});
    let ended = test.exec(&process).run();
    assert_eq!(ended.said(), "Cpus_allowed_list:\t0");
}

fn refused() {
    if is_reference() {
        return;
    }
    for (pointer, value, name) in [
        ("/process/selinuxLabel", json!("u:r:t:s0"), "selinuxLabel"),
        ("/linux/mountLabel", json!("u:r:t:s0"), "mountLabel"),
        ("/linux/intelRdt", json!({"closID": "x"}), "intelRdt"),
        ("/linux/timeOffsets", json!({"monotonic": {"secs": 1}}), "timeOffsets"),
        ("/linux/memoryPolicy", json!({"mode": "MPOL_BIND", "nodes": "x"}), "memoryPolicy"),
        ("/process/apparmorProfile", json!("no-such-profile"), "apparmor"),
    ] {
        let ended = Test::new("true").set(pointer, value).run();
        assert!(ended.error().contains(name), "{ended:?}");
    }
    let unknown = Test::new("true").add("/linux/namespaces", json!({"type": "colour"})).run();
    assert!(unknown.error().starts_with("BadSpec") && unknown.error().contains("colour"), "{unknown:?}");
}
