//! What a task cannot do, by default.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use bowline_tests::Host;
use bowline_tests::harness::{binary, fds_of, status_lines};
use rustix::fs::SealFlags;

/// In a task with the host view, `script` says `out`.
#[track_caller]
fn assert_says(script: &str, out: &str) {
    let host = Host::new();
    host.task(script).run().assert_says(out);
}

#[test]
fn masked_files_are_empty() {
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/interrupts",
        "/proc/sched_debug",
        "/proc/latency_stats",
    ] {
        assert_says(&format!("[ ! -e {path} ] || head -c 1 {path} | wc -c | grep -v '^0$'; true"), "");
    }
}

#[test]
fn masked_folders_are_empty_and_cannot_be_written() {
    for path in ["/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"] {
        assert_says(
            &format!("[ ! -e {path} ] || {{ ls -A {path}; mkdir {path}/x 2>/dev/null && echo written; }}; true"),
            "",
        );
    }
}

#[test]
fn kernel_settings_cannot_be_written() {
    let paths = ["/proc/sys/vm/swappiness", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"];
    for path in paths.into_iter().filter(|path| fs::exists(path).is_ok_and(|there| there)) {
        let host = Host::new();
        // Opened for writing, and nothing written.
        let ran = host.task(&format!(": >> {path} && echo opened")).run();
        assert_eq!(ran.out(), "", "{ran}");
        assert!(ran.err().contains("Read-only file system"), "{ran}");
        host.assert_nothing_left();
    }
}

#[test]
fn nothing_below_sys_can_be_written() {
    let host = Host::new();
    let ran = host.task(": >> /sys/kernel/profiling; mkdir /sys/fs/cgroup/x; true").run();
    assert!(ran.err().lines().all(|line| line.contains("Read-only") || line.contains("No such file")), "{ran}");
    assert!(ran.err().contains("Read-only"), "{ran}");
}

#[test]
fn no_mount_is_writable_but_the_tasks_own() {
    let host = Host::new();
    // A masked file has /dev/null upon it, which may be written.
    let script =
        "while read _ at _ how _; do case $how in rw,*) [ ! -d $at ] || echo $at;; esac; done < /proc/mounts | sort";
    let ran = host.task(script).run();
    ran.assert_says("/dev\n/dev/mqueue\n/dev/pts\n/dev/shm\n/proc\n/root\n/run\n/tmp\n/var/tmp");
}

#[test]
fn the_host_view_is_read_only_and_nothing_else_is_seen() {
    let host = Host::new();
    let ran = host
        .task(
            "for d in / /usr /etc /bin; do touch $d/x && echo $d; done; ls -d /home /work /boot /var/lib; ls -A /root",
        )
        .run();
    assert_eq!(ran.out(), "", "{ran}");
    assert_eq!(ran.err().matches("Read-only file system").count(), 4, "{ran}");
}

#[test]
fn tmp_is_private_and_for_everybody() {
    let host = Host::new();
    host.task("ls -A /tmp; touch /tmp/x; stat -c %a /tmp").flag("--user=nobody").run().assert_says("1777");
}

#[test]
fn the_host_root_cannot_be_reached_through_init() {
    let host = Host::new();
    let script = "ls /proc/1/root/; cd /proc/1/cwd; pwd -P; ls -d ../../../../../../work 2>/dev/null; true";
    for init in ["--init", "--init=false"] {
        let ran = host.task(script).flag(init).run();
        assert!(!ran.out().contains("work"), "{ran}");
    }
}

#[test]
fn the_capabilities_are_the_default_thirteen() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let masks = status_lines(task.program_pid(), &["Cap"]);
    let expected = [
        "CapInh:\t0000000000000000",
        "CapPrm:\t00000000a80405fb",
        "CapEff:\t00000000a80405fb",
        "CapBnd:\t00000000a80405fb",
        "CapAmb:\t0000000000000000",
    ];
    assert_eq!(masks, expected.join("\n"));
    task.end();
}

