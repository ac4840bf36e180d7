//! What a shim is given that makes no sense: an error, after which it serves on and nothing is left.

use std::fs;
use std::os::unix::fs::symlink;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Shim, Stdio, any, is_reference, protobuf};
use bowline_tests::harness::eventually;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

/// Create of this bundle fails, with a text that names `what`, and the shim lives: the failure's text.
#[track_caller]
fn refused(host: &Host, containerd: &Containerd<'_>, bundle: &Bundle, io: &Stdio) -> String {
    // A bundle of which even the annotations cannot be read may fail `start` already.
    let said = match containerd.try_start(bundle, None) {
        Err(said) => said,
        Ok(socket) => {
            let shim = containerd.dial(&socket);
            let failure = shim.create(bundle, io).expect_err("a Create that makes no sense");
            assert_eq!(shim.state(&bundle.id, "").expect_err("there is none").code, Code::NOT_FOUND);
            shim.assert_alive();
            shim.over();
            failure.message
        }
    };
    host.assert_nothing_left();
    said
}

/// A shim that serves a container, to be bothered.
fn is_served(shim: &Shim, id: &str) {
    assert_eq!(shim.status(id, ""), "RUNNING");
}

#[test]
fn a_configuration_that_is_no_json() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().write("this is { no JSON");
    assert_ne!(refused(&host, &containerd, &bundle, &Stdio::null()), "");
}

#[test]
fn a_configuration_that_is_cut_off() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let half = bundle.read("config.json");
    let bundle = bundle.write(&half[..half.len() / 2]);
    refused(&host, &containerd, &bundle, &Stdio::null());
}

#[test]
fn a_configuration_that_is_not_ocis() {
    let host = Host::new();
    let containerd = host.containerd();
    for text in ["[]", "{}", r#"{"ociVersion":"1.0.2","process":"none"}"#, "null", "12"] {
        let bundle = containerd.bundle().write(text);
        let failed = match containerd.try_start(&bundle, None) {
            Err(_) => true,
            Ok(socket) => {
                let shim = containerd.dial(&socket);
                let failed = shim.create(&bundle, &Stdio::null()).is_err();
                shim.over();
                failed
            }
        };
        assert!(failed, "{text}");
    }
}

#[test]
fn no_configuration_at_all() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    fs::remove_file(bundle.path.join("config.json")).expect("ours");
    let said = refused(&host, &containerd, &bundle, &Stdio::null());
    assert!(said.contains("config.json"), "{said}");
}

#[test]
fn an_unknown_namespace() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().edit(|config| {
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "dreams" }));
    });
    let said = refused(&host, &containerd, &bundle, &Stdio::null());
    assert!(said.contains("dreams"), "{said}");
}

/// Each is refused when the container is created, not when it is started: a manager creates nothing that cannot start.
#[test]
fn a_process_that_the_kernel_would_refuse() {
    for (process, part) in [
        (json!({"capabilities": {"bounding": [], "inheritable": ["CAP_CHOWN"]}}), "CAP_CHOWN"),
        (json!({"capabilities": {"permitted": ["CAP_KILL"], "effective": ["CAP_CHOWN"]}}), "effective"),
        (json!({"rlimits": [{"type": "RLIMIT_NOFILE", "soft": u64::MAX - 1, "hard": u64::MAX - 1}]}), "RLIMIT_NOFILE"),
    ] {
        let host = Host::new();
        let containerd = host.containerd();
        let bundle = containerd.bundle().edit(|config| {
            for (field, value) in process.as_object().expect("fields") {
                config["process"][field] = value.clone();
            }
        });
        let said = refused(&host, &containerd, &bundle, &Stdio::null());
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_namespace_to_join_that_is_none() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        all.retain(|namespace| namespace["type"] != "network");
        all.push(json!({ "type": "network", "path": "/nowhere/ns" }));
    });
    let said = refused(&host, &containerd, &bundle, &Stdio::null());
    assert!(said.contains("/nowhere/ns"), "{said}");
}

#[test]
fn a_root_filesystem_that_is_not_there() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("true").rootfs_aside("elsewhere");
    fs::remove_dir(bundle.rootfs()).expect("ours");
    let said = refused(&host, &containerd, &bundle, &Stdio::null());
    assert!(said.contains("rootfs"), "{said}");
}

