//! A connection to a shim's socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
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
    Ok(client_of(stream))
}

fn client_of(stream: tokio::net::UnixStream) -> BowlineClient {
    BowlineClient::new(ttrpc::r#async::Client::new(ttrpc::r#async::transport::Socket::from(stream)))
}

/// Like [`connect_at`], with a descriptor of the connection, which tells when the other end closes it.
pub async fn connect_watched(socket: &Path) -> io::Result<(BowlineClient, OwnedFd)> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let watched = stream.as_fd().try_clone_to_owned()?;
    Ok((client_of(stream), watched))
}
