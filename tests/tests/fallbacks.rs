//! What is done where the kernel lacks something: `make test-fallbacks` runs
//! this and other tests with each facility taken for absent, by binaries that
//! have the feature `absent`. Without it the same is shown of this kernel.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{binary, cgroup_of, eventually, hierarchies, is_debug, lacks};
use rustix::fs::{Gid, Uid, chown};

/// What the binaries are told to take for absent.
fn absent() -> Option<String> {
    std::env::var("BOWLINE_ABSENT").ok()
}

/// Whether mounts are made by mount(2).
fn without_mount_fds() -> bool {
    lacks("fsopen") || lacks("mount_setattr")
}

#[test]
fn what_is_to_be_absent_is_taken_for_absent_by_manager_and_shim() {
    let host = Host::new();
    let mut doctor = host.command(binary("bowline"));
    doctor.arg("doctor");
    if absent().is_none() {
        doctor.env("BOWLINE_ABSENT", "fsopen");
    }
    let doctor = host.execute(doctor).assert_code(0).out();
    let said = doctor.lines().find(|line| line.contains("taken for absent"));
    let task = host.task("exec sleep 1000").start();
    let log = fs::read_to_string(task.file("shim.log")).expect("the shim's log");
    match absent() {
        Some(names) => {
            let said = said.expect("doctor says it");
            assert!(said.starts_with("- taken for absent: "), "{said}");
            let log = log.lines().find(|line| line.contains("taken for absent: ")).expect("the shim says it");
            for name in names.split(',') {
                assert!(said.contains(name) && log.contains(name), "{name}: {said}, {log}");
            }
        }
        // A debug binary has it.
        None if is_debug() => {}
        None => assert!(said.is_none() && log.is_empty(), "only tests have the switch\n{doctor}\n{log}"),
    }
    task.end();
}

#[test]
fn doctor_says_the_effect_of_the_lack() {
    let host = Host::new();
    let rows = [
        ("mounts through files", without_mount_fds()),
        ("openat2", lacks("openat2")),
        ("cloning into a cgroup", lacks("clone_into_cgroup")),
        ("close_range", lacks("close_range_cloexec")),
        // v1 has nothing of these two.
        ("cgroup.kill", lacks("cgroup.kill")),
        ("memory.peak", lacks("memory.peak")),
    ];
    let found = host.bowline(["doctor", "--json"]).assert_code(0).json();
    for fact in found["facts"].as_array().expect("a list") {
        let name = fact["name"].as_str().expect("a name");
        let Some((_, lacking)) = rows.iter().find(|row| row.0 == name) else { continue };
        if fact["state"] == "unknown" {
            continue;
        }
        assert_eq!(fact["state"], if *lacking { "lacks" } else { "has" }, "{fact}");
        assert_eq!(fact["effect"].is_string(), *lacking, "{fact}");
    }
}

#[test]
fn the_shim_runs_from_memory_where_it_cannot_have_an_overlay() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let exe = fs::read_link(format!("/proc/{}/exe", task.shim_pid())).expect("a process has a binary");
    let in_memory = exe.to_string_lossy().starts_with("/memfd:");
    assert_eq!(in_memory, lacks("fsopen"), "{}", exe.display());
    task.end();
}

#[test]
fn a_user_namespace_gets_sources_that_only_the_host_can_reach() {
    let host = Host::new();
    let closed = host.work().join("closed");
    let below = host.tmpfs("closed/data/below", "size=64k,mode=0777");
    let data = closed.join("data");
    fs::write(data.join("file"), "content\n").expect("a file");
    rustix::fs::chmod(&data, 0o777.into()).expect("the test's own");
    rustix::fs::chmod(&closed, 0o700.into()).expect("the test's own");
    chown(&closed, Some(Uid::from_raw(4711)), Some(Gid::from_raw(4711))).expect("root may");
    let root = host.busybox_root();
    // Made by nobody but the root's owner.
    root.folder("ro").folder("rw");
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'cat /ro/file; touch /ro/x /ro/below/x; touch /rw/x /rw/below/x && ls /ro /ro/below']\n\
         namespaces.user = 'private'\n\
         uid_mappings = [{{container = 0, host = 400000, size = 65536}}]\n\
         gid_mappings = [{{container = 0, host = 400000, size = 65536}}]\n\
         mounts = [{{source = '{0}', destination = '/ro', read_only = true}}, {{source = '{0}', destination = '/rw'}}]",
        data.display()
    );
    let ran = host.described(&toml).rootfs(root.path()).run();
    ran.assert_says("content\n/ro:\nbelow\nfile\nx\n\n/ro/below:\nx");
    assert_eq!(ran.err().matches("Read-only file system").count(), 2, "{ran}");
    drop(below);
}

