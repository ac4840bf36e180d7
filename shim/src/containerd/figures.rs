//! What this shim tells `bowline metrics`: of our own protocol the one method
//! that it serves beside containerd's.
//!
//! Must not: change anything.

use std::rc::Rc;

use bowline_executor::figures::{Figures, SandboxFigures};
use bowline_executor::{Doing, Kind, Result};

use super::service::Service;
use super::status::Answer;
use crate::calls::{Call, call, unknown_method};
use crate::wire::proto::bowline::{Empty, FiguresResponse};
use crate::wire::to_status;

/// Begins a call of our own protocol.
///
/// # Errors
/// As for any: see [`call`].
pub fn ours(service: &Rc<Service>, method: &str, payload: &[u8]) -> Answer<Call> {
    match method {
        "Figures" => call(service, payload, answer),
        _ => Err(unknown_method(method)),
    }
}

async fn answer(service: &Service, _: Empty) -> Answer<FiguresResponse> {
    let figures = figures(service)
        .await
        .and_then(|figures| serde_json::to_string(&figures).doing(Kind::Internal, || "cannot write figures as JSON"));
    let figures = figures.map_err(|error| to_status(&error))?;
    Ok(FiguresResponse { figures, ..FiguresResponse::default() })
}

async fn figures(service: &Service) -> Result<Figures> {
    let Service { executor, sandbox, .. } = service;
    let mut figures = executor.figures().await?;
    if let Some((id, cgroup)) = sandbox.place() {
        let usage = match cgroup {
            // It is its manager's, and may have gone.
            Some(cgroup) => executor.cgroup_stats(&cgroup).await.ok(),
            None => None,
        };
        let members = figures.tasks.iter().filter(|task| task.status != "exited").count() as u64;
        figures.sandbox = Some(SandboxFigures { id, members, usage });
    }
    Ok(figures)
}
