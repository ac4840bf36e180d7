//! What the serving process hands over besides the tasks when another program is executed in its place: its socket and
//! connections, what containerd has asked for, and what it waits to tell containerd.
//!
//! Must not: know a task's state.

use std::os::unix::net::UnixListener;
use std::rc::Rc;

use bowline_executor::internal::upgrade::{Manager, ManagerPart};
use bowline_model::json::handover::Fd;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::calls::{self, Door};
use serde::{Deserialize, Serialize};

use super::containers::{self, Containers};
use super::log;
use super::publisher::{self, Publisher};
use super::sandbox::{self, Sandbox};
use super::service::Service;

/// All of that, as it is handed over.
#[derive(Serialize, Deserialize)]
pub struct Handed {
    listener: Fd,
    log: Option<log::Handed>,
    connections: calls::Handed,
    containers: containers::Handed,
    sandbox: Option<sandbox::Handed>,
    events: publisher::Handed,
}

/// What a serving process begins with.
pub struct Taken {
    pub listener: UnixListener,
    pub connections: calls::Handed,
    pub containers: Containers,
    pub sandbox: Sandbox,
}

impl ManagerPart for Handed {
    const MANAGER: &'static str = "containerd";
}

impl Taken {
    pub fn first(listener: UnixListener) -> Taken {
        let (connections, containers, sandbox) = Default::default();
        Taken { listener, connections, containers, sandbox }
    }
}

impl Handed {
    /// The log, which is taken first.
    pub fn log(&mut self) -> Option<log::Handed> {
        self.log.take()
    }

    /// Takes over the rest; what is not delivered goes to `events`. Called before the executor takes the tasks over.
    ///
    /// # Errors
    /// `Damaged` when something is missing.
    pub fn take(self, events: &Publisher) -> Result<Taken> {
        let Handed { listener, connections, containers, sandbox, .. } = self;
        events.take(self.events)?;
        Ok(Taken {
            listener: listener.take()?.into(),
            connections,
            containers: Containers::take(containers)?,
            sandbox: Sandbox::take(sandbox),
        })
    }
}

/// What is handed over while the shim is at rest.
pub struct Kept {
    pub door: Rc<Door>,
    pub service: Service,
}

impl Manager for Kept {
    fn name(&self) -> &'static str {
        Handed::MANAGER
    }

    fn hand_over(&self) -> Result<String> {
        let Service { containers, sandbox, publisher, connections, address, .. } = &self.service;
        // It is taken while this looks: `Cell` has no other way.
        let leaves = address.take().map(|kept| address.set(Some(kept))).is_none();
        if leaves {
            return Err(Error::new(Kind::WrongState, "the shim is leaving: its socket is gone"));
        }
        let handed = Handed {
            listener: Fd::of(&*self.door),
            log: log::hand_over(),
            connections: connections.hand_over(),
            containers: containers.hand_over()?,
            sandbox: sandbox.hand_over(),
            events: publisher.hand_over()?,
        };
        serde_json::to_string(&handed).doing(Kind::Internal, || "cannot write what containerd has asked for")
    }

    fn calls_wait(&self) -> bool {
        self.service.connections.calls_wait()
    }
}
