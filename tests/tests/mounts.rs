//! What a description mounts, inside a root that nobody vouches for.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::binary;

use crate::containerd::mounts_flags::source;

/// A description that runs `script` with these mounts.
fn with(script: &str, mounts: &str) -> String {
    format!("command = 'sh'\nargs = ['-c', '{script}']\nmounts = [{mounts}]")
}

fn bind(source: &Path, rest: &str) -> String {
    format!("{{source = '{}', {rest}}}", source.display())
}

#[test]
fn a_mount_of_the_host_may_have_a_name_that_is_no_utf_8() {
    let host = Host::new();
    let script =
        "f=$1/caf$(printf '\\351') && mkdir \"$f\" && mount -t tmpfs none \"$f\" && exec $0 run --rm -- /bin/echo hi";
    let mut command = host.command("unshare");
    command.args(["--mount", "/bin/sh", "-c", script]).arg(binary("bowline")).arg(host.work());
    host.execute(command).assert_says("hi");
}

#[test]
fn a_folder_of_the_host_can_be_read_and_written() {
    let host = Host::new();
    let data = host.work().join("data");
    fs::create_dir(&data).expect("a folder");
    let root = host.busybox_root();
    let toml = with("echo in > /data/file; cat /data/file", &bind(&data, "destination = '/data'"));
    host.described(&toml).rootfs(root.path()).run().assert_says("in");
    assert_eq!(fs::read_to_string(data.join("file")).expect("it was made"), "in\n");
}

#[test]
fn a_read_only_bind_cannot_be_written() {
    let host = Host::new();
    let data = host.work().join("data");
    fs::create_dir(&data).expect("a folder");
    let root = host.busybox_root();
    let toml = with("touch /data/x", &bind(&data, "destination = '/data', read_only = true"));
    let ran = host.described(&toml).rootfs(root.path()).run();
    assert!(ran.code == Some(1) && ran.err().contains("Read-only file system"), "{ran}");
    assert!(!data.join("x").exists());
}

#[test]
fn a_read_only_bind_is_read_only_below_too() {
    let host = Host::new();
    let below = host.tmpfs("data/below", "size=64k");
    let root = host.busybox_root();
    let data = host.work().join("data");
    let toml =
        with("ls -d /data/below && touch /data/below/x", &bind(&data, "destination = '/data', read_only = true"));
    let ran = host.described(&toml).rootfs(root.path()).run();
    assert!(ran.code == Some(1) && ran.err().contains("Read-only file system"), "{ran}");
    assert!(!below.path().join("x").exists());
    drop(below);
}

#[test]
fn a_bind_of_a_description_keeps_what_its_source_does_without() {
    let host = Host::new();
    let data = source(&host, "data", "nosuid,nodev,noexec");
    let root = host.busybox_root();
    let mounts = ["read_only = false", "read_only = true"];
    let mounts =
        mounts.iter().enumerate().map(|(at, rest)| bind(data.path(), &format!("destination = \"/{at}\", {rest}")));
    let toml = with(
        "sed -n \"s,.* / /[01] ,,p\" /proc/self/mountinfo | cut -d\" \" -f1",
        &mounts.collect::<Vec<_>>().join(", "),
    );
    host.described(&toml)
        .rootfs(root.path())
        .run()
        .assert_says("rw,nosuid,nodev,noexec,relatime\nro,nosuid,nodev,noexec,relatime");
    drop(data);
}

#[test]
fn mounts_below_come_along_unless_told_otherwise() {
    let host = Host::new();
    let below = host.tmpfs("data/below", "size=64k");
    fs::write(below.path().join("seen"), "").expect("a file");
    let root = host.busybox_root();
    let data = host.work().join("data");
    let script = "ls /data/below /flat/below";
    let mounts =
        [bind(&data, "destination = '/data'"), bind(&data, "destination = '/flat', recursive = false")].join(", ");
    let toml = with(script, &mounts);
    host.described(&toml).rootfs(root.path()).run().assert_says("/data/below:\nseen\n\n/flat/below:");
    drop(below);
}

#[test]
fn a_single_file_can_be_bound() {
    let host = Host::new();
    let file = host.file("conf", "content\n");
    let root = host.busybox_root();
    let toml = with("cat /etc/app/conf", &bind(&file, "destination = '/etc/app/conf', read_only = true"));
    host.described(&toml).rootfs(root.path()).run().assert_says("content");
}

