//! `--ephemeral`: changes to the root vanish with the task, are bounded, and count as the task's memory.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::lacks;

/// A root with files of its own.
macro_rules! root {
    ($host:expr) => {{
        let root = $host.busybox_root();
        fs::create_dir_all(root.path().join("data/below")).expect("made");
        fs::write(root.path().join("data/kept"), "kept\n").expect("written");
        fs::write(root.path().join("data/below/gone"), "gone\n").expect("written");
        root
    }};
}

#[test]
fn changes_to_a_root_folder_vanish_with_the_task() {
    let host = Host::new();
    let root = root!(host);
    let script = "echo new >/data/new; echo changed >>/data/kept; rm -r /data/below; mkdir /data/below; \
                  cat /data/new /data/kept; ls /data/below; grep ' / ' /proc/self/mounts | cut -d ' ' -f 3";
    let before = listing(root.path());
    host.task(script).rootfs(root.path()).flag("--ephemeral").run().assert_says("new\nkept\nchanged\noverlay");
    assert_eq!(listing(root.path()), before);
    assert_eq!(fs::read_to_string(root.path().join("data/kept")).expect("a file"), "kept\n");
    // The next one begins anew.
    host.task("ls /data; cat /data/below/gone").rootfs(root.path()).flag("--ephemeral").run();
}

/// All paths below `folder`, sorted.
fn listing(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    let mut ahead = vec![folder.to_owned()];
    while let Some(folder) = ahead.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("a type").is_dir() {
                ahead.push(entry.path());
            }
            all.push(entry.path());
        }
    }
    all.sort();
    all
}

#[test]
fn the_root_of_the_host_view_can_be_written_too() {
    let host = Host::new();
    let script = "mkdir /data && echo hi >/data/a && cat /data/a; touch /usr/x 2>/dev/null || echo no";
    host.task(script).flag("--ephemeral").run().assert_says("hi\nno");
    host.task("mkdir /data 2>/dev/null || echo no").run().assert_says("no");
    assert!(!std::path::Path::new("/data/a").exists());
}

#[test]
fn execs_see_the_same_root_and_mounts_lie_in_it() {
    let host = Host::new();
    let root = root!(host);
    let build = host.task("echo new >/data/new; exec sleep 1000").rootfs(root.path()).flag("--ephemeral=8M");
    let task = build.flag("--tmpfs=/data/scratch").start();
    bowline_tests::harness::eventually("the file is there", || {
        (task.exec("cat /data/new").out() == "new").then_some(())
    });
    task.exec("touch /data/scratch/x && stat -f -c %T /data/scratch").assert_says("tmpfs");
    assert!(!root.path().join("data/scratch").exists(), "not even its mount points are made in the folder");
    assert_eq!(task.inspect()["task"]["ephemeral"], "8M");
    task.end();
}

#[test]
fn changes_are_bounded_and_charged_to_the_task() {
    let host = Host::new();
    let root = root!(host);
    let fill = "dd if=/dev/zero of=/data/big bs=1M count=64 2>/dev/null || echo full; wc -c </data/big";
    let ran = host.task(fill).rootfs(root.path()).flag("--ephemeral=8M").run();
    let out = ran.assert_code(0).out();
    let (full, size) = out.split_once('\n').expect("two lines");
    let size: u64 = size.trim().parse().expect("a number");
    assert!(full == "full" && size > 7 << 20 && size <= 8 << 20, "{ran}");
    // Empty files are bounded as well.
    let many = "i=0; while touch /data/$i 2>/dev/null; do i=$((i+1)); [ $i -gt 3000 ] && break; done; [ $i -lt 3000 ] && echo full";
    host.task(many).rootfs(root.path()).flag("--ephemeral=1M").run().assert_says("full");
    let task = host
        .task("dd if=/dev/zero of=/data/big bs=1M count=16 2>/dev/null; echo done; exec sleep 1000")
        .rootfs(root.path())
        .flag("--ephemeral=32M")
        .flag("--memory=64M")
        .start();
    task.wait_for_line("done");
    let used = host.bowline(["stats", "--json", task.id()]).assert_code(0).json()["memory"]["usage_bytes"].as_u64();
    assert!(used.is_some_and(|used| used >= 16 << 20), "{used:?}");
    task.end();
}

#[test]
fn half_of_the_memory_is_the_default_bound() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--ephemeral").flag("--memory=64M").start();
    assert_eq!(task.inspect()["task"]["ephemeral"], "32M");
    task.end();
    let task = host.task("exec sleep 1000").flag("--ephemeral").start();
    assert_eq!(task.inspect()["task"]["ephemeral"], "1G");
    task.end();
    let task = host.task("exec sleep 1000").flag("--ephemeral").flag("--set=memory.limit=48M").start();
    assert_eq!(task.inspect()["task"]["ephemeral"], "24M");
    task.end();
}

#[test]
fn a_user_namespace_has_an_ephemeral_root_as_well() {
    if lacks("overlay_in_user_namespace") {
        return;
    }
    let host = Host::new();
    let root = root!(host);
    let ids = "[{container = 0, host = 100000, size = 65536}]";
    let toml = format!("namespaces.user = 'private'\nuid_mappings = {ids}\ngid_mappings = {ids}");
    let script = "touch /new && echo made; id -u";
    host.described(&format!("command = '/bin/sh'\nargs = ['-c', '{script}']\n{toml}"))
        .rootfs(root.path())
        .flag("--ephemeral=8M")
        .run();
    assert!(!root.path().join("new").exists());
}

#[test]
fn an_ephemeral_root_that_makes_no_sense_is_refused() {
    let host = Host::new();
    let flags = |flags: &[&str]| flags.iter().fold(host.task("true"), |build, flag| build.flag(*flag));
    flags(&["--ephemeral", "--read-only"]).assert_refused(2, &["--ephemeral", "--read-only"]);
    flags(&["--ephemeral=64M", "--memory=32M"]).assert_refused(2, &["ephemeral", "memory.limit"]);
    flags(&["--ephemeral=1"]).assert_refused(2, &["ephemeral", "too little"]);
    for form in ["", "x", "-1", "64Q"] {
        flags(&[&format!("--ephemeral={form}")]).assert_refused(2, &["--ephemeral"]);
    }
    let file = host.file("e.toml", "command = 'true'\nephemeral = '8M'\n");
    host.bowline(["spec", file.to_str().expect("ASCII")]).assert_refused(125, &["ephemeral"]);
}
