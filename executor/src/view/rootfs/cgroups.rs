//! Mounts of type `cgroup`: the container's own cgroups, as far as it may see them.
//!
//! ```text
//!   v1: a tmpfs with a mount for each hierarchy, and links for joint controllers
//!   v2: the one hierarchy
//! ```
//!
//! With a cgroup namespace, each hierarchy gets a new mount, which begins at the container's cgroup by itself. Without
//! one, the host's hierarchy is bound from that cgroup down. Uses the host's `/proc`, in a process that is in its
//! cgroups already.
//!
//! Options of the mount's own, beside attributes: a new mount of v2 takes them. The hierarchies of v1 have theirs, and a
//! container that sees the host's hierarchy of v2 must not change it: there they have no effect, which is logged.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bowline_cgroup::{Membership, Version};
use bowline_error::{Doing, Kind, Result};
use bowline_sys::MountAttributes;
use bowline_sys::mountinfo;
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use rustix::fs::{self, Mode};

use super::filesystem::Filesystem;
use super::inside::{self, Make};
use super::label;
use super::options::{self, Options};
use super::stage;
use super::trees::Trees;

/// The attributes of every such mount, whatever its options say.
const ALWAYS: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;

/// One hierarchy of this host, and where in it this process is.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The last part of its mount point.
    name: String,
    /// The options that it is mounted with: controllers, or `name=systemd`; none on v2.
    options: Vec<String>,
    /// Where this process's cgroup is.
    cgroup: PathBuf,
    /// How the hierarchy of v2 is set: `nsdelegate`.
    set: Vec<String>,
}

/// Options of mounts of type `cgroup` that have no effect, each with the destination of its mount.
pub fn ignored(spec: &Spec, version: Version) -> Vec<(&Path, String)> {
    let mut ignored = Vec::new();
    if version == Version::V2 && has_own_namespace(spec) {
        return ignored;
    }
    for mount in spec.mounts().iter().flatten().filter(|mount| is_one(mount)) {
        let options = options::of(mount).ok().filter(|options| options.bind.is_none() && !options.remount);
        let data = options.into_iter().flat_map(|options| options.data);
        ignored.extend(data.map(|(option, _)| (mount.destination().as_path(), option)));
    }
    ignored
}

/// Whether `mount` is of the type that this file makes.
pub fn is_one(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("cgroup")
}

fn has_own_namespace(spec: &Spec) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    namespaces.into_iter().flatten().any(|namespace| namespace.typ() == LinuxNamespaceType::Cgroup)
}

/// Mounts what `mount` asks for onto its destination in `root`.
pub fn mount(
    trees: &Trees,
    root: BorrowedFd<'_>,
    spec: &Spec,
    mount: &Mount,
    options: &Options,
    in_user_namespace: bool,
) -> Result<()> {
    let anew = has_own_namespace(spec);
    let path = "/proc/self/mountinfo";
    let mut mounts = mountinfo::read(path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    // The host's `/sys` may be bound there with all that is in it.
    let inside = fs::readlinkat(fs::CWD, stage::at(root), Vec::new());
    let inside = inside.doing(Kind::Internal, || "cannot tell where the root filesystem is")?;
    let inside = Path::new(OsStr::from_bytes(inside.as_bytes()));
    mounts.retain(|mount| inside == Path::new("/") || !mount.target.starts_with(inside));
    let all = hierarchies(&mounts, &Membership::own().doing(Kind::Internal, || "cannot tell the own cgroups")?);
    let target = inside::open(root, mount.destination(), Make::Folder)?;
    let attributes = options.all_set() | ALWAYS;
    if let [only] = &all[..]
        && only.options.is_empty()
    {
        // Without a cgroup namespace, other runtimes show the whole hierarchy, which a user namespace may not
        // mount.
        let tree = match (anew, in_user_namespace) {
            (true, _) => make(trees, "cgroup2", &options.data, attributes)?,
            // In the host's cgroup namespace, every mount sets the options of the one hierarchy.
            (false, false) => make(trees, "cgroup2", &parsed(&only.set), attributes)?,
            (false, true) => bound(trees, only, attributes)?,
        };
        return trees.attach(&tree, &target).doing(Kind::Internal, || "cannot attach it");
    }
    let mode = [("mode".to_owned(), Some("755".to_owned()))];
    let data = label::within(spec, "tmpfs", &mode);
    let base = trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &data, attributes: ALWAYS })?;
    trees.attach(&base, &target).doing(Kind::Internal, || "cannot attach it")?;
    for hierarchy in all.iter().filter(|hierarchy| !hierarchy.options.is_empty()) {
        let name = &hierarchy.name;
        let what = || format!("cannot mount the hierarchy {name}");
        let tree = match anew {
            true => make(trees, "cgroup", &parsed(&hierarchy.options), attributes),
            false => bound(trees, hierarchy, attributes),
        };
        let tree = tree.map_err(|error| error.within(what()))?;
        fs::mkdirat(&base, name, Mode::from_raw_mode(0o755)).doing(Kind::Internal, what)?;
        let spot = inside::open(base.as_fd(), Path::new(name), Make::Nothing)?;
        trees.attach(&tree, &spot).doing(Kind::Internal, what)?;
        for controller in hierarchy.options.iter().filter(|o| *o != name && !o.contains('=')) {
            match fs::symlinkat(name, &base, controller) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(errno).doing(Kind::Internal, || format!("cannot link {controller}")),
            }
        }
    }
    let set = options.all_set() & libc::MOUNT_ATTR_RDONLY;
    let read_only = MountAttributes { set, ..MountAttributes::default() };
    trees.change(base.as_fd(), false, read_only).doing(Kind::Internal, || "cannot make it read-only")
}

