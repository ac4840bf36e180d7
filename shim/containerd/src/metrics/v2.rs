//! Converts statistics to `io.containerd.cgroups.v2.Metrics`.

use bowline_model::stats::{IoDevice as IoDeviceStats, Pressure, Stall, Stats};
use containerd_shim_protos::cgroups_v2::metrics as v2;
use protobuf::MessageField;

use super::figures::{Counters, count, limit, narrow, numbers, some};

/// The value for no limit.
const UNLIMITED: u64 = u64::MAX;

pub fn of(stats: &Stats) -> v2::Metrics {
    let Stats { cpu, pids, io, .. } = stats;
    v2::Metrics {
        pids: some(v2::PidsStat {
            current: count(pids.current),
            limit: pids.limit.unwrap_or(UNLIMITED),
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
        memory: some(memory_stat(stats)),
        rdma: rdma_stat(stats),
        io: some(v2::IOStat {
            usage: io.devices.iter().flatten().map(io_entry).collect(),
            psi: psi(io.pressure.as_ref()),
            ..v2::IOStat::default()
        }),
        hugetlb: hugetlb_stats(stats),
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

fn memory_stat(stats: &Stats) -> v2::MemoryStat {
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
        usage_limit: memory.limit_bytes.unwrap_or(UNLIMITED),
        swap_usage: count(memory.swap_bytes),
        swap_limit: memory.swap_limit_bytes.unwrap_or(UNLIMITED),
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

fn io_entry(device: &IoDeviceStats) -> v2::IOEntry {
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

fn hugetlb_stats(stats: &Stats) -> Vec<v2::HugeTlbStat> {
    let pages = stats.hugepages.iter().map(|(size, pages)| v2::HugeTlbStat {
        current: count(pages.usage_bytes),
        max: pages.limit_bytes.unwrap_or(UNLIMITED),
        pagesize: size.clone(),
        failcnt: count(pages.limit_hits),
        ..v2::HugeTlbStat::default()
    });
    pages.collect()
}

fn rdma_stat(stats: &Stats) -> MessageField<v2::RdmaStat> {
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

#[cfg(test)]
mod tests {
    use protobuf::MessageDyn as _;

    use super::super::tests::{decoded, fields, stats};
    use super::*;

    const V2_COUNTERS: &str = "anon file kernel_stack slab sock shmem file_mapped file_dirty file_writeback anon_thp \
        inactive_anon active_anon inactive_file active_file unevictable slab_reclaimable slab_unreclaimable pgfault \
        pgmajfault workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file \
        workingset_nodereclaim pgrefill pgscan pgsteal pgactivate pgdeactivate pglazyfree pglazyfreed thp_fault_alloc \
        thp_collapse_alloc";

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
        // Every number in the message is set.
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
}
