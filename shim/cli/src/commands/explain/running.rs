//! Finds what holds a running task back, from two readings a moment apart and its events.
//!
//! Pure: facts go in, findings come out. Must not: state anything that is not known.

use bowline_executor::internal::housekeeping::Difference;
use bowline_model::events::Entry;
use bowline_model::health::HealthStatus;
use bowline_model::stats::{Pressure, Stats};
use bowline_model::status::Shown;

use super::ended;
use super::finding::{Facts, Finding};
use super::held::Held;
use crate::ui::words::{bytes, count, cpus, percent, processes, share, shown};

/// From this percentage of the last ten seconds on, waiting is felt.
const FELT: f64 = 10.0;

/// From this percentage of a memory limit on, the limit is near.
const NEAR: f64 = 90.0;

/// Returns the findings for a task that has not ended.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let own = Subject { whose: "its", cgroup: "own", events: &facts.events };
    let mut all = Vec::new();
    match facts.status {
        Shown::Paused => all.push(Finding::cause("paused", "it is paused: all its processes are frozen until `resume`")),
        Shown::Stopping => all.push(Finding::cause("stopping", "it was asked to end, and has not ended yet")),
        Shown::NotAnswering => all.push(Finding::cause(
            "not_answering",
            "its shim is not answering: somebody may have stopped or frozen it, or another command takes the task over or \
             removes it; the task itself may run",
        )),
        Shown::Created => all.push(Finding::cause("created", "it is still being launched: its program does not run yet")),
        _ => {}
    }
    if let Some((before, now)) = &facts.readings {
        all.extend(limits(&own, before, now));
        all.extend(pressure("cpu", "for a CPU", now.cpu.pressure.as_ref()));
        all.extend(pressure("memory", "for memory to be freed or read again", now.memory.pressure.as_ref()));
        all.extend(pressure("io", "for a disk", now.io.pressure.as_ref()));
    }
    if let Some((before, now)) = &facts.joint {
        all.extend(limits(&SANDBOXS, before, now));
    }
    if !facts.stuck.is_empty() {
        let number = facts.stuck.len() as u64;
        let names: Vec<String> = facts.stuck.iter().take(5).map(|name| shown(name)).collect();
        let wait = if number == 1 { "waits" } else { "wait" };
        let sentence = format!(
            "{} {wait} in the kernel and cannot be interrupted, mostly for a disk: {}",
            processes(number),
            names.join(", ")
        );
        all.push(
            Finding::warning("uninterruptible", sentence).with("processes", Some(number)).with("names", Some(names)),
        );
    }
    all.extend(facts.differing_limits.iter().map(|limit| differing(&own, limit)));
    all.extend(facts.differing_joint_limits.iter().map(|limit| differing(&SANDBOXS, limit)));
    if let Some(health) = &facts.health {
        all.extend(ended::unhealthy(health).map(|finding| finding.a_cause_if(true)));
        if health.status != HealthStatus::Unhealthy && health.failing_streak > 0 {
            let sentence = format!("{} failed in a row", count(health.failing_streak.into(), "health check"));
            all.push(Finding::warning("checks_fail", sentence).with("failing_streak", Some(health.failing_streak)));
        }
    }
    all.extend(ended::watched(&facts.events));
    all.extend(ended::updates(&facts.events));
    all.extend(ended::execs(&facts.events));
    all.extend(free(facts, &all));
    all
}

fn differing(of: &Subject<'_>, limit: &Difference) -> Finding {
    let Difference { file, asked, is } = limit;
    let sentence = format!(
        "{file} of {} cgroup is {}, not {} as asked for: somebody else has changed it",
        of.whose,
        shown(is),
        shown(asked)
    );
    let finding = Finding::warning("limit_differs", sentence).with("file", Some(file.as_str()));
    finding.with("asked", Some(asked.as_str())).with("is", Some(is.as_str())).with("of", Some(of.cgroup))
}

/// Whose limits are checked: the task's own or its sandbox's.
struct Subject<'a> {
    whose: &'static str,
    cgroup: &'static str,
    /// The events that tell of its earlier limits.
    events: &'a [Entry],
}

const SANDBOXS: Subject<'static> = Subject { whose: "its sandbox's", cgroup: "sandbox", events: &[] };

