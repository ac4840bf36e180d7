//! Finds why a task has ended, from its report and its events.
//!
//! Pure: facts go in, findings come out. Must not: state anything that is not known.

use bowline_model::events::{Entry, Event};
use bowline_model::health::{Health, HealthStatus};
use bowline_model::report::{ExitReport, StoppedBy};
use bowline_model::status::Shown;
use bowline_model::watch;
use bowline_spec::Seccomp;

use super::finding::{Facts, Finding, Severity};
use super::held::Held;
use crate::ui::findings::sentence;
use crate::ui::words::{bytes, count, cpus, last_line, last_lines, meaning, processes, shown, signal_of};

/// From this share of throttled periods on, a CPU limit is felt.
const FELT: f64 = 0.1;

/// How many of the last output lines are shown.
const LINES: usize = 3;

/// Returns the findings for a task that has ended.
pub fn findings(facts: &Facts, report: &ExitReport) -> Vec<Finding> {
    if report.shim_died {
        return vec![shim_died(facts, report)];
    }
    // If a shell passed on that its child was killed, the kill is the cause and comes first.
    let (mut all, rest): (Vec<Finding>, Vec<Finding>) =
        memory(facts, report).into_iter().partition(|finding| finding.severity == Severity::Cause);
    all.push(end(facts, report));
    all.extend(rest);
    all.extend(cpu(facts, report));
    all.extend(pids(report));
    if report.stopped_by != Some(StoppedBy::Health) {
        all.extend(report.health.as_ref().and_then(unhealthy));
    }
    if report.stopped_by != Some(StoppedBy::Watch) {
        all.extend(watched(&facts.events));
    }
    all.extend(updates(&facts.events));
    all.extend(execs(&facts.events));
    if report.output_dropped_bytes > 0 {
        let sentence = format!(
            "{} of its output were lost: no file or reader would take them",
            bytes(report.output_dropped_bytes)
        );
        all.push(
            Finding::warning("output_dropped", sentence)
                .with("output_dropped_bytes", Some(report.output_dropped_bytes)),
        );
    }
    if let Some(killed) = report.processes_killed.filter(|killed| *killed > 0) {
        let sentence = format!("{} of it still ran, and {} killed with it", processes(killed), was(killed));
        all.push(Finding::note("processes_killed", sentence).with("processes_killed", Some(killed)));
    }
    let mut lines = Vec::new();
    for tail in [&report.stdout_tail, &report.stderr_tail].into_iter().flatten() {
        lines.extend(last_lines(tail, LINES));
    }
    // What the cause tells already.
    let said = last_word(facts, report).filter(|_| all.iter().any(|finding| finding.kind == "exit_code"));
    lines.retain(|line| Some(line) != said.as_ref());
    if !lines.is_empty() {
        all.push(
            Finding::note("last_output", format!("last output: {}", lines.join(" ⏎ "))).with("lines", Some(lines)),
        );
    }
    all
}

/// Reports that nobody knows the end: there is no new shim, or it came too late to learn that.
fn shim_died(facts: &Facts, report: &ExitReport) -> Finding {
    let unknown = "its shim died before it: how it ended nobody knows";
    if facts.status != Shown::Dead {
        let lost = report.init_lost.as_ref().map_or_else(String::new, |why| format!(", as {why}"));
        return Finding::cause("shim_died", format!("{unknown}{lost}; a new shim has ended what was left of it"))
            .with("processes_killed", report.processes_killed);
    }
    if facts.never_ran {
        return Finding::cause(
            "shim_died",
            "its launch was cut short: its shim died before it had started the command, and nothing of it ran",
        );
    }
    let said = facts.shim_said.as_deref().and_then(last_line);
    let last = match (&facts.no_new_shim, &said) {
        (Some(why), _) => format!("; {}", shown(why)),
        (None, Some(said)) => format!("; its shim's last word: {said}"),
        (None, None) => String::new(),
    };
    Finding::cause("shim_died", format!("{unknown}, and what it ran may still run{last}")).with("shim_said", said)
}

fn was(number: u64) -> &'static str {
    if number == 1 { "was" } else { "were" }
}

/// Returns why the task ended.
fn end(facts: &Facts, report: &ExitReport) -> Finding {
    let finding = if report.oom_killed_init == Some(true) {
        let sentence = format!("the kernel killed its command, as memory ran out: {}", out_of_memory(facts, report));
        with_memory(Finding::cause("oom_killed", sentence), report)
    } else if let Some(by) = report.stopped_by {
        stopped(report, by)
    } else if let Some(signal) = &report.signal {
        signalled(facts, report, signal)
    } else {
        exited(facts, report)
    };
    finding.with("exit_code", report.exit_code).with("signal", report.signal.clone())
}

