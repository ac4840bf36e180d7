//! What Kubernetes asks for a container, through containerd's CRI plugin: who it is, what it may do, what it sees.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::protobuf::MessageField;
use bowline_tests::harness::cri::proto::{Capability, Int64Value, KeyValue, MountPropagation};
use bowline_tests::harness::{Tmpfs, eventually, status_lines};

/// A number that may be absent.
fn some(value: i64) -> MessageField<Int64Value> {
    Some(Int64Value { value, ..Default::default() }).into()
}

/// What `/proc/PID/status` says of one thing.
fn of(pid: i32, name: &str) -> String {
    let line = status_lines(pid, &[name]);
    line.split_once(':').expect("a line").1.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_container_is_who_is_asked_for_and_may_do_no_more() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let container = pod.container("careful", "sleep 1000").secure(|security| {
        security.run_as_user = some(1234);
        security.run_as_group = some(2345);
        security.supplemental_groups = vec![3456, 7777];
        security.no_new_privs = true;
        security.readonly_rootfs = true;
        security.capabilities = Some(Capability {
            drop_capabilities: vec!["ALL".to_owned()],
            add_capabilities: vec!["NET_BIND_SERVICE".to_owned()],
            ..Default::default()
        })
        .into();
    });
    let container = container.start();
    let pid = container.pid();
    assert_eq!(of(pid, "Uid"), "1234 1234 1234 1234");
    assert_eq!(of(pid, "Gid"), "2345 2345 2345 2345");
    let groups = of(pid, "Groups");
    assert!(["3456", "7777"].iter().all(|group| groups.split(' ').any(|has| has == *group)), "{groups}");
    assert_eq!((of(pid, "NoNewPrivs"), of(pid, "Seccomp:")), ("1".to_owned(), "2".to_owned()));
    // The tenth.
    assert_eq!(of(pid, "CapBnd"), "0000000000000400");
    assert_eq!(
        container.exec("id -u; id -g; grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status | tr -d '\\t'").out(),
        "1234\n2345\nCapBnd:0000000000000400\nNoNewPrivs:1\nSeccomp:2"
    );
    assert!(container.exec("echo x > /file").stderr.contains("Read-only"));
    pod.remove();
    cri.end();
}

#[test]
fn a_privileged_container_has_all_that_containerd_has() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().privileged().run();
    let container = pod.container("root", "sleep 1000").secure(|security| security.privileged = true).start();
    let pid = container.pid();
    let ours = std::process::id().cast_signed();
    assert_eq!((of(pid, "CapEff"), of(pid, "Seccomp:")), (of(ours, "CapEff"), "0".to_owned()));
    assert!(container.exec("grep ' /sys sysfs ' /proc/mounts").out().contains(" rw,"));
    // No path of /proc is hidden or read-only.
    assert_eq!(container.exec("grep -c ' /proc/' /proc/mounts").stdout, "0\n");
    // A device of the host's is there and can be opened.
    assert!(!Path::new("/dev/kmsg").exists() || container.exec(": </dev/kmsg").code == 0);
    pod.remove();
    cri.end();
}

#[test]
fn a_container_has_the_environment_folder_and_tty_asked_for() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let script = "test -t 0 && test -t 1 && echo \"$WORD in $PWD\"; exec sleep 1000";
    let container = pod.container("talker", script).edit(|config| {
        config.envs.push(KeyValue { key: "WORD".to_owned(), value: "a word".to_owned(), ..Default::default() });
        config.working_dir = "/tmp".to_owned();
        config.tty = true;
    });
    let container = container.start();
    eventually("its line", || {
        container.log().iter().any(|line| line.starts_with("stdout F a word in /tmp")).then_some(())
    });
    assert_eq!(container.exec("echo $WORD in $PWD").out(), "a word in /tmp");
    pod.remove();
    cri.end();
}

#[test]
fn a_sysctl_of_a_pod_holds_in_its_containers() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().sysctl("net.ipv4.ip_unprivileged_port_start", "80").sysctl("kernel.shm_rmid_forced", "1").run();
    let container = pod.container("a", "sleep 1000").start();
    let read = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(container.exec(read).out(), "80\n1");
    pod.remove();
    cri.end();
}

