//! The server: its socket, its services, its end.

use std::sync::Arc;
use std::time::Duration;

use bowline_model::{Doing, Kind, Result};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::driver::Driver;
use crate::handshake::Handshake;
use crate::plugin::Plugin;
use crate::proto::base::base_plugin_server::BasePluginServer;
use crate::proto::driver::driver_server::DriverServer;
use crate::proto::grpc::health::v1::health_server::HealthServer;
use crate::proto::plugin::grpc_broker_server::GrpcBrokerServer;
use crate::proto::plugin::grpc_controller_server::GrpcControllerServer;
use crate::proto::plugin::grpc_stdio_server::GrpcStdioServer;
use crate::shutdown::Shutdown;

/// The most that calls under way may take once the host has asked for the end: it kills after two seconds.
const LAST_CALLS: Duration = Duration::from_millis(1500);

/// go-plugin's client has no limit, and a task's configuration is as large as its templates make it.
const LARGEST: usize = 256 << 20;

/// Serves until the host asks for the end.
///
/// # Errors
/// `Internal` when there can be no socket or no event loop.
pub fn run(handshake: &Handshake) -> Result<()> {
    // The plugin is in the agent's process group: what is typed at the agent's terminal is not for us.
    let ignored = Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGINT, ignored)
        .doing(Kind::Internal, || "cannot ignore SIGINT")?;
    // A process of one thread starts a shim without a copy of its memory: a thread for blocking work ends with that.
    let runtime = tokio::runtime::Builder::new_current_thread().thread_keep_alive(Duration::ZERO).enable_all().build();
    let runtime = runtime.doing(Kind::Internal, || "cannot start the event loop")?;
    let served = runtime.block_on(serve(handshake));
    // A call that blocks would otherwise keep the process.
    runtime.shutdown_background();
    served
}

async fn serve(handshake: &Handshake) -> Result<()> {
    let listener = handshake.listen()?;
    let accepting = listener.as_file().try_clone().and_then(UnixListener::from_std);
    let accepting = accepting.doing(Kind::Internal, || "cannot accept connections")?;
    let shutdown = Shutdown::default();
    let plugin = Plugin { shutdown: shutdown.clone() };
    let driver = Driver::new(shutdown.clone());
    let server = Server::builder()
        .add_service(HealthServer::new(plugin.clone()))
        .add_service(GrpcControllerServer::new(plugin.clone()))
        .add_service(GrpcStdioServer::new(plugin.clone()))
        .add_service(GrpcBrokerServer::new(plugin))
        .add_service(BasePluginServer::new(driver.clone()).max_decoding_message_size(LARGEST))
        .add_service(DriverServer::new(driver).max_decoding_message_size(LARGEST).max_encoding_message_size(usize::MAX))
        .serve_with_incoming_shutdown(UnixListenerStream::new(accepting), shutdown.begun());
    handshake.tell(listener.path()).doing(Kind::Internal, || "cannot tell the host where to connect")?;
    let late = async {
        shutdown.begun().await;
        tokio::time::sleep(LAST_CALLS).await;
    };
    tokio::select! {
        served = server => served.doing(Kind::Internal, || "cannot serve"),
        () = late => Ok(()),
    }
}
