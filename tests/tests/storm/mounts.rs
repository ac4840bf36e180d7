//! Storms of renames: an image or a volume exchanges a name for a link, again and again, while containers are made of it.
//!
//! What holds without a race: `hostile::mounts`.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd};
use bowline_tests::harness::storm;
use rustix::fs::{CWD, FileType, makedev, mknodat};
use serde_json::json;

use crate::hostile::mounts::{bind, exchanging, folder, with_mount};

/// A folder to be mounted over `/dev`, with what others are mounted upon.
fn dev(host: &Host) -> std::path::PathBuf {
    let dev = folder(host, "dev");
    for name in ["pts", "shm", "mqueue"] {
        fs::create_dir(dev.join(name)).expect("the work folder is writable");
    }
    dev
}

fn null_node(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, 0o666.into(), makedev(1, 3)).expect("root may make one");
}

fn link(target: impl AsRef<Path>, path: &Path) {
    std::os::unix::fs::symlink(target, path).expect("the work folder is writable");
}

/// Runs the bundle; what it has said, or `None` where its creation was refused.
fn run(containerd: &Containerd<'_>, bundle: Bundle, terminal: bool) -> Option<String> {
    run_with(containerd, bundle, terminal, || ())
}

/// Like [`run`], with something to do once it is created.
fn run_with(
    containerd: &Containerd<'_>,
    bundle: Bundle,
    terminal: bool,
    once_created: impl FnOnce(),
) -> Option<String> {
    let io = if terminal { bundle.fifos_of_terminal("init") } else { bundle.fifos("init") };
    let shim = containerd.start(&bundle);
    let (stdout, _stderr) = io.open();
    let created = shim.create(&bundle, &io);
    once_created();
    if created.is_err() {
        shim.over();
        return None;
    }
    let said = shim.start(&bundle.id, "").is_ok().then(|| {
        let said = stdout.to_end();
        shim.status_at_end(&bundle.id, "");
        said.replace("\r\n", "\n")
    });
    shim.end(&bundle.id);
    said
}

/// CVE-2025-31133: a mask is the null device, or nothing runs.
#[test]
fn cve_2025_31133_a_null_device_exchanged_for_a_procfs_link() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 shows what the symlink leads to") {
        return;
    }
    let containerd = host.containerd();
    let dev = dev(&host);
    null_node(&dev.join("null"));
    link("/proc/sys/kernel/core_pattern", &dev.join("link"));
    let racer = exchanging(&host, &dev.join("null"), &dev.join("link"));
    let (mut nodes, mut links) = (0, 0);
    storm(10, |round| {
        let script = "n=0; while [ $n -lt 50 ]; do n=$((n+1)); if [ -L /dev/null ]; then echo link; else echo node; fi; \
                      done; stat -c '%F %t,%T' /proc/version; cat /proc/version";
        let bundle = with_mount(containerd.bundle(), "/dev", Some(bind(&dev, "/dev"))).script(script);
        let bundle = bundle.edit(|config| config["linux"]["maskedPaths"] = json!(["/proc/version"]));
        let Some(said) = run(&containerd, bundle, false) else { return };
        assert!(said.ends_with("\ncharacter special file 1,3\n"), "round {round}: {said}");
        nodes += said.matches("node\n").count();
        links += said.matches("link\n").count();
    });
    assert!(nodes > 0 && links > 0, "{nodes} nodes, {links} links: there was no race");
    drop(racer);
}

/// CVE-2025-52565: the terminal is mounted upon no file of procfs.
#[test]
fn cve_2025_52565_a_console_exchanged_for_a_procfs_link() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 starts nothing without a /dev/null in the volume") {
        return;
    }
    let containerd = host.containerd();
    let dev = dev(&host);
    let target = "/proc/sys/kernel/core_pattern";
    fs::write(dev.join("console"), "").expect("the work folder is writable");
    link(target, &dev.join("link"));
    link("pts/ptmx", &dev.join("ptmx"));
    let racer = exchanging(&host, &dev.join("console"), &dev.join("link"));
    let mut ran = 0;
    storm(10, |round| {
        let script = format!("stat -c %f {target}; grep -c {target} /proc/self/mountinfo; echo end");
        let bundle = with_mount(containerd.bundle(), "/dev", Some(bind(&dev, "/dev"))).script(&script).terminal();
        let Some(said) = run(&containerd, bundle, true) else { return };
        assert_eq!(said, "81a4\n0\nend\n", "round {round}");
        ran += 1;
    });
    assert!(ran > 0, "each was refused: there was no race");
    drop(racer);
}

/// CVE-2025-52881: a sysctl is written to procfs, or nothing runs; a file in the place of one is never written.
#[test]
fn cve_2025_52881_a_proc_exchanged_as_a_sysctl_is_written() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 starts nothing without /proc/self/fd") {
        return;
    }
    let containerd = host.containerd();
    let outside = host.file("outside", "untouched");
    let (mut ran, mut refused) = (0, 0);
    storm(10, |round| {
        let bundle = containerd.bundle().script("cat /proc/sys/kernel/msgmax /other/sys/kernel/msgmax; true");
        let bundle = bundle.edit(|config| config["linux"]["sysctl"] = json!({ "kernel.msgmax": "4321" }));
        let (proc, other) = (bundle.rootfs().join("proc"), bundle.rootfs().join("other"));
        fs::create_dir_all(other.join("sys/kernel")).expect("ours");
        let false_one = other.join("sys/kernel/msgmax");
        fs::hard_link(&outside, &false_one).or_else(|_| fs::write(&false_one, "untouched")).expect("ours");
        let racer = exchanging(&host, &proc, &other);
        // It reads at its leisure: what is raced is its creation.
        match run_with(&containerd, bundle, false, || drop(racer)) {
            Some(said) => {
                assert!(said.contains("4321"), "round {round}: {said}");
                ran += 1;
            }
            None => refused += 1,
        }
        for path in [&proc, &other].map(|folder| folder.join("sys/kernel/msgmax")).iter().filter(|path| path.exists()) {
            assert_eq!(fs::read_to_string(path).expect("ours"), "untouched", "round {round}");
        }
        assert_eq!(fs::read_to_string(&outside).expect("ours"), "untouched", "round {round}");
    });
    assert!(ran > 0, "{ran} ran, {refused} were refused: nothing was written");
}

/// CVE-2026-41579 and CVE-2026-47766: nothing is made or removed in a folder of the host's.
#[test]
fn cve_2026_41579_and_47766_a_dev_exchanged_for_a_host_link() {
    let host = Host::new();
    if host.reference_fails("runc 1.1.5 makes its links where the symlink leads to") {
        return;
    }
    let containerd = host.containerd();
    let outside = folder(&host, "outside");
    fs::write(outside.join("ptmx"), "untouched").expect("the work folder is writable");
    let mut ran = 0;
    storm(10, |round| {
        let bundle = containerd.bundle().script("echo end").edit(|config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            if round % 2 == 0 {
                mounts.retain(|mount| !mount["destination"].as_str().expect("a path").starts_with("/dev"));
            }
        });
        link(&outside, &bundle.rootfs().join("link"));
        let racer = exchanging(&host, &bundle.rootfs().join("dev"), &bundle.rootfs().join("link"));
        ran += usize::from(run(&containerd, bundle, false).is_some());
        drop(racer);
        let names: Vec<_> =
            fs::read_dir(&outside).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["ptmx"], "round {round}");
        assert_eq!(fs::read_to_string(outside.join("ptmx")).expect("ours"), "untouched", "round {round}");
    });
    assert!(ran > 0, "each was refused: there was no race");
}
