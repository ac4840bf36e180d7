//! What gc finds, and who holds the folder of it.
//!
//! Must not: change anything.

use std::path::PathBuf;

use bowline_error::{Kind, Result};
use bowline_model::folder::{Folder, Lock, Owner};
use serde::Serialize;

/// What kind of thing was left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A sandbox whose shim died, with its network.
    Sandbox,
    /// The cgroup of a task or sandbox, of which no folder tells which it was.
    Cgroup,
    /// The cgroup of a sandbox's shim.
    Overhead,
    /// The cgroup of a pod.
    Pod,
    /// A task whose shim died; its folder stays, for `ps` and `rm`.
    Task,
    /// What a launch or removal that was cut short has left in the state folder.
    Remains,
}

impl What {
    /// The kind in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            What::Sandbox => "sandbox",
            What::Cgroup => "cgroup",
            What::Overhead => "overhead",
            What::Pod => "pod",
            What::Task => "task",
            What::Remains => "remains",
        }
    }
}

/// Something that was left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// What kind of thing it is.
    pub what: What,
    /// The sandbox or task that it belonged to; of a pod, its uid. One of another state folder has its name on the host.
    pub id: String,
    /// Its name on the host.
    #[serde(skip)]
    pub name: String,
    /// Why it is an orphan.
    pub why: String,
    /// The paths of its cgroups, as they are below each hierarchy.
    pub cgroups: Vec<String>,
    /// How many processes are in these cgroups.
    pub processes: usize,
    /// The folder of a task or of remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Whether it is left alone: a pod that is not known to be alive and has an owner, or what a new shim can take over.
    #[serde(skip)]
    pub owned: bool,
    /// Whether it is of another state folder, which is there or not known to be gone.
    #[serde(skip)]
    pub elsewhere: bool,
}

/// The result of clearing an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was removed.
    Removed,
    /// It has an owner by now, and was left alone.
    Owned,
}

/// Who holds the lock of a folder.
pub(super) enum Held {
    ByUs(Lock),
    ByAShim,
    Missing,
}

pub(super) fn held(folder: &Folder) -> Result<Held> {
    if !folder.exists()? {
        return Ok(Held::Missing);
    }
    match folder.owner() {
        Ok(Owner::Shim) => Ok(Held::ByAShim),
        // Somebody has replaced the lock of a shim that listens. That of a sandbox may not know a member.
        Ok(Owner::Nobody(_)) if folder.sandbox_by_socket().is_none() && folder.has_shim() => Ok(Held::ByAShim),
        Ok(Owner::Nobody(lock)) => Ok(Held::ByUs(lock)),
        Err(error) if error.kind() == Kind::NotFound => Ok(Held::Missing),
        Err(error) => Err(error),
    }
}

/// Like [`held`], but treats a folder whose lock cannot be opened as held by a shim, so that the other
/// folders are still handled.
pub(super) fn held_or_unknown(folder: &Folder) -> Held {
    held(folder).unwrap_or_else(|error| {
        tracing::warn!(%error, "a folder is left alone");
        Held::ByAShim
    })
}

pub(super) fn with_processes(why: String, processes: usize) -> String {
    match processes {
        0 => why,
        1 => why + "; 1 process",
        n => format!("{why}; {n} processes"),
    }
}
