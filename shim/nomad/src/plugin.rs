//! What go-plugin asks of every plugin: whether it serves, its output, connections beside this one, and its end.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::proto::grpc::health::v1::health_check_response::ServingStatus;
use crate::proto::grpc::health::v1::health_server::Health;
use crate::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use crate::proto::plugin::grpc_broker_server::GrpcBroker;
use crate::proto::plugin::grpc_controller_server::GrpcController;
use crate::proto::plugin::grpc_stdio_server::GrpcStdio;
use crate::proto::plugin::{ConnInfo, Empty, StdioData};
use crate::stream::stream_of;

/// The service that go-plugin asks the health of.
const SERVICE: &str = "plugin";

/// The host's request to end, to ask for and to wait for.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown(watch::Sender::new(false))
    }

    /// Ends the plugin.
    fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Returns once the plugin is to end.
    pub async fn begun(&self) {
        // The sender is ours: it does not go while we wait.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// All of go-plugin's own services.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub shutdown: Shutdown,
}

#[tonic::async_trait]
impl Health for Plugin {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            SERVICE | "" => Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() })),
            other => Err(Status::not_found(format!("there is no service {other:?}"))),
        }
    }
}

#[tonic::async_trait]
impl GrpcController for Plugin {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.shutdown.begin();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for Plugin {
    type StreamStdioStream = Pin<Box<dyn Stream<Item = Result<StdioData, Status>> + Send>>;

    /// Stays open and empty: nothing is printed after the handshake, and no task has our output.
    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        let shutdown = self.shutdown.clone();
        Ok(Response::new(stream_of(async move |_| shutdown.begun().await)))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Plugin {
    type StartStreamStream = Pin<Box<dyn Stream<Item = Result<ConnInfo, Status>> + Send>>;

    /// Stays open until the host leaves: a task driver needs no other connection.
    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Self::StartStreamStream>, Status> {
        let (shutdown, mut host) = (self.shutdown.clone(), request.into_inner());
        Ok(Response::new(stream_of(async move |_| {
            tokio::select! {
                () = shutdown.begun() => {}
                () = async { while let Ok(Some(_)) = host.message().await {} } => {}
            }
        })))
    }
}
