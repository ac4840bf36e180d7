//! `explain`: says in plain words why a task has ended or is slow, with the figures.
//!
//! ```text
//!   inspect, journal ──► Facts ─┬─► ended   ─┬─► findings ─► lines, or JSON
//!   two readings ──────────┘    └─► running ─┘
//! ```
//!
//! Rules are pure, and each finding lists the figures that it is based on. Must not: change anything, or decide by the
//! text of a message. Of a task whose shim died it asks a new one, as every command that needs a shim does.

mod ended;
mod finding;
mod held;
mod running;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use anstyle::Style;
use bowline_client::find_or_adopt;
use bowline_client::spawn::Programs;
use bowline_executor::internal::LogFiles;
use bowline_executor::internal::proc_stat::{self, ProcStat};
use bowline_model::events::{Event, Reader};
use bowline_model::folder::StateDir;
use bowline_model::log_line::{LogLine, LogStream};
use bowline_model::stats::Stats;
use bowline_model::status::Shown;
use bowline_model::trust;
use bowline_model::{Doing, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::Serialize;

use crate::commands::events;
use crate::commands::inspect::examine;
use crate::commands::sandbox::inspection;
use crate::input::chosen::Chosen;
use crate::input::each_task::each_found;
use crate::reach;
use crate::ui::colour;
use crate::ui::json;
use crate::ui::print::show;
use crate::ui::words;
use finding::{Facts, Finding, Severity};

/// The time between the two readings of a running task: several periods of a CPU limit.
const APART: Duration = Duration::from_secs(1);

/// The answer for one task, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Explanation {
    id: TaskId,
    /// The task's status, in one word.
    status: Shown,
    /// The status as a sentence.
    summary: String,
    /// The labels in the description: whose task it is, where a manager has it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// What was found, most important first.
    findings: Vec<Finding>,
}

/// Explains tasks, in the order given; with `json` prints one object, or a list for several tasks.
pub async fn run(state: &StateDir, tasks: &Chosen, json: bool) -> Result<u8> {
    let act = |id: TaskId, _| {
        let state = state.clone();
        async move { explained(&state, &id).await }
    };
    let (mut all, mut is_first) = (Vec::new(), true);
    let code = each_found(tasks.find(state)?, act)
        .in_order(|_, explanation| match json {
            true => {
                all.push(explanation);
                Ok(())
            }
            false => {
                let gap = (!std::mem::take(&mut is_first)).then(String::new);
                show(&gap.into_iter().chain(lines(&explanation)).collect::<Vec<_>>())
            }
        })
        .await?;
    match (tasks.is_several(), json) {
        (_, false) => {}
        (false, true) => all.iter().try_for_each(json::print)?,
        (true, true) => json::print_list(&all)?,
    }
    Ok(code)
}

async fn explained(state: &StateDir, id: &TaskId) -> Result<Explanation> {
    let facts = match gather(state, id).await {
        // The task ended meanwhile: gather again, as its report tells more.
        Err(error) if matches!(error.kind(), Kind::Internal | Kind::WrongState) => gather(state, id).await?,
        gathered => gathered?,
    };
    Ok(explain(id, &facts, Timestamp::now()))
}

/// Collects all that is known of the task.
async fn gather(state: &StateDir, id: &TaskId) -> Result<Facts> {
    let mut found = examine(state, id).await?;
    let folder = state.folder(id);
    let mut no_new_shim = None;
    if found.status == Shown::Dead {
        no_new_shim = find_or_adopt(&folder, id, &Programs::default()).await.err().map(|why| why.message().to_owned());
        found = examine(state, id).await?;
    }
    let found = found.beside_the_kernel(state);
    let sandbox = match &found.sandbox {
        Some(sandbox) if found.pid.is_some() => inspection::examine(state, sandbox).await.ok(),
        _ => None,
    };
    let mut facts = Facts {
        status: found.status,
        cgroup: found.cgroup,
        sandbox: found.sandbox.as_ref().map(ToString::to_string),
        task: found.task,
        exit: found.exit,
        health: found.health,
        started_at: found.started_at,
        differing_limits: found.differing_limits,
        differing_joint_limits: sandbox.map(|sandbox| sandbox.beside_the_kernel().differing_limits).unwrap_or_default(),
        ..Facts::default()
    };
    let mut reader = Reader::open(state.events())?;
    let journal = reader.read()?;
    events::tell_damage(&reader, 0);
    facts.events = journal.into_iter().filter(|entry| entry.id == *id).collect();
    // Drop the events of an earlier task with the same id.
    if let Some(begin) = facts.events.iter().rposition(|entry| matches!(entry.event, Event::Created { .. })) {
        facts.events.drain(..begin);
    }
    if facts.exit.is_some() {
        facts.stderr = facts.task.as_ref().and_then(|task| stderr(&LogFiles::of(task, id, folder.path())).ok());
    }
    if facts.status == Shown::Dead {
        facts.never_ran = folder.never_ran();
        facts.exit = Some(folder.report_after_death(folder.record()?.as_ref()));
        facts.shim_said = end_of(&folder.file("shim.log")).ok();
        facts.no_new_shim = no_new_shim;
    }
    if facts.exit.is_none() && ![Shown::Created, Shown::NotAnswering].contains(&facts.status) {
        read_twice(state, id, &mut facts).await?;
    }
    Ok(facts)
}