#[test]
fn a_user_that_is_not_root_has_no_capabilities() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--user=nobody").start();
    let masks = status_lines(task.program_pid(), &["CapPrm", "CapEff", "CapAmb"]);
    assert_eq!(masks.matches("0000000000000000").count(), 3, "{masks}");
    task.end();
}

#[test]
fn no_new_privileges_and_a_seccomp_filter() {
    assert_says("grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status", "NoNewPrivs:\t1\nSeccomp:\t2");
}

#[test]
fn both_can_be_switched_off_by_name_alone() {
    let host = Host::new();
    let toml = "command = 'grep'\nargs = ['-E', '^(NoNewPrivs|Seccomp):', '/proc/self/status']\nno_new_privs = false\nseccomp = 'unconfined'";
    host.described(toml).run().assert_says("NoNewPrivs:\t0\nSeccomp:\t0");
}

#[test]
fn the_filter_applies_without_no_new_privs_too() {
    let host = Host::new();
    let toml = "command = 'grep'\nargs = ['-E', '^(NoNewPrivs|Seccomp):', '/proc/self/status']\nno_new_privs = false\nuser = 'nobody'";
    host.described(toml).run().assert_says("NoNewPrivs:\t0\nSeccomp:\t2");
}

#[test]
fn a_profile_from_a_file_is_obeyed() {
    let host = Host::new();
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}"#;
    let file = host.file("profile.json", profile);
    let toml = format!("command = 'mkdir'\nargs = ['/tmp/x']\nseccomp = '{}'", file.display());
    let ran = host.described(&toml).run();
    ran.assert_code(1);
    assert!(ran.err().contains("Function not implemented"), "{ran}");
}

#[test]
fn namespaces_cannot_be_made() {
    for flags in ["--user --map-root-user", "--mount", "--net", "--pid --fork"] {
        let host = Host::new();
        host.task(&format!("unshare {flags} true 2>/dev/null")).run().assert_code(1);
        host.assert_nothing_left();
    }
}

#[test]
fn nothing_can_be_mounted() {
    let host = Host::new();
    host.task("mount -t tmpfs none /tmp 2>/dev/null || mount -o remount,rw /sys 2>/dev/null || umount /proc/kcore 2>/dev/null").run();
    let ran = host.task("mount -t tmpfs none /tmp; mount -o remount,rw /proc/sys; umount /proc/kcore; grep -c . /proc/mounts > /tmp/n; true").run();
    assert!(ran.err().lines().count() >= 3, "{ran}");
}

#[test]
fn no_fd_of_the_shim_leaks_into_the_task() {
    // 3 is what ls reads the folder by.
    let host = Host::new();
    host.task_of(["/bin/ls", "/proc/self/fd"]).run().assert_says("0\n1\n2\n3");
    let task = host.task_of(["sleep", "1000"]).start();
    let fds = fds_of(task.program_pid());
    assert_eq!(fds.len(), 3, "{fds:?}");
    assert!(fds.iter().all(|fd| fd.starts_with("pipe:") || fd == "/dev/null"), "{fds:?}");
    task.end();
}

#[test]
fn no_fd_of_whoever_starts_it_leaks_into_the_shim_or_the_task() {
    let host = Host::new();
    let secret = host.file("secret", "x");
    let mut shell = host.command("/bin/sh");
    let id = host.new_id();
    let script = format!("exec 7<{}; exec \"$0\" start --name {id} -- sleep 1000", secret.display());
    shell.args(["-c", &script]).arg(binary("bowline"));
    host.execute(shell).assert_says(&id);
    let task = host.adopt(&id);
    for pid in [task.pid(), task.program_pid(), task.shim_pid()] {
        let fds = fds_of(pid);
        assert!(!fds.iter().any(|fd| fd.contains("secret")), "{fds:?}");
    }
    task.end();
}

#[test]
fn signals_umask_and_session_are_fresh() {
    assert_says(
        "umask; grep -E '^Sig(Blk|Ign)' /proc/self/status; set -- $(cat /proc/$$/stat); echo $1 $5 $6",
        "0022\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n2 2 2",
    );
}

