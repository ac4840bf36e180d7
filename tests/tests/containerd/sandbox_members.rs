//! What the members of a sandbox share, by the kernel's own word: namespaces, shared memory, names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::start::{GENERIC_OPTIONS, field};
use bowline_tests::harness::containerd::{Bundle, Code, Pod, Sandbox, Stdio, any};
use bowline_tests::harness::{eventually, namespace_of, process_exists, status_lines};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde_json::json;

/// What CRI has every member join.
const JOINED: [&str; 3] = ["network", "ipc", "uts"];
/// A pod whose members have a pid namespace each, as most have.
const USUAL: Pod<'_> =
    Pod { network: 0, pid: 1, ipc: 0, users: None, hostname: "", cgroup: "", sysctls: &[], servers: &[] };

fn ours(kind: &str) -> String {
    namespace_of(std::process::id().cast_signed(), kind)
}

/// What `script` writes as a member.
#[track_caller]
fn said(sandbox: &Sandbox, bundle: Bundle, kinds: &[&str], script: &str) -> String {
    let bundle = sandbox.member(bundle.script(script), kinds);
    let io = bundle.fifos("init");
    let (stdout, stderr) = io.open();
    sandbox.shim.run(&bundle, &io);
    let status = sandbox.shim.status_at_end(&bundle.id, "");
    let text = stdout.to_end();
    assert_eq!(status, 0, "{text}{}", stderr.expect("a FIFO").to_end());
    sandbox.shim.delete(&bundle.id, "").expect("it has ended");
    text
}

#[test]
fn members_join_the_namespaces_of_the_pause_process() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&USUAL);
    let bundles = [(); 2].map(|()| sandbox.member(containerd.bundle().script("sleep 1000"), &JOINED));
    for bundle in &bundles {
        let pid = sandbox.run(bundle);
        for kind in ["net", "ipc", "uts"] {
            assert_eq!(namespace_of(pid, kind), sandbox.namespace(kind), "{kind}");
            assert_ne!(namespace_of(pid, kind), ours(kind), "{kind}");
        }
        assert_ne!(namespace_of(pid, "pid"), sandbox.namespace("pid"), "one of its own");
    }
    sandbox.end();
}

#[test]
fn unnamed_namespaces_and_a_new_network_are_the_sandbox_s() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&USUAL);
    let silent = containerd.bundle().script("sleep 1000");
    let silent = JOINED.iter().fold(silent, |bundle, kind| bundle.without_namespace(kind));
    let new = containerd.bundle().script("sleep 1000");
    let (silent, new) = (sandbox.run(&silent), sandbox.run(&new));
    for kind in ["net", "ipc", "uts"] {
        assert_eq!(namespace_of(silent, kind), sandbox.namespace(kind), "{kind}");
    }
    assert_eq!(namespace_of(new, "net"), sandbox.namespace("net"));
    for kind in ["ipc", "uts"] {
        assert_ne!(namespace_of(new, kind), sandbox.namespace(kind), "{kind} is to be new");
        assert_ne!(namespace_of(new, kind), ours(kind), "{kind} is to be new");
    }
    sandbox.end();
}

#[test]
fn members_of_a_pod_in_the_host_s_namespaces_are_there_too() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { network: 2, pid: 2, ipc: 2, ..USUAL });
    let bundle = sandbox.member(containerd.bundle().script("sleep 1000"), &["network", "ipc", "uts", "pid"]);
    // The host's is not to be changed, also not to none.
    let bundle = bundle.edit(|config| config["hostname"] = json!(""));
    let hostname = || fs::read_to_string("/proc/sys/kernel/hostname").expect("procfs");
    let before = hostname();
    let pid = sandbox.run(&bundle);
    assert_eq!(hostname(), before);
    for kind in ["net", "ipc", "uts", "pid"] {
        assert_eq!(namespace_of(pid, kind), ours(kind), "{kind}");
        assert_eq!(sandbox.namespace(kind), ours(kind), "{kind}");
    }
    sandbox.end();
}

