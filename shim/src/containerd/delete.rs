//! Undoing what a serving process has left that died before its tasks.

use bowline_executor::{Error, Kind, Result};

use super::invocation::Invocation;

/// Removes all that is left of the container and prints a `DeleteResponse`.
///
/// # Errors
/// `Internal`: this is not there yet.
pub fn run(_: &Invocation) -> Result<()> {
    Err(Error::new(Kind::Internal, "delete is not there yet"))
}
