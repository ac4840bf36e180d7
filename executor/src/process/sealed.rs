//! Running the shim from where nothing can change its binary.
//!
//! A task that can reach `/proc/<pid>/exe` of a process of ours could write to the host's binary
//! through it (CVE-2019-5736), and a program that overwrites the installed file would crash every
//! shim that runs from it. So the shim runs from a copy that only bowline owns, through a detached
//! read-only overlay of its folder: every write meets a read-only filesystem, and all shims share
//! the page cache of one file. Where a copy or an overlay is impossible, the shim runs from a
//! sealed copy in memory, which shares nothing.

mod copies;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

/// How often to try again to seal a copy whose pages are in use elsewhere.
const SEALINGS: u32 = 20;
/// How often to look for a copy again that somebody has removed meanwhile: its program was not installed any more, and
/// is again.
const COPIES: u32 = 3;

/// A binary that nothing can change.
#[derive(Debug)]
pub struct Sealed {
    /// Can be executed through `/proc/self/fd/<n>`.
    pub program: OwnedFd,
    /// Who closes this before the program runs waits until each processor has passed through the kernel
    /// (`synchronize_rcu_expedited`): 50 µs on an idle host, milliseconds on a busy one.
    pub mount: Option<OwnedFd>,
}

/// Opens `binary` for execution.
///
/// # Errors
/// `Internal` when it cannot be read, or is being written to.
pub fn open(binary: &Path) -> Result<Sealed> {
    kept_copy(binary).or_else(|error| {
        tracing::debug!(%error, "no copy on disk for the shim's binary; copying it into memory");
        let program = memory_copy(binary, FOR_US);
        let program = program.doing(Kind::Internal, || format!("cannot copy {} into memory", binary.display()))?;
        Ok(Sealed { program, mount: None })
    })
}

/// Like [`open`], for a program of few pages that a task's user executes: a copy in memory where those are allowed.
///
/// # Errors
/// What the system answered: `PermissionDenied` where `vm.memfd_noexec` is 2 and there can be no copy on disk.
pub fn open_small(binary: &Path) -> io::Result<OwnedFd> {
    memory_copy(binary, FOR_ALL).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => kept_copy(binary)
            .map(|kept| kept.program)
            .map_err(|kept| io::Error::new(error.kind(), format!("{error}, and no copy on disk: {kept}"))),
        _ => Err(error),
    })
}

fn kept_copy(binary: &Path) -> io::Result<Sealed> {
    let mut tries = 1..COPIES;
    loop {
        // Find out before making a copy for it.
        let context = sys::fsopen("overlay")?;
        match through(context, &copies::of(binary)?, copies::PROGRAM) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
            opened => return opened,
        }
    }
}

/// Opens `name` through a detached read-only overlay of `folder`.
///
/// # Errors
/// What the kernel answered.
pub fn overlay(folder: &Path, name: &str) -> io::Result<Sealed> {
    through(sys::fsopen("overlay")?, folder, name)
}

fn through(context: OwnedFd, folder: &Path, name: &str) -> io::Result<Sealed> {
    // Two lower folders and no upper one: overlayfs then has nowhere to write. The second is a
    // folder that every host has and that holds no binary of ours; nobody sees its content. Some
    // kernels refuse a folder that is mounted nowhere (6.12: "failed to clone lowerpath").
    let lower = format!("{}:/dev", escape(folder));
    sys::fsconfig(&context, "lowerdir", Some(&lower))?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;
    let mount = sys::fsmount(&context, attributes)?;
    let program = rustix::fs::openat(&mount, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Sealed { program, mount: Some(mount) })
}

/// Colons separate overlay's folders, backslashes escape them.
fn escape(folder: &Path) -> String {
    folder.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:")
}

/// The mode of a copy in memory that bowline alone executes, and of one that every user may execute. Nobody else may
/// read it: the kernel then hides the process from its first instruction on.
const FOR_US: Mode = Mode::from_raw_mode(0o500);
const FOR_ALL: Mode = Mode::from_raw_mode(0o511);

/// A file in memory that may become executable.
fn executable_memory() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Before Linux 6.3 there is no such flag, and every file may.
    match rustix::fs::memfd_create("bowline", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("bowline", flags),
        made => made,
    }
}

fn memory_copy(binary: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let copy = File::from(executable_memory()?);
    copies::copy_whole(binary, &copy)?;
    rustix::fs::fchmod(&copy, mode)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    // While a page is in use elsewhere, as by the compaction of memory, the kernel waits for some milliseconds, and then
    // refuses.
    let mut tries = 0..SEALINGS;
    while let Err(errno) = rustix::fs::fcntl_add_seals(&copy, seals) {
        if errno != Errno::BUSY || tries.next().is_none() {
            return Err(errno.into());
        }
    }
    // This fd was written through: open the file again, without the right to write.
    Ok(rustix::fs::open(
        format!("/proc/self/fd/{}", copy.as_raw_fd()),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
