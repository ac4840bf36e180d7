//! Room for a mount in a folder that lacks its mount point, and in which none can or may be made: one of the host view is
//! the host's, and read-only.
//!
//! ```text
//!   folder ─► covered by a tmpfs: each of its entries, bound; symlinks by their text; the mount point
//! ```
//!
//! The view shows the entries that are there at the start. Each keeps what its mount forbids and whose files it hides.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use bowline_error::{Doing, Kind, Result};
use bowline_spec::shows_host;
use oci_spec::runtime::{Mount, Spec};
use rustix::fs::{self, Dir, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::filesystem::Filesystem;
use super::trees::Trees;
use super::{inside, label};

/// What everybody may do in a view.
const MODE: &str = "0755";

/// Covers the folder that lacks the mount point of `mount` with a view of it, where it belongs to the host view, or
/// `is_wanted`. Returns a view that the caller makes read-only in the end, as its folder is.
pub fn make(
    trees: &Trees,
    root: BorrowedFd<'_>,
    spec: &Spec,
    mount: &Mount,
    is_wanted: bool,
) -> Result<Option<OwnedFd>> {
    let is_above = |shown: &&Mount| shows_host(shown) && mount.destination().starts_with(shown.destination());
    let is_in_host_view = || !shows_host(mount) && spec.mounts().iter().flatten().any(|shown| is_above(&shown));
    if !is_wanted && !is_in_host_view() {
        return Ok(None);
    }
    let Some(folder) = inside::lacking(root, mount.destination())? else { return Ok(None) };
    let (is_read_only, of_root) = (is_read_only(&folder), spec.root().as_ref().and_then(|root| root.readonly()));
    if !is_read_only && !is_wanted {
        return Ok(None);
    }
    let view = view(trees, spec, &folder)?;
    Ok((is_read_only || of_root == Some(true)).then_some(view))
}

fn is_read_only(folder: &OwnedFd) -> bool {
    fs::fstatvfs(folder).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn view(trees: &Trees, spec: &Spec, folder: &OwnedFd) -> Result<OwnedFd> {
    let what = || "cannot make a view of the folder that it is in";
    let data = [("mode".to_owned(), Some(MODE.to_owned()))];
    let data = label::within(spec, "tmpfs", &data);
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let tree = trees.make(&Filesystem { kind: "tmpfs", source: "tmpfs", data: &data, attributes })?;
    trees.attach(&tree, folder).doing(Kind::Internal, what)?;
    // The fd still refers to the folder below.
    let listed = match fs::openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(listed) => listed,
        // A folder that not everybody may look into shows nothing in the host view either.
        Err(Errno::ACCESS) => return Ok(tree),
        Err(errno) => return Err(errno).doing(Kind::Internal, what),
    };
    for entry in Dir::read_from(&listed).doing(Kind::Internal, what)? {
        let entry = entry.doing(Kind::Internal, what)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match show(trees, &listed, &tree, name) {
            // It is gone by now, or nobody may bind it.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno).doing(Kind::Internal, what),
        }
    }
    Ok(tree)
}

fn show(trees: &Trees, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = fs::openat(from, name, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(fs::fstat(&entry)?.st_mode);
    if kind == FileType::Symlink {
        let target = fs::readlinkat(&entry, c"", Vec::new())?;
        return fs::symlinkat(&target, to, name);
    }
    let tree = trees.copy_of(entry.as_fd(), kind == FileType::Directory)?;
    if kind == FileType::Directory {
        fs::mkdirat(to, name, Mode::from_raw_mode(0o755))?;
    } else {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        fs::openat(to, name, new, Mode::from_raw_mode(0o444)).map(drop)?;
    }
    trees.attach(&tree, &fs::openat(to, name, flags, Mode::empty())?)
}
