//! The root as the task sees it: what is mounted where, in which order.
//!
//!   /proc, /dev and below, /sys ─ the host view, /run, /tmp, /var/tmp ─ a home ─ the task's own mounts
//!
//! Each kind only where the kernel lets the task's user namespace mount it: it
//! asks who owns the namespace that the filesystem shows.

use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder, Mount as OciMount, Root};

use super::PTYS;
use super::host::{Host, UserIds};
use super::process::maps;
use crate::names::RESOLV_CONF;
use crate::task::{Mount, MountKind, Namespace, Propagation, Task, TaskProfile};
use crate::untrusted;

/// An owner that no file has: where it is the only one that is mapped, every
/// file belongs to nobody.
const NOBODYS: u32 = u32::MAX - 1;

/// The group `tty` of every distribution, which owns terminals.
const TTY: u32 = 5;

/// The root: the folder named, or an empty one in the bundle that the host
/// view is mounted in.
pub(super) fn root(task: &Task) -> Root {
    let mut root = Root::default();
    let read_only = task.rootfs.is_none() && task.ephemeral.is_none();
    root.set_path(task.rootfs.clone().unwrap_or_else(|| "rootfs".into()))
        .set_readonly(Some(task.readonly_rootfs.unwrap_or(read_only)));
    root
}

/// Propagation of a mount works only if the root has it too. Without such a mount
/// the root gets the runtime's default, slave.
pub(super) fn root_propagation(task: &Task) -> Option<String> {
    let any = |kinds: [Propagation; 2]| {
        let mut wanted = task.mounts.iter().filter_map(|m| m.propagation);
        wanted.any(|p| kinds.contains(&p))
    };
    if any([Propagation::Shared, Propagation::Rshared]) {
        Some("shared".into())
    } else if any([Propagation::Slave, Propagation::Rslave]) {
        Some("rslave".into())
    } else {
        None
    }
}

pub(super) fn mounts(task: &Task, host: &Host) -> Vec<OciMount> {
    let mut mounts = standard(task);
    if task.rootfs.is_none() {
        // An untrusted task does not see what this host alone has installed.
        let seen = |path: &&PathBuf| task.profile.is_none() || path.as_path() != Path::new(OPT);
        mounts.extend(host.view.iter().filter(seen).map(|path| view(path, task)));
        let empty = [("/run", "mode=755"), ("/tmp", "mode=1777"), ("/var/tmp", "mode=1777")];
        mounts.extend(empty.map(|(path, mode)| mount(path, "tmpfs", "tmpfs", &["nosuid", "nodev", mode])));
    }
    if task.rootfs.is_none() || task.profile == Some(TaskProfile::Untrusted) {
        mounts.extend(home(&host.user, &mounts));
    }
    // Not for an untrusted task, which has no network.
    if let (Some(file), None) = (&host.resolver, task.profile) {
        let options = ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"];
        // It is put where the host's link leads to, which may be below `/run` or the home.
        mounts.push(mount(RESOLV_CONF, "bind", &file.to_string_lossy(), &options));
    }
    mounts.extend(task.mounts.iter().map(requested));
    mounts
}

/// An empty home for `user`, where neither the host view nor a folder of the root's own is in its place.
/// `/nonexistent` must stay missing (Debian's policy, 9.2.3).
fn home(user: &UserIds, mounts: &[OciMount]) -> Option<OciMount> {
    let home = user.home.as_deref().filter(|home| *home != Path::new("/nonexistent"))?;
    let is_plain = home.is_absolute() && home.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let is_there = |at: &Path| at.starts_with(home) || at != Path::new("/run") && home.starts_with(at);
    if !is_plain || mounts.iter().any(|mount| is_there(mount.destination())) {
        return None;
    }
    let (uid, gid) = (format!("uid={}", user.uid), format!("gid={}", user.gid));
    Some(mount(home.to_str()?, "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=0700", &uid, &gid]))
}

