//! containerd's Sandbox service: its calls, their edges and the codes of their refusals.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::sandbox_api::*;
use bowline_tests::harness::containerd::{Code, Failure, POD, Pod, Sandbox, Stdio, any, api};
use bowline_tests::harness::{eventually, namespace_of, only_v2, process_exists, status_lines};

fn code<R: std::fmt::Debug>(answer: Result<R, Failure>) -> Code {
    answer.expect_err("it is refused").code
}

#[test]
fn a_sandbox_is_created_started_stopped_and_shut_down() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut sandbox = containerd.new_sandbox();
    sandbox.create(|_| ()).expect("created");
    assert_eq!(sandbox.state(), "SANDBOX_NOTREADY");
    let started = sandbox.start().expect("started");
    assert!(process_exists(started.pid.cast_signed()));
    let status = sandbox.status().expect("it is known");
    assert_eq!((status.state.as_str(), status.pid), ("SANDBOX_READY", started.pid));
    assert!(status.created_at.seconds > 0 && status.created_at == started.created_at);
    assert!(status.exited_at.is_none());
    assert_eq!(status.info["pid"], started.pid.to_string());
    assert_eq!(sandbox.shim.connect(&sandbox.id).expect("an answer").task_pid, started.pid);
    sandbox.ping().expect("it is alive");

    sandbox.stop(0).expect("stopped");
    assert!(!process_exists(started.pid.cast_signed()));
    let status = sandbox.status().expect("it is known");
    assert_eq!((status.state.as_str(), status.pid), ("SANDBOX_NOTREADY", started.pid));
    assert!(status.exited_at.seconds > 0);
    sandbox.stop(0).expect("a second time");
    assert_eq!(sandbox.status().expect("it is known").exited_at, status.exited_at, "the end is the first one");
    sandbox.end();
}

#[test]
fn its_end_is_told_to_all_who_wait() {
    let host = Host::new();
    let sandbox = host.containerd().sandbox(&Pod::default());
    let waiting = [sandbox.wait_later(), sandbox.wait_later()];
    sandbox.ping().expect("both came before it");
    sandbox.stop(0).expect("stopped");
    let exited_at = sandbox.status().expect("it is known").exited_at;
    for waiting in waiting.into_iter().chain([sandbox.wait_later()]) {
        let ended = waiting.wait().expect("an end");
        assert_eq!((ended.exit_status, ended.exited_at), (0, exited_at.clone()));
    }
    sandbox.end();
}

#[test]
fn a_call_in_the_wrong_state_is_refused_and_changes_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut sandbox = containerd.new_sandbox();
    assert_eq!(code(sandbox.start()), Code::FAILED_PRECONDITION, "it is not created");
    sandbox.create(|_| ()).expect("created");
    assert_eq!(code(sandbox.create(|_| ())), Code::ALREADY_EXISTS);
    assert_eq!(code(sandbox.create(|request| request.sandbox_id += "2")), Code::ALREADY_EXISTS, "another in this shim");
    assert_eq!(code(sandbox.ping()), Code::FAILED_PRECONDITION);
    let bundle = containerd.bundle().script("sleep 1000");
    let early = sandbox.shim.create(&bundle, &Stdio::null());
    assert_eq!(code(early), Code::FAILED_PRECONDITION, "a member before the sandbox is started");
    let pid = sandbox.start().expect("started").pid;
    assert_eq!(code(sandbox.start()), Code::FAILED_PRECONDITION);
    assert_eq!(sandbox.status().expect("it is known").pid, pid);
    sandbox.pid = pid.cast_signed();
    sandbox.stop(0).expect("stopped");
    assert_eq!(code(sandbox.ping()), Code::FAILED_PRECONDITION);
    assert_eq!(code(sandbox.start()), Code::FAILED_PRECONDITION);
    let late = sandbox.shim.create(&bundle, &Stdio::null());
    assert_eq!(code(late), Code::FAILED_PRECONDITION, "a member after the sandbox was stopped");
    sandbox.end();
}

#[test]
fn another_s_sandbox_is_not_found() {
    let host = Host::new();
    let mut sandbox = host.containerd().sandbox(&Pod::default());
    let (own, pid) = (sandbox.id.clone(), sandbox.pid);
    sandbox.id = "other".to_owned();
    let calls = [
        code(sandbox.start()),
        code(sandbox.status()),
        code(sandbox.stop(0)),
        code(sandbox.wait_later().wait()),
        code(sandbox.ping()),
        code(sandbox.metrics()),
        code(sandbox.shutdown()),
    ];
    assert_eq!(calls, [Code::NOT_FOUND; 7]);
    (sandbox.id, sandbox.pid) = (own, pid);
    assert_eq!(sandbox.state(), "SANDBOX_READY");
    sandbox.end();
}