#[test]
fn a_mount_whose_source_is_not_there_is_named_once() {
    let nowhere =
        |options: &[&str]| json!({ "type": "bind", "destination": "/x", "source": "/nowhere", "options": options });
    for mount in [nowhere(&["bind"]), nowhere(&["rbind", "rshared"])] {
        let host = Host::new();
        let containerd = host.containerd();
        let said = refused(&host, &containerd, &containerd.bundle().mount(&mount), &Stdio::null());
        assert!(said.contains("/nowhere"), "{said}");
        assert!(is_reference() || said.matches("mount /x: ").count() == 1, "{said}");
    }
}

#[test]
fn an_empty_command() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().args(&[]);
    refused(&host, &containerd, &bundle, &Stdio::null());
}

#[test]
fn a_working_folder_that_is_a_file() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().edit(|config| config["process"]["cwd"] = json!("/etc/passwd"));
    refused(&host, &containerd, &bundle, &Stdio::null());
}

#[test]
fn options_of_an_unknown_type() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.options = protobuf::MessageField::some(any("nobodys.Options", "nonsense"));
    let failure = shim.create_by(&request).expect_err("nobody knows these");
    assert!(failure.message.contains("nobodys.Options"), "{failure:?}");
    shim.over();
}

#[test]
fn options_that_are_not_what_their_type_says() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.options = protobuf::MessageField::some(any("containerd.runc.v1.Options", [0xff; 9]));
    shim.create_by(&request).expect_err("no message");
    shim.assert_alive();
    shim.over();
}

#[test]
fn a_bundle_that_is_a_symlink_is_not_left_or_refused_halfway() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 3");
    let link = host.work().join("link");
    symlink(&bundle.path, &link).expect("the work folder is writable");
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.bundle = link.to_str().expect("ASCII").to_owned();
    // Either is an answer.
    match shim.create_by(&request) {
        Err(_) => {
            assert_eq!(shim.state(&bundle.id, "").expect_err("there is none").code, Code::NOT_FOUND);
        }
        Ok(_) => {
            shim.start(&bundle.id, "").expect("started");
            assert_eq!(shim.status_at_end(&bundle.id, ""), 3);
            shim.delete(&bundle.id, "").expect("deleted");
        }
    }
    assert!(link.is_symlink(), "it is not the shim's to remove");
    shim.over();
}

#[test]
fn an_id_that_leads_elsewhere() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    for id in ["../elsewhere", "..", "a/../../b", "/etc", ""] {
        let mut request = shim.creation(&bundle, &Stdio::null());
        request.id = id.to_owned();
        shim.create_by(&request).expect_err(id);
    }
    shim.assert_alive();
    shim.over();
}

#[test]
fn fifos_that_do_not_exist() {
    let host = Host::new();
    if host.reference_fails("it leaves init and its cgroups behind") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let path = |name: &str| bundle.path.join(name).to_str().expect("ASCII").to_owned();
    let io = Stdio { stdin: path("no-in"), stdout: path("no-out"), stderr: path("no-err"), terminal: false };
    let said = refused(&host, &containerd, &bundle, &io);
    assert!(said.contains("no-"), "{said}");
    assert!(!bundle.path.join("no-out").exists(), "it is not the shim's to make");
}

#[test]
fn fifos_of_an_exec_that_do_not_exist() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let path = |name: &str| running.bundle.path.join(name).to_str().expect("ASCII").to_owned();
    let io = Stdio { stdin: String::new(), stdout: path("no-out"), stderr: path("no-err"), terminal: false };
    let process = running.bundle.process(&["true"]);
    let added = running.shim.exec(&running.id, "e", &process, &io);
    let started = added.and_then(|_| {
        let started = running.shim.start(&running.id, "e");
        running.shim.delete(&running.id, "e").expect("deleted");
        started
    });
    started.expect_err("no FIFO");
    assert_eq!(running.exec("e", "echo alive").1, "alive\n");
    running.end();
}

#[test]
fn a_fifo_that_is_a_folder() {
    let host = Host::new();
    if host.reference_fails("it leaves init and its cgroups behind") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    refused(&host, &containerd, &bundle, &Stdio::uri(host.work().to_str().expect("ASCII")));
}

