//! Pods through containerd's CRI plugin when something dies that should not: the pod's own process, containerd, the
//! shim. Nothing is left behind.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::cri::Pod;
use bowline_tests::harness::cri::proto::NamespaceMode;
use bowline_tests::harness::{eventually, process_exists};
use rustix::process::{Pid, Signal, kill_process};

/// Kills a process, which is there, and waits until it has gone.
#[track_caller]
fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("a live process");
    eventually("it has gone", || (!process_exists(pid)).then_some(()));
}

#[track_caller]
fn wait_until_not_ready(pod: &Pod<'_, '_>) {
    eventually("the pod is not ready", || (!pod.is_ready()).then_some(()));
}

#[test]
fn a_pod_whose_own_process_dies_first_leaves_no_shim_behind() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleeper = pod.container("sleeper", "sleep 1000").start();
    kill(pod.pid());
    wait_until_not_ready(&pod);
    // With pids of its own it goes on.
    assert!(sleeper.is_running());
    assert_eq!(sleeper.exec("echo still").out(), "still");
    sleeper.stop(0);
    assert_eq!(sleeper.end().0, 137);
    sleeper.remove();
    pod.remove();
    eventually("the shim has gone", || cri.shims().is_empty().then_some(()));
    cri.end();
}

#[test]
fn containers_that_share_pids_end_with_the_pods_own_process() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().pids(NamespaceMode::POD).run();
    let sleepers = ["a", "b"].map(|name| pod.container(name, "sleep 1000").start());
    kill(pod.pid());
    wait_until_not_ready(&pod);
    assert_eq!(sleepers.each_ref().map(|sleeper| sleeper.end().0), [137, 137]);
    pod.remove();
    eventually("the shim has gone", || cri.shims().is_empty().then_some(()));
    cri.end();
}

#[test]
fn pods_are_found_again_when_containerd_dies_and_comes_back() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleeper = pod.container("sleeper", "sleep 1000").start();
    let ending = pod.container("ending", "while [ ! -e /dev/shm/go ]; do sleep 0.05; done; exit 6").start();
    let (ip, pids, shims) = (pod.ip(), [pod.pid(), sleeper.pid(), ending.pid()], cri.shims());
    cri.kill();
    // The shim holds what ends meanwhile.
    fs::write(format!("/proc/{}/root/dev/shm/go", pids[1]), "").expect("root may");
    eventually("the end", || (!process_exists(pids[2])).then_some(()));
    cri.come_back();
    assert!(pod.is_ready());
    assert!(sleeper.is_running());
    assert_eq!((pod.ip(), [pod.pid(), sleeper.pid()], cri.shims()), (ip, [pids[0], pids[1]], shims));
    // containerd 1.7 takes who has no processes for a leftover, and asks no more.
    assert!([6, 255].contains(&ending.end().0));
    assert_eq!(sleeper.exec("echo still").out(), "still");
    let another = pod.container("another", "sleep 1000").start();
    assert!(another.is_running());
    pod.remove();
    cri.end();
}

#[test]
fn a_pod_that_dies_while_containerd_is_away_is_found_dead() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleeper = pod.container("sleeper", "sleep 1000").start();
    let pids = [pod.pid(), sleeper.pid()];
    cri.kill();
    pids.into_iter().for_each(kill);
    cri.come_back();
    wait_until_not_ready(&pod);
    assert_ne!(sleeper.end().0, 0);
    pod.remove();
    eventually("the shim has gone", || cri.shims().is_empty().then_some(()));
    cri.end();
}

#[test]
fn a_shim_killed_while_containerd_is_away_is_cleaned_up_after() {
    let host = Host::new();
    if host.reference_fails("the socket of a shim that was killed stays") {
        return;
    }
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleeper = pod.container("sleeper", "sleep 1000").start();
    let pids = [pod.pid(), sleeper.pid()];
    let shims = cri.shims();
    cri.kill();
    kill(shims[0]);
    cri.come_back();
    wait_until_not_ready(&pod);
    assert_ne!(sleeper.end().0, 0);
    eventually("nothing runs", || pids.iter().all(|pid| !process_exists(*pid)).then_some(()));
    pod.remove();
    cri.end();
}

#[test]
fn a_pod_whose_shim_is_killed_is_cleaned_up_after() {
    let host = Host::new();
    if host.reference_fails("the socket of a shim that was killed stays") {
        return;
    }
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleepers = ["a", "b"].map(|name| pod.container(name, "sleep 1000").start());
    let pids = [pod.pid(), sleepers[0].pid(), sleepers[1].pid()];
    let shims = cri.shims();
    kill(shims[0]);
    wait_until_not_ready(&pod);
    // 137, or 255 where it is the connection's end that containerd heard of first.
    assert!(sleepers.iter().all(|sleeper| [137, 255].contains(&sleeper.end().0)));
    eventually("nothing runs", || pids.iter().all(|pid| !process_exists(*pid)).then_some(()));
    pod.remove();
    cri.end();
}

#[test]
fn a_pod_is_removed_while_its_containers_run() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().run();
    let sleepers = ["a", "b", "c"].map(|name| pod.container(name, "trap '' TERM; sleep 1000").start());
    let pids = sleepers.each_ref().map(|sleeper| sleeper.pid());
    pod.remove();
    assert!(pids.iter().all(|pid| !process_exists(*pid)));
    eventually("the shim has gone", || cri.shims().is_empty().then_some(()));
    cri.end();
}
