//! Mounts made by mount(2), where trees cannot be detached.
//!
//! A stage is a tmpfs that no other process sees, with a spot for each tree. A tree is made or bound there, changed
//! there, and moved to its place when it is ready. The stage goes away with the old root. Paths are
//! `/proc/self/fd/<n>` in the host's procfs, which lead to exactly that mount and folder, whatever is mounted on it
//! meanwhile.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::MountAttributes;
use bowline_sys::mountinfo;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, MountPropagationFlags};

use super::filesystem::{Filesystem, refused};
use super::handle::file_type;
use super::options::{self, ATIME_FIELD, is_label};

/// MOUNT_ATTR_* flags, with their counterparts of mount(2) and statfs(2).
const FLAGS: [(u64, MountFlags, u64); 5] = [
    (libc::MOUNT_ATTR_RDONLY, MountFlags::RDONLY, 0x1),
    (libc::MOUNT_ATTR_NOSUID, MountFlags::NOSUID, 0x2),
    (libc::MOUNT_ATTR_NODEV, MountFlags::NODEV, 0x4),
    (libc::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC, 0x8),
    (libc::MOUNT_ATTR_NOSYMFOLLOW, MountFlags::NOSYMFOLLOW, 0x2000),
];

/// The atime modes of statfs(2); a mount with neither noatime nor relatime has strictatime.
const ST_NOATIME: u64 = 0x400;
const ST_NODIRATIME: u64 = 0x800;
const ST_RELATIME: u64 = 0x1000;

/// Options of a filesystem that mount(2) takes as flags.
const AS_FLAGS: [(&str, MountFlags); 3] =
    [("sync", MountFlags::SYNCHRONOUS), ("dirsync", MountFlags::DIRSYNC), ("lazytime", MountFlags::LAZYTIME)];

/// A stage, as the module's header describes it.
#[derive(Debug)]
pub struct Stage {
    dir: OwnedFd,
    next: Cell<u32>,
}

impl Stage {
    /// Mounts a stage over the folder `over`; `open` then opens that folder by its path.
    ///
    /// The stage is unbindable, so no copy of another mount includes it.
    pub fn new(over: BorrowedFd<'_>, open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<Stage> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount::mount("bowline", at(over), "tmpfs", flags, c"mode=0755,uid=0,gid=0")?;
        let dir = open()?;
        // The path may lead elsewhere by now.
        if fs::fstat(&dir)?.st_dev == fs::fstat(over)?.st_dev || fs::fstatfs(&dir)?.f_type != libc::TMPFS_MAGIC {
            return Err(Errno::STALE);
        }
        mount::mount_change(at(dir.as_fd()), MountPropagationFlags::UNBINDABLE)?;
        Ok(Stage { dir, next: Cell::new(0) })
    }

    /// The stage itself, as a folder.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Copies the mount that `source` refers to, from that place down.
    pub fn copy(&self, source: BorrowedFd<'_>, recursive: bool) -> rustix::io::Result<OwnedFd> {
        let name = self.spot(file_type(source)? == FileType::Directory)?;
        bind(source, self.open(&name)?.as_fd(), recursive)?;
        self.open(&name)
    }

    /// Mounts a new filesystem on the stage, and returns its root.
    pub fn make(&self, filesystem: &Filesystem<'_>) -> Result<OwnedFd> {
        let Filesystem { kind, source, attributes, .. } = *filesystem;
        let what = || format!("cannot make a {kind} filesystem");
        let (data, mut flags) = data(filesystem)?;
        // Read-only is meant for the mount alone: here it would apply to the filesystem.
        let read_only = attributes & libc::MOUNT_ATTR_RDONLY;
        flags |= remount_flags(0, attributes & !read_only, ATIME_FIELD);
        let name = self.spot(true).doing(Kind::Internal, what)?;
        let spot = self.open(&name).doing(Kind::Internal, what)?;
        mount::mount(source, at(spot.as_fd()), kind, flags, data.as_c_str())
            .map_err(|errno| refused(kind, errno, None))?;
        let tree = self.open(&name).doing(Kind::Internal, what)?;
        if read_only != 0 {
            let change = MountAttributes { set: read_only, ..MountAttributes::default() };
            self::change(tree.as_fd(), false, change).doing(Kind::Internal, what)?;
        }
        Ok(tree)
    }

