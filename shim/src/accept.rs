//! Who comes to a shim's socket: connections of processes that are this user's.
//!
//! Where no descriptor is left, the one in reserve takes whoever comes, to send
//! them away: what they wait for would not come.
//!
//! Must not: know what is served.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_executor::{pages, spare};
use futures::Stream;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

/// How long nobody is let in when there is no room for another connection: what
/// makes room tells nobody.
const NO_ROOM: Duration = Duration::from_millis(100);

/// The connections to `listener`, without end. Others than this user cannot reach
/// the socket as it is; whoever changes that opens no door.
pub fn of_our_user(listener: UnixListener) -> impl Stream<Item = Result<Connection>> {
    futures::stream::unfold(listener, async |listener| Some((Ok(next(&listener).await), listener)))
}

/// A client's connection: what it has asked for took memory, which is given back when it has gone.
pub struct Connection(UnixStream);

impl Drop for Connection {
    fn drop(&mut self) {
        pages::left();
    }
}

impl Connection {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut UnixStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.stream().poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.stream().poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream().poll_shutdown(context)
    }
}

async fn next(listener: &UnixListener) -> Connection {
    loop {
        match listener.accept().await.and_then(|(connection, _)| checked(connection)) {
            Ok(connection) => return connection,
            // One that was closed at once, or is not for us.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::PermissionDenied) => {
                tracing::warn!(%error, "a connection was closed");
            }
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => {
                tracing::error!(%error, "a client is sent away: the shim has as many files open as it may");
                // It is closed at once. Somebody else of the host may have taken the one that was given up.
                if !spare::lend(|| rustix::net::accept(listener).is_ok()) {
                    tokio::time::sleep(NO_ROOM).await;
                }
            }
            // No memory: whoever waits still does.
            Err(error) => {
                tracing::error!(%error, "cannot take a connection");
                tokio::time::sleep(NO_ROOM).await;
            }
        }
    }
}

fn checked(connection: UnixStream) -> Result<Connection> {
    let peer = connection.peer_cred()?.uid();
    if peer == rustix::process::geteuid().as_raw() {
        return Ok(Connection(connection));
    }
    Err(Error::new(ErrorKind::PermissionDenied, format!("it is of user {peer}")))
}
