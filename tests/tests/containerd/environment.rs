//! The environment that a process under containerd gets: HOME from the image, and variables that are given twice.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Stdio, make_fifo};
use serde_json::json;

const PATH: &str = "PATH=/bin";

/// A bundle that prints its environment, with these variables and this user.
fn bundle(containerd: &Containerd<'_>, env: &[&str], uid: u32) -> Bundle {
    containerd.bundle().args(&["env"]).edit(|config| {
        config["process"]["env"] = json!(env);
        config["process"]["user"] = json!({ "uid": uid, "gid": 0 });
    })
}

/// The environment that `bundle` prints, sorted: the order of runc 1.1 is random.
#[track_caller]
fn printed(containerd: &Containerd<'_>, bundle: Bundle) -> Vec<String> {
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let said = running.stdout.to_end();
    running.end();
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn home_is_the_one_of_the_images_passwd_unless_it_is_set() {
    let host = Host::new();
    let containerd = host.containerd();
    for (env, uid, expected) in [
        (&[PATH][..], 0, &["HOME=/root", PATH][..]),
        (&[PATH], 1234, &["HOME=/home/app", PATH]),
        (&[PATH], 4711, &["HOME=/", PATH]),
        (&["HOME=/elsewhere", PATH], 1234, &["HOME=/elsewhere", PATH]),
        (&["HOME=", PATH], 1234, &["HOME=/home/app", PATH]),
    ] {
        assert_eq!(printed(&containerd, bundle(&containerd, env, uid)), expected, "{env:?} of {uid}");
    }
}

/// What is done at the place of a file.
type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn home_is_slash_where_the_image_has_no_passwd_to_read() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 refuses a folder in its place, and waits for a FIFO's writer") {
        return;
    }
    let containerd = host.containerd();
    let passwd_of = |change: Change<'_>| {
        let bundle = bundle(&containerd, &[PATH], 0);
        let passwd = bundle.rootfs().join("etc/passwd");
        fs::remove_file(&passwd).expect("ours");
        change(&passwd);
        printed(&containerd, bundle)
    };
    let nothing: [(&str, Change<'_>); 6] = [
        ("none", &|_| ()),
        ("a folder", &|passwd| fs::create_dir(passwd).expect("ours")),
        ("a FIFO", &make_fifo),
        ("a symlink that leads nowhere", &|passwd| symlink("/nowhere", passwd).expect("ours")),
        ("a magic link to a file of the host", &|passwd| symlink("/proc/self/exe", passwd).expect("ours")),
        ("a relative path out of the root", &|passwd| {
            let outside = passwd.ancestors().nth(3).expect("the bundle").join("passwd");
            fs::write(outside, "root:x:0:0::/outside:/bin/sh\n").expect("ours");
            symlink("../../passwd", passwd).expect("ours");
        }),
    ];
    for (what, change) in nothing {
        assert_eq!(passwd_of(change), ["HOME=/", PATH], "{what}");
    }
}

#[test]
fn home_is_read_through_a_symlink_of_the_image() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, &[PATH], 0);
    let etc = bundle.rootfs().join("etc");
    fs::rename(etc.join("passwd"), etc.join("users")).expect("ours");
    symlink("/etc/users", etc.join("passwd")).expect("ours");
    assert_eq!(printed(&containerd, bundle), ["HOME=/root", PATH]);
}

#[test]
fn home_of_an_exec_is_that_of_its_own_user() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    for (exec, env, uid, expected) in [
        ("a", &[PATH][..], 1234, "HOME=/home/app"),
        ("b", &[PATH], 4711, "HOME=/"),
        ("c", &["HOME=", PATH], 0, "HOME=/root"),
        ("d", &["HOME=/set", PATH], 0, "HOME=/set"),
    ] {
        let mut process = running.bundle.process(&["/bin/sh", "-c", "echo HOME=$HOME"]);
        process["env"] = json!(env);
        process["user"] = json!({ "uid": uid, "gid": 0 });
        let io = running.bundle.fifos(exec);
        let (stdout, _stderr) = io.open();
        running.shim.exec(&running.id, exec, &process, &io).expect("added");
        running.shim.start(&running.id, exec).expect("started");
        assert_eq!(stdout.to_end().trim_end(), expected, "{env:?} of {uid}");
        running.shim.wait(&running.id, exec).expect("an end");
        running.shim.delete(&running.id, exec).expect("deleted");
    }
    running.end();
}

#[test]
fn of_variables_given_twice_the_last_counts() {
    let host = Host::new();
    let containerd = host.containerd();
    let env = ["A=1", "PATH=/nowhere", "B=2", "A=3", "HOME=/x", PATH, "A=4", "HOME=/y", "C="];
    let expected = ["A=4", "B=2", "C=", "HOME=/y", PATH];
    assert_eq!(printed(&containerd, bundle(&containerd, &env, 0)), expected);
}

#[test]
fn what_is_no_variable_is_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    for bad in ["A", "", "=a"] {
        let bundle = bundle(&containerd, &[PATH, bad], 0);
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err(bad);
        assert!(failure.message.contains("env"), "{failure:?}");
        if !bowline_tests::harness::containerd::is_reference() {
            assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{failure:?}");
        }
        shim.over();
    }
    let running = containerd.run("sleep 1000");
    let mut process = running.bundle.process(&["true"]);
    process["env"] = json!(["A"]);
    let added = running.shim.exec(&running.id, "e", &process, &Stdio::null());
    let failure = added.and_then(|_| running.shim.start(&running.id, "e")).expect_err("no variable");
    assert!(failure.message.contains("env"), "{failure:?}");
    running.end();
}
