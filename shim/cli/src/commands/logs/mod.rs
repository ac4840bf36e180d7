//! `logs`: prints what tasks have written, as far as their logs have kept it.
//!
//! Reads the files and asks no shim, so it makes no difference whether the task runs, has ended or has lost its shim.
//! Without `--follow` it ends at what was there when it began, however fast the task writes.
//! Following waits for kernel notifications of file changes and of the shim's end, and starts a new shim for a task that
//! outlives its own.

mod files;
mod inotify;
mod print;

use std::sync::Arc;

use bowline_executor::internal::LogFiles;
use bowline_model::folder::Record;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::log_line::LogLine;
use bowline_model::log_line::LogStream;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::input::args::LogsArgs;
use crate::input::chosen::Chosen;
use crate::input::each_task::each_found;
use crate::ui::print::complain;
use crate::ui::reader::Reader;
use bowline_client::spawn::Programs;
use bowline_client::{Presence, dead, find_or_adopt, starting};
use files::{Chain, Content, Piece, Step};
use inotify::{Shim, Watch};
use print::{Printer, Whose};

/// How many logs are followed at a time, each by a thread.
const MOST_FOLLOWED: usize = 500;

/// Prints the logs of tasks: one after the other, or with `--follow` all at once. Of several, each line begins with its
/// task's id.
pub async fn run(state: &StateDir, tasks: &Chosen, args: LogsArgs) -> Result<u8> {
    let found = tasks.find(state)?;
    let widest = found.iter().flatten().map(|(id, _)| id.len()).max().filter(|_| tasks.is_several());
    let args = Arc::new(args);
    let act = |id: TaskId, folder: Folder| {
        let args = args.clone();
        async move {
            let whose = widest.map(|widest| Whose { width: widest, id: id.clone() });
            // The event loop runs beside it, for talking to a new shim.
            let printed = spawn_blocking(move || print(&folder, &id, &args, whose)).await;
            printed.doing(Kind::Internal, || "cannot print the log")?
        }
    };
    if args.follow && found.len() > MOST_FOLLOWED {
        let message = format!("--follow: {} tasks are more than {MOST_FOLLOWED}", found.len());
        return Err(Error::new(Kind::Usage, message).hint("name fewer, or leave out --follow"));
    }
    if args.follow {
        return each_found(found, act).in_any_order().await;
    }
    let mut code = 0;
    for one in found {
        let printed = each_found(vec![one], act).in_order(|_, ()| Ok(())).await?;
        code = if code == 0 { printed } else { code };
    }
    Ok(code)
}

fn print(folder: &Folder, id: &TaskId, args: &LogsArgs, whose: Option<Whose>) -> Result<()> {
    // A later task of this name has another log.
    let is_unknown = |error: Error| if error.kind() == Kind::NotFound { bowline_client::unknown(id) } else { error };
    let folder = &folder.pinned().map_err(is_unknown)?;
    let record = folder.record()?;
    let shim = Shim::of(folder, record.as_ref());
    let Some(record) = record else {
        return Err(if shim.is_gone() { dead(folder, id) } else { starting(id) });
    };
    let files = LogFiles::of(record.description()?, id, folder.path());
    if let LogFiles::Journal(_, id, state) = &files {
        let hint = format!("`journalctl BOWLINE_TASK={id} BOWLINE_STATE={}` prints it; -f follows", state.display());
        return Err(Error::new(Kind::Unsupported, format!("the log of task {id} is in the journal")).hint(hint));
    }
    check(id, &record, &files, args)?;
    let mut log = Log::open(&files, &record, args, whose)?;
    if args.follow {
        log.follow(folder, id, shim)?;
    } else {
        log.print()?;
    }
    log.printer.end()?;
    log.tell_missing(folder)
}

