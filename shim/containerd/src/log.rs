//! The shim's own log: writes lines in containerd's format (logfmt) to the FIFO `log` in the bundle, which containerd
//! copies to its own log.
//!
//! The FIFO is opened for reading too, but never read here. A writer alone is refused while nobody reads (ENXIO), gets
//! SIGPIPE when containerd ends, and loses what it logs while containerd is gone. This way the pipe keeps up to 64 KiB
//! for the next containerd, which opens the FIFO again.
//!
//! Logging never blocks: a line that does not fit is dropped and counted, and a line with the count precedes the next
//! one that fits.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use bowline_log::{LogEvent, quoted};
use bowline_model::json::handover::Fd;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{Level, Metadata};

use super::invocation::Invocation;
use super::runtime::RUNTIME;

/// The longest write that a pipe takes whole or not at all (PIPE_BUF).
const LONGEST_LINE: usize = 4096;

/// Where [`to_fifo`] sends the lines.
static FIFO: OnceLock<Mutex<Fifo>> = OnceLock::new();

/// The log, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    fifo: Fd,
    dropped: u64,
}

/// Sends all log lines from now on to the FIFO that the program before this one has handed over, else to that of the
/// bundle, or drops them if there is none. Also logs panics, which have no other place to go.
pub fn to_fifo(invocation: &Invocation, handed: Option<Handed>) {
    let level = level(invocation.debug);
    let handed = handed.and_then(|Handed { fifo, dropped }| {
        let file = Some(fifo.take().ok()?.into());
        Some(Fifo { file, dropped })
    });
    let fifo = handed.unwrap_or_else(|| Fifo::open(&invocation.bundle.join("log")));
    let fifo = FIFO.get_or_init(|| Mutex::new(fifo));
    begin(level, move |line| fifo.lock().unwrap_or_else(PoisonError::into_inner).say(line));
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// The log for the program that is executed in the shim's place, if there is a FIFO.
pub fn hand_over() -> Option<Handed> {
    let fifo = FIFO.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Handed { fifo: Fd::of(fifo.file.as_ref()?), dropped: fifo.dropped })
}

/// Sends warnings and errors to stderr, which containerd logs for a `delete`.
pub fn to_stderr() {
    begin(Level::WARN, |line| {
        let _ = io::stderr().lock().write_all(line);
    });
}

fn level(debug: bool) -> Level {
    bowline_log::level(if debug { Level::DEBUG } else { Level::INFO })
}

fn begin(level: Level, write: impl Fn(&[u8]) + Send + Sync + 'static) {
    bowline_log::begin(level, move |metadata, event| write(line_of(metadata, &event).as_bytes()));
}

/// A line like containerd's own.
fn line_of(metadata: &Metadata<'_>, event: &LogEvent) -> String {
    let fields = event.fields.iter().map(|(name, value)| format!(" {name}={}", quoted(value)));
    line(*metadata.level(), &event.message, &fields.collect::<String>())
}

/// Formats one line: time, level, message, and the runtime.
fn line(level: Level, message: &str, others: &str) -> String {
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let mut line = format!("time={:?} level={level} msg={}{others} runtime={RUNTIME}", now(), quoted(message));
    if line.len() >= LONGEST_LINE {
        let end = (0..LONGEST_LINE - 5).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push_str("…\"");
    }
    line.push('\n');
    line
}

fn now() -> String {
    format!("{:.9}", Timestamp::now())
}

/// A FIFO that drops and counts what it has no room for.
struct Fifo {
    file: Option<File>,
    dropped: u64,
}

impl Fifo {
    fn open(path: &Path) -> Fifo {
        let nonblocking = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
        let file =
            File::options().read(true).write(true).custom_flags(nonblocking.bits().cast_signed()).open(path).ok();
        // Nobody reads a regular file, so it would only grow.
        let is_fifo = |file: &File| file.metadata().is_ok_and(|found| found.file_type().is_fifo());
        Fifo { file: file.filter(is_fifo), dropped: 0 }
    }

    /// Writes a line, or counts it as dropped.
    fn say(&mut self, line: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if self.dropped > 0 {
            let told = format!("{} lines of the log before this were lost: nobody read it", self.dropped);
            if file.write(self::line(Level::WARN, &told, "").as_bytes()).is_err() {
                self.dropped += 1;
                return;
            }
            self.dropped = 0;
        }
        if file.write(line).is_err() {
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    /// Creates a bundle's FIFO; returns the folder that holds it too.
    fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        (folder, path)
    }

    /// Opens the FIFO as containerd does.
    fn reader(path: &Path) -> File {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        File::options().read(true).custom_flags(nonblocking).open(path).unwrap()
    }

    fn read(reader: &mut File) -> String {
        let mut text = String::new();
        // The read ends with EAGAIN, because the writer still has the FIFO open.
        let _ = reader.read_to_string(&mut text);
        text
    }

    #[test]
    fn a_line_is_as_containerd_s() {
        let line = line(Level::WARN, "cannot do \"it\"", " id=web");
        let (time, rest) = line.strip_prefix("time=\"").unwrap().split_once('"').unwrap();
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
        assert_eq!(rest, " level=warning msg=\"cannot do \\\"it\\\"\" id=web runtime=io.containerd.bowline.v1\n");
    }

    #[test]
    fn a_line_fits_into_a_pipe_at_once() {
        for length in [LONGEST_LINE - 120, LONGEST_LINE, LONGEST_LINE * 3] {
            for text in ["x", "ü", "\n"] {
                let line = line(Level::INFO, &text.repeat(length), "");
                assert!(line.len() <= LONGEST_LINE && line.ends_with('\n'), "{length} {}", line.len());
            }
        }
    }

    #[test]
    fn what_is_said_while_nobody_reads_waits_for_the_next_reader() {
        let (_folder, path) = fifo();
        let mut fifo = Fifo::open(&path);
        fifo.say(b"before\n");
        let mut first = reader(&path);
        assert_eq!(read(&mut first), "before\n");
        drop(first);
        fifo.say(b"between\n");
        assert_eq!(read(&mut reader(&path)), "between\n");
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_count_told() {
        let (_folder, path) = fifo();
        let mut fifo = Fifo::open(&path);
        let line = [b'x'; LONGEST_LINE];
        for _ in 0..20 {
            fifo.say(&line);
        }
        assert_eq!(fifo.dropped, 4, "a pipe has room for 16 pages");
        let mut reader = reader(&path);
        assert!(!read(&mut reader).contains("lost"));
        fifo.say(b"again\n");
        let told = read(&mut reader);
        assert!(told.contains("4 lines of the log before this were lost") && told.ends_with("again\n"), "{told}");
        fifo.say(b"and again\n");
        assert_eq!(read(&mut reader), "and again\n");
    }

    #[test]
    fn what_is_no_fifo_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        Fifo::open(&path).say(b"x");
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        Fifo::open(&path).say(b"x");
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn an_event_becomes_one_line_with_its_fields() {
        let (_folder, path) = fifo();
        let mut reader = reader(&path);
        let fifo: &Mutex<Fifo> = Box::leak(Box::new(Mutex::new(Fifo::open(&path))));
        let subscriber = bowline_log::subscriber(Level::INFO, move |metadata, event| {
            fifo.lock().expect("nobody panics").say(line_of(metadata, &event).as_bytes());
        });
        tracing::subscriber::with_default(subscriber, || tracing::error!(id = "web", "cannot {}", "start"));
        let told = read(&mut reader);
        assert!(told.contains(" level=error msg=\"cannot start\" id=web runtime="), "{told}");
        assert_eq!(told.matches('\n').count(), 1);
    }
}