#[test]
fn a_shim_without_a_sandbox_keeps_its_container() {
    let host = Host::new();
    if host.reference_fails("it has no such call") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let (own, shim) = (bundle.id.clone(), containerd.start(&bundle));
    shim.run(&bundle, &Stdio::null());
    let mut sandbox = Sandbox { id: own.clone(), shim, bundle, pid: 0 };
    assert_eq!(code(sandbox.shutdown()), Code::NOT_FOUND, "the container is no sandbox");
    sandbox.id = "other".to_owned();
    assert_eq!(code(sandbox.shutdown()), Code::NOT_FOUND);
    assert_eq!(sandbox.shim.status(&own, ""), "RUNNING");
    sandbox.shim.end(&own);
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let host = Host::new();
    let containerd = host.containerd();
    let pod = |pod: Pod<'_>| pod.options();
    let refused = |options, rootfs: &[api::Mount]| {
        let sandbox = containerd.new_sandbox();
        let failure = sandbox.create(|request| {
            request.options = Some(options).into();
            request.rootfs = rootfs.to_vec();
        });
        let failure = failure.expect_err("it is refused");
        // As containerd does when nothing came of it.
        sandbox.end();
        (failure.code, failure.message)
    };
    let no_maps = refused(pod(Pod { users: Some((0, None)), ..Pod::default() }), &[]);
    assert!(no_maps.0 == Code::INVALID_ARGUMENT && no_maps.1.contains("userns_options.uids"), "{no_maps:?}");
    for (mode, name) in [(1, "CONTAINER"), (3, "TARGET")] {
        let users = refused(pod(Pod { users: Some((mode, None)), ..Pod::default() }), &[]);
        let named = users.1.contains("user namespace") && users.1.contains(name);
        assert!(users.0 == Code::FAILED_PRECONDITION && named, "{users:?}");
    }
    let unknown = refused(any("nobody.v1.Knows", "x"), &[]);
    assert!(unknown.0 == Code::INVALID_ARGUMENT && unknown.1.contains("nobody.v1.Knows"), "{unknown:?}");
    let garbage = refused(any(POD, "\u{7f}"), &[]);
    assert!(garbage.0 == Code::INVALID_ARGUMENT && garbage.1.contains(POD), "{garbage:?}");
    let rootfs = refused(pod(Pod::default()), &[api::Mount { type_: "bind".into(), ..Default::default() }]);
    assert!(rootfs.0 == Code::FAILED_PRECONDITION && rootfs.1.contains("rootfs"), "{rootfs:?}");
    let relative = containerd.new_sandbox();
    let failure = relative.create(|request| request.netns_path = "proc/self/ns/net".to_owned()).expect_err("relative");
    assert!(failure.code == Code::INVALID_ARGUMENT && failure.message.contains("proc/self/ns/net"), "{failure:?}");
    relative.end();
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let host = Host::new();
    let containerd = host.containerd();
    let missing = |request: &mut CreateSandboxRequest| request.netns_path = "/run/netns/nobodys".to_owned();
    let of_host = |sysctl: &'static str, network: u8| {
        move |request: &mut CreateSandboxRequest| {
            let pod = Pod { network, sysctls: &[(sysctl, "0")], ..Pod::default() };
            request.options = Some(pod.options()).into();
        }
    };
    let fails = |change: &dyn Fn(&mut CreateSandboxRequest), part: &str| {
        let mut sandbox = containerd.new_sandbox();
        sandbox.create(change).expect("created");
        let failure = sandbox.start().expect_err(part);
        assert!(failure.code == Code::INVALID_ARGUMENT && failure.message.contains(part), "{failure:?}");
        assert_eq!(sandbox.status().expect("it is known").pid, 0);
        let shm = sandbox.bundle.path.join("shm");
        let mounted = fs::read_to_string("/proc/self/mounts").expect("procfs").contains(shm.to_str().expect("ASCII"));
        assert!(!mounted, "{part}");
        sandbox.end();
    };
    fails(&missing, "/run/netns/nobodys");
    fails(&of_host("vm.swappiness", 0), "vm.swappiness");
    fails(&of_host("net.ipv4.ip_forward", 2), "net.ipv4.ip_forward");
    fails(&of_host("net.nobody.has_it", 0), "net.nobody.has_it");
}

#[test]
fn it_says_what_it_runs_on() {
    let host = Host::new();
    let sandbox = host.containerd().sandbox(&Pod::default());
    let answer: PlatformResponse = sandbox.send("Platform", &PlatformRequest::new()).wait().expect("an answer");
    assert_eq!(answer.platform.os, "linux");
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    assert_eq!(answer.platform.architecture, architecture);
    sandbox.end();
}