/// The end of what the log has of stderr; nothing where no file keeps it.
fn stderr(files: &LogFiles) -> io::Result<String> {
    let mut text = String::new();
    for (stream, file) in files.all() {
        match stream {
            Some(LogStream::Stderr) => text += &end_of(&file.path)?,
            Some(LogStream::Stdout) => {}
            None => {
                let end = end_of(&file.path)?;
                let lines = end.lines().filter_map(|line| LogLine::read(line.as_bytes()));
                let lines = lines.filter(|line| line.stream == Some(LogStream::Stderr));
                lines.for_each(|line| text += &String::from_utf8_lossy(&line.into_bytes()));
            }
        }
    }
    Ok(text)
}

/// The end of a log, whose last line is what counts.
fn end_of(log: &Path) -> io::Result<String> {
    const END: u64 = 64 << 10;
    // Its folder may be one that others write to.
    let mut file = trust::open(File::options().read(true), log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
    let mut bytes = Vec::new();
    file.take(END).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a running task and its sandbox twice.
async fn read_twice(state: &StateDir, id: &TaskId, facts: &mut Facts) -> Result<()> {
    let shim = reach::live(state, id).await?;
    let sandbox = match facts.sandbox.as_ref().and_then(|id| id.parse::<TaskId>().ok()) {
        Some(id) => bowline_client::sandbox::of(state, &id, &Programs::default()).await.ok(),
        None => None,
    };
    let joint = async || match &sandbox {
        Some(sandbox) => sandbox.sandbox_stats().await.ok(),
        None => None,
    };
    let own = async || -> Result<Stats> {
        serde_json::from_str(&shim.stats().await?).doing(Kind::Internal, || "the shim's statistics are damaged")
    };
    let (before, joint_before) = (own().await?, joint().await);
    let stuck = stuck(&before)?;
    tokio::time::sleep(APART).await;
    let (now, joint_now) = (own().await?, joint().await);
    // A frozen process looks like one that waits for a disk.
    if facts.status == Shown::Running {
        let still = self::stuck(&now)?;
        facts.stuck = still.into_iter().filter(|process| stuck.contains(process)).map(|(_, name)| name).collect();
    }
    facts.readings = Some((before, now));
    facts.joint = joint_before.zip(joint_now);
    Ok(())
}

/// The processes that are in uninterruptible sleep now, by pid and name.
fn stuck(stats: &Stats) -> Result<Vec<(i32, String)>> {
    let mut stuck = Vec::new();
    for process in &stats.processes {
        let pid = process.pid;
        let stat = proc_stat::find(pid).doing(Kind::Internal, || format!("cannot look at process {pid}"))?;
        if stat.as_deref().and_then(ProcStat::parse).is_some_and(|stat| stat.state() == "D") {
            stuck.push((pid, process.name.clone()));
        }
    }
    Ok(stuck)
}

/// Explains the task as of `now`.
fn explain(id: &TaskId, facts: &Facts, now: Timestamp) -> Explanation {
    let mut findings = match &facts.exit {
        Some(report) => ended::findings(facts, report),
        None => running::findings(facts),
    };
    findings.sort_by_key(|finding| finding.severity);
    let labels = facts.task.as_ref().map(|task| task.labels.clone()).unwrap_or_default();
    Explanation { id: id.clone(), status: facts.status, summary: summary(id, facts, now), labels, findings }
}

fn summary(id: &TaskId, facts: &Facts, now: Timestamp) -> String {
    let since = |from: Timestamp, to: Timestamp| {
        let usec = u64::try_from(to.duration_since(from).as_micros()).unwrap_or(0);
        words::span(usec)
    };
    match &facts.exit {
        Some(report) if report.shim_died => format!("{id} has lost its shim"),
        Some(report) => {
            let code = report.exit_code.map_or_else(String::new, |code| format!(" with exit code {code}"));
            let signal = report.signal.as_ref().map_or_else(String::new, |signal| format!(" ({signal})"));
            let ran = report.started_at.map(|at| format!(", after it ran for {}", since(at, report.exited_at)));
            format!("{id} ended {} ago{code}{signal}{}", since(report.exited_at, now), ran.unwrap_or_default())
        }
        None => {
            let started = facts.started_at.map_or_else(String::new, |at| format!(", started {} ago", since(at, now)));
            let cpu = facts.readings.as_ref().and_then(|(before, now)| running::cpu_percent(before, now));
            let cpu = cpu.map_or_else(String::new, |cpu| format!(", uses {} of one CPU", words::percent(cpu)));
            format!("{id} is {}{started}{cpu}", facts.status)
        }
    }
}

/// Formats the explanation for people.
fn lines(explanation: &Explanation) -> Vec<String> {
    let finding = |finding: &Finding| {
        let style = match finding.severity {
            Severity::Cause => colour::ERROR,
            Severity::Warning => colour::HINT,
            Severity::Note => Style::new(),
        };
        line(style, finding.severity.as_str(), &finding.sentence)
    };
    let label = |(name, value): (&String, &String)| words::shown(&format!("{name}={value}"));
    let labels: Vec<String> = explanation.labels.iter().map(label).collect();
    let labels = (!labels.is_empty()).then(|| line(Style::new(), "labels", &labels.join(", ")));
    let findings = explanation.findings.iter().map(finding);
    [explanation.summary.clone()].into_iter().chain(labels).chain(findings).collect()
}

fn line(style: Style, what: &str, said: &str) -> String {
    format!("{style}{what:<7}{style:#}  {said}")
}
