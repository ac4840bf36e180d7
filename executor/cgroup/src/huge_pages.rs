//! The sizes of huge pages that this host has.

use std::collections::BTreeSet;
use std::fs;

/// The sizes of `/sys/kernel/mm/hugepages`, as cgroup files write them: `2MB`.
pub fn sizes() -> BTreeSet<String> {
    let entries = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten();
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(match kib {
                _ if kib.is_multiple_of(1 << 20) => format!("{}GB", kib >> 20),
                _ if kib.is_multiple_of(1 << 10) => format!("{}MB", kib >> 10),
                _ => format!("{kib}KB"),
            })
        })
        .collect()
}

/// Whether this host has huge pages, and none of this size.
pub fn lacks(size: &str) -> bool {
    let sizes = sizes();
    !sizes.is_empty() && !sizes.contains(size)
}
