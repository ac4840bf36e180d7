//! The shares and quotas of CPU time that the kernel takes.

use std::ops::RangeInclusive;

use crate::invalid::Invalid;
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
pub(super) fn clamped(whose: &str, shares: u64, notes: &mut Vec<String>) -> u64 {
    let (least, most) = (*SHARES.start(), *SHARES.end());
    let within = shares.clamp(least, most);
    if within != shares {
        let beyond = if within == least { "below the least" } else { "above the most" };
        notes.push(format!("{whose}: {shares} CPU shares are {beyond} that the kernel takes; {within} are used"));
    }
    within
}