fn standard(task: &Task) -> Vec<OciMount> {
    let of = &task.namespaces;
    let host_user = *of.user() == Namespace::Host;
    let tty_mapped =
        host_user || matches!(of.user(), Namespace::Path(_)) || task.gid_mappings.iter().any(|m| maps(m, TTY));
    let mut pts = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    if tty_mapped {
        pts.push("gid=5");
    }
    let most = format!("max={}", if task.profile == Some(TaskProfile::Untrusted) { untrusted::PTYS } else { PTYS });
    pts.push(&most);
    let host_ipc = *of.ipc() == Namespace::Host;
    // The host's /dev/shm goes with its IPC namespace, as with Docker.
    let shm_options = ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"];
    let shm = match host_ipc {
        true => host_folder("/dev/shm", false),
        false => mount("/dev/shm", "tmpfs", "shm", &shm_options),
    };
    let protected = ["nosuid", "noexec", "nodev"];
    // A new mount of mqueue shows the queues of the mounter's IPC namespace,
    // the host's included; only a new user namespace may not mount those.
    let mqueue = match host_ipc && !host_user {
        true => host_folder("/dev/mqueue", false),
        false => mount("/dev/mqueue", "mqueue", "mqueue", &protected),
    };
    // sysfs shows a network namespace: it takes that namespace's owner.
    let sys = match host_user || *of.network() == Namespace::Private {
        true => mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        false => host_folder("/sys", true),
    };
    let dev_options = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    vec![
        mount("/proc", "proc", "proc", &protected),
        mount("/dev", "tmpfs", "tmpfs", &dev_options),
        mount("/dev/pts", "devpts", "devpts", &pts),
        shm,
        mqueue,
        sys,
    ]
}

/// A bind mount of the host's, for a kernel filesystem of which no new mount can be made.
fn host_folder(path: &str, read_only: bool) -> OciMount {
    let mut options = vec!["rbind", "nosuid", "noexec", "nodev"];
    options.extend(["rnosuid", "rnoexec", "rnodev"]);
    options.extend(read_only.then_some(["ro", "rro"]).into_iter().flatten());
    options.push("rprivate");
    mount(path, "bind", path, &options)
}

/// Read-only with all that is mounted below: `ro` alone would leave a writable
/// mount below `/etc`, such as a container's own `/etc/hosts`, writable. `rro`
/// needs Linux 5.12; what does not know it still has `ro`.
///
/// Owners are hidden, so that root inside is one of all others, and reads what
/// everybody may read: a mask of single files would go when the host renames
/// another file over one. A task that may gain privileges sees the owners of
/// the distribution's folders, so that set-user-ID programs there have effect.
fn view(path: &Path, task: &Task) -> OciMount {
    let source = path.to_string_lossy();
    let mut view = mount(&source, "bind", &source, &["rbind", "ro", "rro", "rprivate"]);
    let powerless = task.no_new_privs.unwrap_or(true);
    if powerless || [ETC, OPT].map(Path::new).contains(&path) {
        let options = view.options().iter().flatten().cloned().chain(["ridmap".to_owned()]).collect();
        view.set_options(Some(options)).set_uid_mappings(Some(vec![nobodys()])).set_gid_mappings(Some(vec![nobodys()]));
    }
    view
}

/// A folder of the host view that must never be shown with its owners, as it holds secrets.
pub const ETC: &str = "/etc";

/// Software that is installed by hand; shown where the host has it.
pub const OPT: &str = "/opt";

/// What of the host a task without a root filesystem of its own sees, read-only.
pub const HOST_VIEW: &[&str] = &["/bin", ETC, "/lib", "/lib32", "/lib64", OPT, "/sbin", "/usr"];

fn nobodys() -> LinuxIdMapping {
    let mapping = LinuxIdMappingBuilder::default().container_id(NOBODYS).host_id(NOBODYS).size(1_u32).build();
    mapping.expect("every required field is set")
}

/// Whether `mount` is a part of the host view.
pub fn shows_host(mount: &OciMount) -> bool {
    let at = mount.destination();
    mount.source().as_ref() == Some(at) && HOST_VIEW.iter().any(|path| at == Path::new(path))
}

/// Whether `mount` is a part of the host view whose owners are hidden.
pub fn hides_owners(mount: &OciMount) -> bool {
    let ours = |mappings: &Option<Vec<LinuxIdMapping>>| mappings.as_deref() == Some(&[nobodys()]);
    ours(mount.uid_mappings()) && ours(mount.gid_mappings()) && shows_host(mount)
}

