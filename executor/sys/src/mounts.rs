//! Attributes of mounts.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::{io, ptr};

use super::{absent, check};

/// Attributes for [`mount_setattr`]; MOUNT_ATTR_* bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountAttributes {
    pub set: u64,
    pub clear: u64,
    /// MS_SHARED, MS_SLAVE, MS_PRIVATE or MS_UNBINDABLE; 0 leaves the propagation as it is.
    pub propagation: u64,
}

impl MountAttributes {
    /// Whether there is nothing to change.
    pub fn is_none(&self) -> bool {
        self.set | self.clear | self.propagation == 0
    }
}

/// Changes the attributes of the mount whose root is `mount`; with `recursive`, of all mounts below
/// it too. Linux ≥ 5.12.
pub fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: attributes.propagation,
        userns_fd: 0,
    };
    set_attributes(mount, recursive, &attr)
}

/// Makes the detached mount `mount` show the owners of its files as the user namespace `owners`
/// maps them; with `recursive`, all mounts below it too. Linux ≥ 5.12, on filesystems that support
/// it.
pub fn mount_idmap(mount: BorrowedFd<'_>, recursive: bool, owners: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: owners.as_raw_fd() as u64,
    };
    set_attributes(mount, recursive, &attr)
}

fn set_attributes(mount: BorrowedFd<'_>, recursive: bool, attr: &libc::mount_attr) -> io::Result<()> {
    if absent("mount_setattr") {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` is a valid mount_attr of the size passed, the path is an
    // empty C string, and the borrows keep the fds open.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    };
    check(rc).map(drop)
}