/// The shim that writes the log: `shim`, or a new one if that has died. `None` once the log is complete, as the task has
/// ended.
///
/// # Errors
/// `WrongState` when no shim can take over the task; why a new one could not.
fn writer(folder: &Folder, id: &TaskId, mut shim: Shim) -> Result<Option<Shim>> {
    let has_ended = || matches!(folder.exit(), Ok(Some(_)));
    loop {
        if has_ended() {
            Shim::of(folder, folder.record().ok().flatten().as_ref()).until_released();
            return Ok(None);
        }
        if !shim.is_gone() {
            return Ok(Some(shim));
        }
        // The task was removed.
        if !folder.is_still_there() {
            return Ok(None);
        }
        match Handle::current().block_on(find_or_adopt(folder, id, &Programs::default())) {
            Ok(Presence::Live(new)) => {
                // It answers, and its pid is recorded, once it has taken over. That of a sandbox may lack this member.
                let state = Handle::current().block_on(new.state());
                shim = Shim::of(folder, folder.record()?.as_ref());
                if shim.is_gone() && matches!(state, Ok(None)) && !has_ended() {
                    return Err(dead(folder, id));
                }
            }
            Ok(Presence::Exited(_)) => {}
            Ok(Presence::Dead | Presence::Starting) => return Err(dead(folder, id)),
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Checks that this log can provide what was asked for.
fn check(id: &TaskId, record: &Record, files: &LogFiles, args: &LogsArgs) -> Result<()> {
    let output = &record.description()?.output;
    let own = [(LogStream::Stdout, &output.stdout), (LogStream::Stderr, &output.stderr)];
    let asked = own.iter().filter(|(stream, _)| args.stream.is_none_or(|asked| asked == *stream));
    if !asked.clone().any(|(stream, _)| files.has(*stream)) {
        let paths: Vec<String> = asked.filter_map(|(_, path)| Some(path.as_ref()?.display().to_string())).collect();
        let hint = match paths.is_empty() {
            true => "`--log json`, or `log.format` in its description, keeps one".to_owned(),
            false => format!("its description sends the output to {}", paths.join(" and ")),
        };
        return Err(Error::new(Kind::NotFound, format!("task {id} keeps no log of that")).hint(hint));
    }
    let timed = [
        ("--since", args.since.is_some()),
        ("--until", args.until.is_some()),
        ("--timestamps", args.timestamps),
        ("--json", args.json),
    ];
    let timed = timed.iter().find(|(_, given)| *given);
    match (timed, files) {
        (Some((flag, _)), LogFiles::Raw(_)) => Err(Error::new(
            Kind::Unsupported,
            format!("{flag}: the log of task {id} is raw, and raw logs have no times"),
        )
        .hint("start the task with `--log json`")),
        _ => Ok(()),
    }
}

/// Selects the lines of the log that are printed.
struct Filter {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    stream: Option<LogStream>,
}

impl Filter {
    fn wants(&self, line: &LogLine) -> bool {
        self.since.is_none_or(|since| line.time >= since)
            && self.until.is_none_or(|until| line.time <= until)
            && (self.stream.is_none() || line.stream.is_none() || line.stream == self.stream)
    }
}

/// A log that is being printed.
struct Log {
    chains: Vec<(Option<LogStream>, Chain)>,
    filter: Filter,
    printer: Printer,
}

impl Log {
    fn open(files: &LogFiles, record: &Record, args: &LogsArgs, whose: Option<Whose>) -> Result<Log> {
        let filter = Filter {
            since: args.since.map(|moment| moment.timestamp()),
            until: args.until.map(|moment| moment.timestamp()),
            stream: args.stream,
        };
        let content = match files {
            LogFiles::Json(..) => Content::Lines,
            LogFiles::Raw(_) | LogFiles::Journal(..) => Content::Bytes,
        };
        let mut chains = Vec::new();
        for (stream, file) in files.all() {
            if stream.is_some() && filter.stream.is_some() && stream != filter.stream {
                continue;
            }
            let mut chain = Chain::open(file, record.description()?.log.max_files(), content, args.follow)?;
            if let Some(since) = filter.since {
                chain.skip_until(since);
            }
            if let Some(lines) = args.tail {
                chain.skip_to_last(lines, |line| {
                    LogLine::read(line).is_some_and(|line| line.stream.is_some() && filter.wants(&line))
                })?;
            }
            chains.push((stream, chain));
        }
        Ok(Log { chains, filter, printer: Printer::new(args, whose) })
    }

    /// Prints what the log contains now: a block of each file in turn, so that no stream waits for the other's end.
    fn print(&mut self) -> Result<Reader> {
        let Log { chains, filter, printer } = self;
        loop {
            let mut is_over = true;
            for (stream, chain) in &mut *chains {
                let step = chain.step(&mut |piece| match (piece, *stream) {
                    (Piece::Gap(bytes), _) => printer.gap(bytes),
                    (Piece::Text(bytes), Some(stream)) => printer.raw(stream, bytes),
                    (Piece::Text(line), None) => printer.line(line, |line| filter.wants(line)),
                })?;
                match step {
                    Step::More => is_over = false,
                    Step::End => {}
                    Step::Gone => return Ok(Reader::Gone),
                }
            }
            if is_over {
                return printer.flush();
            }
        }
    }

    /// Prints what the log contains and what comes, until the task has ended.
    fn follow(&mut self, folder: &Folder, id: &TaskId, mut shim: Shim) -> Result<()> {
        let watch = Watch::new()?;
        // What is there need not wait for a shim.
        if self.print()? == Reader::Gone {
            return Ok(());
        }
        loop {
            // Any later change shows in the wait below.
            let folders = self.chains.iter().map(|(_, chain)| chain.folder()).chain([folder.path()]);
            let mut complete = true;
            for folder in folders {
                complete &= watch.add(folder);
            }
            let writer = writer(folder, id, shim);
            if self.print()? == Reader::Gone {
                return Ok(());
            }
            match writer? {
                Some(writer) => shim = writer,
                None => return Ok(()),
            }
            if watch.wait(&shim, complete)? == Reader::Gone {
                return Ok(());
            }
        }
    }

    /// Reports what is missing from the log.
    fn tell_missing(&self, folder: &Folder) -> Result<()> {
        // The report counts all lost output, but a dead shim writes no report.
        let reported = folder.exit().ok().flatten().map_or(0, |report| report.output_dropped_bytes);
        let missing = reported.max(self.printer.dropped());
        let of = self.printer.of_task();
        if missing > 0 {
            complain(&format!("{missing} bytes of the output{of} were dropped, as they could not be written"), None);
        }
        match self.printer.damaged() {
            0 => {}
            1 => complain(&format!("a line of the log{of} is damaged, and was left out"), None),
            lines => complain(&format!("{lines} lines of the log{of} are damaged, and were left out"), None),
        }
        Ok(())
    }
}