    /// Makes a folder or a file for one mount and returns its name.
    fn spot(&self, folder: bool) -> rustix::io::Result<String> {
        let name = self.next.replace(self.next.get() + 1).to_string();
        if folder {
            fs::mkdirat(&self.dir, &name, Mode::from_raw_mode(0o755))?;
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            fs::openat(&self.dir, &name, flags, Mode::from_raw_mode(0o644))?;
        }
        Ok(name)
    }

    fn open(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        open_spot(self.dir.as_fd(), name)
    }
}

/// Mounts a new filesystem onto what `target` refers to. Read-only applies to the filesystem too, because what it
/// is on may be read-only.
pub fn mount_new(filesystem: &Filesystem<'_>, target: BorrowedFd<'_>) -> Result<()> {
    let Filesystem { kind, source, attributes, .. } = *filesystem;
    let (data, flags) = data(filesystem)?;
    let flags = flags | remount_flags(0, attributes, ATIME_FIELD);
    mount::mount(source, at(target), kind, flags, data.as_c_str()).map_err(|errno| refused(kind, errno, None))
}

/// Gives the filesystem that is mounted at `target` other options, and its mount other attributes.
pub fn remount_filesystem(filesystem: &Filesystem<'_>, target: BorrowedFd<'_>) -> Result<()> {
    let (data, flags) = data(filesystem)?;
    let atime = filesystem.attributes & (ATIME_FIELD | libc::MOUNT_ATTR_NODIRATIME) != 0;
    let flags = flags | remount_flags(0, filesystem.attributes, if atime { ATIME_FIELD } else { 0 });
    mount::mount_remount(at(target), flags, data.as_c_str())
        .doing(Kind::BadSpec, || format!("cannot remount a {} filesystem", filesystem.kind))
}

/// Opens the topmost mount at `name` of the stage `dir`.
pub fn open_spot(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Binds what `source` refers to onto `target`.
pub fn bind(source: BorrowedFd<'_>, target: BorrowedFd<'_>, recursive: bool) -> rustix::io::Result<()> {
    match recursive {
        true => mount::mount_bind_recursive(at(source), at(target)),
        false => mount::mount_bind(at(source), at(target)),
    }
}

/// Moves `tree` from its spot onto `target`.
pub fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> rustix::io::Result<()> {
    match mount::mount_move(at(tree), at(target)) {
        // Mounts that a user namespace got as copies are locked in their place; a bind of one keeps all its flags
        // and may go anywhere.
        Err(Errno::INVAL) => bind(tree, target, true),
        done => done,
    }
}

/// Changes a mount as mount_setattr(2) does.
///
/// # Errors
/// `Unsupported` where a flag does not stick, or a mount below is out of reach.
pub fn change(tree: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
    if attributes.propagation != 0 {
        let mut flags = MountPropagationFlags::from_bits_retain(attributes.propagation as u32);
        if recursive {
            flags |= MountPropagationFlags::REC;
        }
        by_path(tree, |path| mount::mount_change(path, flags))?;
    }
    if attributes.set | attributes.clear == 0 {
        return Ok(());
    }
    remount(tree, attributes)?;
    if recursive {
        for mount in below(tree)? {
            remount(mount.as_fd(), attributes)?;
        }
    }
    Ok(())
}

/// Changes one mount's flags. All others stay, because a user namespace may have locked them.
fn remount(mount: BorrowedFd<'_>, attributes: MountAttributes) -> io::Result<()> {
    let now = |fd| fs::fstatvfs(fd).map(|stat| stat.f_flag.bits());
    let flags = remount_flags(now(mount)?, attributes.set, attributes.clear);
    by_path(mount, |path| mount::mount_remount(path, MountFlags::BIND | flags, ""))?;
    let after = now(mount)?;
    let missing = FLAGS.iter().any(|(attribute, _, stat)| attributes.set & attribute != 0 && after & stat == 0);
    if missing {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel does not know one of its options"));
    }
    Ok(())
}

/// The MOUNT_ATTR_* of the mount that `fd` refers to. It counts as read-only if its filesystem is.
pub fn attributes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let now = fs::fstatvfs(fd)?.f_flag.bits();
    let flags = FLAGS.iter().filter(|(.., stat)| now & stat != 0).fold(0, |all, (attribute, ..)| all | attribute);
    let times = match now {
        _ if now & ST_NOATIME != 0 => libc::MOUNT_ATTR_NOATIME,
        _ if now & ST_RELATIME != 0 => libc::MOUNT_ATTR_RELATIME,
        _ => libc::MOUNT_ATTR_STRICTATIME,
    };
    Ok(flags | times | if now & ST_NODIRATIME != 0 { libc::MOUNT_ATTR_NODIRATIME } else { 0 })
}

