//! `bowline metrics` of tasks that containerd has started: found by their bundles, told with their namespaces, and
//! nobody else's shim is asked.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Client, Code, Containerd, Pod, Shim, Stdio, api};
use bowline_tests::harness::metrics::Samples;
use bowline_tests::harness::{eventually, is_slow, process_exists};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// How long a scrape waits for a shim, as documented.
const DEADLINE: Duration = Duration::from_secs(2);
const MEMORY: u64 = 64 << 20;
const WHY: &str = "it tells bowline nothing";

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
}

/// Nothing was wrong with a scrape.
#[track_caller]
fn assert_clean(metrics: &Samples) {
    assert_eq!(metrics.value("bowline_scrape_errors"), 0.0);
}

/// The memory of a task, against the kernel's own figure.
#[track_caller]
fn assert_usage(host: &Host, metrics: &Samples, id: &str) {
    let of = |name: &str| metrics.of_containerds(name, id, ("", host.prefix()), "");
    assert!(of("memory_usage_bytes") > 0.0 && of("memory_usage_bytes") < of("memory_limit_bytes"));
    assert_eq!((of("memory_limit_bytes"), of("up"), of("oom_kills_total")), (MEMORY as f64, 1.0, 0.0));
    assert!(of("cpu_usage_seconds_total") > 0.0 && of("start_time_seconds") > 1e9);
}

#[test]
fn a_task_of_containerds_is_told_of_and_its_execs_are_counted() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let Some(daemon) = host.daemon() else { return };
    let (id, state) = (host.new_id(), host.work().join("state"));
    // Nothing has run yet, and there is no folder for it.
    assert_clean(&host.metrics_with(&state));
    daemon.run_detached_with(&["--null-io", "--memory-limit", &MEMORY.to_string()], &id, "exec sleep 1000");
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_usage(&host, &metrics, &id);
    let of = |metrics: &Samples, name: &str| metrics.of_containerds(name, &id, ("", host.prefix()), "");
    assert_eq!((of(&metrics, "pids"), of(&metrics, "exec_start_seconds_count")), (1.0, 0.0));
    let info = format!(",shim=\"{id}\",cgroup=\"/{}/{id}\"", host.prefix());
    assert_eq!(metrics.of_containerds("info", &id, ("", host.prefix()), &info), 1.0);
    let shim = format!("{{shim=\"{id}\",namespace=\"{}\"}}", host.prefix());
    assert_eq!(metrics.value(&format!("bowline_shim_up{shim}")), 1.0);
    assert!(metrics.value(&format!("bowline_shim_memory_pss_bytes{shim}")) > 0.0);
    assert_eq!((metrics.value("bowline_tasks{state=\"running\"}"), metrics.value("bowline_sandboxes")), (1.0, 0.0));

    daemon.ctr(["task", "exec", "--exec-id", "e", &id, "/bin/sh", "-c", "true"]).assert_code(0);
    assert_ne!(daemon.ctr(["task", "exec", "--exec-id", "f", &id, "nowhere"]).code, Some(0));
    let metrics = host.metrics_with(&state);
    assert_eq!(of(&metrics, "exec_start_seconds_count"), 1.0);
    assert_eq!(metrics.of_containerds("exec_start_seconds_bucket", &id, ("", host.prefix()), ",le=\"+Inf\""), 1.0);
    assert_eq!(of(&metrics, "exec_start_failures_total"), 1.0);
    assert!(of(&metrics, "exec_start_seconds_sum") > 0.0);
    daemon.remove(&id);
    assert!(host.metrics_with(&state).with(&id).is_empty());
    daemon.end();
}

