//! The flags of a bind's top mount.
//!
//! A bind of a bundle has exactly the flags that its options name, as soon as they name one (runc since 1.2, and
//! `mount --bind -o …` of mount(8)). A bind of bowline's own keeps those of its source that nobody names. Access times
//! are as in the source unless they are named.
//!
//! Must not: change the mounts below.

use std::io;
use std::os::fd::BorrowedFd;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::MountAttributes;

use super::options::{ATIME_FIELD, Options, name_of};
use super::stage;
use super::trees::Trees;

/// Flags that a mount cannot lose in a user namespace that others than its owner have mounted it for
/// (mount_namespaces(7)). Access times are locked too.
const LOCKABLE: u64 =
    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;

const ACCESS_TIMES: u64 = ATIME_FIELD | libc::MOUNT_ATTR_NODIRATIME;

/// How the flags of binds are set.
#[derive(Debug, Clone, Copy)]
pub struct Binds {
    /// Whether flags that no option names are cleared.
    pub exact: bool,
    /// Whether the task's users are not the host's. Then flags are locked, also where this process could change them:
    /// what the host says of a file holds for users who are not the host's.
    pub in_user_namespace: bool,
}

/// Sets the flags of `tree` by `options`, and its `propagation`, unless that is 0.
///
/// # Errors
/// `BadSpec` where an option names a flag that is locked.
pub fn set(trees: &Trees, tree: BorrowedFd<'_>, propagation: u64, options: &Options, binds: Binds) -> Result<()> {
    let what = || "cannot set its attributes";
    let named = MountAttributes { set: options.set, clear: options.clear, propagation };
    if !binds.exact || !options.names_flags {
        return if named.is_none() { Ok(()) } else { trees.change(tree, false, named).doing(Kind::Internal, what) };
    }
    let before = stage::attributes(tree).doing(Kind::Internal, what)?;
    match trees.change(tree, false, MountAttributes { propagation, ..exactly(options) }) {
        Ok(()) if binds.in_user_namespace => keep_locked(trees, tree, options, before),
        Ok(()) => Ok(()),
        // The kernel has locked some, as in a user namespace that this process is in itself.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let change = MountAttributes { clear: named.clear | libc::MOUNT_ATTR_NOSYMFOLLOW & !named.set, ..named };
            trees.change(tree, false, change).doing(Kind::BadSpec, what)
        }
        Err(error) => Err(error).doing(Kind::Internal, what),
    }
}

/// Sets the flags of `tree` and of the mounts below that `options` name for all of them. In a user namespace, those below
/// lose none and keep their mode of access times: any of them may be locked.
///
/// # Errors
/// `BadSpec` where an option names a flag of the top mount that is locked.
pub fn set_below(trees: &Trees, tree: BorrowedFd<'_>, options: &Options, binds: Binds) -> Result<()> {
    let what = || "cannot set its recursive attributes";
    let all = MountAttributes { set: options.set_recursive, clear: options.clear_recursive, propagation: 0 };
    if all.is_none() {
        return Ok(());
    }
    if !binds.in_user_namespace {
        return trees.change(tree, true, all).doing(Kind::Unsupported, what);
    }
    let before = stage::attributes(tree).doing(Kind::Internal, what)?;
    let added = MountAttributes { set: all.set & !ACCESS_TIMES, ..MountAttributes::default() };
    if !added.is_none() {
        trees.change(tree, true, added).doing(Kind::Unsupported, what)?;
    }
    trees.change(tree, false, all).doing(Kind::Unsupported, what)?;
    let of_top = Options { set: all.set, clear: all.clear, ..Options::default() };
    keep_locked(trees, tree, &of_top, before)
}

/// Checks that no mount below the folder `source`, in this process's mount namespace, has a flag that `options` clear for
/// all mounts: in a user namespace all of theirs are locked.
///
/// # Errors
/// `BadSpec` naming the flag.
pub fn check_below(source: BorrowedFd<'_>, options: &Options, binds: Binds) -> Result<()> {
    let (set, clear) = (options.set_recursive, options.clear_recursive);
    if !binds.in_user_namespace || set | clear == 0 {
        return Ok(());
    }
    let below = stage::attributes_below(source).doing(Kind::Internal, || "cannot examine the mounts below it")?;
    let lost = below.into_iter().find_map(|before| locked(before, before & !clear | set, set, clear));
    lost.map_or(Ok(()), |flag| Err(is_locked(flag, "a mount below its source")))
}

