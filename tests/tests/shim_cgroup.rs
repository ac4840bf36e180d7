//! Where the shim itself is charged: before the launch, while the task runs,
//! and while it shuts down, in each of the four modes.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::make_fifo;
use bowline_tests::harness::{
    Elsewhere, Process, Task, binary, cgroup_of, eventually, hierarchies, process_exists, take_lock,
};

/// Nobody reads its stdout: when init has ended, the shim still has to drain.
const STALLING: &str = "seq 1 1000000 & trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.1; done";

/// Where a process is, when it is asked.
struct Where(i32);

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?}", cgroup_of(self.0))
    }
}

/// The v2 hierarchy of a hybrid host, which limits nothing, is a fact of its own.
fn is_in(pid: i32, path: &str) -> bool {
    let mut found = cgroup_of(pid);
    if found.len() > 1 {
        found.remove("");
    }
    !found.is_empty() && found.values().all(|p| p == path)
}

/// The process is in `path` in every hierarchy that has a controller, or comes there.
#[track_caller]
fn assert_comes(pid: i32, path: &str, when: &str) {
    let place = Where(pid);
    eventually(format_args!("{when}: in {path} everywhere, found {place}"), || is_in(pid, path).then_some(()));
}

/// A shim of our own: it listens, and nobody asks it for anything. By `stdin` it
/// knows of its manager's end, if that is a pipe.
fn idle_shim(host: &Host, mode: &str, manager: &Elsewhere, stdin: &Path) -> (Process, PathBuf) {
    let folder = host.state().join(host.new_id());
    fs::create_dir_all(&folder).expect("the state folder");
    let lock = take_lock(folder.join("lock"));
    let listener = UnixListener::bind(folder.join("shim.sock")).expect("a short path");
    let mut shim = Command::new("/bin/sh");
    // By way of stdin and stdout, so that no other child can inherit them.
    let script = format!("exec \"$0\" \"$@\" 3<&0 4<&1 <'{}' >/dev/null", stdin.display());
    shim.args(["-c", &script]).arg(binary("bowline-shim"));
    shim.arg("--folder").arg(&folder).arg("--bowline").arg(binary("bowline")).args(["--shim-cgroup", mode]);
    let process = host.spawn_command_with(manager.inside(&shim), OwnedFd::from(listener), OwnedFd::from(lock));
    // Until then it is a shell, which has yet to go to the manager's cgroup.
    eventually("the shim runs", || {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        program.ends_with(b"bowline-shim").then_some(())
    });
    (process, folder)
}

/// The three moments, in one mode: where the shim is in each.
fn assert_moments(mode: &str, before: &str, running: &str, shutdown: &str) {
    let host = Host::new();
    let manager = host.elsewhere("manager");
    let chosen = host.elsewhere("chosen");
    let id = host.new_id();
    let real = |path: &str| {
        let overhead = format!("/bowline/{}/overhead", host.named(&id));
        path.replace("MANAGER", manager.path()).replace("CHOSEN", chosen.path()).replace("OVERHEAD", &overhead)
    };
    let mode = real(mode);

    let (shim, folder) = idle_shim(&host, &mode, &manager, Path::new("/dev/null"));
    assert_comes(shim.pid(), &real(before), "before the launch");
    // Killed before anybody asked it for a task.
    let killed = shim.pid();
    drop(shim);
    eventually("the shim has gone", || (!process_exists(killed)).then_some(()));
    let unused = folder.file_name().expect("an id").to_owned();
    // Whoever was forked at that moment, by another test, has its lock until it executes its own program.
    let removed = || (host.bowline(["rm".as_ref(), unused.as_os_str()]).code == Some(0)).then_some(());
    eventually("it can be removed", removed);

    let mut run = host.command(binary("bowline"));
    run.args(["run", "--name", &id, "--shim-cgroup", &mode, "--", "/bin/sh", "-c", STALLING]);
    let run = host.spawn_command(manager.inside(&run));
    run.wait_for_err("ready");
    let task = host.adopt(&id);
    let shim = task.shim_pid();
    // It enters once the start has been answered.
    assert_comes(shim, &real(running), "while the task runs");

    wait_until_stuck(&task);
    let cgroups: Vec<_> =
        hierarchies().into_iter().map(|(_, mount)| mount.join("bowline").join(host.named(&id))).collect();
    task.stop(["--grace=50s"]);
    eventually("its cgroups are removed", || (!cgroups.iter().any(|path| path.exists())).then_some(()));
    assert!(process_exists(shim), "the shim drains the output");
    assert!(is_in(shim, &real(shutdown)), "while it shuts down: {}", Where(shim));
    run.finish().assert_code(0);

    manager.remove();
    chosen.remove();
}

