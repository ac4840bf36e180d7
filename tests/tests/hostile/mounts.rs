//! Images, volumes and neighbours that mislead the mounts of a task: nothing lands on the host, and nothing of the
//! kernel's is left open.
//!
//! The races are run against a process that exchanges two names without end, as a container does that shares a volume
//! or a root folder. Each asserts that both names were met: else nothing was raced.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Stdio, is_reference};
use bowline_tests::harness::{Process, Ran, eventually, is_slow};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

/// How often a race is run.
fn rounds() -> usize {
    if is_slow() { 20 } else { 100 }
}

/// What the races run: this very program, which exchanges two names until it is killed. By itself it is no test.
#[test]
fn one_that_exchanges_two_names() {
    let name = |which| std::env::var_os(which).map(PathBuf::from);
    if let (Some(one), Some(other)) = (name("BOWLINE_TEST_ONE"), name("BOWLINE_TEST_OTHER")) {
        loop {
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("both are there");
        }
    }
}

/// Starts one that exchanges these names; it has begun.
pub fn exchanging(host: &Host, one: &Path, other: &Path) -> Process {
    let inode = || fs::symlink_metadata(one).expect("it is there").ino();
    let before = inode();
    let mut racer = host.command(std::env::current_exe().expect("a test has a path"));
    racer.args(["--exact", "hostile::mounts::one_that_exchanges_two_names"]);
    racer.env("BOWLINE_TEST_ONE", one).env("BOWLINE_TEST_OTHER", other);
    let racer = host.spawn_command(racer);
    eventually("they are exchanged", || (inode() != before).then_some(()));
    racer
}

/// A folder in the work folder.
pub fn folder(host: &Host, path: &str) -> PathBuf {
    let path = host.work().join(path);
    fs::create_dir_all(&path).expect("the work folder is writable");
    path
}

/// With this in place of what the bundle mounts at `destination`.
pub fn with_mount(bundle: Bundle, destination: &str, mount: Option<serde_json::Value>) -> Bundle {
    bundle.edit(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        let at = mounts.iter().position(|mount| mount["destination"] == destination).expect("it is mounted");
        mounts.remove(at);
        mounts.splice(at..at, mount);
    })
}

pub fn bind(source: &Path, destination: &str) -> serde_json::Value {
    json!({ "destination": destination, "type": "bind", "source": source, "options": ["rbind", "rw"] })
}

/// CVE-2021-30465 and CVE-2024-45310: the mount point is in a volume that another container has too, which exchanges
/// its parent for a symlink to the host. Mount points are made and
/// mounted upon by descriptors, of which none is looked up twice.
#[test]
fn cve_2021_30465_and_2024_45310_an_exchanged_mount_point() {
    let host = Host::new();
    let root = host.busybox_root();
    let (volume, outside) = (folder(&host, "volume"), folder(&host, "outside"));
    let (real, link) = (folder(&host, "volume/real"), volume.join("link"));
    symlink(&outside, &link).expect("the work folder is writable");
    let data = host.file("data", "data");
    let racer = exchanging(&host, &real, &link);
    let (mut exchanged, mut mounted) = (0, 0);
    for round in 0..rounds() {
        let toml = format!(
            "command = 'sh'\nargs = ['-c', 'cut -d\" \" -f5 /proc/self/mountinfo | grep /file-{round}$']\n\
             mounts = [{{source = '{}', destination = '/v'}}, \
             {{type = 'tmpfs', destination = '/v/real/folder-{round}/x'}}, \
             {{source = '{}', destination = '/v/real/file-{round}'}}]",
            volume.display(),
            data.display()
        );
        let ran = host.described(&toml).rootfs(root.path()).run();
        if ran.is_refusal() {
            ran.assert_refused(125, &["/v/real/"]);
            exchanged += 1;
        } else if ran.out().starts_with("/v/") {
            mounted += 1;
        } else {
            // The link leads to a place in the root that has the name of the one outside.
            ran.assert_says(&format!("{}/file-{round}", outside.display()));
            exchanged += 1;
        }
        assert_eq!(fs::read_dir(&outside).expect("a folder").count(), 0, "round {round}: made on the host\n{ran}");
    }
    assert!(exchanged > 0 && mounted > 0, "{exchanged} exchanged, {mounted} mounted: there was no race");
    drop(racer);
}

/// What a task says of every procfs that it finds at one of two names: whether what must not be written can be. It
/// stays in the folder that it has found, whatever that is called by then.
const WRITES_TO_PROC: &str = "n=0; while [ $n -lt 20 ]; do n=$((n+1)); for d in /proc /other; do \
    cd $d && [ \"$(stat -f -c %t .)\" = 9fa0 ] || continue; echo found; \
    for f in sysrq-trigger sys/kernel/core_pattern sys/vm/drop_caches; do \
    (: >> ./$f) 2>/dev/null && echo opened $f; done; done; done; true";

