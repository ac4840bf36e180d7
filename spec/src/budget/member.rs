//! What one member of a sandbox may use, as its OCI configuration has it.

use std::collections::BTreeMap;

use oci_spec::runtime::LinuxResources;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::values::{ByteSize, IdSet};

/// One member of a sandbox: its own limits, of which the joint ones are made.
///
/// What is `None` is not limited; neither are zero and negative figures, which
/// [`Member::of_oci`] leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// Its id, for errors and notes.
    pub name: String,
    /// Whether it is the sandbox's own pause container, which runs nothing.
    pub pause: bool,
    /// CPU shares, as asked for: 0 and what the kernel does not take too.
    pub shares: Option<u64>,
    /// CPU time in each period, in µs.
    pub quota_us: Option<u64>,
    /// How often the quota is renewed, in µs.
    pub period_us: Option<u64>,
    /// CPU time for realtime scheduling in each realtime period, in µs.
    pub rt_runtime_us: Option<u64>,
    /// How often that is renewed, in µs.
    pub rt_period_us: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<IdSet>,
    /// The memory nodes it may use.
    pub mems: Option<IdSet>,
    /// The most memory, in bytes.
    pub memory: Option<u64>,
    /// The most memory in huge pages, in bytes, by the page's size in bytes.
    pub hugepages: BTreeMap<u64, u64>,
}

impl Member {
    /// The member `name` with the limits of its OCI configuration.
    ///
    /// # Errors
    /// A list of CPUs or memory nodes, or a page size, that is none; the field
    /// is the one of OCI's, such as `linux.resources.cpu.cpus`.
    pub fn of_oci(name: &str, resources: &LinuxResources) -> Result<Member, Invalid> {
        let cpu = resources.cpu().clone().unwrap_or_default();
        let hugepages = resources.hugepage_limits().iter().flatten();
        Ok(Member {
            name: name.to_owned(),
            pause: false,
            shares: cpu.shares(),
            quota_us: cpu.quota().and_then(positive),
            period_us: cpu.period().filter(|period| *period > 0),
            rt_runtime_us: cpu.realtime_runtime().and_then(positive),
            rt_period_us: cpu.realtime_period().filter(|period| *period > 0),
            cpus: ids(name, "cpus", cpu.cpus().as_deref())?,
            mems: ids(name, "mems", cpu.mems().as_deref())?,
            memory: resources.memory().and_then(|memory| memory.limit()).and_then(positive),
            hugepages: hugepages
                .filter(|limit| limit.limit() >= 0)
                .map(|limit| Ok((page_size(name, limit.page_size())?, limit.limit().unsigned_abs())))
                .collect::<Result<_, Invalid>>()?,
        })
    }

    /// Its period, in µs, with the kernel's default.
    pub(super) fn period_us(&self) -> u64 {
        self.period_us.unwrap_or(super::DEFAULT_PERIOD_US)
    }

    /// Its realtime period, in µs, with the kernel's default.
    pub(super) fn rt_period_us(&self) -> u64 {
        self.rt_period_us.unwrap_or(super::REALTIME_PERIOD_US)
    }
}

/// Zero and negative figures are no limit.
fn positive(figure: i64) -> Option<u64> {
    u64::try_from(figure).ok().filter(|figure| *figure > 0)
}

fn ids(name: &str, which: &str, list: Option<&str>) -> Result<Option<IdSet>, Invalid> {
    let Some(list) = list.map(str::trim).filter(|list| !list.is_empty()) else {
        return Ok(None);
    };
    let wrong =
        |error: Invalid| Invalid::new(format!("linux.resources.cpu.{which}"), format!("{name}: {}", error.reason));
    list.parse().map(Some).map_err(wrong)
}

fn page_size(name: &str, size: &str) -> Result<u64, Invalid> {
    let bytes = size.parse::<ByteSize>().map(ByteSize::as_u64).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        Invalid::new("linux.resources.hugepageLimits", format!("{name}: {size:?} is not a page size such as 2MB"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(resources: serde_json::Value) -> Result<Member, Invalid> {
        Member::of_oci("web", &serde_json::from_value(resources).unwrap())
    }

    #[test]
    fn what_is_zero_or_less_is_no_limit() {
        let cpu = json!({"quota": -1, "period": 0, "realtimeRuntime": 0, "realtimePeriod": 0, "cpus": "", "mems": ""});
        let none = read(json!({"cpu": cpu, "memory": {"limit": -1}})).unwrap();
        assert_eq!(none, Member { name: "web".into(), ..Member::default() });
    }

    #[test]
    fn limits_are_read() {
        let cpu = json!({"shares": 0, "quota": 5000, "period": 10000, "cpus": "0-1", "mems": "0",
            "realtimeRuntime": 7, "realtimePeriod": 9});
        let pages = json!([{"pageSize": "2MB", "limit": 4194304}, {"pageSize": "1GB", "limit": 0}]);
        let member = read(json!({"cpu": cpu, "memory": {"limit": 64}, "hugepageLimits": pages})).unwrap();
        assert_eq!((member.shares, member.quota_us, member.period_us), (Some(0), Some(5000), Some(10_000)));
        assert_eq!((member.rt_runtime_us, member.rt_period_us), (Some(7), Some(9)));
        assert_eq!(member.cpus.map(|cpus| cpus.to_string()).as_deref(), Some("0-1"));
        assert_eq!((member.memory, member.hugepages), (Some(64), [(2 << 20, 4 << 20), (1 << 30, 0)].into()));
    }

    #[test]
    fn what_is_no_list_and_no_page_size_is_refused() {
        // The first two are of Kata's own tests.
        for list in ["7 beard-seconds", "Elliott - 17", "99999", "3-1"] {
            let error = read(json!({"cpu": {"cpus": list}})).unwrap_err();
            assert_eq!(error.field, "linux.resources.cpu.cpus", "{list}");
            assert!(error.reason.contains("web"), "{error}");
        }
        let error = read(json!({"hugepageLimits": [{"pageSize": "big", "limit": 1}]})).unwrap_err();
        assert_eq!(error.field, "linux.resources.hugepageLimits");
    }
}
