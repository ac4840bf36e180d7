//! `--untrusted`, and `profile = "untrusted"`: what such a task is, has and
//! sees, and what it is refused with.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use bowline_tests::Host;
use bowline_tests::harness::{Task, binary, namespace_of, status_lines};

/// The users that there are for such tasks, as documented.
const USERS: std::ops::Range<u32> = 2_130_706_432..2_130_771_968;

/// The user of a task, which is all of its users and groups.
#[track_caller]
fn user_of(task: &Task<'_>) -> u32 {
    let lines = status_lines(task.program_pid(), &["Uid", "Gid", "Groups"]);
    let numbers: BTreeSet<u32> = lines.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 1, "{lines}");
    numbers.into_iter().next().expect("one")
}

#[test]
fn every_task_has_a_user_of_its_own_while_it_lives() {
    let host = Host::new();
    let tasks: Vec<_> = (0..8).map(|_| host.task("exec sleep 1000").flag("--untrusted").spawn_start()).collect();
    let mut users = BTreeSet::new();
    for (task, process) in tasks {
        process.finish().assert_code(0);
        let user = user_of(&task);
        assert!(USERS.contains(&user), "{user}");
        assert!(users.insert(user), "{user} is two tasks'");
        task.exec("id -u; id -g; id -G").assert_says(&format!("{user}\n{user}\n{user}"));
        task.bowline("stop", ["--grace=0"]).assert_code(0);
    }
}

#[test]
fn a_task_of_another_user_starts_whatever_umask_its_caller_has() {
    let host = Host::new();
    for flag in ["--untrusted", "--user=1234"] {
        let mut shell = host.command("/bin/sh");
        let line = "umask 077; exec \"$0\" run --rm --name \"$1\" \"$2\" sh -c 'echo runs'";
        shell.args(["-c", line]).arg(binary("bowline")).args([&host.new_id(), flag]);
        host.execute(shell).assert_says("runs");
    }
}

#[test]
fn a_user_that_a_process_has_is_no_task_s() {
    let host = Host::new();
    let first = host.task("exec sleep 1000").flag("--untrusted").start();
    let (user, shim) = (user_of(&first), first.shim_pid());
    // The task outlives its shim, and the name that the shim held.
    first.kill_shim(shim);
    let others: Vec<_> = (0..4).map(|_| host.task("exec sleep 1000").flag("--untrusted").start()).collect();
    for other in &others {
        assert_ne!(user_of(other), user);
        other.end();
    }
    host.bowline(["rm", "-f", first.id()]).assert_code(0);
}

#[test]
fn nobody_but_root_can_keep_users_from_tasks() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--untrusted").start();
    let locks = fs::metadata("/run/bowline-users").expect("the locks of all users");
    assert_eq!((locks.uid(), locks.permissions().mode() & 0o777), (0, 0o600));
    // Elsewhere in the kernel nothing says which users are taken, and nothing can be taken by it.
    let names = fs::read_to_string("/proc/net/unix").expect("procfs");
    assert!(!names.contains("bowline/user"), "{names}");
    task.end();
}

#[test]
fn it_has_no_rights_and_little_of_everything() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--untrusted").start();
    let pid = task.program_pid();
    let status = status_lines(pid, &["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp:"]);
    assert_eq!(status.matches("0000000000000000").count(), 5, "{status}");
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    let own = std::process::id().cast_signed();
    for kind in ["pid", "ipc", "uts", "net", "mnt", "cgroup"] {
        assert_ne!(namespace_of(pid, kind), namespace_of(own, kind), "{kind}");
    }
    assert_eq!(task.cgroup_file("pids", "pids.max"), "64");
    let memory = if bowline_tests::harness::only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    assert_eq!(task.cgroup_file("memory", memory), (256 << 20).to_string());
    task.exec("ls /sys/class/net; cat /proc/net/route | wc -l").assert_says("lo\n1");
    task.end();
}

#[test]
fn its_limits_are_flags_fields_and_updates() {
    let host = Host::new();
    let flags = host.task("exec sleep 1000").flag("--untrusted").flag("--pids=9").start();
    assert_eq!(flags.cgroup_file("pids", "pids.max"), "9");
    flags.bowline("update", ["--pids=11"]).assert_code(0);
    assert_eq!(flags.cgroup_file("pids", "pids.max"), "11");
    flags.bowline("update", ["--pids=max"]).assert_refused(125, &["pids", "untrusted"]);
    let fields = host.described("command = 'sleep'\nargs = ['1000']\nprofile = 'untrusted'\npids = 10").start();
    assert_eq!(fields.cgroup_file("pids", "pids.max"), "10");
    flags.end();
    fields.end();
}

#[test]
fn what_depends_on_its_memory_limit_depends_on_the_profiles_too() {
    let host = Host::new();
    let idle = || host.task("exec sleep 1000").flag("--untrusted");
    let ephemeral = idle().flag("--ephemeral").start();
    assert_eq!(ephemeral.inspect()["task"]["ephemeral"], "128M");
    let swap = idle().flag("--memory-swap=300M").start();
    assert_eq!(swap.inspect()["task"]["memory"]["swap"], "44M");
    idle().flag("--memory-swap=200M").assert_refused(2, &["--memory-swap", "256M"]);
    ephemeral.end();
    swap.end();
}

