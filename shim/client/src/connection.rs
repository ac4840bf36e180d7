//! A connection to a shim's socket.

use std::io;
use std::path::Path;

use bowline_executor::Folder;
use bowline_protocol::wire::proto::bowline_ttrpc::BowlineClient;
use ttrpc::context::{self, Context};

/// A context without a timeout: a wait may take years.
pub fn patient() -> Context {
    context::with_timeout(0)
}

/// Connects to the shim of the task or sandbox in `folder`.
pub async fn connect(folder: &Folder) -> io::Result<BowlineClient> {
    connect_at(&folder.socket()).await
}

/// Connects to the shim that listens at `socket`.
pub async fn connect_at(socket: &Path) -> io::Result<BowlineClient> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let socket = ttrpc::r#async::transport::Socket::from(stream);
    Ok(BowlineClient::new(ttrpc::r#async::Client::new(socket)))
}
