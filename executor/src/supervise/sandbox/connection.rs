//! The network of a sandbox, or of a task that is in none: its ports on the host, and the interfaces that plugins make.
//!
//! ```text
//!   description ─► ports taken, namespace made ─► plugins ─► the task joins the namespace ─► … ─► undone
//! ```
//!
//! Must not: know whose network it is.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bowline_error::Result;
use bowline_model::record::Connected;
use bowline_spec::{Namespace, Network, NetworkMode, Task as Description};

use crate::view::network;
use crate::view::sandbox_namespaces::{self, Shared};

/// Takes the host's ports of `network`, and has plugins make its interfaces in the namespace at `netns`. They know it by
/// `id`, a name on the host. What they do is kept in `folder` until it is undone.
///
/// # Errors
/// `WrongState` for a port that is taken; `Unsupported` for a plugin that is missing; the errors of plugins. Nothing is
/// left then.
pub async fn connect(
    folder: &Path,
    id: &str,
    network: &Network,
    netns: PathBuf,
) -> Result<(Vec<OwnedFd>, Vec<Connected>)> {
    let ports = network::ports::take(&network.ports)?;
    let who = network::Sandbox {
        id: id.to_owned(),
        netns,
        folders: network.plugin_folders(),
        args: network.args.clone(),
        capabilities: network.capabilities(),
        timeout: network.plugin_timeout(),
    };
    let interfaces = network::worker::add(folder, &who, &network.attachments(id)).await?;
    Ok((ports, interfaces))
}

/// Takes the host's ports of `network`, which a shim that died has held. Who else has one by now keeps it.
pub fn ports_again(network: &Network) -> Vec<OwnedFd> {
    network::ports::take(&network.ports).unwrap_or_else(|error| {
        tracing::warn!(%error, "a port of what was taken over may be given to somebody else");
        Vec::new()
    })
}

/// Has plugins undo what they did for `network`; nothing where that is done already.
///
/// # Errors
/// The errors of plugins, combined: another call asks these plugins again. `Internal` when the worker is lost.
pub async fn disconnect(folder: &Path, network: &Network) -> Result<()> {
    if !network.has_plugins() {
        return Ok(());
    }
    network::worker::del(folder, network.plugin_timeout()).await
}

/// Makes the network of the task `id`, if its description has one: `None` for one that says nothing of it.
///
/// # Errors
/// As [`connect`]; also `Unsupported` where the kernel refuses a namespace, and `BadSpec` for a sysctl that it does not
/// take. Nothing is left then.
pub async fn make(folder: &Path, id: &str, network: &Network) -> Result<Option<(Shared, Vec<Connected>)>> {
    if network.mode() == NetworkMode::Host {
        return Ok(None);
    }
    let wanted = sandbox_namespaces::Wanted {
        network: network.mode(),
        ipc: false,
        uts: false,
        hostname: None,
        sysctls: network.sysctls.clone(),
    };
    let mut shared = sandbox_namespaces::make(&wanted).await?;
    let mut interfaces = Vec::new();
    if let Some(netns) = shared.network().filter(|_| network.has_plugins()) {
        (shared.ports, interfaces) = connect(folder, id, network, netns).await?;
    }
    if let Err(error) = shared.settle().await {
        give_up(folder, network).await;
        return Err(error);
    }
    Ok(Some((shared, interfaces)))
}

/// Like [`disconnect`], for a launch that has failed: a failure is only logged. A removal tries again.
pub async fn give_up(folder: &Path, network: &Network) {
    if let Err(error) = disconnect(folder, network).await {
        tracing::error!(%error, "a network is left behind");
    }
}

/// The description of a task whose own network is at `netns`, if it has one.
pub fn joined(task: &Description, netns: Option<PathBuf>) -> Cow<'_, Description> {
    let Some(netns) = netns else { return Cow::Borrowed(task) };
    let mut joined = task.clone();
    joined.network = Network::default();
    joined.namespaces.network = Some(Namespace::Path(netns));
    Cow::Owned(joined)
}