/// The name of a locked flag that a mount had `before` and lacks `after`, although `set` and `clear` name it.
fn locked(before: u64, after: u64, set: u64, clear: u64) -> Option<&'static str> {
    let lost = before & !after;
    let changed_times = (before ^ after) & ATIME_FIELD != 0 || (before ^ after) & libc::MOUNT_ATTR_NODIRATIME != 0;
    let times_named = set & ACCESS_TIMES != 0 || clear & ATIME_FIELD != 0;
    match lost & clear & LOCKABLE {
        0 => (times_named && changed_times).then_some("the mode of access times"),
        refused => Some(name_of(refused)),
    }
}

fn is_locked(flag: &str, of: &str) -> Error {
    let message = format!("{flag} of {of} is locked in a user namespace: operation not permitted");
    Error::new(Kind::BadSpec, message).hint("leave the option out that names another")
}

/// All flags that no option names are cleared, but for access times, which are named whole or not at all.
fn exactly(options: &Options) -> MountAttributes {
    let all = LOCKABLE | libc::MOUNT_ATTR_NOSYMFOLLOW;
    let names_times = options.clear & ATIME_FIELD != 0 || options.set & libc::MOUNT_ATTR_NODIRATIME != 0;
    let clear = options.clear | all & !options.set | if names_times { ACCESS_TIMES } else { 0 };
    MountAttributes { set: options.set, clear: clear & !(options.set & !ATIME_FIELD), propagation: 0 }
}

/// Gives `tree` the flags back that it had `before` and that are locked.
fn keep_locked(trees: &Trees, tree: BorrowedFd<'_>, options: &Options, before: u64) -> Result<()> {
    let after = stage::attributes(tree).doing(Kind::Internal, || "cannot examine its attributes")?;
    let cleared = |flags: u64| before & !after & flags;
    if let Some(flag) = locked(before, after, options.set, options.clear) {
        return Err(is_locked(flag, "its source"));
    }
    let set = cleared(LOCKABLE | libc::MOUNT_ATTR_NODIRATIME);
    if set == 0 {
        return Ok(());
    }
    let change = MountAttributes { set, ..MountAttributes::default() };
    trees.change(tree, false, change).doing(Kind::Internal, || "cannot keep its locked attributes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RO: u64 = libc::MOUNT_ATTR_RDONLY;
    const NODIRATIME: u64 = libc::MOUNT_ATTR_NODIRATIME;

    #[test]
    fn a_flag_that_is_named_is_not_lost() {
        let of = |before: u64, set: u64, clear: u64| locked(before, before & !clear | set, set, clear);
        assert_eq!(of(RO | libc::MOUNT_ATTR_NOEXEC, 0, RO), Some("ro"));
        assert_eq!((of(0, 0, RO), of(RO, RO, 0)), (None, None));
        let times = Some("the mode of access times");
        assert_eq!(of(0, libc::MOUNT_ATTR_NOATIME, ATIME_FIELD), times);
        assert_eq!((of(0, NODIRATIME, 0), of(NODIRATIME, 0, NODIRATIME | ATIME_FIELD)), (times, times));
    }

    #[test]
    fn what_is_not_named_is_cleared() {
        let of = |set: u64, clear: u64| {
            let change = exactly(&Options { set, clear, names_flags: true, ..Options::default() });
            (change.set, change.clear)
        };
        let all = LOCKABLE | libc::MOUNT_ATTR_NOSYMFOLLOW;
        assert_eq!(of(RO, 0), (RO, all & !RO));
        assert_eq!(of(0, RO), (0, all));
        assert_eq!(of(libc::MOUNT_ATTR_NOATIME, ATIME_FIELD), (libc::MOUNT_ATTR_NOATIME, all | ACCESS_TIMES));
        assert_eq!(of(NODIRATIME, 0), (NODIRATIME, all | ATIME_FIELD));
    }
}
