//! An exec's life, from its request to its end; once that is told, it is forgotten.
//!
//! ```text
//!   Starting ─► Running ─► Ended
//!       │          ▼         ▲
//!       └──────► Killing ────┘
//! ```

use serde::{Deserialize, Serialize};

/// Where an exec is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Its program is not executed yet; it may not be cloned yet.
    #[default]
    Starting,
    /// Its program runs.
    Running,
    /// Its deadline has come: all that it has started is killed.
    Killing,
    /// It was reaped, or there was nothing to reap; the rest of its output is read.
    Ended,
}

/// What happens to an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its program was executed.
    Executed,
    /// Its deadline has come.
    Deadline,
    /// It was reaped, or could not be started, or what was killed takes too long to die.
    Ended,
}

impl Life {
    /// The only way an exec changes state. What comes too late changes nothing.
    pub fn on(&mut self, event: Event) {
        *self = match (*self, event) {
            (Life::Starting, Event::Executed) => Life::Running,
            (Life::Starting | Life::Running, Event::Deadline) => Life::Killing,
            (Life::Starting | Life::Running | Life::Killing, Event::Ended) => Life::Ended,
            (Life::Running | Life::Killing | Life::Ended, Event::Executed)
            | (Life::Killing | Life::Ended, Event::Deadline)
            | (Life::Ended, Event::Ended) => *self,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_happens_an_exec_that_is_killed_runs_no_more_and_can_end(
            events in prop::collection::vec(
                prop::sample::select(vec![Event::Executed, Event::Deadline, Event::Ended]), 0..12,
            ),
        ) {
            let mut life = Life::default();
            for event in &events {
                let before = life;
                life.on(*event);
                prop_assert!(before != Life::Killing || life != Life::Running);
                prop_assert!(before != Life::Ended || life == Life::Ended);
            }
            prop_assert_eq!(life == Life::Ended, events.contains(&Event::Ended));
            life.on(Event::Ended);
            prop_assert_eq!(life, Life::Ended);
        }
    }
}