#[test]
fn a_covered_mount_below_is_read_only_or_the_task_is_refused() {
    let host = Host::new();
    let covered = host.tmpfs("data/below", "size=64k");
    let cover = host.tmpfs("data/below", "size=64k");
    let root = host.busybox_root();
    let toml = format!(
        "command = 'sh'\nargs = ['-c', 'touch /data/below/x; umount /data/below && touch /data/below/x']\n\
         seccomp = 'unconfined'\ncapabilities.add = ['SYS_ADMIN']\n\
         mounts = [{{source = '{}', destination = '/data', read_only = true}}]",
        host.work().join("data").display()
    );
    let task = host.described(&toml).rootfs(root.path());
    if without_mount_fds() {
        task.assert_refused(125, &["/data", "below", "mount_setattr"]);
    } else {
        let ran = task.run();
        assert_eq!(ran.err().matches("Read-only file system").count(), 2, "{ran}");
    }
    drop(cover);
    assert!(!covered.path().join("x").exists());
    drop(covered);
}

#[test]
fn a_flag_of_the_hosts_mount_stays_when_another_is_added() {
    let host = Host::new();
    let data = host.tmpfs("data", "size=64k");
    let flags = rustix::mount::MountFlags::NOEXEC | rustix::mount::MountFlags::NOATIME;
    rustix::mount::mount_remount(data.path(), rustix::mount::MountFlags::BIND | flags, "").expect("root may");
    let root = host.busybox_root();
    let shown = |path: &str| format!("grep \" {path} \" /proc/mounts | cut -d \" \" -f 4 | cut -d , -f 1-3");
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '''{}; {}''']\n\
         mounts = [{{source = '{2}', destination = '/one', read_only = true}}, {{source = '{2}', destination = '/two'}}]",
        shown("/one"),
        shown("/two"),
        data.path().display()
    );
    host.described(&toml).rootfs(root.path()).run().assert_says("ro,noexec,noatime\nrw,noexec,noatime");
    drop(data);
}

#[test]
fn what_links_in_the_root_hide_is_found_inside() {
    // Masked and read-only paths and the user database are opened through the
    // image's own links, relative, absolute and climbing, and never beyond.
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("real").file("real/secret", "secret\n", 0o644).file("real/passwd", "ada:x:7:8::/:/bin/sh\n", 0o644);
    root.link("absolute", Path::new("/real")).link("climbing", Path::new("../../../real"));
    fs::remove_file(root.path().join("etc/passwd")).expect("the test's own");
    root.link("etc/passwd", Path::new("/climbing/passwd"));
    let toml = "command = 'sh'\nargs = ['-c', 'id -u; cat /real/secret; touch /real/x']\nuser = 'ada'\n\
                masked_paths = ['/climbing/secret']\nreadonly_paths = ['/absolute']";
    let ran = host.described(toml).rootfs(root.path()).run();
    // What is read-only was bound before the mask came.
    assert_eq!(ran.out().lines().next(), Some("7"), "{ran}");
    assert!(!ran.out().contains("secret"), "{ran}");
    assert!(ran.err().contains("Read-only file system"), "{ran}");
}

#[test]
fn init_and_execs_are_in_the_tasks_cgroup_of_every_hierarchy() {
    // On the unified one they are cloned into it, or join before all else.
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let execs = [["--env=A=1"], ["--timeout=50s"]].map(|flags| task.spawn_exec(flags, "exec sleep 1001"));
    let mounted: Vec<String> = hierarchies().into_iter().map(|(names, _)| names).collect();
    let is_in = |pid: i32| {
        let cgroups = cgroup_of(pid);
        mounted.iter().all(|names| cgroups.get(names).is_some_and(|path| path.contains(task.id())))
    };
    eventually("all are in all", || {
        let pids = task.all_processes();
        (pids.len() == 4 && pids.into_iter().all(is_in)).then_some(())
    });
    task.end();
    for exec in execs {
        exec.finish();
    }
}
