//! Sockets that are private from the moment they exist.

use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How many clients may wait to be accepted. The kernel takes less, if `net.core.somaxconn` is less.
pub const BACKLOG: i32 = 4096;

/// Listens at `path`, a new socket of mode 0600 whatever the umask is. At no moment can another user connect: Linux
/// creates the file with the mode that the socket has before bind(2).
pub fn listen_privately(path: &Path) -> rustix::io::Result<UnixListener> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