fn limits(of: &Subject<'_>, before: &Stats, now: &Stats) -> Vec<Finding> {
    let all = [
        throttled(of, before, now),
        memory(of, now),
        high(of, before, now),
        killed(of, before, now),
        pids(of, before, now),
    ];
    all.into_iter().flatten().map(|finding| finding.with("of", Some(of.cgroup))).collect()
}

/// How much a counter has grown between two readings.
fn grown(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(before?))
}

fn throttled(of: &Subject<'_>, before: &Stats, now: &Stats) -> Option<Finding> {
    let (periods, throttled) = (now.cpu.periods, now.cpu.throttled_periods.filter(|throttled| *throttled > 0)?);
    let cpus_allowed = now.cpu.limit_usec.zip(now.cpu.period_usec).filter(|(_, period)| *period > 0);
    let limit = cpus_allowed.map(|(limit, period)| limit as f64 / period as f64);
    let by = limit
        .map_or_else(|| format!("{} CPU limit", of.whose), |limit| format!("{} limit of {}", of.whose, cpus(limit)));
    let all = Held { periods, throttled, usec: now.cpu.throttled_usec };
    let (since, earlier) = all.by_limit(of.events);
    let until_then = earlier.as_ref().map_or_else(String::new, |earlier| format!("; before that {earlier}"));
    let lately = grown(before.cpu.throttled_periods, Some(throttled)).unwrap_or(0);
    let of_lately = grown(before.cpu.periods, periods).unwrap_or(0);
    let sentence = match share(lately, of_lately).filter(|_| lately > 0) {
        Some(share) => {
            let begin = if earlier.is_some() { "its change" } else { "its start" };
            format!(
                "throttled just now in {share} of periods ({lately} of {of_lately}) by {by}; since {begin} in {since}{until_then}"
            )
        }
        None => match earlier.filter(|_| since.throttled == 0) {
            Some(earlier) => format!("throttled earlier {earlier}, and not by {by}"),
            None => format!("throttled earlier by {by}: in {since}{until_then}"),
        },
    };
    let finding =
        if lately > 0 { Finding::cause("cpu_throttled", sentence) } else { Finding::note("cpu_throttled", sentence) };
    let finding = finding.with("throttled_periods", Some(throttled)).with("cpu_periods", periods);
    let finding = finding.with("throttled_usec", now.cpu.throttled_usec).with("limit_cpus", limit);
    Some(finding.with("throttled_periods_lately", Some(lately)).with("cpu_periods_lately", Some(of_lately)))
}

fn memory(of: &Subject<'_>, now: &Stats) -> Option<Finding> {
    let memory = &now.memory;
    if memory.under_oom == Some(true) {
        let sentence = format!("{} processes wait for memory that only a kill can free, and none is killed", of.whose);
        return Some(Finding::cause("waits_for_memory", sentence));
    }
    // Cache that was not used lately is freed before the limit is felt.
    let usage = memory.usage_bytes?.saturating_sub(memory.inactive_file_bytes.unwrap_or(0));
    let limit = memory.limit_bytes.filter(|limit| *limit > 0)?;
    let used = usage as f64 / limit as f64 * 100.0;
    let hits = memory.events.max;
    (used >= NEAR).then(|| {
        let met = hits.filter(|hits| *hits > 0).map_or_else(String::new, |hits| format!(", met {hits} times so far"));
        let sentence =
            format!("memory is near {} limit: {} of {} ({}){met}", of.whose, bytes(usage), bytes(limit), percent(used));
        let finding = Finding::warning("memory_near_limit", sentence).with("working_set_bytes", Some(usage));
        finding.with("memory_limit_bytes", Some(limit)).with("memory_limit_hits", hits)
    })
}

fn high(of: &Subject<'_>, before: &Stats, now: &Stats) -> Option<Finding> {
    let hits = now.memory.events.high.filter(|hits| *hits > 0)?;
    let lately = grown(before.memory.events.high, Some(hits)).unwrap_or(0);
    let high = now.memory.high_bytes;
    let above = high.map_or_else(|| "memory.high".to_owned(), |high| format!("memory.high of {}", bytes(high)));
    let sentence = match lately {
        0 => format!("slowed down earlier above {} {above}: {hits} times", of.whose),
        _ => format!("slowed down just now above {} {above}: {lately} times, {hits} since its start", of.whose),
    };
    let finding =
        if lately > 0 { Finding::cause("memory_high", sentence) } else { Finding::note("memory_high", sentence) };
    let finding = finding.with("memory_high_hits", Some(hits)).with("memory_high_hits_lately", Some(lately));
    Some(finding.with("high_bytes", high).with("usage_bytes", now.memory.usage_bytes))
}

