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

pub mod ecs;
mod joint;
pub mod kata;
pub mod kubelet;
mod member;
pub mod qos;
mod rule;

use std::ops::RangeInclusive;

pub use joint::Joint;
pub use kubelet::MemoryQos;
pub use member::Member;
pub use qos::{Amounts, Class, Needs};
pub use rule::{Share, joint, own_memory, own_shares, settled_shares};

use crate::invalid::Invalid;
pub use crate::task::DEFAULT_PERIOD_US;
use crate::task::REALTIME_PERIOD_US;
use crate::values::Cpus;

/// MIN_SHARES and MAX_SHARES of the kernel's scheduler.
pub const SHARES: RangeInclusive<u64> = 2..=262_144;

/// The least CPU bandwidth quota, in µs (kernel/sched/core.c).
pub const LEAST_QUOTA_US: u64 = 1000;

/// The quota in µs that `limit` CPUs are in a period of `period_us`.
///
/// # Errors
/// One below what the kernel takes, [`LEAST_QUOTA_US`]; the field is `field`.
pub fn quota_us(field: &str, limit: Cpus, period_us: u64) -> Result<u64, Invalid> {
    let quota = limit.quota_us(period_us).unsigned_abs();
    if quota < LEAST_QUOTA_US {
        let reason = format!(
            "{limit} CPUs of a {period_us} µs period are {quota} µs; the kernel takes at least {LEAST_QUOTA_US}"
        );
        return Err(Invalid::new(field, reason));
    }
    Ok(quota)
}

/// `shares` within what the kernel takes, and a note if that changed them.
fn clamped(whose: &str, shares: u64, notes: &mut Vec<String>) -> u64 {
    let (least, most) = (*SHARES.start(), *SHARES.end());
    let within = shares.clamp(least, most);
    if within != shares {
        let beyond = if within == least { "below the least" } else { "above the most" };
        notes.push(format!("{whose}: {shares} CPU shares are {beyond} that the kernel takes; {within} are used"));
    }
    within
}
