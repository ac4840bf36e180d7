//! The executor's statistics as containerd's metrics, of which each version of
//! cgroups has a message of its own. Everybody above reads a field that this
//! host does not measure as zero; a limit that there is not is, to v1, what
//! the kernel writes for none, and to v2 the largest number there is.

use std::collections::BTreeMap;

use bowline_executor::{Doing, IoDeviceStats, Kind, MemoryAccountStats, Pressure, Result, Stall, Stats};
use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};

/// The largest multiple of a page that v1 counts to.
const V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_f000;
const V2_UNLIMITED: u64 = u64::MAX;

/// `stats` as the message that containerd reads.
///
/// # Errors
/// `Internal` when it cannot be encoded.
pub fn of(stats: &Stats) -> Result<Any> {
    match stats.cgroup_version {
        2 => any("io.containerd.cgroups.v2.Metrics", &of_v2(stats)),
        _ => any("io.containerd.cgroups.v1.Metrics", &of_v1(stats)),
    }
}

fn any(type_url: &str, metrics: &impl Message) -> Result<Any> {
    let value = metrics.write_to_bytes().doing(Kind::Internal, || "cannot encode the metrics")?;
    Ok(Any { type_url: type_url.to_owned(), value, ..Any::default() })
}

/// The kernel's own counters of `memory.stat`.
struct Counters<'s>(Option<&'s BTreeMap<String, u64>>);

impl Counters<'_> {
    fn get(&self, name: &str) -> u64 {
        self.0.and_then(|counters| counters.get(name)).copied().unwrap_or(0)
    }

    /// One that was split into these since Linux 5.9.
    fn sum(&self, name: &str) -> u64 {
        let parts = ["", "_anon", "_file"].map(|part| self.get(&format!("{name}{part}")));
        parts.into_iter().sum()
    }
}

fn some<M>(message: M) -> MessageField<M> {
    MessageField::some(message)
}

fn count(figure: Option<u64>) -> u64 {
    figure.unwrap_or(0)
}

/// `8:0`, taken apart.
fn numbers(device: &str) -> (u64, u64) {
    let numbers = device.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.unwrap_or_default()
}

fn of_v2(stats: &Stats) -> v2::Metrics {
    let Stats { cpu, pids, io, .. } = stats;
    v2::Metrics {
        pids: some(v2::PidsStat {
            current: count(pids.current),
            limit: pids.limit.unwrap_or(V2_UNLIMITED),
            ..v2::PidsStat::default()
        }),
        cpu: some(v2::CPUStat {
            usage_usec: count(cpu.usage_usec),
            user_usec: count(cpu.user_usec),
            system_usec: count(cpu.system_usec),
            nr_periods: count(cpu.periods),
            nr_throttled: count(cpu.throttled_periods),
            throttled_usec: count(cpu.throttled_usec),
            psi: psi(cpu.pressure.as_ref()),
            nr_bursts: count(cpu.bursts),
            burst_usec: count(cpu.burst_usec),
            ..v2::CPUStat::default()
        }),
        memory: some(memory_v2(stats)),
        rdma: rdma_v2(stats),
        io: some(v2::IOStat {
            usage: io.devices.iter().flatten().map(io_v2).collect(),
            psi: psi(io.pressure.as_ref()),
            ..v2::IOStat::default()
        }),
        hugetlb: hugetlb_v2(stats),
        memory_events: some(v2::MemoryEvents {
            low: count(stats.memory.events.low),
            high: count(stats.memory.events.high),
            max: count(stats.memory.events.max),
            oom: count(stats.memory.events.oom),
            oom_kill: count(stats.memory.oom_kills),
            oom_group_kill: count(stats.memory.events.oom_group_kill),
            ..v2::MemoryEvents::default()
        }),
        ..v2::Metrics::default()
    }
}

