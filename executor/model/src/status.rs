//! The word for the state of a task.

use serde::{Deserialize, Serialize};

/// The word for a task's state in every answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Set up; the user's program does not run yet.
    Created,
    /// The user's program runs.
    Running,
    /// All its processes are frozen.
    Paused,
    /// Asked to end; killed when its grace is over.
    Stopping,
    /// Init has ended; the report may still be in the making.
    Exited,
}

impl Status {
    /// The status as answers spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopping => "stopping",
            Status::Exited => "exited",
        }
    }

    /// The status after the program was executed.
    pub fn started(self) -> Status {
        if self == Status::Created { Status::Running } else { self }
    }
}
