//! A new filesystem of a layer, and whose its files are.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use rustix::mount::{self as kernel, MountPropagationFlags};

use super::layer::Layer;
use super::overlay;
use crate::view::rootfs::filesystem::Filesystem;
use crate::view::rootfs::options::Options;
use crate::view::rootfs::stage;

/// Mounts a new filesystem onto what `target` refers to.
pub(super) fn make(layer: &Layer, options: &Options, data: &overlay::Data, target: BorrowedFd<'_>) -> Result<()> {
    let Layer { kind, source, .. } = layer;
    let filesystem = Filesystem { kind, source, data, attributes: options.all_set() };
    stage::mount_new(&filesystem, target)?;
    let Some((propagation, _)) = options.propagation else { return Ok(()) };
    let flags = MountPropagationFlags::from_bits_retain(propagation as u32);
    kernel::mount_change(stage::at(target), flags).doing(Kind::Internal, || "cannot set its propagation")
}

/// Makes the detached `tree` of `path` show owners as the user namespace `owners` maps them.
pub(super) fn map(tree: &OwnedFd, recursive: bool, owners: BorrowedFd<'_>, path: &Path) -> Result<()> {
    sys::mount_idmap(tree.as_fd(), recursive, owners)
        .doing(Kind::Unsupported, || format!("cannot map the owners of {}", path.display()))
}
