//! The methods of `bowline.v1` that containerd's shim serves: `Figures` for `bowline metrics`, `Facts` for
//! `bowline inspect --facts`, and `Upgrade` for `bowline upgrade`.
//!
//! Must not: change a task.

use std::rc::Rc;

use bowline_executor::internal::facts::Facts;
use bowline_model::Result;
use bowline_model::stats::figures::{Figures, SandboxFigures};
use bowline_model::status::Status;
use serde::Serialize;

use super::error_codes::Answer;
use super::service::Service;
use super::{containers, publisher, sandbox};
use bowline_protocol::calls::{Call, Outline, call, unknown_method};
use bowline_protocol::upgrading::upgrade;
use bowline_protocol::wire::proto::bowline::{Empty, FactsResponse, FiguresResponse};
use bowline_protocol::wire::{json, to_status};

/// Begins a call of our own protocol.
///
/// # Errors
/// As [`call`].
pub fn ours(service: &Rc<Service>, method: &str, payload: &[u8]) -> Answer<Call> {
    match method {
        "Figures" => call(service, payload, answer_figures),
        "Facts" => call(service, payload, answer_facts),
        "Upgrade" => upgrade(&service.executor, payload),
        _ => Err(unknown_method(method)),
    }
}

async fn answer_figures(service: &Service, _: Empty) -> Answer<FiguresResponse> {
    let figures = figures(service).await.map_err(|error| to_status(&error))?;
    Ok(FiguresResponse { figures: json(&figures)?, ..FiguresResponse::default() })
}

/// The facts of the executor, and of the services for containerd.
#[derive(Serialize)]
struct AllFacts {
    #[serde(flatten)]
    facts: Box<Facts>,
    connections: Vec<Outline>,
    containerd: OfContainerd,
}

#[derive(Serialize)]
struct OfContainerd {
    namespace: String,
    containers: containers::Outline,
    sandbox: Option<sandbox::Outline>,
    events: publisher::Outline,
}

async fn answer_facts(service: &Service, _: Empty) -> Answer<FactsResponse> {
    let containerd = OfContainerd {
        namespace: service.namespace.clone(),
        containers: service.containers.outline(),
        sandbox: service.sandbox.outline(),
        events: service.publisher.outline(),
    };
    let facts = service.executor.facts().await.map_err(|error| to_status(&error))?;
    let facts = AllFacts { facts, connections: service.connections.outlines(), containerd };
    Ok(FactsResponse { facts: json(&facts)?, ..FactsResponse::default() })
}

/// All figures of this shim.
///
/// # Errors
/// `NotFound` when the shim is leaving.
async fn figures(service: &Service) -> Result<Figures> {
    let Service { executor, sandbox, .. } = service;
    let mut figures = executor.figures().await?;
    if let Some((id, cgroup)) = sandbox.place() {
        let usage = match cgroup {
            // The cgroup belongs to the manager, and may be gone.
            Some(cgroup) => executor.cgroup_stats(&cgroup).ok(),
            None => None,
        };
        let members = figures.tasks.iter().filter(|task| task.status != Status::Exited.as_str()).count() as u64;
        figures.sandbox = Some(SandboxFigures { id, members, usage });
    }
    Ok(figures)
}
