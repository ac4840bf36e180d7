//! `events`: prints the events of tasks from the journal, oldest first; with `--follow` also new ones.
//!
//! Asks no shim: the journal outlives them. Must not: wake up while nothing is written.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use bowline_client::Changes;
use bowline_model::events::{Entry, Event, Reader as JournalReader};
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::input::args::EventsArgs;
use crate::ui::findings;
use crate::ui::json;
use crate::ui::print::complain;
use crate::ui::reader::Reader;

/// Runs `bowline events`.
///
/// # Errors
/// `NotFound` for an id that no task and no event has.
pub fn run(state: &StateDir, args: &EventsArgs) -> Result<u8> {
    let folder = state.events();
    // Watch before the first read, so that nothing is missed in between.
    let changes = if args.follow { Some(Changes::of(&folder)?) } else { None };
    let mut reader = JournalReader::open(folder)?;
    let mut entries = reader.read()?;
    tell_damage(&reader, 0);
    known(state, &args.ids, &entries)?;
    loop {
        if !print(&entries, args)? {
            return Ok(0);
        }
        let Some(changes) = &changes else { return Ok(0) };
        if !wait(changes, args.until.map(|until| until.timestamp()))? {
            return Ok(0);
        }
        let damaged = reader.damaged();
        entries = reader.read()?;
        tell_damage(&reader, damaged);
    }
}

/// Reports damaged lines beyond the `known` ones.
pub fn tell_damage(reader: &JournalReader, known: u64) {
    match reader.damaged().saturating_sub(known) {
        0 => {}
        1 => complain("a line of the journal is damaged, and was left out", None),
        lines => complain(&format!("{lines} lines of the journal are damaged, and were left out"), None),
    }
}

/// Checks that each id belongs to a task or to an event.
fn known(state: &StateDir, ids: &[TaskId], entries: &[Entry]) -> Result<()> {
    let seen: BTreeSet<&TaskId> = entries.iter().map(|entry| &entry.id).collect();
    for id in ids {
        if !seen.contains(id) && !state.folder(id).exists()? {
            let error = Error::new(Kind::NotFound, format!("there is no task named {id}, and no event of one"));
            return Err(error.hint("`bowline events` without a name shows those of all tasks"));
        }
    }
    Ok(())
}

/// Prints the wanted events; false if nobody reads the output any more.
fn print(entries: &[Entry], args: &EventsArgs) -> Result<bool> {
    let mut stdout = io::stdout().lock();
    for entry in entries.iter().filter(|entry| wanted(entry, args)) {
        let line = if args.json { json::line(entry)? } else { line(entry) };
        match writeln!(stdout, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            written => written.doing(Kind::Internal, || "cannot write to stdout")?,
        }
    }
    Ok(true)
}

fn wanted(entry: &Entry, args: &EventsArgs) -> bool {
    (args.ids.is_empty() || args.ids.contains(&entry.id))
        && args.since.is_none_or(|since| entry.time >= since.timestamp())
        && args.until.is_none_or(|until| entry.time <= until.timestamp())
}

/// Formats an event as one line, in UTC: `2026-11-21 19:20:31  web  started  pid 4711`.
fn line(entry: &Entry) -> String {
    let time = entry.time.strftime("%Y-%m-%d %H:%M:%S");
    let mut details = details(&entry.event);
    if entry.lost > 0 {
        details.push(format!("({} before it could not be written)", entry.lost));
    }
    let line = format!("{time}  {}  {}  {}", entry.id, entry.event.name(), details.join(", "));
    // An argument may be a script of many lines, but an event is one line.
    let words: String = line.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    words
}

fn details(event: &Event) -> Vec<String> {
    let code = |code: Option<i32>| code.map(|code| format!("exit code {code}"));
    match event {
        Event::Created { command, .. } => vec![command.join(" ")],
        Event::Started { pid, .. } => vec![format!("pid {pid}")],
        Event::Exec { command, exit_code, shim_died, .. } => {
            let unknown = if *shim_died { "exit code not known" } else { "timed out" };
            vec![code(*exit_code).unwrap_or_else(|| unknown.to_owned()), command.join(" ")]
        }
        Event::Health { status, failing_streak, .. } => {
            let failed = (*failing_streak > 0).then(|| format!("{failing_streak} failed"));
            [status.as_str().to_owned()].into_iter().chain(failed).collect()
        }
        Event::Oom { kills, last, init, .. } => {
            let killed = last.as_ref().map(|last| format!("{} (pid {})", last.name, last.pid));
            let limit =
                last.as_ref().and_then(|last| last.cgroup.as_ref()).map(|path| format!("at the limit of {path}"));
            let init = init.is_some_and(|init| init).then(|| "which was init".to_owned());
            [format!("killed {kills} so far")].into_iter().chain(killed).chain(init).chain(limit).collect()
        }
        Event::Watch { finding, action, failed, .. } => findings::details(finding, *action, failed.as_deref()),
        Event::Updated { limits, .. } => {
            limits.iter().filter_map(|limits| serde_json::to_string(limits).ok()).collect()
        }
        Event::Exited { exit_code, signal, oom_killed, stopped_by, shim_died, init_lost, .. } => {
            let oom = oom_killed.is_some_and(|killed| killed).then(|| "out of memory".to_owned());
            let stopped = stopped_by.map(|by| format!("stopped by {}", by.as_str()));
            let died = shim_died.then(|| "its shim died before it".to_owned()).into_iter().chain(init_lost.clone());
            code(*exit_code).into_iter().chain(signal.clone()).chain(oom).chain(stopped).chain(died).collect()
        }
        _ => Vec::new(),
    }
}

/// Waits for a change; false if `until` is over or nobody reads stdout any more.
fn wait(changes: &Changes, until: Option<Timestamp>) -> Result<bool> {
    let stdout = io::stdout();
    loop {
        let timeout = match until.map(|until| until.duration_since(Timestamp::now())) {
            Some(left) if !left.is_positive() => return Ok(false),
            Some(left) => Some(Timespec { tv_sec: left.as_secs(), tv_nsec: left.subsec_nanos().into() }),
            None => None,
        };
        let mut fds =
            [PollFd::new(changes, PollFlags::IN), PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            answer => answer.doing(Kind::Internal, || "cannot wait for events")?,
        };
        if Reader::after(fds[1].revents()) == Reader::Gone {
            return Ok(false);
        }
        changes.discard();
        return Ok(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_for_a_person() {
        let entry = |text: &str| {
            let text = format!("{{\"time\":\"2026-11-21T19:20:31.5Z\",\"id\":\"web\",\"seq\":1,{text}}}");
            line(&serde_json::from_str(&text).expect("an event"))
        };
        assert_eq!(entry("\"event\":\"started\",\"pid\":4711"), "2026-11-21 19:20:31  web  started  pid 4711");
        assert_eq!(entry("\"event\":\"paused\""), "2026-11-21 19:20:31  web  paused");
        let exec = r#""event":"exec","command":["sh","-c","a\nb"],"exit_code":3,"started_at":"2026-11-21T19:20:30Z""#;
        assert_eq!(entry(exec), "2026-11-21 19:20:31  web  exec  exit code 3, sh -c a b");
        let lost = "\"event\":\"removed\",\"lost\":2";
        assert!(entry(lost).ends_with("removed  (2 before it could not be written)"));
    }
}
