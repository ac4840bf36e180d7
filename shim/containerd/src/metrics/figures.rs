//! Makes figures into those of either message: also what is not measured, has no limit, or does not fit.

use std::collections::BTreeMap;

use protobuf::MessageField;

/// The kernel's own counters of `memory.stat`.
pub struct Counters<'s>(pub Option<&'s BTreeMap<String, u64>>);

impl Counters<'_> {
    pub fn get(&self, name: &str) -> u64 {
        self.0.and_then(|counters| counters.get(name)).copied().unwrap_or(0)
    }

    /// The sum of a counter that Linux 5.9 split into these parts.
    pub fn sum(&self, name: &str) -> u64 {
        let parts = ["", "_anon", "_file"].map(|part| self.get(&format!("{name}{part}")));
        parts.into_iter().sum()
    }
}

pub fn some<M>(message: M) -> MessageField<M> {
    MessageField::some(message)
}

pub fn count(figure: Option<u64>) -> u64 {
    figure.unwrap_or(0)
}

/// Parses `8:0` into major and minor number.
pub fn numbers(device: &str) -> (u64, u64) {
    let numbers = device.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.unwrap_or_default()
}

pub fn limit(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}

/// Caps a figure at what its field can hold.
pub fn narrow(figure: u64) -> u32 {
    u32::try_from(figure).unwrap_or(u32::MAX)
}