#[test]
fn the_network_that_containerd_gives_is_held_until_the_end() {
    let host = Host::new();
    let containerd = host.containerd();
    let path = host.work().join("network");
    fs::write(&path, "").expect("the work folder is writable");
    let made = Command::new("unshare").arg(format!("--net={}", path.display())).arg("true").status();
    assert!(made.expect("util-linux").success());
    let sandbox = containerd.sandbox_by(|request| {
        request.options = Some(USUAL.options()).into();
        request.netns_path = path.to_str().expect("ASCII").to_owned();
    });
    assert_eq!(sandbox.status().expect("it is known").info["networkSandboxPath"], path.to_str().expect("ASCII"));
    let bound = format!("net:[{}]", fs::metadata(&path).expect("it is bound").ino());
    assert_eq!(sandbox.namespace("net"), bound);
    let pid = sandbox.run(&containerd.bundle().script("sleep 1000"));
    assert_eq!(namespace_of(pid, "net"), bound);
    sandbox.stop(0).expect("stopped");
    let inside = fs::read_dir("/proc")
        .expect("procfs")
        .flatten()
        .filter(|entry| fs::read_link(entry.path().join("ns/net")).is_ok_and(|link| link.to_string_lossy() == bound));
    assert_eq!(inside.count(), 0, "nobody is in it");
    unmount(&path, UnmountFlags::empty()).expect("it is its manager's still");
    sandbox.end();
}

/// Everybody in a pod with users of its own.
const USERS: [&str; 4] = ["network", "ipc", "uts", "user"];

/// A bundle of a member of such a pod, whose root snapshotters give to the pod's root.
fn in_users(bundle: Bundle) -> Bundle {
    bundle.owned_by(100_000).edit(|config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
        namespaces.push(json!({ "type": "user" }));
    })
}

#[test]
fn a_pod_s_own_user_namespace_owns_its_other_namespaces() {
    let host = Host::new();
    let containerd = host.containerd();
    let sysctls = [("net.ipv4.ip_unprivileged_port_start", "77")];
    let users = Some((0, Some([100_000, 65_536])));
    let sandbox = containerd.sandbox(&Pod { users, pid: 0, hostname: "of-the-pod", sysctls: &sysctls, ..USUAL });
    for (file, line) in [("uid_map", "0 100000 65536"), ("gid_map", "0 100000 65536")] {
        let map = fs::read_to_string(format!("/proc/{}/{file}", sandbox.pid)).expect("it runs");
        assert_eq!(map.split_whitespace().collect::<Vec<_>>().join(" "), line);
    }
    let ids = "100000\t100000\t100000\t100000";
    assert_eq!(status_lines(sandbox.pid, &["Uid:", "Gid:"]), format!("Uid:\t{ids}\nGid:\t{ids}"));
    // The kernel mounts the member's /sys and /proc only if the network and the pids belong to its user namespace.
    let script = "cat /proc/self/uid_map | busybox awk '{print $1, $2, $3}'; hostname; \
                  cat /proc/sys/net/ipv4/ip_unprivileged_port_start; ls -d /sys/class/net/lo /proc/1; \
                  stat -c '%u %g %a' /dev/mqueue /dev/shm; echo x >/dev/shm/x && stat -c %u /dev/shm/x";
    let kinds = [&USERS[..], &["pid"]].concat();
    let said = said(&sandbox, in_users(containerd.bundle()), &kinds, script);
    assert_eq!(said, "0 100000 65536\nof-the-pod\n77\n/proc/1\n/sys/class/net/lo\n0 0 1777\n0 0 1777\n0\n");
    let pid = sandbox.run(&sandbox.member(in_users(containerd.bundle().script("sleep 1000")), &kinds));
    for kind in ["net", "ipc", "uts", "user", "pid"] {
        assert_eq!(namespace_of(pid, kind), sandbox.namespace(kind), "{kind}");
        assert_ne!(namespace_of(pid, kind), ours(kind), "{kind}");
    }
    sandbox.end();
}