#[test]
fn tasks_of_one_name_in_two_namespaces_and_in_none_are_three() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let Some(daemon) = host.daemon() else { return };
    let (state, other) = (host.work().join("state"), format!("{}-other", host.prefix()));
    let own = host.task("exec sleep 1000").start();
    let id = own.id();
    daemon.run_detached(id, "exec sleep 1000");
    daemon.run_beside(&other, "io.containerd.bowline.v1", id);
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    // bowline's own task has an init.
    for (namespace, pids) in [("", 2.0), (host.prefix(), 1.0), (&other, 1.0)] {
        assert_eq!(metrics.of_containerds("pids", id, ("", namespace), ""), pids);
        assert_eq!(metrics.value(&format!("bowline_shim_up{{shim=\"{id}\",namespace=\"{namespace}\"}}")), 1.0);
    }
    assert_eq!(metrics.value("bowline_tasks{state=\"running\"}"), 3.0);
    daemon.remove_beside(&other, id);
    daemon.remove(id);
    own.end();
    daemon.end();
}

#[test]
fn a_task_of_another_runtime_is_neither_listed_nor_an_error() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let Some(daemon) = host.daemon() else { return };
    let (id, theirs, state) = (host.new_id(), host.new_id(), host.work().join("state"));
    daemon.run_detached(&id, "exec sleep 1000");
    daemon.run_beside("others", "io.containerd.runc.v2", &theirs);
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_eq!(metrics.of_containerds("up", &id, ("", host.prefix()), ""), 1.0);
    assert!(metrics.with(&theirs).is_empty());
    daemon.remove_beside("others", &theirs);
    daemon.remove(&id);
    daemon.end();
}

#[test]
fn no_other_shim_s_socket_is_connected_to() {
    let host = Host::new();
    let containerd = host.containerd();
    let state = host.containerd_state();
    let socket = host.work().join("theirs.sock");
    let theirs = UnixListener::bind(&socket).expect("the work folder is writable");
    theirs.set_nonblocking(true).expect("a socket");
    for (name, text) in [("runtime", "runc"), ("shim-binary-path", "/usr/bin/containerd-shim-runc-v2"), ("other", "")] {
        let bundle = containerd.bundle();
        fs::write(bundle.path.join("address"), format!("unix://{}", socket.display())).expect("ours");
        fs::write(bundle.path.join(name), text).expect("ours");
        assert_clean(&host.metrics_with(&state));
        let came = theirs.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(came, Err(ErrorKind::WouldBlock), "{name}: {text}");
    }
    drop(theirs);
}

#[test]
fn a_pod_of_kubernetes_is_a_sandbox() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let Some(cri) = host.cri() else { return };
    let state = host.work().join("state");
    let pod = cri.pod().on_the_hosts_network().run();
    let containers = ["a", "b"].map(|name| pod.container(name, "exec sleep 1000").start());
    assert_eq!(containers[0].exec("true").code, 0);
    let id = &pod.id;
    let sandbox = |metrics: &Samples, name: &str| {
        metrics.value(&format!("bowline_sandbox_{name}{{sandbox=\"{id}\",namespace=\"k8s.io\"}}"))
    };
    // The kernel counts what has ended a moment longer.
    let metrics = eventually("the exec is gone", || {
        Some(host.metrics_with(&state)).filter(|metrics| sandbox(metrics, "pids") == 4.0)
    });
    let kernels = fs::read_to_string(pod.cgroup("pids").join("pids.current")).expect("a cgroup");
    assert_eq!(kernels.trim(), "4");
    assert_clean(&metrics);
    // The pause container is one of them.
    assert_eq!((sandbox(&metrics, "up"), sandbox(&metrics, "members")), (1.0, 3.0));
    // The test's pause image has a shell that has something sleep.
    for (task, pids) in [(&containers[0].id, 1.0), (&containers[1].id, 1.0), (id, 2.0)] {
        assert_eq!(metrics.of_containerds("pids", task, (id, "k8s.io"), ""), pids);
    }
    let counted = |task: &str| metrics.of_containerds("exec_start_seconds_count", task, (id, "k8s.io"), "");
    assert_eq!((counted(&containers[0].id), counted(&containers[1].id)), (1.0, 0.0));
    assert_eq!(metrics.with("bowline_shim_up"), [format!("bowline_shim_up{{shim=\"{id}\",namespace=\"k8s.io\"}}")]);
    pod.remove();
    cri.end();
}

