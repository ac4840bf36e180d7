//! Pods through containerd's CRI plugin: one shim for each, and what its containers share.

use std::collections::BTreeSet;
use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::cri::proto::{LinuxContainerResources, NamespaceMode};
use bowline_tests::harness::cri::{Container, Cri, Pod, parent_of};
use bowline_tests::harness::{cgroup_of, eventually, namespace_of, only_v2, process_exists};

/// The namespaces of these processes that are of one kind.
fn namespaces(kind: &str, pids: &[i32]) -> BTreeSet<String> {
    pids.iter().map(|pid| namespace_of(*pid, kind)).collect()
}

fn ours(kind: &str) -> String {
    namespace_of(std::process::id().cast_signed(), kind)
}

/// A pod with two containers that sleep, their pids after that of the pod's own process.
fn two<'p, 'c, 'h>(pod: &'p Pod<'c, 'h>) -> ([Container<'p, 'c, 'h>; 2], [i32; 3]) {
    let containers = ["a", "b"].map(|name| pod.container(name, "sleep 1000").start());
    let pids = [pod.pid(), containers[0].pid(), containers[1].pid()];
    (containers, pids)
}

#[test]
fn a_pod_has_one_shim() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let (_containers, pids) = two(&pod);
    let shims = cri.shims();
    assert_eq!(shims.len(), 1, "{shims:?}");
    assert_eq!(pids.map(parent_of), [Some(shims[0]); 3]);
    pod.remove();
    eventually("the shim has gone", || cri.shims().is_empty().then_some(()));
    cri.end();
}

#[test]
fn two_pods_have_two_shims_and_share_nothing() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let (one, other) = (cri.pod().run(), cri.pod().run());
    let (_ones, [first, ..]) = two(&one);
    assert_eq!(cri.shims().len(), 2);
    for kind in ["net", "ipc", "uts", "pid", "mnt"] {
        assert_ne!(namespace_of(first, kind), namespace_of(other.pid(), kind), "{kind}");
    }
    assert_ne!(one.ip(), other.ip());
    one.remove();
    eventually("a shim has gone", || (cri.shims().len() == 1).then_some(()));
    assert!(other.is_ready());
    other.remove();
    cri.end();
}

#[test]
fn containers_of_a_pod_share_net_ipc_and_uts_but_not_pids() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let ([a, b], pids) = two(&pod);
    for kind in ["net", "ipc", "uts"] {
        assert_eq!(namespaces(kind, &pids).len(), 1, "{kind}");
        assert_ne!(namespace_of(pids[0], kind), ours(kind), "{kind}");
    }
    for kind in ["pid", "mnt"] {
        assert_eq!(namespaces(kind, &pids).len(), 3, "{kind}");
    }
    for container in [&a, &b] {
        assert_eq!(container.exec("hostname").out(), pod.name());
        assert_eq!(container.exec("ps -o pid= | head -n 1").out().trim(), "1");
        assert!(container.exec("busybox ip address show eth0").out().contains(&format!("inet {}/", pod.ip())));
    }
    a.exec("echo seen > /dev/shm/file").out();
    assert_eq!(b.exec("cat /dev/shm/file").out(), "seen");
    pod.remove();
    cri.end();
}

#[test]
fn a_container_reaches_another_of_its_pod_at_the_loopback() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let _server = pod.container("server", "while :; do echo hello | busybox nc -l -p 8080; done").start();
    let client = pod.container("client", "sleep 1000").start();
    eventually("an answer", || {
        let answer = client.exec("busybox nc 127.0.0.1 8080 </dev/null");
        (answer.stdout == "hello\n").then_some(())
    });
    pod.remove();
    cri.end();
}

/// How pids are, of a pod that asks for this.
fn pids_of(cri: &Cri<'_>, mode: NamespaceMode, test: impl FnOnce(&[Container<'_, '_, '_>; 2], [i32; 3])) {
    let pod = cri.pod().pids(mode).run();
    let (containers, pids) = two(&pod);
    test(&containers, pids);
    pod.remove();
}

#[test]
fn a_pod_that_shares_pids_sees_all_of_them() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    pids_of(&cri, NamespaceMode::POD, |[a, b], pids| {
        assert_eq!(namespaces("pid", &pids).len(), 1);
        assert_ne!(namespace_of(pids[0], "pid"), ours("pid"));
        // One sleeps in each container, and one in the pod's own process.
        for container in [a, b] {
            let seen = container.exec("ps -o pid=,args= | grep -c '[s]leep 1000$'");
            assert_eq!(seen.out(), "3");
        }
    });
    cri.end();
}

