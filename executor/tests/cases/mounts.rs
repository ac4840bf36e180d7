//! Mounts: cgroups, propagation, owners, recursive options.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::{Test, is_reference, lacks_mount_fds};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("a_bundle_runs", runs),
    ("a_container_sees_its_own_cgroups", cgroups),
    ("a_read_only_cgroup_mount_is_read_only_in_all_its_parts", cgroups_read_only),
    ("a_tmpfs_begins_with_what_it_hides", tmpcopyup),
    ("what_is_asked_for_recursively_holds_below", recursively),
    ("owners_are_shown_by_a_mounts_own_map", idmapped),
    ("owners_are_shown_by_the_map_of_the_user_namespace", idmapped_as_the_container),
    ("an_idmapped_mount_that_cannot_be_is_refused", idmapped_badly),
    ("the_root_is_shared_or_not_as_asked", root_propagation),
    ("what_a_container_mounts_shows_on_the_host_where_asked", shared_bind),
    ("a_user_namespace_without_its_own_network_has_the_hosts_sys", hosts_sys),
    ("destinations_stay_inside", destinations),
    ("paths_are_masked_and_read_only", masked),
    ("devices_have_owner_and_mode", devices),
    ("a_message_queue_is_mounted", mqueue),
];

fn runs() {
    assert_eq!(Test::new("echo hello").run().said(), "hello");
    assert_eq!(Test::new("echo hello; id -u").in_user_namespace().run().said(), "hello\n0");
}

const CGROUP: [&str; 4] = ["nosuid", "noexec", "nodev", "relatime"];

fn with_cgroups(script: &str, namespace: bool, more: &[&str]) -> Test {
    let test = Test::new(script).mount("/sys/fs/cgroup", "cgroup", "cgroup", &[&CGROUP[..], more].concat());
    if namespace { test.add("/linux/namespaces", json!({"type": "cgroup"})) } else { test }
}

fn is_v1() -> bool {
    Path::new("/sys/fs/cgroup/freezer").exists()
}

fn cgroups() {
    if !is_v1() {
        let script =
            "cat /sys/fs/cgroup/cgroup.procs | grep -c 1; grep ' /sys/fs/cgroup ' /proc/mounts | grep -c cgroup2";
        for test in [with_cgroups(script, true, &[]), with_cgroups(script, true, &[]).in_user_namespace()] {
            assert_eq!(test.run().said(), "1\n1");
        }
        return;
    }
    // Its own cgroup is the top of each, with no process of others, which would
    // be shown as 0, and without what the root cgroup alone has.
    let script = "cd /sys/fs/cgroup; for at in freezer memory; do
        grep -c '^1$' $at/tasks; grep -c '^0$' $at/tasks; [ -e $at/release_agent ] && echo root; done; ls";
    let plain = with_cgroups(script, false, &[]).run();
    let names = plain.said().strip_prefix("1\n0\n1\n0\n").unwrap_or_else(|| panic!("{plain:?}"));
    for name in ["freezer", "memory", "systemd", "devices"] {
        assert!(names.lines().any(|line| line == name), "{name} of {names}");
    }
    for test in [
        with_cgroups(script, true, &[]),
        with_cgroups(script, true, &[]).in_user_namespace(),
        with_cgroups(script, false, &[]).in_user_namespace(),
    ] {
        assert_eq!(test.run().said(), plain.said());
    }
}

fn cgroups_read_only() {
    let script = "mkdir() { busybox mkdir $1 2>/dev/null && echo made $1; }
        for at in /sys/fs/cgroup /sys/fs/cgroup/freezer; do mkdir $at/below; done; echo done";
    for namespace in [false, true] {
        if is_reference() && is_v1() {
            // Its tmpfs stays writable.
            continue;
        }
        let ended = with_cgroups(script, namespace, &["ro"]).run();
        assert_eq!(ended.said(), "done");
    }
}

fn tmpcopyup() {
    let test =
        Test::new("stat -c '%a %u' /mnt /mnt/a /mnt/a/file; cat /mnt/a/file; echo new >/mnt/a/file; cat /mnt/a/file");
    fs::create_dir(test.root("mnt/a")).expect("made");
    fs::write(test.root("mnt/a/file"), "old\n").expect("written");
    chown(test.root("mnt/a/file"), Some(7), Some(8)).expect("ours");
    let test = test.mount("/mnt", "tmpfs", "tmpfs", &["nosuid", "tmpcopyup"]);
    assert_eq!(test.run().said(), "755 0\n755 0\n644 7\nold\nnew");
    assert_eq!(fs::read_to_string(test.root("mnt/a/file")).expect("there"), "old\n", "the image's stays");
    let test = Test::new("touch /mnt/x 2>/dev/null || echo refused");
    fs::write(test.root("mnt/file"), "old\n").expect("written");
    assert_eq!(test.mount("/mnt", "tmpfs", "tmpfs", &["ro", "tmpcopyup"]).run().said(), "refused");
}

