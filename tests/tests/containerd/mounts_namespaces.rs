//! The mounts of a bundle whose mount namespace is joined or the host's, or whose users are not the host's.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::{Child, Command, Stdio};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, is_reference};
use bowline_tests::harness::{namespace_of, only_v2};
use serde_json::json;

use crate::containerd::mounts::{assert_says, bind, lacks_detached_mounts, refusal, text};

/// A process that holds namespaces, until it is dropped.
struct Holder(Child);

impl Holder {
    fn new(unshare: &[&str]) -> Holder {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", "echo; exec sleep 1000"]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("unshare");
        let mut stdout = child.stdout.take().expect("piped");
        let holder = Holder(child);
        // Once it has written, it is in its namespaces.
        assert_eq!(stdout.read(&mut [0]).expect("a line"), 1);
        holder
    }

    fn namespace(&self, kind: &str) -> String {
        format!("/proc/{}/ns/{kind}", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_mount_namespace_may_be_joined() {
    let host = Host::new();
    let containerd = host.containerd();
    let holder = Holder::new(&["--mount", "--propagation", "private"]);
    let path = holder.namespace("mnt");
    let namespace = fs::read_link(&path).expect("a process");
    let bundle = containerd.bundle().script("readlink /proc/self/ns/mnt; ls -d /etc/passwd /dev/null").edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        let mount = all.iter_mut().find(|namespace| namespace["type"] == "mount").expect("there is one");
        mount["path"] = json!(path);
    });
    assert_says(&containerd, &bundle, &format!("{}\n/dev/null\n/etc/passwd", namespace.display()));
    drop(holder);
}

#[test]
fn a_container_in_the_hosts_mount_namespace_leaves_no_mount() {
    let host = Host::new();
    if host.reference_fails("its mounts stay on the host") {
        return;
    }
    let containerd = host.containerd();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    let rootfs = |bundle: &Bundle| mounts().contains(bundle.rootfs().to_str().expect("ASCII"));
    let bundle = containerd.bundle().script("readlink /proc/self/ns/mnt; ls -d /etc/passwd /dev/null; sleep 1000");
    let bundle = bundle.without_namespace("mount");
    if lacks_detached_mounts() {
        let message = refusal(&containerd, &bundle);
        assert!(message.contains("detached mounts"), "{message}");
        return host.assert_nothing_left();
    }
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let own = namespace_of(std::process::id().cast_signed(), "mnt");
    running.stdout.wait_for(&format!("{own}\n/dev/null\n/etc/passwd\n"));
    assert_eq!(namespace_of(running.pid, "mnt"), own);
    assert!(!rootfs(&running.bundle), "{}", mounts());
    // An exec is in the container's root too.
    let mark = format!("of-{}", running.id);
    fs::write(running.bundle.rootfs().join(&mark), "").expect("the work folder is writable");
    let (status, seen) = running.exec("e", &format!("readlink /proc/self/ns/mnt; ls -d /{mark} /proc/self"));
    assert_eq!((status, seen), (0, format!("{own}\n/{mark}\n/proc/self\n")));
    running.end();
    host.assert_nothing_left();
    assert!(!mounts().contains(host.work().to_str().expect("ASCII")), "{}", mounts());
}

#[test]
fn without_a_mount_namespace_paths_are_masked_and_read_only() {
    if lacks_detached_mounts() {
        return;
    }
    let host = Host::new();
    if host.reference_fails("it refuses masked paths without a mount namespace") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().without_namespace("mount").edit(|config| {
        config["linux"]["maskedPaths"] = json!(["/proc/kcore", "/proc/keys"]);
        config["linux"]["readonlyPaths"] = json!(["/proc/sys"]);
        config["root"]["readonly"] = json!(true);
    });
    let script = "wc -c </proc/keys; touch /x 2>/dev/null || echo closed; \
                  echo x 2>/dev/null >/proc/sys/kernel/hostname || echo closed";
    assert_says(&containerd, &bundle.script(script), "0\nclosed\nclosed");
}

#[test]
fn the_hosts_mount_namespace_by_path_or_with_users_is_refused() {
    let host = Host::new();
    if host.reference_fails("it mounts there, and leaves that behind") {
        return;
    }
    let containerd = host.containerd();
    let namespace = |of: serde_json::Value| {
        containerd.bundle().script("true").without_namespace("mount").edit(|config| {
            config["linux"]["namespaces"].as_array_mut().expect("a list").push(of);
            for map in ["uidMappings", "gidMappings"] {
                config["linux"][map] = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
            }
        })
    };
    let message = refusal(&containerd, &namespace(json!({ "type": "user" })));
    assert!(message.contains("without a mount namespace"), "{message}");
    let by_path = namespace(json!({ "type": "mount", "path": "/proc/self/ns/mnt" })).edit(|config| {
        let linux = config["linux"].as_object_mut().expect("a section");
        linux.retain(|key, _| !key.ends_with("Mappings"));
    });
    let message = refusal(&containerd, &by_path);
    assert!(message.contains("namespaces.mount") && message.contains("host's"), "{message}");
}

#[test]
fn a_user_namespace_on_the_hosts_network_may_bind_sys() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "test -e /sys/class/net/lo && test -d /sys/fs/cgroup && grep -o ' /sys sysfs ro,' /proc/mounts";
    let bundle = containerd.bundle().script(script).without_namespace("network").with_users().edit(|config| {
        let all = config["mounts"].as_array_mut().expect("a list");
        let sys = all.iter_mut().find(|mount| mount["destination"] == "/sys").expect("there is one");
        let options = json!(["rbind", "nosuid", "noexec", "nodev", "ro"]);
        *sys = json!({ "type": "none", "source": "/sys", "destination": "/sys", "options": options });
        config["linux"]["maskedPaths"] = json!(["/sys/firmware"]);
    });
    assert_says(&containerd, &bundle, " /sys sysfs ro,");
}

