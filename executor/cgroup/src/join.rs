//! Joining a cgroup that exists already, before there is an event loop.

use bowline_error::{Error, Kind, Result};

use crate::layout::detect;
use crate::path::checked_path;

/// Moves the calling process, which must have one thread, to `path` in every hierarchy where `path` exists.
///
/// # Errors
/// `NotFound` if `path` exists in none; `Internal` when a cgroup cannot be joined.
pub fn join_existing(path: &str) -> Result<()> {
    let path = checked_path(path)?;
    let mut found = false;
    for hierarchy in detect()?.hierarchies() {
        match hierarchy.join(path, "0") {
            Err(error) if error.kind() == Kind::NotFound => {}
            joined => {
                joined?;
                found = true;
            }
        }
    }
    match found {
        true => Ok(()),
        false => Err(Error::new(Kind::NotFound, format!("cannot join cgroup {path}: there is none"))
            .hint("create it first, or leave the option out")),
    }
}
