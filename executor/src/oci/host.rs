//! The facts of this host and of the task's root that turn a task description into an OCI configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bowline_cgroup as cgroup;
pub use bowline_cgroup::huge_pages::sizes as hugepage_sizes;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::Folder;
use bowline_spec::budget::MemoryQos;
use bowline_spec::capability::{Capability, Entry};
use bowline_spec::names::{RESOLV_CONF, names_loopback_alone};
use bowline_spec::seccomp::Abis;
use bowline_spec::untrusted::{HOME, UIDS};
use bowline_spec::{DeviceNode, HOST_VIEW, Host, Namespace, Seccomp, Task, TaskProfile, Update, UserIds};
use bowline_sys as sys;
use oci_spec::runtime::{LinuxCpu, LinuxResources, LinuxSeccomp, Spec};
use rustix::param::page_size;

use crate::oci::bundle;
use crate::oci::tolerance::LARGEST_CONFIG;
use crate::rights::claimed_uid::ClaimedUid;
use crate::rights::lsm;
use crate::rights::seccomp::Profile;
use crate::view::accounts::{self, Wanted};
use crate::view::rootfs;

/// Where systemd-resolved lists the servers that its stub at 127.0.0.53 asks.
pub const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";

/// __NEW_UTS_LEN: the longest host name the kernel keeps. Ids are ASCII.
const LONGEST_HOSTNAME: usize = 64;

/// Turns a description into the configuration of a container, for this host.
///
/// `id` names the task's sandbox and container. Users and groups are looked up
/// in the task's own root.
///
/// # Errors
/// `BadSpec` naming the field that is wrong or does not fit this host.
pub fn configure(task: &Task, id: &str) -> Result<Spec> {
    let seccomp = match task.seccomp() {
        Seccomp::File(path) => Some(read_profile(task, path)?),
        Seccomp::Default | Seccomp::Native | Seccomp::Unconfined => None,
    };
    // `UIDS.start` stands for the user that the task would get.
    let mut host = Host { seccomp, kernel: kernel(), ..facts(task, id, UIDS.start)? };
    if task.rootfs.is_none() {
        // The files of a task are made when it is launched.
        host.resolver = resolver(*task.namespaces.network() != Namespace::Host);
    }
    Ok(bowline_spec::build(task, &host)?)
}

/// Like [`configure`], but without the seccomp profile, see [`profile`]. `own` is the user that
/// was claimed for a task with a user of its own.
///
/// # Errors
/// As [`configure`].
pub fn configure_unfiltered(task: &Task, id: &str, own: Option<&ClaimedUid>) -> Result<Spec> {
    let own = own.map_or(UIDS.start, |claimed| claimed.uid);
    let mut spec = bowline_spec::build_unfiltered(task, &facts(task, id, own)?)?;
    if *task.namespaces.user() == Namespace::Private {
        share_with_owner(&mut spec);
    }
    Ok(spec)
}

/// What the kernel counts for each user, and for the owner of the user's namespace too: the host's root.
const COUNTED_FOR_OWNER: [&str; 2] = ["max_inotify_instances", "max_inotify_watches"];

/// Gives users in a new user namespace half of what its owner may have, unless the description sets another limit.
fn share_with_owner(spec: &mut Spec) {
    let sysctls = spec.linux_mut().get_or_insert_default().sysctl_mut().get_or_insert_default();
    for name in COUNTED_FOR_OWNER {
        let owners = sys::read_kernel_text(&format!("/proc/sys/user/{name}"));
        let Some(most) = owners.ok().and_then(|text| text.trim().parse::<u64>().ok()) else { continue };
        if !sysctls.keys().any(|key| key.replace('/', ".") == format!("user.{name}")) {
            sysctls.insert(format!("user.{name}"), (most / 2).to_string());
        }
    }
}

/// The profile that a task's seccomp filter is compiled from.
///
/// # Errors
/// `BadSpec` for a file that cannot be read, or that is no profile.
pub fn profile(task: &Task) -> Result<Option<Profile>> {
    let default = |abis| Profile::Default { capabilities: task.capabilities.allowed(), kernel: kernel(), abis };
    Ok(match task.seccomp() {
        Seccomp::Unconfined => None,
        Seccomp::Default => Some(default(Abis::All)),
        Seccomp::Native => Some(default(Abis::Native)),
        Seccomp::File(path) => Some(Profile::Given(Box::new(read_profile(task, path)?))),
    })
}

/// The instructions of a task's seccomp filter, each a `sock_filter` of 8 bytes; `None` for a task without one.
/// Compiles the filter each time, which takes 12–18 ms; `profile` and the cache are for tasks.
///
/// # Errors
/// `BadSpec` for a profile that cannot be read or compiled; `Unsupported` without the feature `seccomp`.
pub fn compile_filter(task: &Task) -> Result<Option<Vec<u8>>> {
    profile(task)?.map(|profile| profile.compile()).transpose()
}

