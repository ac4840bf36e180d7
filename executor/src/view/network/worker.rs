//! CNI for the shim, whose loop must not wait: a worker runs the plugins. The worker ends with the shim, and the
//! plugins end with the worker.
//!
//! ```text
//!   shim ─fork─► worker ─fork─► plugin and what it starts
//!    └── ends ────► kills ─────────┘      a process that finds the shim's lock free may undo
//! ```

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use bowline_error::{Doing, Kind, Result};
use bowline_model::record::Connected;
use bowline_spec::network::NetworkAttachment;
use bowline_sys as sys;
use rustix::process::{getpid, getppid};
use serde::{Serialize, de::DeserializeOwned};

use super::attach::{self, Sandbox, joined};
use super::bounded_run::Bounds;
use crate::process::worker;

/// Like [`super::add`], in a worker. If the worker is lost, what it has begun is undone too.
///
/// # Errors
/// `AlreadyExists` when networks are kept in `folder`. Before any plugin runs, `BadSpec` or `NotFound` for a list,
/// `Unsupported` for a plugin that is missing. Then the errors of plugins; `Internal` when the worker is lost.
pub async fn add(folder: &Path, sandbox: &Sandbox, attachments: &[NetworkAttachment]) -> Result<Vec<Connected>> {
    let timeout = sandbox.timeout;
    match run(timeout, |bounds| attach::add_within(folder, sandbox, attachments, bounds)).await {
        Ok(added) => added,
        Err(lost) => Err(match del(folder, timeout).await {
            Ok(()) => lost,
            Err(left) => joined(&lost, "; and undoing it failed: ", &left),
        }),
    }
}

/// Like [`super::check`], in a worker.
///
/// # Errors
/// `WrongState` for a network that was not added completely, or when the namespace is gone; the errors of plugins,
/// combined; `Internal` when the worker is lost.
pub async fn check(folder: &Path, timeout: Duration) -> Result<Vec<String>> {
    run(timeout, |bounds| attach::check_within(folder, bounds)).await?
}

/// Like [`super::del`], in a worker.
///
/// # Errors
/// The errors of plugins, combined: another call asks these plugins again. `Internal` when the worker is lost.
pub async fn del(folder: &Path, timeout: Duration) -> Result<()> {
    run(timeout, |bounds| attach::del_within(folder, bounds)).await?
}

/// Runs `work` in a worker. Returns its result, or an error if the worker is lost.
async fn run<T>(timeout: Duration, work: impl FnOnce(Bounds<'_>) -> Result<T>) -> Result<Result<T>>
where
    T: Serialize + DeserializeOwned,
{
    let shim = getpid();
    worker::run("networks", || {
        let of = sys::pidfd_open(shim.as_raw_pid()).doing(Kind::Internal, || "cannot watch the shim")?;
        // Otherwise the shim had ended before, and its number may be another process's.
        if getppid() != Some(shim) {
            sys::exit_now(1);
        }
        let shim: BorrowedFd<'_> = of.as_fd();
        Ok(work(Bounds { timeout, shim: Some(shim) }))
    })
    .await
}
