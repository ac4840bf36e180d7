//! What the kernel says: cgroups, namespaces, fds, devices. No word of bowline's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::eventually;

/// Every mounted cgroup hierarchy: its controllers as `/proc/PID/cgroup` names
/// them (nothing for v2), and where it is.
pub fn hierarchies() -> Vec<(String, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (target, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let controllers = match kind {
            "cgroup" => {
                options.split(',').filter(|o| !["rw", "ro", "relatime", "nosuid", "nodev", "noexec"].contains(o))
            }
            "cgroup2" => return Some((String::new(), target.into())),
            _ => return None,
        };
        Some((controllers.collect::<Vec<_>>().join(","), target.into()))
    });
    found.collect()
}

/// Whether this host has cgroup v2 alone.
pub fn only_v2() -> bool {
    hierarchies().iter().all(|(names, _)| names.is_empty())
}

/// Freezes or thaws a cgroup as somebody would who does not use bowline. `folder` is its own of the freezer's hierarchy.
#[track_caller]
pub fn set_frozen(folder: &Path, frozen: bool) {
    let (file, value) = match (only_v2(), frozen) {
        (true, _) => ("cgroup.freeze", if frozen { "1" } else { "0" }),
        (false, _) => ("freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
    };
    fs::write(folder.join(file), value).expect("root may");
}

/// Whether every process of a cgroup is frozen.
#[track_caller]
pub fn is_frozen(folder: &Path) -> bool {
    let (file, line) = if only_v2() { ("cgroup.events", "frozen 1") } else { ("freezer.state", "FROZEN") };
    fs::read_to_string(folder.join(file)).expect("root may").lines().any(|l| l == line)
}

/// Where the hierarchy of `controller` is mounted; where it is none of v1's, v2's.
#[track_caller]
pub fn hierarchy(controller: &str) -> PathBuf {
    let all = hierarchies();
    let has = |names: &str| names.split(',').any(|name| name == controller);
    let found = all.iter().find(|(names, _)| has(names)).or_else(|| all.iter().find(|(names, _)| names.is_empty()));
    found.unwrap_or_else(|| panic!("no {controller} controller on this host")).1.clone()
}

/// A shim enters a cgroup of its own when its task has run for a while, and keeps descriptors of that.
#[track_caller]
pub fn wait_for_its_cgroup(shim: i32) {
    let charged = || {
        let mut groups = cgroup_of(shim);
        // Of both versions: then it stays where it is in v2's.
        if groups.len() > 1 {
            groups.remove("");
        }
        groups.values().all(|path| path.ends_with("/overhead")).then_some(())
    };
    super::eventually("the shim has its cgroup", charged);
}

/// The cgroup of a process in each hierarchy, by its controllers.
pub fn cgroup_of(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers.to_owned(), path.to_owned()))
    });
    lines.collect()
}

/// The pids in a cgroup and in those below it.
pub(super) fn processes_below(dir: &Path) -> Vec<i32> {
    let own = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        pids.extend(processes_below(&entry.path()));
    }
    pids.sort_unstable();
    pids
}

/// Whether there is a process of this pid; one that nobody has waited for is none.
pub fn process_exists(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The lines of `/proc/PID/status` that begin with any of `names`.
#[track_caller]
pub fn status_lines(pid: i32, names: &[&str]) -> String {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    let lines: Vec<_> = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name))).collect();
    lines.join("\n")
}

/// The namespace of a process, as `net:[4026531840]`.
#[track_caller]
pub fn namespace_of(pid: i32, kind: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a live process");
    link.to_string_lossy().into_owned()
}

/// Who is in a namespace or holds it, but for this test: a process each, or a
/// mount. `held` keeps its number from being another's meanwhile.
pub fn holders_of(held: &fs::File) -> Vec<String> {
    use std::os::fd::AsRawFd as _;
    let name = |path: &Path| fs::read_link(path).map(|link| link.to_string_lossy().into_owned()).unwrap_or_default();
    let wanted = name(Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())));
    let kind = wanted.split(':').next().unwrap_or_default();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        (pid.unsigned_abs() != std::process::id()).then_some(pid)
    });
    let holds =
        |pid: i32| name(Path::new(&format!("/proc/{pid}/ns/{kind}"))) == wanted || fds_of(pid).contains(&wanted);
    let mut holders: Vec<String> = pids.filter(|pid| holds(*pid)).map(|pid| format!("process {pid}")).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter(|line| line.split(' ').nth(3) == Some(&wanted));
    holders.extend(mounted.map(|line| format!("mount {line}")));
    holders
}

