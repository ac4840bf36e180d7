//! Files with a pid, for whoever started the command that writes one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::{Doing as _, Kind, Result};

/// Writes a pid file, whole: it is renamed into its place.
///
/// # Errors
/// `Usage` where it cannot be written.
pub fn write(path: &Path, pid: i32) -> Result<()> {
    let what = || format!("--pid-file: cannot write {}", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    // Left by a process that was killed and had our pid, or put there by another user.
    let _ = fs::remove_file(&aside);
    let made = File::options().write(true).create_new(true).open(&aside);
    let written = made.and_then(|mut file| file.write_all(pid.to_string().as_bytes()));
    let put = written.and_then(|()| fs::rename(&aside, path));
    put.inspect_err(|_| drop(fs::remove_file(&aside))).doing(Kind::Usage, what)
}
