//! Readings of files as kernels write them, for both cgroup versions, since a machine has only one of them.

use std::fs;

use bowline_cgroup::Layout;
use bowline_sys::mountinfo;

use super::{Stats, read};

/// The figures read from a cgroup with these files.
fn read_of(kind: &str, options: &str, top: &[(&str, &str)], files: &[(&str, &str)]) -> Stats {
    let folder = tempfile::tempdir().unwrap();
    let cgroup = folder.path().join("task");
    fs::create_dir(&cgroup).unwrap();
    for (name, text) in top {
        fs::write(folder.path().join(name), text).unwrap();
    }
    for (name, text) in files.iter().chain(&[("tasks", ""), ("cgroup.procs", "")]) {
        fs::write(cgroup.join(name), text).unwrap();
    }
    let mount = format!("1 0 0:1 / {} rw - {kind} cgroup {options}", folder.path().display());
    let layout = Layout::from_mounts(mountinfo::parse(mount.as_bytes())).expect("a hierarchy");
    let cgroup = layout.open("/task").unwrap().unwrap();
    read(&layout, &cgroup, &["2MB".to_owned()])
}

/// Files of cgroup v1, as recorded on Linux 6.18.
const V1: &[(&str, &str)] = &[
    ("cpuacct.usage", "73000123456\n"),
    ("cpuacct.usage_user", "50000000999\n"),
    ("cpuacct.usage_sys", "23000122457\n"),
    ("cpuacct.usage_percpu", "40000000000 33000123456 \n"),
    ("cpu.cfs_quota_us", "50000\n"),
    ("cpu.cfs_period_us", "100000\n"),
    ("cpu.stat", "nr_periods 10\nnr_throttled 2\nthrottled_time 5000000\nnr_bursts 3\nburst_time 7000000\n"),
    ("memory.usage_in_bytes", "20971520\n"),
    ("memory.max_usage_in_bytes", "31457280\n"),
    ("memory.limit_in_bytes", "67108864\n"),
    ("memory.failcnt", "4\n"),
    ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
    ("memory.memsw.usage_in_bytes", "20975616\n"),
    ("memory.memsw.max_usage_in_bytes", "31461376\n"),
    ("memory.memsw.limit_in_bytes", "134217728\n"),
    ("memory.memsw.failcnt", "5\n"),
    ("memory.kmem.usage_in_bytes", "1048576\n"),
    ("memory.kmem.max_usage_in_bytes", "2097152\n"),
    ("memory.kmem.limit_in_bytes", "9223372036854771712\n"),
    ("memory.kmem.failcnt", "0\n"),
    ("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 6\n"),
    (
        "memory.stat",
        "cache 10575872\nrss 9019392\nrss_huge 0\nshmem 9068544\nmapped_file 6742016\ndirty 57344\nwriteback 0\n\
         pgpgin 5840201\npgpgout 5835435\npgfault 8504201\npgmajfault 3\ninactive_file 135168\n\
         hierarchical_memory_limit 67108864\nhierarchical_memsw_limit 134217728\ntotal_cache 17176604\n\
         total_rss 89145344\ntotal_swap 4096\ntotal_pgfault 486765113\ntotal_pgmajfault 22323\n\
         total_inactive_file 9906880\n",
    ),
    ("pids.current", "7\n"),
    ("pids.max", "max\n"),
    ("pids.events", "max 8\n"),
    (
        "blkio.throttle.io_service_bytes_recursive",
        "259:0 Read 4096\n259:0 Write 8192\n259:0 Sync 8192\n259:0 Async 4096\n259:0 Discard 512\n259:0 Total 12800\n\
         Total 12800\n",
    ),
    (
        "blkio.throttle.io_serviced_recursive",
        "259:0 Read 1\n259:0 Write 2\n259:0 Sync 2\n259:0 Async 1\n259:0 Discard 1\n259:0 Total 4\nTotal 4\n",
    ),
    ("hugetlb.2MB.usage_in_bytes", "2097152\n"),
    ("hugetlb.2MB.max_usage_in_bytes", "4194304\n"),
    ("hugetlb.2MB.limit_in_bytes", "9223372036852678656\n"),
    ("hugetlb.2MB.failcnt", "9\n"),
];

