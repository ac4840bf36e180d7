//! The file format of a recording: one JSON object per line, each with one field that names its type.
//!
//! ```text
//!   {"recording": …}   version, task, limits, start time
//!   {"reading": …}     as in `stats`, without processes
//!   {"event": …}       as in `events`
//!   {"exit": …}        the exit report
//!   {"end": …}         why the recording ends
//! ```
//!
//! A reader skips fields that it does not know. Must not: treat a file as damaged because its last line is incomplete.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_executor::VERSION;
use bowline_model::events::Entry;
use bowline_model::folder::Record;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The format version that this code writes.
const FORMAT: u32 = 1;

/// The longest line that is read, in bytes.
const LONGEST_LINE: u64 = 4 << 20;

/// The first line of a recording.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Header {
    /// The format version of the file.
    pub format: u32,
    /// The version of bowline that wrote it.
    #[serde(default)]
    pub version: String,
    /// The id of the task.
    pub id: String,
    pub begun_at: Timestamp,
    /// When the task's launch began.
    #[serde(default)]
    pub created_at: Option<Timestamp>,
    /// When its program was started.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// The time between two readings, in µs.
    #[serde(default)]
    pub interval_usec: u64,
    /// The command with its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// The limits from the task's description.
    #[serde(default)]
    pub limits: Map<String, Value>,
}

impl Header {
    /// Describes a recording of task `id` that begins now.
    pub fn new(id: &TaskId, begun_at: Timestamp, interval: Duration, record: Option<&Record>) -> Header {
        let task = record.and_then(|record| record.task.as_ref());
        let command =
            task.map_or_else(Vec::new, |task| [&task.command].into_iter().chain(&task.args).cloned().collect());
        let limits = task.map(|task| json!({"cpu": task.cpu, "memory": task.memory, "pids": task.pids(), "io": task.io, "hugepages": task.hugepages}));
        Header {
            format: FORMAT,
            version: VERSION.to_owned(),
            id: id.to_string(),
            begun_at,
            created_at: record.map(|record| record.created_at),
            started_at: record.and_then(|record| record.started_at),
            interval_usec: u64::try_from(interval.as_micros()).unwrap_or(u64::MAX),
            command,
            limits: limits.and_then(|limits| limits.as_object().cloned()).unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    Exited,
    /// A signal, such as SIGINT at Ctrl-C, stopped the recording.
    Asked,
    /// The requested length was reached.
    TimeOver,
    ShimDied,
    /// The task could no longer be read.
    Unreadable,
}

/// A recording that is being written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// Whether a reading was written. Only the first one keeps the fields that are the same in all.
    has_reading: bool,
}

impl Writer {
    /// Creates a new file that only its owner can read: commands may contain secrets.
    ///
    /// # Errors
    /// `AlreadyExists` if the file exists.
    pub fn create(path: &Path, header: &Header) -> Result<Writer> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
            let message = format!("cannot record to {}: {error}", path.display());
            match error.kind() {
                ErrorKind::AlreadyExists => Error::new(Kind::AlreadyExists, message)
                    .hint("a recording is never written over what is there: choose another name, or remove it"),
                _ => Error::new(Kind::Internal, message),
            }
        })?;
        let mut writer = Writer { file, path: path.to_owned(), has_reading: false };
        writer.line("recording", header)?;
        Ok(writer)
    }

    /// Writes a reading, without its processes.
    pub fn reading(&mut self, stats: Stats) -> Result<()> {
        let mut value = serde_json::to_value(stats).doing(Kind::Internal, || "cannot write JSON")?;
        if let Some(fields) = value.as_object_mut() {
            fields.remove("processes");
            if std::mem::replace(&mut self.has_reading, true) {
                fields.remove("measured");
            }
        }
        self.line("reading", &value)
    }

    pub fn event(&mut self, entry: &Entry) -> Result<()> {
        self.line("event", entry)
    }

    /// Writes the task's exit report.
    pub fn exit(&mut self, report: &ExitReport) -> Result<()> {
        self.line("exit", report)
    }

    /// Writes the last line, which says why the recording ends.
    pub fn end(&mut self, because: Because) -> Result<()> {
        self.line("end", &json!({"time": Timestamp::now(), "because": because}))
    }

    fn line(&mut self, what: &str, value: &impl Serialize) -> Result<()> {
        let mut line = format!("{{\"{what}\":").into_bytes();
        serde_json::to_writer(&mut line, value).doing(Kind::Internal, || "cannot write JSON")?;
        line.extend_from_slice(b"}\n");
        self.file.write_all(&line).doing(Kind::Internal, || format!("cannot write to {}", self.path.display()))
    }
}

/// A recording that was read. Fields that the file lacks are empty.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The first line of the file.
    pub header: Header,
    /// The readings, ordered by time.
    pub samples: Vec<Sample>,
    /// Events as written, ordered by time.
    pub events: Vec<Value>,
    /// The exit report, if the task ended.
    pub exit: Option<ExitReport>,
    pub ended_at: Option<Timestamp>,
}

