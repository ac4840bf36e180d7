//! The code of this crate that reads foreign bytes, as functions of bytes, for fuzzers: `fuzz/`
//! calls them, and so does a test in the shim with each corpus.
//!
//! The functions return nothing: the test is that they return at all, soon, and with little memory.
//! A reader of files gets them in a folder of its own. Must not: be in what is installed (feature
//! `fuzzing`).

use std::fs;
use std::path::Path;

use bowline_cgroup::{Cgroup, Layout};
use bowline_model::events;
use bowline_model::folder::Folder;
use bowline_model::stats;
use bowline_spec::Signal;
use bowline_spec::user::NameOrId;
use bowline_sys::mountinfo;
use bowline_sys::proc_stat::ProcStat;
use oci_spec::runtime::LinuxResources;
use serde_json::json;
use tempfile::TempDir;

use crate::oci::bundle::{self, Configuration};
use crate::oci::tolerance;
use crate::oci::unsupported;
use crate::view::accounts::{self, Wanted};
use crate::view::network::{self, ConfigList, Kept};
use crate::view::rootfs;

/// A bundle's `config.json`, and its checks before anything is made.
pub fn config(data: &[u8]) {
    let Ok(Configuration { spec, .. }) = bundle::parse(data, Path::new("config.json")) else { return };
    let _ = unsupported::check(&spec);
    for mount in spec.mounts().iter().flatten() {
        let _ = rootfs::read_mount_options(mount);
    }
    let _ = bundle::asked_cgroup(&spec);
}

/// A manager's description of an exec.
pub fn process(data: &[u8]) {
    let Ok(process) = tolerance::process(data) else { return };
    let _ = bundle::check_process(&process).and_then(|()| unsupported::check_process(&process));
}

/// A manager's limits for a container that runs.
pub fn resources(data: &[u8]) {
    let _ = serde_json::from_slice::<LinuxResources>(data).map(bundle::limits);
}

/// The files in a task's or sandbox's folder: each of them with these bytes.
pub fn state(data: &[u8]) {
    thread_local!(static FOLDER: Same = Same::new(&["task.json", "exit.json", "sandbox.json", "networks.json"]));
    FOLDER.with(|same| {
        same.write(data);
        let folder = Folder::at(same.0.path());
        let _ = (folder.record(), folder.exit(), folder.sandbox());
        let _ = folder.last_events();
        let Ok(Some(kept)) = Kept::read(same.0.path()) else { return };
        // What an undo reads.
        for attached in &kept.attached {
            for index in (0..attached.begun).rev() {
                let _ = attached.list.kind(index);
                let _ = attached.list.config(index, attached.result.as_ref(), &kept.capabilities);
            }
        }
    });
}

/// Reads `data` as the journal of events.
pub fn journal(data: &[u8]) {
    events::parse(data, &mut Vec::new());
}

/// Reads `data` as `/proc/self/mountinfo`, and as `/proc/PID/stat`.
pub fn mountinfo(data: &[u8]) {
    mountinfo::parse(data);
    let text = String::from_utf8_lossy(data);
    if let Some(stat) = ProcStat::parse(&text) {
        let _ = (stat.has_ended(), stat.parent(), stat.number(22));
    }
}

/// The files of a cgroup, of either version: each of them with these bytes.
pub fn cgroup(data: &[u8]) {
    struct Versions {
        same: Same,
        both: [(Layout, Cgroup); 2],
    }
    thread_local!(static VERSIONS: Versions = {
        let same = Same::new(CGROUP_FILES);
        let both = [("cgroup", "rw,cpu,cpuacct,memory,pids,blkio,hugetlb,rdma,freezer"), ("cgroup2", "rw")];
        let both = both.map(|(kind, options)| {
            let mount = format!("1 0 0:1 / {} rw - {kind} cgroup {options}", same.0.path().display());
            let layout = Layout::from_mounts(mountinfo::parse(mount.as_bytes())).expect("a hierarchy");
            let cgroup = layout.open("/task").expect("it opens").expect("it was made");
            (layout, cgroup)
        });
        Versions { same, both }
    });
    VERSIONS.with(|Versions { same, both }| {
        same.write(data);
        for (layout, cgroup) in both {
            stats::read(layout, cgroup, &["2MB".to_owned()]);
            stats::last(layout, cgroup);
            stats::memory_in_use(layout, cgroup);
            stats::throttled_usec(layout, cgroup);
        }
    });
}

