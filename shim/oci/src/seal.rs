//! Runs this program from where no container can write to it.
//!
//! A process of a container that may trace what joins it reaches `/proc/PID/exe` until that executes the container's own
//! program, and so could write to the installed file (CVE-2019-5736). What joins a container therefore runs from a copy
//! behind a read-only overlay, as shims do, or in sealed memory.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use bowline_executor::internal::open_sealed;
use bowline_executor::{Doing, Kind, Result};
use rustix::fs::{SealFlags, StatVfsMountFlags, fcntl_get_seals, fstatvfs};

/// Executes the program anew from such a copy, unless it runs from there.
///
/// # Errors
/// `Internal` where there can be none.
pub fn seal() -> Result<()> {
    let what = || "cannot run from a copy that no container can write to";
    let running = File::open("/proc/self/exe").doing(Kind::Internal, what)?;
    let is_read_only = fstatvfs(&running).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    if is_read_only || fcntl_get_seals(&running).is_ok_and(|seals| seals.contains(SealFlags::WRITE)) {
        return Ok(());
    }
    let installed = installed();
    let sealed = open_sealed(&installed)?;
    // Both are closed by the execve.
    let mut again = Command::new(format!("/proc/self/fd/{}", sealed.program.as_raw_fd()));
    let error = again.arg0(&installed).args(std::env::args_os().skip(1)).exec();
    Err(error).doing(Kind::Internal, what)
}

/// The path of the installed program, by which it is executed anew.
pub fn installed() -> PathBuf {
    let named = std::env::args_os().next().map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| std::env::current_exe().ok()).unwrap_or_default()
}
