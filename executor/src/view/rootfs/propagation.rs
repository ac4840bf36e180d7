//! The propagation of the root: what the spec says, or what is mounted on the host reaches it, and nothing goes back.
//!
//! `rshared` is for all mounts of the task, but for those that have a propagation of their own.
//!
//! Must not: mount anything.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use bowline_error::{Doing, Kind, Result};
use bowline_sys::MountAttributes;
use oci_spec::runtime::{Mount, Spec};

use super::inside::{self, Make};
use super::options::{self, Options};
use super::trees::Trees;

/// The propagation of the root, and of the mounts that keep their own.
pub struct RootPropagation {
    flags: u64,
    /// Whether all mounts are shared.
    shares_all: bool,
    /// Mounts with a propagation of their own, in their order.
    own: Vec<(OwnedFd, u64, bool)>,
}

impl RootPropagation {
    pub fn of(spec: &Spec) -> Result<RootPropagation> {
        let (flags, recursive) = options::root_propagation(spec)?.unwrap_or((libc::MS_SLAVE, false));
        Ok(RootPropagation { flags, shares_all: recursive && flags == libc::MS_SHARED, own: Vec::new() })
    }

    /// Spares what `mount` has just mounted below `root`, if it has a propagation of its own.
    pub fn spare(&mut self, root: BorrowedFd<'_>, mount: &Mount, options: &Options) -> Result<()> {
        if let (true, Some((flags, below))) = (self.shares_all, options.propagation) {
            self.own.push((inside::open(root, mount.destination(), Make::Nothing)?, flags, below));
        }
        Ok(())
    }

    /// Sets it for all mounts below `root`, before that becomes the root, which a shared mount cannot.
    pub fn apply_below(&self, trees: &Trees, root: BorrowedFd<'_>) -> Result<()> {
        if !self.shares_all {
            return Ok(());
        }
        change(trees, root, true, self.flags)?;
        change(trees, root, false, libc::MS_PRIVATE)?;
        self.own.iter().try_for_each(|(mount, flags, below)| change(trees, mount.as_fd(), *below, *flags))
    }

    /// Sets it for the root.
    pub fn apply(&self, trees: &Trees, root: BorrowedFd<'_>) -> Result<()> {
        // A shared root is one of a group of its own: it leaves the host's first.
        let first = (self.flags == libc::MS_SHARED).then_some(libc::MS_PRIVATE);
        first.into_iter().chain([self.flags]).try_for_each(|flags| change(trees, root, false, flags))
    }
}

fn change(trees: &Trees, mount: BorrowedFd<'_>, recursive: bool, propagation: u64) -> Result<()> {
    let change = MountAttributes { propagation, ..MountAttributes::default() };
    trees.change(mount, recursive, change).doing(Kind::Internal, || "cannot set the propagation of the root")
}