#[test]
fn what_a_pod_uses_is_told_where_systemd_makes_its_cgroup_too() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let Some(cri) = host.cri_with_systemd() else { return };
    let pod = cri.pod().memory(256 << 20).run();
    let container = pod.container("a", "exec sleep 1000").memory(64 << 20).start();
    let metrics = host.metrics_with(&host.work().join("state"));
    assert_clean(&metrics);
    let sandbox =
        |name: &str| metrics.value(&format!("bowline_sandbox_{name}{{sandbox=\"{}\",namespace=\"k8s.io\"}}", pod.id));
    assert_eq!((sandbox("up"), sandbox("members"), sandbox("memory_limit_bytes")), (1.0, 2.0, 268435456.0));
    assert!(sandbox("memory_usage_bytes") > 0.0);
    let limit = metrics.of_containerds("memory_limit_bytes", &container.id, (&pod.id, "k8s.io"), "");
    assert_eq!(limit, MEMORY as f64);
    pod.remove();
    cri.end();
}

/// Two containers of a group in one shim, and the group's name.
fn group(host: &Host, containerd: &Containerd<'_>) -> ([Shim; 2], [String; 2], String) {
    let group = host.new_id();
    let [(first, a), (second, b)] = [(); 2].map(|()| {
        let bundle = containerd.bundle().script("exec sleep 1000").annotation("io.kubernetes.cri.sandbox-id", &group);
        let shim = containerd.start(&bundle);
        shim.run(&bundle, &Stdio::null());
        (shim, bundle.id.clone())
    });
    ([first, second], [a, b], group)
}

#[test]
fn a_shim_of_several_is_asked_once_and_is_down_with_all_of_them() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let ([first, second], ids, group) = group(&host, &containerd);
    let namespace = containerd.namespace();
    let up = format!("bowline_shim_up{{shim=\"{group}\",namespace=\"{namespace}\"}}");
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_eq!((metrics.with("bowline_shim_up"), metrics.value(&up)), (vec![up.as_str()], 1.0));
    let members = format!("bowline_sandbox_members{{sandbox=\"{group}\",namespace=\"{namespace}\"}}");
    assert_eq!(metrics.value(&members), 2.0);
    // What it uses would be all that is in that cgroup, of whomever.
    assert_eq!(metrics.with("bowline_sandbox_memory"), [""; 0]);

    let pid = first.pid();
    signal(pid, Signal::STOP);
    let metrics = host.metrics_with(&state);
    assert_eq!((metrics.value(&up), metrics.value("bowline_scrape_errors")), (0.0, 1.0), "one shim, one error");
    let sandbox = format!("bowline_sandbox_up{{sandbox=\"{group}\",namespace=\"{namespace}\"}}");
    assert_eq!(metrics.value(&sandbox), 0.0);
    for id in &ids {
        assert_eq!(metrics.of_containerds("up", id, (&group, namespace), ""), 0.0);
        assert!(metrics.with(&format!("bowline_task_state{{task=\"{id}\"")).is_empty(), "nobody knows");
    }
    signal(pid, Signal::CONT);
    assert_eq!(host.metrics_with(&state).value(&up), 1.0);
    first.remove(&ids[0]);
    second.end(&ids[1]);
}

#[test]
fn a_shim_that_is_stopped_holds_up_no_scrape_and_nobody_else() {
    let host = Host::alone();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let (stuck, well) = (containerd.run("exec sleep 1000"), containerd.run("exec sleep 1000"));
    let own = host.task("exec sleep 1000").start();
    let exporter = host.exporter(["--containerd", state.to_str().expect("ASCII")]);
    let place = ("", containerd.namespace());
    let pid = stuck.shim.pid();
    signal(pid, Signal::STOP);
    let asked = Instant::now();
    let metrics = exporter.scrape();
    let took = asked.elapsed();
    assert!(took >= DEADLINE / 2 && (is_slow() || took < 2 * DEADLINE), "{took:?}");
    assert_eq!(metrics.value("bowline_scrape_errors"), 1.0);
    assert_eq!(metrics.of_containerds("up", &stuck.id, place, ""), 0.0);
    assert_eq!(metrics.of_containerds("up", &well.id, place, ""), 1.0);
    assert_eq!(metrics.of_containerds("pids", &well.id, place, ""), 1.0);
    assert_eq!(metrics.of_task("up", own.id(), ""), 1.0);
    signal(pid, Signal::CONT);
    let metrics = exporter.scrape();
    assert_clean(&metrics);
    assert_eq!(metrics.of_containerds("up", &stuck.id, place, ""), 1.0);
    exporter.end(Signal::TERM);
    own.end();
    stuck.shim.end(&stuck.id);
    well.end();
}

