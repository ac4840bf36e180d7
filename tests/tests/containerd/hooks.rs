//! Hooks of a container of containerd's: what they are given, and what the failure of one does.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Stdio};
use bowline_tests::harness::{eventually, process_exists};
use serde_json::{Value, json};

fn hook(script: &str) -> Value {
    json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin"]})
}

/// A bundle with these hooks.
fn with_hooks(bundle: Bundle, hooks: &Value) -> Bundle {
    bundle.edit(|config| config["hooks"] = hooks.clone())
}

#[test]
fn each_hook_reads_the_state_at_its_point() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 runs poststart hooks on create") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000").annotation("knot", "bowline");
    let at = |name: &str| host.work().join(name);
    let keep = |name: &str| json!([hook(&format!("cat >{}", at(name).display()))]);
    let inside = json!([{ "path": "/bin/sh", "args": ["sh", "-c", "cat >/tmp/state"] }]);
    let points = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    let mut hooks: serde_json::Map<String, Value> =
        points.map(|point| (point.to_owned(), keep(point))).into_iter().collect();
    hooks.insert("startContainer".to_owned(), inside);
    let bundle = with_hooks(bundle, &Value::Object(hooks));
    let shim = containerd.start(&bundle);
    let pid = shim.create(&bundle, &Stdio::null()).expect("created");
    for point in ["prestart", "createRuntime", "createContainer"] {
        assert!(at(point).exists(), "{point} runs on create");
    }
    for point in ["poststart", "poststop"] {
        assert!(!at(point).exists(), "{point} does not run on create");
    }
    let started = bundle.rootfs().join("tmp/state");
    assert!(!started.exists(), "startContainer does not run on create");
    shim.start(&bundle.id, "").expect("started");
    assert!(at("poststart").exists() && started.exists() && !at("poststop").exists());
    shim.kill(&bundle.id, "", 9).expect("sent");
    shim.wait(&bundle.id, "").expect("an end");
    assert!(!at("poststop").exists(), "it runs on delete");
    shim.delete(&bundle.id, "").expect("deleted");
    let state =
        |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).expect("the hook has run")).expect("JSON") };
    let path = bundle.path.to_str().expect("ASCII");
    for (at, status, seen) in [
        (at("prestart"), "creating", Some(pid)),
        (at("createRuntime"), "creating", Some(pid)),
        (at("createContainer"), "creating", Some(1)),
        (started, "created", Some(1)),
        (at("poststart"), "running", Some(pid)),
        (at("poststop"), "stopped", None),
    ] {
        let state = state(&at);
        let name = at.display();
        assert_eq!(state["status"], status, "{name}: {state}");
        assert_eq!(state.get("pid").and_then(Value::as_u64), seen.map(u64::from), "{name}: {state}");
        assert_eq!((&state["id"], &state["bundle"]), (&json!(bundle.id), &json!(path)), "{name}: {state}");
        assert_eq!(state["annotations"]["knot"], "bowline", "{name}: {state}");
        assert_eq!(state["ociVersion"], bundle.config["ociVersion"], "{name}: {state}");
    }
    shim.over();
}

#[test]
fn a_hook_gets_the_arguments_and_the_environment_that_it_names() {
    let host = Host::new();
    let containerd = host.containerd();
    let of = |path: &Path| fs::read_to_string(path).expect("the hook has run");
    let [outside, create, bare] = ["outside", "create", "bare"].map(|name| host.work().join(name));
    let show = |to: &Path| format!("(echo $0; env | grep -vE '^(PWD|SHLVL|_|OLDPWD)='; true) >{}", to.display());
    let bundle = containerd.bundle().script("sleep 1000").edit(|config| {
        config["process"]["env"] = json!(["PATH=/bin", "OWN=yes"]);
        config["hooks"] = json!({
            "createRuntime": [
                {"path": "/bin/sh", "args": ["other", "-c", show(&outside)], "env": ["A=b"]},
                {"path": "/bin/sh", "args": ["other", "-c", show(&bare)], "env": []},
                {"path": "/bin/true", "args": []},
                {"path": "/bin/true"},
            ],
            "createContainer": [{"path": "/bin/sh", "args": ["other", "-c", show(&create)], "env": ["A=b"]}],
            // The image's busybox is what its first argument names.
            "startContainer": [{"path": "/bin/busybox", "args": ["sh", "-c", show(Path::new("/tmp/start"))]}],
        });
    });
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(of(&outside), "other\nA=b\n");
    assert_eq!(of(&create), "other\nA=b\n");
    assert_eq!(of(&bare).lines().next(), Some("other"));
    let image = of(&bundle.rootfs().join("tmp/start"));
    assert!(image.contains("OWN=yes\n"), "it has what the program has: {image}");
    let unwanted =
        image.lines().find(|line| line.contains("TTRPC") || line.contains("BOWLINE") || line.contains("GOMAXPROCS"));
    assert_eq!(unwanted, None, "it has nothing of the shim's");
    shim.end(&bundle.id);
}

