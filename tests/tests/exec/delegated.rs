//! Execs in a task that has cgroups of its own: on v2 the kernel then takes no
//! process into the task's cgroup itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{Task, cgroup_of, eventually, is_slow, only_v2};
use rustix::process::Signal;

const IDLE: &str = "exec sleep 1000";

/// What systemd and Docker do inside a task: its processes move down, then
/// controllers are handed down. Returns where the processes are.
fn hand_down(task: &Task<'_>) -> PathBuf {
    hand_down_to(task, "inner".as_ref())
}

fn hand_down_to(task: &Task<'_>, name: &OsStr) -> PathBuf {
    let top = task.cgroup("memory");
    let inner = top.join(name);
    fs::create_dir(&inner).expect("root may");
    for pid in task.all_processes() {
        fs::write(inner.join("cgroup.procs"), pid.to_string()).expect("it lives");
    }
    fs::write(top.join("cgroup.subtree_control"), "+memory").expect("no process is in it");
    inner
}

/// From here on a new cgroup below the task's takes no process.
fn make_threaded(task: &Task<'_>) {
    let threads = task.cgroup("memory").join("threads");
    fs::create_dir(&threads).expect("root may");
    fs::write(threads.join("cgroup.type"), "threaded").expect("the task's cgroup hands nothing down");
}

/// A process of the task that is not its program.
fn other_process(task: &Task<'_>) -> i32 {
    task.processes().into_iter().find(|pid| *pid != task.program_pid()).expect("the exec")
}

fn path_of(task: &Task<'_>) -> String {
    task.inspect()["cgroup"].as_str().expect("a path").to_owned()
}

#[test]
fn an_exec_goes_where_init_is() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).start();
    hand_down(&task);
    task.exec_with(["-d"], "exec sleep 1000").assert_code(0);
    let other = other_process(&task);
    assert_eq!(cgroup_of(other)[""], format!("{}/inner", path_of(&task)));
    assert_eq!(cgroup_of(other), cgroup_of(task.pid()));
    task.end();
}

#[test]
fn an_exec_that_ends_with_its_caller_has_a_cgroup_of_its_own() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).toml("stop.grace = '500ms'").start();
    hand_down(&task);
    task.exec("exit 3").assert_code(3);
    let exec = task.spawn_exec([], "trap '' HUP; (setsid sleep 1236 &); sleep 1237; :");
    eventually("all run", || (task.processes().len() == 4).then_some(()));
    assert_eq!(cgroup_of(other_process(&task))[""], format!("{}/exec-1", path_of(&task)));
    exec.signal(Signal::KILL);
    exec.finish();
    eventually("none is left", || (task.processes() == [task.program_pid()]).then_some(()));
    task.end();
}

#[test]
fn an_exec_goes_where_init_is_whatever_the_name() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).start();
    hand_down_to(&task, OsStr::from_bytes(b"caf\xe9"));
    task.exec_with(["-d"], "exec sleep 1000").assert_code(0);
    assert_eq!(cgroup_of(other_process(&task)), cgroup_of(task.pid()));
    task.end();
}

#[test]
fn an_exec_works_in_a_task_that_delegates_controllers_itself() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let root = host.busybox_root();
    let script = "c=/cg$(cut -d: -f3 /proc/self/cgroup); mkdir $c/inner && echo 1 > $c/inner/cgroup.procs && \
                  echo +memory > $c/cgroup.subtree_control && echo ready; exec sleep 1000";
    let toml = format!(
        "command = 'sh'\nargs = ['-c', '{script}']\nnamespaces.cgroup = 'host'\nmemory.limit = '64M'\n\
         mounts = [{{source = '/sys/fs/cgroup', destination = '/cg'}}]"
    );
    let task = host.described(&toml).rootfs(root.path()).start();
    task.wait_for_line("ready");
    task.exec_with(["-d"], "cut -d: -f3 /proc/self/cgroup >/tmp/seen; mv /tmp/seen /tmp/in").assert_code(0);
    let seen = format!("{0}/inner\n{0}/exec-1", path_of(&task));
    let both = "while ! test -e /tmp/in; do sleep 0.05; done; cat /tmp/in; cut -d: -f3 /proc/self/cgroup";
    task.exec(both).assert_says(&seen);
    // The task's limit is above it.
    task.exec("exec tail /dev/zero").assert_code(137);
    task.end();
}

#[test]
fn an_exec_with_a_deadline_has_a_cgroup_of_its_own_there_too() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).start();
    hand_down(&task);
    task.exec_with(["--timeout=50s"], "exit 4").assert_code(4);
    let ran = task.exec_with(["--json", "--timeout=3s"], "setsid sleep 1000 & exec sleep 1000");
    ran.assert_code(124);
    assert_eq!(ran.json()["killed"], "cgroup", "{ran}");
    assert_eq!(task.processes(), [task.program_pid()]);
    task.end();
}

#[test]
fn an_exec_without_a_cgroup_has_its_session_killed_and_says_so() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).start();
    make_threaded(&task);
    task.exec_with(["--timeout=50s"], "exit 4").assert_code(4);
    // One of them has a name that is no UTF-8.
    let script = r#"setsid sleep 1000 & sh -c 'printf "\377" > /proc/$$/comm; kill -STOP $$' & exec sleep 1000"#;
    // Long enough for the script to start them all.
    let ran = task.exec_with(["--json", if is_slow() { "--timeout=20s" } else { "--timeout=4s" }], script);
    ran.assert_code(124);
    let outcome = ran.json();
    assert_eq!((&outcome["timed_out"], &outcome["killed"]), (&true.into(), &"session".into()), "{ran}");
    eventually("init and the one in another session", || (task.processes().len() == 2).then_some(()));
    let ran = task.exec_with(["--timeout=1s"], "exec sleep 1000");
    ran.assert_code(124);
    assert!(ran.err().contains("session"), "{ran}");
    task.end();
}

#[test]
fn an_exec_in_time_has_nothing_killed() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let ran = task.exec_with(["--json", "--timeout=50s"], "true");
    assert!(ran.json()["killed"].is_null(), "{ran}");
    task.end();
}

#[test]
fn an_exec_is_put_nowhere_without_the_tasks_limits() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).start();
    hand_down(&task);
    let elsewhere = host.elsewhere("elsewhere");
    elsewhere.take(&task.all_processes());
    task.bowline("exec", ["-d", "--", "true"]).assert_refused(125, &[elsewhere.path(), &path_of(&task)]);
    assert_eq!(task.all_processes(), [0; 0]);
    task.end();
    elsewhere.remove();
}