#[test]
fn a_given_network_comes_with_the_user_namespace_that_owns_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let path = host.work().join("network");
    fs::write(&path, "").expect("the work folder is writable");
    // As containerd makes it: by a process in a user namespace, which then leaves.
    let mut holder = Command::new("unshare").args(["--user", "--net", "sleep", "1000"]).spawn().expect("util-linux");
    let pid = holder.id().cast_signed();
    eventually("it is in its namespaces", || (namespace_of(pid, "net") != ours("net")).then_some(()));
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{file}"), "0 100000 65536").expect("it has none");
    }
    let (network, users) = (namespace_of(pid, "net"), namespace_of(pid, "user"));
    mount_bind(format!("/proc/{pid}/ns/net"), &path).expect("a namespace can be bound");
    holder.kill().and_then(|()| holder.wait()).expect("it sleeps");
    let sandbox = containerd.sandbox_by(|request| {
        request.options = Some(Pod { users: Some((0, Some([100_000, 65_536]))), ..USUAL }.options()).into();
        request.netns_path = path.to_str().expect("ASCII").to_owned();
    });
    assert_eq!((sandbox.namespace("net"), sandbox.namespace("user")), (network, users));
    let script = "ls -d /sys/class/net/lo";
    assert_eq!(said(&sandbox, in_users(containerd.bundle()), &USERS, script), "/sys/class/net/lo\n");
    sandbox.end();
    unmount(&path, UnmountFlags::empty()).expect("it is its manager's");
}

#[test]
fn a_pod_with_own_users_is_refused_a_network_of_host_users() {
    let host = Host::new();
    let containerd = host.containerd();
    let path = host.work().join("network");
    fs::write(&path, "").expect("the work folder is writable");
    let made = Command::new("unshare").arg(format!("--net={}", path.display())).arg("true").status();
    assert!(made.expect("util-linux").success());
    let mut sandbox = containerd.new_sandbox();
    let created = sandbox.create(|request| {
        request.options = Some(Pod { users: Some((0, Some([100_000, 65_536]))), ..USUAL }.options()).into();
        request.netns_path = path.to_str().expect("ASCII").to_owned();
    });
    let refused = created.map(drop).and_then(|()| sandbox.start().map(drop)).expect_err("it is refused");
    assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused:?}");
    assert!(refused.message.contains("belongs to the host's user namespace"), "{refused:?}");
    sandbox.end();
    unmount(&path, UnmountFlags::empty()).expect("it is its manager's");
}

#[test]
fn a_pod_gets_loopback_its_hostname_and_its_sysctls() {
    let host = Host::new();
    let containerd = host.containerd();
    let sysctls = [("net.ipv4.ip_unprivileged_port_start", "77"), ("kernel.msgmax", "9999")];
    let sandbox = containerd.sandbox(&Pod { hostname: "of-the-pod", sysctls: &sysctls, ..USUAL });
    let script = "hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/msgmax; \
                  ip -o addr show dev lo | grep -o '127.0.0.1'";
    let bundle = containerd.bundle();
    assert_eq!(said(&sandbox, bundle, &JOINED, script), "of-the-pod\n77\n9999\n127.0.0.1\n");
    let of_host = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").expect("procfs");
    assert_ne!(of_host.trim(), "77");
    sandbox.end();
}

/// The settings of a network that a pod gets unless it sets them.
const BY_DEFAULT: &str = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ping_group_range";

