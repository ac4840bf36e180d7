//! A program that makes namespaces of its own, and hides files of the task behind its own there: no command follows it.

use std::collections::BTreeSet;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Root, Task, copy_program, eventually, fds_of};

/// Without a filter and `bowline-init`, as a user without rights.
const UNGUARDED: &str = "init = false\nseccomp = 'unconfined'\nuser = 'app'\n";

/// A root whose users and command a program can replace in its own namespaces, or in a root of its own.
fn root(host: &Host) -> Root {
    let root = host.busybox_root();
    root.folder("evil/root/etc").folder("evil/root/bin");
    root.file("bin/chk", "#!/bin/sh\necho real\n", 0o755).file("evil/chk", "#!/bin/sh\necho evil\n", 0o755);
    let evil = "root:x:0:0::/root:/bin/sh\napp:x:0:0::/evil:/bin/sh\n";
    root.file("evil/passwd", evil, 0o644).file("evil/root/etc/passwd", evil, 0o644).file(
        "evil/root/etc/group",
        "root:x:0:\n",
        0o644,
    );
    copy_program(&root.path().join("bin/busybox"), &root.path().join("evil/root/bin/busybox"));
    root
}

/// The task's first process in user and mount namespaces of its own, with its own files over the task's.
const BINDS: &str = "exec unshare -U -r -m sh -c 'mount --bind /evil/chk /bin/chk && \
                     mount --bind /evil/passwd /etc/passwd && echo ready && exec sleep 1000'";

/// In a root of its own, which takes a user namespace.
const CHROOTS: &str = "exec unshare -U -r /bin/busybox chroot /evil/root \
                       /bin/busybox sh -c 'echo ready; exec /bin/busybox sleep 1000'";

fn begun<'h>(build: Build<'h>) -> Task<'h> {
    let task = build.start();
    task.wait_for_line("ready");
    task
}

/// Fails unless commands see what the task was launched with.
#[track_caller]
fn assert_enters_the_launchs(task: &Task<'_>) {
    task.exec("/bin/chk").assert_says("real");
    task.exec_with(["--user=app"], "id -u; echo $HOME").assert_says("1234\n/home/app");
    task.exec_with(["--user=1234"], "id -u; echo $HOME").assert_says("1234\n/home/app");
}

#[test]
fn an_exec_enters_what_the_task_was_launched_in() {
    let host = Host::new();
    let root = root(&host);
    for script in [BINDS, CHROOTS] {
        let task = begun(host.task(script).rootfs(root.path()).toml(UNGUARDED));
        assert_enters_the_launchs(&task);
        task.bowline("upgrade", []).assert_code(0);
        assert_enters_the_launchs(&task);
        task.end();
    }
}

#[test]
fn in_a_user_namespace_too() {
    let host = Host::new();
    let root = root(&host);
    let users = "namespaces.user = 'private'\n\
                 uid_mappings = [{container = 0, host = 400000, size = 65536}]\n\
                 gid_mappings = [{container = 0, host = 400000, size = 65536}]";
    let task = begun(host.task(BINDS).rootfs(root.path()).toml(UNGUARDED).toml(users));
    assert_enters_the_launchs(&task);
    task.end();
}

#[test]
fn a_health_check_does_not_follow_either() {
    let host = Host::new();
    let root = root(&host);
    let check = "[healthcheck]\nexec = ['/bin/sh', '-c', '[ \"$(chk)\" = real ]']\ninterval = '50ms'\nretries = 1\n";
    let task = host.task(BINDS).rootfs(root.path()).toml(UNGUARDED).toml(check).start();
    task.wait_for_line("ready");
    let begun = || -> BTreeSet<String> {
        let inspected = task.inspect();
        let log = inspected["health"]["log"].as_array().expect("a list").iter();
        log.map(|check| check["started_at"].to_string()).collect()
    };
    let before = begun();
    eventually("more checks are made", || (begun().difference(&before).count() > 1).then_some(()));
    assert_eq!(task.inspect()["health"]["status"], "healthy", "{}", task.inspect());
    task.end();
}

#[test]
fn a_root_that_the_program_has_changed_to_names_no_users() {
    let host = Host::new();
    let root = root(&host);
    // With the default filter, whose capabilities allow chroot(2), and with bowline-init above it.
    let script = "exec /bin/busybox chroot /evil/root /bin/busybox sh -c 'echo ready; exec /bin/busybox sleep 1000'";
    for init in ["--init", "--init=false"] {
        let task = begun(host.task(script).rootfs(root.path()).flag(init));
        assert_enters_the_launchs(&task);
        task.end();
    }
}

/// Fails unless commands are refused, as the first process has left these namespaces.
#[track_caller]
fn assert_not_entered(host: &Host, task: &Task<'_>, left: &str) {
    for args in [&["--", "/bin/chk"][..], &["--user=app", "--", "id"]] {
        let ran = host.bowline([&["exec", task.id()], args].concat());
        ran.assert_refused(125, &[task.id(), "its first process has left", left]);
    }
}

#[test]
fn a_new_shim_enters_nothing_but_what_was_recorded() {
    let host = Host::new();
    let root = root(&host);
    // One that stays is entered as ever.
    let stays = begun(host.task("echo ready; exec sleep 1000").rootfs(root.path()).toml(UNGUARDED));
    let leaves = begun(host.task(BINDS).rootfs(root.path()).toml(UNGUARDED));
    for task in [&stays, &leaves] {
        task.kill_shim(task.shim_pid());
    }
    assert_enters_the_launchs(&stays);
    assert_not_entered(&host, &leaves, "mount, user");
    // What is not known to be entered is not known later either.
    leaves.bowline("upgrade", []).assert_code(0);
    assert_not_entered(&host, &leaves, "mount, user");
    for task in [stays, leaves] {
        task.end();
    }
}

#[test]
fn with_an_older_record_no_user_namespace_is_entered() {
    let host = Host::new();
    let root = root(&host);
    let task = begun(host.task(BINDS).rootfs(root.path()).toml(UNGUARDED));
    task.kill_shim(task.shim_pid());
    task.change_record(|record| {
        drop(record.as_object_mut().expect("an object").remove("launched_in").expect("recorded"))
    });
    assert_not_entered(&host, &task, "user");
    task.end();
}

#[test]
fn only_a_task_that_may_leave_costs_descriptors() {
    let host = Host::new();
    let held = |toml: &str, flag: &str| {
        let task = host.task("echo ready; exec sleep 1000").toml(toml).flag(flag).start();
        task.wait_for_line("ready");
        let held = fds_of(task.shim_pid()).iter().filter(|target| target.starts_with("mnt:[")).count();
        task.end();
        held
    };
    assert_eq!(held("", "--init=false"), 0, "the default filter keeps it");
    assert_eq!(held("seccomp = 'unconfined'", "--init"), 0, "bowline-init stays");
    assert_eq!(held("seccomp = 'unconfined'", "--init=false"), 1);
    assert_eq!(held("capabilities.add = ['SYS_ADMIN']", "--init=false"), 1);
}
