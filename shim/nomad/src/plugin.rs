//! What go-plugin asks of every plugin: whether it serves, its output, connections beside this one, and its end.

use tonic::{Request, Response, Status, Streaming};

use crate::proto::grpc::health::v1::health_check_response::ServingStatus;
use crate::proto::grpc::health::v1::health_server::Health;
use crate::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use crate::proto::plugin::grpc_broker_server::GrpcBroker;
use crate::proto::plugin::grpc_controller_server::GrpcController;
use crate::proto::plugin::grpc_stdio_server::GrpcStdio;
use crate::proto::plugin::{ConnInfo, Empty, StdioData};
use crate::shutdown::Shutdown;
use crate::stream::{Answers, lasting};

/// The service that go-plugin asks the health of.
const SERVICE: &str = "plugin";

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
    type StreamStdioStream = Answers<StdioData>;

    /// Stays open and empty: nothing is printed after the handshake, and no task has our output.
    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(lasting(&self.shutdown, |_items| std::future::pending())))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Plugin {
    type StartStreamStream = Answers<ConnInfo>;

    /// Stays open until the host leaves: a task driver needs no other connection.
    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Self::StartStreamStream>, Status> {
        let mut host = request.into_inner();
        Ok(Response::new(lasting(&self.shutdown, async move |_| {
            while let Ok(Some(_)) = host.message().await {}
            Ok(())
        })))
    }
}
