//! What this shim tells `bowline metrics`.
//!
//! Must not: change anything.

use bowline_executor::Result;
use bowline_executor::figures::{Figures, SandboxFigures};

use super::service::Service;

/// All figures of this shim.
///
/// # Errors
/// `NotFound` when it is leaving.
pub fn figures(service: &Service) -> Result<Figures> {
    let Service { executor, sandbox, .. } = service;
    let mut figures = executor.figures()?;
    if let Some((id, cgroup)) = sandbox.place() {
        let usage = match cgroup {
            // It is its manager's, and may have gone.
            Some(cgroup) => executor.cgroup_stats(&cgroup).ok(),
            None => None,
        };
        let members = figures.tasks.iter().filter(|task| task.status != "exited").count() as u64;
        figures.sandbox = Some(SandboxFigures { id, members, usage });
    }
    Ok(figures)
}
