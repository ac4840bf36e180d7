//! What a task can do with the streams that it is given: to a file of the host nothing but append to it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::{binary, eventually};

/// What somebody else has written to the file.
const SECRET: &str = "what another container has said\n";

/// Tries everything that an open file allows, by stdout; what it could read is in `/seen`.
const ATTACK: &str = r#"
chmod 6777 /proc/self/fd/1
chown 1234:1234 /proc/self/fd/1
truncate -s 0 /proc/self/fd/1
: >/proc/self/fd/1
touch -d 1999-01-01 /proc/self/fd/1
timeout 1 dd if=/proc/self/fd/1 of=/seen bs=100 count=1
stat -L -c '%F' /proc/$$/fd/2 >/kinds
echo out
echo err >&2
echo anew >/dev/stdout
exit 0
"#;

/// A log of the host's, which is not empty.
fn log_of(host: &Host) -> (PathBuf, Stdio) {
    let path = host.file("log", SECRET);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
    let io = Stdio::uri(&format!("file://{}", path.display()));
    (path, io)
}

/// The file is as it was, but for lines that came behind.
#[track_caller]
fn assert_appended_to(path: &PathBuf, lines: &[&str]) {
    let meta = path.metadata().expect("it is still there");
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 0, 0), "the task changed the host's file");
    assert!(meta.mtime() > 1_000_000_000, "{}", meta.mtime());
    let text = fs::read_to_string(path).expect("text");
    assert!(text.starts_with(SECRET), "{text:?}");
    for line in lines {
        assert_eq!(text.lines().filter(|there| there == line).count(), 1, "{line}: {text:?}");
    }
}

#[test]
fn a_task_can_only_append_to_its_file() {
    let host = Host::new();
    if host.reference_fails("it hands the file to the task") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(ATTACK);
    let (path, io) = log_of(&host);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &io);
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    assert_appended_to(&path, &["out", "err", "anew"]);
    let seen = fs::read_to_string(bundle.rootfs().join("seen")).unwrap_or_default();
    assert!(!seen.contains("another"), "it read the host's file: {seen:?}");
    assert_eq!(fs::read_to_string(bundle.rootfs().join("kinds")).expect("written"), "fifo\n");
    shim.end(&bundle.id);
}

#[test]
fn a_link_that_stands_in_for_its_file_is_not_followed() {
    let host = Host::new();
    let path = log_of(&host).0;
    let link = host.work().join("link");
    symlink(&path, &link).expect("a link");
    let uri = Stdio::uri(&format!("file://{}", link.display()));
    let (missing, dangling) = (host.work().join("missing"), host.work().join("dangling"));
    symlink(&missing, &dangling).expect("a link");
    if !host.reference_fails("it follows the link") {
        let containerd = host.containerd();
        let bundle = containerd.bundle().args(&["/bin/echo", "out"]);
        let shim = containerd.start(&bundle);
        let refused = shim.create(&bundle, &uri).expect_err("it is refused");
        assert!(refused.message.contains("it is a symlink"), "{}", refused.message);
        shim.over();
        let bundle = containerd.bundle().args(&["/bin/echo", "out"]);
        let shim = containerd.start(&bundle);
        let uri = Stdio::uri(&format!("file://{}", dangling.display()));
        shim.create(&bundle, &uri).expect_err("it is refused");
        assert!(!missing.exists(), "a file was made where the link leads to");
        shim.over();
    }
    let toml = format!("command = 'echo'\nargs = ['out']\noutput.stdout = '{}'", link.display());
    host.described(&toml).assert_refused(125, &["link", "it is a symlink"]);
    assert_eq!(fs::read_to_string(&path).expect("text"), SECRET);
}

#[test]
fn nor_can_an_exec() {
    let host = Host::new();
    if host.reference_fails("it hands the file to the exec") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let (path, io) = log_of(&host);
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", ATTACK], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    // All of it was there before its end was told.
    assert_appended_to(&path, &["out", "err", "anew"]);
    running.shim.delete(&running.id, "e").expect("deleted");
    let seen = fs::read_to_string(running.bundle.rootfs().join("seen")).unwrap_or_default();
    assert!(!seen.contains("another"), "it read the host's file: {seen:?}");
    running.end();
}