#[test]
fn a_tmpfs_has_its_size_and_mode() {
    let host = Host::new();
    let root = host.busybox_root();
    let script = "stat -c %a /scratch; df -k /scratch | tail -n 1 | awk \"{print \\$2}\"; grep \" /scratch \" /proc/mounts | grep -o noexec";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '''{script}''']\nmounts = [{{type = 'tmpfs', destination = '/scratch', size = '128K', mode = '0750', noexec = true}}]"
    );
    host.described(&toml).rootfs(root.path()).run().assert_says("750\n128\nnoexec");
}

#[test]
fn mounts_made_on_the_host_later_show_only_where_asked() {
    let host = Host::new();
    let shared = host.tmpfs("shared", "size=64k");
    rustix::mount::mount_change(shared.path(), rustix::mount::MountPropagationFlags::SHARED).expect("root may");
    let root = host.busybox_root();
    let mounts = [
        bind(shared.path(), "destination = '/slave', propagation = 'rslave'"),
        bind(shared.path(), "destination = '/private'"),
    ]
    .join(", ");
    fs::create_dir(shared.path().join("later")).expect("a folder");
    let task =
        host.described(&format!("command = 'sleep'\nargs = ['1000']\nmounts = [{mounts}]")).rootfs(root.path()).start();
    let later = host.tmpfs("shared/later", "size=64k");
    fs::write(later.path().join("seen"), "").expect("a file");
    task.exec("ls /slave/later /private/later").assert_says("/private/later:\n\n/slave/later:\nseen");
    task.end();
    drop((later, shared));
}

#[test]
fn what_a_task_mounts_never_shows_on_the_host() {
    let host = Host::new();
    let shared = host.tmpfs("shared", "size=64k");
    rustix::mount::mount_change(shared.path(), rustix::mount::MountPropagationFlags::SHARED).expect("root may");
    fs::create_dir(shared.path().join("inner")).expect("a folder");
    let root = host.busybox_root();
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'mount -t tmpfs none /data/inner && touch /data/inner/mark && sleep 1000']\n\
         seccomp = 'unconfined'\ncapabilities.add = ['SYS_ADMIN']\nmounts = [{}]",
        bind(shared.path(), "destination = '/data'")
    );
    let task = host.described(&toml).rootfs(root.path()).start();
    bowline_tests::harness::eventually("it has mounted", || {
        (task.exec("ls /data/inner").out() == "mark").then_some(())
    });
    assert!(!shared.path().join("inner/mark").exists());
    task.end();
    drop(shared);
}

#[test]
fn a_link_inside_the_root_is_followed_inside() {
    let host = Host::new();
    let data = host.file("conf", "content\n");
    let root = host.busybox_root();
    root.folder("real").link("absolute", Path::new("/real")).link("relative", Path::new("real"));
    let mounts = [bind(&data, "destination = '/absolute/a'"), bind(&data, "destination = '/relative/b'")].join(", ");
    let toml = with("cat /real/a /real/b", &mounts);
    host.described(&toml).rootfs(root.path()).run().assert_says("content\ncontent");
}

#[test]
fn later_mounts_lie_upon_earlier_ones() {
    let host = Host::new();
    let file = host.file("conf", "content\n");
    let root = host.busybox_root();
    let mounts = format!("{{type = 'tmpfs', destination = '/data'}}, {}", bind(&file, "destination = '/data/conf'"));
    host.described(&with("cat /data/conf; ls /data", &mounts)).rootfs(root.path()).run().assert_says("content\nconf");
}

#[test]
fn a_mount_point_the_host_view_lacks_is_made_only_in_the_view() {
    let host = Host::new();
    let file = host.file("conf", "content\n");
    let script = "cat /usr/no-such-folder/conf; ls /usr | grep -cx bin; touch /usr/x 2>&1 | grep -o Read-only; \
                  touch /usr/bin/x 2>&1 | grep -o Read-only";
    let volume = format!("--volume={}:/usr/no-such-folder/conf", file.display());
    host.task(script).flag(volume).run().assert_says("content\n1\nRead-only\nRead-only");
    assert!(!Path::new("/usr/no-such-folder").exists());
}

