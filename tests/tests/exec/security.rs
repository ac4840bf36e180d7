//! An exec has no less protection, and no more rights, than the task's init.

use std::os::unix::fs::chown;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{cgroup_of, namespace_of, only_v2, status_lines};

/// What of `/proc/PID/status` is about rights.
const RIGHTS: [&str; 9] = ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"];

/// The lines of `/proc/PID/status` that `RIGHTS` names, and the filter, by a shell inside.
fn rights_of(pid: &str) -> String {
    let names = RIGHTS.join("|");
    format!("grep -E '^({names}|Seccomp)' /proc/{pid}/status")
}

#[test]
fn the_seccomp_filter_applies() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    assert_eq!(status_lines(task.program_pid(), &["Seccomp:"]), "Seccomp:\t2", "the task itself");
    task.exec("grep Seccomp: /proc/self/status").assert_says("Seccomp:\t2");
    task.exec("unshare --mount true").assert_code(1);
    task.end();
}

#[test]
fn rights_are_those_of_the_command() {
    for (user, init, command) in [("root", "--init=false", "1"), ("root", "--init", "2"), ("nobody", "--init", "2")] {
        let host = Host::new();
        let task = host.task("exec sleep 1000").flag(format!("--user={user}")).flag(init).start();
        let ran = task.exec(&format!("{}; echo ---; {}", rights_of(command), rights_of("self")));
        let out = ran.assert_code(0).out();
        let (command, exec) = out.split_once("---\n").expect("two parts");
        assert_eq!(command.trim_end(), exec, "{ran}");
        assert!(exec.contains("NoNewPrivs:\t1"), "{ran}");
        task.end();
        host.assert_nothing_left();
    }
}

#[test]
fn capabilities_that_were_added_or_dropped_are_so_for_execs() {
    let host = Host::new();
    let toml = "command = 'sleep'\nargs = ['1000']\ncapabilities = {add = ['NET_ADMIN'], drop = ['MKNOD', 'CHOWN']}";
    let task = host.described(toml).start();
    let masks = status_lines(task.program_pid(), &["CapBnd", "CapEff", "CapPrm"]);
    assert!(masks.contains("CapEff:\t00000000a00415fa"), "{masks}");
    task.exec("grep -E '^Cap(Bnd|Eff|Prm)' /proc/self/status | sort").assert_says(&sorted(&masks));
    task.end();
}

fn sorted(lines: &str) -> String {
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn a_user_that_is_not_root_gains_no_capability_by_exec() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let ran = task.exec_with(["--user=nobody"], "grep -E '^Cap(Eff|Prm|Amb)' /proc/self/status | cut -f2 | sort -u");
    ran.assert_says("0000000000000000");
    task.end();
}

#[test]
fn root_by_exec_in_a_users_task_has_only_the_bounding_set() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--user=nobody").start();
    task.exec_with(["--user=root"], "grep CapEff /proc/self/status").assert_says("CapEff:\t00000000a80405fb");
    task.end();
}

#[test]
fn every_namespace_is_inits() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let kinds = ["pid", "ipc", "uts", "net", "mnt", "user", "cgroup"];
    let init = kinds.map(|kind| namespace_of(task.pid(), kind));
    let script = format!("for kind in {}; do readlink /proc/self/ns/$kind; done", kinds.join(" "));
    task.exec_with(["--timeout=50s"], &script).assert_says(&init.join("\n"));
    // One that ends with its caller is known by a cgroup namespace, which shows the same.
    let attached = task.exec(&script).assert_code(0).out();
    let attached: Vec<&str> = attached.lines().collect();
    assert_eq!(attached[..6], init[..6]);
    assert_ne!(attached[6], init[6]);
    task.end();
}

#[test]
fn its_cgroup_namespace_shows_what_inits_does() {
    let host = Host::new();
    let seen = "cat /proc/self/cgroup /proc/1/cgroup; grep ' - cgroup' /proc/self/mountinfo; ls /sys/fs/cgroup";
    let task = host.task(&format!("({seen}) >/tmp/seen; echo ready; exec sleep 1000")).start();
    task.wait_for_line("ready");
    task.exec(&format!("({seen}) | diff /tmp/seen -")).assert_code(0);
    task.end();
}

#[test]
fn its_cgroups_are_inits_seen_from_inside_and_outside() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    // Every path is "/" from inside: a cgroup namespace of the task's own.
    task.exec("cmp /proc/self/cgroup /proc/1/cgroup && cut -d: -f3 /proc/self/cgroup | sort -u").assert_says("/");
    let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    let [pid] = task.processes().into_iter().filter(|pid| *pid != task.program_pid()).collect::<Vec<_>>()[..] else {
        panic!("expected one more process than init");
    };
    assert_eq!(cgroup_of(pid), cgroup_of(task.pid()));
    task.end();
    exec.finish();
}