#[test]
fn its_cgroups_are_found_where_the_hosts_sys_is_bound_too() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "grep -q ' /sys/fs/cgroup' /proc/mounts && ls /sys/fs/cgroup > /dev/null && echo there";
    let bundle = containerd.bundle().script(script).with_users().without_namespace("cgroup").edit(|config| {
        let all = config["mounts"].as_array_mut().expect("a list");
        let at = all.iter().position(|mount| mount["destination"] == "/sys").expect("there is one");
        let options = json!(["rbind", "nosuid", "noexec", "nodev", "ro"]);
        all[at] = json!({ "type": "bind", "source": "/sys", "destination": "/sys", "options": options });
        let options = json!(["nosuid", "noexec", "nodev", "relatime", "ro"]);
        let cgroup =
            json!({ "type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup", "options": options });
        all.insert(at + 1, cgroup);
    });
    assert_says(&containerd, &bundle, "there");
}

/// A bundle with a mount of its cgroups that has these options.
fn with_cgroups(containerd: &Containerd<'_>, options: &[&str]) -> Bundle {
    let script = "ls /sys/fs/cgroup > /dev/null && echo there; exec sleep 1000";
    let options = [&["nosuid", "noexec", "nodev", "ro"], options].concat();
    let mount = json!({ "type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup", "options": options });
    containerd.bundle().script(script).edit(|config| {
        let all = config["mounts"].as_array_mut().expect("a list");
        all.retain(|mount| mount["type"] != "cgroup");
        all.push(mount);
    })
}

/// The container starts, and the log says that the option has no effect.
#[track_caller]
fn assert_ignored(containerd: &Containerd<'_>, bundle: &Bundle, option: &str) {
    let io = bundle.fifos("init");
    let (shim, log) = containerd.start_heard(bundle);
    let (stdout, _stderr) = io.open();
    shim.run(bundle, &io);
    stdout.wait_for("there");
    if !is_reference() {
        log.wait_for(&format!("mount /sys/fs/cgroup: {option} has no effect"));
    }
    shim.end(&bundle.id);
}

/// How the host's hierarchy of v2 is set.
fn settings_of_the_host() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    let of_v2 = mounts.lines().filter(|line| line.contains(" cgroup2 "));
    of_v2.map(str::to_owned).collect()
}

#[test]
fn options_of_a_cgroup_mount_are_for_a_new_mount_of_v2() {
    let host = Host::new();
    let containerd = host.containerd();
    if !only_v2() {
        for option in ["nsdelegate", "mode=755", "memory"] {
            let name = option.split('=').next().expect("a name");
            assert_ignored(&containerd, &with_cgroups(&containerd, &[option]), name);
        }
        return host.assert_nothing_left();
    }
    let in_namespace = |options: &[&str]| {
        with_cgroups(&containerd, options).without_namespace("cgroup").edit(|config| {
            config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "cgroup" }));
        })
    };
    let bundle = in_namespace(&["nsdelegate", "memory_recursiveprot"]);
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    assert_eq!(running.exec("e", "ls /sys/fs/cgroup > /dev/null && echo there"), (0, "there\n".to_owned()));
    running.end();
    let message = refusal(&containerd, &in_namespace(&["nosuch"]));
    assert!(message.contains("mount /sys/fs/cgroup") && message.contains("nosuch"), "{message}");
    if !is_reference() {
        let bundle = with_cgroups(&containerd, &["memory_localevents"]).without_namespace("cgroup");
        let before = settings_of_the_host();
        assert_ignored(&containerd, &bundle, "memory_localevents");
        assert_eq!(settings_of_the_host(), before);
    }
}