#[test]
fn its_home_is_empty_and_the_only_place_to_write() {
    let host = Host::new();
    let script = "pwd; echo $HOME; ls -A ~; echo mine > ~/x && cat ~/x; stat -c %a ~; [ -O ~ ] && echo own; \
                  for d in / /etc /usr /usr/local /bin /lib /proc/sys /sys; do touch $d/x 2>/dev/null && echo $d; done; true";
    host.task(script).flag("--untrusted").run().assert_says("/home\n/home\nmine\n700\nown");
}

#[test]
fn it_sees_programs_and_etc_and_nothing_else_of_the_host() {
    let host = Host::new();
    let ran =
        host.task("ls /; ls -A /run /var/tmp | grep -v :; cat /etc/shadow 2>/dev/null; true").flag("--untrusted").run();
    let seen: Vec<String> = ran.assert_code(0).out().lines().map(str::to_owned).collect();
    let known =
        ["bin", "dev", "etc", "home", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var", ""];
    assert!(seen.iter().all(|name| known.contains(&name.as_str())), "{seen:?}");
}

#[test]
fn a_root_of_its_own_is_read_only() {
    let host = Host::new();
    let root = host.busybox_root();
    let ran = host.task("touch /x; id -u; touch ~/x && echo home").flag("--untrusted").rootfs(root.path()).run();
    assert!(ran.err().contains("Read-only"), "{ran}");
    assert!(ran.out().ends_with("home"), "{ran}");
}

#[test]
fn what_is_mounted_for_it_is_read_and_not_written() {
    let host = Host::new();
    let file = host.file("input", "given\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("the test's own");
    let before = fs::metadata(&file).expect("there").mtime_nsec();
    let mount = |more: &str| {
        format!(
            "command = 'sh'\nargs = ['-c', 'cat /in; echo x >> /in; true']\nprofile = 'untrusted'\n\
             mounts = [{{source = '{}', destination = '/in'{more}}}]",
            file.display()
        )
    };
    host.described(&mount(", read_only = true")).run().assert_says("given");
    assert_eq!(fs::metadata(&file).expect("there").mtime_nsec(), before);
    host.described(&mount("")).assert_refused(125, &["mounts[0].read_only", "untrusted"]);
}

#[test]
fn whatever_contradicts_it_is_refused_by_name() {
    let host = Host::new();
    for (line, field) in [
        ("namespaces.network = 'host'", "namespaces.network"),
        ("user = 'root'", "user"),
        ("capabilities.add = ['NET_ADMIN']", "capabilities.add"),
        ("seccomp = 'unconfined'", "seccomp"),
        ("no_new_privs = false", "no_new_privs"),
        ("pids = 'unlimited'", "pids"),
    ] {
        let toml = format!("command = 'true'\n{line}");
        // By the description, or by the flag on top of it.
        host.described(&format!("{toml}\nprofile = 'untrusted'")).assert_refused(125, &[field, "untrusted"]);
        host.described(&toml).flag("--untrusted").assert_refused(125, &[field, "untrusted"]);
    }
    host.task("true").flag("--untrusted").flag("--user=nobody").assert_refused(2, &["--user"]);
    host.task("true").flag("--untrusted").flag("--sandbox=x").assert_refused(2, &["--sandbox"]);
}

#[test]
fn a_sandbox_takes_no_member_of_the_profile() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = host.described("command = 'true'\nprofile = 'untrusted'").in_sandbox(&sandbox);
    member.assert_refused(125, &["profile", "member"]);
    sandbox.rm([]);
}

#[test]
fn execs_and_checks_are_nobody_else() {
    let host = Host::new();
    let toml = "command = 'sleep'\nargs = ['1000']\nprofile = 'untrusted'\n\
                healthcheck = { exec = ['sh', '-c', '[ $(id -u) -ge 2130706432 ]'], interval = '10ms', on_unhealthy = 'stop' }";
    let task = host.described(toml).start();
    let user = user_of(&task);
    for other in ["--user=0", "--user=root", "--user=nobody"] {
        task.exec_with([other], "true").assert_refused(125, &["user", "untrusted"]);
    }
    task.exec("id -u").assert_says(&user.to_string());
    bowline_tests::harness::eventually("a check succeeds", || {
        (task.inspect()["health"]["status"] == "healthy").then_some(())
    });
    task.end();
}

#[test]
fn what_it_leaves_in_memory_nobody_else_finds() {
    let host = Host::new();
    let task = host.task("echo x > /dev/shm/x; echo x > /tmp/x; exec sleep 1000").flag("--untrusted").start();
    let other = host.task("ls -A /dev/shm /tmp ~; ps ax 2>/dev/null | grep -c 'sleep 1000$'; true").flag("--untrusted");
    let ran = other.run();
    assert!(!ran.out().contains('x'), "{ran}");
    task.end();
}

#[test]
fn doing_harm_is_contained() {
    let host = Host::new();
    // As many processes as it can get, and more memory than it may.
    let forks = "i=0; while [ $i -lt 200 ]; do sleep 1000 2>/dev/null & i=$((i+1)); done 2>/dev/null; echo never";
    let ran = host.task(forks).flag("--untrusted").run();
    assert!(ran.code != Some(0) || ran.out() == "never", "{ran}");
    let eater = host.task("head -c 400M /dev/zero | tail -c 390M > /dev/null; exit 7").flag("--untrusted").run();
    assert!(matches!(eater.code, Some(7 | 137)), "{eater}");
}
