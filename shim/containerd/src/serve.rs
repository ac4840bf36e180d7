//! The serving process: passes containerd's calls to the executor, publishes what happens to tasks, and ends after the
//! last container.

use std::cell::Cell;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::internal::{Handed as HandedTasks, InheritedLimits};
use bowline_executor::systemd::Systemd;
use bowline_executor::{Config, EventSink, Executor, Leave, ShimCgroup, serve as run_executor, serve_on};
use bowline_model::Result;
use bowline_model::folder::{Folder, StateDir};

use super::handover::{Handed, Kept, Taken};
use super::invocation::Invocation;
use super::publisher::Publisher;
use super::sandbox_calls::{Sandboxes, sandbox};
use super::service::{Service, task};
use super::{bowline_service, manager_events};
use bowline_protocol::calls::{
    Answer, Call, Connections, Handed as Connected, Server, Services, door, unknown_method, unknown_service,
};
use bowline_protocol::upgrading::wait_for_upgrade;
use bowline_protocol::wire::NAME;

/// The folder of filters that all tasks of this host share, whoever started them.
const STATE: &str = "/run/bowline";

/// How long a client may take to close its connection after the last answer. A client in Go that finds the answer and
/// the end of the connection at once takes either.
const LINGER: Duration = Duration::from_millis(250);

/// How long containerd may take to accept the last events.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the shim begins with.
pub enum Begin {
    First(UnixListener),
    /// What the program before this one has handed over.
    Again {
        executor: Box<HandedTasks>,
        handed: Box<Handed>,
        /// Why the program that should have taken over has executed this one again.
        refused: Option<String>,
    },
}

/// Serves the socket until the shim is told to leave.
///
/// # Errors
/// `Internal` when the event loop or the socket cannot be created; `Damaged` when something is missing of what was
/// handed over.
pub fn run(invocation: Invocation, begin: Begin) -> Result<()> {
    let events = Publisher::new(invocation.ttrpc_address.as_deref(), &invocation.namespace);
    let (taken, tasks, upgraded) = match begin {
        Begin::First(listener) => (Taken::first(listener), None, None),
        Begin::Again { executor, handed, refused } => (handed.take(&events)?, Some(executor), Some(refused)),
    };
    let Taken { listener, connections, containers, sandbox } = taken;
    let containers = Arc::new(containers);
    let tell = {
        let (containers, events) = (containers.clone(), events.clone());
        EventSink::new(move |event| manager_events::happened(&containers, &events, event))
    };
    let systemd = Systemd::by(&invocation.bowline);
    let config = Config {
        leave: Leave::WhenTold,
        tell: Some(tell),
        limits: InheritedLimits::Managers,
        only_a_shim: true,
        ..Config::new(Folder::at(&invocation.bundle), StateDir::new(STATE), ShimCgroup::Inherit, systemd)
    };
    let socket = invocation.socket.clone();
    let manager = |executor: Executor| async move {
        events.begin();
        let service = Service {
            executor: executor.clone(),
            containers,
            sandbox: Arc::new(sandbox),
            publisher: events.clone(),
            connections: Connections::default(),
            namespace: invocation.namespace.clone(),
            address: Rc::new(Cell::new(Some(socket))),
            privileged: invocation.privileged,
        };
        if let Some(refused) = upgraded {
            executor.ready().await;
            executor.end_upgrade(refused);
            Sandboxes(service.clone()).watch_again();
        }
        let sandbox = service.sandbox.clone();
        let served = serve(executor, service, listener, connections).await;
        sandbox.unmake().await;
        if !events.drained(LAST_WORDS).await {
            tracing::warn!("containerd has not taken the last events");
        }
        served?;
        // Everything is answered and removed: the kernel frees the rest faster than dropping it piece by piece.
        std::process::exit(0)
    };
    match tasks {
        Some(tasks) => serve_on(config, Some(tasks), manager),
        None => run_executor(config, manager),
    }
}

/// The services of the shim.
struct Served {
    tasks: Rc<Service>,
    sandboxes: Rc<Sandboxes>,
}

impl Services for Served {
    fn call(self: &Rc<Self>, service: &str, method: &str, payload: &[u8]) -> Answer<Call> {
        match service {
            // Every containerd speaks v2; v3 is the same under another name.
            "containerd.task.v2.Task" | "containerd.task.v3.Task" => task(&self.tasks, method, payload),
            "containerd.runtime.sandbox.v1.Sandbox" => sandbox(&self.sandboxes, method, payload),
            NAME => bowline_service::ours(&self.tasks, method, payload),
            _ => Err(unknown_service(service)),
        }
    }

    fn wait_again(self: &Rc<Self>, service: &str, method: &str, _: &[u8], begun: u64) -> Answer<Call> {
        match (service, method) {
            (NAME, "Upgrade") => Ok(wait_for_upgrade(&self.tasks.executor, begun)),
            _ => Err(unknown_method(method)),
        }
    }
}

async fn serve(executor: Executor, service: Service, listener: UnixListener, handed: Connected) -> Result<()> {
    let (sandboxes, connections) = (Rc::new(Sandboxes(service.clone())), service.connections.clone());
    let door = door(listener)?;
    executor.managed_by(Rc::new(Kept { door: door.clone(), service: service.clone() }));
    let tasks = Rc::new(service);
    let server = Server::new(Rc::new(Served { tasks: tasks.clone(), sandboxes }), connections);
    let server = Rc::new(server.lingering(LINGER));
    server.go_on(handed)?;
    server.serve(door, executor.closed()).await;
    tasks.free_address();
    server.leave().await;
    Ok(())
}
