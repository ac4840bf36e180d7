//! Finding, and after a failure removing, what a test has left on the machine.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{eventually, kernel};

/// Everything on the machine that has any of `names` in its name, but for the
/// test's own folder `dir` and what a state folder may keep.
pub(super) fn find(names: &[String], dir: &Path, state: &Path) -> Vec<String> {
    let mut left: Vec<String> =
        processes(names).into_iter().map(|(pid, what)| format!("process {pid}: {what}")).collect();
    left.extend(cgroups(names).iter().map(|path| format!("cgroup {}", path.display())));
    left.extend(mounts(names).iter().map(|path| format!("mount {path}")));
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    left.extend(sockets.lines().filter(|line| has(line, names)).map(|line| format!("socket {line}")));
    for folder in [
        "/run",
        "/run/netns",
        "/run/bowline",
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/var/lib",
        "/run/runc",
        "/run/containerd/runc",
        "/var/lib/cni/results",
        "/sys/class/net",
    ] {
        let found = entries(Path::new(folder)).into_iter().filter(|path| path != dir);
        left.extend(
            found.filter(|path| has(&path.to_string_lossy(), names)).map(|path| format!("file {}", path.display())),
        );
    }
    // What does not begin with a dot is a task's.
    let kept = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    left.extend(entries(state).into_iter().filter(|path| !kept(path)).map(|path| format!("state {}", path.display())));
    left
}

