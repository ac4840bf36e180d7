//! Namespaces: private, the host's, or another's.

use bowline_tests::Host;
use bowline_tests::harness::namespace_of;

const IDLE: &str = "command = 'sleep'\nargs = ['1000']\n";

fn own() -> i32 {
    std::process::id().try_into().expect("a pid")
}

#[test]
fn all_are_private_by_default_but_network_and_user() {
    let host = Host::new();
    let task = host.described(IDLE).start();
    for kind in ["pid", "ipc", "uts", "mnt", "cgroup"] {
        assert_ne!(namespace_of(task.pid(), kind), namespace_of(own(), kind), "{kind}");
    }
    for kind in ["net", "user"] {
        assert_eq!(namespace_of(task.pid(), kind), namespace_of(own(), kind), "{kind}");
    }
    task.end();
}

#[test]
fn each_can_be_the_hosts() {
    let host = Host::new();
    let toml = format!(
        "{IDLE}namespaces = {{pid = 'host', ipc = 'host', uts = 'host', cgroup = 'host', network = 'host', user = 'host'}}"
    );
    let task = host.described(&toml).start();
    for kind in ["pid", "ipc", "uts", "cgroup", "net", "user"] {
        assert_eq!(namespace_of(task.pid(), kind), namespace_of(own(), kind), "{kind}");
    }
    assert_ne!(namespace_of(task.pid(), "mnt"), namespace_of(own(), "mnt"), "the mount namespace never is");
    task.end();
}

#[test]
fn a_command_is_pid_1_or_2_and_sees_only_its_own_processes() {
    let host = Host::new();
    for (flag, own, most) in [("--init=false", "1", 4), ("--init", "2", 5)] {
        let ran = host.task("echo $$; ls -d /proc/[0-9]* | wc -l").flag(flag).run();
        let out = ran.assert_code(0).out();
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[0], own, "{ran}");
        // Init, the shell, ls, wc, and perhaps a shell between.
        assert!(lines[1].trim().parse::<u32>().is_ok_and(|n| n <= most), "{ran}");
    }
}

#[test]
fn a_private_network_has_a_loopback_that_is_up_and_nothing_else() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'ls /sys/class/net; cat /sys/class/net/lo/flags; grep -c : /proc/net/dev']\nnamespaces.network = 'private'";
    host.described(toml).run().assert_says("lo\n0x9\n1");
}

#[test]
fn a_task_can_join_the_namespaces_of_another_by_path() {
    let host = Host::new();
    let first = host.described(&format!("{IDLE}namespaces.network = 'private'")).start();
    let pid = first.pid();
    let paths = ["ipc", "uts"].map(|kind| format!("{kind} = '/proc/{pid}/ns/{kind}'")).join(", ");
    let toml = format!("{IDLE}namespaces = {{network = '/proc/{pid}/ns/net', {paths}}}");
    let second = host.described(&toml).start();
    for kind in ["net", "ipc", "uts"] {
        assert_eq!(namespace_of(second.pid(), kind), namespace_of(pid, kind), "{kind}");
        assert_ne!(namespace_of(second.pid(), kind), namespace_of(own(), kind), "{kind}");
    }
    second.exec("ls /sys/class/net").assert_says("lo");
    second.end();
    first.end();
}

#[test]
fn a_task_can_join_the_pid_namespace_of_another() {
    let host = Host::new();
    let first = host.task("echo ready; exec sleep 1000").flag("--init=false").start();
    let pid = first.pid();
    let second = host.described(&format!("{IDLE}namespaces.pid = '/proc/{pid}/ns/pid'")).start();
    assert_eq!(namespace_of(second.pid(), "pid"), namespace_of(pid, "pid"));
    second.exec("cat /proc/1/cmdline | tr '\\0' ' '").assert_says("sleep 1000 ");
    second.end();
    first.exec("echo alive").assert_says("alive");
    first.end();
}

#[test]
fn a_path_that_is_no_namespace_is_refused_and_named() {
    let host = Host::new();
    for path in ["/no/such/ns", "/etc/passwd", "/proc/self/ns/uts"] {
        host.described(&format!("{IDLE}namespaces.network = '{path}'"))
            .assert_refused(125, &["namespaces.network", path]);
    }
}

#[test]
fn the_root_of_a_user_namespace_is_nobody_on_the_host() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = format!(
        "{IDLE}namespaces.user = 'private'\n\
         uid_mappings = [{{container = 0, host = 400000, size = 1000}}, {{container = 1234, host = 500000, size = 1}}]\n\
         gid_mappings = [{{container = 0, host = 400000, size = 1000}}, {{container = 2345, host = 500000, size = 1}}, {{container = 3456, host = 500001, size = 1}}]"
    );
    let task = host.described(&toml).rootfs(root.path()).start();
    assert_ne!(namespace_of(task.pid(), "user"), namespace_of(own(), "user"));
    let status = bowline_tests::harness::status_lines(task.pid(), &["Uid", "Gid"]);
    assert_eq!(status, "Uid:\t400000\t400000\t400000\t400000\nGid:\t400000\t400000\t400000\t400000");
    task.exec("id -u; cat /proc/self/uid_map | wc -l").assert_says("0\n2");
    task.exec_with(["--user=app"], "id -u; id -g; id -G").assert_says("1234\n2345\n2345 3456");
    task.end();
}

#[test]
fn a_user_namespace_works_with_the_host_view() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'id -u; touch /tmp/x && ls -n /tmp/x | cut -d\" \" -f3; : > /dev/null && echo null']\nnamespaces.user = 'private'\n\
                uid_mappings = [{container = 0, host = 400000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 400000, size = 65536}]";
    host.described(toml).run().assert_says("0\n0\nnull");
}

#[test]
fn a_user_that_the_mappings_leave_out_is_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = "command = 'true'\nuser = 'app'\nnamespaces.user = 'private'\n\
                uid_mappings = [{container = 0, host = 400000, size = 1}]\n\
                gid_mappings = [{container = 0, host = 400000, size = 1}]";
    host.described(toml).rootfs(root.path()).assert_refused(125, &["1234"]);
}

#[test]
fn sysctls_of_a_private_namespace_leave_the_hosts_unchanged() {
    let host = Host::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/msgmax").expect("procfs");
    let before = read();
    let toml = "command = 'cat'\nargs = ['/proc/sys/kernel/msgmax', '/proc/sys/net/core/somaxconn']\nnamespaces.network = 'private'\n\
                sysctls = {'kernel.msgmax' = '4321', 'net.core.somaxconn' = '77'}";
    host.described(toml).run().assert_says("4321\n77");
    assert_eq!(read(), before);
}
