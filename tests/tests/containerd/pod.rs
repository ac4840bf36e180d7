//! Containers that share a shim, as those of a pod do.

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Containerd, Shim, Stdio};
use bowline_tests::harness::{eventually, namespace_of, process_exists};
use serde_json::json;

const GROUP: &str = "io.containerd.runc.v2.group";
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";

/// Two containers of a group in one shim: the connection for each, and the ids.
fn pod(host: &Host, containerd: &Containerd<'_>, annotation: &str) -> ([Shim; 2], [String; 2]) {
    let group = host.new_id();
    let members = [(); 2].map(|()| {
        let bundle = containerd.bundle().script("sleep 1000").annotation(annotation, &group);
        let shim = containerd.start(&bundle);
        shim.run(&bundle, &Stdio::null());
        (shim, bundle.id.clone())
    });
    let [(first, a), (second, b)] = members;
    ([first, second], [a, b])
}

#[test]
fn containers_of_a_group_share_a_shim() {
    let host = Host::new();
    let containerd = host.containerd();
    for annotation in [GROUP, SANDBOX] {
        let ([first, second], [a, b]) = pod(&host, &containerd, annotation);
        assert_eq!(first.socket, second.socket, "{annotation}");
        assert_eq!(first.pid(), second.pid());
        assert_eq!(first.status(&b, ""), "RUNNING");
        first.remove(&a);
        second.end(&b);
    }
}

#[test]
fn containers_of_two_groups_do_not() {
    let host = Host::new();
    let containerd = host.containerd();
    let (one, [a, b]) = pod(&host, &containerd, GROUP);
    let (other, [c, d]) = pod(&host, &containerd, GROUP);
    assert_ne!(one[0].pid(), other[0].pid());
    for (pod, ids) in [(one, [a, b]), (other, [c, d])] {
        let [first, second] = pod;
        first.remove(&ids[0]);
        second.end(&ids[1]);
    }
}

#[test]
fn containers_of_no_group_have_a_shim_each() {
    let host = Host::new();
    let containerd = host.containerd();
    let (one, other) = (containerd.run("sleep 1000"), containerd.run("sleep 1000"));
    assert_ne!(one.shim.pid(), other.shim.pid());
    other.shim.end(&other.id);
    one.end();
}

#[test]
fn the_shim_of_a_group_goes_with_its_last_container() {
    let host = Host::new();
    let containerd = host.containerd();
    let ([first, second], [a, b]) = pod(&host, &containerd, GROUP);
    let pid = first.pid();
    first.remove(&a);
    first.shutdown(&a).expect("nothing to do: one remains");
    assert_eq!(second.status(&b, ""), "RUNNING");
    second.remove(&b);
    // It may have gone before it has answered.
    let _ = second.shutdown(&b);
    eventually("the shim ends", || (!process_exists(pid)).then_some(()));
}

#[test]
fn every_bundle_of_a_group_has_the_address() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let bundles = [(); 2].map(|()| containerd.bundle().annotation(GROUP, &group));
    let shims: Vec<_> = bundles.iter().map(|bundle| containerd.start(bundle)).collect();
    for (bundle, shim) in bundles.iter().zip(&shims) {
        assert_eq!(bundle.read("address"), format!("unix://{}", shim.socket.display()));
    }
    let [one, other] = &bundles;
    for bundle in [one, other] {
        shims[0].run(bundle, &Stdio::null());
        shims[0].remove(&bundle.id);
    }
    shims.into_iter().next().expect("a shim").over();
}

#[test]
fn an_end_in_a_group_is_told_of_that_container_alone() {
    let host = Host::new();
    let containerd = host.containerd();
    let ([first, second], [a, b]) = pod(&host, &containerd, GROUP);
    first.kill(&a, "", 9).expect("sent");
    containerd.events.wait_for(&a, "exit");
    assert_eq!(containerd.events.of(&b), ["create", "start"]);
    assert_eq!(second.status(&b, ""), "RUNNING");
    first.remove(&a);
    second.end(&b);
}

#[test]
fn members_of_a_group_may_have_execs_of_one_name() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let bundles = [(); 2].map(|()| containerd.bundle().script("sleep 1000").annotation(GROUP, &group));
    let shim = containerd.start(&bundles[0]);
    for bundle in &bundles {
        shim.run(bundle, &Stdio::null());
    }
    for (bundle, code) in bundles.iter().zip(["3", "4"]) {
        shim.run_exec(bundle, "same", &["/bin/sh", "-c", &format!("exit {code}")], &Stdio::null());
    }
    assert_eq!(shim.status_at_end(&bundles[0].id, "same"), 3);
    assert_eq!(shim.status_at_end(&bundles[1].id, "same"), 4);
    for bundle in &bundles {
        shim.remove(&bundle.id);
    }
    shim.over();
}

#[test]
fn a_group_has_a_new_shim_after_the_first_one_was_killed() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let bundles = [(); 2].map(|()| containerd.bundle().script("sleep 1000").annotation(GROUP, &group));
    let first = containerd.start(&bundles[0]);
    first.kill_shim();
    // The socket's file is still there, and nobody answers.
    assert!(first.socket.exists());
    let second = containerd.start(&bundles[1]);
    assert_eq!(first.socket, second.socket);
    second.run(&bundles[1], &Stdio::null());
    second.end(&bundles[1].id);
}

#[test]
fn a_created_container_shows_pid_sharers_nothing_of_the_host() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1234");
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        let pids = all.iter_mut().find(|namespace| namespace["type"] == "pid").expect("there is one");
        pids["path"] = json!(format!("/proc/{}/ns/pid", running.pid));
    });
    let shim = containerd.start(&bundle);
    let created = shim.create(&bundle, &Stdio::null()).expect("created").cast_signed();
    assert_eq!(namespace_of(created, "pid"), namespace_of(running.pid, "pid"));
    let script = "for p in /proc/[1-9]*; do cat $p/comm; busybox tr '\\0' ' ' < $p/cmdline; echo; done";
    let (_, seen) = running.exec("e", script);
    assert!(seen.contains("sleep 1234") && seen.contains("init"), "{seen}");
    let cannot_be = ["shim", "/run", "/usr", "address"];
    assert!(!cannot_be.iter().any(|text| seen.contains(text)), "{seen}");
    shim.start(&bundle.id, "").expect("started");
    shim.end(&bundle.id);
    running.end();
}