#[test]
fn limits_ends_and_deaths_are_told_while_the_bundle_is_there() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let place = ("", containerd.namespace());
    let bundle = containerd.bundle().script("exec sleep 1000").memory(MEMORY);
    let bundle = bundle.edit(|config| config["linux"]["resources"]["pids"] = json!({"limit": 50}));
    let shim = containerd.start(&bundle);
    // There is a shim, and nothing of it yet.
    assert_clean(&host.metrics_with(&state));
    shim.create(&bundle, &Stdio::null()).expect("created");
    let metrics = host.metrics_with(&state);
    assert_eq!(metrics.of_containerds("state", &bundle.id, place, ",state=\"created\""), 1.0);
    shim.start(&bundle.id, "").expect("started");
    let metrics = host.metrics_with(&state);
    assert_usage(&host, &metrics, &bundle.id);
    assert_eq!(metrics.of_containerds("pids_limit", &bundle.id, place, ""), 50.0);
    shim.kill(&bundle.id, "", 9).expect("sent");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    let of = |name: &str| metrics.of_containerds(name, &bundle.id, place, "");
    assert_eq!((of("exit_code"), of("oom_killed")), (137.0, 0.0));
    assert_eq!(metrics.of_containerds("state", &bundle.id, place, ",state=\"exited\""), 1.0);
    assert!(metrics.with("bowline_task_up").is_empty());
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert!(metrics.with(&bundle.id).is_empty(), "containerd has yet to remove the bundle");

    let dead = containerd.run("exec sleep 1000");
    dead.shim.kill_shim();
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_eq!(metrics.of_containerds("up", &dead.id, place, ""), 0.0);
    assert_eq!(metrics.of_containerds("state", &dead.id, place, ",state=\"dead\""), 1.0);
    let shim = format!("bowline_shim_up{{shim=\"{}\",namespace=\"{}\"}}", dead.id, place.1);
    assert_eq!(metrics.value(&shim), 0.0);
    containerd.delete_action(&dead.bundle);
    eventually("init ends", || (!process_exists(dead.pid)).then_some(()));
    let _ = fs::remove_file(&dead.shim.socket);
}

#[test]
fn a_sandbox_of_the_sandbox_service_is_listed_with_members() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let path = format!("{}/pod", containerd.cgroups());
    let sandbox = containerd.sandbox(&Pod { cgroup: &path, ..Pod::default() });
    // As containerd does.
    let put = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).expect("ours");
    put(&sandbox.bundle.path, "shim-binary-path", "/usr/bin/containerd-shim-bowline-v1");
    let namespace = containerd.namespace();
    let of = |metrics: &Samples, name: &str| {
        metrics.value(&format!("bowline_sandbox_{name}{{sandbox=\"{}\",namespace=\"{namespace}\"}}", sandbox.id))
    };
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_eq!((of(&metrics, "up"), of(&metrics, "members")), (1.0, 0.0));
    assert_eq!(metrics.with("bowline_task_info"), [""; 0], "its pause process is no task");

    let bundle = sandbox.member(containerd.bundle().script("exec sleep 1000"), &["network", "ipc", "uts"]);
    let bundle = bundle.edit(|config| config["linux"]["cgroupsPath"] = format!("{path}/member").into());
    put(&bundle.path, "sandbox", &sandbox.id);
    let address = json!({"version": 3, "address": format!("unix://{}", sandbox.shim.socket.display())});
    put(&bundle.path, "bootstrap.json", &address.to_string());
    sandbox.run(&bundle);
    let metrics = host.metrics_with(&state);
    assert_clean(&metrics);
    assert_eq!((of(&metrics, "members"), of(&metrics, "pids")), (1.0, 1.0));
    assert!(of(&metrics, "memory_usage_bytes") > 0.0);
    assert_eq!(metrics.of_containerds("pids", &bundle.id, (&sandbox.id, namespace), ""), 1.0);
    assert_eq!(metrics.with("bowline_shim_up").len(), 1);
    sandbox.shim.remove(&bundle.id);
    sandbox.end();
    containerd.remove_pods_cgroup(&path);
}

