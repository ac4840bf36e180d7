//! A sandbox's life.
//!
//! ```text
//!   Making ─► Ready ◄─► Going ─► Gone
//!      └────────────────────────┘
//! ```

use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Its cgroups, namespaces and networks are made.
    #[default]
    Making,
    /// Members may join.
    Ready,
    /// It is removed: nobody joins any more.
    Going {
        /// Who is being launched ends.
        by_force: bool,
    },
    /// Nothing is left of it, or it was never made.
    Gone,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is made.
    Made,
    /// Somebody removes it.
    Remove {
        /// With whoever runs or is launched.
        by_force: bool,
    },
    /// It cannot be removed now.
    Kept,
    /// It was removed, or could not be made.
    Removed,
}

impl Life {
    /// The only way a sandbox changes state: whether it has. What has no place changes nothing.
    pub fn on(&mut self, event: Event) -> bool {
        let next = match (*self, event) {
            (Life::Making, Event::Made) | (Life::Going { .. }, Event::Kept) => Life::Ready,
            (Life::Ready, Event::Remove { by_force }) => Life::Going { by_force },
            (Life::Making | Life::Going { .. }, Event::Removed) => Life::Gone,
            // One that is made is broken off by its shim's leaving.
            (Life::Making, Event::Remove { .. } | Event::Kept)
            | (Life::Ready, Event::Made | Event::Kept | Event::Removed)
            | (Life::Going { .. }, Event::Made | Event::Remove { .. })
            | (Life::Gone, Event::Made | Event::Remove { .. } | Event::Kept | Event::Removed) => return false,
        };
        *self = next;
        true
    }

    /// Whether it is there.
    pub fn is_there(self) -> bool {
        matches!(self, Life::Ready | Life::Going { .. })
    }

    /// Whether it is removed: nobody joins any more.
    pub fn is_going(self) -> bool {
        matches!(self, Life::Going { .. })
    }

    /// Whether it is removed by force: who is being launched ends.
    pub fn is_forced(self) -> bool {
        self == Life::Going { by_force: true }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_happens_a_sandbox_can_be_removed_and_is_gone_for_good(
            events in prop::collection::vec(
                prop::sample::select(vec![
                    Event::Made,
                    Event::Remove { by_force: false },
                    Event::Remove { by_force: true },
                    Event::Kept,
                    Event::Removed,
                ]),
                0..20,
            ),
        ) {
            let mut life = Life::default();
            for event in events {
                let before = life;
                let changed = life.on(event);
                prop_assert_eq!(changed, life != before);
                prop_assert!(before != Life::Gone || life == Life::Gone);
                prop_assert!(!life.is_forced() || life.is_going());
            }
            life.on(Event::Made);
            life.on(Event::Remove { by_force: true });
            life.on(Event::Removed);
            prop_assert_eq!(life, Life::Gone);
        }
    }
}
