//! A loop device for a layer that is a file with a filesystem in it, as containerd's blockfile snapshotter has them.
//!
//! The device lets go of the file by itself once the layer is unmounted, by whatever way that happens.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{self, Mode, OFlags};

/// How often to look for a free device: others may take each one that is found.
const TRIES: usize = 64;

/// A loop device that has its file for as long as this is open or it is mounted.
pub struct Attached {
    /// The path of the device.
    pub path: String,
    _device: OwnedFd,
}

/// Attaches the file `path` to a free loop device.
///
/// # Errors
/// `BadSpec` when the file cannot be opened; `Unsupported` where there are no loop devices.
pub fn attach(path: &Path, read_only: bool, direct: bool) -> Result<Attached> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let open = |path: &Path, access| fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
    let file = open(path, access).doing(Kind::BadSpec, || format!("cannot open {}", path.display()))?;
    let what = || "cannot get a loop device (option loop)";
    let control = open(Path::new("/dev/loop-control"), OFlags::RDWR).doing(Kind::Unsupported, what)?;
    let mut flags = sys::LOOP_AUTOCLEAR;
    flags |= if read_only { sys::LOOP_READ_ONLY } else { 0 };
    flags |= if direct { sys::LOOP_DIRECT_IO } else { 0 };
    for _ in 0..TRIES {
        let number = sys::free_loop(control.as_fd()).doing(Kind::Unsupported, what)?;
        let device_path = format!("/dev/loop{number}");
        let device = match open(Path::new(&device_path), access) {
            Err(rustix::io::Errno::NXIO) => continue,
            device => device.doing(Kind::Unsupported, || format!("{}: cannot open {device_path}", what()))?,
        };
        match sys::configure_loop(device.as_fd(), file.as_fd(), path.as_os_str().as_bytes(), flags) {
            Ok(()) => return Ok(Attached { path: device_path, _device: device }),
            Err(error) if is_taken(&error) => {}
            Err(error) => {
                return Err(error)
                    .doing(Kind::BadSpec, || format!("cannot attach {} to a loop device", path.display()));
            }
        }
    }
    Err(Error::new(Kind::Internal, format!("{}: each free one was taken by somebody else", what())))
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENXIO))
}
