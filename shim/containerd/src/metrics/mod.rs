//! Converts the executor's statistics to containerd's metrics, which have one message for each version of cgroups.
//!
//! containerd's clients read a figure that this host does not measure as zero. A missing limit is sent as the kernel's
//! value for none to v1, and as the largest number to v2.

mod figures;
mod v1;
mod v2;

use bowline_model::stats::Stats;
use bowline_model::{Doing, Kind, Result};
use protobuf::Message;
use protobuf::well_known_types::any::Any;

/// Encodes `stats` as the message that containerd reads.
///
/// # Errors
/// `Internal` when it cannot be encoded.
pub fn of(stats: &Stats) -> Result<Any> {
    match stats.cgroup_version {
        2 => any("io.containerd.cgroups.v2.Metrics", &v2::of(stats)),
        _ => any("io.containerd.cgroups.v1.Metrics", &v1::of(stats)),
    }
}

fn any(type_url: &str, metrics: &impl Message) -> Result<Any> {
    let value = metrics.write_to_bytes().doing(Kind::Internal, || "cannot encode the metrics")?;
    Ok(Any { type_url: type_url.to_owned(), value, ..Any::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bowline_executor::HugepagesStats;
    use containerd_shim_protos::cgroups::metrics as v1;
    use containerd_shim_protos::cgroups_v2::metrics as v2;
    use serde_json::json;

    use super::*;

    /// Statistics as `bowline stats --json` prints them, with a different value for every figure.
    pub fn stats(version: u8, counters: &[&str]) -> Stats {
        let counters: BTreeMap<&str, usize> =
            counters.iter().enumerate().map(|(index, name)| (*name, 1000 + index)).collect();
        let account =
            |at: u64| json!({"usage_bytes": at, "peak_bytes": at + 1, "limit_bytes": null, "limit_hits": at + 2});
        let pressure =
            |at: u64| json!({"some": {"avg10": 1.5, "avg60": 2.5, "avg300": 3.5, "total_usec": at}, "full": null});
        let stats = json!({
            "read_at": "2026-01-01T00:00:00Z",
            "measured": [],
            "cgroup_version": version,
            "cpu": {
                "usage_usec": 1, "user_usec": 2, "system_usec": 3, "periods": 4, "throttled_periods": 5,
                "throttled_usec": 6, "bursts": 7, "burst_usec": 8, "per_cpu_usec": [9, 10], "pressure": pressure(11),
            },
            "memory": {
                "usage_bytes": 20, "peak_bytes": 21, "swap_bytes": 22, "swap_peak_bytes": 23, "limit_bytes": 24,
                "oom_kills": 25, "events": {"low": 26, "high": 27, "max": 28, "oom": 29, "oom_group_kill": 30},
                "under_oom": true, "oom_kill_disabled": false, "counters": counters, "pressure": pressure(31),
                "accounts": {"memory_and_swap": account(40), "kernel": account(50), "kernel_tcp": account(60)},
            },
            "pids": {"current": 70, "limit": null, "limit_hits": 0},
            "io": {
                "devices": [{"device": "259:3", "read_bytes": 80, "write_bytes": 81, "reads": 82, "writes": 83,
                             "discard_bytes": 84, "discards": 85, "sync_bytes": 100}],
                "pressure": pressure(86),
            },
            "hugepages": {"2MB": {"usage_bytes": 90, "peak_bytes": 91, "limit_bytes": 92, "limit_hits": 93}},
            "rdma": {"mlx4_0": {"handles": 94, "objects": 95, "handle_limit": 96, "object_limit": null}},
            "processes": [],
        });
        serde_json::from_value(stats).unwrap()
    }

    /// The non-zero numbers in a message, by the protocol's field names.
    pub fn fields(message: &dyn protobuf::MessageDyn) -> BTreeMap<String, u64> {
        let descriptor = message.descriptor_dyn();
        let singular = descriptor.fields().filter(|field| field.is_singular());
        let value = |field: &protobuf::reflect::FieldDescriptor| match field.get_singular(message) {
            Some(protobuf::reflect::ReflectValueRef::U64(value)) => Some(value),
            _ => None,
        };
        singular.filter_map(|field| Some((field.name().to_owned(), value(&field).filter(|v| *v != 0)?))).collect()
    }

    pub fn decoded<M: Message>(stats: &Stats, type_url: &str) -> M {
        let any = of(stats).unwrap();
        assert_eq!(any.type_url, type_url);
        M::parse_from_bytes(&any.value).unwrap()
    }

    #[test]
    fn what_is_not_measured_is_zero_and_no_limit_beyond_all_memory() {
        let mut nothing = stats(2, &[]);
        nothing.memory = Default::default();
        nothing.hugepages = BTreeMap::from([("2MB".to_owned(), HugepagesStats::default())]);
        nothing.rdma.clear();
        let metrics: v2::Metrics = decoded(&nothing, "io.containerd.cgroups.v2.Metrics");
        assert_eq!((metrics.memory.usage, metrics.memory.usage_limit), (0, u64::MAX));
        assert!(metrics.memory.psi.is_none() && metrics.rdma.is_none());
        nothing.cgroup_version = 1;
        let metrics: v1::Metrics = decoded(&nothing, "io.containerd.cgroups.v1.Metrics");
        assert!(metrics.memory.usage.limit > 1 << 62 && metrics.memory.swap.is_none());
    }
}
