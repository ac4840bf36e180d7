//! Checks `watch`: thresholds that can be exceeded, and looks that are not too frequent.

use std::time::Duration;

use super::rules::require;
use crate::invalid::Invalid;
use crate::task::{Task, Watch, WatchCount, WatchMemory, WatchPressure, WatchProcesses, WatchThrottled};
use crate::values;

/// The shortest time between two looks: more frequent ones would be a load of their own.
const LEAST_PERIOD: Duration = Duration::from_millis(100);

/// The kernel's bounds for the window of a trigger (WINDOW_MIN_US and
/// WINDOW_MAX_US in kernel/sched/psi.c).
const WINDOW: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let Watch { oom: _, memory_high, memory, throttled, cpu_pressure, memory_pressure, io_pressure, .. } = &task.watch;
    if let Some(WatchCount { above, .. }) = memory_high {
        let field = "watch.memory_high.above";
        require(above.is_some(), field, || "is missing; write how many events may happen, such as 10".into())?;
        require(*above != Some(0), field, || "is 0; at least 1 event happens before it is found".into())?;
    }
    if let Some(watch) = memory {
        self::memory(watch)?;
    }
    if let Some(WatchThrottled { above, every, .. }) = throttled {
        threshold("watch.throttled.above", *above)?;
        period("watch.throttled.every", *every)?;
    }
    let pressures = [("cpu", cpu_pressure), ("memory", memory_pressure), ("io", io_pressure)];
    for (resource, watch) in pressures {
        watch.iter().try_for_each(|watch| pressure(&format!("watch.{resource}_pressure"), watch))?;
    }
    match &task.watch.unexpected_processes {
        Some(WatchProcesses { every, .. }) => period("watch.unexpected_processes.every", *every),
        None => Ok(()),
    }
}

fn memory(watch: &WatchMemory) -> Result<(), Invalid> {
    let parts = [("above", watch.above), ("anon_above", watch.anon_above), ("cache_above", watch.cache_above)];
    require(parts.iter().any(|(_, most)| most.is_some()), "watch.memory.above", || {
        "is missing; write the most memory that may be used, such as 200M, or anon_above or cache_above".into()
    })?;
    for (name, most) in parts {
        let field = format!("watch.memory.{name}");
        require(most.is_none_or(|most| most.as_u64() > 0), &field, || "is 0; every task uses some memory".into())?;
    }
    period("watch.memory.every", watch.every)
}

fn pressure(field: &str, watch: &WatchPressure) -> Result<(), Invalid> {
    threshold(&format!("{field}.above"), watch.above)?;
    let (least, most) = WINDOW;
    let window = watch.window();
    require((least..=most).contains(&window), &format!("{field}.window"), || {
        format!("{window:?} is not between {least:?} and {most:?}, as the kernel wants it")
    })?;
    let above = watch.above.unwrap_or_default().as_std();
    require(above.as_micros() > 0, &format!("{field}.above"), || "is below 1us, the least the kernel takes".into())?;
    require(above <= window, &format!("{field}.above"), || {
        format!("{above:?} is longer than the window, {window:?}: nobody can wait that long in it")
    })
}

fn threshold(field: &str, above: Option<values::Duration>) -> Result<(), Invalid> {
    let above = above.ok_or_else(|| Invalid::new(field, "is missing; write a duration such as 500ms"))?;
    require(!above.as_std().is_zero(), field, || "is 0; write a duration such as 500ms".into())
}

fn period(field: &str, every: Option<values::Duration>) -> Result<(), Invalid> {
    require(every.is_none_or(|every| every.as_std() >= LEAST_PERIOD), field, || {
        format!("is below {LEAST_PERIOD:?}: the shim would do nothing but look")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{accepted, refused, task};
    use crate::task::{Stalled, WatchAction};

    #[test]
    fn each_policy_with_its_defaults() {
        let watch = task(
            "[watch]\noom = {}\nmemory_high.above = 10\nmemory = {above = '200M', action = 'lift'}\n\
             throttled.above = '2s'\ncpu_pressure.above = '150ms'\nunexpected_processes = {}",
        );
        let watch = watch.unwrap().watch;
        assert_eq!(watch.oom.unwrap().action, WatchAction::Report);
        assert_eq!(watch.memory.as_ref().unwrap().every().as_secs(), 10);
        assert_eq!(watch.memory.unwrap().action, WatchAction::Lift);
        let pressure = watch.cpu_pressure.unwrap();
        assert_eq!((pressure.window().as_secs(), pressure.who), (2, Stalled::Some));
        assert!(watch.io_pressure.is_none());
        accepted("[watch.io_pressure]\nabove = '10s'\nwindow = '10s'\nwho = 'full'");
        accepted("[watch.memory]\nanon_above = '25M'\ncache_above = '155M'");
    }

    #[test]
    fn a_threshold_that_is_zero_or_negative() {
        refused("watch.memory_high.above = 0", "watch.memory_high.above", "is 0");
        refused("watch.memory_high.above = -1", "watch.memory_high.above", "-1");
        refused("watch.memory.above = 0", "watch.memory.above", "is 0");
        refused("watch.memory.cache_above = '0M'", "watch.memory.cache_above", "is 0");
        refused("watch.memory.above = '-1M'", "watch.memory.above", "-1M");
        refused("watch.throttled.above = 0", "watch.throttled.above", "is 0");
        refused("watch.throttled.above = '-1s'", "watch.throttled.above", "-1s");
        refused("watch.cpu_pressure.above = '0ms'", "watch.cpu_pressure.above", "is 0");
        refused("watch.cpu_pressure.above = '500ns'", "watch.cpu_pressure.above", "below 1us");
    }

    #[test]
    fn a_threshold_in_the_wrong_unit() {
        refused("watch.memory.above = '10s'", "watch.memory.above", "10s");
        refused("watch.throttled.above = '10M'", "watch.throttled.above", "10M");
        refused("watch.throttled.above = '20%'", "watch.throttled.above", "20%");
        refused("watch.io_pressure.above = '10%'", "watch.io_pressure.above", "10%");
        refused("watch.memory_high.above = '10M'", "watch.memory_high.above", "10M");
    }

    #[test]
    fn a_threshold_that_is_missing_or_cannot_be_met() {
        refused("watch.memory_high = {}", "watch.memory_high.above", "is missing");
        refused("watch.memory.every = '1s'", "watch.memory.above", "is missing");
        refused("watch.throttled.every = '1s'", "watch.throttled.above", "is missing");
        refused("watch.io_pressure.window = '1s'", "watch.io_pressure.above", "is missing");
        refused("watch.cpu_pressure.above = '3s'", "watch.cpu_pressure.above", "longer than the window");
        let window = |window: &str| format!("watch.cpu_pressure = {{above = '100ms', window = '{window}'}}");
        refused(&window("499ms"), "watch.cpu_pressure.window", "not between");
        refused(&window("11s"), "watch.cpu_pressure.window", "not between");
    }

    #[test]
    fn looks_that_are_too_many() {
        refused("watch.unexpected_processes.every = '99ms'", "watch.unexpected_processes.every", "below");
        refused("watch.throttled = {above = '1s', every = 0}", "watch.throttled.every", "below");
        refused("watch.memory = {above = '1M', every = '1us'}", "watch.memory.every", "below");
    }

    #[test]
    fn what_is_not_known() {
        refused("watch.disk = {}", "watch.disk", "unknown field");
        refused("watch.oom.action = 'restart'", "watch.oom.action", "unknown variant");
        refused("watch.oom.above = 1", "watch.oom.above", "unknown field");
    }
}
