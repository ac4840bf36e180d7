//! Devices: the allow-list, whatever node the task makes for itself.

use bowline_tests::Host;
use bowline_tests::harness::containerd::is_reference;
use bowline_tests::harness::{disk, only_v2, skip};
use serde_json::{Value, json};

use crate::fields::openable;
use crate::fields::refused::assert_unsupported;

#[test]
fn a_disk_of_the_host_cannot_be_opened_by_a_node_made_inside() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let root = host.busybox_root();
    let script = format!("mknod /disk b {major} {minor} && echo made; head -c 1 /disk; : >> /disk");
    let ran = host.task_of(["sh", "-c", &script]).rootfs(root.path()).run();
    assert_eq!(ran.out(), "made", "{ran}");
    assert_eq!(ran.err().matches("Operation not permitted").count(), 2, "neither for reading nor for writing\n{ran}");
}

#[test]
fn the_same_node_cannot_be_opened_by_an_exec() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let root = host.busybox_root();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    for flags in [["--env=A=1"], ["--timeout=50s"]] {
        let ran =
            task.exec_with(flags, &format!("rm -f /disk; mknod /disk b {major} {minor} && echo made; head -c 1 /disk"));
        assert_eq!(ran.out(), "made", "{ran}");
        assert!(ran.err().contains("Operation not permitted"), "{ran}");
    }
    task.end();
}

#[test]
fn a_node_made_inside_opens_neither_dev_mem_nor_dev_kmsg() {
    let host = Host::new();
    let root = host.busybox_root();
    std::fs::File::open("/dev/kmsg").expect("the host can");
    // /dev/mem and /dev/kmsg: what root could read the host by.
    let script = "for n in 1 11; do mknod /node$n c 1 $n && head -c 1 /node$n; done; true";
    let ran = host.task_of(["sh", "-c", script]).rootfs(root.path()).run();
    assert_eq!((ran.out(), ran.err().matches("Operation not permitted").count()), (String::new(), 2), "{ran}");
}

#[test]
fn the_usual_devices_work() {
    let host = Host::new();
    let root = host.busybox_root();
    let script = "echo x > /dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c && \
                  head -c 4 /dev/random | wc -c; echo x > /dev/full; for d in tty ptmx stdin stdout stderr fd; do ls -d /dev/$d; done";
    let ran = host.task_of(["sh", "-c", script]).rootfs(root.path()).run();
    ran.assert_says("4\n4\n4\n/dev/tty\n/dev/ptmx\n/dev/stdin\n/dev/stdout\n/dev/stderr\n/dev/fd");
    assert!(ran.err().contains("No space left on device"), "{ran}");
}

#[test]
fn a_device_that_was_asked_for_can_be_opened_as_far_as_asked() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let root = host.busybox_root();
    let node = host.work().join("disk-node");
    let device = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::BlockDevice, 0o600.into(), device)
        .expect("root may");
    let script = "head -c 1 /dev/mine > /tmp/byte && echo read; : >> /dev/mine";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{script}']\ndevices = [{{path = '/dev/mine', host_path = '{}', access = 'r'}}]",
        node.display()
    );
    let ran = host.described(&toml).rootfs(root.path()).run();
    assert_eq!(ran.out(), "read", "{ran}");
    assert!(ran.err().contains("Operation not permitted"), "not for writing\n{ran}");
}

#[test]
fn a_task_has_no_device_but_the_usual_ones() {
    let host = Host::new();
    let ran = host.task("find /dev -type b; find /dev -type c | sort").run();
    let devices = ["full", "null", "pts/ptmx", "random", "tty", "urandom", "zero"].map(|name| format!("/dev/{name}"));
    ran.assert_says(&devices.join("\n"));
}

/// A rule of a `config.json` for character devices, where -1 is every number.
fn rule(allow: bool, major: i64, minor: i64) -> Value {
    json!({ "allow": allow, "type": "c", "major": major, "minor": minor, "access": "rwm" })
}

/// A rule for all devices.
fn all(allow: bool) -> Value {
    json!({ "allow": allow, "access": "rwm" })
}

/// What a container can open of the control of loop devices (10:237), the host's console (5:1) and its null device, if
/// all of these can be.
fn can_be_opened(devices: &str) -> String {
    let there = |device: &&str| *device == "null" || std::fs::File::open(format!("/dev/{device}-control")).is_ok();
    devices.split(' ').filter(there).collect::<Vec<_>>().join(" ")
}

/// A denial that cgroup v1 cannot express beside what is allowed: it is refused by its place there, and on v2 the last
/// rule that fits a device counts.
#[track_caller]
fn assert_kept_or_refused(rules: &Value, denial: usize, opened: &str) {
    if only_v2() {
        return assert_eq!(openable(rules), can_be_opened(opened), "{rules}");
    }
    let field = format!("linux.resources.devices[{denial}]");
    assert_unsupported(&[("linux.resources.devices", rules.clone(), &field)]);
}

#[test]
fn a_denial_of_a_part_of_what_is_allowed_is_never_lost() {
    assert_kept_or_refused(&json!([all(false), rule(true, 10, -1), rule(false, 10, 237)]), 2, "null");
    assert_kept_or_refused(&json!([all(false), rule(true, -1, -1), rule(false, 10, -1), rule(false, 5, 1)]), 2, "null");
    // The place is that in the configuration, without what is put beside it.
    assert_kept_or_refused(&json!([rule(true, 10, -1), rule(false, 10, 237)]), 1, "null");
}

#[test]
fn a_part_of_what_is_denied_is_never_denied_in_silence() {
    let rules = json!([all(true), rule(false, 5, 1), rule(false, 10, -1), rule(true, 10, 237)]);
    assert_kept_or_refused(&rules, 2, "loop null");
    // Every container may open its null device.
    assert_kept_or_refused(&json!([all(true), rule(false, 5, 1), rule(false, 1, -1)]), 2, "loop null");
}

#[test]
fn a_denial_takes_back_all_that_was_allowed_before() {
    let with = |last: Value| json!([all(false), rule(true, 10, 237), last]);
    if !is_reference() {
        // runc before 1.2 leaves it allowed.
        assert_eq!(openable(&with(rule(false, -1, -1))), "null");
        assert_eq!(openable(&with(rule(false, 10, -1))), "null");
    }
    assert_eq!(openable(&with(rule(false, 10, 237))), "null");
    assert_eq!(openable(&with(all(false))), "null");
    let again = json!([all(false), rule(true, 10, 237), rule(false, 10, -1), rule(true, 10, 237)]);
    assert_eq!(openable(&again), can_be_opened("loop null"));
}

#[test]
fn no_denial_takes_away_a_device_that_every_container_has() {
    let listed = json!([all(false), rule(true, 1, 3), all(false)]);
    assert_eq!(openable(&listed), "null");
    assert_eq!(openable(&json!([all(true), rule(false, 1, 3), rule(false, 5, 1)])), can_be_opened("loop null"));
}