#[test]
fn its_metrics_are_those_of_the_pod_s_cgroup() {
    let host = Host::new();
    let containerd = host.containerd();
    let path = format!("{}/pod", containerd.cgroups());
    let pod = Pod { cgroup: &path, ..Pod::default() };
    let sandbox = containerd.sandbox(&pod);
    assert_eq!(code(sandbox.metrics()), Code::NOT_FOUND, "nobody has made it");
    let bundle = containerd.bundle().script("sleep 1000");
    let bundle = bundle.edit(|config| config["linux"]["cgroupsPath"] = format!("{path}/member").into());
    sandbox.run(&bundle);
    let metrics = sandbox.metrics().expect("metrics").metrics.unwrap();
    assert_eq!(metrics.id, sandbox.id);
    let version = if only_v2() { "v2" } else { "v1" };
    assert_eq!(metrics.data.type_url, format!("io.containerd.cgroups.{version}.Metrics"));
    assert!(metrics.data.value.len() > 100, "{} bytes", metrics.data.value.len());
    sandbox.end();

    let sandbox = containerd.sandbox(&Pod::default());
    assert_eq!(code(sandbox.metrics()), Code::NOT_FOUND, "it has none");
    sandbox.end();
    containerd.remove_pods_cgroup(&path);
}

#[test]
fn the_pause_process_has_nothing_and_may_do_nothing() {
    let host = Host::new();
    let sandbox = host.containerd().sandbox(&Pod::default());
    let pid = sandbox.pid;
    let fds = || fs::read_dir(format!("/proc/{pid}/fd")).expect("root may").count();
    eventually("it has closed everything", || (fds() == 0).then_some(()));
    let rights = status_lines(pid, &["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]);
    assert!(rights.lines().all(|line| line.ends_with("\t0000000000000000")), "{rights}");
    let rest = status_lines(pid, &["Name", "NoNewPrivs", "NSpid", "PPid", "Threads"]);
    let parent = sandbox.shim.pid();
    assert_eq!(rest, format!("Name:\tpause\nPPid:\t{parent}\nNSpid:\t{pid}\t1\nThreads:\t1\nNoNewPrivs:\t1"));
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("it lives");
    assert_eq!(line.trim_end_matches('\0'), "pause", "not a second shim");
    let root = fs::read_dir(format!("/proc/{pid}/root/")).expect("root may").count();
    assert_eq!(root, 0, "an empty root");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("it lives");
    assert!(mounts.lines().count() == 1 && mounts.contains(" / / ro,"), "{mounts}");
    let ours = i32::try_from(std::process::id()).expect("a pid");
    for kind in ["mnt", "net", "ipc", "uts", "pid"] {
        assert_ne!(sandbox.namespace(kind), namespace_of(ours, kind), "{kind}");
    }
    sandbox.end();
}

#[test]
fn a_configuration_in_the_bundle_says_what_no_options_say() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut sandbox = containerd.new_sandbox();
    let config =
        r#"{"ociVersion":"1.2.0","hostname":"given","linux":{"namespaces":[{"type":"uts"},{"type":"mount"}]}}"#;
    fs::write(sandbox.bundle.path.join("config.json"), config).expect("ours");
    sandbox.create(|_| ()).expect("created");
    sandbox.start().expect("started");
    let ours = i32::try_from(std::process::id()).expect("a pid");
    assert_ne!(sandbox.namespace("uts"), namespace_of(ours, "uts"));
    for kind in ["net", "ipc", "pid"] {
        assert_eq!(sandbox.namespace(kind), namespace_of(ours, kind), "{kind} is the host's");
    }
    sandbox.end();

    for (config, part) in [
        ("not JSON", "config.json"),
        (r#"{"ociVersion":"1.2.0","linux":{"namespaces":[{"type":"user"}]}}"#, "namespaces.user"),
        (r#"{"ociVersion":"1.2.0","linux":{"namespaces":[{"type":"ipc","path":"/proc/1/ns/ipc"}]}}"#, "namespaces.ipc"),
        (r#"{"ociVersion":"1.2.0","linux":{"resources":{"memory":{"limit":1}}}}"#, "linux.resources"),
    ] {
        let sandbox = containerd.new_sandbox();
        fs::write(sandbox.bundle.path.join("config.json"), config).expect("ours");
        let failure = sandbox.create(|_| ()).expect_err(part);
        assert!(failure.message.contains(part), "{failure:?}");
        sandbox.end();
    }
}