/// `names`, and each as systemd escapes it in the name of a unit.
pub(super) fn with_units(names: Vec<String>) -> Vec<String> {
    let escaped: Vec<String> = names.iter().map(|name| name.replace('-', "\\x2d")).collect();
    let mut all = names;
    for name in escaped {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Kills and removes what a failed test has left, so that no other fails by it.
pub(super) fn clean_up(names: &[String], dir: &Path, files: &[PathBuf]) {
    kill(names);
    for cgroup in cgroups(names) {
        let _ = fs::write(cgroup.join("freezer.state"), "THAWED");
        let _ = fs::write(cgroup.join("cgroup.freeze"), "0");
    }
    // One that is not killed yet may have started others.
    eventually("the processes of a failed test end", || {
        kill(names);
        processes(names).is_empty().then_some(())
    });
    let mut cgroups = cgroups(names);
    cgroups.reverse();
    for cgroup in cgroups {
        let _ = fs::remove_dir(cgroup);
    }
    for mount in mounts(names).iter().rev().filter(|mount| Path::new(mount).starts_with(dir)) {
        let _ = unmount(mount.as_str(), UnmountFlags::DETACH);
    }
    files.iter().for_each(|file| drop(fs::remove_file(file)));
}

fn kill(names: &[String]) {
    for (pid, _) in processes(names) {
        let Some(pid) = Pid::from_raw(pid) else { continue };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // Still ours after the pidfd was opened: it is no stranger's.
        if describe(pid.as_raw_nonzero().get(), names).is_some() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

fn has(text: &str, names: &[String]) -> bool {
    names.iter().any(|name| text.contains(name.as_str()))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn processes(names: &[String]) -> Vec<(i32, String)> {
    let pids =
        entries(Path::new("/proc")).into_iter().filter_map(|path| path.file_name()?.to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, describe(pid, names)?))).collect()
}

/// What process `pid` is, if it is one of `names`.
fn describe(pid: i32, names: &[String]) -> Option<String> {
    let is_ours = |pid| ["cmdline", "environ", "cgroup"].iter().any(|file| has(&read_of(pid, file), names));
    if !is_ours(pid) || pid.unsigned_abs() == std::process::id() {
        return None;
    }
    match zombies_parent(pid) {
        // A daemon's parent is the host's init, which reaps it when it comes to that. cgroup v2 has its cgroup until then.
        Some(parent) if parent.unsigned_abs() != std::process::id() && !is_ours(parent) => None,
        Some(parent) => Some(format!("a zombie, which process {parent} does not reap: {}", read_of(parent, "cmdline"))),
        None => Some(read_of(pid, "cmdline")),
    }
}

fn read_of(pid: i32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The parent of a process that has ended, with all its threads, and is not reaped.
fn zombies_parent(pid: i32) -> Option<i32> {
    let stat = read_of(pid, "stat");
    // From field 3 of proc_pid_stat(5) on: the state, the parent, and in field 20 the number of threads.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let threads: u32 = fields.get(17)?.parse().ok()?;
    (fields[0] == "Z" && threads <= 1).then(|| fields[1].parse().ok()).flatten()
}

/// All cgroups with one of `names` in their path, parents before children.
fn cgroups(names: &[String]) -> Vec<PathBuf> {
    fn walk(dir: &Path, names: &[String], found: &mut Vec<PathBuf>) {
        for path in entries(dir).into_iter().filter(|path| path.is_dir()) {
            if has(&path.to_string_lossy(), names) {
                found.push(path.clone());
            }
            walk(&path, names, found);
        }
    }
    let mut found = Vec::new();
    for (_, mount) in kernel::hierarchies() {
        walk(&mount, names, &mut found);
    }
    found
}

fn mounts(names: &[String]) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = text.lines().filter(|line| has(line, names));
    ours.filter_map(|line| line.split(' ').nth(4).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    /// What is found of `name` now.
    fn found(name: &str, dir: &Path) -> Vec<String> {
        find(&with_units(vec![name.to_owned()]), dir, &dir.join("s"))
    }

    #[test]
    fn whatever_is_left_is_found_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return crate::harness::skip("cgroups need root");
        }
        let dir = tempfile::Builder::new().prefix("bl-").tempdir_in("/tmp").expect("a folder");
        let name = dir.path().file_name().and_then(|name| name.to_str()).expect("ASCII").to_owned();
        let found = || found(&name, dir.path());
        assert_eq!(found(), [] as [&str; 0]);

        let mut sleep = Command::new("sleep").arg("1000").env("BOWLINE_TEST", &name).spawn().expect("sleep");
        eventually("the process", || found().iter().any(|left| left.starts_with("process")).then_some(()));
        let (_, mount) = kernel::hierarchies().into_iter().next().expect("a hierarchy");
        fs::create_dir(mount.join(&name)).expect("root may");
        // As systemd names a sandbox's slice.
        fs::create_dir(mount.join(format!("t-{}.slice", name.replace('-', "\\x2d")))).expect("root may");
        let shm = dir.path().join("shm");
        fs::create_dir(&shm).expect("ours");
        let options = c"size=1m";
        rustix::mount::mount("shm", &shm, "tmpfs", rustix::mount::MountFlags::empty(), options).expect("root may");
        let socket = UnixListener::bind(dir.path().join("socket")).expect("a short path");
        let netns = Path::new("/run").join(&name);
        fs::write(&netns, "").expect("root may");
        fs::create_dir_all(dir.path().join("s").join("task")).expect("ours");
        let kinds: Vec<_> = found().iter().filter_map(|left| left.split(' ').next().map(str::to_owned)).collect();
        assert_eq!(kinds, ["process", "cgroup", "cgroup", "mount", "socket", "file", "state"]);

        clean_up(&with_units(vec![name.clone()]), dir.path(), &[]);
        drop(socket);
        sleep.wait().expect("it was killed");
        fs::remove_file(netns).expect("ours");
        fs::remove_dir_all(dir.path().join("s")).expect("ours");
        assert_eq!(found(), [] as [&str; 0]);
    }

    /// cgroup v2 has the cgroup of a zombie, by which it is one of the case's.
    #[test]
    fn a_zombie_is_found_where_its_parent_is_ours() {
        let unified = kernel::hierarchies().into_iter().find(|(controllers, _)| controllers.is_empty());
        let (true, Some((_, mount))) = (rustix::process::geteuid().is_root(), unified) else {
            return crate::harness::skip("cgroups need root, and only v2 knows a zombie's");
        };
        let dir = tempfile::Builder::new().prefix("bl-").tempdir_in("/tmp").expect("a folder");
        let name = dir.path().file_name().and_then(|name| name.to_str()).expect("ASCII").to_owned();
        let cgroup = mount.join(&name);
        fs::create_dir(&cgroup).expect("root may");
        for is_ours in [false, true] {
            // The child's parent reaps nothing.
            let into = format!("sh -c 'echo $$ >{}/cgroup.procs' & exec sleep 1000", cgroup.display());
            let mut parent = Command::new("/bin/sh");
            parent.env_clear().args(["-c", &into]);
            if is_ours {
                parent.env("BOWLINE_TEST", &name);
            }
            let mut parent = parent.spawn().expect("a shell");
            let stat = |pid| read_of(pid, "stat");
            let pid = parent.id().cast_signed();
            let zombie = eventually("a zombie", || {
                // Once the shell has become sleep, its name is in no command line.
                let executed = read_of(pid, "cmdline").starts_with("sleep").then_some(());
                executed.and_then(|()| kernel::child_pids(pid).into_iter().find(|child| stat(*child).contains(") Z ")))
            });
            let left = found(&name, dir.path());
            assert_eq!(left.iter().any(|left| left.starts_with(&format!("process {zombie}:"))), is_ours, "{left:?}");
            parent.kill().expect("it lives");
            parent.wait().expect("a child");
        }
        fs::remove_dir(&cgroup).expect("it is empty");
    }
}
