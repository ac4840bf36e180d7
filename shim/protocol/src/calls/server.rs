//! A shim's socket: serves its listener and its connections, and ends them when the shim leaves.

use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use bowline_executor::{Doing, Kind, Result, waits};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::connection::{Connection, Outline, Serving};
use super::{Services, accept};

/// How long a leaving shim waits for the last answers to be ready and read; then it leaves without them.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// All open connections.
#[derive(Clone, Default)]
pub struct Connections(Rc<RefCell<Vec<Rc<RefCell<Connection>>>>>);

impl Connections {
    /// What `inspect --facts` prints of the connections.
    pub fn outlines(&self) -> Vec<Outline> {
        self.0.borrow().iter().map(|connection| connection.borrow().facts.outline()).collect()
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

    /// Accepts clients from `listener` until `closed`; accepted connections are served beyond that.
    ///
    /// # Errors
    /// `Internal` when the listener cannot be used.
    pub async fn serve(&self, listener: UnixListener, closed: impl Future<Output = ()>) -> Result<()> {
        let what = || "cannot serve the shim's socket";
        listener.set_nonblocking(true).doing(Kind::Internal, what)?;
        let listener = tokio::net::UnixListener::from_std(listener).doing(Kind::Internal, what)?;
        let all_who_come = async {
            loop {
                self.begin(Connection::new(accept::next(&listener).await));
            }
        };
        tokio::select! {
            biased;
            () = closed => Ok(()),
            () = all_who_come => Ok(()),
        }
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
    pub async fn leave(self) {
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
