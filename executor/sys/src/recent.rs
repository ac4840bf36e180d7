//! System calls that a current kernel may still lack, each called only here.
//!
//! | | Linux | where it is absent |
//! | --- | --- | --- |
//! | fsopen and its like, open_tree, move_mount | 5.2 | `ENOSYS` |
//! | openat2 | 5.6 | `ENOSYS` |
//! | close_range with CLOSE_RANGE_CLOEXEC | 5.11 | `EINVAL`, `ENOSYS` |
//! | mount_setattr | 5.12 | `ENOSYS` |
//!
//! An outer seccomp filter that is older than the call may answer `EPERM` instead: see
//! [`is_absent`]. The callers have the fallbacks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use super::absent::absent;

/// Whether `errno` may mean that the kernel, or a filter of our calls, does not know the call.
/// `EPERM` may also be a real answer: a fallback is then refused as well, and its answer stands.
pub fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

/// Fails with `ENOSYS` if `facility` is taken for absent, which happens only in tests.
fn present(facility: &str) -> Result<()> {
    if absent(facility) { Err(Errno::NOSYS) } else { Ok(()) }
}

/// How often a path is opened again. Each time something else on the host was renamed or mounted meanwhile.
const OPENINGS: u32 = 1000;

/// Opens a path below `root`: openat2(2).
///
/// A rename or a mount anywhere on the host, during a step up with `..`, makes the kernel answer EAGAIN: it is not sure
/// then that the step stays below `root`.
pub fn openat2(root: BorrowedFd<'_>, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd> {
    present("openat2")?;
    let mut again = 0..OPENINGS;
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if again.next().is_some() => {}
            opened => return opened,
        }
    }
}

/// Marks the fds `first` to `last` close-on-exec: close_range(2) with CLOSE_RANGE_CLOEXEC.
pub fn mark_close_on_exec(first: u32, last: u32) -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_int = 4;
    if absent("close_range_cloexec") {
        return Err(Errno::INVAL);
    }
    // SAFETY: with this flag nothing is closed, only marked.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) };
    super::check(rc).map(drop).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Whether many fds can be marked close-on-exec in one call.
pub fn marks_many_fds() -> bool {
    // No fd has the last number.
    mark_close_on_exec(u32::MAX, u32::MAX).is_ok()
}

/// Whether mounts can be made, copied, changed and attached through fds.
///
/// All of these work or none: only mount_setattr can change what is detached. The kernel is asked
/// once: children and workers have the shim's answer.
pub fn has_mount_fds() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(ask_for_mount_fds)
}

fn ask_for_mount_fds() -> bool {
    // The kernel refuses flags that it does not know before it looks at the type. A type that it does not know either it
    // would first ask modprobe(8) for, a process that runs and is waited for.
    let fsopen = || fsopen_with("", FsOpenFlags::from_bits_retain(!0)).map(drop);
    // No attributes for no mount: the call fails before it looks at the fd.
    let setattr = || {
        let nothing = super::MountAttributes::default();
        super::mount_setattr(rustix::fs::CWD, false, nothing).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    };
    // Nothing has this name.
    let tree = || rustix_open_tree(rustix::fs::CWD, Path::new(""), OpenTreeFlags::OPEN_TREE_CLOEXEC).map(drop);
    !(fsopen().is_err_and(is_absent) || setattr().is_err_and(is_absent) || tree().is_err_and(is_absent))
}

/// A new context of a filesystem of type `kind`: fsopen(2).
pub fn fsopen(kind: &str) -> Result<OwnedFd> {
    fsopen_with(kind, FsOpenFlags::FSOPEN_CLOEXEC)
}

fn fsopen_with(kind: &str, flags: FsOpenFlags) -> Result<OwnedFd> {
    present("fsopen")?;
    rustix::mount::fsopen(kind, flags)
}

/// Sets `key` of a filesystem context, to a value or as a flag: fsconfig(2).
pub fn fsconfig(context: &OwnedFd, key: &str, value: Option<&str>) -> Result<()> {
    present("fsopen")?;
    match value {
        Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), key, value),
        None => rustix::mount::fsconfig_set_flag(context.as_fd(), key),
    }
}

/// Makes the filesystem that `context` describes, and a detached mount of it
/// with these MOUNT_ATTR_*: fsconfig(2), fsmount(2).
pub fn fsmount(context: &OwnedFd, attributes: u64) -> Result<OwnedFd> {
    present("fsopen")?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::from_bits_retain(attributes as u32);
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Copies the mount at `path`, or, if `path` is empty, of what `at` refers to. The copy is attached
/// nowhere: open_tree(2).
pub fn open_tree(at: BorrowedFd<'_>, path: &Path, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix_open_tree(at, path, flags)
}

fn rustix_open_tree(at: BorrowedFd<'_>, path: &Path, flags: OpenTreeFlags) -> Result<OwnedFd> {
    present("fsopen")?;
    rustix::mount::open_tree(at, path, flags)
}

/// Attaches the detached mount `tree` onto what `target` refers to: move_mount(2).
pub fn move_mount(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<()> {
    present("fsopen")?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", target, "", flags)
}

#[cfg(all(test, feature = "absent"))]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate as sys;

    /// Each call fails as on a kernel without the facility if the facility is taken for absent, and otherwise not.
    #[test]
    fn what_is_taken_for_absent_answers_as_an_old_kernel_does() {
        let lacks = |outcome: Result<OwnedFd>| outcome.is_err_and(|errno| errno == Errno::NOSYS);
        let root = rustix::fs::open("/", OFlags::PATH, Mode::empty()).expect("it opens");
        let opened = openat2(root.as_fd(), Path::new("etc"), OFlags::PATH, ResolveFlags::IN_ROOT);
        assert_eq!(lacks(opened), absent("openat2"));
        assert_eq!(lacks(fsopen("tmpfs")), absent("fsopen"));
        assert_eq!(lacks(open_tree(root.as_fd(), Path::new(""), false)), absent("fsopen"));
        assert_eq!(move_mount(root.as_fd(), root.as_fd()) == Err(Errno::NOSYS), absent("fsopen"));
        let changed = sys::mount_setattr(root.as_fd(), false, sys::MountAttributes::default());
        let unknown = changed.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS));
        assert_eq!(unknown, absent("mount_setattr"));
        assert_eq!(marks_many_fds(), !absent("close_range_cloexec"));
        let kept = rustix::io::dup(&root).expect("a number is free");
        sys::close_on_exec_from_3().expect("by one way or the other");
        assert_eq!(rustix::io::fcntl_getfd(&kept), Ok(rustix::io::FdFlags::CLOEXEC));
        // A child has one thread, and says by its exit code what the kernel said.
        let sys::Cloned::Parent { pidfd, .. } = sys::fork_among_threads().expect("a child") else {
            let cloned = sys::clone3(0, Some(-1)).expect_err("no such cgroup");
            sys::exit_now(cloned.raw_os_error().unwrap_or_default());
        };
        let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
        let said = ended.and_then(|status| status.exit_status());
        assert_eq!(said == Some(libc::E2BIG), absent("clone_into_cgroup"), "{said:?}");
    }
}