/// A folder of the bundle with a tmpfs at `below` in it, until it is dropped.
struct Nested(std::path::PathBuf);

impl Nested {
    fn new(test: &Test, name: &str) -> Nested {
        let at = test.path(name);
        fs::create_dir_all(at.join("below")).expect("made");
        let nested = Nested(at.join("below"));
        let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&nested.0).status();
        assert!(status.expect("it runs").success());
        nested
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn recursively() {
    let script = "for at in /mnt /mnt/below; do touch $at/x 2>/dev/null && echo $at; done;
        for o in nosuid nodev noexec; do grep ' /mnt/below ' /proc/mounts | grep -q $o && echo $o; done; echo .";
    for (options, expected) in [
        (&["rbind", "rw"][..], "/mnt\n/mnt/below\n."),
        (&["rbind", "ro"][..], "/mnt/below\n."),
        (&["rbind", "rro"][..], "."),
        (&["rbind", "rro", "rnosuid", "rnodev", "rnoexec"][..], "nosuid\nnodev\nnoexec\n."),
    ] {
        let test = Test::new(script);
        let nested = Nested::new(&test, "source");
        let source = test.path("source").display().to_string();
        let test = test.mount("/mnt", "bind", &source, options);
        let ended = test.run_beside();
        drop(nested);
        assert_eq!(ended.said(), expected, "{options:?}");
    }
}

fn owned(test: &Test) -> String {
    let source = test.path("owned");
    fs::create_dir(&source).expect("made");
    for (name, owner) in [("root", 0), ("ten", 10)] {
        fs::write(source.join(name), "").expect("written");
        chown(source.join(name), Some(owner), Some(owner)).expect("ours");
    }
    source.display().to_string()
}

const STAT: &str = "stat -c '%n %u %g' /mnt/root /mnt/ten";

fn idmapped() {
    if is_reference() || lacks_mount_fds() {
        return;
    }
    let test = Test::new(STAT);
    let source = owned(&test);
    let map = json!([{"containerID": 0, "hostID": 500, "size": 100}]);
    let mount = json!({"destination": "/mnt", "type": "bind", "source": source, "options": ["rbind"],
                       "uidMappings": map, "gidMappings": map});
    assert_eq!(test.add("/mounts", mount).run().said(), "/mnt/root 500 500\n/mnt/ten 510 510");
}

fn idmapped_as_the_container() {
    if is_reference() || lacks_mount_fds() {
        return;
    }
    for option in ["idmap", "ridmap"] {
        let test = Test::new(STAT);
        let source = owned(&test);
        let plain = Test::new(STAT).in_user_namespace().mount("/mnt", "bind", &source, &["rbind"]);
        assert_eq!(plain.run().said(), "/mnt/root 65534 65534\n/mnt/ten 65534 65534");
        let test = test.in_user_namespace().mount("/mnt", "bind", &source, &["rbind", option]);
        assert_eq!(test.run().said(), "/mnt/root 0 0\n/mnt/ten 10 10");
    }
}

fn idmapped_badly() {
    if is_reference() || lacks_mount_fds() {
        return;
    }
    let test = Test::new("true");
    let source = owned(&test);
    let without_maps = test.mount("/mnt", "bind", &source, &["rbind", "idmap"]).run();
    assert!(without_maps.error().starts_with("BadSpec: mount /mnt: "), "{without_maps:?}");
    let no_bind = Test::new("true").mount("/mnt", "tmpfs", "tmpfs", &["idmap"]).run();
    assert!(no_bind.error().contains("only a new bind"), "{no_bind:?}");
    let unmappable = Test::new("true").add(
        "/mounts",
        json!({"destination": "/mnt", "type": "bind", "source": "/proc",
        "options": ["bind"], "uidMappings": [{"containerID": 0, "hostID": 5, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 5, "size": 1}]}),
    );
    assert!(unmappable.run().error().starts_with("Unsupported: mount /mnt: "));
}

fn root_propagation() {
    let script = "grep ' / / ' /proc/self/mountinfo | grep -c shared: ; true";
    for (asked, shared) in
        [("", "0"), ("private", "0"), ("rslave", "0"), ("shared", "1"), ("rshared", "1"), ("unbindable", "0")]
    {
        let script = script.replace(" / / ", "^[0-9]* [0-9]* [0-9:]* [^ ]* / ");
        let test = Test::new(&script).set("/linux/rootfsPropagation", json!(asked));
        if is_reference() && !["", "private", "rslave"].contains(&asked) {
            // It does so with its own mounts' parents only.
            continue;
        }
        assert_eq!(test.run().said(), shared, "{asked}");
    }
    if !is_reference() {
        let test = Test::new("true").set("/linux/rootfsPropagation", json!("both"));
        assert!(test.run().error().contains("rootfsPropagation: both"));
    }
}

fn shared_bind() {
    if lacks_mount_fds() {
        let test = Test::new("true").mount("/mnt", "bind", "/tmp", &["rbind", "rshared"]);
        assert!(test.run().error().contains("shared with the host"));
        return;
    }
    // What it mounts goes with the mount namespace that is the host's here.
    for (option, seen) in [("rshared", true), ("rslave", false)] {
        let test = Test::new("mount -t tmpfs tmpfs /mnt/below && touch /mnt/below/mark");
        let nested = Nested::new(&test, "source");
        let inner = nested.0.join("below");
        fs::create_dir(&inner).expect("made");
        let status = Command::new("mount").arg("--make-shared").arg(&nested.0).status();
        assert!(status.expect("it runs").success());
        let source = nested.0.display().to_string();
        let test = test.mount("/mnt", "bind", &source, &["rbind", option]);
        let test = test.set("/linux/rootfsPropagation", json!("rshared"));
        let ended = test.run_beside();
        let there = inner.join("mark").exists();
        let _ = Command::new("umount").arg("-l").arg(&inner).stderr(std::process::Stdio::null()).status();
        drop(nested);
        ended.said();
        assert_eq!(there, seen, "{option}");
        test.assert_nothing_left();
    }
}

fn hosts_sys() {
    if is_reference() {
        return;
    }
    let mut test =
        Test::new("ls /sys/class/net | grep lo; touch /sys/x 2>/dev/null || echo refused").in_user_namespace();
    let namespaces = test.config["linux"]["namespaces"].as_array_mut().expect("a list");
    namespaces.retain(|namespace| namespace["type"] != "network");
    assert_eq!(test.run().said(), "lo\nrefused");
}

fn destinations() {
    let test = Test::new("cat /run/x /relative/x");
    symlink("/tmp", test.root("run")).expect("made");
    let source = owned(&test);
    fs::write(test.path("owned/x"), "here\n").expect("written");
    let test = test.mount("/run", "bind", &source, &["rbind", "ro"]).mount("relative", "bind", &source, &["bind"]);
    assert_eq!(test.run().said(), "here\nhere");
}

fn masked() {
    let script = "cat /etc/file; ls /mnt; touch /tmp/x 2>/dev/null || echo refused; cat /etc/plain";
    let test = Test::new(script)
        .set("/linux/maskedPaths", json!(["/etc/file", "/mnt", "/no/such/file", "/proc/kcore"]))
        .set("/linux/readonlyPaths", json!(["/tmp", "/no/such/folder"]));
    fs::write(test.root("etc/file"), "secret").expect("written");
    fs::write(test.root("mnt/secret"), "").expect("written");
    fs::write(test.root("etc/plain"), "plain").expect("written");
    assert_eq!(test.run().said(), "refused\nplain");
    let read_only = Test::new("touch /x 2>/dev/null || echo refused; touch /dev/x && echo made");
    assert_eq!(read_only.set("/root/readonly", json!(true)).run().said(), "refused\nmade");
}

fn devices() {
    let device =
        json!({"path": "/dev/mine", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640, "uid": 5, "gid": 6});
    let fifo = json!({"path": "/dev/pipe", "type": "p", "major": 0, "minor": 0, "fileMode": 0o600});
    let test = Test::new("stat -c '%a %u %g %t:%T %F' /dev/mine /dev/pipe");
    let test = test.set("/linux/devices", json!([device, fifo]));
    assert_eq!(test.run().said(), "640 5 6 1:3 character special file\n600 0 0 0:0 fifo");
}

fn mqueue() {
    let test = Test::new("grep -c ' /dev/mqueue mqueue ' /proc/mounts");
    let test = test.mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]);
    assert_eq!(test.run().said(), "1");
}
