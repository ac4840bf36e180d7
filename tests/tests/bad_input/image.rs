//! Roots that do not exist, and images that aim at the host: a clear error,
//! nothing left, and nothing touched on the host.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bowline_tests::Host;

/// A folder of the host's that nothing may touch.
struct Untouched {
    path: PathBuf,
    before: BTreeMap<PathBuf, String>,
}

impl Untouched {
    /// With what a runtime might write to in it: `/dev`, `/proc`, `/sys`, `/etc`.
    fn new(host: &Host, name: &str) -> Untouched {
        let path = host.work().join(name);
        for folder in ["dev", "proc", "sys", "etc", "empty"] {
            fs::create_dir_all(path.join(folder)).expect("the work folder is writable");
        }
        for (file, text) in
            [("etc/passwd", "intruder:x:0:0::/:/bin/sh\n"), ("etc/group", "intruder:x:0:\n"), ("file", "text")]
        {
            fs::write(path.join(file), text).expect("the work folder is writable");
        }
        let before = listing(&path);
        Untouched { path, before }
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(listing(&self.path), self.before, "something outside the image was touched");
    }
}

/// Every file below, with what tells that it was changed.
fn listing(path: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(path).expect("a folder").flatten() {
        let path = entry.path();
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let times = if meta.is_dir() { String::new() } else { format!("{}.{}", meta.mtime(), meta.mtime_nsec()) };
        all.insert(path.clone(), format!("{:o} {} {} {} {times}", meta.mode(), meta.uid(), meta.gid(), meta.size()));
        if meta.is_dir() {
            all.extend(listing(&path));
        }
    }
    all
}

#[test]
fn a_root_that_does_not_exist_is_named() {
    let host = Host::new();
    host.task_of(["sh"]).flag("--rootfs=/no/such/root").assert_refused(125, &["rootfs", "/no/such/root"]);
}

#[test]
fn a_root_that_is_a_file_is_named() {
    let host = Host::new();
    host.task_of(["sh"]).flag("--rootfs=/etc/passwd").assert_refused(125, &["rootfs", "/etc/passwd"]);
}

#[test]
fn the_hosts_own_root_is_refused() {
    let host = Host::new();
    for root in ["/", "//", "/."] {
        host.task_of(["sh"]).flag(format!("--rootfs={root}")).assert_refused(2, &["rootfs"]);
    }
}

#[test]
fn an_empty_root_has_no_command() {
    let host = Host::new();
    let root = host.work().join("empty");
    fs::create_dir(&root).expect("a folder");
    host.task_of(["sh"]).rootfs(&root).assert_refused(127, &["sh"]);
}

#[test]
fn an_absolute_link_to_the_host_as_system_folder_is_refused() {
    for name in ["dev", "proc", "sys", "etc"] {
        let host = Host::new();
        let outside = Untouched::new(&host, "outside");
        let root = host.busybox_root();
        if name == "etc" {
            fs::remove_dir_all(root.path().join("etc")).expect("the test's own");
        }
        root.link(name, &outside.path.join(name));
        host.task_of(["true"]).rootfs(root.path()).assert_refused(125, &[&format!("/{name}")]);
        outside.assert_untouched();
        host.assert_nothing_left();
    }
}

#[test]
fn a_climbing_link_to_the_host_as_system_folder_is_refused() {
    for name in ["dev", "proc", "sys", "etc"] {
        let host = Host::new();
        let outside = Untouched::new(&host, "outside");
        let root = host.busybox_root();
        if name == "etc" {
            fs::remove_dir_all(root.path().join("etc")).expect("the test's own");
        }
        root.link(name, &Path::new("../outside").join(name));
        host.task_of(["true"]).rootfs(root.path()).assert_refused(125, &[&format!("/{name}")]);
        outside.assert_untouched();
        host.assert_nothing_left();
    }
}

#[test]
fn a_link_to_the_hosts_dev_is_refused_and_nothing_is_made() {
    let host = Host::new();
    let names = || {
        let mut names: Vec<_> = fs::read_dir("/dev").expect("/dev").flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let root = host.busybox_root();
    root.link("dev", Path::new("/dev"));
    host.task_of(["true"]).rootfs(root.path()).assert_refused(125, &["/dev"]);
    assert_eq!(names(), before);
}

#[test]
fn users_are_not_looked_up_in_the_hosts_passwd() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    let root = host.busybox_root();
    fs::remove_file(root.path().join("etc/passwd")).expect("the test's own");
    root.link("etc/passwd", &outside.path.join("etc/passwd"));
    host.task_of(["id"]).rootfs(root.path()).flag("--user=intruder").assert_refused(125, &["user", "intruder"]);
    fs::remove_file(root.path().join("etc/passwd")).expect("the test's own");
    root.link("etc/passwd", Path::new("../../outside/etc/passwd"));
    host.task_of(["id"]).rootfs(root.path()).flag("--user=intruder").assert_refused(125, &["user", "intruder"]);
}

