//! Converts statistics to `io.containerd.cgroups.v1.Metrics`.

use bowline_model::stats::{IoDevice as IoDeviceStats, MemoryAccount as MemoryAccountStats, Stats};
use containerd_shim_protos::cgroups::metrics as v1;
use protobuf::MessageField;

use super::figures::{Counters, count, limit, narrow, numbers, some};

/// v1's value for no limit: the largest multiple of a page.
const UNLIMITED: u64 = 0x7fff_ffff_ffff_f000;

pub fn of(stats: &Stats) -> v1::Metrics {
    let Stats { cpu, pids, memory, .. } = stats;
    let ns = |usec: Option<u64>| count(usec).saturating_mul(1000);
    let flag = |set: Option<bool>| u64::from(set.unwrap_or(false));
    v1::Metrics {
        hugetlb: hugetlb_stats(stats),
        pids: some(v1::PidsStat {
            current: count(pids.current),
            // Readers of v1 take zero for no limit.
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
        memory: some(memory_stat(stats)),
        blkio: some(blkio_stat(stats)),
        rdma: rdma_stat(stats),
        memory_oom_control: some(v1::MemoryOomControl {
            oom_kill_disable: flag(memory.oom_kill_disabled),
            under_oom: flag(memory.under_oom),
            oom_kill: count(memory.oom_kills),
            ..v1::MemoryOomControl::default()
        }),
        ..v1::Metrics::default()
    }
}

fn memory_stat(stats: &Stats) -> v1::MemoryStat {
    let memory = &stats.memory;
    let counters = Counters(memory.counters.as_ref());
    let account = |name: &str| memory.accounts.get(name).map(memory_entry).into();
    let mut own = MemoryAccountStats::default();
    (own.usage_bytes, own.peak_bytes) = (memory.usage_bytes, memory.peak_bytes);
    (own.limit_bytes, own.limit_hits) = (memory.limit_bytes, memory.events.max);
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
        usage: some(memory_entry(&own)),
        swap: account("memory_and_swap"),
        kernel: account("kernel"),
        kernel_tcp: account("kernel_tcp"),
        ..v1::MemoryStat::default()
    }
}

fn memory_entry(account: &MemoryAccountStats) -> v1::MemoryEntry {
    v1::MemoryEntry {
        limit: account.limit_bytes.unwrap_or(UNLIMITED),
        usage: count(account.usage_bytes),
        max: count(account.peak_bytes),
        failcnt: count(account.limit_hits),
        ..v1::MemoryEntry::default()
    }
}

fn blkio_stat(stats: &Stats) -> v1::BlkIOStat {
    let devices = || stats.io.devices.iter().flatten();
    let entries = |device: &IoDeviceStats, [read, write, discard]: [u64; 3], sync: Option<u64>| {
        let (major, minor) = numbers(&device.device);
        let name = name_of(&device.device);
        let total = read.saturating_add(write).saturating_add(discard);
        // Like the kernel, count each operation twice: by what it does, and as sync or async.
        let synced = sync.into_iter().flat_map(move |sync| [("Sync", sync), ("Async", total.saturating_sub(sync))]);
        let rows = [("Read", read), ("Write", write)].into_iter().chain(synced);
        rows.chain([("Discard", discard), ("Total", total)]).map(move |(op, value)| v1::BlkIOEntry {
            op: op.to_owned(),
            device: name.clone(),
            major,
            minor,
            value,
            ..v1::BlkIOEntry::default()
        })
    };
    let bytes = |d: &IoDeviceStats| entries(d, [d.read_bytes, d.write_bytes, d.discard_bytes], d.sync_bytes);
    let operations = |d: &IoDeviceStats| entries(d, [d.reads, d.writes, d.discards], d.syncs);
    v1::BlkIOStat {
        io_service_bytes_recursive: devices().flat_map(bytes).collect(),
        io_serviced_recursive: devices().flat_map(operations).collect(),
        ..v1::BlkIOStat::default()
    }
}

/// The path in `/dev` of a block device according to sysfs; may be empty.
fn name_of(device: &str) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{device}")).unwrap_or_default();
    link.file_name().map(|name| format!("/dev/{}", name.to_string_lossy())).unwrap_or_default()
}

fn hugetlb_stats(stats: &Stats) -> Vec<v1::HugetlbStat> {
    let pages = stats.hugepages.iter().map(|(size, pages)| v1::HugetlbStat {
        usage: count(pages.usage_bytes),
        max: count(pages.peak_bytes),
        failcnt: count(pages.limit_hits),
        pagesize: size.clone(),
        ..v1::HugetlbStat::default()
    });
    pages.collect()
}

fn rdma_stat(stats: &Stats) -> MessageField<v1::RdmaStat> {
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
    use protobuf::MessageDyn as _;

    use super::super::tests::{decoded, fields, stats};
    use super::*;

    /// The counters in a v1 `memory.stat` of Linux 6.18.
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
            // The protocol spells some names differently from the kernel.
            let kernel = name.replace("pg_pg_", "pgpg").replace("pg_fault", "pgfault");
            let kernel = kernel.replace("pg_maj_fault", "pgmajfault").replace("swap_limit", "memsw_limit");
            assert_eq!(counters.get(&kernel), Some(value), "{name}");
        }
        let entry = |entry: &v1::MemoryEntry| (entry.usage, entry.max, entry.limit, entry.failcnt);
        assert_eq!(entry(&metrics.memory.usage), (20, 21, 24, 28));
        assert_eq!(entry(&metrics.memory.swap), (40, 41, UNLIMITED, 42));
        assert_eq!(entry(&metrics.memory.kernel), (50, 51, UNLIMITED, 52));
        assert_eq!(entry(&metrics.memory.kernel_tcp), (60, 61, UNLIMITED, 62));
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
        let sync = [row("Sync", 100), row("Async", 145)];
        assert_eq!(bytes[..2], [row("Read", 80), row("Write", 81)]);
        assert_eq!(bytes[2..4], sync);
        assert_eq!(bytes[4..], [row("Discard", 84), row("Total", 245)]);
        let operations = values(&metrics.blkio.io_serviced_recursive);
        assert_eq!(operations, [row("Read", 82), row("Write", 83), row("Discard", 85), row("Total", 250)]);
        let pages = &metrics.hugetlb[0];
        assert_eq!((pages.usage, pages.max, pages.failcnt, pages.pagesize.as_str()), (90, 91, 93, "2MB"));
        assert_eq!(metrics.rdma.limit[0].hca_handles, 96);
    }
}
