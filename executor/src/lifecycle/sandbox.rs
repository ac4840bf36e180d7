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
pub enum Trigger {
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
    pub fn on(&mut self, trigger: Trigger) -> bool {
        let next = match (*self, trigger) {
            (Life::Making, Trigger::Made) | (Life::Going { .. }, Trigger::Kept) => Life::Ready,
            (Life::Ready, Trigger::Remove { by_force }) => Life::Going { by_force },
            (Life::Going { .. }, Trigger::Dismantle) | (Life::Broken, Trigger::Remove { .. }) => Life::Dismantling,
            (Life::Dismantling, Trigger::Kept) => Life::Broken,
            (Life::Making | Life::Dismantling, Trigger::Removed) => Life::Gone,
            // Its shim's leaving undoes one that is being made.
            (Life::Making, Trigger::Remove { .. } | Trigger::Dismantle | Trigger::Kept)
            | (Life::Ready, Trigger::Made | Trigger::Dismantle | Trigger::Kept | Trigger::Removed)
            | (Life::Going { .. }, Trigger::Made | Trigger::Remove { .. } | Trigger::Removed)
            | (Life::Dismantling, Trigger::Made | Trigger::Remove { .. } | Trigger::Dismantle)
            | (Life::Broken, Trigger::Made | Trigger::Dismantle | Trigger::Kept | Trigger::Removed)
            | (
                Life::Gone,
                Trigger::Made | Trigger::Remove { .. } | Trigger::Dismantle | Trigger::Kept | Trigger::Removed,
            ) => {
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
                    Trigger::Made,
                    Trigger::Remove { by_force: false },
                    Trigger::Remove { by_force: true },
                    Trigger::Dismantle,
                    Trigger::Kept,
                    Trigger::Removed,
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
            for event in [Trigger::Made, Trigger::Remove { by_force: true }, Trigger::Dismantle, Trigger::Removed] {
                life.on(event);
            }
            prop_assert_eq!(life, Life::Gone);
        }
    }
}
