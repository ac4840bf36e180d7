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
    /// Its cgroups, namespaces and networks are being made.
    #[default]
    Making,
    /// It is made: members may join.
    Ready,
    /// It is being removed: no member joins any more.
    Going {
        /// Whether launches under way are broken off.
        by_force: bool,
    },
    /// It is being taken down.
    Dismantling,
    /// Some of it could not be taken down: no member joins what is left, and the removal can be tried again.
    Broken,
    /// Nothing is left of it, or it was never made.
    Gone,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Made,
    Remove {
        /// Whether members that run or are being launched are removed with it.
        by_force: bool,
    },
    /// No member is in the way of the removal any more: what follows cannot be taken back.
    Dismantle,
    /// It cannot be removed now.
    Kept,
    /// It was removed, or could not be made.
    Removed,
}

impl Life {
    /// The only way a sandbox changes state. Returns whether it did: a trigger that has no place in a state changes
    /// nothing.
    pub fn apply(&mut self, trigger: Trigger) -> bool {
        let next = match (*self, trigger) {
            (Life::Making, Trigger::Made) | (Life::Going { .. }, Trigger::Kept) => Life::Ready,
            (Life::Ready, Trigger::Remove { by_force }) => Life::Going { by_force },
            (Life::Going { .. }, Trigger::Dismantle) | (Life::Broken, Trigger::Remove { .. }) => Life::Dismantling,
            (Life::Dismantling, Trigger::Kept) => Life::Broken,
            (Life::Making | Life::Dismantling, Trigger::Removed) => Life::Gone,
            // A sandbox that is still being made is undone when its shim leaves.
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

    /// Whether the sandbox was made and is not gone yet.
    pub fn is_there(self) -> bool {
        matches!(self, Life::Ready | Life::Going { .. } | Life::Dismantling | Life::Broken)
    }

    /// Whether it is being removed.
    pub fn is_going(self) -> bool {
        matches!(self, Life::Going { .. } | Life::Dismantling)
    }

    /// Whether it is being removed by force, which breaks off launches.
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
            triggers in prop::collection::vec(
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
            for trigger in triggers {
                let before = life;
                let changed = life.apply(trigger);
                prop_assert_eq!(changed, life != before);
                prop_assert!(before != Life::Gone || life == Life::Gone);
                prop_assert!(!life.is_forced() || life.is_going());
                apart |= life == Life::Dismantling;
                prop_assert!(!apart || life != Life::Ready, "nobody joins what was taken apart");
            }
            for trigger in [Trigger::Made, Trigger::Remove { by_force: true }, Trigger::Dismantle, Trigger::Removed] {
                life.apply(trigger);
            }
            prop_assert_eq!(life, Life::Gone);
        }
    }
}
