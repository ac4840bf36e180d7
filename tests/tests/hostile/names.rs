//! Roots whose `/etc` is bent, or is bent while a task runs: the host writes its files of names into it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::make_fifo;
use bowline_tests::harness::{Root, eventually};

/// A root with its own `/run`, in which everything is that each task makes.
fn root(host: &Host) -> Root {
    let root = host.busybox_root();
    root.folder("run/lock");
    host.task("true").rootfs(root.path()).flag("--set=names.files=false").run().assert_code(0);
    root
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn no_link_of_a_root_leads_the_files_out_of_it() {
    let host = Host::new();
    let outside = host.work().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("there"), "of the host\n").expect("a file");
    let climbing = format!("../../../../../../../../{}", outside.display());
    for to in [outside.join("there"), outside.join("missing"), Path::new(&climbing).join("there")] {
        let root = root(&host);
        root.link("etc/hosts", &to).link("etc/hostname", &to);
        let ran =
            host.task("cat /etc/hosts; cat /etc/resolv.conf >/dev/null && echo resolver").rootfs(root.path()).run();
        assert!(ran.out() == "resolver" && ran.err().contains("/etc/hosts is a link that leads nowhere"), "{ran}");
        assert_eq!(names_in(&outside), ["there"]);
        assert_eq!(fs::read_to_string(outside.join("there")).expect("it stays"), "of the host\n");
        assert_eq!(names_in(&root.path().join("etc")), ["group", "hostname", "hosts", "passwd"]);
    }
}

#[test]
fn an_etc_that_is_a_link_inside_is_the_roots_own() {
    let host = Host::new();
    let root = root(&host);
    fs::create_dir(root.path().join("usr")).expect("a folder");
    fs::rename(root.path().join("etc"), root.path().join("usr/etc")).expect("ours");
    root.link("etc", Path::new("/usr/etc"));
    let task =
        host.task("cat /usr/etc/hostname; grep -c localhost /etc/hosts").rootfs(root.path()).flag("--network=none");
    let id = task.id().to_owned();
    task.run().assert_says(&format!("{id}\n2"));
    assert_eq!(names_in(&root.path().join("usr/etc")), ["group", "passwd"]);
}

#[test]
fn a_link_into_run_has_a_place_there_that_is_not_made() {
    let host = Host::new();
    for link in ["../run/systemd/resolve/stub-resolv.conf", "/run/resolv.conf"] {
        let root = root(&host);
        root.link("etc/resolv.conf", Path::new(link));
        let script = "grep . /etc/resolv.conf; touch /run/x && ls -d /run/lock";
        let ran = host
            .task(script)
            .rootfs(root.path())
            .flag("--dns=192.0.2.1")
            .flag("--dns-search=.")
            .flag("--dns-option=rotate");
        ran.run().assert_says("nameserver 192.0.2.1\noptions rotate\n/run/lock");
        assert_eq!(names_in(&root.path().join("run")), ["lock"], "{link}");
        // Nothing to cover.
        fs::remove_dir_all(root.path().join("run")).expect("ours");
        let ran = host.task("cat /etc/resolv.conf; ls /bin/sh").rootfs(root.path()).run();
        assert!(ran.out() == "/bin/sh" && ran.err().contains("a link that leads nowhere"), "{ran}");
    }
}

#[test]
fn what_is_no_file_is_left_alone() {
    let host = Host::new();
    let folder = |path: &Path| fs::create_dir(path).expect("ours");
    let itself = |path: &Path| symlink("hosts", path).expect("ours");
    let magic = |path: &Path| symlink("/proc/self/mem", path).expect("ours");
    for put in [make_fifo as fn(&Path), folder, itself, magic] {
        let root = root(&host);
        put(&root.path().join("etc/hosts"));
        let before = names_in(&root.path().join("etc"));
        let ran = host.task("wc -l </etc/hostname").rootfs(root.path()).run();
        assert!(ran.out() == "1" && ran.err().contains("/etc/hosts is "), "{ran}");
        assert_eq!(names_in(&root.path().join("etc")), before);
    }
    let root = root(&host);
    fs::remove_dir_all(root.path().join("etc")).expect("ours");
    root.file("etc", "", 0o644);
    host.task("cat /etc; echo empty").rootfs(root.path()).flag("--user=0").run().assert_says("empty");
}

#[test]
fn the_end_of_a_task_removes_nothing_that_its_root_leads_to() {
    let host = Host::new();
    let outside = host.work().join("outside");
    fs::create_dir(&outside).expect("a folder");
    // As if it were made for now, by its mark.
    for name in ["hostname", "hosts", "resolv.conf"] {
        File::create(outside.join(name)).expect("a file");
        fs::set_permissions(outside.join(name), fs::Permissions::from_mode(0o1000)).expect("ours");
    }
    let root = root(&host);
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    let hosts = root.path().join("etc/hosts");
    assert_eq!(fs::metadata(&hosts).expect("for now").mode() & 0o7777, 0o1000);
    fs::rename(root.path().join("etc"), root.path().join("old")).expect("ours");
    root.link("etc", &outside);
    task.end();
    task.bowline("rm", []).assert_code(0);
    assert_eq!(names_in(&outside), ["hostname", "hosts", "resolv.conf"]);
    // What the user has put there meanwhile stays.
    fs::remove_file(root.path().join("etc")).expect("ours");
    fs::rename(root.path().join("old"), root.path().join("etc")).expect("ours");
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    root.file("etc/hosts", "mine\n", 0o600);
    task.end();
    let left = || (names_in(&root.path().join("etc")) == ["group", "hosts", "passwd"]).then_some(());
    eventually("the rest is removed", left);
    assert_eq!(fs::read_to_string(hosts).expect("it stays"), "mine\n");
}
