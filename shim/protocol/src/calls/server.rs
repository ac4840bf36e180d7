//! A shim's socket: serves its listener and its connections, and ends them when the shim leaves.

use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use bowline_executor::internal::waits;
use bowline_model::{Doing, Kind, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::connection::{self, Connection, Outline, Serving};
use super::{Services, accept};

/// How long a leaving shim waits for the last answers to be ready and read; then it leaves without them.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// A listening socket that the loop watches.
pub type Door = tokio::net::UnixListener;

/// Has the loop watch a listening socket.
///
/// # Errors
/// `Internal` when it cannot be watched.
pub fn door(listener: UnixListener) -> Result<Rc<Door>> {
    let what = || "cannot serve the shim's socket";
    listener.set_nonblocking(true).doing(Kind::Internal, what)?;
    Ok(Rc::new(Door::from_std(listener).doing(Kind::Internal, what)?))
}

#[derive(Clone, Default)]
pub struct Connections(Rc<RefCell<Vec<Rc<RefCell<Connection>>>>>);

impl Connections {
    /// What `inspect --facts` prints of the connections.
    pub fn outlines(&self) -> Vec<Outline> {
        self.0.borrow().iter().map(|connection| connection.borrow().facts.outline()).collect()
    }
}

/// The connections, as a shim hands them over.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handed(Vec<connection::Handed>);

impl Connections {
    /// The connections for the program that is executed in the shim's place. Called while the shim is at rest.
    pub fn hand_over(&self) -> Handed {
        Handed(self.0.borrow().iter().map(|connection| connection.borrow().hand_over()).collect())
    }

    /// Whether each open call only waits, and can be made again.
    pub fn calls_wait(&self) -> bool {
        self.0.borrow().iter().all(|connection| connection.borrow().facts.open().iter().all(|open| open.only_waits))
    }
}

/// Serves all clients of a shim.
pub struct Server<S> {
    services: Rc<S>,
    connections: Connections,
    /// Whether the shim is leaving. Every served connection watches it.
    leaving: watch::Sender<bool>,
    /// How long clients may take to leave first.
    linger: Duration,
}

impl<S: Services + 'static> Server<S> {
    /// Creates a server without clients; new connections are added to `connections`.
    pub fn new(services: Rc<S>, connections: Connections) -> Server<S> {
        Server { services, connections, leaving: watch::Sender::new(false), linger: Duration::ZERO }
    }

    /// Has a leaving shim wait so long for its clients to close their connections.
    pub fn lingering(self, linger: Duration) -> Server<S> {
        Server { linger, ..self }
    }

    /// Accepts clients at `door` until `closed`; accepted connections are served beyond that.
    pub async fn serve(self: &Rc<Self>, door: Rc<Door>, closed: impl Future<Output = ()>) {
        let (is_closed, until) = watch::channel(false);
        let server = self.clone();
        waits::begin(move || {
            let (server, door, mut until) = (server.clone(), door.clone(), until.clone());
            async move {
                let all_who_come = async {
                    loop {
                        server.begin(Connection::new(accept::next(&door).await));
                    }
                };
                tokio::select! {
                    biased;
                    _ = until.wait_for(|closed| *closed) => {}
                    () = all_who_come => {}
                }
            }
        });
        closed.await;
        is_closed.send_replace(true);
    }

    /// Serves the connections that the program before this one has handed over.
    ///
    /// # Errors
    /// `Damaged` when one is missing.
    pub fn go_on(self: &Rc<Self>, handed: Handed) -> Result<()> {
        handed.0.into_iter().try_for_each(|connection| connection.take().map(|connection| self.begin(connection)))
    }

    fn begin(&self, connection: Connection) {
        let connection = Rc::new(RefCell::new(connection));
        self.connections.0.borrow_mut().push(connection.clone());
        let serving = Rc::new(Mutex::new(Serving::new(connection.clone(), self.services.clone())));
        let (connections, leaving, linger) = (self.connections.clone(), self.leaving.subscribe(), self.linger);
        waits::begin(move || {
            let (serving, connection) = (serving.clone(), connection.clone());
            let (connections, leaving) = (connections.clone(), leaving.clone());
            async move {
                serving.lock().await.serve(leaving, linger).await;
                connections.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, &connection));
            }
        });
    }

    /// Takes no more requests, and returns once all open calls are answered and written, or given up.
    pub async fn leave(&self) {
        self.leaving.send_replace(true);
        if timeout(LAST_ANSWERS, self.leaving.closed()).await.is_ok() {
            return;
        }
        for connection in self.connections.0.borrow().iter() {
            for call in connection.borrow().facts.open() {
                tracing::warn!("{} of {} is not answered: the shim leaves", call.method, call.service);
            }
        }
    }
}