/// The flags that mount(2) needs for a mount whose statfs(2) flags are `now`. Without any atime flag, mount(2)
/// leaves the atime mode as it is.
fn remount_flags(now: u64, set: u64, clear: u64) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (attribute, flag, stat) in FLAGS {
        let keeps = now & stat != 0 && clear & attribute == 0;
        flags.set(flag, keeps || set & attribute != 0);
    }
    if (set | clear) & (ATIME_FIELD | libc::MOUNT_ATTR_NODIRATIME) == 0 {
        return flags;
    }
    flags |= match (clear & ATIME_FIELD != 0, set & ATIME_FIELD) {
        (true, libc::MOUNT_ATTR_NOATIME) => MountFlags::NOATIME,
        (true, libc::MOUNT_ATTR_STRICTATIME) => MountFlags::STRICTATIME,
        (true, _) => MountFlags::RELATIME,
        (false, _) if now & ST_NOATIME != 0 => MountFlags::NOATIME,
        (false, _) if now & ST_RELATIME != 0 => MountFlags::RELATIME,
        (false, _) => MountFlags::STRICTATIME,
    };
    let keeps = now & ST_NODIRATIME != 0 && clear & libc::MOUNT_ATTR_NODIRATIME == 0;
    flags.set(MountFlags::NODIRATIME, keeps || set & libc::MOUNT_ATTR_NODIRATIME != 0);
    flags
}

/// Every mount below `tree`.
///
/// # Errors
/// `Unsupported` when a mount cannot be reached because another lies on it: the change would miss it.
fn below(tree: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let top = mount_id(tree)?;
    let all = mountinfo::read("/proc/self/mountinfo")?;
    let found = on(&all, top);
    let base = all.iter().find(|m| m.id == top).map(|m| &*m.target);
    let reach = |mount: &mountinfo::Mount| {
        let path = mount.target.strip_prefix(base?).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(tree, path, flags, Mode::empty()).ok()?;
        (mount_id(fd.as_fd()).ok()? == mount.id).then_some(fd)
    };
    let unreached = |mount: &mountinfo::Mount| {
        let message =
            format!("the mount {} below it is out of reach without mount_setattr (Linux 5.12)", mount.target.display());
        io::Error::new(io::ErrorKind::Unsupported, message)
    };
    found.into_iter().map(|mount| reach(mount).ok_or_else(|| unreached(mount))).collect()
}

/// The mounts of `all` that lie on the mount `top`, or on one of these.
fn on(all: &[mountinfo::Mount], top: u64) -> Vec<&mountinfo::Mount> {
    let mut ids = BTreeSet::from([top]);
    let mut found = Vec::new();
    // A mount may be listed before the one that it lies on: then the next round finds it.
    loop {
        let before = found.len();
        found.extend(all.iter().filter(|mount| ids.contains(&mount.parent) && ids.insert(mount.id)));
        if found.len() == before {
            return found;
        }
    }
}

/// The MOUNT_ATTR_* of each mount below the folder `source`, which is in this process's mount namespace.
pub fn attributes_below(source: BorrowedFd<'_>) -> io::Result<Vec<u64>> {
    let path = fs::readlinkat(fs::CWD, at(source), Vec::new())?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    let all = mountinfo::read("/proc/self/mountinfo")?;
    let below = on(&all, mount_id(source)?).into_iter().filter(|mount| mount.target.starts_with(path));
    Ok(below.map(|mount| options::attributes_of(&mount.flags)).collect())
}

/// The number of the mount that `fd` is on. Not by fdinfo: before Linux 5.14 a process that is not dumpable may not read
/// its own in a user namespace.
fn mount_id(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let has = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    has.then_some(stat.stx_mnt_id).ok_or_else(|| io::Error::other("statx names no mount"))
}