fn read_profile(task: &Task, path: &Path) -> Result<LinuxSeccomp> {
    let what = || format!("cannot read {}", path.display());
    let bytes = sys::read_regular_file(path, LARGEST_CONFIG).doing(Kind::BadSpec, what);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).doing(Kind::BadSpec, what));
    let text = text.map_err(|error| error.in_field("seccomp"))?;
    Ok(bowline_spec::seccomp::parse_profile(&text, &task.capabilities.allowed(), kernel())?)
}

/// The ids of the description's user and groups, by the files of its root.
///
/// # Errors
/// `BadSpec` for a root that cannot be opened, and a name that it does not know.
pub fn user_ids(task: &Task) -> Result<UserIds> {
    let root = task.rootfs.as_deref().unwrap_or(Path::new("/"));
    let opened = fs::File::open(root).doing(Kind::BadSpec, || format!("cannot open {}", root.display()));
    ids_in(opened.map_err(|error| error.in_field("rootfs"))?.as_fd(), task)
}

fn ids_in(root: BorrowedFd<'_>, task: &Task) -> Result<UserIds> {
    let name = task.user_name();
    accounts::resolve(root, Wanted { user: Some(&name), group: task.group_name(), groups: &task.groups })
}

/// The facts that a configuration depends on, except for the seccomp profile.
fn facts(task: &Task, id: &str, own: u32) -> Result<Host> {
    let root = task.rootfs.as_deref().unwrap_or(Path::new("/"));
    let in_rootfs = |error: Error| error.in_field("rootfs");
    let meta = fs::metadata(root).doing(Kind::BadSpec, || format!("cannot use {}", root.display()));
    if !meta.map_err(in_rootfs)?.is_dir() {
        let error = in_rootfs(Error::new(Kind::BadSpec, format!("{} is not a folder", root.display())));
        return Err(error.hint("an archive is unpacked first, with `tar -xf`; docs/recipes.md has images too"));
    }
    let root_fd = fs::File::open(root).doing(Kind::BadSpec, || format!("cannot open {}", root.display()));
    let root_fd = root_fd.map_err(in_rootfs)?;
    if task.rootfs.is_some() {
        rootfs::refuse_host_links(root_fd.as_fd())?;
    }
    let user = match task.profile {
        Some(TaskProfile::Untrusted) => UserIds { uid: own, gid: own, groups: Vec::new(), home: Some(HOME.into()) },
        None => ids_in(root_fd.as_fd(), task)?,
    };
    Ok(Host {
        name: default_hostname(id),
        user,
        // Looked up only for tasks that need it.
        view: if task.rootfs.is_none() { host_view() } else { Vec::new() },
        resolver: match task.rootfs.is_none() && !task.name_files().contains(&RESOLV_CONF) {
            true => resolver(*task.namespaces.network() != Namespace::Host),
            false => None,
        },
        capabilities: given(task),
        devices: devices(task)?,
        apparmor: apparmor(task),
        cgroup_path: match &task.cgroup {
            Some(path) => path.to_string_lossy().into_owned(),
            None => format!("{}/{id}", cgroup::of_sandbox(id)),
        },
        ..limits(task)
    })
}

/// The host name of a task or sandbox that is given none: as much of its id as the kernel takes. A host name ends in a
/// letter or a digit, which an id begins with.
pub fn default_hostname(id: &str) -> String {
    let longest: String = id.chars().take(LONGEST_HOSTNAME).collect();
    longest.trim_end_matches(|last: char| !last.is_ascii_alphanumeric()).to_owned()
}

/// Changes a task's limits by an update, for this host. Returns the description from then on, and the changes alone.
///
/// # Errors
/// `BadSpec` naming the field that is wrong or does not fit this host.
pub fn change(task: &Task, update: &Update) -> Result<(Task, LinuxResources)> {
    // Devices are looked up by the updated description.
    let merged = update.applied_to(task)?;
    let host = Host { devices: devices(&merged)?, ..limits(&merged) };
    let (mut merged, changes) = bowline_spec::build_update(task, update, &host)?;
    merged.unified = cgroup::remaining(&task.unified, &changes)?;
    merged.unified.extend(update.unified.clone());
    Ok((merged, changes))
}

/// The limits that a description asks for, on this host; those of a bundle are in the task's `folder`.
///
/// # Errors
/// As [`configure`].
pub fn limits_of(task: &Task, folder: &Folder) -> Result<LinuxResources> {
    if task.bundle.is_some() {
        return bundle::kept_limits(folder);
    }
    let host = Host { devices: devices(task)?, ..limits(task) };
    let spec = bowline_spec::build_unfiltered(task, &host)?;
    Ok(spec.linux().as_ref().and_then(|linux| linux.resources().clone()).unwrap_or_default())
}