/// Says whose memory limit was reached, with the known figures.
fn out_of_memory(facts: &Facts, report: &ExitReport) -> String {
    let limit = report.figures.memory_limit_bytes.map_or_else(String::new, |limit| format!(" of {}", bytes(limit)));
    let whose = match &report.oom_cgroup {
        Some(cgroup) if facts.cgroup.as_ref() == Some(cgroup) => format!("its own limit{limit} was met"),
        Some(cgroup) => format!("the joint limit of its sandbox, {}, was met, not its own{limit}", shown(cgroup)),
        None => format!("not its own limit{limit} was met, but that of a cgroup above it, or the host had no more"),
    };
    let peak = report.figures.memory_peak_bytes.map(|peak| format!("peak {}", bytes(peak)));
    let kills = report.figures.oom_kills.map(|kills| count(kills, "OOM kill"));
    [Some(whose), peak, kills].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn with_memory(finding: Finding, report: &ExitReport) -> Finding {
    finding
        .with("memory_limit_bytes", report.figures.memory_limit_bytes)
        .with("memory_peak_bytes", report.figures.memory_peak_bytes)
        .with("oom_kills", report.figures.oom_kills)
        .with("oom_cgroup", report.oom_cgroup.clone())
}

fn stopped(report: &ExitReport, by: StoppedBy) -> Finding {
    let ended = match &report.signal {
        Some(signal) if signal == "SIGKILL" && report.signal_sent_by_shim => {
            "it had not ended when its grace was over, and was killed by SIGKILL".to_owned()
        }
        Some(signal) => format!("{signal} ended it"),
        None => {
            report.exit_code.map_or_else(|| "it ended".to_owned(), |code| format!("it ended with exit code {code}"))
        }
    };
    if by == StoppedBy::Request {
        let sentence = format!("it was stopped by a request, from `stop`, `rm -f` or whoever ended its shim: {ended}");
        return Finding::cause("stopped_by_request", sentence);
    }
    if by == StoppedBy::Health {
        let checks = report.health.as_ref().map_or_else(String::new, |health| format!(": {}", checks(health)));
        let sentence = format!("it was stopped as it was unhealthy{checks}; {ended}");
        let streak = report.health.as_ref().map(|health| health.failing_streak);
        return Finding::cause("stopped_by_health", sentence).with("failing_streak", streak);
    }
    if by == StoppedBy::Timeout {
        return Finding::cause("stopped_by_timeout", format!("it was stopped as its time was over: {ended}"));
    }
    if by == StoppedBy::Caller {
        let sentence =
            format!("it was stopped as the `bowline` that ran it, or the parent of that, had ended: {ended}");
        return Finding::cause("stopped_by_caller", sentence);
    }
    let found = report.stopped_for.as_ref();
    let why = found.map_or_else(String::new, |found| format!(", as {} says: {}", found.policy(), sentence(found)));
    Finding::cause("stopped_by_watch", format!("it was stopped by its watch{why}; {ended}"))
        .with("policy", found.map(watch::Finding::policy))
        .with("found", found.and_then(|found| serde_json::to_value(found).ok()))
}

/// What the filter of the task's description ends a program for by SIGSYS, if it is one of bowline's own that does.
fn killed_by_filter(facts: &Facts, signal: &str) -> Option<&'static str> {
    let native = facts.task.as_ref().is_some_and(|task| *task.settled().seccomp() == Seccomp::Native);
    (native && signal == "SIGSYS").then_some(
        "its filter `native` (--untrusted has that) kills programs that make system calls of another architecture, as 32-bit \
         and x32 programs do",
    )
}

fn signalled(facts: &Facts, report: &ExitReport, signal: &str) -> Finding {
    if report.signal_sent_by_shim {
        return Finding::cause(
            "killed_by_request",
            format!("{signal} ended it, which it was sent by a request, as from `kill`"),
        );
    }
    let why = match killed_by_filter(facts, signal).or_else(|| meaning(signal)) {
        Some(why) => format!(": {why}"),
        None if signal == "SIGKILL" && report.figures.oom_kills == Some(0) => {
            ": not sent by its shim, and not by the OOM killer (0 OOM kills)".to_owned()
        }
        None => ": not sent by its shim, so by itself or somebody else".to_owned(),
    };
    Finding::cause("signal", format!("{signal} ended its command{why}")).with("oom_kills", report.figures.oom_kills)
}

