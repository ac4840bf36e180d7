//! Runs this program from where no container can write to it.
//!
//! An init or an exec runs this program until it executes the container's own. Until then a process of the container that
//! may trace it could write to the installed file through `/proc/PID/exe` (CVE-2019-5736). So `create`, `run` and `exec` run
//! from a copy behind a read-only overlay, as shims do, or in sealed memory.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use bowline_executor::internal::open_sealed;
use bowline_model::{Doing, Kind, Result};
use rustix::fs::{SealFlags, StatVfsMountFlags, fcntl_get_seals, fstatvfs};

/// Executes the program anew from such a copy, unless it runs from there.
///
/// # Errors
/// `Internal` where there can be none.
pub fn seal() -> Result<()> {
    let what = || "cannot run from a copy that no container can write to";
    if is_sealed().doing(Kind::Internal, what)? {
        return Ok(());
    }
    let installed = installed();
    let sealed = open_sealed(&installed)?;
    // Both are closed by the execve.
    let mut again = Command::new(format!("/proc/self/fd/{}", sealed.program.as_raw_fd()));
    let error = again.arg0(&installed).args(std::env::args_os().skip(1)).exec();
    Err(error).doing(Kind::Internal, what)
}

/// Whether nothing can write to the program that runs.
fn is_sealed() -> std::io::Result<bool> {
    let running = File::open("/proc/self/exe")?;
    let is_read_only = fstatvfs(&running)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(is_read_only || fcntl_get_seals(&running).is_ok_and(|seals| seals.contains(SealFlags::WRITE)))
}

/// The path of the installed program; the copy was given it as its name.
pub fn installed() -> PathBuf {
    let named = || std::env::args_os().next().map(PathBuf::from).filter(|path| path.is_absolute());
    let copied = is_sealed().is_ok_and(|sealed| sealed).then(named).flatten();
    copied.or_else(|| std::env::current_exe().ok()).unwrap_or_default()
}