/// The filesystem's own options as mount(2) takes them.
fn data(filesystem: &Filesystem<'_>) -> Result<(CString, MountFlags)> {
    let refused = |what: &str| Error::new(Kind::Unsupported, format!("{what}; this kernel has mount(2) alone"));
    let mut flags = MountFlags::empty();
    let mut words = Vec::new();
    for (key, value) in filesystem.data {
        if let Some((_, flag)) = AS_FLAGS.iter().find(|(name, _)| name == key && value.is_none()) {
            flags |= *flag;
            continue;
        }
        let word = match value {
            // An SELinux label may contain commas, but no quotes.
            Some(label) if is_label(key) && !label.contains('"') => {
                words.push(format!("{key}=\"{label}\""));
                continue;
            }
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        };
        if word.contains(',') {
            return Err(refused(&format!("its option {word:?} has a comma")));
        }
        words.push(word);
    }
    let text = words.join(",");
    // The kernel silently cuts off what exceeds a page.
    if text.len() >= 4096 {
        return Err(refused("its options are too long"));
    }
    let text = CString::new(text).map_err(|_| Error::new(Kind::BadSpec, "its options must not contain NUL"))?;
    Ok((text, flags))
}

/// A path to what `fd` refers to, in the host's procfs.
pub fn at(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Like [`at`], but enters a folder instead: after the change of roots, `/proc` is the task's and may be anything.
fn by_path(fd: BorrowedFd<'_>, act: impl FnOnce(&Path) -> rustix::io::Result<()>) -> io::Result<()> {
    let name = at(fd);
    let path = if file_type(fd)? == FileType::Directory {
        // The working directory is unused until the program's is entered.
        match rustix::process::fchdir(fd) {
            Ok(()) => Path::new("."),
            // The folder may be closed to this process, for instance if it is another user's.
            Err(_) => Path::new(&name),
        }
    } else {
        Path::new(&name)
    };
    Ok(act(path)?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::StatVfsMountFlags;

    use super::*;

    const RO: u64 = libc::MOUNT_ATTR_RDONLY;

    #[test]
    fn flags_that_nobody_named_stay() {
        let now = (StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV).bits() | ST_RELATIME;
        assert_eq!(remount_flags(now, RO, 0), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(remount_flags(now | 1, 0, RO), MountFlags::NOSUID | MountFlags::NODEV);
    }

    #[test]
    fn atime_is_named_whole_or_not_at_all() {
        let nodir = libc::MOUNT_ATTR_NODIRATIME;
        assert_eq!(remount_flags(ST_NOATIME, RO, 0), MountFlags::RDONLY);
        assert_eq!(remount_flags(ST_NOATIME, nodir, 0), MountFlags::NOATIME | MountFlags::NODIRATIME);
        assert_eq!(remount_flags(ST_RELATIME, libc::MOUNT_ATTR_STRICTATIME, ATIME_FIELD), MountFlags::STRICTATIME);
        assert_eq!(remount_flags(0, 0, ATIME_FIELD), MountFlags::RELATIME);
        assert_eq!(remount_flags(ST_NODIRATIME, 0, nodir), MountFlags::STRICTATIME);
    }

    #[test]
    fn an_option_that_mount_would_take_for_two_is_refused() {
        let of = |key: &str, value: Option<&str>| {
            let list = [(key.to_owned(), value.map(str::to_owned)), ("newinstance".to_owned(), None)];
            data(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &list, attributes: 0 })
        };
        assert_eq!(of("size", Some("1m")).expect("plain").0.as_c_str(), c"size=1m,newinstance");
        assert_eq!(of("sync", None).expect("a flag").1, MountFlags::SYNCHRONOUS);
        let labelled = of("context", Some("u:r:t:s0:c1,c2")).expect("a label");
        assert_eq!(labelled.0.as_c_str(), c"context=\"u:r:t:s0:c1,c2\",newinstance");
        assert_eq!(of("context", Some("u\",mode=777,x=\"")).map_err(|e| e.kind()), Err(Kind::Unsupported));
        assert_eq!(of("size", Some("1m,mode=777")).map_err(|e| e.kind()), Err(Kind::Unsupported));
    }
}