/// The limits that a description has as raw files, with its share of CPU time, or that its bundle has.
pub fn raw_limits_of(task: &Task, folder: &Folder) -> LinuxResources {
    if task.bundle.is_some() {
        let kept = bundle::kept_limits(folder);
        return kept.inspect_err(|error| tracing::warn!(%error, "raw limits are not known")).unwrap_or_default();
    }
    let mut limits = LinuxResources::default();
    limits.set_unified(Some(task.unified.clone().into_iter().collect()));
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(task.cpu.shares);
    limits.set_cpu(Some(cpu));
    limits
}

/// The facts that the limits of `task` are checked against; none for limits that it does not have.
fn limits(task: &Task) -> Host {
    let mut host = Host { cgroup_v2: cgroup::is_v2(), ..Host::default() };
    if task.cpu.cpuset.is_some() {
        host.cpus = online("/sys/devices/system/cpu/online");
    }
    if task.cpu.mems.is_some() {
        host.mems = online("/sys/devices/system/node/online");
    }
    if !task.hugepages.is_empty() {
        host.hugepage_sizes = hugepage_sizes();
    }
    host
}

/// The profile of a task that names none: our default profile, where it is loaded.
fn apparmor(task: &Task) -> Option<String> {
    let wanted = task.apparmor.is_none() && lsm::has_default_profile();
    wanted.then(|| lsm::DEFAULT_PROFILE.to_owned())
}

/// The capabilities that a task can have, where its description asks for all: those of this process, or in a user
/// namespace of its own all there are.
fn given(task: &Task) -> Option<BTreeSet<Capability>> {
    if !task.capabilities.add.contains(&Entry::All) || *task.namespaces.user() != Namespace::Host {
        return None;
    }
    let ours = rustix::thread::capabilities(None).ok()?.permitted;
    Some(Capability::all().into_iter().filter(|capability| ours.bits() & (1 << capability.number()) != 0).collect())
}

/// A note if this host lacks some of the capabilities that the description of `task` means by ALL.
pub fn lacks_of_all(task: &Task) -> Option<String> {
    let given = task.capabilities.allowed_of(given(task)?);
    let lacking: Vec<String> = task.capabilities.allowed().difference(&given).map(ToString::to_string).collect();
    if lacking.is_empty() {
        return None;
    }
    let note = format!("capabilities: this host has no {} to give, and ALL does without", lacking.join(", "));
    tracing::info!("{note}");
    Some(note)
}

fn host_view() -> Vec<PathBuf> {
    HOST_VIEW.iter().map(PathBuf::from).filter(|path| path.exists()).collect()
}

/// The file to bind at `/etc/resolv.conf`, if everybody may read it: what the host's leads to, if the task cannot see
/// that otherwise. A kernel's own file is in the task's `/proc` too. In its own network a task reaches no server on the
/// host's loopback: there it is systemd-resolved's file with the servers behind its stub.
fn resolver(own_network: bool) -> Option<PathBuf> {
    let is_open = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o004 != 0);
    let path = fs::canonicalize(RESOLV_CONF).ok()?;
    if own_network && is_open(&path) && is_open(Path::new(UPSTREAM)) {
        let text = fs::read_to_string(&path).ok()?;
        if names_loopback_alone(&text) {
            return fs::canonicalize(UPSTREAM).ok();
        }
    }
    let is_seen = HOST_VIEW.iter().chain(&["/proc", "/sys", "/dev"]).any(|seen| path.starts_with(seen));
    (is_open(&path) && !is_seen).then_some(path)
}

fn devices(task: &Task) -> Result<BTreeMap<PathBuf, DeviceNode>> {
    let mut found = BTreeMap::new();
    for path in task.device_paths() {
        let in_devices = |error: Error| error.in_field("devices");
        let meta = fs::metadata(path).doing(Kind::BadSpec, || format!("cannot use {}", path.display()));
        let meta = meta.map_err(in_devices)?;
        let kind = match meta.file_type() {
            t if t.is_char_device() => 'c',
            t if t.is_block_device() => 'b',
            _ => return Err(in_devices(Error::new(Kind::BadSpec, format!("{} is not a device", path.display())))),
        };
        let node = DeviceNode {
            kind,
            major: i64::from(rustix::fs::major(meta.rdev())),
            minor: i64::from(rustix::fs::minor(meta.rdev())),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
        };
        found.insert(path.to_owned(), node);
    }
    Ok(found)
}

/// Parses a list as the kernel writes it: `0-3,5`. A missing or odd file counts as just 0.
fn online(path: &str) -> BTreeSet<u32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    let all: BTreeSet<u32> = ranges.flatten().collect();
    if all.is_empty() { BTreeSet::from([0]) } else { all }
}

/// How the kubelet's rule spares and slows down memory on this host, all of which its tasks may have.
pub fn memory_qos() -> MemoryQos {
    let info = rustix::system::sysinfo();
    // The types differ between architectures.
    let total = info.totalram as u64 * u64::from(info.mem_unit);
    MemoryQos::new(total, page_size() as u64)
}

/// Major and minor version of the running kernel.
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
