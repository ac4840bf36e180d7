//! Ctrl-C and its like, which end no process of ours before it has cleaned up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bowline_model::{Doing, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// From here on they do not end this process: whether one has come.
pub fn outlive() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone())
            .doing(Kind::Internal, || "cannot watch for signals")?;
    }
    Ok(interrupted)
}
