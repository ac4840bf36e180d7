//! What is known of a sandbox, and what of it differs from its description.

use bowline_client::spawn;
use bowline_executor::internal::housekeeping::{Cgroups, Difference};
use bowline_model::folder::StateDir;
use bowline_model::sandbox::SandboxState;
use bowline_model::status::Shown;
use bowline_model::{Kind, Result};
use bowline_spec::Enforcement;
use bowline_spec::id::TaskId;
use serde::Serialize;

use crate::ui::print::complain;

/// A sandbox, as `inspect` and `ls` print it.
#[derive(Debug, Serialize)]
pub struct Inspection {
    pub id: TaskId,
    /// "ready"; "created" while it is being created; "dead" if its shim died; "not answering"; "damaged" if its record
    /// cannot be read.
    pub status: &'static str,
    #[serde(flatten)]
    pub state: Option<SandboxState>,
    /// The joint limits of which the cgroup's files say something else: somebody else has changed them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differing_limits: Vec<Difference>,
    /// All tasks that are or were members.
    pub tasks: Vec<TaskId>,
}

impl Inspection {
    /// What is known of a sandbox that lives, beside what the kernel says of its limits.
    pub fn beside_the_kernel(mut self) -> Inspection {
        let limited = |state: &&SandboxState| state.record.sandbox.cgroup != Enforcement::Off;
        // Who cannot ask the kernel is shown what is recorded.
        if let Some(state) = self.state.as_ref().filter(limited)
            && let Ok(cgroups) = spawn::systemd().and_then(Cgroups::of_host)
        {
            self.differing_limits =
                cgroups.differences(&state.record.cgroup, &state.budget.to_oci()).unwrap_or_default();
        }
        self
    }
}

/// Collects what is known of one sandbox, from its shim or its folder.
pub async fn examine(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    match look(state, id).await {
        // A shim that exits closes the connection. The second look finds what it left, or that the sandbox was removed.
        Err(error) if matches!(error.kind(), Kind::Internal | Kind::WrongState) => look(state, id).await,
        found => found,
    }
}

async fn look(state: &StateDir, id: &TaskId) -> Result<Inspection> {
    let folder = bowline_client::sandbox::folder(state, id)?;
    let (status, found) = match bowline_client::look(&folder, id).await {
        Ok(bowline_client::Presence::Live(shim)) => match shim.sandbox_state().await {
            Ok(found) => ("ready", Some(found)),
            Err(error) if error.kind() == Kind::NotFound => (Shown::Created.as_str(), None),
            Err(error) if error.kind() == Kind::Unavailable => (Shown::NotAnswering.as_str(), None),
            Err(error) => return Err(error),
        },
        Ok(bowline_client::Presence::Starting) => (Shown::Created.as_str(), None),
        Ok(bowline_client::Presence::Dead | bowline_client::Presence::Exited(_)) => (Shown::Dead.as_str(), None),
        Err(error) if error.kind() == Kind::Unavailable => (Shown::NotAnswering.as_str(), None),
        // It was removed meanwhile.
        Err(error) if error.kind() == Kind::NotFound => return Err(bowline_client::sandbox::unknown(id)),
        Err(error) => return Err(error),
    };
    let found = match found {
        Some(found) => found,
        None => {
            let record = folder.sandbox()?.ok_or_else(|| bowline_client::sandbox::unknown(id))?;
            SandboxState {
                class: record.sandbox.class(&[]),
                record,
                budget: bowline_executor::JointLimits::default(),
                notes: Vec::new(),
                members: Vec::new(),
            }
        }
    };
    let tasks = state.members(id)?;
    Ok(Inspection { id: id.clone(), status, state: Some(found), differing_limits: Vec::new(), tasks })
}

/// Reports how the sandbox differs from its description, unless that was `told` before, and which limits this host does
/// not enforce.
pub fn warn(found: &Inspection, told: &[String]) {
    let Some(state) = &found.state else { return };
    for limit in &state.record.unenforced {
        complain(&format!("not enforced: {limit}"), None);
    }
    for note in state.notes.iter().filter(|note| !told.contains(note)) {
        complain(note, None);
    }
}
