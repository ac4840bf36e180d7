//! An exec's life, from its request until its end is reported; then it is forgotten.
//!
//! ```text
//!   Starting ─► Running ─► Ended ─► ExitPublished
//!       │          ▼         ▲
//!       └──────► Killing ────┘
//! ```

use serde::{Deserialize, Serialize};

/// Where an exec is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Its program is not executed yet; it may not even be cloned yet.
    #[default]
    Starting,
    Running,
    /// Its deadline has passed: everything that it started is being killed.
    Killing,
    /// It was reaped, or there was nothing to reap; the rest of its output is being read.
    Ended,
    /// Its end was reported, and its outcome is ready for its caller.
    #[serde(rename = "told")]
    ExitPublished,
}

/// What happens to an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Executed,
    Deadline,
    /// It was reaped, or could not be started, or the killed processes take too long to die.
    Ended,
    /// Its end was reported.
    ExitPublished,
}

impl Life {
    /// The only way an exec changes state. A trigger that comes too late changes nothing.
    pub fn apply(&mut self, trigger: Trigger) {
        *self = match (*self, trigger) {
            (Life::Starting, Trigger::Executed) => Life::Running,
            (Life::Starting | Life::Running, Trigger::Deadline) => Life::Killing,
            (Life::Starting | Life::Running | Life::Killing, Trigger::Ended) => Life::Ended,
            (Life::Ended, Trigger::ExitPublished) => Life::ExitPublished,
            (Life::Running | Life::Killing | Life::Ended | Life::ExitPublished, Trigger::Executed)
            | (Life::Killing | Life::Ended | Life::ExitPublished, Trigger::Deadline)
            | (Life::Ended | Life::ExitPublished, Trigger::Ended)
            | (Life::Starting | Life::Running | Life::Killing | Life::ExitPublished, Trigger::ExitPublished) => *self,
        };
    }

    /// Whether it was reaped, or is no longer waited for.
    pub fn has_ended(self) -> bool {
        matches!(self, Life::Ended | Life::ExitPublished)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_happens_an_exec_that_is_killed_runs_no_more_and_can_end(
            triggers in prop::collection::vec(
                prop::sample::select(vec![Trigger::Executed, Trigger::Deadline, Trigger::Ended, Trigger::ExitPublished]),
                0..12,
            ),
        ) {
            let mut life = Life::default();
            for trigger in &triggers {
                let before = life;
                life.apply(*trigger);
                prop_assert!(before != Life::Killing || life != Life::Running);
                prop_assert!(!before.has_ended() || life.has_ended());
                prop_assert!(before != Life::ExitPublished || life == Life::ExitPublished);
                prop_assert!(life != Life::ExitPublished || before.has_ended());
            }
            prop_assert_eq!(life.has_ended(), triggers.contains(&Trigger::Ended));
            life.apply(Trigger::Ended);
            life.apply(Trigger::ExitPublished);
            prop_assert_eq!(life, Life::ExitPublished);
        }
    }
}