#[test]
fn resources_that_are_no_json() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.update(&running.id, &json!("nonsense")).expect_err("no resources");
    running.shim.update(&running.id, &json!({ "memory": { "limit": "much" } })).expect_err("no number");
    is_served(&running.shim, &running.id);
    running.end();
}

#[test]
fn a_signal_that_there_is_not() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    running.shim.kill(&running.id, "", 99).expect_err("no such signal");
    is_served(&running.shim, &running.id);
    running.end();
}

#[test]
fn a_frame_that_is_garbage() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let small = [0, 0, 0, 5, 0, 0, 0, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff];
    for garbage in [&small[..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0xff; 64], &[0, 0], &[]] {
        let other = containerd.dial(&running.shim.socket);
        other.client.send_raw(garbage).expect("a socket");
        is_served(&running.shim, &running.id);
        drop(other);
    }
    is_served(&running.shim, &running.id);
    running.end();
}

#[test]
fn a_frame_that_claims_a_hundred_megabytes() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.pid();
    let rss = || -> u64 {
        let line = bowline_tests::harness::status_lines(pid, &["VmRSS"]);
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    };
    let before = rss();
    let others: Vec<_> = (0..5)
        .map(|_| {
            let other = containerd.dial(&running.shim.socket);
            let claim = 100_000_000_u32.to_be_bytes();
            let header = [claim[0], claim[1], claim[2], claim[3], 0, 0, 0, 1, 1, 0];
            other.client.send_raw(&header).expect("a socket");
            // It may have hung up.
            let _ = other.client.send_raw(&[b'x'; 10_000]);
            other
        })
        .collect();
    for _ in 0..20 {
        is_served(&running.shim, &running.id);
    }
    assert!(rss() < before + 50_000, "{before} kB became {}", rss());
    drop(others);
    running.end();
}

#[test]
fn clients_that_connect_and_say_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.pid();
    let fds = || bowline_tests::harness::fds_of(pid).len();
    // What the first exec makes for those to come.
    assert_eq!(running.exec("first", "exit 3").0, 3);
    let before = running.shim.settled_fds();
    let silent: Vec<_> = (0..100).map(|_| containerd.dial(&running.shim.socket)).collect();
    is_served(&running.shim, &running.id);
    assert_eq!(running.exec("e", "exit 3").0, 3);
    drop(silent);
    eventually("their connections are closed", || (fds() <= before).then_some(()));
    running.end();
}

#[test]
fn more_clients_than_there_is_room_for() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let pid = running.shim.pid();
    let fds = || bowline_tests::harness::fds_of(pid).len();
    let before = running.shim.settled_fds();
    let shim = Pid::from_raw(pid);
    let room = |limit| Rlimit { current: Some(limit), maximum: getrlimit(Resource::Nofile).maximum };
    let had = prlimit(shim, Resource::Nofile, room(before as u64 + 10)).expect("a process of ours");
    let silent: Vec<_> = (0..30).map(|_| containerd.dial(&running.shim.socket)).collect();
    eventually("it has taken as many as it can", || (fds() >= before + 10).then_some(()));
    is_served(&running.shim, &running.id);
    drop(silent);
    eventually("their connections are closed", || (fds() <= before).then_some(()));
    // Those that waited were taken or sent away in between; the next is served.
    let served = || containerd.dial(&running.shim.socket).state(&running.id, "").is_ok();
    eventually("there is room again", || served().then_some(()));
    prlimit(shim, Resource::Nofile, had).expect("a process of ours");
    running.end();
}

#[test]
fn a_client_that_hangs_up_in_the_middle_of_a_frame() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for _ in 0..20 {
        let other = containerd.dial(&running.shim.socket);
        other.client.send_raw(&[0, 0, 1, 0, 0, 0, 0, 1, 1, 0, b'x']).expect("a socket");
    }
    is_served(&running.shim, &running.id);
    running.end();
}

#[test]
fn a_service_that_there_is_not() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let mut other = containerd.dial(&running.shim.socket);
    other.service = "nobodys.Service";
    let failure = other.state(&running.id, "").expect_err("no such service");
    assert_eq!(failure.code, Code::UNIMPLEMENTED, "{failure:?}");
    is_served(&running.shim, &running.id);
    drop(other);
    running.end();
}