/// The lock at `path`, once whoever may still hold it has let it go.
#[track_caller]
pub fn take_lock(path: impl AsRef<Path>) -> fs::File {
    let path = path.as_ref();
    let lock = fs::File::options().write(true).create(true).truncate(false).open(path).expect("a lock of ours");
    eventually(format_args!("nobody holds {}", path.display()), || lock.try_lock().ok());
    lock
}

/// What each open fd of a process is.
pub fn fds_of(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

/// The states of a process's children, as in `/proc/PID/stat`: `Z` is one that nobody has reaped.
pub fn children_of(pid: i32) -> Vec<char> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let state = |stat: String| {
        // 4711 (a name) S 1 …
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        (fields.next()?.parse() == Ok(pid)).then_some(state)
    };
    stats.filter_map(state).collect()
}

/// How many unix sockets are bound to `path` or were accepted there.
pub fn unix_sockets(path: &Path) -> usize {
    let path = path.to_string_lossy();
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    text.lines().filter(|line| line.ends_with(path.as_ref())).count()
}

/// Major and minor number of a block device that this host can open, real
/// disks first: what a task cannot open, bowline must have kept it from.
pub fn disk() -> Option<(u32, u32)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_by_key(|name| (["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind)), name.clone()));
    names.into_iter().find_map(|name| {
        fs::File::open(Path::new("/dev").join(&name)).ok()?;
        let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
        let (major, minor) = numbers.trim_end().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// Whether this process ignores SIGINT or SIGQUIT, which the processes that it starts inherit.
pub(super) fn ignores_signals() -> bool {
    const INT_AND_QUIT: u64 = 1 << 1 | 1 << 2;
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("the kernel says so");
    u64::from_str_radix(ignored.trim(), 16).expect("a mask") & INT_AND_QUIT != 0
}

/// Whether the kernel lacks `facility`, or `BOWLINE_ABSENT` says that it does. Files and figures are those of cgroup v2.
pub fn lacks(facility: &str) -> bool {
    let since = match facility {
        "fsopen" => (5, 2),
        "openat2" => (5, 6),
        "clone_into_cgroup" => (5, 7),
        "close_range_cloexec" | "overlay_in_user_namespace" => (5, 11),
        "mount_setattr" => (5, 12),
        "cgroup.kill" | "cpu.bursts" => (5, 14),
        "memory.events.oom_group_kill" => (5, 17),
        "memory.kernel_bytes" => (5, 18),
        "memory.peak" => (5, 19),
        "cgroup.pressure" => (6, 1),
        "PIDFD_INFO_EXIT" => (6, 15),
        _ => panic!("{facility} is in no list"),
    };
    let told = std::env::var("BOWLINE_ABSENT").is_ok_and(|absent| absent.split(',').any(|name| name == facility));
    told || release() < since
}

/// The major and minor version of this kernel.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The process is in `path` in every hierarchy that has a controller.
#[track_caller]
pub fn assert_cgroup_is(pid: i32, path: &str) {
    assert_cgroups(pid, path, |place| place == path);
}

/// The process is below `path` in every hierarchy that has a controller.
#[track_caller]
pub fn assert_cgroup_is_below(pid: i32, path: &str) {
    assert_cgroups(pid, path, |place| place.starts_with(path));
}

#[track_caller]
fn assert_cgroups(pid: i32, path: &str, fits: impl Fn(&String) -> bool) {
    let mut found = cgroup_of(pid);
    if found.len() > 1 {
        // On a hybrid host that limits nothing.
        found.remove("");
    }
    assert!(!found.is_empty() && found.values().all(fits), "{pid}: {found:#?}, not {path}");
}

/// The name of the process with this pid, as in `/proc/PID/comm`; empty where there is none.
pub fn name_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The pids of the children of the first thread of the process with this pid.
pub fn child_pids(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
