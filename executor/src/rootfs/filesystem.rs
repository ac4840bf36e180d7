//! Describes a filesystem that is still to be made.

use bowline_error::{Error, Kind};
use rustix::io::Errno;

/// A filesystem that is still to be made.
pub struct Filesystem<'a> {
    /// Its type, as in `/proc/filesystems`.
    pub kind: &'a str,
    /// The source that its mount shows.
    pub source: &'a str,
    /// Its own options.
    pub data: &'a [(String, Option<String>)],
    /// MOUNT_ATTR_* of its mount.
    pub attributes: u64,
}

/// The error for a type that this kernel lacks.
pub fn no_filesystem(kind: &str, errno: Errno) -> Error {
    Error::new(Kind::Unsupported, format!("this kernel cannot open a filesystem of type {kind}: {errno}"))
}
