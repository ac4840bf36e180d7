//! The serving process: passes containerd's calls to the executor, publishes what happens to tasks, and ends after the
//! last container.

use std::cell::{Cell, OnceCell};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::systemd::Systemd;
use bowline_executor::{
    Config, Executor, Folder, InheritedLimits, Leave, Result, ShimCgroup, StateDir, Teller, serve as run_executor,
};

use super::containers::Containers;
use super::invocation::Invocation;
use super::publisher::Publisher;
use super::sandbox_calls::{Sandboxes, sandbox};
use super::service::{Service, task};
use super::{happenings, ours};
use bowline_protocol::calls::{Answer, Call, Connections, Server, Services, door, unknown_service};
use bowline_protocol::wire::NAME;

/// The folder of filters that all tasks of this host share, whoever started them.
const STATE: &str = "/run/bowline";

/// How long a client may take to close its connection after the last answer. A client in Go that finds the answer and
/// the end of the connection at once takes either.
const LINGER: Duration = Duration::from_millis(250);

/// How long containerd may take to accept the last events.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves the socket until the shim is told to leave.
///
/// # Errors
/// `Internal` when the event loop or the socket cannot be created.
pub fn run(invocation: Invocation, listener: UnixListener) -> Result<()> {
    let containers = Arc::<Containers>::default();
    let publisher = Rc::<OnceCell<Publisher>>::default();
    let tell = {
        let (containers, publisher) = (containers.clone(), publisher.clone());
        // Nothing happens before the first call, so no event is lost here.
        Teller::new(move |told| {
            if let Some(publisher) = publisher.get() {
                happenings::happened(&containers, publisher, told);
            }
        })
    };
    let systemd = Systemd::by(&invocation.bowline);
    let config = Config {
        leave: Leave::WhenTold,
        tell: Some(tell),
        limits: InheritedLimits::Managers,
        ..Config::new(Folder::at(&invocation.bundle), StateDir::new(STATE), ShimCgroup::Inherit, systemd)
    };
    let socket = invocation.socket.clone();
    run_executor(config, |executor| async move {
        let events =
            publisher.get_or_init(|| Publisher::new(invocation.ttrpc_address.as_deref(), &invocation.namespace));
        let events = events.clone();
        let service = Service {
            executor: executor.clone(),
            containers,
            sandbox: Arc::default(),
            publisher: events.clone(),
            connections: Connections::default(),
            namespace: invocation.namespace.clone(),
            address: Rc::new(Cell::new(Some(socket))),
        };
        let sandbox = service.sandbox.clone();
        let served = serve(executor, service, listener).await;
        sandbox.unmake().await;
        if !events.drained(LAST_WORDS).await {
            tracing::warn!("containerd has not taken the last events");
        }
        served?;
        // Everything is answered and removed: the kernel frees the rest faster than dropping it piece by piece.
        std::process::exit(0)
    })
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
            NAME => ours::ours(&self.tasks, method, payload),
            _ => Err(unknown_service(service)),
        }
    }
}

async fn serve(executor: Executor, service: Service, listener: UnixListener) -> Result<()> {
    let (sandboxes, connections) = (Rc::new(Sandboxes(service.clone())), service.connections.clone());
    let tasks = Rc::new(service);
    let server = Server::new(Rc::new(Served { tasks: tasks.clone(), sandboxes }), connections);
    let server = Rc::new(server.lingering(LINGER));
    server.serve(door(listener)?, executor.closed()).await;
    tasks.free_address();
    server.leave().await;
    Ok(())
}