fn memory_v2(stats: &Stats) -> v2::MemoryStat {
    let memory = &stats.memory;
    let counters = Counters(memory.counters.as_ref());
    v2::MemoryStat {
        anon: counters.get("anon"),
        file: counters.get("file"),
        kernel_stack: counters.get("kernel_stack"),
        slab: counters.get("slab"),
        sock: counters.get("sock"),
        shmem: counters.get("shmem"),
        file_mapped: counters.get("file_mapped"),
        file_dirty: counters.get("file_dirty"),
        file_writeback: counters.get("file_writeback"),
        anon_thp: counters.get("anon_thp"),
        inactive_anon: counters.get("inactive_anon"),
        active_anon: counters.get("active_anon"),
        inactive_file: counters.get("inactive_file"),
        active_file: counters.get("active_file"),
        unevictable: counters.get("unevictable"),
        slab_reclaimable: counters.get("slab_reclaimable"),
        slab_unreclaimable: counters.get("slab_unreclaimable"),
        pgfault: counters.get("pgfault"),
        pgmajfault: counters.get("pgmajfault"),
        workingset_refault: counters.sum("workingset_refault"),
        workingset_activate: counters.sum("workingset_activate"),
        workingset_nodereclaim: counters.get("workingset_nodereclaim"),
        pgrefill: counters.get("pgrefill"),
        pgscan: counters.get("pgscan"),
        pgsteal: counters.get("pgsteal"),
        pgactivate: counters.get("pgactivate"),
        pgdeactivate: counters.get("pgdeactivate"),
        pglazyfree: counters.get("pglazyfree"),
        pglazyfreed: counters.get("pglazyfreed"),
        thp_fault_alloc: counters.get("thp_fault_alloc"),
        thp_collapse_alloc: counters.get("thp_collapse_alloc"),
        usage: count(memory.usage_bytes),
        usage_limit: memory.limit_bytes.unwrap_or(V2_UNLIMITED),
        swap_usage: count(memory.swap_bytes),
        swap_limit: memory.swap_limit_bytes.unwrap_or(V2_UNLIMITED),
        max_usage: count(memory.peak_bytes),
        swap_max_usage: count(memory.swap_peak_bytes),
        psi: psi(memory.pressure.as_ref()),
        ..v2::MemoryStat::default()
    }
}

fn psi(pressure: Option<&Pressure>) -> MessageField<v2::PSIStats> {
    let data = |stall: &Stall| v2::PSIData {
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
        total: stall.total_usec,
        ..v2::PSIData::default()
    };
    let stats = |pressure: &Pressure| v2::PSIStats {
        some: pressure.some.as_ref().map(data).into(),
        full: pressure.full.as_ref().map(data).into(),
        ..v2::PSIStats::default()
    };
    pressure.map(stats).into()
}

fn io_v2(device: &IoDeviceStats) -> v2::IOEntry {
    let (major, minor) = numbers(&device.device);
    v2::IOEntry {
        major,
        minor,
        rbytes: device.read_bytes,
        wbytes: device.write_bytes,
        rios: device.reads,
        wios: device.writes,
        ..v2::IOEntry::default()
    }
}

fn hugetlb_v2(stats: &Stats) -> Vec<v2::HugeTlbStat> {
    let pages = stats.hugepages.iter().map(|(size, pages)| v2::HugeTlbStat {
        current: count(pages.usage_bytes),
        max: pages.limit_bytes.unwrap_or(V2_UNLIMITED),
        pagesize: size.clone(),
        failcnt: count(pages.limit_hits),
        ..v2::HugeTlbStat::default()
    });
    pages.collect()
}

fn rdma_v2(stats: &Stats) -> MessageField<v2::RdmaStat> {
    let entry = |device: &str, handles, objects| v2::RdmaEntry {
        device: device.to_owned(),
        hca_handles: narrow(handles),
        hca_objects: narrow(objects),
        ..v2::RdmaEntry::default()
    };
    let devices = &stats.rdma;
    let stat = (!devices.is_empty()).then(|| v2::RdmaStat {
        current: devices.iter().map(|(d, r)| entry(d, count(r.handles), count(r.objects))).collect(),
        limit: devices.iter().map(|(d, r)| entry(d, limit(r.handle_limit), limit(r.object_limit))).collect(),
        ..v2::RdmaStat::default()
    });
    stat.into()
}

fn limit(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}

/// What a message has room for.
fn narrow(figure: u64) -> u32 {
    u32::try_from(figure).unwrap_or(u32::MAX)
}