#[test]
fn v1_is_read_whole() {
    let stats = read_of("cgroup", "rw,cpu,cpuacct,memory,pids,blkio,hugetlb,freezer", &[], V1);
    assert_eq!(stats.cgroup_version, 1);
    let cpu = &stats.cpu;
    assert_eq!(
        (cpu.usage_usec, cpu.user_usec, cpu.system_usec),
        (Some(73_000_123), Some(50_000_000), Some(23_000_122))
    );
    assert_eq!(cpu.per_cpu_usec, Some(vec![40_000_000, 33_000_123]));
    assert_eq!((cpu.periods, cpu.throttled_periods, cpu.throttled_usec), (Some(10), Some(2), Some(5000)));
    assert_eq!((cpu.bursts, cpu.burst_usec), (Some(3), Some(7000)));
    assert_eq!((cpu.limit_usec, cpu.period_usec), (Some(50_000), Some(100_000)));
    let memory = &stats.memory;
    assert_eq!((memory.usage_bytes, memory.peak_bytes), (Some(20_971_520), Some(31_457_280)));
    assert_eq!((memory.limit_bytes, memory.low_bytes), (Some(67_108_864), None));
    assert_eq!((memory.anon_bytes, memory.swap_bytes), (Some(89_145_344), Some(4096)));
    assert_eq!((memory.kernel_bytes, memory.swap_limit_bytes), (Some(1_048_576), Some(67_108_864)));
    assert_eq!((memory.oom_kills, memory.under_oom, memory.oom_kill_disabled), (Some(6), Some(true), Some(false)));
    let counters = memory.counters.as_ref().unwrap();
    assert_eq!((counters["pgmajfault"], counters["total_pgfault"], counters.len()), (3, 486_765_113, 20));
    let both = &memory.accounts["memory_and_swap"];
    assert_eq!((both.usage_bytes, both.peak_bytes), (Some(20_975_616), Some(31_461_376)));
    assert_eq!((both.limit_bytes, both.limit_hits), (Some(134_217_728), Some(5)));
    assert_eq!(memory.accounts["kernel"].limit_bytes, None);
    assert!(!memory.accounts.contains_key("kernel_tcp"), "there is no such file");
    assert_eq!((stats.pids.current, stats.pids.limit, stats.pids.limit_hits), (Some(7), None, Some(8)));
    let device = &stats.io.devices.as_ref().unwrap()[0];
    assert_eq!((device.device.as_str(), device.read_bytes, device.write_bytes), ("259:0", 4096, 8192));
    assert_eq!((device.reads, device.writes, device.discard_bytes, device.discards), (1, 2, 512, 1));
    assert_eq!((device.sync_bytes, device.syncs), (Some(8192), Some(2)));
    let pages = &stats.hugepages["2MB"];
    assert_eq!((pages.usage_bytes, pages.peak_bytes), (Some(2_097_152), Some(4_194_304)));
    assert_eq!((pages.limit_bytes, pages.limit_hits), (None, Some(9)));
}