#[test]
fn ignored_signals_of_a_manager_are_not_inherited() {
    let host = Host::new();
    let mut shell = host.command("/bin/sh");
    let task = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    shell
        .args(["-c", "trap '' HUP INT PIPE USR1; umask 077; ulimit -c 0; exec \"$0\" run --rm -- sh -c \"$1; umask\""]);
    shell.arg(binary("bowline")).arg(task);
    host.execute(shell).assert_says("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0022");
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_session_keyring_is_the_tasks_own() {
    // Two tasks that see the same session keyring would share its keys.
    let host = Host::new();
    let toml = |key: &str| {
        format!(
            "command = 'perl'\nargs = ['-e', 'print syscall(250, 0, -3, 1)']\nseccomp = 'unconfined'\nlabels = {{k = '{key}'}}"
        )
    };
    let serial = |key: &str| host.described(&toml(key)).run().assert_code(0).out();
    let (one, other) = (serial("one"), serial("other"));
    assert!(one != other && one != "-1", "keyrings {one} and {other}");
}

#[test]
fn the_shims_binary_cannot_be_written_through_proc() {
    let host = Host::new();
    let on_disk = binary("bowline-shim");
    let before = fs::metadata(&on_disk).expect("the binary");
    let toml = "command = 'sleep'\nargs = ['1000']\nnamespaces.pid = 'host'\ncapabilities.add = ['SYS_PTRACE', 'DAC_READ_SEARCH']";
    let task = host.described(toml).start();
    let exe = format!("/proc/{}/exe", task.shim_pid());
    // Even the host's root: neither now, nor once it is executed no more.
    let error = fs::OpenOptions::new().append(true).open(&exe).expect_err("refused");
    let refused = [libc_errno::EROFS, libc_errno::EPERM, libc_errno::EACCES];
    let for_good = error.raw_os_error().is_some_and(|errno| refused.contains(&errno));
    assert!(for_good || is_sealed(&exe), "not only while it runs: {error}");
    let running = fs::metadata(&exe).expect("the shim's binary");
    assert_ne!((running.dev(), running.ino()), (before.dev(), before.ino()), "it runs from the file itself");
    let ran = task.exec(&format!(": >> {exe} && echo opened"));
    assert!(ran.code != Some(0) && ran.out().is_empty(), "{ran}");
    let after = fs::metadata(&on_disk).expect("the binary");
    assert_eq!((after.len(), after.mtime_nsec()), (before.len(), before.mtime_nsec()));
    task.end();
}

/// Whether what is at `path` is a file in memory that cannot change any more,
/// nor be unsealed, whoever opens it.
fn is_sealed(path: &str) -> bool {
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fs::File::open(path).is_ok_and(|file| rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(all)))
}

/// Numbers of errno(3) on Linux.
mod libc_errno {
    pub const EPERM: i32 = 1;
    pub const EACCES: i32 = 13;
    pub const EROFS: i32 = 30;
}

#[test]
fn a_command_that_is_the_shims_own_binary_cannot_write_it() {
    let host = Host::new();
    let before = fs::metadata(binary("bowline-shim")).expect("the binary");
    let root = host.busybox_root();
    root.file("bin/script", "#!/proc/self/exe\n", 0o755);
    // What it does inside is its own business; it is a task as any other.
    host.task_of(["/bin/script"]).rootfs(root.path()).run();
    host.task_of(["/proc/self/exe"]).rootfs(root.path()).run();
    let after = fs::metadata(binary("bowline-shim")).expect("the binary");
    assert_eq!((after.len(), after.mtime_nsec()), (before.len(), before.mtime_nsec()));
}

#[test]
fn the_shim_has_one_thread_always() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    let shim = task.shim_pid();
    let threads = || status_lines(shim, &["Threads"]);
    assert_eq!(threads(), "Threads:\t1");
    let exec = task.spawn_exec(["--timeout=50s"], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    assert_eq!(threads(), "Threads:\t1", "with an exec");
    task.stats();
    task.bowline("pause", []).assert_code(0);
    assert_eq!(threads(), "Threads:\t1", "after all else");
    task.end();
    exec.finish();
}