fn of_v1(stats: &Stats) -> v1::Metrics {
    let Stats { cpu, pids, memory, .. } = stats;
    let ns = |usec: Option<u64>| count(usec).saturating_mul(1000);
    let flag = |set: Option<bool>| u64::from(set.unwrap_or(false));
    v1::Metrics {
        hugetlb: hugetlb_v1(stats),
        pids: some(v1::PidsStat {
            current: count(pids.current),
            // As its readers know it: none is zero.
            limit: count(pids.limit),
            ..v1::PidsStat::default()
        }),
        cpu: some(v1::CPUStat {
            usage: some(v1::CPUUsage {
                total: ns(cpu.usage_usec),
                kernel: ns(cpu.system_usec),
                user: ns(cpu.user_usec),
                per_cpu: cpu.per_cpu_usec.iter().flatten().map(|usec| ns(Some(*usec))).collect(),
                ..v1::CPUUsage::default()
            }),
            throttling: some(v1::Throttle {
                periods: count(cpu.periods),
                throttled_periods: count(cpu.throttled_periods),
                throttled_time: ns(cpu.throttled_usec),
                ..v1::Throttle::default()
            }),
            ..v1::CPUStat::default()
        }),
        memory: some(memory_v1(stats)),
        blkio: some(blkio_v1(stats)),
        rdma: rdma_v1(stats),
        memory_oom_control: some(v1::MemoryOomControl {
            oom_kill_disable: flag(memory.oom_kill_disabled),
            under_oom: flag(memory.under_oom),
            oom_kill: count(memory.oom_kills),
            ..v1::MemoryOomControl::default()
        }),
        ..v1::Metrics::default()
    }
}

fn memory_v1(stats: &Stats) -> v1::MemoryStat {
    let memory = &stats.memory;
    let counters = Counters(memory.counters.as_ref());
    let account = |name: &str| memory.accounts.get(name).map(entry_v1).into();
    let own = MemoryAccountStats {
        usage_bytes: memory.usage_bytes,
        peak_bytes: memory.peak_bytes,
        limit_bytes: memory.limit_bytes,
        limit_hits: memory.events.max,
    };
    v1::MemoryStat {
        cache: counters.get("cache"),
        rss: counters.get("rss"),
        rss_huge: counters.get("rss_huge"),
        mapped_file: counters.get("mapped_file"),
        dirty: counters.get("dirty"),
        writeback: counters.get("writeback"),
        pg_pg_in: counters.get("pgpgin"),
        pg_pg_out: counters.get("pgpgout"),
        pg_fault: counters.get("pgfault"),
        pg_maj_fault: counters.get("pgmajfault"),
        inactive_anon: counters.get("inactive_anon"),
        active_anon: counters.get("active_anon"),
        inactive_file: counters.get("inactive_file"),
        active_file: counters.get("active_file"),
        unevictable: counters.get("unevictable"),
        hierarchical_memory_limit: counters.get("hierarchical_memory_limit"),
        hierarchical_swap_limit: counters.get("hierarchical_memsw_limit"),
        total_cache: counters.get("total_cache"),
        total_rss: counters.get("total_rss"),
        total_rss_huge: counters.get("total_rss_huge"),
        total_mapped_file: counters.get("total_mapped_file"),
        total_dirty: counters.get("total_dirty"),
        total_writeback: counters.get("total_writeback"),
        total_pg_pg_in: counters.get("total_pgpgin"),
        total_pg_pg_out: counters.get("total_pgpgout"),
        total_pg_fault: counters.get("total_pgfault"),
        total_pg_maj_fault: counters.get("total_pgmajfault"),
        total_inactive_anon: counters.get("total_inactive_anon"),
        total_active_anon: counters.get("total_active_anon"),
        total_inactive_file: counters.get("total_inactive_file"),
        total_active_file: counters.get("total_active_file"),
        total_unevictable: counters.get("total_unevictable"),
        usage: some(entry_v1(&own)),
        swap: account("memory_and_swap"),
        kernel: account("kernel"),
        kernel_tcp: account("kernel_tcp"),
        ..v1::MemoryStat::default()
    }
}

fn entry_v1(account: &MemoryAccountStats) -> v1::MemoryEntry {
    v1::MemoryEntry {
        limit: account.limit_bytes.unwrap_or(V1_UNLIMITED),
        usage: count(account.usage_bytes),
        max: count(account.peak_bytes),
        failcnt: count(account.limit_hits),
        ..v1::MemoryEntry::default()
    }
}

