//! The serving process: containerd's calls in, the executor's answers out, what
//! happens to tasks published, until containerd says that it was the last.

use std::cell::OnceCell;
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
use super::{address, happenings, ours};
use bowline_protocol::calls::{Answer, Call, Connections, Server, Services, unknown_service};
use bowline_protocol::wire::NAME;

/// Where filters are kept that all tasks of this host share, whoever's.
const STATE: &str = "/run/bowline";

/// How long the last events may take to be taken.
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
        // Nothing happens before somebody asks for it.
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
        };
        let sandbox = service.sandbox.clone();
        let served = serve(executor, service, listener, &socket).await;
        sandbox.unmake().await;
        if !events.drained(LAST_WORDS).await {
            tracing::warn!("containerd has not taken the last events");
        }
        served?;
        // All is answered and removed: the kernel takes back the rest, faster
        // than it could be dropped piece by piece.
        std::process::exit(0)
    })
}

/// What the shim serves.
struct Served {
    tasks: Rc<Service>,
    sandboxes: Rc<Sandboxes>,
}

impl Services for Served {
    fn call(self: &Rc<Self>, service: &str, method: &str, payload: &[u8]) -> Answer<Call> {
        match service {
            // v2 is what every containerd speaks; v3 is the same by another name.
            "containerd.task.v2.Task" | "containerd.task.v3.Task" => task(&self.tasks, method, payload),
            "containerd.runtime.sandbox.v1.Sandbox" => sandbox(&self.sandboxes, method, payload),
            NAME => ours::ours(&self.tasks, method, payload),
            _ => Err(unknown_service(service)),
        }
    }
}

async fn serve(executor: Executor, service: Service, listener: UnixListener, socket: &str) -> Result<()> {
    let (sandboxes, connections) = (Rc::new(Sandboxes(service.clone())), service.connections.clone());
    let server = Server::new(Rc::new(Served { tasks: Rc::new(service), sandboxes }), connections);
    server.serve(listener, executor.closed()).await?;
    // While it is still ours: from here on another may serve the group there.
    let removed = address::remove(socket);
    server.leave().await;
    removed
}