/// Not the FIFOs of the client's `attach-…` folder, which it could give to another user.
#[test]
fn our_own_exec_has_pipes() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let look = "for fd in 0 1 2; do readlink /proc/$$/fd/$fd | cut -d: -f1; done; chmod 6777 /proc/self/fd/1; \
                chown 1234 /proc/self/fd/1; echo err >&2; cat";
    for flags in [&["-i"][..], &["-i", "--timeout=50s"]] {
        let mut exec = host.command(binary("bowline"));
        exec.args(["exec", task.id()]).args(flags).args(["--", "/bin/sh", "-c", look]);
        let stdin = fs::File::open(host.file("typed", "typed\n")).expect("ours");
        let (read, write) = std::io::pipe().expect("a pipe");
        let process = host.spawn_command_with(exec, stdin.into(), write.into());
        let ran = process.finish();
        assert_eq!(std::io::read_to_string(read).expect("text"), "pipe\npipe\npipe\ntyped\n", "{ran}");
        assert_eq!(ran.assert_code(0).err(), "err");
    }
    task.end();
}

/// The shim cannot open the pipes of a process whose pid it does not see, and another process may have that pid.
#[test]
fn an_exec_from_another_pid_namespace_has_its_output() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let look = "readlink /proc/self/fd/1 | cut -d: -f1; echo err >&2; exit 7";
    for flags in ["-pf", "-pf --mount-proc"] {
        let mut unshare = host.command("unshare");
        unshare.args(flags.split(' ')).arg(binary("bowline")).args(["exec", task.id(), "--", "sh", "-c", look]);
        let ran = host.execute(unshare);
        assert_eq!((ran.assert_code(7).out(), ran.err()), ("pipe".into(), "err".into()), "{flags}");
    }
    task.end();
}

#[test]
fn both_streams_to_one_file_stay_in_order_and_complete() {
    let host = Host::new();
    if host.reference_fails("the order is lost") {
        return;
    }
    let containerd = host.containerd();
    let script = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done";
    let bundle = containerd.bundle().script(script);
    let (path, io) = log_of(&host);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &io);
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    let text = fs::read_to_string(&path).expect("text");
    let expected: String = (0..2000).map(|number| format!("{number}\n")).collect();
    assert!(text.strip_prefix(SECRET) == Some(&expected), "{text:?}");
    shim.end(&bundle.id);
}

#[test]
fn a_full_disk_loses_output_and_ends_nobody() {
    let host = Host::new();
    if host.reference_fails("it hands the file to the task, whose writes fail") {
        return;
    }
    let containerd = host.containerd();
    let disk = host.tmpfs("disk", "size=64k");
    let path = disk.path().join("log");
    let script = "head -c 3000000 /dev/zero && echo whole >/done; while :; do sleep 1; done";
    let bundle = containerd.bundle().script(script);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::uri(&format!("file://{}", path.display())));
    eventually("the task goes on", || bundle.rootfs().join("done").exists().then_some(()));
    assert_eq!(shim.status(&bundle.id, ""), "RUNNING");
    assert!(path.metadata().expect("a log").len() <= 65_536);
    shim.end(&bundle.id);
    drop(disk);
}

#[test]
fn what_an_exec_leaves_behind_writes_on_to_its_file() {
    let host = Host::new();
    if host.reference_fails("what an exec leaves behind is cut off") {
        return;
    }
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let (path, io) = log_of(&host);
    let script = "(while [ ! -e /go ]; do sleep 0.1; done; echo late; touch /said) & echo early";
    running.shim.run_exec(&running.bundle, "e", &["/bin/sh", "-c", script], &io);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    assert_appended_to(&path, &["early"]);
    running.shim.delete(&running.id, "e").expect("deleted");
    fs::write(running.bundle.rootfs().join("go"), "").expect("ours");
    eventually("it writes on", || running.bundle.rootfs().join("said").exists().then_some(()));
    eventually("the shim passes it on", || fs::read_to_string(&path).ok().filter(|text| text.contains("late")));
    running.end();
}
