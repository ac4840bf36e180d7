//! How many files the bench itself may open.

use bowline_model::{Doing, Kind, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as it goes: a thousand shims are a thousand connections, and as many handles of processes.
pub fn raise() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .doing(Kind::Internal, || "cannot open as many files as the hard limit allows")
}
