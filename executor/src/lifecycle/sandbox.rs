//! A sandbox's life.
//!
//! ```text
//!   Making ─► Ready ◄─► Going ─► Dismantling ◄─► Broken
//!      └─────────────────────────► Gone ◄┘
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
    /// It is taken down.
    Dismantling,
    /// Some of it could not be taken down: nobody joins what is left, and its removal can be tried again.
    Broken,
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
    /// Nobody is in its way any more: what follows cannot be taken back.
    Dismantle,
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
            (Life::Going { .. }, Event::Dismantle) | (Life::Broken, Event::Remove { .. }) => Life::Dismantling,
            (Life::Dismantling, Event::Kept) => Life::Broken,
            (Life::Making | Life::Dismantling, Event::Removed) => Life::Gone,
            // Its shim's leaving undoes one that is being made.
            (Life::Making, Event::Remove { .. } | Event::Dismantle | Event::Kept)
            | (Life::Ready, Event::Made | Event::Dismantle | Event::Kept | Event::Removed)
            | (Life::Going { .. }, Event::Made | Event::Remove { .. } | Event::Removed)
            | (Life::Dismantling, Event::Made | Event::Remove { .. } | Event::Dismantle)
            | (Life::Broken, Event::Made | Event::Dismantle | Event::Kept | Event::Removed)
            | (Life::Gone, Event::Made | Event::Remove { .. } | Event::Dismantle | Event::Kept | Event::Removed) => {
                return false;
            }
        };
        *self = next;
        true
    }

    /// Whether it is there.
    pub fn is_there(self) -> bool {
        matches!(self, Life::Ready | Life::Going { .. } | Life::Dismantling | Life::Broken)
    }

    /// Whether somebody removes it.
    pub fn is_going(self) -> bool {
        matches!(self, Life::Going { .. } | Life::Dismantling)
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
                    Event::Dismantle,
                    Event::Kept,
                    Event::Removed,
                ]),
                0..20,
            ),
        ) {
            let (mut life, mut apart) = (Life::default(), false);
            for event in events {
                let before = life;
                let changed = life.on(event);
                prop_assert_eq!(changed, life != before);
                prop_assert!(before != Life::Gone || life == Life::Gone);
                prop_assert!(!life.is_forced() || life.is_going());
                apart |= life == Life::Dismantling;
                prop_assert!(!apart || life != Life::Ready, "nobody joins what was taken apart");
            }
            for event in [Event::Made, Event::Remove { by_force: true }, Event::Dismantle, Event::Removed] {
                life.on(event);
            }
            prop_assert_eq!(life, Life::Gone);
        }
    }
}
