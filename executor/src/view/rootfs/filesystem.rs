//! Describes a filesystem that is still to be made.

use bowline_error::{Error, Kind};
use rustix::io::Errno;

/// A filesystem that is still to be made.
pub struct Filesystem<'a> {
    /// Its type, as in `/proc/filesystems`.
    pub kind: &'a str,
    /// The source that its mount shows.
    pub source: &'a str,
    /// Options of the filesystem itself rather than of its mount.
    pub data: &'a [(String, Option<String>)],
    /// MOUNT_ATTR_* of its mount.
    pub attributes: u64,
}

/// The error for a filesystem that the kernel did not make, with what the kernel `said` of it. A wrong option is the
/// configuration's fault, or one that this kernel lacks.
pub fn refused(kind: &str, errno: Errno, said: Option<String>) -> Error {
    if errno == Errno::NODEV {
        return no_filesystem(kind, errno);
    }
    if errno == Errno::NOTBLK {
        let error = Error::new(Kind::BadSpec, format!("cannot make a {kind} filesystem of it: {errno}"));
        return error.hint("a file with a filesystem in it needs the option loop");
    }
    let why = said.map_or_else(String::new, |said| format!(" ({said})"));
    let of_options = matches!(errno, Errno::INVAL | Errno::NOENT | Errno::NOTDIR);
    let fault = if of_options { Kind::Unsupported } else { Kind::Internal };
    Error::new(fault, format!("cannot make a {kind} filesystem: {errno}{why}"))
}

/// The error for a type that this kernel lacks.
pub fn no_filesystem(kind: &str, errno: Errno) -> Error {
    Error::new(Kind::Unsupported, format!("this kernel cannot open a filesystem of type {kind}: {errno}"))
}
