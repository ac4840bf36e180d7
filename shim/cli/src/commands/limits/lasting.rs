//! Whether limits that were applied last: a drop-in of somebody else's may win over them once systemd reads its files.

use bowline_executor::internal::host_units::Applied;
use bowline_executor::internal::is_cgroup_v2;
use bowline_executor::systemd::host::memory_property;
use bowline_spec::host_limits::{Change, INFINITY, Service, Slice, UnitName};
use bowline_spec::values::ByteSize;
use bowline_units::overrides::{Override, winner};

use super::bus::{Bus, cpu_text, memory_text};

/// Reports each limit of `applied` over which a file wins, with that file.
pub fn report_overridden(bus: &mut Bus, applied: &Applied) {
    let slices = applied.manifest.slices.iter().map(|slice| (&slice.name, Slice::wanted(slice)));
    let services = applied.manifest.services.iter().map(|service| (&service.name, Service::wanted(service)));
    for (name, wanted) in slices.chain(services) {
        // A slice that was made for its limits has them in its own file.
        for line in overridden(name, wanted, !applied.made.contains(name)) {
            bus.warn(&line);
        }
    }
}

fn overridden(name: &UnitName, wanted: Change, has_drop_in: bool) -> Vec<String> {
    let wins = |setting: &str, is_same: &dyn Fn(&str) -> bool| {
        winner(name.as_str(), setting, has_drop_in).filter(|Override { value, .. }| !is_same(value))
    };
    let line = |limit: String, Override { path, value }: Override| {
        let value = if value.is_empty() { "the default" } else { &value };
        format!("{name}: {limit} does not last: once systemd reads its files again, {} has {value}", path.display())
    };
    let memory = memory_property(is_cgroup_v2());
    let cpu = wanted.cpu.and_then(|cpu| {
        let found = wins("CPUQuota", &|value| percent(value) == cpu.percent());
        found.map(|found| line(format!("cpu {}", cpu_text(cpu)), found))
    });
    let memory = wanted.memory.and_then(|most| {
        let found = wins(memory, &|value| bytes(value) == Some(most));
        found.map(|found| line(format!("memory {}", memory_text(most)), found))
    });
    cpu.into_iter().chain(memory).collect()
}

/// The value of `CPUQuota=`, which is empty for none.
fn percent(value: &str) -> Option<f64> {
    value.trim_end_matches('%').parse().ok()
}

/// The value of `MemoryMax=`; `None` for one that only systemd can read, such as a share of all memory.
fn bytes(value: &str) -> Option<u64> {
    match value {
        "" | "infinity" => Some(INFINITY),
        value => value.parse::<ByteSize>().ok().map(ByteSize::as_u64),
    }
}
