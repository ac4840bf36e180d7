//! Lock files of the host, shared by all state folders. Only root may open them: a user who could open one could lock
//! it and block everybody.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use rustix::process::geteuid;

/// Opens the lock file at `path`, and makes it if it is missing.
///
/// # Errors
/// `Internal`: there is no `/run`, for example. `WrongState` for a file that others may open.
pub fn open(path: &Path) -> Result<File> {
    let what = || format!("cannot open {}", path.display());
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).doing(Kind::Internal, what)?;
    let meta = file.metadata().doing(Kind::Internal, what)?;
    if meta.is_file() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0 {
        return Ok(file);
    }
    Err(Error::new(Kind::WrongState, format!("{}: others may open it, and hold all up", path.display()))
        .hint("remove it while no task runs"))
}
