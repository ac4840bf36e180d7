//! Accepts connections to a shim's socket from processes of the same user.
//!
//! When no file descriptor is left, the spare one accepts the next client and turns it away, because waiting would not
//! help it.
//!
//! Must not: know the services.

use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use bowline_executor::internal::spare_fd;
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};

/// How long to accept nobody when there is no room for another connection: nothing reports that room has become free.
const NO_ROOM: Duration = Duration::from_millis(100);

// A shim has one thread.
thread_local! {
    /// Whether the last client was sent away, which the log has.
    static IS_FULL: Cell<bool> = const { Cell::new(false) };
}

/// The next connection to `listener`. The socket's permissions already keep other users out; this check holds even if
/// somebody changes them.
pub async fn next(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await.and_then(|(connection, _)| of_our_user(connection)) {
            Ok(connection) => {
                IS_FULL.set(false);
                return connection;
            }
            // The connection was closed at once, or is from another user.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::PermissionDenied) => {
                tracing::warn!(%error, "a connection was closed");
            }
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => {
                if !IS_FULL.replace(true) {
                    tracing::error!(%error, "clients are sent away: the shim has as many files open as it may");
                }
                // Accept and close it at once. This fails if another process of the host took the spare descriptor
                // first.
                if !spare_fd::lend(|| rustix::net::accept(listener).is_ok()) {
                    tokio::time::sleep(NO_ROOM).await;
                }
            }
            // Out of memory: the client keeps waiting.
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
