//! The words for the state of a task.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The state of a task, as its shim says it in every answer.
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
        Shown::from(self).as_str()
    }

    /// The status after the program was executed.
    pub fn started(self) -> Status {
        if self == Status::Created { Status::Running } else { self }
    }
}

/// The state of a task as commands and metrics show it: what its shim says, or what is found without an answer. In the
/// order in which `ps` sorts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "&'static str")]
pub enum Shown {
    /// Being launched.
    #[default]
    Created,
    Running,
    Paused,
    Stopping,
    /// Its shim lives and does not answer.
    NotAnswering,
    Exited,
    /// Its shim has died, and nobody has taken it over.
    Dead,
    /// Its files cannot be read.
    Damaged,
}

impl Shown {
    pub const ALL: [Shown; 8] = [
        Shown::Created,
        Shown::Running,
        Shown::Paused,
        Shown::Stopping,
        Shown::NotAnswering,
        Shown::Exited,
        Shown::Dead,
        Shown::Damaged,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Shown::Created => "created",
            Shown::Running => "running",
            Shown::Paused => "paused",
            Shown::Stopping => "stopping",
            Shown::NotAnswering => "not answering",
            Shown::Exited => "exited",
            Shown::Dead => "dead",
            Shown::Damaged => "damaged",
        }
    }
}

impl From<Status> for Shown {
    fn from(status: Status) -> Shown {
        match status {
            Status::Created => Shown::Created,
            Status::Running => Shown::Running,
            Status::Paused => Shown::Paused,
            Status::Stopping => Shown::Stopping,
            Status::Exited => Shown::Exited,
        }
    }
}

impl From<Shown> for &'static str {
    fn from(shown: Shown) -> &'static str {
        shown.as_str()
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(word: &str) -> Result<Shown, String> {
        Shown::ALL
            .into_iter()
            .find(|shown| shown.as_str() == word)
            .ok_or_else(|| format!("{word:?} is no status; write one of {}", Shown::ALL.map(Shown::as_str).join(", ")))
    }
}
