//! The shim's own life.
//!
//! ```text
//!   Idle ─► Serving ─► Leaving
//!     └───────────────────┘
//! ```
//!
//! Counts what keeps the shim from leaving: launches under way, tasks that are not over, a sandbox that is being
//! made or removed.

use serde::{Deserialize, Serialize};

/// Where a shim is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// No caller has asked for anything that keeps it from leaving.
    #[default]
    Idle,
    /// It does what callers have asked for.
    Serving {
        /// How many things keep it from leaving.
        busy: usize,
        /// Whether it leaves by itself after that.
        last: bool,
    },
    /// It launches nothing more, and leaves when everything has ended.
    Leaving {
        /// How many things keep it from leaving.
        busy: usize,
    },
}

/// What happens to a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Something begins that keeps the shim from leaving.
    Begun,
    /// Something that kept the shim from leaving is over.
    Done,
    /// What it was started for exists, or has gone: it leaves as soon as nothing keeps it.
    Last,
    /// The manager that started it has gone, and launches nothing more.
    ManagerGone,
    /// A caller tells it to leave.
    Leave,
}

impl Life {
    /// The only way a shim changes state. A trigger that has no place in a state changes nothing.
    pub fn apply(&mut self, trigger: Trigger) {
        *self = match (*self, trigger) {
            (Life::Idle, Trigger::Begun) => Life::Serving { busy: 1, last: false },
            (Life::Idle, Trigger::Last | Trigger::ManagerGone | Trigger::Leave) => Life::Leaving { busy: 0 },
            (Life::Serving { busy, last }, Trigger::Begun) => Life::Serving { busy: busy + 1, last },
            (Life::Serving { busy, last }, Trigger::Done) => Life::Serving { busy: busy.saturating_sub(1), last },
            (Life::Serving { busy, .. }, Trigger::Last) => Life::Serving { busy, last: true },
            (Life::Serving { busy, .. }, Trigger::Leave) => Life::Leaving { busy },
            (Life::Leaving { busy }, Trigger::Begun) => Life::Leaving { busy: busy + 1 },
            (Life::Leaving { busy }, Trigger::Done) => Life::Leaving { busy: busy.saturating_sub(1) },
            // What was launched goes on without its manager.
            (Life::Serving { .. } | Life::Leaving { .. }, Trigger::ManagerGone)
            | (Life::Leaving { .. }, Trigger::Last | Trigger::Leave)
            | (Life::Idle, Trigger::Done) => *self,
        };
    }

    /// Whether it was told to leave: nothing is launched any more.
    pub fn is_leaving(self) -> bool {
        matches!(self, Life::Leaving { .. })
    }

    /// Whether nothing keeps it from leaving any more.
    pub fn is_over(self) -> bool {
        matches!(self, Life::Serving { busy: 0, last: true } | Life::Leaving { busy: 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_leaves_in_the_end_whatever_has_happened_and_never_before_what_it_does(
            triggers in prop::collection::vec(
                prop::sample::select(vec![Trigger::Begun, Trigger::Done, Trigger::Last, Trigger::ManagerGone, Trigger::Leave]),
                0..40,
            ),
        ) {
            let (mut life, mut busy, mut wanted) = (Life::default(), 0_usize, false);
            for trigger in triggers {
                if trigger == Trigger::Done && busy == 0 {
                    continue;
                }
                wanted |= matches!(trigger, Trigger::Last | Trigger::Leave)
                    || (trigger == Trigger::ManagerGone && life == Life::Idle);
                busy = match trigger {
                    Trigger::Begun => busy + 1,
                    Trigger::Done => busy - 1,
                    Trigger::Last | Trigger::ManagerGone | Trigger::Leave => busy,
                };
                life.apply(trigger);
                prop_assert_eq!(life.is_over(), busy == 0 && wanted);
            }
            life.apply(Trigger::Leave);
            (0..busy).for_each(|_| life.apply(Trigger::Done));
            prop_assert!(life.is_over() && life.is_leaving());
        }
    }
}
