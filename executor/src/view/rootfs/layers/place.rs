//! Where a layer goes, and the working directory that options of an overlay are relative to.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Kind, Result};
use rustix::fs::OFlags;

use super::layer::Layer;
use crate::view::inside_root::{self, Symlinks};
use crate::view::rootfs::open_path;

/// Opens the place where a layer goes, with whatever is mounted there by now.
pub(super) fn target(root: &Path, layer: &Layer) -> Result<OwnedFd> {
    let base = open_path(root).doing(Kind::Internal, || format!("cannot open {}", root.display()))?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = inside_root::open(base.as_fd(), Path::new(&layer.target), flags, Symlinks::Followed);
    opened.doing(Kind::BadSpec, || format!("cannot find {:?} in the root filesystem", layer.target))
}

/// Does what may change the working directory, and gets back.
pub(super) fn staying<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let here = open_path(Path::new(".")).doing(Kind::Internal, || "cannot open the working directory")?;
    let done = act();
    rustix::process::fchdir(here).doing(Kind::Internal, || "cannot get back to the working directory")?;
    done
}