#[test]
fn paths_are_masked_and_read_only_as_asked() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let container = pod.container("a", "sleep 1000").secure(|security| {
        security.masked_paths = vec!["/proc/keys".to_owned(), "/proc/scsi".to_owned()];
        security.readonly_paths = vec!["/proc/sys".to_owned()];
    });
    let container = container.start();
    assert_eq!(container.exec("cat /proc/keys").out(), "");
    assert_ne!(container.exec("echo 1 > /proc/sys/kernel/shm_rmid_forced").code, 0);
    pod.remove();
    cri.end();
}

#[test]
fn volumes_are_the_hosts_files_and_folders() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let (folder, file) = (host.work().join("volume"), host.file("hosts", "127.0.0.1 localhost\n"));
    fs::create_dir(&folder).expect("the work folder is writable");
    let pod = cri.pod().on_the_hosts_network().run();
    let container = pod.container("a", "sleep 1000");
    let container =
        container.mount(&folder, "/data/deep", |_| ()).mount(&file, "/etc/hosts", |mount| mount.readonly = true);
    let container = container.start();
    container.exec("echo from within > /data/deep/file").out();
    assert_eq!(fs::read_to_string(folder.join("file")).expect("it was written"), "from within\n");
    assert_eq!(container.exec("cat /etc/hosts").out(), "127.0.0.1 localhost");
    assert!(container.exec("echo x > /etc/hosts").stderr.contains("Read-only"));
    pod.remove();
    cri.end();
}

#[test]
fn programs_in_the_shared_memory_of_a_pod_can_be_executed() {
    let host = Host::new();
    if host.reference_fails("runc executes them since 1.2") {
        return;
    }
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let container = pod.container("a", "sleep 1000").start();
    let script = "printf '#!/bin/sh\\necho executed' > /dev/shm/x && chmod +x /dev/shm/x && /dev/shm/x";
    assert_eq!(container.exec(script).out(), "executed");
    pod.remove();
    cri.end();
}

/// A folder whose mounts spread.
fn shared(host: &Host) -> Tmpfs {
    let folder = host.tmpfs("shared", "");
    let mut command = host.command("mount");
    command.arg("--make-shared").arg(folder.path());
    host.execute(command).assert_code(0);
    for name in ["in", "out"] {
        fs::create_dir(folder.path().join(name)).expect("ours");
    }
    folder
}

#[test]
fn host_mounts_spread_only_to_containers_that_ask_for_them() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let folder = shared(&host);
    let pod = cri.pod().on_the_hosts_network().run();
    let start = |name: &str, mode: MountPropagation| {
        let container = pod.container(name, "sleep 1000");
        container.mount(folder.path(), "/data", |mount| mount.propagation = mode.into()).start()
    };
    let follower = start("follower", MountPropagation::HOST_TO_CONTAINER);
    let other = start("other", MountPropagation::PRIVATE);
    let inner = host.tmpfs("shared/in", "");
    fs::write(inner.path().join("file"), "").expect("ours");
    assert_eq!(follower.exec("ls /data/in").out(), "file");
    assert_eq!(other.exec("ls /data/in").out(), "");
    drop(inner);
    assert_eq!(follower.exec("ls /data/in").out(), "");
    pod.remove();
    drop(folder);
    cri.end();
}

#[test]
fn privileged_containers_spread_mounts_to_the_host_if_asked() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let folder = shared(&host);
    let pod = cri.pod().on_the_hosts_network().privileged().run();
    let container = pod.container("a", "sleep 1000").secure(|security| security.privileged = true);
    let container = container
        .mount(folder.path(), "/data", |mount| mount.propagation = MountPropagation::BIDIRECTIONAL.into())
        .start();
    container.exec("mount -t tmpfs none /data/out && touch /data/out/file").out();
    assert!(folder.path().join("out/file").exists());
    container.exec("umount /data/out").out();
    assert!(!folder.path().join("out/file").exists());
    pod.remove();
    drop(folder);
    cri.end();
}