/// The part of a reading that a picture shows.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Sample {
    /// When the reading was taken.
    pub read_at: Timestamp,
    #[serde(default)]
    pub cpu: CpuSample,
    /// The memory figures, in bytes.
    #[serde(default)]
    pub memory: MemorySample,
    #[serde(default)]
    pub pids: PidsSample,
}

/// The CPU figures of a reading, as in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct CpuSample {
    pub usage_usec: Option<u64>,
    pub limit_usec: Option<u64>,
    pub period_usec: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
}

/// The memory figures of a reading, as in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct MemorySample {
    pub usage_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub high_bytes: Option<u64>,
}

/// The process figures of a reading, as in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct PidsSample {
    pub current: Option<u64>,
    pub limit: Option<u64>,
}

/// One line; unknown fields are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
struct Line {
    recording: Option<Header>,
    reading: Option<Sample>,
    event: Option<Value>,
    exit: Option<ExitReport>,
    end: Option<EndLine>,
}

#[derive(Deserialize)]
struct EndLine {
    time: Timestamp,
}

/// Reads a recording from a file.
///
/// # Errors
/// `BadSpec` if the file is no recording, has a newer format, or any line but the last is damaged.
pub fn read(path: &Path) -> Result<Recording> {
    let file = File::open(path).doing(Kind::BadSpec, || format!("cannot read {}", path.display()))?;
    let mut lines = BufReader::new(file);
    let mut recording = None;
    for number in 1_u64.. {
        let mut line = Vec::new();
        let length = (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line);
        if length.doing(Kind::BadSpec, || format!("cannot read {}", path.display()))? == 0 {
            break;
        }
        let wrong = |what: String| Error::new(Kind::BadSpec, format!("{}: line {number} {what}", path.display()));
        match (serde_json::from_slice::<Line>(&line), &mut recording) {
            (Ok(Line { recording: Some(header), .. }), None) if header.format <= FORMAT => {
                recording = Some(Recording { header, ..Recording::default() });
            }
            (Ok(Line { recording: Some(header), .. }), None) => {
                let message = format!("is of a later form, {}: this is bowline {VERSION}", header.format);
                return Err(wrong(message).hint(format!("bowline {} wrote it", header.version)));
            }
            (_, None) => {
                return Err(wrong("is not how a recording begins".to_owned())
                    .hint("`bowline stats --record FILE ID` makes one"));
            }
            (Ok(line), Some(recording)) => recording.add(line),
            (Err(error), Some(_)) if line.ends_with(b"\n") => return Err(wrong(format!("is damaged: {error}"))),
            // Cut short, for example by a full disk or a power failure.
            (Err(_), Some(_)) => {}
        }
    }
    let none = || Error::new(Kind::BadSpec, format!("{} is empty, and no recording", path.display()));
    let mut recording = recording.ok_or_else(none)?;
    recording.samples.sort_by_key(|sample| sample.read_at);
    Ok(recording)
}

impl Recording {
    fn add(&mut self, line: Line) {
        self.samples.extend(line.reading);
        self.events.extend(line.event);
        self.exit = line.exit.or(self.exit.take());
        self.ended_at = line.end.map(|end| end.time).or(self.ended_at);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BEGIN: &str = r#"{"recording":{"format":1,"id":"web","begun_at":"2026-05-01T12:00:00Z"}}"#;
    const READING: &str = r#"{"reading":{"read_at":"2026-05-01T12:00:01Z","cpu":{"usage_usec":7}}}"#;

    fn read_of(text: &str) -> Result<Recording> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run.jsonl");
        fs::write(&path, text).expect("written");
        read(&path)
    }

    #[test]
    fn a_last_line_that_is_not_whole_is_left_out() {
        let whole = format!("{BEGIN}\n{READING}\n");
        for cut in [0, 1, 30, READING.len() - 1] {
            let recording = read_of(&format!("{whole}{}", &READING[..cut])).expect("a recording");
            assert_eq!(recording.samples.len(), 1, "{cut}");
        }
        assert_eq!(read_of(&format!("{whole}{READING}")).expect("whole but for its newline").samples.len(), 2);
    }

    #[test]
    fn what_a_later_version_says_is_left_out() {
        let recording = read_of(&format!("{BEGIN}\n{{\"weather\":{{\"rain\":1}}}}\n{READING}\n")).expect("a recording");
        assert_eq!((recording.samples[0].cpu.usage_usec, recording.header.id.as_str()), (Some(7), "web"));
    }

    #[test]
    fn what_is_no_recording_is_refused_with_the_line() {
        for (text, part) in [
            ("", "is empty"),
            ("hello\n", "line 1 is not how"),
            (&format!("{READING}\n"), "line 1 is not how"),
            (&BEGIN.replace("\"format\":1", "\"format\":9"), "later form, 9"),
            (&format!("{BEGIN}\n{{\n{READING}\n"), "line 2 is damaged"),
        ] {
            let error = read_of(text).expect_err("no recording");
            assert_eq!(error.kind(), Kind::BadSpec);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_there_is_not_written_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run.jsonl");
        fs::write(&path, "mine").expect("written");
        let error = Writer::create(&path, &Header::default()).expect_err("it is there");
        assert_eq!(error.kind(), Kind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("there"), "mine");
    }
}
