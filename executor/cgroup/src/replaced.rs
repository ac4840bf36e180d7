//! Raw values of cgroup v2's files that other limits replace: an update of a limit by its own field is the later word on
//! the file, however the file's value was given before.
//!
//! Pure.

use std::collections::BTreeMap;

use bowline_error::Result;
use oci_spec::runtime::LinuxResources;

use crate::limit::Limit;
use crate::limit::file::{of_file, weight_of_nice};
use crate::limit::oci::of;
use crate::v2;

/// The raw values of `files` that remain once `changes` are in effect.
///
/// # Errors
/// `BadSpec` for changes that no cgroup can have.
pub fn remaining<'a>(
    files: impl IntoIterator<Item = (&'a String, &'a String)>,
    changes: &LinuxResources,
) -> Result<BTreeMap<String, String>> {
    let changes = of(changes)?;
    let files = files.into_iter().filter_map(|(file, value)| Some((file.clone(), of_one(file, value, &changes)?)));
    Ok(files.collect())
}

/// What remains of a raw `value` in `file`; `None` if nothing does.
fn of_one(file: &str, value: &str, changes: &[Limit]) -> Option<String> {
    let is_replaced = |limit: &Limit| changes.iter().any(|change| are_of_one_value(limit, change));
    let limits = match weight_of_nice(value).filter(|_| file == "cpu.weight.nice") {
        Some(weight) => vec![Limit::CpuWeight(weight)],
        None => of_file(file, value),
    };
    let (gone, stay): (Vec<_>, Vec<_>) = limits.iter().partition(|limit| is_replaced(limit));
    if gone.is_empty() {
        return Some(value.to_owned());
    }
    // The rates of one device have a line together.
    let rates = stay.into_iter().filter_map(|limit| match limit {
        Limit::IoRate { of, most, .. } => Some(format!("{}={most}", of.key())),
        _ => None,
    });
    let rates: Vec<String> = rates.collect();
    let device = value.split_whitespace().next().filter(|_| !rates.is_empty())?;
    Some(format!("{device} {}", rates.join(" ")))
}

/// Whether two limits are for the same value of the same file.
fn are_of_one_value(one: &Limit, other: &Limit) -> bool {
    match (one, other) {
        (Limit::IoRate { device, of, .. }, Limit::IoRate { device: other, of: rate, .. }) => {
            (device, of) == (other, rate)
        }
        _ => v2::write(one).zip(v2::write(other)).is_some_and(|(one, other)| one.is_where(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{Amount, CpuQuota, Device, Rate};

    #[test]
    fn the_later_word_on_a_file_is_that_of_its_own_field() {
        let rate = Limit::IoRate { device: Device(8, 0), of: Rate::BytesRead, most: Amount(Some(7)) };
        let changes = [
            Limit::Pids(Amount(Some(41))),
            Limit::CpuQuota(CpuQuota { quota: Some(5000), period: None }),
            Limit::CpuShares(512),
            Limit::Hugepages { size: "2MB".to_owned(), most: Amount(Some(2 << 20)) },
            rate,
        ];
        let left = |file, value| of_one(file, value, &changes);
        for (file, value) in [
            ("pids.max", "32"),
            ("cpu.max", "max"),
            ("cpu.max", "20000 50000"),
            ("cpu.weight", "50"),
            ("cpu.weight.nice", "-5"),
            ("io.max", "8:0 rbps=1000"),
            ("hugetlb.2MB.max", "0"),
        ] {
            assert_eq!(left(file, value), None, "{file} {value}");
        }
        for (file, value) in [("memory.max", "64M"), ("cpu.idle", "1"), ("io.max", "8:16 rbps=1000"), ("io.max", "")] {
            assert_eq!(left(file, value).as_deref(), Some(value), "{file} {value}");
        }
        assert_eq!(left("io.max", "8:0 rbps=1000 wiops=max").as_deref(), Some("8:0 wiops=max"));
    }
}