fn exited(facts: &Facts, report: &ExitReport) -> Finding {
    let Some(code) = report.exit_code else {
        return Finding::note("ended", "it has ended; with which exit code is not known");
    };
    let by_itself = format!("its command ended by itself with exit code {code}");
    if code == 0 {
        return Finding::note("success", format!("{by_itself}: all is well, by its own word"));
    }
    let convention = match code {
        126 => Some("by a shell's convention a command was found and could not be executed".to_owned()),
        127 => Some("by a shell's convention a command was not found".to_owned()),
        code => signal_of(code).map(|signal| {
            let why = killed_by_filter(facts, &signal).map_or_else(String::new, |why| format!(" ({why})"));
            format!("by a shell's convention {signal} ended what it ran{why}")
        }),
    };
    let said = last_word(facts, report).map_or_else(String::new, |line| format!("; its last word: {line}"));
    let convention = convention.map_or_else(String::new, |convention| format!(": {convention}"));
    Finding::cause("exit_code", format!("{by_itself}{convention}{said}"))
}

/// The last line that the command wrote to stderr, as its report or its log has it, else to stdout.
fn last_word(facts: &Facts, report: &ExitReport) -> Option<String> {
    let of = |text: &Option<String>| text.as_deref().and_then(last_line);
    of(&report.stderr_tail).or_else(|| of(&facts.stderr)).or_else(|| of(&report.stdout_tail))
}

fn memory(facts: &Facts, report: &ExitReport) -> Vec<Finding> {
    let mut all = Vec::new();
    let killed = report.oom_killed == Some(true);
    if killed && report.oom_killed_init != Some(true) {
        let what = report.figures.oom_kills.map_or_else(|| "processes".to_owned(), processes);
        let limit = out_of_memory(facts, report);
        let last = facts.events.iter().rev().find_map(|entry| match &entry.event {
            Event::Oom { last, .. } => last.as_ref().map(|last| format!(" ({} was the last)", shown(&last.name))),
            _ => None,
        });
        let last = last.unwrap_or_default();
        let sentence = format!("the kernel killed {what} of it{last}, as memory ran out, not its first: {limit}");
        // A shell that passes on how its child ended.
        let passed_on = report.exit_code == Some(137) && report.signal.is_none();
        all.push(with_memory(Finding::warning("oom_killed_child", sentence), report).a_cause_if(passed_on));
    }
    let (limit, hits) = (report.figures.memory_limit_bytes, report.figures.memory_limit_hits);
    if let (Some(limit), Some(hits), false) = (limit, hits.filter(|hits| *hits > 0), killed) {
        let peak = report.figures.memory_peak_bytes.map_or_else(String::new, |peak| format!(", peak {}", bytes(peak)));
        let sentence =
            format!("it met its memory limit of {} {}, and enough could be freed{peak}", bytes(limit), times(hits));
        let finding = Finding::warning("memory_limit_met", sentence).with("memory_limit_bytes", Some(limit));
        all.push(
            finding.with("memory_limit_hits", Some(hits)).with("memory_peak_bytes", report.figures.memory_peak_bytes),
        );
    }
    if let Some(hits) = report.figures.memory_high_hits.filter(|hits| *hits > 0) {
        let high = facts.task.as_ref().and_then(|task| task.memory.high).map(|high| high.as_u64());
        let of = high.map_or_else(String::new, |high| format!(" of {}", bytes(high)));
        let sentence = format!("it was slowed down above its memory.high{of} {}", times(hits));
        all.push(
            Finding::warning("memory_high", sentence).with("memory_high_hits", Some(hits)).with("high_bytes", high),
        );
    }
    all
}

fn times(number: u64) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}