fn make(trees: &Trees, kind: &str, data: &[(String, Option<String>)], attributes: u64) -> Result<OwnedFd> {
    trees.make(&Filesystem { kind, source: "cgroup", data, attributes })
}

fn parsed(options: &[String]) -> Vec<(String, Option<String>)> {
    let option = |option: &String| match option.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (option.clone(), None),
    };
    options.iter().map(option).collect()
}

fn bound(trees: &Trees, hierarchy: &Hierarchy, attributes: u64) -> Result<OwnedFd> {
    let what = || format!("cannot bind {}", hierarchy.cgroup.display());
    let tree = trees.copy(&hierarchy.cgroup, false).doing(Kind::Internal, what)?;
    let change = MountAttributes { set: attributes, clear: 0, propagation: libc::MS_SLAVE };
    trees.change(tree.as_fd(), false, change).doing(Kind::Internal, what)?;
    Ok(tree)
}

/// The hierarchies that a container sees: those of v1 if there are any, else the one of v2.
fn hierarchies(mounts: &[mountinfo::Mount], own: &Membership) -> Vec<Hierarchy> {
    let v1 = mounts.iter().any(|mount| mount.kind == "cgroup");
    let kind = if v1 { "cgroup" } else { "cgroup2" };
    let mut found: Vec<Hierarchy> = Vec::new();
    for (controllers, path) in own.all() {
        let options: Vec<String> = controllers.split(',').filter(|c| !c.is_empty()).map(str::to_owned).collect();
        if options.is_empty() == v1 {
            continue;
        }
        // The first mount is the one that the host uses; others may be in containers' roots.
        let of = |m: &&mountinfo::Mount| m.kind == kind && options.iter().all(|option| m.options.contains(option));
        let Some(mount) = mounts.iter().find(of) else { continue };
        let Some(name) = mount.target.file_name() else { continue };
        let below = path.strip_prefix(&mount.root).or_else(|_| path.strip_prefix("/"));
        let cgroup = mount.target.join(below.unwrap_or(Path::new("")));
        let set = if v1 { Vec::new() } else { mount.options.iter().filter(|o| is_setting(o)).cloned().collect() };
        found.push(Hierarchy { name: name.to_string_lossy().into_owned(), options, cgroup, set });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Whether an option in mountinfo is the hierarchy's own: others are of any filesystem, or of SELinux.
fn is_setting(option: &str) -> bool {
    let key = option.split('=').next().unwrap_or_default();
    !matches!(key, "rw" | "ro" | "seclabel") && !options::is_label(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_of_v2_is_known_with_its_settings() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,seclabel,nsdelegate,memory_recursiveprot\n";
        let all = hierarchies(&mountinfo::parse(mounts.as_bytes()), &"0::/web\n".into());
        assert_eq!(all[0].set, ["nsdelegate", "memory_recursiveprot"]);
    }

    fn found(mountinfo: &str, cgroups: &str) -> Vec<(String, String, String)> {
        let all = hierarchies(&mountinfo::parse(mountinfo.as_bytes()), &cgroups.into());
        all.into_iter().map(|h| (h.name, h.options.join(","), h.cgroup.display().to_string())).collect()
    }

    fn expected(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
        all.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
    }

    #[test]
    fn hierarchies_of_v1_are_found_with_the_own_cgroup_in_each() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 31 0:32 /outer /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:29 / /elsewhere/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
";
        let own = "5:memory:/outer/web\n4:cpu,cpuacct:/web\n1:name=systemd:/\n3:pids:/web\n0::/web\n";
        let three = [
            ("cpu,cpuacct", "cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/web"),
            ("memory", "memory", "/sys/fs/cgroup/memory/web"),
            ("systemd", "name=systemd", "/sys/fs/cgroup/systemd/"),
        ];
        assert_eq!(found(mounts, own), expected(&three));
    }

    #[test]
    fn on_v2_there_is_one() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(found(mounts, "0::/a/web\n"), expected(&[("cgroup", "", "/sys/fs/cgroup/a/web")]));
    }
}