#[test]
fn an_exec_with_a_deadline_is_in_the_tasks_cgroups_too() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let exec = task.spawn_exec(["--timeout=50s"], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    let init = cgroup_of(task.pid());
    for pid in task.processes().into_iter().filter(|pid| *pid != task.program_pid()) {
        for (controllers, path) in cgroup_of(pid) {
            let of_init = &init[&controllers];
            let own = controllers == "freezer" || only_v2();
            let fits = if own { path.starts_with(of_init) } else { path == *of_init };
            assert!(fits, "{controllers}: {path}, init: {of_init}");
        }
    }
    task.end();
    exec.finish();
}

#[test]
fn inside_a_user_namespace_the_map_is_inits() {
    let host = Host::new();
    let root = host.busybox_root();
    give_to(root.path(), 200_000);
    let task = host
        .described(
            "command = 'sleep'\nargs = ['1000']\nnamespaces.user = 'private'\n\
             uid_mappings = [{container = 0, host = 200000, size = 65536}]\n\
             gid_mappings = [{container = 0, host = 200000, size = 65536}]",
        )
        .rootfs(root.path())
        .start();
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", task.pid())).expect("a live task");
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "200000", "65536"]);
    let same = "cmp /proc/self/uid_map /proc/1/uid_map && cmp /proc/self/gid_map /proc/1/gid_map";
    task.exec(&format!("{same} && awk '{{print $2}}' /proc/self/uid_map && id -u")).assert_says("200000\n0");
    task.exec(&format!("{}; echo ---; {}", rights_of("1"), rights_of("self"))).assert_code(0);
    for (user, uid) in [("root", "0"), ("1000:1000", "1000")] {
        let terminal = task.in_terminal("exec", ["-it", "--user", user, "--", "stat", "-c", "owner %u", "/dev/pts/0"]);
        terminal.wait_for(&format!("owner {uid}"));
        terminal.finish().assert_code(0);
    }
    let exec = task.spawn_exec([], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    let other = task.processes().into_iter().find(|pid| *pid != task.program_pid()).expect("the exec");
    let uids = status_lines(other, &["Uid"]);
    assert_eq!(uids, "Uid:\t200000\t200000\t200000\t200000", "on the host it is not root");
    assert_eq!(namespace_of(other, "user"), namespace_of(task.pid(), "user"));
    task.end();
    exec.finish();
}

fn give_to(path: &Path, id: u32) {
    chown(path, Some(id), Some(id)).expect("root may give away");
    for entry in std::fs::read_dir(path).expect("a folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            give_to(&entry.path(), id);
        } else if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            chown(entry.path(), Some(id), Some(id)).expect("root may give away");
        }
    }
}

#[test]
fn a_working_directory_that_escapes_is_refused() {
    let host = Host::new();
    let root = host.busybox_root();
    root.link("escape", Path::new("/proc/self/fd/3"));
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    // CVE-2024-21626: an fd of the runtime that leads to the host.
    for fd in 0..24 {
        for workdir in [format!("/proc/self/fd/{fd}"), format!("/proc/self/fd/{fd}/.."), format!("/proc/1/fd/{fd}")] {
            task.bowline("exec", [&format!("--workdir={workdir}"), "--", "pwd"])
                .assert_refused(125, &["workdir", &workdir]);
        }
    }
    task.bowline("exec", ["--workdir=/escape", "--", "pwd"]).assert_refused(125, &["workdir", "/escape"]);
    task.bowline("exec", ["--workdir=relative", "--", "pwd"]).assert_refused(2, &["workdir", "relative"]);
    task.exec_with(["--workdir=/../../.."], "pwd; ls -d bin").assert_says("/\nbin");
    task.end();
}

#[test]
fn no_fd_of_the_shim_leaks_into_it() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    // 3 is what ls reads the folder by.
    for flags in ["--env=A=1", "--timeout=50s"] {
        task.bowline("exec", [flags, "--", "/bin/ls", "/proc/self/fd"]).assert_says("0\n1\n2\n3");
    }
    task.end();
}

#[test]
fn signals_umask_and_session_are_fresh() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let fresh = "0022\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000";
    task.exec("umask; grep -E '^Sig(Blk|Ign)' /proc/self/status").assert_says(fresh);
    // Fields 1, 5 and 6: pid, process group, session.
    task.bowline("exec", ["--", "/bin/sh", "-c", "set -- $(cat /proc/$$/stat); test $1 = $5 -a $1 = $6"])
        .assert_code(0);
    task.end();
}

#[test]
fn the_oom_score_is_inits() {
    let host = Host::new();
    let task = host.described("command = 'sleep'\nargs = ['1000']\noom_score_adj = 321").start();
    task.exec("cat /proc/1/oom_score_adj /proc/self/oom_score_adj").assert_says("321\n321");
    task.end();
}

#[test]
fn rlimits_are_those_of_init() {
    let host = Host::new();
    let task = host.described("command = 'sleep'\nargs = ['1000']\nrlimits = {nofile = 321, core = 0}").start();
    task.exec("ulimit -n; ulimit -Hn; ulimit -c; cmp /proc/1/limits /proc/$$/limits && echo same")
        .assert_says("321\n321\n0\nsame");
    task.end();
}