fn cpu(facts: &Facts, report: &ExitReport) -> Option<Finding> {
    let throttled = report.figures.throttled_periods.filter(|periods| *periods > 0)?;
    let limit = facts.task.as_ref().and_then(|task| task.cpu.limit).map(|limit| limit.as_f64());
    let by = limit.map_or_else(|| "a CPU limit".to_owned(), |limit| format!("its limit of {}", cpus(limit)));
    let all = Held { periods: report.figures.cpu_periods, throttled, usec: report.figures.throttled_usec };
    let (now, earlier) = all.by_limit(&facts.events);
    let felt = now.periods.is_none_or(|periods| now.throttled as f64 >= periods as f64 * FELT);
    let sentence = match earlier {
        None => format!("throttled in {now}, by {by}"),
        Some(earlier) if now.throttled == 0 => format!("throttled {earlier}, and never by {by}"),
        Some(earlier) => format!("throttled in {now}, by {by}; before that {earlier}"),
    };
    let felt = felt && now.throttled > 0;
    let finding =
        if felt { Finding::warning("cpu_throttled", sentence) } else { Finding::note("cpu_throttled", sentence) };
    let finding = finding.with("throttled_periods", Some(throttled)).with("cpu_periods", report.figures.cpu_periods);
    let finding =
        finding.with("throttled_usec", report.figures.throttled_usec).with("cpu_usec", report.figures.cpu_usec);
    Some(finding.with("limit_cpus", limit))
}

fn pids(report: &ExitReport) -> Option<Finding> {
    let hits = report.figures.pids_limit_hits.filter(|hits| *hits > 0)?;
    let own = report.figures.pids_limit.map_or_else(String::new, |limit| format!("; its own is {limit}"));
    let sentence = format!("{} failed by a limit of processes and threads{own}", count(hits, "fork"));
    let finding = Finding::warning("pids_limit", sentence).with("pids_limit_hits", Some(hits));
    Some(finding.with("pids_limit", report.figures.pids_limit))
}

/// Reports the failed checks of an unhealthy task.
pub fn unhealthy(health: &Health) -> Option<Finding> {
    (health.status == HealthStatus::Unhealthy).then(|| {
        let finding = Finding::warning("unhealthy", format!("unhealthy: {}", checks(health)));
        finding.with("failing_streak", Some(health.failing_streak))
    })
}

fn checks(health: &Health) -> String {
    let failed = format!("{} failed in a row", count(health.failing_streak.into(), "check"));
    let Some(check) = health.log.iter().rfind(|check| !check.succeeded()) else { return failed };
    let how = match (check.timed_out, check.exit_code, &check.error) {
        (true, ..) => "it did not end in time".to_owned(),
        (false, Some(code), _) => format!("exit code {code}"),
        (false, None, Some(error)) => shown(error),
        (false, None, None) => "it was killed".to_owned(),
    };
    let said = last_line(&check.output).map_or_else(String::new, |line| format!(", and said: {line}"));
    format!("{failed}; the last: {how}{said}")
}

/// Reports that the task's limits have changed.
pub fn updates(events: &[Entry]) -> Option<Finding> {
    let mut updated = events.iter().filter_map(|entry| match &entry.event {
        Event::Updated { limits, .. } => Some((entry.time, limits)),
        _ => None,
    });
    let (time, limits) = updated.next_back()?;
    let number = updated.count() as u64 + 1;
    let limits = limits.as_ref().and_then(|limits| serde_json::to_value(limits).ok());
    let told = limits.as_ref().map_or_else(String::new, |limits| format!(", to {}", shown(&limits.to_string())));
    let at = time.strftime("%H:%M:%S");
    let sentence = format!("its limits were changed {}, the last time at {at} UTC{told}", times(number));
    Some(Finding::note("limits_changed", sentence).with("changes", Some(number)).with("limits", limits))
}

/// Reports what the task's watch has found, if it has not stopped the task for that.
pub fn watched(events: &[Entry]) -> Option<Finding> {
    let mut found = events.iter().filter_map(|entry| match &entry.event {
        Event::Watch { finding, failed: None, .. } => Some(finding),
        _ => None,
    });
    let last = found.next_back()?;
    let number = found.count() as u64 + 1;
    let told =
        format!("its watch has found something {}, the last time {}: {}", times(number), last.policy(), sentence(last));
    Some(Finding::warning("watch", told).with("findings", Some(number)).with("last", serde_json::to_value(last).ok()))
}

/// Reports that commands in the task were killed at their timeout.
pub fn execs(events: &[Entry]) -> Option<Finding> {
    let late = |entry: &&Entry| matches!(entry.event, Event::Exec { exit_code: None, shim_died: false, .. });
    let late = events.iter().filter(late).count() as u64;
    (late > 0).then(|| {
        let sentence = format!("{} run in it {} killed at a deadline", count(late, "command"), was(late));
        Finding::note("execs_timed_out", sentence).with("execs", Some(late))
    })
}