#[test]
fn a_poststart_hook_that_fails_stops_the_container() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 runs poststart hooks on create") {
        return;
    }
    let containerd = host.containerd();
    let stopped = host.work().join("stopped");
    let skipped = host.work().join("skipped");
    let bundle = with_hooks(
        containerd.bundle().script("sleep 1000"),
        &json!({
            "poststart": [hook("echo no such bridge >&2; exit 3"), hook(&format!("touch {}", skipped.display()))],
            "poststop": [hook(&format!("touch {}", stopped.display()))],
        }),
    );
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    let failure = shim.start(&bundle.id, "").expect_err("its hook fails");
    assert!(failure.message.contains("poststart") && failure.message.contains('3'), "{failure:?}");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    assert_eq!(shim.status(&bundle.id, ""), "STOPPED");
    assert!(!skipped.exists() && !stopped.exists());
    shim.delete(&bundle.id, "").expect("deleted");
    assert!(stopped.exists());
    containerd.events.wait_for(&bundle.id, "delete");
    assert_eq!(containerd.events.of(&bundle.id), ["create", "exit", "delete"], "it is not told to have started");
    shim.over();
}

#[test]
fn a_poststart_hook_that_hangs_is_killed_with_its_container() {
    let host = Host::new();
    if host.reference_fails("runc waits for the hook") {
        return;
    }
    let containerd = host.containerd();
    let pid = host.work().join("pid");
    let hooks = json!({ "poststart": [hook(&format!("echo $$ >{}; exec sleep 1000", pid.display()))] });
    let bundle = with_hooks(containerd.bundle().script("sleep 1000"), &hooks);
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    let start = shim.start_later(&bundle.id, "");
    let pid: i32 = eventually("the hook runs", || fs::read_to_string(&pid).ok()?.trim().parse().ok());
    shim.kill(&bundle.id, "", 9).expect("sent");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    start.wait().expect_err("its hook was killed");
    eventually("the hook is gone", || (!process_exists(pid)).then_some(()));
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn a_container_that_is_killed_in_its_last_hooks_has_not_started() {
    let host = Host::new();
    if host.reference_fails("runc waits for the hook") {
        return;
    }
    let containerd = host.containerd();
    let hooks =
        json!({ "startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "echo >/tmp/begun; sleep 1000; :"]}] });
    let bundle = with_hooks(containerd.bundle().script("sleep 1000"), &hooks);
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    let start = shim.start_later(&bundle.id, "");
    eventually("the hook runs", || bundle.rootfs().join("tmp/begun").exists().then_some(()));
    shim.kill(&bundle.id, "", 9).expect("sent");
    assert_eq!(shim.status_at_end(&bundle.id, ""), 137);
    start.wait().expect_err("its program was not executed");
    shim.delete(&bundle.id, "").expect("deleted");
    containerd.events.wait_for(&bundle.id, "delete");
    assert_eq!(containerd.events.of(&bundle.id), ["create", "exit", "delete"], "it is not told to have started");
    shim.over();
}

#[test]
fn every_poststop_hook_runs_though_one_fails() {
    let host = Host::new();
    if host.reference_fails("it leaves the rest of the list out") {
        return;
    }
    let containerd = host.containerd();
    let last = host.work().join("last");
    let hooks =
        json!({ "poststop": [hook("exit 3"), { "path": "/no/hook" }, hook(&format!("touch {}", last.display()))] });
    let bundle = with_hooks(containerd.bundle().script("true"), &hooks);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("a failure is only logged");
    assert!(last.exists());
    shim.over();
}

#[test]
fn a_hook_of_start_that_fails_stops_the_container() {
    let host = Host::new();
    if host.reference_fails("runc before 1.2 says so to nobody") {
        return;
    }
    let containerd = host.containerd();
    let stopped = host.work().join("stopped");
    let hooks = json!({
        "startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "echo no libraries >&2; exit 4"]}],
        "poststop": [hook(&format!("touch {}", stopped.display()))],
    });
    let bundle = with_hooks(containerd.bundle().script("sleep 1000"), &hooks);
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::null()).expect("created");
    let failure = shim.start(&bundle.id, "").expect_err("its hook fails");
    assert!(
        failure.message.contains("startContainer hook #0") && failure.message.contains("no libraries"),
        "{failure:?}"
    );
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    assert!(stopped.exists());
    shim.over();
}

/// A script that starts a process in the hook's session, one that leaves it, and one that leaves it and loses its parent.
/// Each writes its pid to `pids`.
fn descendants(pids: &Path) -> String {
    let sleeper = format!("echo $$ >>{}; exec sleep 1000", pids.display());
    // No output: the hook's is complete when it ends.
    let start = format!("sh -c '{sleeper}' & setsid sh -c '{sleeper}' & (setsid sh -c '{sleeper}' &)");
    format!("({start}) >/dev/null 2>&1; until [ $(wc -l <{pids}) = 3 ]; do sleep 0.01; done", pids = pids.display())
}

fn pids_in(file: &Path) -> Vec<i32> {
    let text = fs::read_to_string(file).expect("the hook has run");
    text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

#[test]
fn a_hook_that_takes_too_long_is_killed_with_its_descendants() {
    let host = Host::new();
    if host.reference_fails("it kills the hook alone") {
        return;
    }
    let containerd = host.containerd();
    for point in ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"] {
        let pids = host.work().join(point);
        fs::write(&pids, "").expect("the work folder is writable");
        let mut slow = hook(&format!("{}; echo $$ >>{}; exec sleep 1000", descendants(&pids), pids.display()));
        slow["timeout"] = json!(1);
        // The end of a pid namespace would kill them too.
        let bundle = containerd.bundle().script("sleep 1000").without_namespace("pid").edit(|config| {
            config["hooks"] = json!({ point: [slow] });
            // The image's hooks write there too.
            let work = host.work();
            config["mounts"]
                .as_array_mut()
                .expect("a list")
                .push(json!({"destination": work, "type": "bind", "source": work, "options": ["bind", "rw"]}));
        });
        let shim = containerd.start(&bundle);
        let created = shim.create(&bundle, &Stdio::null());
        let failed = match (point, created) {
            ("prestart" | "createRuntime" | "createContainer", created) => created.map(drop),
            (_, created) => created.and_then(|_| shim.start(&bundle.id, "").map(drop)),
        };
        match failed {
            Err(failure) => {
                assert!(failure.message.contains(point) && failure.message.contains("1s"), "{failure:?}");
                assert_ne!(failure.code, Code::OK);
            }
            Ok(()) => assert_eq!(point, "poststop", "it does not end"),
        }
        if !["prestart", "createRuntime", "createContainer"].contains(&point) {
            let _ = shim.kill(&bundle.id, "", 9);
            shim.wait(&bundle.id, "").expect("an end");
            shim.delete(&bundle.id, "").expect("deleted");
        }
        let all = pids_in(&pids);
        assert_eq!(all.len(), 4, "{point}");
        for pid in all {
            eventually(format!("the end of {pid} at {point}"), || (!process_exists(pid)).then_some(()));
        }
        shim.over();
    }
}

#[test]
fn what_a_hook_leaves_running_lives_on_if_the_hook_ends_in_time() {
    let host = Host::new();
    let containerd = host.containerd();
    let pids = host.work().join("pids");
    fs::write(&pids, "").expect("the work folder is writable");
    let bundle = with_hooks(
        containerd.bundle().script("sleep 1000"),
        &json!({ "createRuntime": [hook(&descendants(&pids)), hook("exit 0")] }),
    );
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    for pid in pids_in(&pids) {
        assert!(process_exists(pid), "{pid}");
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
    }
    shim.end(&bundle.id);
}