#[test]
fn owners_of_what_lies_in_earlier_mounts_can_be_mapped() {
    let host = Host::new();
    if host.reference_fails("runc knows maps of a mount since 1.2") || lacks_detached_mounts() {
        return host.assert_nothing_left();
    }
    let containerd = host.containerd();
    let sources = host.work().join("sources");
    for file in ["a/x/file", "b/y/file", "c/z/file"] {
        fs::create_dir_all(sources.join(file).parent().expect("a folder")).expect("ours");
        fs::write(sources.join(file), file).expect("ours");
    }
    // Nobody but root can get there.
    fs::set_permissions(&sources, fs::Permissions::from_mode(0o700)).expect("ours");
    let map = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
    let bundle = || {
        let script = "cat /final/x/y/z/z/x/y/z/x/file; echo; stat -c %u /mnt /mnt/x/y/z /final";
        let bundle = containerd.bundle().script(script);
        fs::create_dir_all(bundle.rootfs().join("mnt")).expect("ours");
        let of_host = |bundle: Bundle, (name, at): (&str, &str)| bundle.mount(&bind(text(&sources.join(name)), at));
        let bundle =
            [("a", "/mnt"), ("b", "/mnt/x"), ("c", "/mnt/x/y"), ("a", "/mnt/x/y/z")].into_iter().fold(bundle, of_host);
        let inside = |bundle: Bundle, (from, at): (&str, &str)| {
            let source = bundle.rootfs().join(from);
            bundle
                .mount(&json!({ "type": "bind", "source": source, "destination": at, "options": ["rbind", "rprivate"],
                "uidMappings": map, "gidMappings": map }))
        };
        [("mnt/x", "/mnt/x/y/z/x"), ("mnt/x/y", "/mnt/x/y/z"), ("mnt", "/final")].into_iter().fold(bundle, inside)
    };
    assert_says(&containerd, &bundle(), "a/x/file\n0\n100000\n100000");
    assert_says(&containerd, &bundle().with_users(), "a/x/file\n65534\n0\n0");
}

#[test]
fn sys_may_be_bound_into_a_user_namespace_that_is_joined() {
    let host = Host::new();
    let containerd = host.containerd();
    let holder = Holder::new(&["--user", "--net"]);
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", holder.0.id()), "0 100000 65536").expect("root may");
    }
    let (user, network) = (holder.namespace("user"), holder.namespace("net"));
    let script = "id -u; grep -o ' /sys sysfs ro,' /proc/mounts; ls -d /sys/class/net/lo";
    let bundle = containerd.bundle().script(script).with_users().edit(|config| {
        for namespace in config["linux"]["namespaces"].as_array_mut().expect("a list") {
            match namespace["type"].as_str() {
                Some("user") => namespace["path"] = json!(user),
                Some("network") => namespace["path"] = json!(network),
                _ => {}
            }
        }
        let all = config["mounts"].as_array_mut().expect("a list");
        let sys = all.iter_mut().find(|mount| mount["destination"] == "/sys").expect("there is one");
        let options = json!(["rbind", "nosuid", "noexec", "nodev", "ro"]);
        *sys = json!({ "type": "none", "source": "/sys", "destination": "/sys", "options": options });
    });
    assert_says(&containerd, &bundle, "0\n /sys sysfs ro,\n/sys/class/net/lo");
    drop(holder);
}

#[test]
fn a_user_namespace_that_denies_setgroups_may_be_joined() {
    let host = Host::new();
    let containerd = host.containerd();
    let holder = Holder::new(&["--user"]);
    fs::write(format!("/proc/{}/setgroups", holder.0.id()), "deny").expect("root may");
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", holder.0.id()), "0 100000 65536").expect("root may");
    }
    let user = holder.namespace("user");
    let mut bundle = containerd.bundle().script("id -u; grep Groups: /proc/self/status; sleep 1000").with_users();
    bundle = bundle.edit(|config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
        let users = namespaces.iter_mut().find(|namespace| namespace["type"] == "user").expect("there is one");
        users["path"] = json!(user);
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    running.stdout.wait_for("0\nGroups:\t \n");
    assert_eq!(running.exec("e", "grep Groups: /proc/self/status"), (0, "Groups:\t \n".to_owned()));
    running.end();
    drop(holder);
}

#[test]
fn an_idmapped_mount_without_maps_of_its_own_has_the_containers() {
    let host = Host::new();
    if host.reference_fails("runc knows them since 1.2") {
        return;
    }
    let containerd = host.containerd();
    let source = host.work().join("source");
    fs::create_dir(&source).expect("ours");
    fs::write(source.join("file"), "").expect("ours");
    chown(source.join("file"), Some(5), Some(6)).expect("root may");
    let mount = |options: &[&str]| {
        let bind = json!({ "type": "bind", "source": source, "destination": "/mnt", "options": options });
        containerd.bundle().script("busybox stat -c '%u %g' /mnt/file").with_users().mount(&bind)
    };
    assert_says(&containerd, &mount(&["rbind"]), "65534 65534");
    if lacks_detached_mounts() {
        let message = refusal(&containerd, &mount(&["rbind", "idmap"]));
        assert!(message.contains("cannot be idmapped by this kernel"), "{message}");
        return host.assert_nothing_left();
    }
    assert_says(&containerd, &mount(&["rbind", "idmap"]), "5 6");
}

#[test]
fn the_message_queues_of_a_user_namespace_belong_to_its_root() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("stat -c %u /dev/mqueue").with_users();
    assert_says(&containerd, &bundle, "0");
}