/// `bowline run` of [`WRITES_TO_PROC`], while the root's `/proc` is exchanged: procfs was found closed, or the launch
/// was refused. How many of each.
fn proc_is_closed_in_every_round(host: &Host, root: &Path) -> (usize, usize) {
    let (mut refused, mut found) = (0, 0);
    for round in 0..rounds() {
        let ran: Ran = host.task_of(["sh", "-c", WRITES_TO_PROC]).rootfs(root).run();
        if ran.is_refusal() {
            refused += 1;
        } else {
            assert!(!ran.out().contains("opened"), "round {round}: procfs is open\n{ran}");
            found += usize::from(ran.out().contains("found"));
        }
    }
    (refused, found)
}

/// CVE-2023-27561 and CVE-2019-19921, raced: a task of the same root folder exchanges `/proc` for another folder, so
/// that procfs is mounted in one and the other is closed. Without
/// `seal::Place` every tenth launch left `core_pattern` open, and runc 1.1.5 does.
#[test]
fn cve_2023_27561_a_proc_that_is_exchanged_for_another_folder() {
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("other/sys/kernel");
    let racer = exchanging(&host, &root.path().join("proc"), &root.path().join("other"));
    let (refused, found) = proc_is_closed_in_every_round(&host, root.path());
    assert!(refused > 0 && found > 0, "{refused} refused, {found} with procfs: there was no race");
    drop(racer);
}

/// /proc is exchanged for a symlink: procfs is mounted where the symlink leads to.
#[test]
fn cve_2023_27561_a_proc_that_is_exchanged_for_a_symlink() {
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("other/sys/kernel").link("link", Path::new("other"));
    let racer = exchanging(&host, &root.path().join("proc"), &root.path().join("link"));
    let (refused, found) = proc_is_closed_in_every_round(&host, root.path());
    assert!(refused > 0 && found > 0, "{refused} refused, {found} with procfs: there was no race");
    drop(racer);
}

/// CVE-2019-19921: a volume in the place of procfs, which would believe every write that confines the task. runc
/// refuses it too: "cannot be mounted because it is not of type proc".
#[test]
fn cve_2019_19921_a_volume_at_proc() {
    let host = Host::new();
    let containerd = host.containerd();
    let volume = folder(&host, "volume");
    fs::create_dir_all(volume.join("self/attr")).expect("the work folder is writable");
    let tmpfs = json!({ "destination": "/proc", "type": "tmpfs", "source": "tmpfs", "options": [] });
    let instead = [
        with_mount(containerd.bundle(), "/proc", Some(bind(&volume, "/proc"))),
        with_mount(containerd.bundle(), "/proc", Some(tmpfs.clone())),
    ];
    let besides = [containerd.bundle().mount(&bind(&volume, "/proc")), containerd.bundle().mount(&tmpfs)];
    for bundle in instead.into_iter().chain(besides) {
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &Stdio::null()).expect_err("a false /proc");
        assert!(failure.message.contains("/proc"), "{failure:?}");
        shim.over();
    }
}

/// CVE-2025-52881: a write to procfs is redirected, as what is at `/proc` is the image's or a volume's.
#[test]
fn cve_2025_52881_a_sysctl_is_never_written_to_a_false_proc() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 starts nothing without /proc/self/fd") {
        return;
    }
    let containerd = host.containerd();
    let bundle = with_mount(containerd.bundle(), "/proc", None);
    let bundle = bundle.edit(|config| config["linux"]["sysctl"] = json!({ "kernel.msgmax": "4321" }));
    let false_one = bundle.rootfs().join("proc/sys/kernel");
    fs::create_dir_all(&false_one).expect("ours");
    fs::write(false_one.join("msgmax"), "untouched").expect("ours");
    let shim = containerd.start(&bundle);
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("nowhere to write it to");
    assert!(failure.message.contains("kernel.msgmax") && failure.message.contains("procfs"), "{failure:?}");
    assert_eq!(fs::read_to_string(false_one.join("msgmax")).expect("ours"), "untouched");
    shim.over();
}

/// CVE-2025-31133: the container's `/dev/null` is a symlink to what a mask would then show and let be written, instead
/// of hiding anything. runc 1.1.5 mounts `core_pattern` onto `/proc/version` so, writable.
#[test]
fn cve_2025_31133_a_null_link_to_procfs_is_never_the_mask() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 shows what the symlink leads to") {
        return;
    }
    let containerd = host.containerd();
    let dev = folder(&host, "dev");
    symlink("/proc/sys/kernel/core_pattern", dev.join("null")).expect("the work folder is writable");
    for name in ["pts", "shm", "mqueue"] {
        fs::create_dir(dev.join(name)).expect("the work folder is writable");
    }
    let script = "readlink /dev/null; stat -c '%F %t,%T' /proc/version; cat /proc/version";
    let bundle = with_mount(containerd.bundle(), "/dev", Some(bind(&dev, "/dev"))).script(script);
    let bundle = bundle.edit(|config| config["linux"]["maskedPaths"] = json!(["/proc/version"]));
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let said = running.stdout.to_end();
    assert_eq!(said, "/proc/sys/kernel/core_pattern\ncharacter special file 1,3\n");
    running.end();
}