#[test]
fn what_is_damaged_is_an_error_and_hides_nobody() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let running = containerd.run("exec sleep 1000");
    let place = ("", containerd.namespace());
    let odd = containerd.bundle();
    fs::write(odd.path.join("runtime"), "io.containerd.bowline.v1").expect("ours");
    for (name, text) in [
        ("bootstrap.json", "{"),
        ("bootstrap.json", ""),
        ("bootstrap.json", "{\"version\":3}"),
        ("bootstrap.json", "{\"address\":\"tcp://127.0.0.1:1\"}"),
        ("address", ""),
        ("address", "\0\u{fffd}"),
        ("address", "unix://relative"),
    ] {
        fs::write(odd.path.join(name), text).expect("ours");
        let metrics = host.metrics_with(&state);
        assert_eq!(metrics.value("bowline_scrape_errors"), 1.0, "{name}: {text:?}");
        assert_eq!(metrics.of_containerds("up", &running.id, place, ""), 1.0);
        assert!(metrics.with(&odd.id).is_empty());
        fs::remove_file(odd.path.join(name)).expect("ours");
    }
    // An address of nobody's, with nothing that says that there is a task, is none that is missed.
    fs::write(odd.path.join("address"), "unix:///run/no-such-socket").expect("ours");
    assert_clean(&host.metrics_with(&state));
    // What is no bundle, and what is no namespace.
    fs::write(host.work().join("b/file"), "").expect("ours");
    let metrics = host.metrics_with(&state);
    assert_eq!(metrics.of_containerds("up", &running.id, place, ""), 1.0);
    fs::write(running.bundle.path.join("exit.json"), "{").expect("ours");
    let metrics = host.metrics_with(&state);
    assert!(metrics.value("bowline_scrape_errors") >= 1.0);
    assert_eq!(metrics.of_containerds("up", &running.id, place, ""), 1.0, "told of in part");
    fs::remove_file(running.bundle.path.join("exit.json")).expect("ours");
    running.end();
}

#[test]
fn a_folder_that_is_not_there_is_refused_where_it_is_asked_for() {
    let host = Host::new();
    let missing = host.work().join("missing");
    let file = host.file("file", "");
    for path in [&missing, &file] {
        let path = path.to_str().expect("ASCII");
        for args in [&["--once"][..], &[]] {
            let ran = host.bowline([&["metrics", "--containerd", path], args].concat());
            ran.assert_refused(125, &["--containerd", path]);
            assert!(ran.err().contains("hint: "), "{ran}");
        }
    }
    assert!(!host.state().exists());
}

#[test]
fn nothing_else_of_our_own_protocol_is_served_to_containerd() {
    let host = Host::new();
    if host.reference_fails(WHY) {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("exec sleep 1000");
    let client = Client::connect(&running.shim.socket, containerd.namespace()).expect("it listens");
    let call = |method: &str| {
        let nothing = api::ShutdownRequest::new();
        client.send::<api::Empty>("bowline.v1.Bowline", method, &nothing, Duration::ZERO).wait()
    };
    call("Figures").expect("figures");
    call("Facts").expect("facts");
    for method in ["Launch", "Signal", "Stop", "Exec", "Stats", "Version", "RemoveSandbox", ""] {
        assert_eq!(call(method).expect_err("it is not there").code, Code::UNIMPLEMENTED, "{method}");
    }
    running.shim.assert_alive();
    running.end();
}