#[test]
fn a_pod_may_see_the_pids_of_the_host() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    pids_of(&cri, NamespaceMode::NODE, |[a, _], pids| {
        assert_eq!(namespaces("pid", &pids), BTreeSet::from([ours("pid")]));
        assert_eq!(a.exec(&format!("test -e /proc/{} && echo seen", std::process::id())).out(), "seen");
    });
    cri.end();
}

#[test]
fn a_container_may_see_the_pids_of_another_alone() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let ([a, _b], pids) = two(&pod);
    let debugger = pod.container("debugger", "sleep 2000").with_pids_of(&a).start();
    assert_eq!(namespaces("pid", &[pids[1], debugger.pid()]).len(), 1);
    assert_eq!(debugger.exec("ps -o args= | grep -c '^sleep'").out(), "2");
    debugger.stop(0);
    assert_eq!(debugger.end().0, 137);
    assert!(a.is_running());
    pod.remove();
    cri.end();
}

#[test]
fn where_pids_are_shared_a_container_s_processes_end_with_it() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    pids_of(&cri, NamespaceMode::POD, |[a, b], pids| {
        a.exec("setsid sleep 3000 >/dev/null 2>&1 </dev/null &").out();
        let all = eventually("it runs", || Some(a.pids()).filter(|all| all.len() == 2));
        a.stop(0);
        assert_eq!(a.end().0, 137);
        assert!(all.iter().all(|pid| !process_exists(*pid)));
        assert!(b.is_running() && process_exists(pids[0]));
    });
    cri.end();
}

#[test]
fn a_pod_on_the_hosts_network_is_in_its_namespaces() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let (_containers, pids) = two(&pod);
    for kind in ["net", "uts"] {
        assert_eq!(namespaces(kind, &pids), BTreeSet::from([ours(kind)]), "{kind}");
    }
    assert_eq!(namespaces("ipc", &pids).len(), 1);
    assert_ne!(namespace_of(pids[0], "ipc"), ours("ipc"));
    assert_eq!(cri.shims().len(), 1);
    pod.remove();
    cri.end();
}

#[test]
fn containers_are_in_cgroups_below_that_of_their_pod() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let ([a, b], pids) = two(&pod);
    let controller = if only_v2() { "" } else { "memory" };
    for (pid, id) in pids.iter().zip([&pod.id, &a.id, &b.id]) {
        let expected = format!("/{}/pod{}/{id}", host.prefix(), pod.name());
        assert_eq!(cgroup_of(*pid).get(controller), Some(&expected));
    }
    pod.remove();
    cri.end();
}

#[test]
fn systemd_has_a_scope_per_container_in_the_slice_of_its_pod() {
    let host = Host::new();
    let Some(cri) = host.cri_with_systemd() else { return };
    let pod = cri.pod().memory(256 << 20).run();
    let limited = pod.container("limited", "sleep 1000").memory(64 << 20).start();
    for (pid, id) in [(pod.pid(), &pod.id), (limited.pid(), &limited.id)] {
        let cgroup = cgroup_of(pid);
        let slice = format!("{}-pod{}.slice", host.prefix(), pod.name().replace('-', "_"));
        let expected = format!("/{slice}/cri-containerd-{id}.scope");
        assert!(cgroup[""].ends_with(&expected), "{cgroup:?} and not {expected}");
    }
    let of_the_pod = fs::read_to_string(pod.cgroup("memory").join("memory.max")).expect("a limit");
    assert_eq!(of_the_pod.trim_end(), (256 << 20).to_string());
    assert_eq!(limited.cgroup_file("memory", "memory.max"), (64 << 20).to_string());
    let update = LinuxContainerResources { memory_limit_in_bytes: 128 << 20, ..Default::default() };
    limited.update(update);
    assert_eq!(limited.cgroup_file("memory", "memory.max"), (128 << 20).to_string());
    assert_eq!(limited.exec("echo in").out(), "in");
    let greedy = pod.container("greedy", "exec dd if=/dev/zero of=/dev/null bs=256M count=1").memory(64 << 20).start();
    // systemd removes an empty scope with its counts, at times before they are read:
    // who killed it is then not known, to any shim.
    let (code, reason) = greedy.end();
    assert!(code == 137 && ["OOMKilled", "Error"].contains(&&*reason), "{code} {reason}");
    assert_eq!(cri.shims().len(), 1);
    pod.remove();
    cri.end();
}
