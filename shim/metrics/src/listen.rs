//! Listens at a socket that only this user can reach, or at an address of this host.
//!
//! A socket that nobody listens at is replaced. Its folder is locked meanwhile, so that two processes can do so at
//! once. The socket is removed with its owner, unless somebody has replaced it. Must not: know what is served.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bowline_executor::internal::{BACKLOG, listen_privately};
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use tokio::io::{AsyncRead, AsyncWrite};

use super::args::Place;

/// The name of the socket in the state folder. Ids never begin with a dot.
const SOCKET: &str = ".metrics.sock";

/// The longest path of a unix socket, in bytes (unix(7)).
const LONGEST: usize = 107;

pub enum Listener {
    /// A socket in the file system, and the guard that removes it.
    Unix(tokio::net::UnixListener, Socket),
    Address(tokio::net::TcpListener, SocketAddr),
}

/// A client that has connected.
pub struct Client {
    pub connection: Box<dyn Connection>,
    /// The user who connected. Only a unix socket tells.
    pub uid: Option<u32>,
}

/// A connection of either kind.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// A socket's file, removed on drop.
pub struct Socket {
    path: PathBuf,
    /// Device and inode, to recognize the file.
    file: (u64, u64),
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.file) {
            // If removal fails, the next process to listen replaces the socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `place`, by default in the state folder.
///
/// # Errors
/// `Usage` for an address that other hosts can reach, unless that is allowed, and for a path that is too long for a
/// socket; `AlreadyExists` where somebody listens already; what the kernel refuses.
pub fn listen(state: &StateDir, place: Option<Place>, allow_remote: bool) -> Result<Listener> {
    match place {
        Some(Place::Address(address)) => at_address(address, allow_remote),
        Some(Place::Unix(_)) if allow_remote => {
            let error = Error::new(Kind::Usage, "--allow-remote: a unix socket is reached from this host alone");
            Err(error.hint("leave the flag out, or listen at an address"))
        }
        Some(Place::Unix(path)) => at_path(std::path::absolute(path).doing(Kind::Usage, || "--listen: not a path")?),
        None => {
            // The folder may not exist before the first task. Create it as the first task would.
            let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(state.path());
            made.doing(Kind::Internal, || format!("cannot create the state folder {}", state.path().display()))?;
            at_path(state.path().join(SOCKET))
        }
    }
}

fn at_address(address: SocketAddr, allow_remote: bool) -> Result<Listener> {
    if !address.ip().to_canonical().is_loopback() && !allow_remote {
        let message = format!("--listen: {address} is no loopback address: whoever reaches it could read all metrics");
        return Err(Error::new(Kind::Usage, message)
            .hint("listen at 127.0.0.1, at [::1] or at a unix socket; or allow it with --allow-remote"));
    }
    let what = || format!("cannot listen at {address}");
    let listener = TcpListener::bind(address).map_err(|error| {
        let refused = Error::new(Kind::Internal, format!("{}: {error}", what()));
        match error.kind() {
            ErrorKind::AddrInUse => refused.hint("somebody listens there: choose another port, or 0 for any"),
            ErrorKind::AddrNotAvailable => refused.hint("it is no address of this host: `ip address` lists those"),
            ErrorKind::PermissionDenied => refused.hint("ports below 1024 are root's: choose another"),
            _ => refused,
        }
    })?;
    let bound = listener.local_addr().doing(Kind::Internal, what)?;
    // std asks for 128: one more would have to knock again, a second later.
    rustix::net::listen(&listener, BACKLOG).doing(Kind::Internal, what)?;
    listener.set_nonblocking(true).doing(Kind::Internal, what)?;
    Ok(Listener::Address(tokio::net::TcpListener::from_std(listener).doing(Kind::Internal, what)?, bound))
}

fn at_path(path: PathBuf) -> Result<Listener> {
    let what = || format!("cannot listen at {}", path.display());
    if path.as_os_str().len() > LONGEST {
        let message = format!("{}: the path is longer than that of a socket can be ({LONGEST} bytes)", what());
        return Err(Error::new(Kind::Usage, message).hint("choose a shorter one with --listen unix:PATH"));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let opened = File::open(folder).map_err(|error| {
        let refused = Error::new(Kind::Internal, format!("{}: folder {}: {error}", what(), folder.display()));
        if error.kind() == ErrorKind::NotFound { refused.hint("make that folder first") } else { refused }
    })?;
    // Closing the folder releases the lock.
    opened.lock().doing(Kind::Internal, || format!("cannot lock {}", folder.display()))?;
    make_room(&path)?;
    let listener = listen_privately(&path).doing(Kind::Internal, what)?;
    let socket = Socket { file: identity(&path).doing(Kind::Internal, what)?, path: path.clone() };
    listener.set_nonblocking(true).doing(Kind::Internal, what)?;
    Ok(Listener::Unix(tokio::net::UnixListener::from_std(listener).doing(Kind::Internal, what)?, socket))
}

/// Removes a socket that nobody listens at.
fn make_room(path: &Path) -> Result<()> {
    let what = || format!("cannot listen at {}", path.display());
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there.doing(Kind::Internal, what)?,
    };
    if !there.file_type().is_socket() {
        let error = Error::new(Kind::AlreadyExists, format!("{}: there is a file that is no socket", what()));
        return Err(error.hint("choose another path, or remove it"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .doing(Kind::Internal, || format!("cannot remove {}, which nobody has", path.display())),
        // In any other case somebody may be using it.
        _ => Err(Error::new(Kind::AlreadyExists, format!("{}: somebody listens there", what()))
            .hint("stop it first, or choose another place with --listen")),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Listener {
    pub async fn accept(&self) -> io::Result<Client> {
        Ok(match self {
            Listener::Unix(listener, _) => {
                let connection = listener.accept().await?.0;
                let uid = connection.peer_cred().ok().map(|peer| peer.uid());
                Client { connection: Box::new(connection), uid }
            }
            Listener::Address(listener, _) => Client { connection: Box::new(listener.accept().await?.0), uid: None },
        })
    }

    /// The listener's address, as a client uses it.
    pub fn place(&self) -> String {
        match self {
            Listener::Unix(_, socket) => format!("unix:{}", socket.path.display()),
            Listener::Address(_, address) => format!("http://{address}/metrics"),
        }
    }
}