fn killed(of: &Subject<'_>, before: &Stats, now: &Stats) -> Option<Finding> {
    let kills = now.memory.oom_kills.filter(|kills| *kills > 0)?;
    let lately = grown(before.memory.oom_kills, Some(kills)).unwrap_or(0);
    let limit = now.memory.limit_bytes;
    let of_limit = limit.map_or_else(String::new, |limit| format!(", its limit being {}", bytes(limit)));
    let member = if of.cgroup == "own" { "it" } else { "its sandbox" };
    let sentence =
        format!("the kernel has killed {} of {member} so far, as memory ran out{of_limit}", processes(kills));
    let finding = Finding::warning("oom_killed_child", sentence).a_cause_if(lately > 0);
    let finding = finding.with("oom_kills", Some(kills)).with("memory_limit_bytes", limit);
    Some(finding.with("memory_peak_bytes", now.memory.peak_bytes))
}

fn pids(of: &Subject<'_>, before: &Stats, now: &Stats) -> Option<Finding> {
    let (current, limit) = (now.pids.current?, now.pids.limit?);
    let hits = now.pids.limit_hits.unwrap_or(0);
    let lately = grown(before.pids.limit_hits, now.pids.limit_hits).unwrap_or(0);
    if current < limit && hits == 0 {
        return None;
    }
    let failed = if hits > 0 { format!("; {} failed so far", count(hits, "fork")) } else { String::new() };
    let at = if current >= limit { "has reached" } else { "has met" };
    let sentence = format!("it {at} {} limit of {limit} processes and threads, with {current} now{failed}", of.whose);
    let finding = Finding::warning("pids_limit", sentence).a_cause_if(current >= limit || lately > 0);
    let finding = finding.with("pids_current", Some(current)).with("pids_limit", Some(limit));
    Some(finding.with("pids_limit_hits", now.pids.limit_hits))
}

fn pressure(resource: &'static str, what: &str, pressure: Option<&Pressure>) -> Option<Finding> {
    let some = pressure?.some.as_ref().filter(|some| some.avg10 >= FELT)?;
    let full = pressure?.full.as_ref().map(|full| full.avg10);
    let all =
        full.filter(|full| *full > 0.0).map_or_else(String::new, |full| format!(", all of them in {}", percent(full)));
    let sentence = format!("its processes waited {what} in {} of the last 10 s{all}", percent(some.avg10));
    let kind = match resource {
        "cpu" => "cpu_pressure",
        "memory" => "memory_pressure",
        _ => "io_pressure",
    };
    let finding = Finding::cause(kind, sentence).with("some_avg10", Some(some.avg10)).with("full_avg10", full);
    Some(finding.with("some_usec", Some(some.total_usec)))
}

/// The finding that nothing holds the task back, with its current usage.
fn free(facts: &Facts, found: &[Finding]) -> Option<Finding> {
    let (before, now) = facts.readings.as_ref()?;
    if found.iter().any(|finding| finding.severity != super::finding::Severity::Note) {
        return None;
    }
    let cpu = cpu_percent(before, now);
    let memory = match (now.memory.usage_bytes, now.memory.limit_bytes) {
        (Some(usage), Some(limit)) => Some(format!("memory {} of {}", bytes(usage), bytes(limit))),
        (Some(usage), None) => Some(format!("memory {}", bytes(usage))),
        (None, _) => None,
    };
    let figures: Vec<String> = cpu.map(|cpu| format!("CPU {}", percent(cpu))).into_iter().chain(memory).collect();
    let does = if figures.is_empty() { String::new() } else { format!(": {}", figures.join(", ")) };
    let finding = Finding::note("nothing", format!("nothing holds it back{does}"));
    Some(finding.with("cpu_percent", cpu).with("usage_bytes", now.memory.usage_bytes))
}

/// The CPU use between two readings, in percent of one CPU.
pub fn cpu_percent(before: &Stats, now: &Stats) -> Option<f64> {
    let elapsed = now.read_at.duration_since(before.read_at).as_secs_f64();
    let used = grown(before.cpu.usage_usec, now.cpu.usage_usec)? as f64 / 1e6;
    (elapsed > 0.0).then(|| (used / elapsed * 1000.0).round() / 10.0)
}
