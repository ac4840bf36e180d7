//! What a sandbox's members share and what each has of its own: `/proc` as witness.

use std::fs::{self, File};

use bowline_tests::Host;
use bowline_tests::harness::{Sandbox, Task, cgroup_of, eventually, holders_of, namespace_of, process_exists};
use rustix::process::{Pid, Signal, kill_process};

const IDLE: &str = "exec sleep 1000";

/// The namespace of this kind that init of both is in.
#[track_caller]
fn common(one: &Task<'_>, two: &Task<'_>, kind: &str) -> Option<String> {
    let [one, two] = [one, two].map(|task| namespace_of(task.pid(), kind));
    (one == two).then_some(one)
}

fn of_host(kind: &str) -> String {
    namespace_of(std::process::id().try_into().expect("a pid"), kind)
}

#[test]
fn network_ipc_and_host_name_are_shared_and_nothing_else() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").create();
    let (one, two) = (sandbox.task(IDLE).start(), sandbox.task(IDLE).start());
    for (kind, name) in [("net", "network"), ("ipc", "ipc"), ("uts", "uts")] {
        let shared = common(&one, &two, kind).expect(kind);
        assert_ne!(shared, of_host(kind));
        // As others reach it.
        let path = sandbox.inspect()["namespaces"][name].as_str().expect("a path").to_owned();
        assert_eq!(fs::read_link(path).expect("the shim holds it").to_string_lossy(), shared);
    }
    for kind in ["mnt", "pid", "cgroup"] {
        assert_eq!(common(&one, &two, kind), None, "{kind}");
    }
    assert_eq!(one.exec("hostname; echo $HOSTNAME").out(), format!("{0}\n{0}", sandbox.id()));
    assert!(one.exec("cat /proc/net/dev").out().contains("lo:"));
    one.end();
    two.end();
}

#[test]
fn the_network_is_the_hosts_unless_it_says_otherwise() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--hostname=together").create();
    let (one, two) = (sandbox.task(IDLE).start(), sandbox.task(IDLE).start());
    assert_eq!(common(&one, &two, "net"), Some(of_host("net")));
    assert!(sandbox.inspect()["namespaces"]["network"].is_null());
    assert_eq!(two.exec("hostname").out(), "together");
    one.end();
    two.end();
}

#[test]
fn a_member_can_have_namespaces_of_its_own() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").create();
    let one = sandbox.task("echo shared > /dev/shm/file; echo ready; exec sleep 1000").start();
    one.wait_for_line("ready");
    let toml =
        "command = 'sleep'\nargs = ['1000']\nhostname = 'apart'\nnamespaces = {ipc = 'private', uts = 'private'}";
    let apart = sandbox.described(toml).start();
    assert_eq!((common(&one, &apart, "ipc"), common(&one, &apart, "uts")), (None, None));
    assert!(common(&one, &apart, "net").is_some());
    assert_eq!(apart.exec("hostname; ls /dev/shm").out(), "apart");
    let of_host_ipc = sandbox.described("command = 'sleep'\nargs = ['1000']\nnamespaces.ipc = 'host'").start();
    assert_eq!(namespace_of(of_host_ipc.pid(), "ipc"), of_host("ipc"));
    // What it shares it cannot have as it likes.
    let own_name = sandbox.described("command = 'true'\nhostname = 'mine'");
    own_name.assert_refused(125, &["hostname", "sandbox"]);
    let own_cgroup = sandbox.described("command = 'true'\ncgroup = '/elsewhere'");
    own_cgroup.assert_refused(125, &["cgroup", "sandbox"]);
    for task in [one, apart, of_host_ipc] {
        task.end();
    }
}

#[test]
fn shared_memory_is_shared_and_stays_between_members() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    sandbox.task("umask 077; echo hello > /dev/shm/file; ls -ld /dev/shm | cut -c1-10").run().assert_says("drwxrwxrwt");
    let later = sandbox.task("cat /dev/shm/file; grep ' /dev/shm ' /proc/mounts | cut -d' ' -f4 | tr , '\\n'").run();
    let said = later.assert_code(0).out();
    assert!(said.starts_with("hello\n"), "{said}");
    for option in ["nosuid", "nodev", "noexec", "size=65536k"] {
        assert!(said.lines().any(|line| line == option), "{option} of {said}");
    }
    // Nobody else's is touched.
    let own = host.task("ls /dev/shm").run();
    own.assert_says("");
}

#[test]
fn namespaces_outlive_members_and_end_with_the_sandbox() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").create();
    let inspected = sandbox.inspect();
    // Held here as well, so that no other has their numbers meanwhile.
    let held = ["network", "ipc", "uts"]
        .map(|kind| File::open(inspected["namespaces"][kind].as_str().expect("a path")).expect("the shim holds it"));
    let member = || sandbox.task("readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts").run().out();
    assert_eq!(member(), member());
    assert!(held.iter().all(|namespace| !holders_of(namespace).is_empty()));
    sandbox.rm([]);
    for namespace in &held {
        eventually(format_args!("nobody holds it: {:?}", holders_of(namespace)), || {
            holders_of(namespace).is_empty().then_some(())
        });
    }
}