fn requested(asked: &Mount) -> OciMount {
    let mut options: Vec<String> = Vec::new();
    let mut option = |text: &str| options.push(text.into());
    let tmpfs = asked.kind == MountKind::Tmpfs;
    let recursive = !tmpfs && asked.recursive.unwrap_or(true);
    if !tmpfs {
        option(if recursive { "rbind" } else { "bind" });
    }
    // A plain flag is for the top mount alone, its `r` form for those below too.
    let mut flag = |plain: &str, set: bool| {
        if set {
            option(plain);
        }
        if set && recursive {
            option(&format!("r{plain}"));
        }
    };
    flag("nosuid", asked.nosuid.unwrap_or(tmpfs));
    flag("nodev", asked.nodev.unwrap_or(tmpfs));
    flag("noexec", asked.noexec.unwrap_or(false));
    flag("ro", asked.read_only);
    if !asked.read_only {
        option("rw");
    }
    if tmpfs {
        option(&format!("mode={}", asked.mode.map_or("1777".into(), |m| m.to_string())));
        if let Some(size) = asked.size {
            option(&format!("size={}", size.option()));
        }
        let numbers =
            [("nr_inodes", asked.inodes), ("uid", asked.uid.map(u64::from)), ("gid", asked.gid.map(u64::from))];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            option(&format!("{name}={number}"));
        }
    } else {
        option(asked.propagation.unwrap_or(Propagation::Rprivate).as_str());
    }
    let (kind, source) = match tmpfs {
        true => ("tmpfs", PathBuf::from("tmpfs")),
        false => ("bind", asked.source.clone().unwrap_or_default()),
    };
    oci(asked.destination.clone(), kind, source, options)
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> OciMount {
    let options = options.iter().map(|o| (*o).into()).collect();
    oci(destination.into(), kind, source.into(), options)
}

