//! Mounts before they are in place: created or copied, changed, attached.
//!
//! Trees are detached where the kernel has the mount API of Linux 5.2 and mount_setattr (5.12); else mount(2) makes
//! them on a stage, and they are moved from there. Either way a tree is an fd that nothing in the root can
//! redirect.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bowline_error::Result;
use bowline_sys::{self as sys, MountAttributes};
use rustix::fs::CWD;
use rustix::mount::UnmountFlags;

use super::filesystem::{Filesystem, no_filesystem, refused};
use super::handle::open_path;
use super::stage::{self, Stage};

/// Where trees are before they are attached.
#[derive(Debug)]
pub enum Trees {
    /// Nowhere: they are detached.
    Detached,
    /// On a stage, by mount(2).
    Staged(Stage),
}

impl Trees {
    /// Copies the mount at `path`, which is the host's.
    pub fn copy(&self, path: &Path, recursive: bool) -> rustix::io::Result<OwnedFd> {
        match self {
            Trees::Detached => sys::open_tree(CWD, path, recursive),
            Trees::Staged(stage) => stage.copy(open_path(path)?.as_fd(), recursive),
        }
    }

    /// Copies the mount that `fd` refers to, from that place down.
    pub fn copy_of(&self, fd: BorrowedFd<'_>, recursive: bool) -> rustix::io::Result<OwnedFd> {
        match self {
            Trees::Detached => sys::open_tree(fd, Path::new(""), recursive),
            Trees::Staged(stage) => stage.copy(fd, recursive),
        }
    }

    /// Creates a new filesystem.
    ///
    /// # Errors
    /// `Unsupported` for a type that this kernel does not have.
    pub fn make(&self, filesystem: &Filesystem<'_>) -> Result<OwnedFd> {
        match self {
            Trees::Detached => make_detached(filesystem),
            Trees::Staged(stage) => stage.make(filesystem),
        }
    }

    /// Changes the mount that `tree` is the root of; with `recursive`, all
    /// mounts below it too.
    pub fn change(&self, tree: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> io::Result<()> {
        match self {
            Trees::Detached => sys::mount_setattr(tree, recursive, attributes),
            Trees::Staged(_) => stage::change(tree, recursive, attributes),
        }
    }

    /// Copies files in `tree`, which covers `over` for that moment: before Linux 6.15, only attached mounts can be
    /// copied from.
    pub fn copies_in(
        &self,
        tree: &OwnedFd,
        over: &OwnedFd,
        names: impl Iterator<Item = String>,
    ) -> rustix::io::Result<Vec<OwnedFd>> {
        match self {
            Trees::Detached => {
                sys::move_mount(tree.as_fd(), over.as_fd())?;
                let copies = names.map(|name| sys::open_tree(tree.as_fd(), Path::new(&name), false)).collect();
                rustix::mount::unmount(stage::at(tree.as_fd()), UnmountFlags::DETACH)?;
                copies
            }
            Trees::Staged(stage) => {
                names.map(|name| stage.copy(stage::open_spot(tree.as_fd(), &name)?.as_fd(), false)).collect()
            }
        }
    }

    /// Attaches `tree` onto what `target` refers to.
    pub fn attach(&self, tree: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
        match self {
            Trees::Detached => sys::move_mount(tree.as_fd(), target.as_fd()),
            Trees::Staged(_) => stage::attach(tree.as_fd(), target.as_fd()),
        }
    }
}

fn make_detached(filesystem: &Filesystem<'_>) -> Result<OwnedFd> {
    let Filesystem { kind, source, data, attributes } = *filesystem;
    let context = sys::fsopen(kind).map_err(|errno| no_filesystem(kind, errno))?;
    let mut outcome = sys::fsconfig(&context, "source", Some(source));
    for (key, value) in data {
        outcome = outcome.and_then(|()| sys::fsconfig(&context, key, value.as_deref()));
    }
    let made = outcome.and_then(|()| sys::fsmount(&context, attributes));
    made.map_err(|errno| refused(kind, errno, kernel_message(&context)))
}

/// The kernel's message about a filesystem that it refused to make.
fn kernel_message(context: &OwnedFd) -> Option<String> {
    let mut buffer = [0u8; 256];
    let length = rustix::io::read(context, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..length]);
    Some(text.trim_start_matches("e ").trim().to_owned())
}