#[test]
fn a_folder_that_is_mounted_read_only_takes_no_new_mount_point() {
    let host = Host::new();
    let file = host.file("conf", "");
    let folder = host.work().join("folder");
    fs::create_dir(&folder).expect("ours");
    let task = || {
        let task = host.task("true").flag(format!("--volume={}:/data:ro", folder.display()));
        task.flag(format!("--volume={}:/data/conf", file.display()))
    };
    task().assert_refused(125, &["cannot create /data/conf in the root filesystem"]);
    let said = task().run().err();
    assert!(said.contains("hint: mount over something that exists"), "{said}");
}

#[test]
fn a_second_mount_at_a_place_is_refused() {
    let host = Host::new();
    for second in ["--volume=/etc:/srv", "--tmpfs=/srv"] {
        let twice = host.task("true").flag("--volume=/tmp:/srv").flag(second);
        twice.assert_refused(2, &["mounts[1].destination: /srv has a mount already (mounts[0])"]);
    }
}

#[test]
fn a_root_can_be_read_only() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml =
        "command = 'sh'\nargs = ['-c', 'touch /x; touch /tmp/x; touch /dev/shm/x && echo shm']\nreadonly_rootfs = true";
    let ran = host.described(toml).rootfs(root.path()).run();
    ran.assert_says("shm");
    assert_eq!(ran.err().matches("Read-only file system").count(), 2, "{ran}");
}

#[test]
fn paths_can_be_masked_and_made_read_only() {
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("secret").file("secret/key", "key", 0o600).file("etc/token", "token", 0o600).folder("fixed");
    let toml = "command = 'sh'\nargs = ['-c', 'ls /secret; cat /etc/token; touch /fixed/x']\n\
                masked_paths = ['/secret', '/etc/token', '/not/there']\nreadonly_paths = ['/fixed', '/not/there']";
    let ran = host.described(toml).rootfs(root.path()).run();
    assert!(ran.out().is_empty() && ran.err().contains("Read-only file system"), "{ran}");
}

#[test]
fn mount_points_are_made_in_the_root_and_the_hosts_files_stay() {
    let host = Host::new();
    let file = host.file("conf", "content\n");
    let root = host.busybox_root();
    let toml = with("cat /a/b/c", &bind(&file, "destination = '/a/b/c'"));
    host.described(&toml).rootfs(root.path()).run().assert_says("content");
    assert_eq!(fs::read_to_string(&file).expect("still there"), "content\n");
}

#[test]
fn nothing_shows_on_a_host_whose_mounts_are_shared() {
    // As systemd makes them. A copy of the root that stayed the host's peer
    // failed to become the root, and left its mounts on the host.
    let host = Host::new();
    let root = host.busybox_root();
    let bowline = bowline_tests::harness::binary("bowline");
    for rootfs in ["", &format!("--rootfs {}", root.path().display())] {
        let state = host.state();
        let script = format!(
            "{} --state {} run --rm {rootfs} -- sh -c 'echo in' && grep -e {} -e {} /proc/self/mountinfo; true",
            bowline.display(),
            state.display(),
            state.display(),
            root.path().display()
        );
        let mut command = host.command("unshare");
        command.args(["--mount", "--propagation", "shared", "sh", "-c", &script]);
        host.execute(command).assert_code(0).assert_says("in");
    }
}

#[test]
fn a_task_of_a_bowline_in_a_chroot_sees_its_own_root_alone() {
    // The host's root stayed that of the mount namespace, and an exec got there.
    let host = Host::new();
    let root = host.busybox_root();
    let jail = host.work().join("jail");
    fs::create_dir(&jail).expect("a folder");
    let (jail, bowline, id) = (jail.display(), bowline_tests::harness::binary("bowline"), host.new_id());
    let bowline = format!("{} --state {}", bowline.display(), host.state().display());
    let script = format!(
        "mount --rbind / {jail} && chroot {jail} sh -ec '
            {bowline} start --name {id} --rootfs {} -- sleep 1000
            {bowline} exec {id} -- ls /
            {bowline} exec {id} -- sh -c \"cut -d \\  -f 5 /proc/self/mountinfo | grep -c {jail} || true\"
            {bowline} rm -f {id}'",
        root.path().display()
    );
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let ran = host.execute(command);
    ran.assert_code(0);
    let out = ran.out();
    let (listing, mounts) = out.trim_start_matches(&id).trim().rsplit_once('\n').expect("two answers");
    assert!(listing.contains("bin") && !listing.contains("boot"), "{ran}");
    assert_eq!(mounts, "0", "{ran}");
}