fn oci(destination: PathBuf, kind: &str, source: PathBuf, options: Vec<String>) -> OciMount {
    let mut mount = OciMount::default();
    mount.set_destination(destination).set_typ(Some(kind.into())).set_source(Some(source)).set_options(Some(options));
    mount
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::built;
    use super::*;

    const PRIVATE_USER: &str = "namespaces.user = 'private'\n\
                                uid_mappings = [{container = 0, host = 1000, size = 10}]\n\
                                gid_mappings = [{container = 0, host = 1000, size = 10}]\n";

    fn list(toml: &str) -> Vec<OciMount> {
        built(toml, |_| ()).mounts().clone().unwrap()
    }

    fn find(mounts: &[OciMount], destination: &str) -> (String, Vec<String>) {
        let found = mounts.iter().rfind(|m| m.destination() == Path::new(destination));
        let found = found.unwrap();
        (found.typ().clone().unwrap(), found.options().clone().unwrap())
    }

    #[test]
    fn the_tasks_own_mounts_come_last_in_their_order() {
        let toml = "[[mounts]]\nsource = '/b'\ndestination = '/x'\n[[mounts]]\ntype = 'tmpfs'\ndestination = '/a'";
        let mounts = list(toml);
        let places: Vec<_> = mounts.iter().map(|m| m.destination().to_str().unwrap()).collect();
        let kernel_s = ["/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys"];
        let expected = [&kernel_s[..], &["/etc", "/usr", "/run", "/tmp", "/var/tmp", "/x", "/a"]].concat();
        assert_eq!(places, expected);
    }

    #[test]
    fn a_folder_as_root_has_no_host_view() {
        let mounts = list("rootfs = '/srv/a'");
        assert_eq!(mounts.len(), 6);
        let spec = built("rootfs = '/srv/a'\nreadonly_rootfs = true", |_| ());
        assert_eq!(spec.root().as_ref().unwrap().readonly(), Some(true));
    }

    #[test]
    fn the_host_view_is_read_only_all_the_way_down() {
        let (kind, options) = find(&list(""), "/usr");
        assert_eq!(kind, "bind");
        assert_eq!(options, ["rbind", "ro", "rro", "rprivate", "ridmap"]);
    }

    #[test]
    fn the_host_view_hides_owners_but_of_programs_that_keep_their_rights() {
        let mounts = |toml: &str| {
            let view = ["/etc", "/opt", "/usr"];
            let spec = built(toml, |host| host.view = view.map(PathBuf::from).into());
            let hidden = |mount: &&OciMount| hides_owners(mount);
            let all = spec.mounts().clone().unwrap();
            all.iter().filter(hidden).map(|mount| mount.destination().clone()).collect::<Vec<_>>()
        };
        assert_eq!(mounts(""), ["/etc", "/opt", "/usr"].map(PathBuf::from));
        assert_eq!(mounts("no_new_privs = false"), ["/etc", "/opt"].map(PathBuf::from));
        assert_eq!(mounts("[[mounts]]\nsource = '/etc'\ndestination = '/etc'").len(), 3, "what is asked for is given");
    }

    #[test]
    fn a_home_is_made_where_nothing_else_is() {
        let is_made = |home: &str| {
            let spec = built("", |host| host.user.home = Some(home.into()));
            let of =
                |mount: &&OciMount| mount.destination() == Path::new(home) && mount.typ().as_deref() == Some("tmpfs");
            spec.mounts()
                .iter()
                .flatten()
                .filter(of)
                .any(|mount| mount.options().iter().flatten().any(|o| o == "mode=0700"))
        };
        for home in ["/root", "/home/a", "/var/www", "/run/sshd"] {
            assert!(is_made(home), "{home}");
        }
        for home in ["/", "/var", "/usr/games", "/dev", "/tmp/a", "/run", "/nonexistent", "/srv/../etc", "srv", ""] {
            assert!(!is_made(home), "{home}");
        }
    }

    #[test]
    fn the_resolver_s_file_is_bound_after_the_folders_that_it_may_be_in() {
        let places = |toml: &str| {
            let spec = built(toml, |host| host.resolver = Some("/run/systemd/resolve/stub-resolv.conf".into()));
            let places: Vec<PathBuf> = spec.mounts().iter().flatten().map(|m| m.destination().clone()).collect();
            places[6..].to_vec()
        };
        let expected = ["/etc", "/usr", "/run", "/tmp", "/var/tmp", "/etc/resolv.conf"].map(PathBuf::from);
        assert_eq!(places(""), expected);
        assert!(!places("profile = 'untrusted'").contains(&RESOLV_CONF.into()));
    }

    #[test]
    fn flags_of_a_recursive_bind_reach_the_mounts_below() {
        let bind = |line: &str| find(&list(&format!("[[mounts]]\nsource = '/a'\ndestination = '/b'\n{line}")), "/b").1;
        assert_eq!(bind(""), ["rbind", "rw", "rprivate"]);
        assert_eq!(bind("read_only = true"), ["rbind", "ro", "rro", "rprivate"]);
        assert_eq!(bind("noexec = true"), ["rbind", "noexec", "rnoexec", "rw", "rprivate"]);
        let single = bind("recursive = false\nread_only = true\npropagation = 'slave'");
        assert_eq!(single, ["bind", "ro", "slave"]);
    }

    #[test]
    fn a_tmpfs_has_no_suid_files_or_devices_unless_asked() {
        let tmpfs =
            |line: &str| find(&list(&format!("[[mounts]]\ntype = 'tmpfs'\ndestination = '/b'\n{line}")), "/b").1;
        assert_eq!(tmpfs(""), ["nosuid", "nodev", "rw", "mode=1777"]);
        let asked = tmpfs("nosuid = false\nsize = '1M'\nmode = '0700'");
        assert_eq!(asked, ["nodev", "rw", "mode=0700", "size=1048576"]);
        let owned = tmpfs("size = '5%'\ninodes = 9\nuid = 1\ngid = 2");
        assert_eq!(owned[3..], ["mode=1777", "size=5%", "nr_inodes=9", "uid=1", "gid=2"]);
    }

    #[test]
    fn terminals_belong_to_tty_where_it_is_mapped() {
        let gid = |toml: &str| find(&list(toml), "/dev/pts").1.contains(&"gid=5".into());
        assert!(gid(""));
        assert!(gid(PRIVATE_USER));
        assert!(!gid(&PRIVATE_USER.replace("size = 10", "size = 5")));
    }

    #[test]
    fn what_a_new_user_namespace_may_not_mount_is_bound() {
        let kind = |toml: &str, place: &str| find(&list(toml), place).0;
        assert_eq!(kind("", "/sys"), "sysfs");
        assert_eq!(kind("namespaces.network = 'private'", "/sys"), "sysfs");
        assert_eq!(kind(PRIVATE_USER, "/sys"), "bind");
        let own_network = format!("{PRIVATE_USER}namespaces.network = 'private'");
        assert_eq!(kind(&own_network, "/sys"), "sysfs");
        let joined = format!("{PRIVATE_USER}namespaces.network = '/run/netns/a'");
        assert_eq!(kind(&joined, "/sys"), "bind");
        let (_, options) = find(&list(PRIVATE_USER), "/sys");
        assert!(options.contains(&"rro".into()), "{options:?}");
        assert_eq!(kind("namespaces.ipc = 'host'", "/dev/shm"), "bind");
        assert_eq!(kind("namespaces.ipc = 'host'", "/dev/mqueue"), "mqueue");
        let host_ipc = format!("{PRIVATE_USER}namespaces.ipc = 'host'");
        assert_eq!(kind(&host_ipc, "/dev/mqueue"), "bind");
    }

    #[test]
    fn propagation_starts_at_the_root() {
        let root = |propagation: &str| {
            let line = format!("propagation = '{propagation}'");
            let toml = format!("[[mounts]]\nsource = '/a'\ndestination = '/b'\n{line}");
            let spec = built(&toml, |_| ());
            spec.linux().as_ref().unwrap().rootfs_propagation().clone()
        };
        assert_eq!(root("rshared").as_deref(), Some("shared"));
        assert_eq!(root("slave").as_deref(), Some("rslave"));
        assert_eq!(root("private"), None);
    }
}