/// CVE-2025-52565: `/dev/console` and `/dev/pts` are symlinks, so that the terminal is mounted onto procfs, before the
/// masks are.
#[test]
fn cve_2025_52565_a_console_link_to_procfs_is_not_mounted_on() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 starts nothing without a /dev/null in the volume") {
        return;
    }
    let containerd = host.containerd();
    let dev = folder(&host, "dev");
    let target = "/proc/sys/kernel/core_pattern";
    symlink(target, dev.join("console")).expect("the work folder is writable");
    symlink("pts/ptmx", dev.join("ptmx")).expect("the work folder is writable");
    for name in ["pts", "shm", "mqueue"] {
        fs::create_dir(dev.join(name)).expect("the work folder is writable");
    }
    let script = format!("tty; readlink /dev/console; stat -c %f {target}; grep -c {target} /proc/self/mountinfo");
    let bundle = with_mount(containerd.bundle(), "/dev", Some(bind(&dev, "/dev"))).script(&script).terminal();
    let io = bundle.fifos_of_terminal("init");
    let running = containerd.run_with(bundle, &io);
    let said = running.stdout.to_end().replace("\r\n", "\n");
    assert_eq!(said, format!("/dev/pts/0\n{target}\n81a4\n0\n"));
    running.end();
}

/// The terminals' folder is the kernel's own, or the launch is refused.
#[test]
fn cve_2025_52565_terminals_that_lead_to_procfs_are_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    for target in ["/proc/self/fd", "/proc/sys/kernel", "../../../../../../../dev/pts"] {
        let dev = folder(&host, &format!("dev-{}", target.len()));
        symlink(target, dev.join("pts")).expect("the work folder is writable");
        for name in ["shm", "mqueue"] {
            fs::create_dir(dev.join(name)).expect("the work folder is writable");
        }
        let bundle = with_mount(containerd.bundle(), "/dev", Some(bind(&dev, "/dev"))).script("tty").terminal();
        let io = bundle.fifos_of_terminal("init");
        let shim = containerd.start(&bundle);
        let failure = shim.create(&bundle, &io).expect_err("no terminals");
        assert!(failure.message.contains("/dev/pts"), "{failure:?}");
        shim.over();
    }
}

/// CVE-2024-21626, raced: an exec's working directory is exchanged by the task for a descriptor that leads outside.
/// That it is refused when nothing is raced: `exec::security::a_working_directory_that_escapes_is_refused`.
#[test]
fn cve_2024_21626_a_workdir_exchanged_for_a_descriptor() {
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("work");
    // Of the worker that makes the exec: whatever it has open by then.
    symlink("/proc/self/fd/5", root.path().join("link")).expect("the work folder is writable");
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let racer = exchanging(&host, &root.path().join("work"), &root.path().join("link"));
    let (mut refused, mut entered) = (0, 0);
    for _ in 0..rounds() {
        let ran = task.bowline("exec", ["--workdir=/work", "--", "ls", "/proc/self/cwd/"]);
        if ran.is_refusal() {
            ran.assert_refused(125, &["workdir", "/work"]);
            refused += 1;
        } else {
            ran.assert_says("");
            entered += 1;
        }
    }
    assert!(refused > 0 && entered > 0, "{refused} refused, {entered} entered: there was no race");
    drop(racer);
    task.end();
}

/// CVE-2024-21626 by containerd: init's working directory and an exec's are a descriptor.
#[test]
fn cve_2024_21626_a_descriptor_as_cwd_is_refused_to_containerd() {
    let is_about_it = |said: &str| said.contains("workdir") || is_reference() && said.contains("/proc/self/fd/");
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().edit(|config| config["process"]["cwd"] = json!("/proc/self/fd/7"));
    let shim = containerd.start(&bundle);
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("it leads outside, or to nothing");
    assert!(is_about_it(&failure.message), "{failure:?}");
    shim.over();
    let running = containerd.run("sleep 1000");
    for fd in 3..20 {
        let mut process = running.bundle.process(&["ls"]);
        process["cwd"] = json!(format!("/proc/self/fd/{fd}"));
        running.shim.exec(&running.id, "e", &process, &Stdio::null()).expect("it is looked at when it starts");
        let failure = running.shim.start(&running.id, "e").expect_err("it leads outside, or to nothing");
        assert!(is_about_it(&failure.message), "{failure:?}");
        running.shim.delete(&running.id, "e").expect("it has not started");
    }
    running.end();
}
