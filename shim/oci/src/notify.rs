//! Messages of sd_notify(3) for the service manager that has started this command, as runc passes them on.
//!
//! ```text
//!   create ─► /run/notify in the container      start, run ─► a socket there ─ READY ─► NOTIFY_SOCKET, with MAINPID
//! ```
//!
//! `start` and `run --detach` end once the container says that it is ready, or ends; whatever it sends later has no reader.
//! Must not: pass on anything but READY, such as a main process that the container names.

use std::fs::{Permissions, set_permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use bowline_executor::internal::{Container, send_fd};
use bowline_model::{Doing, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// How long a manager may take to read what it was sent.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// How many messages are read before anything else is looked at.
const AT_ONCE: usize = 16;

/// The most bytes of a message, as for systemd.
const LONGEST: usize = 4096;

/// The service manager's socket, if there is one.
pub fn manager() -> Option<SocketAddr> {
    let address = std::env::var_os("NOTIFY_SOCKET")?;
    match address.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(address).ok(),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    }
}

/// Where a container sends its messages, for a manager who waits for them.
pub struct Notify {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl Notify {
    /// Listens to a container that is not started yet; `None` where there is no manager, or was none at its `create`.
    ///
    /// # Errors
    /// `Internal` where the socket cannot be made.
    pub fn begin(container: &Container) -> Result<Option<Notify>> {
        let (Some(manager), Some(path)) = (manager(), container.notify_socket()) else { return Ok(None) };
        let what = || format!("cannot make the socket {}", path.display());
        let made = || {
            match std::fs::remove_file(&path) {
                // Of a `start` that was killed.
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let socket = UnixDatagram::bind(&path)?;
            // Every user of the container may say that it is ready.
            set_permissions(&path, Permissions::from_mode(0o666))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Some(Notify { socket: made().doing(Kind::Internal, what)?, manager }))
    }

    /// What to wait for.
    pub fn watched(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)
    }

    /// Waits until the container is ready, whose init becomes the manager's main process then, or has ended.
    ///
    /// # Errors
    /// `Internal` where it cannot be waited for.
    pub fn wait(&self, init: i32, pidfd: BorrowedFd<'_>) -> Result<()> {
        while !self.pass_ready(Some(init)) {
            let mut watched = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN), self.watched()];
            retry_on_intr(|| poll(&mut watched, None)).doing(Kind::Internal, || "cannot wait for init")?;
            if !watched[0].revents().is_empty() {
                self.pass_ready(Some(init));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Passes on that the container is ready, if it has said so. `init` becomes the manager's main process.
    pub fn pass_ready(&self, init: Option<i32>) -> bool {
        let mut message = [0; LONGEST];
        // Who sends without end does not keep the caller from all else.
        for _ in 0..AT_ONCE {
            let Ok(length) = self.socket.recv(&mut message) else { return false };
            if message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                self.tell(init);
                return true;
            }
        }
        false
    }

    /// A manager that has gone misses it.
    fn tell(&self, init: Option<i32>) {
        let tell = || {
            let own = UnixDatagram::unbound()?;
            own.connect_addr(&self.manager)?;
            own.set_write_timeout(Some(READ_WITHIN))?;
            own.send(b"READY=1\n")?;
            let Some(init) = init else { return Ok(()) };
            own.send(format!("MAINPID={init}\n").as_bytes())?;
            // Before this process ends: systemd asks which unit it is in as it reads (sd_notify_barrier(3)).
            let (read, unread) = std::io::pipe()?;
            send_fd(own.as_fd(), b"BARRIER=1", unread.as_fd())?;
            drop(unread);
            let most = Timespec { tv_sec: READ_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
            match retry_on_intr(|| poll(&mut [PollFd::new(&read, PollFlags::empty())], Some(&most)))? {
                0 => Err(std::io::Error::from(ErrorKind::TimedOut)),
                _ => Ok(()),
            }
        };
        if let Err(error) = tell() {
            tracing::warn!("cannot send to the service manager at NOTIFY_SOCKET: {error}");
        }
    }
}
