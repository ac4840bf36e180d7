//! What a sandbox as a whole may use, from what its members may.
//!
//!   members ─ ecs (a joint budget is given) ──────────┐
//!   members ─ kata (the whole is what they add up to) ┼─► Joint ─► OCI resources
//!   needs ─── kubelet (a pod's requests and limits) ──┘
//!
//! Three rules, each as the system does it that it is named after; `rule` goes
//! by the one that a sandbox's description names. What a rule has changed of
//! what somebody asked for is said in notes, for a log.
//! Must not: know what a host has.

mod cpu;
pub mod ecs;
mod joint;
pub mod kata;
pub mod kubelet;
mod member;
pub mod qos;
mod rule;

pub use cpu::{LEAST_QUOTA_US, SHARES, quota_us};
pub use joint::Joint;
pub use kubelet::MemoryQos;
pub use member::Member;
pub use qos::{Amounts, Class, Needs};
pub use rule::{Share, held_by_parent, joint, own_memory, own_shares, settled_shares};

pub use crate::task::DEFAULT_PERIOD_US;
use crate::task::REALTIME_PERIOD_US;