#[test]
fn the_state_folder_is_for_its_owner_only() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").mode() & 0o077;
    assert_eq!(mode(&host.state()), 0);
    assert_eq!(mode(&task.file("")), 0);
    for filter in fs::read_dir(host.state().join(".seccomp")).expect("the cache").flatten() {
        assert_eq!(mode(&filter.path()), 0, "{}", filter.path().display());
    }
    task.end();
}

#[test]
fn a_filter_cache_that_somebody_has_changed_is_not_used() {
    let host = Host::new();
    host.task("true").run().assert_code(0);
    let cache = host.state().join(".seccomp");
    for entry in fs::read_dir(&cache).expect("a cache").flatten() {
        fs::write(entry.path(), [0x06, 0, 0, 0, 0, 0, 0xff, 0x7f]).expect("root may");
    }
    host.task("grep Seccomp: /proc/self/status; unshare --user true 2>/dev/null || echo refused")
        .run()
        .assert_says("Seccomp:\t2\nrefused");
}

#[test]
fn a_kept_filter_that_is_not_ours_alone_or_damaged_is_made_anew() {
    let host = Host::new();
    host.task("true").run().assert_code(0);
    let cache = host.state().join(".seccomp");
    let kept = || fs::read_dir(&cache).expect("a cache").flatten().next().expect("one filter").path();
    let path = kept();
    let whole = fs::read(&path).expect("root may");
    let elsewhere = host.file("filter", "");
    fs::write(&elsewhere, &whole).expect("ours");
    let spoil: [(&str, &dyn Fn()); 6] = [
        ("foreign owner", &|| std::os::unix::fs::chown(&path, Some(65534), None).expect("root may")),
        ("open to others", &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("root may")),
        ("truncated", &|| fs::write(&path, &whole[..whole.len() - 8]).expect("root may")),
        ("poisoned", &|| {
            let mut poisoned = whole.clone();
            *poisoned.last_mut().expect("it is not empty") ^= 1;
            fs::write(&path, poisoned).expect("root may");
        }),
        ("empty", &|| fs::write(&path, "").expect("root may")),
        ("a link", &|| {
            fs::remove_file(&path).expect("root may");
            std::os::unix::fs::symlink(&elsewhere, &path).expect("root may");
        }),
    ];
    for (what, spoil) in spoil {
        spoil();
        let before = fs::symlink_metadata(&path).expect("it is there").ino();
        host.task("grep Seccomp: /proc/self/status").run().assert_says("Seccomp:\t2");
        let after = fs::symlink_metadata(&path).expect("it is there again");
        assert!(after.is_file() && after.ino() != before, "{what}: not made anew");
        assert_eq!((after.uid(), after.mode() & 0o7777), (0, 0o600), "{what}");
        assert_eq!(fs::read(&path).expect("root may"), whole, "{what}");
    }
    // One that is sound is left alone.
    let before = fs::metadata(&path).expect("it is there").ino();
    host.task("true").run().assert_code(0);
    assert_eq!(fs::metadata(&path).expect("it is there").ino(), before);
    assert_eq!(kept(), path, "and there is no other");
}

#[test]
fn all_capabilities_are_those_that_this_host_gives() {
    let host = Host::new();
    let ours = status_lines(std::process::id().cast_signed(), &["CapPrm"]).replace("CapPrm:", "");
    let ours = ours.trim();
    let masks = "grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2";
    host.task(masks).toml("capabilities.add = ['ALL']").run().assert_says(&[ours; 3].join("\n"));
    // In a user namespace of its own a task can have what nobody has outside.
    let private = "capabilities.add = ['ALL']\nnamespaces.user = 'private'\n\
                   uid_mappings = [{container = 0, host = 200000, size = 65536}]\n\
                   gid_mappings = [{container = 0, host = 200000, size = 65536}]";
    host.task(masks).toml(private).run().assert_says(&["000001ffffffffff"; 3].join("\n"));
}
