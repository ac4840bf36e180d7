//! Who comes to a shim's socket: connections of processes that are this user's.
//!
//! Where no descriptor is left, the one in reserve takes whoever comes, to send
//! them away: what they wait for would not come.
//!
//! Must not: know what is served.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use bowline_executor::spare;
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};

/// How long nobody is let in when there is no room for another connection: what
/// makes room tells nobody.
const NO_ROOM: Duration = Duration::from_millis(100);

/// The next connection to `listener`. Others than this user cannot reach the
/// socket as it is; whoever changes that opens no door.
pub async fn next(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await.and_then(|(connection, _)| of_our_user(connection)) {
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

fn of_our_user(connection: UnixStream) -> Result<UnixStream> {
    let peer = connection.peer_cred()?.uid();
    if peer == rustix::process::geteuid().as_raw() {
        return Ok(connection);
    }
    Err(Error::new(ErrorKind::PermissionDenied, format!("it is of user {peer}")))
}
