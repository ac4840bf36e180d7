//! Seccomp's notifications: the agent that decides over a process's system calls gets the listener
//! of the process's filter, as the runtime specification defines it ("The Container Process
//! State").
//!
//! ```text
//!   process: filter loaded ─ SCM_RIGHTS ─► shim ─ state, SCM_RIGHTS ─► agent at listenerPath
//! ```
//!
//! The shim connects to the agent before it clones the process, so that a missing agent is an error
//! of the launch, as is an agent that does not take the listener. The shim's copies of the listener
//! are closed at once: if the agent goes later, the process's calls fail with ENOSYS. Must not: let
//! the process wait for the agent; look at what is notified.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    socketpair,
};
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::process::fd_passing;
use crate::rights::seccomp::Listener;
use crate::waits;
use crate::waits::watched_value::WatchedValue;

/// How long an agent may take to read the message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Passes on the listener of a process that will be cloned.
#[derive(Debug)]
pub struct Notify {
    process: AsyncFd<OwnedFd>,
    offer: Offer,
}

/// Connects to the agent; `state` is the container's. Also returns the socket through which the
/// process sends its listener.
///
/// # Errors
/// `BadSpec` when nobody listens there.
pub fn prepare(listener: &Listener, state: &[u8]) -> Result<(Notify, OwnedFd)> {
    let what = || format!("seccomp: cannot connect to listenerPath {}", listener.path.display());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let agent = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).doing(Kind::Internal, what)?;
    let address = SocketAddrUnix::new(&listener.path).doing(Kind::BadSpec, what)?;
    connect(&agent, &address).doing(Kind::BadSpec, what)?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (process, theirs) = pair.doing(Kind::Internal, || "cannot make a socket for a listener")?;
    let what = || "cannot watch the sockets of a listener";
    let process = sys::register_fd_for(process, Interest::READABLE).doing(Kind::Internal, what)?;
    let agent = sys::register_fd_for(agent, Interest::WRITABLE).doing(Kind::Internal, what)?;
    let state = serde_json::from_slice(state).doing(Kind::Internal, || "cannot read a container's state")?;
    let offer = Offer { agent, path: listener.path.clone(), metadata: listener.metadata.clone(), state };
    Ok((Notify { process, offer }, theirs))
}

impl Notify {
    /// Passes on the listener of process `pid` when it comes. The process must be able to go on meanwhile: it may
    /// cause notifications while it still sets up.
    pub fn forward(self, pid: i32) -> Handing {
        let (process, offer, handing) = (Rc::new(self.process), Rc::new(self.offer), Handing::default());
        let outcome = handing.outcome.clone();
        waits::begin(move || {
            let (process, offer, outcome) = (process.clone(), offer.clone(), outcome.clone());
            async move {
                // The listener has come, or the process has ended.
                let _ = process.readable().await;
                let listener = receive(process.get_ref().as_fd());
                waits::work("a seccomp listener handed over", None, async move {
                    let done = offer.accepted(pid, listener).await;
                    outcome.update(|outcome| *outcome = Some(done));
                });
            }
        });
        handing
    }
}

/// The handing over of a listener, which happens by itself.
#[derive(Default)]
pub struct Handing {
    outcome: Rc<WatchedValue<Option<Result<()>>>>,
}

impl Handing {
    /// Waits until the agent has the listener, or until the process has ended without one.
    ///
    /// # Errors
    /// The agent has not taken the listener.
    pub async fn done(&self) -> Result<()> {
        self.outcome.until(Clone::clone).await
    }

    /// Waits for an agent that does not take the listener, and returns why.
    pub async fn failure(&self) -> Error {
        self.outcome.until(|outcome| outcome.as_ref()?.as_ref().err().cloned()).await
    }
}

/// The agent that gets a listener, and the message that goes with it.
#[derive(Debug)]
struct Offer {
    agent: AsyncFd<OwnedFd>,
    path: PathBuf,
    metadata: String,
    state: Value,
}

impl Offer {
    /// Hands over the listener, if the process has sent one.
    async fn accepted(&self, pid: i32, listener: Result<Option<OwnedFd>>) -> Result<()> {
        let Some(listener) = listener? else { return Ok(()) };
        let late = |_| Err(Error::new(Kind::Timeout, format!("the agent reads nothing for {PATIENCE:?}")));
        let sent = timeout(PATIENCE, self.send(pid, listener)).await.unwrap_or_else(late);
        let path = self.path.display();
        sent.map_err(|error| error.within(format!("seccomp: cannot hand the listener to the agent at {path}")))
    }

    async fn send(&self, pid: i32, listener: OwnedFd) -> Result<()> {
        let mut state = self.state.clone();
        // A process that is being created is the container's init.
        if state.get("pid").is_none() {
            state["pid"] = json!(pid);
        }
        let message = json!({
            "ociVersion": state["ociVersion"],
            "fds": ["seccompFd"],
            "pid": pid,
            "metadata": self.metadata,
            "state": state,
        });
        let text = message.to_string();
        let what = || "cannot send";
        let agent = self.agent.get_ref().as_fd();
        let mut sent = fd_passing::send(agent, text.as_bytes(), listener.as_fd()).doing(Kind::Internal, what)?;
        drop(listener);
        // A state may be more than the socket has room for at once.
        while let Some(rest @ [_, ..]) = text.as_bytes().get(sent..) {
            let more =
                self.agent.async_io(Interest::WRITABLE, |agent| Ok(net::send(agent, rest, SendFlags::NOSIGNAL)?));
            sent += more.await.doing(Kind::Internal, what)?;
        }
        Ok(())
    }
}

/// Receives the listener; `None` if the process has ended before it had a filter.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let what = || "seccomp: cannot take over the listener";
    fd_passing::receive(socket, RecvFlags::DONTWAIT).doing(Kind::Internal, what)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_state_that_is_more_than_a_socket_has_room_for_arrives_whole() {
        let (agent, ours) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("it can be");
        let annotation = "x".repeat(1 << 20);
        let state = json!({"ociVersion": "1.2.0", "annotations": {"a": annotation}});
        let reader = std::thread::spawn(move || {
            let (mut agent, mut text) = (agent, String::new());
            agent.read_to_string(&mut text).map(|_| text)
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let agent = sys::register_fd_for(ours.into(), Interest::WRITABLE).expect("watched");
            let listener: OwnedFd = std::fs::File::open("/dev/null").expect("there").into();
            let offer = Offer { agent, path: PathBuf::new(), metadata: "m".to_owned(), state };
            offer.accepted(7, Ok(Some(listener))).await.expect("handed over");
        });
        let text = reader.join().expect("it ends").expect("text");
        let message: Value = serde_json::from_str(&text).expect("whole");
        assert_eq!((&message["pid"], &message["state"]["pid"]), (&json!(7), &json!(7)));
        assert_eq!(message["state"]["annotations"]["a"], annotation);
    }
}
