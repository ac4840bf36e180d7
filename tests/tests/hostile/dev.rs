//! A `/dev` that the user supplies stays as it is, and a root that has mounts of its own is mounted over.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Stdio};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::json;

/// A folder of the host's with a file, to be mounted over a task's `/dev`.
fn supplied(host: &Host) -> PathBuf {
    let path = host.work().join("dev");
    fs::create_dir(&path).expect("the work folder is writable");
    fs::write(path.join("mine"), "mine\n").expect("the work folder is writable");
    path
}

#[track_caller]
fn assert_untouched(path: &Path) {
    let names: Vec<_> = fs::read_dir(path).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["mine"], "something was made in the user's folder");
}

/// Lines of a description that mount it.
fn mounted(path: &Path) -> String {
    format!("[[mounts]]\nsource = '{}'\ndestination = '/dev'", path.display())
}

const USER_NAMESPACE: &str = "namespaces.user = 'private'\n\
                              uid_mappings = [{container = 0, host = 200000, size = 65536}]\n\
                              gid_mappings = [{container = 0, host = 200000, size = 65536}]\n";

#[test]
fn nothing_is_made_in_a_folder_that_is_mounted_over_dev() {
    for more in ["", USER_NAMESPACE, "devices = [{path = '/dev/net/mine', host_path = '/dev/null'}]\n"] {
        let host = Host::new();
        let dev = supplied(&host);
        let script = "command = '/bin/sh'\nargs = ['-c', 'cat /dev/mine; ls /dev; cat /proc/keys; cat']\n";
        host.described(&format!("{script}{more}{}", mounted(&dev))).run().assert_says("mine\nmine");
        assert_untouched(&dev);
        host.assert_nothing_left();
    }
}

#[test]
fn an_exec_in_such_a_task_has_streams() {
    let host = Host::new();
    let dev = supplied(&host);
    let task = host.described(&format!("command = 'sleep'\nargs = ['1000']\n{}", mounted(&dev))).start();
    task.exec("cat; ls /dev").assert_says("mine");
    assert_untouched(&dev);
    task.end();
}

/// With this folder in the place of its `/dev`.
fn with_dev(bundle: Bundle, path: &Path) -> Bundle {
    bundle.edit(|config| {
        for mount in config["mounts"].as_array_mut().expect("a list") {
            if mount["destination"] == "/dev" {
                *mount = json!({"destination": "/dev", "type": "bind", "source": path, "options": ["rbind"]});
            }
        }
    })
}

#[test]
fn nothing_but_mount_points_is_made_in_the_dev_of_a_bundle() {
    let host = Host::new();
    if host.reference_fails("it starts nothing without a /dev/null there") {
        return;
    }
    let containerd = host.containerd();
    let dev = supplied(&host);
    // What the bundle mounts below needs a place.
    for name in ["mqueue", "pts", "shm"] {
        fs::create_dir(dev.join(name)).expect("the work folder is writable");
    }
    let bundle = with_dev(containerd.bundle().script("test -f /dev/mine && test ! -e /dev/fd"), &dev);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    shim.end(&bundle.id);
    for name in ["mqueue", "pts", "shm"] {
        fs::remove_dir(dev.join(name)).expect("empty");
    }
    assert_untouched(&dev);
}

#[test]
fn nothing_is_made_in_an_image_s_dev_without_a_mount_over_it() {
    let host = Host::new();
    if host.reference_fails("it makes nodes and links there") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("exit 7").edit(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| !mount["destination"].as_str().expect("a path").starts_with("/dev"));
    });
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 7);
    shim.end(&bundle.id);
    assert_eq!(fs::read_dir(bundle.rootfs().join("dev")).expect("a folder").count(), 0);
}

