//! What this shim tells `bowline metrics`: of our own protocol the one method
//! that it serves beside containerd's.
//!
//! By hand, as the generated service has every method, and all that those need.
//! Must not: change anything.

use std::collections::HashMap;

use async_trait::async_trait;
use bowline_executor::figures::{Figures, SandboxFigures};
use bowline_executor::{Doing, Kind, Result};
use protobuf::Message as _;
use ttrpc::r#async::{MethodHandler, Service as Methods, TtrpcContext};
use ttrpc::{Code, Request, Response, get_status};

use super::service::Service;
use crate::wire::proto::bowline::FiguresResponse;
use crate::wire::to_status;

/// The service, and the method of it.
const NAME: (&str, &str) = ("bowline.v1.Bowline", "Figures");

/// The service with that method alone.
pub fn served(service: Service) -> HashMap<String, Methods> {
    let handler: Box<dyn MethodHandler + Send + Sync> = Box::new(Telling(service));
    let methods = HashMap::from([(NAME.1.to_owned(), handler)]);
    HashMap::from([(NAME.0.to_owned(), Methods { methods, streams: HashMap::new() })])
}

struct Telling(Service);

impl Telling {
    async fn figures(&self) -> Result<Figures> {
        let Service { executor, sandbox, .. } = &self.0;
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

    async fn answer(&self) -> Result<Vec<u8>> {
        let what = || "cannot write figures as JSON";
        let figures = serde_json::to_string(&self.figures().await?).doing(Kind::Internal, what)?;
        FiguresResponse { figures, ..FiguresResponse::default() }.write_to_bytes().doing(Kind::Internal, what)
    }
}

#[async_trait]
impl MethodHandler for Telling {
    async fn handler(&self, _: TtrpcContext, _: Request) -> ttrpc::Result<Response> {
        let mut response = Response::default();
        match self.answer().await {
            Ok(payload) => {
                response.set_status(get_status(Code::OK, ""));
                response.payload = payload;
            }
            Err(error) => match to_status(&error) {
                ttrpc::Error::RpcStatus(status) => response.set_status(status),
                other => return Err(other),
            },
        }
        Ok(response)
    }
}
