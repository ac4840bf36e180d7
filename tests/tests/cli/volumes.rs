//! The flags of `run` and `start` for files, in docker's names: volumes, mounts, folders in memory, devices.

use std::fs;
use std::path::Path;

use bowline_tests::Host;

use super::flags::{assert_misused, assert_says, folder, with};

#[test]
fn a_volume_is_a_folder_of_the_host() {
    let host = Host::new();
    let data = folder(&host);
    let volume = |options: &str| format!("--volume={data}:/srv/data{options}");
    with(&host, "cat /srv/data/a; echo b >/srv/data/b", &[&volume("")]).run().assert_says("hi");
    assert_eq!(fs::read_to_string(Path::new(&data).join("b")).expect("written"), "b\n");
    let ran = with(&host, "cat /srv/data/a; echo c >/srv/data/c", &[&volume(":ro")]).run();
    assert!(ran.out() == "hi" && ran.code != Some(0), "{ran}");
    assert!(!Path::new(&data).join("c").exists());
    // A file, and by a path that begins in the working directory.
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    let id = host.new_id();
    command.args(["run", "--rm", "--name", &id, "-v", "./a:/tmp/it:ro", "cat", "/tmp/it"]).current_dir(&data);
    host.execute(command).assert_says("hi");
}

#[test]
fn what_is_mounted_below_another_comes_later() {
    let host = Host::new();
    let data = folder(&host);
    let (below, above) = (format!("--volume={data}:/srv/x/y"), "--tmpfs=/srv/x".to_owned());
    for flags in [[&below, &above], [&above, &below]] {
        with(&host, "cat /srv/x/y/a", &flags.map(String::as_str)).run().assert_says("hi");
    }
}

#[test]
fn a_source_that_is_not_there_is_refused_and_not_made() {
    let host = Host::new();
    let missing = host.work().join("missing");
    let path = missing.to_str().expect("ASCII");
    for flag in [format!("--volume={path}:/srv"), format!("--mount=type=bind,source={path},target=/srv")] {
        for verb in ["run", "start"] {
            let ran = host.bowline([verb, "--name", &host.new_id(), &flag, "true"]);
            ran.assert_refused(125, &["cannot mount", path]);
            assert!(ran.err().contains("\nhint: unlike docker"), "{ran}");
        }
    }
    assert!(!missing.exists());
}

#[test]
fn wrong_volumes_mounts_and_devices_are_bad_usage() {
    let volumes = ["", "/a", ":/b", "/a:", "data:/b", "/a:b", "/a:/b:rx", "/a:/b/../c", "/a:/b:ro:rw"];
    assert_misused("--volume", &volumes);
    let mounts = [
        "",
        "/a:/b",
        "type=volume,src=a,dst=/b",
        "type=bind,dst=/b",
        "type=bind,src=/a",
        "type=bind,src=/a,dst=/../b",
        "type=tmpfs,dst=/b,tmpfs-size=1Q",
        "type=bind,src=/a,dst=/b,x=y",
        "type=bind,src=/a,source=/c,dst=/b",
    ];
    assert_misused("--mount", &mounts);
    assert_misused("--tmpfs", &["", "a", "/../a", "/a:size=1Q", "/a:size=", "/a:mode=9", "/a:noatime"]);
    assert_misused(
        "--tmpfs",
        &["/a:uid=root", "/a:gid=-1", "/a:uid=", "/a:nr_inodes=1k", "/a:size=0%", "/a:size=101%"],
    );
    assert_misused("--device", &["", "kvm", "/dev/null:x", "/dev/null:/dev/x:rx", "/dev/null:/dev/x:r:w"]);
}

#[test]
fn a_mount_says_the_same_at_length() {
    let host = Host::new();
    let data = folder(&host);
    let mount = format!("--mount=type=bind,source={data},target=/srv,readonly");
    let ran = with(&host, "cat /srv/a; touch /srv/b", &[&mount]).run();
    assert!(ran.out() == "hi" && ran.code != Some(0), "{ran}");
    let tmpfs = "--mount=type=tmpfs,target=/srv,tmpfs-size=1M,tmpfs-mode=0700";
    with(&host, "stat -c %a /srv; df -k --output=size /srv | tail -1 | tr -d ' '", &[tmpfs])
        .run()
        .assert_says("700\n1024");
}

#[test]
fn a_tmpfs_is_an_empty_folder_in_memory() {
    let script = "touch /srv/a && stat -f -c %T /srv; stat -c %a /srv; df -k --output=size /srv | tail -1 | tr -d ' '";
    assert_says(&["--tmpfs=/srv:size=1M,mode=0750"], script, "tmpfs\n750\n1024");
    assert_says(&["--tmpfs=/srv"], "cp /bin/true /srv/t; /srv/t && echo runs", "runs");
    let script = "stat -c '%u %g' /srv; stat -f -c %c /srv; grep ' /srv ' /proc/mounts | grep -o size=[0-9]*k";
    let memory = fs::read_to_string("/proc/meminfo").expect("procfs");
    let total: u64 = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).expect("KiB");
    let ran = {
        let host = Host::new();
        with(&host, script, &["--tmpfs=/srv:uid=1234,gid=5678,nr_inodes=99,size=25%"]).run().assert_code(0).out()
    };
    let lines: Vec<&str> = ran.lines().collect();
    assert_eq!(lines[..2], ["1234 5678", "99"]);
    let size: u64 = lines[2].trim_start_matches("size=").trim_end_matches('k').parse().expect("KiB");
    assert!(size.abs_diff(total / 4) <= 4, "{size} of {total}");
    assert_says(&["--tmpfs=/srv:noexec"], "cp /bin/true /srv/t; /srv/t 2>/dev/null || echo no", "no");
}

#[test]
fn a_root_can_be_read_only() {
    let host = Host::new();
    let root = host.busybox_root();
    let script = "touch /x 2>/dev/null && echo yes || echo no";
    host.task(script).rootfs(root.path()).run().assert_says("yes");
    host.task(script).rootfs(root.path()).flag("--read-only").run().assert_says("no");
}

#[test]
fn a_device_of_the_host_s_is_there_as_far_as_asked() {
    assert_says(&["--device=/dev/null:/dev/mine"], "echo x >/dev/mine && cat /dev/mine && echo both", "both");
    assert_says(&["--device=/dev/zero:/dev/mine:r"], "head -c 1 /dev/mine | od -An -tx1", " 00");
    let host = Host::new();
    with(&host, "true", &["--device=/dev/no-such-device"]).assert_refused(125, &["/dev/no-such-device"]);
}