fn blkio_v1(stats: &Stats) -> v1::BlkIOStat {
    let devices = || stats.io.devices.iter().flatten();
    let entries = |device: &IoDeviceStats, [read, write, discard]: [u64; 3]| {
        let (major, minor) = numbers(&device.device);
        let name = name_of(&device.device);
        let total = read.saturating_add(write).saturating_add(discard);
        [("Read", read), ("Write", write), ("Discard", discard), ("Total", total)].map(|(op, value)| v1::BlkIOEntry {
            op: op.to_owned(),
            device: name.clone(),
            major,
            minor,
            value,
            ..v1::BlkIOEntry::default()
        })
    };
    let bytes = |d: &IoDeviceStats| entries(d, [d.read_bytes, d.write_bytes, d.discard_bytes]);
    let operations = |d: &IoDeviceStats| entries(d, [d.reads, d.writes, d.discards]);
    v1::BlkIOStat {
        io_service_bytes_recursive: devices().flat_map(bytes).collect(),
        io_serviced_recursive: devices().flat_map(operations).collect(),
        ..v1::BlkIOStat::default()
    }
}

/// The name in `/dev` of a block device, as sysfs has it; none is as well.
fn name_of(device: &str) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{device}")).unwrap_or_default();
    link.file_name().map(|name| format!("/dev/{}", name.to_string_lossy())).unwrap_or_default()
}

fn hugetlb_v1(stats: &Stats) -> Vec<v1::HugetlbStat> {
    let pages = stats.hugepages.iter().map(|(size, pages)| v1::HugetlbStat {
        usage: count(pages.usage_bytes),
        max: count(pages.peak_bytes),
        failcnt: count(pages.limit_hits),
        pagesize: size.clone(),
        ..v1::HugetlbStat::default()
    });
    pages.collect()
}

fn rdma_v1(stats: &Stats) -> MessageField<v1::RdmaStat> {
    let entry = |device: &str, handles, objects| v1::RdmaEntry {
        device: device.to_owned(),
        hca_handles: narrow(handles),
        hca_objects: narrow(objects),
        ..v1::RdmaEntry::default()
    };
    let devices = &stats.rdma;
    let stat = (!devices.is_empty()).then(|| v1::RdmaStat {
        current: devices.iter().map(|(d, r)| entry(d, count(r.handles), count(r.objects))).collect(),
        limit: devices.iter().map(|(d, r)| entry(d, limit(r.handle_limit), limit(r.object_limit))).collect(),
        ..v1::RdmaStat::default()
    });
    stat.into()
}

#[cfg(test)]
mod tests {
    use bowline_executor::HugepagesStats;
    use protobuf::MessageDyn as _;
    use serde_json::json;

    use super::*;