/// CVE-2026-41579 of runc, CVE-2026-47766 of crun: the image's `/dev` leads to a folder of the host's, in which `ptmx`
/// is removed, and links and nodes are made. Raced: `storm::mounts::cve_2026_41579_and_47766…`.
#[test]
fn cve_2026_41579_and_47766_a_dev_link_changes_nothing_outside() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 makes its links where the symlink leads to") {
        return;
    }
    let containerd = host.containerd();
    let outside = host.work().join("outside");
    fs::create_dir(&outside).expect("the work folder is writable");
    fs::write(outside.join("ptmx"), "untouched").expect("the work folder is writable");
    // By name, and by more steps up than there are.
    let climbing = PathBuf::from("../".repeat(40)).join(outside.strip_prefix("/").expect("absolute"));
    for (target, mounts_dev, terminal) in [
        (&outside, false, false),
        (&outside, true, false),
        (&outside, false, true),
        (&climbing, false, false),
        (&climbing, true, true),
    ] {
        let bundle = containerd.bundle().script("true").edit(|config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            mounts.retain(|mount| mounts_dev || !mount["destination"].as_str().expect("a path").starts_with("/dev"));
        });
        let bundle = if terminal { bundle.terminal() } else { bundle };
        let io = if terminal { bundle.fifos_of_terminal("init") } else { Stdio::null() };
        let dev = bundle.rootfs().join("dev");
        fs::remove_dir_all(&dev).expect("ours");
        symlink(target, &dev).expect("ours");
        let shim = containerd.start(&bundle);
        match shim.create(&bundle, &io) {
            Ok(_) => shim.end(&bundle.id),
            Err(failure) => {
                assert!(failure.message.contains("/dev"), "{failure:?}");
                shim.over();
            }
        }
        let names: Vec<_> =
            fs::read_dir(&outside).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["ptmx"], "{target:?} {mounts_dev} {terminal}");
        assert_eq!(fs::read_to_string(outside.join("ptmx")).expect("ours"), "untouched");
    }
}

/// A mount of the test's on the host, until it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failure shows as a mount that was left.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Prepares a root as one does for chroot(1): with proc, sys and dev.
fn prepare(root: &Path) -> [Mounted; 3] {
    let [proc, sys, dev] = ["proc", "sys", "dev"].map(|name| root.join(name));
    mount("proc", &proc, "proc", MountFlags::empty(), None).expect("root may mount");
    mount_bind("/sys", &sys).expect("root may mount");
    mount("dev", &dev, "tmpfs", MountFlags::empty(), None).expect("root may mount");
    fs::write(dev.join("mine"), "mine\n").expect("new");
    [Mounted(proc), Mounted(sys), Mounted(dev)]
}

/// Says that proc and dev are the task's own.
const LOOK: &str = "ls /proc | grep -cx 1; readlink /proc/self; test -c /dev/null && test ! -e /dev/mine; echo $?; ls /sys | grep -cx class";

#[test]
fn a_root_that_is_prepared_for_chroot_runs() {
    let host = Host::new();
    let root = host.busybox_root();
    let mounted = prepare(root.path());
    let script = format!("echo $$; {LOOK}");
    let ran = host.task_of(["sh", "-c", &script]).rootfs(root.path()).run();
    let out = ran.assert_code(0).out();
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0] == "1" && lines[1] == "1" && lines[3..] == ["0", "1"], "{ran}");
    assert!(lines[2].parse::<u32>().is_ok_and(|pid| pid < 100), "the pid of a namespace of its own\n{ran}");
    assert_untouched(&mounted[2].0);
    drop(mounted);
}

#[test]
fn a_bundle_that_is_prepared_for_chroot_runs() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("test $$ = 1 && test -c /dev/null && test ! -e /dev/mine");
    let mounted = prepare(&bundle.rootfs());
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    assert_untouched(&mounted[2].0);
    drop(mounted);
    shim.end(&bundle.id);
}

#[test]
fn no_folder_takes_the_place_of_a_procfs_that_is_there() {
    let host = Host::new();
    if host.reference_fails("it refuses as well, in other words") {
        return;
    }
    let containerd = host.containerd();
    for destination in ["/proc", "/proc/self/attr", "/proc/sys"] {
        let bundle = containerd.bundle().script("true");
        let mount = json!({"destination": destination, "type": "bind", "source": host.work(), "options": ["bind"]});
        let bundle = bundle.mount(&mount);
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err("refused");
        assert!(failure.message.contains("must not be mounted over"), "{failure:?}");
        shim.over();
    }
}
