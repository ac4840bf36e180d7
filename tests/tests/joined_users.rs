//! User namespaces that a container joins: their id maps count, whatever the configuration says, and ids that they do not
//! have are refused by name.

use std::fs;
use std::path::PathBuf;

use crate::fields::said;
use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Stdio};
use serde_json::{Value, json};

/// A namespace that is mounted at a file, as managers pin one.
struct Pinned(tempfile::TempDir);

impl Pinned {
    fn new(namespace: &str) -> Pinned {
        let pinned = Pinned(tempfile::tempdir().expect("a folder"));
        fs::write(pinned.path(), "").expect("it is ours");
        rustix::mount::mount_bind(namespace, pinned.path()).expect("root may mount");
        pinned
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("user")
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Creating this container fails, with a message that has the words.
#[track_caller]
fn assert_bundle_refused(containerd: &Containerd<'_>, bundle: &Bundle, words: &str) {
    let shim = containerd.start(bundle);
    let failure = shim.create(bundle, &Stdio::null()).map(drop).expect_err(words);
    assert!(failure.message.contains(words) && failure.code == Code::INVALID_ARGUMENT, "{words}: {failure:?}");
    shim.over();
}

/// Has the container join the user namespace at `path`, or get a new one, with these mappings.
fn map(path: Option<&str>, uids: Value, gids: Value) -> impl FnOnce(&mut Value) {
    let user = path.map_or(json!({ "type": "user" }), |path| json!({ "type": "user", "path": path }));
    move |config| {
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(user);
        config["linux"]["uidMappings"] = uids;
        config["linux"]["gidMappings"] = gids;
    }
}

#[test]
fn mappings_that_differ_from_the_joined_namespace_are_refused() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 ignores them") {
        return;
    }
    let containerd = host.containerd();
    let ours = json!([{ "containerID": 0, "hostID": 100000, "size": 65536 }]);
    let other = json!([{ "containerID": 0, "hostID": 5, "size": 1 }]);
    let owner = containerd.bundle().script("sleep 1000").edit(map(None, ours.clone(), ours.clone()));
    let io = owner.fifos("init");
    let owner = containerd.run_with(owner, &io);
    let of_process = format!("/proc/{}/ns/user", owner.pid);
    let pinned = Pinned::new(&of_process);

    for path in [of_process.as_str(), pinned.path().to_str().expect("UTF-8")] {
        let bundle = |script: &str, uids: &Value, gids: &Value| {
            containerd.bundle().script(script).edit(map(Some(path), uids.clone(), gids.clone()))
        };
        for mappings in [&Value::Null, &ours] {
            let owners = bundle("busybox stat -L -c %u /dev/stdout", mappings, mappings);
            assert_eq!(said(&containerd, &owners), "0", "{path}: {mappings}");
        }
        assert_bundle_refused(&containerd, &bundle("true", &other, &ours), "linux.uidMappings");
        assert_bundle_refused(&containerd, &bundle("true", &ours, &Value::Null), "linux.gidMappings");
        let unmapped = bundle("true", &Value::Null, &Value::Null).edit(|config| {
            config["process"]["user"]["uid"] = json!(70000);
        });
        assert_bundle_refused(&containerd, &unmapped, "process.user.uid: 70000");
    }
    drop(pinned);
    owner.end();
}

#[test]
fn an_exec_s_user_that_is_not_mapped_is_named() {
    let host = Host::new();
    if host.reference_fails("runc has other words") {
        return;
    }
    let containerd = host.containerd();
    let ours = json!([{ "containerID": 0, "hostID": 100000, "size": 65536 }]);
    let bundle = containerd.bundle().script("sleep 1000").edit(map(None, ours.clone(), ours));
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let mut process = running.bundle.process(&["/bin/sh", "-c", "true"]);
    process["user"] = json!({ "uid": 0, "gid": 70000 });
    let (shim, id) = (&running.shim, &running.id);
    let failure = match shim.exec(id, "e", &process, &Stdio::null()) {
        Ok(_) => shim.start(id, "e").map(drop).expect_err("it is not mapped"),
        Err(failure) => failure,
    };
    assert!(failure.message.contains("process.user.gid: 70000"), "{failure:?}");
    let _ = shim.delete(id, "e");
    running.end();
}
