//! Files with secrets, in a tmpfs of the task: written when all mounts are there, before that tmpfs becomes read-only.

use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::path::Path;

use bowline_error::{Doing, Kind, Result};
use oci_spec::runtime::Spec;
use rustix::fs::{self, Gid, Mode, OFlags, Uid};

use super::inside::{self, Make};

/// The folder of the files inside, as Docker has it.
pub const SECRETS: &str = "/run/secrets";

/// A file in [`SECRETS`], which only the user of the task's process may read.
#[derive(Clone)]
pub struct Secret {
    /// The name that the file has in [`SECRETS`].
    pub name: String,
    /// The bytes that the file contains.
    pub content: Vec<u8>,
}

/// Writes the files below [`SECRETS`], for the user of the task's process alone.
///
/// # Errors
/// What the kernel answered.
pub fn write(files: &[Secret], root: BorrowedFd<'_>, spec: &Spec) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let user = spec.process().as_ref().map_or((0, 0), |process| (process.user().uid(), process.user().gid()));
    let folder = inside::open(root, Path::new(SECRETS), Make::Nothing)?;
    for Secret { name, content } in files {
        let what = || format!("cannot write the secret {name}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&folder, name, flags, Mode::from_raw_mode(0o400)).doing(Kind::Internal, what)?;
        fs::fchown(&file, Some(Uid::from_raw(user.0)), Some(Gid::from_raw(user.1))).doing(Kind::Internal, what)?;
        std::fs::File::from(file).write_all(content).doing(Kind::Internal, what)?;
    }
    Ok(())
}
