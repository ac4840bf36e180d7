//! `/etc/passwd` and `/etc/group` of an image are read with the host's rights: nothing but a plain file of a sane size
//! is opened there.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Stdio, make_fifo};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;

/// Puts something into the place of a file, which has been removed.
type Put = fn(&Path);

fn zero(path: &Path) {
    node(path, 1, 5);
}

fn console(path: &Path) {
    node(path, 5, 1);
}

fn node(path: &Path, major: u32, minor: u32) {
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(major, minor)).expect("root may");
}

fn socket(path: &Path) {
    drop(UnixListener::bind(path).expect("a short path"));
}

fn folder(path: &Path) {
    fs::create_dir(path).expect("the work folder is writable");
}

/// A gigabyte, of which nothing is on disk.
fn sparse(path: &Path) {
    File::create(path).and_then(|file| file.set_len(1 << 30)).expect("the work folder is writable");
}

/// To a device in the image.
fn link_to_zero(path: &Path) {
    zero(&path.with_file_name("zero"));
    symlink("/etc/zero", path).expect("the work folder is writable");
}

const REFUSED: [(Put, &str); 7] = [
    (make_fifo, "it is not a regular file"),
    (zero, "it is not a regular file"),
    (console, "it is not a regular file"),
    (link_to_zero, "it is not a regular file"),
    (socket, "it is not a regular file"),
    (folder, "it is not a regular file"),
    (sparse, "it is larger than 4 MiB"),
];

#[test]
fn a_user_database_that_is_no_plain_file_is_refused() {
    for name in ["passwd", "group"] {
        for (put, why) in REFUSED {
            let host = Host::new();
            let root = host.busybox_root();
            let path = root.path().join("etc").join(name);
            fs::remove_file(&path).expect("the test's own");
            put(&path);
            let task = host.task_of(["true"]).rootfs(root.path()).flag("--user=app");
            task.assert_refused(125, &[&format!("cannot read /etc/{name} in the root filesystem"), why]);
            host.assert_nothing_left();
        }
    }
}

#[test]
fn a_user_database_that_links_to_the_hosts_is_not_followed() {
    let host = Host::new();
    let root = host.busybox_root();
    let outside = host.file("passwd", "intruder:x:0:0::/:/bin/sh\n");
    let path = root.path().join("etc/passwd");
    for target in [&*outside, Path::new("../../passwd"), Path::new("/proc/self/root/etc/passwd")] {
        fs::remove_file(&path).expect("the test's own");
        symlink(target, &path).expect("the work folder is writable");
        host.task_of(["true"]).rootfs(root.path()).flag("--user=intruder").assert_refused(125, &["intruder"]);
    }
}

#[test]
fn a_user_database_that_a_running_task_has_replaced_is_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let passwd = root.path().join("etc/passwd");
    for (put, why) in REFUSED {
        let _ = fs::remove_file(&passwd);
        put(&passwd);
        task.bowline("exec", ["--user=app", "--", "true"]).assert_refused(125, &["/etc/passwd", why]);
        let _ = fs::remove_dir(&passwd);
        let _ = fs::remove_file(root.path().join("etc/zero"));
    }
    // A plain file as far as fstat tells, whose messages are taken by who reads them.
    task.exec("ln -sf /proc/kmsg /etc/passwd").assert_code(0);
    task.bowline("exec", ["--user=app", "--", "true"]).assert_refused(125, &["app is not in /etc/passwd"]);
    task.end();
}

#[test]
fn under_containerd_nobody_opens_it() {
    let host = Host::new();
    if host.reference_fails("it waits for a FIFO that the image calls /etc/passwd") {
        return;
    }
    let containerd = host.containerd();
    for (put, _) in REFUSED {
        let bundle = containerd.bundle().script("exit 7");
        let path = bundle.rootfs().join("etc/passwd");
        fs::remove_file(&path).expect("the test's own");
        put(&path);
        let shim = containerd.start(&bundle);
        shim.run(&bundle, &Stdio::null());
        assert_eq!(shim.status_at_end(&bundle.id, ""), 7);
        shim.end(&bundle.id);
    }
}

/// In a root, a user who is in so many groups.
fn in_groups(host: &Host, count: usize) -> bowline_tests::harness::Root {
    let root = host.busybox_root();
    let groups: String = (0..count).map(|number| format!("g:x:{}:app\n", 100_000 + number)).collect();
    fs::write(root.path().join("etc/group"), groups).expect("the work folder is writable");
    fs::write(root.path().join("etc/passwd"), "app:x:1000:1000::/:/bin/sh\n").expect("the work folder is writable");
    root
}

#[test]
fn a_user_in_too_many_groups_gets_a_short_error_with_the_cause() {
    let host = Host::new();
    let root = in_groups(&host, 200_000);
    let why = "200000 groups are more than a process can be in: 65536";
    // Where the filter comes before the groups, the error cannot be written to a pipe.
    let rules = json!([{"names": ["write"], "action": "SCMP_ACT_ERRNO"}]);
    let profile = host.file("p.json", &json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}).to_string());
    for (toml, seccomp) in [("", false), ("no_new_privs = false\n", true)] {
        let seccomp = if seccomp { format!("seccomp = '{}'\n", profile.display()) } else { String::new() };
        let task = host.described(&format!("command = 'true'\nuser = 'app'\n{toml}{seccomp}"));
        let ran = task.rootfs(root.path()).run();
        ran.assert_refused(125, &[why]);
        assert!(ran.err().len() < 500, "{ran}");
    }
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let ran = task.bowline("exec", ["--user=app", "--", "true"]);
    ran.assert_refused(125, &[why]);
    assert!(ran.err().len() < 500, "{ran}");
    task.end();
}

#[test]
fn a_home_that_is_no_path_is_named() {
    let host = Host::new();
    let root = host.busybox_root();
    let home = "h".repeat(200_000);
    let passwd = format!("root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/{home}:/bin/sh\n");
    fs::write(root.path().join("etc/passwd"), passwd).expect("the test's own");
    let named = "user 1234: its home folder takes 200001 bytes";
    host.task_of(["true"]).rootfs(root.path()).flag("--user=app").assert_refused(125, &["/etc/passwd", named]);
    host.assert_nothing_left();
    let task = host.task("echo ready; exec sleep 1000").rootfs(root.path()).start();
    task.wait_for_line("ready");
    task.exec_with(["--user=app"], "true").assert_refused(125, &["/etc/passwd", named]);
    task.end();
    // A bundle leaves its home to the runtime.
    let runtime = host.oci();
    let bundle = runtime.bundle().args(&["/bin/true"]).edit(|config| {
        config["process"]["user"] = json!({ "uid": 1234, "gid": 1234 });
        config["process"]["env"] = json!(["PATH=/bin"]);
        config["root"]["path"] = root.path().to_str().into();
    });
    let ran = runtime.create(&bundle, &[]);
    assert!(ran.code != Some(0) && ran.err().contains(named), "{ran}");
}