/// Files of cgroup v2, as recorded on Linux 6.12.
const V2: &[(&str, &str)] = &[
    (
        "cpu.stat",
        "usage_usec 73000\nuser_usec 50000\nsystem_usec 23000\nnice_usec 0\ncore_sched.force_idle_usec 0\n\
         nr_periods 10\nnr_throttled 2\nthrottled_usec 5000\nnr_bursts 3\nburst_usec 7000\n",
    ),
    (
        "cpu.pressure",
        "some avg10=1.50 avg60=0.25 avg300=0.05 total=1234\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=7\n",
    ),
    ("cpu.max", "max 100000\n"),
    ("memory.current", "20971520\n"),
    ("memory.peak", "31457280\n"),
    ("memory.max", "67108864\n"),
    ("memory.high", "max\n"),
    ("memory.low", "0\n"),
    ("memory.swap.current", "4096\n"),
    ("memory.swap.peak", "8192\n"),
    ("memory.swap.max", "max\n"),
    ("memory.events", "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\nsock_throttled 0\n"),
    (
        "memory.stat",
        "anon 9019392\nfile 10575872\nkernel 1048576\nkernel_stack 65536\nslab 524288\nsock 0\nshmem 4096\n\
         inactive_file 135168\nworkingset_refault_anon 1\nworkingset_refault_file 2\npgfault 8504\npgmajfault 3\n",
    ),
    ("pids.current", "7\n"),
    ("pids.max", "100\n"),
    ("pids.events", "max 8\n"),
    ("io.stat", "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=512 dios=1\n254:0 \n"),
    ("hugetlb.2MB.current", "2097152\n"),
    ("hugetlb.2MB.max", "max\n"),
    ("hugetlb.2MB.events", "max 9\n"),
    ("rdma.current", "mlx4_0 hca_handle=2 hca_object=20\n"),
    ("rdma.max", "mlx4_0 hca_handle=4 hca_object=max\n"),
];

#[test]
fn v2_is_read_whole() {
    let controllers = [("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma\n")];
    let stats = read_of("cgroup2", "rw,nsdelegate", &controllers, V2);
    assert_eq!(stats.cgroup_version, 2);
    let cpu = &stats.cpu;
    assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.system_usec), (Some(73_000), Some(50_000), Some(23_000)));
    assert_eq!((cpu.bursts, cpu.burst_usec, cpu.per_cpu_usec.as_ref()), (Some(3), Some(7000), None));
    assert_eq!((cpu.limit_usec, cpu.period_usec), (None, Some(100_000)));
    assert!(stats.measured.iter().any(|name| name == "cpu.limit_usec"), "that there is no limit is known");
    let pressure = cpu.pressure.as_ref().unwrap();
    assert_eq!(pressure.full.as_ref().map(|full| full.total_usec), Some(7));
    let memory = &stats.memory;
    assert_eq!((memory.usage_bytes, memory.peak_bytes), (Some(20_971_520), Some(31_457_280)));
    assert_eq!((memory.limit_bytes, memory.high_bytes, memory.low_bytes), (Some(67_108_864), None, None));
    assert_eq!((memory.swap_bytes, memory.swap_peak_bytes, memory.swap_limit_bytes), (Some(4096), Some(8192), None));
    let events = &memory.events;
    assert_eq!((events.low, events.high, events.max, events.oom), (Some(1), Some(2), Some(3), Some(4)));
    assert_eq!((memory.oom_kills, events.oom_group_kill), (Some(5), Some(6)));
    let counters = memory.counters.as_ref().unwrap();
    assert_eq!((counters["pgmajfault"], counters["workingset_refault_file"], counters.len()), (3, 2, 12));
    assert!(memory.accounts.is_empty() && memory.under_oom.is_none());
    assert_eq!((stats.pids.current, stats.pids.limit, stats.pids.limit_hits), (Some(7), Some(100), Some(8)));
    let devices = stats.io.devices.as_ref().unwrap();
    assert_eq!((devices[0].read_bytes, devices[0].discard_bytes, devices[0].discards), (4096, 512, 1));
    let pages = &stats.hugepages["2MB"];
    assert_eq!((pages.usage_bytes, pages.limit_bytes, pages.limit_hits), (Some(2_097_152), None, Some(9)));
    let rdma = &stats.rdma["mlx4_0"];
    assert_eq!((rdma.handles, rdma.objects, rdma.handle_limit, rdma.object_limit), (Some(2), Some(20), Some(4), None));
}

#[test]
fn a_file_that_is_missing_leaves_its_figure_out() {
    for (kind, options) in [("cgroup", "rw,memory,cpu,freezer"), ("cgroup2", "rw")] {
        let stats = read_of(kind, options, &[], &[]);
        assert_eq!(stats.measured, [] as [&str; 0], "{kind}");
        assert!(stats.memory.counters.is_none() && stats.rdma.is_empty(), "{kind}");
    }
}
