//! What is said to containerd on stdout.

use std::io::Write as _;

use bowline_model::{Doing as _, Kind, Result};

/// Writes the whole output to stdout.
pub fn say(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.doing(Kind::Internal, || "cannot write to stdout")
}