#[test]
fn by_default_users_of_a_pod_may_open_any_port_and_ping() {
    let host = Host::new();
    let containerd = host.containerd();
    let settings = |pod: &Pod<'_>, kinds: &[&str], bundle: Bundle| {
        let sandbox = containerd.sandbox(pod);
        let said = said(&sandbox, bundle, kinds, BY_DEFAULT).split_whitespace().collect::<Vec<_>>().join(" ");
        sandbox.end();
        said
    };
    assert_eq!(settings(&USUAL, &JOINED, containerd.bundle()), "0 0 2147483647");
    let own = [("net.ipv4.ip_unprivileged_port_start", "77"), ("net/ipv4/ping_group_range", "5 6")];
    assert_eq!(settings(&Pod { sysctls: &own, ..USUAL }, &JOINED, containerd.bundle()), "77 5 6");
    // Its groups are not all that there are.
    let users = Pod { users: Some((0, Some([100_000, 65_536]))), ..USUAL };
    assert_eq!(settings(&users, &USERS, in_users(containerd.bundle())), "0 65534 65534");
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("procfs");
    let of_host = || [read("ip_unprivileged_port_start"), read("ping_group_range")];
    let before = of_host();
    let sandbox = containerd.sandbox(&Pod { network: 2, ..USUAL });
    assert_eq!(of_host(), before, "they are the host's");
    sandbox.end();
}

#[test]
fn a_handler_leaves_ports_and_ping_to_root() {
    let host = Host::new();
    let containerd = host.containerd();
    let options = |body: &str| any(GENERIC_OPTIONS, field(3, body));
    let as_new = {
        let mut command = host.command("unshare");
        command.args(["--net", "sh", "-c", BY_DEFAULT]);
        host.execute(command).assert_code(0).out().split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let (ports, ping) = as_new.split_once(' ').expect("two settings");
    for (body, expected) in [
        ("EnableUnprivilegedPorts = false", format!("{ports} 0 2147483647")),
        ("EnableUnprivilegedICMP = false", format!("0 {ping}")),
        ("EnableUnprivilegedPorts = false\nEnableUnprivilegedICMP = false", as_new.clone()),
        ("EnableUnprivilegedPorts = true", "0 0 2147483647".to_owned()),
    ] {
        let mut sandbox = containerd.new_sandbox_with(Some(&options(body)));
        sandbox.create(|request| request.options = Some(USUAL.options()).into()).expect("created");
        sandbox.start().expect("started");
        let said = said(&sandbox, containerd.bundle(), &JOINED, BY_DEFAULT);
        assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{body}");
        sandbox.end();
    }
}

#[test]
fn members_share_memory_if_they_join_the_ipc_namespace() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&USUAL);
    said(&sandbox, containerd.bundle(), &JOINED, "echo hello > /dev/shm/word");
    assert_eq!(said(&sandbox, containerd.bundle(), &JOINED, "cat /dev/shm/word"), "hello\n");
    let alone = said(&sandbox, containerd.bundle(), &["network"], "ls /dev/shm");
    assert_eq!(alone, "", "its own");
    let size = said(&sandbox, containerd.bundle(), &JOINED, "df -k /dev/shm | tail -1 | awk '{print $2}'");
    assert_eq!(size, "65536\n");
    sandbox.stop(0).expect("stopped");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    assert!(!mounts.contains(sandbox.bundle.path.to_str().expect("ASCII")), "{mounts}");
    sandbox.end();
}

#[test]
fn members_of_a_pod_find_its_name_and_its_name_servers() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { hostname: "of-the-pod", servers: &["192.0.2.1", "192.0.2.2"], ..USUAL });
    let read = "cat /etc/hostname /etc/resolv.conf";
    let text = said(&sandbox, containerd.bundle(), &JOINED, read);
    assert_eq!(text, "of-the-pod\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n");
    // Nobody names a pod in the host's network.
    let of_host = containerd.sandbox(&Pod { network: 2, hostname: "", ..USUAL });
    let name = said(&of_host, containerd.bundle().without_namespace("uts"), &["ipc"], "cat /etc/hostname; hostname");
    let nodename = rustix::system::uname().nodename().to_str().expect("UTF-8").to_owned();
    assert_eq!(name, format!("{nodename}\n{nodename}\n"));
    of_host.end();
    let hosts = said(&sandbox, containerd.bundle(), &JOINED, "cat /etc/hosts");
    assert_eq!(hosts, fs::read_to_string("/etc/hosts").unwrap_or_default(), "as on the host");
    let own = containerd.bundle();
    let file = own.path.join("own");
    fs::write(&file, "mine\n").expect("ours");
    let mount = json!({"destination": "/etc/hostname", "type": "bind", "source": file, "options": ["bind", "ro"]});
    assert_eq!(said(&sandbox, own.mount(&mount), &JOINED, "cat /etc/hostname"), "mine\n");
    sandbox.end();
}