/// One whose members see each other, with a member that waits.
fn seeing(host: &Host) -> (Sandbox<'_>, Task<'_>) {
    let sandbox = host.sandbox().flag("--share-pid").create();
    let task = sandbox.task("echo ready; exec sleep 12345").start();
    task.wait_for_line("ready");
    (sandbox, task)
}

#[test]
fn pids_are_shared_when_asked() {
    let host = Host::new();
    let (sandbox, one) = seeing(&host);
    let two =
        sandbox.task("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; echo $$ > /dev/shm/pid; exec sleep 1000").start();
    eventually("it looked", || two.said("stdout").contains("sleep 12345").then_some(()));
    assert!(common(&one, &two, "pid").is_some_and(|shared| shared != of_host("pid")));
    assert_ne!(two.exec("cat /dev/shm/pid").out(), "1", "the first is none of the members'");
    let alone = sandbox.described("command = 'sleep'\nargs = ['1000']\nnamespaces.pid = 'private'").start();
    assert_eq!(common(&one, &alone, "pid"), None);
    assert!(!alone.exec("cat /proc/[0-9]*/cmdline").out().contains("12345"));
    // A signal from one to the other.
    one.exec("kill -TERM $(cat /dev/shm/pid)").assert_code(0);
    two.wait().assert_killed_by("TERM");
    assert_eq!(one.status(), "running");
    one.end();
    alone.end();
}

#[test]
fn the_pause_process_is_charged_apart_and_ends_with_the_sandbox() {
    let host = Host::new();
    let (sandbox, one) = seeing(&host);
    let pause = sandbox.pause_pid();
    let overhead = format!("/bowline-overhead/{}", sandbox.on_host());
    let mut found = cgroup_of(pause);
    if found.len() > 1 {
        found.remove("");
    }
    assert!(found.values().all(|path| *path == overhead), "{found:#?}");
    assert!(sandbox.helpers().contains(&pause) && !sandbox.processes().contains(&pause));
    assert_eq!(namespace_of(pause, "pid"), namespace_of(one.pid(), "pid"));
    // It reaps what members lose.
    one.exec("(sleep 0 & sleep 0 &)").assert_code(0);
    let children = || fs::read_to_string(format!("/proc/{pause}/task/{pause}/children")).unwrap_or_default();
    eventually("orphans are reaped", || children().is_empty().then_some(()));
    one.end();
    assert!(process_exists(pause), "it outlives members");
    sandbox.rm([]);
    assert!(!process_exists(pause));
}

#[test]
fn a_member_takes_what_it_started_along_though_pids_are_shared() {
    let host = Host::new();
    let (sandbox, one) = seeing(&host);
    let two = sandbox.task("setsid sleep 54321 & (setsid sleep 54321 &); echo ready; read x").flag("-i").start();
    two.wait_for_line("ready");
    let sees = || one.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out().matches("54321").count();
    eventually("both run", || (sees() >= 2).then_some(()));
    let report = two.end();
    assert_eq!(report["processes_killed"].as_u64(), Some(2), "{report:?}");
    eventually("both have ended", || (sees() == 0).then_some(()));
    one.end();
}

#[test]
fn after_the_pause_process_is_killed_a_new_member_gets_another() {
    for force in [&["--force"][..], &[]] {
        let host = Host::new();
        let (sandbox, one) = seeing(&host);
        let apart = sandbox.described("command = 'sleep'\nargs = ['1000']\nnamespaces.pid = 'private'").start();
        let pause = sandbox.pause_pid();
        kill_process(Pid::from_raw(pause).expect("a pid"), Signal::KILL).expect("it lives");
        // The kernel takes all in the namespace with it.
        one.wait().assert_killed_by("KILL");
        assert_eq!(apart.status(), "running");
        let [two, three] = [0, 1].map(|_| sandbox.task(IDLE).start());
        let another = sandbox.pause_pid();
        assert_ne!(another, pause);
        let of = [another, two.pid(), three.pid()].map(|pid| namespace_of(pid, "pid"));
        assert!(of[0] == of[1] && of[1] == of[2], "{of:?}");
        // The record names it: the next shim goes on with it.
        sandbox.kill_shim();
        sandbox.task("true").run().assert_code(0);
        assert_eq!((sandbox.pause_pid(), sandbox.status().as_str()), (another, "ready"));
        if force.is_empty() {
            [apart, two, three].iter().for_each(|task| drop(task.end()));
        }
        host.bowline(["sandbox", "rm", sandbox.id()].iter().chain(force)).assert_code(0);
        host.assert_nothing_left();
    }
}

#[test]
fn a_member_with_its_own_users_shares_only_net_and_uts() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").flag("--share-pid").create();
    let mapped = "mappings = [{container = 0, host = 100000, size = 65536}]";
    let own = format!("command = 'sleep'\nargs = ['1000']\nuid_{mapped}\ngid_{mapped}\nnamespaces.user = 'private'");
    let (one, two) = (sandbox.task(IDLE).start(), sandbox.described(&own).start());
    for kind in ["net", "uts"] {
        assert!(common(&one, &two, kind).is_some(), "{kind}");
    }
    for kind in ["user", "ipc", "pid", "mnt"] {
        assert_eq!(common(&one, &two, kind), None, "{kind}");
    }
    two.exec("echo x >/dev/shm/mine").assert_code(0);
    one.exec("ls /dev/shm").assert_says("");
    one.end();
    two.end();
}
