//! The serving process: containerd's calls in, the executor's answers out, what
//! happens to tasks published, until containerd says that it was the last.

use std::cell::OnceCell;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::systemd::Systemd;
use bowline_executor::{
    Config, Doing, Executor, Folder, InheritedLimits, Kind, Leave, Result, ShimCgroup, StateDir, Teller,
    serve as run_executor,
};
use containerd_shim_protos::sandbox_async::create_sandbox;
use containerd_shim_protos::shim_async::create_task;
use ttrpc::r#async::Server;
use ttrpc::r#async::transport::Listener;

use super::address;
use super::containers::Containers;
use super::figures;
use super::happenings;
use super::invocation::Invocation;
use super::publisher::Publisher;
use super::sandbox::calls::Sandboxes;
use super::service::Service;
use crate::accept;

/// Where filters are kept that all tasks of this host share, whoever's.
const STATE: &str = "/run/bowline";

/// Task v2 is what every containerd speaks; v3 is the same by another name.
const NAMES: [&str; 2] = ["containerd.task.v2.Task", "containerd.task.v3.Task"];

/// How long the last events may take to be taken.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves the socket until the shim is told to leave.
///
/// # Errors
/// `Internal` when the event loop or the socket cannot be had.
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

async fn serve(executor: Executor, service: Service, listener: UnixListener, socket: &str) -> Result<()> {
    let what = || "cannot serve the shim's socket";
    listener.set_nonblocking(true).doing(Kind::Internal, what)?;
    let listener = tokio::net::UnixListener::from_std(listener).doing(Kind::Internal, what)?;
    let sandboxes = Arc::new(Sandboxes(service.clone()));
    let figures = figures::served(service.clone());
    let service = Arc::new(service);
    let mut server = Server::new().add_listener(Listener::new(accept::of_our_user(listener)));
    for name in NAMES {
        let methods = create_task(service.clone()).into_values();
        server = server.register_service(methods.map(|methods| (name.to_owned(), methods)).collect());
    }
    server = server.register_service(create_sandbox(sandboxes)).register_service(figures);
    server.start().await.doing(Kind::Internal, what)?;
    executor.closed().await;
    // While it is still ours: from here on another may serve the group there.
    let removed = address::remove(socket);
    server.shutdown().await.doing(Kind::Internal, || "cannot close the shim's socket")?;
    removed
}