/// Returns once what writes has filled every pipe on the way and waits: it has
/// written more than two take, and writes no more.
fn wait_until_stuck(task: &Task<'_>) {
    let (mut before, mut same) = (0, 0);
    eventually("the output is stuck", || {
        let comm = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let writer = task.processes().into_iter().find(|pid| comm(pid) == "seq\n")?;
        let io = fs::read_to_string(format!("/proc/{writer}/io")).ok()?;
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok())?;
        same = if written == before && written > 2 * 65536 { same + 1 } else { 0 };
        before = written;
        (same > 20).then_some(())
    });
}

#[test]
fn inherit_is_where_the_manager_is_always() {
    assert_moments("inherit", "MANAGER", "MANAGER", "MANAGER");
}

#[test]
fn root_is_charged_to_nobody_always() {
    assert_moments("root", "/", "/", "/");
}

#[test]
fn overhead_applies_only_between_launch_and_shutdown() {
    assert_moments("overhead", "/", "OVERHEAD", "/");
}

#[test]
fn a_path_is_entered_after_the_launch() {
    assert_moments("CHOSEN", "/", "CHOSEN", "CHOSEN");
}

#[test]
fn on_a_hybrid_host_the_manager_s_v2_cgroup_is_left_too() {
    let host = Host::new();
    let manager = host.elsewhere("manager");
    let mut start = host.command(binary("bowline"));
    start.args(["start", "--name", &host.new_id(), "--", "sleep", "1000"]);
    let ran = host.execute(manager.inside(&start));
    let task = host.adopt(ran.assert_code(0).out());
    // What manages the host by that hierarchy (systemd) would take both for
    // the manager's, and end them with it.
    for pid in [task.shim_pid(), task.pid()] {
        assert_ne!(cgroup_of(pid)[""], manager.path(), "{pid} is in its manager's v2 cgroup");
    }
    task.end();
    manager.remove();
}

#[test]
fn a_shim_that_nobody_asks_for_anything_leaves_with_its_manager() {
    let host = Host::new();
    let manager = host.elsewhere("manager");
    let stdin = host.work().join("manager");
    make_fifo(&stdin);
    // So that the shell does not wait for a writer.
    let held = fs::File::options().read(true).write(true).open(&stdin).expect("ours");
    let (mut shim, folder) = idle_shim(&host, "overhead", &manager, &stdin);
    assert!(shim.is_running());
    drop(held);
    shim.finish().assert_code(0);
    fs::remove_dir_all(folder).expect("the test's own");
    manager.remove();
}

#[test]
fn overhead_is_the_default() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let overhead = format!("/bowline/{}/overhead", task.on_host());
    let shim = task.shim_pid();
    assert_comes(shim, &overhead, "while the task runs");
    task.end();
}

#[test]
fn a_mode_that_does_not_exist_is_bad_usage() {
    let host = Host::new();
    host.task("true").flag("--shim-cgroup=nowhere").assert_refused(2, &["shim", "nowhere"]);
}

#[test]
fn a_path_that_does_not_exist_is_refused_and_named() {
    let host = Host::new();
    host.task("true").flag("--shim-cgroup=/no/such/cgroup").assert_refused(125, &["/no/such/cgroup"]);
}

#[test]
fn a_path_that_leads_up_is_refused_and_named() {
    let host = Host::new();
    for path in ["/a/../..", "/..", "relative/.."] {
        let build = host.task("true").flag(format!("--shim-cgroup={path}"));
        build.assert_refused(2, &[path]);
    }
}