#[test]
fn with_shared_pids_members_see_each_other_and_pause_is_pid_1() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { pid: 0, ..USUAL });
    let kinds = ["network", "ipc", "uts", "pid"];
    let pid = sandbox.run(&sandbox.member(containerd.bundle().script("exec sleep 1234"), &kinds));
    assert_eq!(namespace_of(pid, "pid"), sandbox.namespace("pid"));
    let seen = said(&sandbox, containerd.bundle(), &kinds, "cat /proc/1/comm; ps -o args | grep '[s]leep 1234'");
    assert_eq!(seen, "pause\nsleep 1234\n");
    sandbox.end();
    assert!(!process_exists(pid));
}

#[test]
fn a_member_neither_ends_the_pause_process_nor_gets_out_by_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { pid: 0, ..USUAL });
    let all = ["CAP_KILL", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"];
    let bundle = containerd.bundle().edit(|config| {
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = json!(all);
        }
    });
    let script = "for signal in TERM INT KILL HUP QUIT STOP; do kill -$signal 1; done; \
                  ls -A /proc/1/root/ /proc/1/fd; until grep 'State:.S' /proc/1/status; do sleep 0.01; done";
    let said = said(&sandbox, bundle, &["pid"], script);
    assert_eq!(said.trim_end(), "/proc/1/fd:\n\n/proc/1/root/:\nState:\tS (sleeping)");
    sandbox.ping().expect("it lives");
    assert!(process_exists(sandbox.pid));
    sandbox.end();
}

#[test]
fn what_members_orphan_is_reaped() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&Pod { pid: 0, ..USUAL });
    let bundle = sandbox.member(containerd.bundle().script("sleep 1000"), &["pid"]);
    sandbox.run(&bundle);
    let orphan = "(sleep 1000 & echo $! > /orphan); kill -9 $(cat /orphan)";
    sandbox.shim.run_exec(&bundle, "e", &["/bin/sh", "-c", orphan], &Stdio::null());
    assert_eq!(sandbox.shim.status_at_end(&bundle.id, "e"), 0);
    let inside: i32 =
        fs::read_to_string(bundle.rootfs().join("orphan")).expect("written").trim().parse().expect("a pid");
    let is_there = || {
        let pids = fs::read_dir("/proc").expect("procfs").flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.any(|pid| {
            let found = fs::read_link(format!("/proc/{pid}/ns/pid_for_children"))
                .is_ok_and(|link| link.to_string_lossy() == sandbox.namespace("pid"));
            found && status_lines(pid, &["NSpid"]).split_whitespace().last() == Some(&*inside.to_string())
        })
    };
    eventually("the orphan is reaped", || (!is_there()).then_some(()));
    let zombies = || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", sandbox.pid)).unwrap_or_default();
        children.split_whitespace().count()
    };
    eventually("it has no children", || (zombies() == 0).then_some(()));
    sandbox.end();
}

#[test]
fn a_member_s_missing_network_is_refused_and_the_sandbox_lives() {
    let host = Host::new();
    let containerd = host.containerd();
    let sandbox = containerd.sandbox(&USUAL);
    let bundle = containerd.bundle().edit(|config| {
        for namespace in config["linux"]["namespaces"].as_array_mut().expect("a list") {
            if namespace["type"] == "network" {
                namespace["path"] = json!("/proc/self/ns/nobodys");
            }
        }
    });
    let failure = sandbox.shim.create(&bundle, &Stdio::null()).expect_err("there is none");
    assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{failure:?}");
    assert!(failure.message.contains("/proc/self/ns/nobodys"), "{failure:?}");
    sandbox.run(&containerd.bundle().script("sleep 1000"));
    sandbox.end();
}