    /// Every figure has a value of its own, as `bowline stats --json` writes it.
    fn stats(version: u8, counters: &[&str]) -> Stats {
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
                             "discard_bytes": 84, "discards": 85}],
                "pressure": pressure(86),
            },
            "hugepages": {"2MB": {"usage_bytes": 90, "peak_bytes": 91, "limit_bytes": 92, "limit_hits": 93}},
            "rdma": {"mlx4_0": {"handles": 94, "objects": 95, "handle_limit": 96, "object_limit": null}},
            "processes": [],
        });
        serde_json::from_value(stats).unwrap()
    }

    const V2_COUNTERS: &str = "anon file kernel_stack slab sock shmem file_mapped file_dirty file_writeback anon_thp \
        inactive_anon active_anon inactive_file active_file unevictable slab_reclaimable slab_unreclaimable pgfault \
        pgmajfault workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file \
        workingset_nodereclaim pgrefill pgscan pgsteal pgactivate pgdeactivate pglazyfree pglazyfreed thp_fault_alloc \
        thp_collapse_alloc";

    /// What a message has for its fields, by the protocol's own names.
    fn fields(message: &dyn protobuf::MessageDyn) -> BTreeMap<String, u64> {
        let descriptor = message.descriptor_dyn();
        let singular = descriptor.fields().filter(|field| field.is_singular());
        let value = |field: &protobuf::reflect::FieldDescriptor| match field.get_singular(message) {
            Some(protobuf::reflect::ReflectValueRef::U64(value)) => Some(value),
            _ => None,
        };
        singular.filter_map(|field| Some((field.name().to_owned(), value(&field).filter(|v| *v != 0)?))).collect()
    }

    fn decoded<M: Message>(stats: &Stats, type_url: &str) -> M {
        let any = of(stats).unwrap();
        assert_eq!(any.type_url, type_url);
        M::parse_from_bytes(&any.value).unwrap()
    }

    #[test]
    fn v2_has_every_counter_of_the_kernel() {
        let names: Vec<&str> = V2_COUNTERS.split_whitespace().collect();
        let stats = stats(2, &names);
        let metrics: v2::Metrics = decoded(&stats, "io.containerd.cgroups.v2.Metrics");
        let memory = fields(&*metrics.memory);
        let counters = stats.memory.counters.as_ref().unwrap();
        let split = ["workingset_refault", "workingset_activate"];
        for name in names.iter().filter(|name| !split.iter().any(|split| name.starts_with(split))) {
            assert_eq!(memory.get(*name), counters.get(*name), "{name}");
        }
        for name in split {
            assert_eq!(memory[name], counters[&format!("{name}_anon")] + counters[&format!("{name}_file")]);
        }
        let rest = [("usage", 20), ("usage_limit", 24), ("swap_usage", 22), ("swap_limit", u64::MAX)];
        for (name, value) in rest.into_iter().chain([("max_usage", 21), ("swap_max_usage", 23)]) {
            assert_eq!(memory[name], value, "{name}");
        }
        assert_eq!(metrics.memory.psi.some.total, 31);
        // All that the message has for numbers is filled.
        let all = metrics.memory.descriptor_dyn().fields().filter(|f| f.name() != "psi").count();
        assert_eq!(memory.len(), all);
    }

    #[test]
    fn v2_has_every_figure_besides() {
        let metrics: v2::Metrics = decoded(&stats(2, &["anon"]), "io.containerd.cgroups.v2.Metrics");
        let cpu = fields(&*metrics.cpu);
        assert_eq!(cpu.into_values().collect::<Vec<_>>(), [8, 7, 4, 5, 3, 6, 1, 2]);
        let psi = &metrics.cpu.psi;
        assert_eq!((psi.some.avg10, psi.some.avg60, psi.some.avg300, psi.some.total), (1.5, 2.5, 3.5, 11));
        assert!(psi.full.is_none());
        assert_eq!((metrics.pids.current, metrics.pids.limit), (70, u64::MAX));
        let io = &metrics.io.usage[0];
        assert_eq!((io.major, io.minor, io.rbytes, io.wbytes, io.rios, io.wios), (259, 3, 80, 81, 82, 83));
        assert_eq!(metrics.io.psi.some.total, 86);
        let events = &metrics.memory_events;
        assert_eq!((events.low, events.high, events.max, events.oom), (26, 27, 28, 29));
        assert_eq!((events.oom_kill, events.oom_group_kill), (25, 30));
        let pages = &metrics.hugetlb[0];
        assert_eq!((pages.current, pages.max, pages.pagesize.as_str(), pages.failcnt), (90, 92, "2MB", 93));
        assert_eq!((metrics.rdma.current[0].hca_handles, metrics.rdma.current[0].hca_objects), (94, 95));
        assert_eq!((metrics.rdma.limit[0].hca_handles, metrics.rdma.limit[0].hca_objects), (96, u32::MAX));
    }

    /// A `memory.stat` of v1, as Linux 6.18 writes it.
    const V1_COUNTERS: &str = "cache rss rss_huge shmem mapped_file dirty writeback workingset_refault_anon \
        workingset_refault_file swap swapcached pgpgin pgpgout pgfault pgmajfault inactive_anon active_anon \
        inactive_file active_file unevictable hierarchical_memory_limit hierarchical_memsw_limit total_cache total_rss \
        total_rss_huge total_shmem total_mapped_file total_dirty total_writeback total_workingset_refault_anon \
        total_workingset_refault_file total_swap total_swapcached total_pgpgin total_pgpgout total_pgfault \
        total_pgmajfault total_inactive_anon total_active_anon total_inactive_file total_active_file total_unevictable";

    #[test]
    fn v1_has_every_counter_of_the_kernel_that_the_message_has() {
        let names: Vec<&str> = V1_COUNTERS.split_whitespace().collect();
        let stats = stats(1, &names);
        let metrics: v1::Metrics = decoded(&stats, "io.containerd.cgroups.v1.Metrics");
        let memory = fields(&*metrics.memory);
        let message = metrics.memory.descriptor_dyn();
        let entries = ["usage", "swap", "kernel", "kernel_tcp"];
        assert_eq!(memory.len(), message.fields().filter(|field| !entries.contains(&field.name())).count());
        let counters = stats.memory.counters.as_ref().unwrap();
        for (name, value) in &memory {
            // The protocol spells what the kernel does not.
            let kernel = name.replace("pg_pg_", "pgpg").replace("pg_fault", "pgfault");
            let kernel = kernel.replace("pg_maj_fault", "pgmajfault").replace("swap_limit", "memsw_limit");
            assert_eq!(counters.get(&kernel), Some(value), "{name}");
        }
        let entry = |entry: &v1::MemoryEntry| (entry.usage, entry.max, entry.limit, entry.failcnt);
        assert_eq!(entry(&metrics.memory.usage), (20, 21, 24, 28));
        assert_eq!(entry(&metrics.memory.swap), (40, 41, V1_UNLIMITED, 42));
        assert_eq!(entry(&metrics.memory.kernel), (50, 51, V1_UNLIMITED, 52));
        assert_eq!(entry(&metrics.memory.kernel_tcp), (60, 61, V1_UNLIMITED, 62));
    }

    #[test]
    fn v1_has_every_figure_besides() {
        let metrics: v1::Metrics = decoded(&stats(1, &["cache"]), "io.containerd.cgroups.v1.Metrics");
        let usage = &metrics.cpu.usage;
        assert_eq!((usage.total, usage.user, usage.kernel), (1000, 2000, 3000));
        assert_eq!(usage.per_cpu, [9000, 10_000]);
        let throttling = &metrics.cpu.throttling;
        assert_eq!((throttling.periods, throttling.throttled_periods, throttling.throttled_time), (4, 5, 6000));
        assert_eq!((metrics.pids.current, metrics.pids.limit), (70, 0));
        let oom = &metrics.memory_oom_control;
        assert_eq!((oom.oom_kill_disable, oom.under_oom, oom.oom_kill), (0, 1, 25));
        let values = |entries: &[v1::BlkIOEntry]| -> Vec<(String, u64, u64, u64)> {
            entries.iter().map(|e| (e.op.clone(), e.major, e.minor, e.value)).collect()
        };
        let row = |op: &str, value| (op.to_owned(), 259, 3, value);
        let bytes = values(&metrics.blkio.io_service_bytes_recursive);
        assert_eq!(bytes, [row("Read", 80), row("Write", 81), row("Discard", 84), row("Total", 245)]);
        let operations = values(&metrics.blkio.io_serviced_recursive);
        assert_eq!(operations, [row("Read", 82), row("Write", 83), row("Discard", 85), row("Total", 250)]);
        let pages = &metrics.hugetlb[0];
        assert_eq!((pages.usage, pages.max, pages.failcnt, pages.pagesize.as_str()), (90, 91, 93, "2MB"));
        assert_eq!(metrics.rdma.limit[0].hca_handles, 96);
    }

    #[test]
    fn what_is_not_measured_is_zero_and_no_limit_beyond_all_memory() {
        let nothing = Stats {
            memory: Default::default(),
            hugepages: BTreeMap::from([("2MB".to_owned(), HugepagesStats::default())]),
            rdma: BTreeMap::new(),
            ..stats(2, &[])
        };
        let metrics: v2::Metrics = decoded(&nothing, "io.containerd.cgroups.v2.Metrics");
        assert_eq!((metrics.memory.usage, metrics.memory.usage_limit), (0, u64::MAX));
        assert!(metrics.memory.psi.is_none() && metrics.rdma.is_none());
        let metrics: v1::Metrics = decoded(&Stats { cgroup_version: 1, ..nothing }, "io.containerd.cgroups.v1.Metrics");
        assert!(metrics.memory.usage.limit > 1 << 62 && metrics.memory.swap.is_none());
    }
}