#[test]
fn a_passwd_that_is_a_fifo_or_endless_holds_up_nobody() {
    let host = Host::new();
    let root = host.busybox_root();
    let passwd = root.path().join("etc/passwd");
    fs::remove_file(&passwd).expect("the test's own");
    rustix::fs::mknodat(rustix::fs::CWD, &passwd, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    host.task_of(["id"]).rootfs(root.path()).flag("--user=app").assert_refused(125, &["user"]);
    fs::remove_file(&passwd).expect("the test's own");
    let zero = rustix::fs::makedev(1, 5);
    rustix::fs::mknodat(rustix::fs::CWD, &passwd, rustix::fs::FileType::CharacterDevice, 0o600.into(), zero)
        .expect("root may");
    host.task_of(["id"]).rootfs(root.path()).flag("--user=app").assert_refused(125, &["user"]);
}

#[test]
fn a_mount_through_a_link_that_leaves_the_root_is_made_inside() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    let data = host.file("data", "data");
    for target in
        [outside.path.join("empty"), PathBuf::from("../outside/empty"), PathBuf::from("/../../../../../../../tmp")]
    {
        let root = host.busybox_root();
        root.link("exit", &target);
        for destination in ["/exit/new/file", "/exit/file"] {
            let toml = format!(
                "command = 'cat'\nargs = ['{destination}']\nmounts = [{{source = '{}', destination = '{destination}'}}]",
                data.display()
            );
            host.described(&toml).rootfs(root.path()).run().assert_says("data");
        }
    }
    outside.assert_untouched();
}

#[test]
fn a_tmpfs_through_a_link_that_leaves_the_root_is_made_inside() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    let root = host.busybox_root();
    root.link("exit", &outside.path);
    host.described("command = 'true'\nmounts = [{type = 'tmpfs', destination = '/exit/empty'}]")
        .rootfs(root.path())
        .run()
        .assert_code(0);
    outside.assert_untouched();
}

#[test]
fn a_mount_through_a_link_to_proc_is_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    root.link("sly", Path::new("/proc"));
    for destination in ["/sly", "/sly/self/attr", "/sly/sys"] {
        let toml = format!("command = 'true'\nmounts = [{{type = 'tmpfs', destination = '{destination}'}}]");
        host.described(&toml).rootfs(root.path()).assert_refused(125, &[destination]);
    }
}

#[test]
fn a_workdir_through_a_link_out_is_made_inside_or_refused() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    for target in [outside.path.clone(), PathBuf::from("../outside"), PathBuf::from("/proc/self/fd/3")] {
        let root = host.busybox_root();
        root.link("exit", &target);
        for workdir in ["/exit", "/exit/new"] {
            let task = host.described(&format!("command = 'pwd'\nargs = ['-P']\nworkdir = '{workdir}'"));
            if target.starts_with("/proc") {
                task.rootfs(root.path()).assert_refused(125, &["workdir"]);
                continue;
            }
            let ran = task.rootfs(root.path()).run();
            ran.assert_code(0);
            assert!(root.path().join(ran.out().trim_start_matches('/')).is_dir(), "it is inside: {ran}");
        }
    }
    outside.assert_untouched();
}

#[test]
fn a_working_directory_by_an_fd_is_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    // CVE-2024-21626.
    for fd in 0..16 {
        let workdir = format!("/proc/self/fd/{fd}");
        host.described(&format!("command = 'pwd'\nworkdir = '{workdir}'"))
            .rootfs(root.path())
            .assert_refused(125, &["workdir"]);
    }
}

#[test]
fn a_masked_path_through_a_link_never_hides_the_hosts_file() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    let root = host.busybox_root();
    root.link("exit", &outside.path).link("dangling", Path::new("/nowhere"));
    let toml = "command = 'true'\nmasked_paths = ['/exit/file', '/dangling']\nreadonly_paths = ['/exit/empty']";
    // Whether that is an error or nothing to mask: the host does not notice.
    host.described(toml).rootfs(root.path()).run();
    outside.assert_untouched();
    assert_eq!(fs::read_to_string(outside.path.join("file")).expect("still there"), "text");
}

#[test]
fn devices_through_a_link_are_made_inside() {
    let host = Host::new();
    let outside = Untouched::new(&host, "outside");
    let root = host.busybox_root();
    root.link("exit", &outside.path);
    let toml = "command = 'test'\nargs = ['-c', '/exit/empty/null']\n\
                devices = [{path = '/exit/empty/null', host_path = '/dev/null'}]";
    host.described(toml).rootfs(root.path()).run().assert_code(0);
    outside.assert_untouched();
}

#[test]
fn a_file_where_a_folder_must_be_is_refused() {
    for name in ["proc", "dev", "sys"] {
        let host = Host::new();
        let root = host.busybox_root();
        fs::remove_dir(root.path().join(name)).expect("the test's own");
        root.file(name, "", 0o644);
        host.task_of(["true"]).rootfs(root.path()).assert_refused(125, &[&format!("/{name}")]);
        host.assert_nothing_left();
    }
}

#[test]
fn a_root_that_is_itself_a_link_is_what_it_leads_to() {
    let host = Host::new();
    let root = host.busybox_root();
    let link = host.work().join("link");
    std::os::unix::fs::symlink(root.path(), &link).expect("the work folder is writable");
    host.task_of(["echo", "inside"]).rootfs(&link).run().assert_says("inside");
}

#[test]
fn an_archive_as_rootfs_is_refused_with_a_hint_to_unpack_it() {
    let host = Host::new();
    let archive = host.file("root.tar", "");
    let refused = host.task("true").rootfs(&archive).try_start();
    assert!(refused.assert_refused(125, &["rootfs:", "is not a folder"]).err().contains("tar -xf"), "{refused}");
}