/// The answer of a CNI plugin, and a list of plugins.
pub fn cni(data: &[u8]) {
    let _ = network::result_of(data, &json!({"cniVersion": "1.0.0"}));
    let _ = (network::versions_in(data), network::failure_in(data));
    let Ok(value) = serde_json::from_slice(data) else { return };
    let Ok(list) = ConfigList::of(&bowline_spec::network::List::Made(value)) else { return };
    for index in 0..list.plugins.len() {
        let _ = (list.kind(index), list.config(index, None, []));
    }
}

/// An image's `/etc/passwd` and, behind a NUL, its `/etc/group`.
pub fn accounts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (passwd, group) = text.split_once('\0').unwrap_or((&text, &text));
    let groups = [NameOrId::Name("video".to_owned()), NameOrId::Id(7)];
    for user in [NameOrId::Name("web".to_owned()), NameOrId::Id(33)] {
        for group_wanted in [None, Some(&groups[0])] {
            let wanted = Wanted { user: Some(&user), group: group_wanted, groups: &groups };
            let _ = accounts::by_files(passwd, || Ok(group.to_owned()), wanted);
        }
    }
    let _ = (passwd.parse::<NameOrId>(), passwd.parse::<Signal>());
}

/// A folder whose files are all the same one.
struct Same(TempDir);

impl Same {
    fn new(names: &[&str]) -> Same {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(SAME), "").expect("written");
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it is below the folder")).expect("made");
            fs::hard_link(folder.path().join(SAME), path).expect("linked");
        }
        Same(folder)
    }

    fn write(&self, data: &[u8]) {
        fs::write(self.0.path().join(SAME), data).expect("written");
    }
}

const SAME: &str = "same";

/// The files that `stats` reads.
const CGROUP_FILES: &[&str] = &[
    "cgroup.controllers",
    "task/blkio.throttle.io_service_bytes_recursive",
    "task/blkio.throttle.io_serviced_recursive",
    "task/cgroup.procs",
    "task/cpu.cfs_period_us",
    "task/cpu.cfs_quota_us",
    "task/cpu.max",
    "task/cpu.pressure",
    "task/cpu.stat",
    "task/cpuacct.usage",
    "task/cpuacct.usage_percpu",
    "task/cpuacct.usage_sys",
    "task/cpuacct.usage_user",
    "task/hugetlb.2MB.current",
    "task/hugetlb.2MB.events",
    "task/hugetlb.2MB.failcnt",
    "task/hugetlb.2MB.limit_in_bytes",
    "task/hugetlb.2MB.max",
    "task/hugetlb.2MB.max_usage_in_bytes",
    "task/hugetlb.2MB.usage_in_bytes",
    "task/io.pressure",
    "task/io.stat",
    "task/memory.current",
    "task/memory.events",
    "task/memory.events.local",
    "task/memory.failcnt",
    "task/memory.high",
    "task/memory.kmem.usage_in_bytes",
    "task/memory.limit_in_bytes",
    "task/memory.low",
    "task/memory.max",
    "task/memory.max_usage_in_bytes",
    "task/memory.memsw.limit_in_bytes",
    "task/memory.memsw.usage_in_bytes",
    "task/memory.oom_control",
    "task/memory.peak",
    "task/memory.pressure",
    "task/memory.soft_limit_in_bytes",
    "task/memory.stat",
    "task/memory.swap.current",
    "task/memory.swap.max",
    "task/memory.swap.peak",
    "task/memory.usage_in_bytes",
    "task/pids.current",
    "task/pids.events",
    "task/pids.max",
    "task/rdma.current",
    "task/rdma.max",
    "task/tasks",
];
