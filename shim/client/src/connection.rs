//! A connection to a shim's socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use bowline_executor::internal::proc_stat::{self, ProcStat};
use bowline_model::folder::Folder;
use bowline_protocol::wire::proto::bowline_ttrpc::BowlineClient;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use ttrpc::context::{self, Context};

/// How long a killed shim may take to end: a frozen one does not end before it is thawed.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// A context without a timeout: a wait may take years.
pub fn patient() -> Context {
    context::with_timeout(0)
}

/// Connects to the shim of the task or sandbox in `folder`.
pub async fn connect(folder: &Folder) -> io::Result<BowlineClient> {
    living(folder).await.map(client_of)
}

/// Like [`connect`], with a descriptor of the connection, which tells when the other end closes it.
pub async fn connect_watched(folder: &Folder) -> io::Result<(BowlineClient, OwnedFd)> {
    let stream = living(folder).await?;
    let watched = stream.as_fd().try_clone_to_owned()?;
    Ok((client_of(stream), watched))
}

/// Connects to the shim that listens at `socket`.
pub async fn connect_at(socket: &Path) -> io::Result<BowlineClient> {
    UnixStream::connect(socket).await.map(client_of)
}

fn client_of(stream: UnixStream) -> BowlineClient {
    BowlineClient::new(ttrpc::r#async::Client::new(ttrpc::r#async::transport::Socket::from(stream)))
}

/// A connection to the shim of `folder`, made once no killed shim is about to end: the kernel connects to that too, and
/// it would answer nothing.
async fn living(folder: &Folder) -> io::Result<UnixStream> {
    let begun = Instant::now();
    let mut wait = Duration::from_micros(200);
    loop {
        let stream = UnixStream::connect(folder.socket()).await?;
        if !folder.is_still_there() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !other_end_ends(&stream) || begun.elapsed() > ENDS_WITHIN {
            return Ok(stream);
        }
        drop(stream);
        sleep(wait).await;
        wait = (2 * wait).min(Duration::from_millis(100));
    }
}

/// Whether the shim of `folder` lives and accepts connections. Its children may have its socket for a moment longer.
pub async fn is_there(folder: &Folder) -> bool {
    match living(folder).await {
        Ok(stream) => other_end(&stream).is_none_or(|pid| proc_stat::read(pid).is_some()),
        // The socket's backlog is full.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Whether the process that listens, if we see it, exits or is killed.
fn other_end_ends(stream: &UnixStream) -> bool {
    let stat = other_end(stream).and_then(proc_stat::read);
    stat.is_some_and(|stat| ProcStat::parse(&stat).is_some_and(|stat| stat.ends()))
}

/// The process that listens, if we see it.
fn other_end(stream: &UnixStream) -> Option<i32> {
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}
