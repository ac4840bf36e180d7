//! A recording as a file: one JSON object a line, each with one field that says
//! what it is.
//!
//! ```text
//!   {"recording": …}   version, task, limits, when it began
//!   {"reading": …}     as `stats` has it, without processes
//!   {"event": …}       as `events` has it
//!   {"exit": …}        the exit report
//!   {"end": …}         why it ends here
//! ```
//!
//! What a reader does not know it leaves out. Must not: take a file for damaged
//! as its last line is not whole.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_executor::events::Entry;
use bowline_executor::{Doing, Error, ExitReport, Kind, Record, Result, Stats, VERSION};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The form that this version writes.
const FORMAT: u32 = 1;

/// The longest line that is read.
const LONGEST_LINE: u64 = 4 << 20;

/// The first line.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Header {
    /// The form of the file.
    pub format: u32,
    /// The version of bowline that wrote it.
    #[serde(default)]
    pub version: String,
    /// The task.
    pub id: String,
    /// When the recording began.
    pub begun_at: Timestamp,
    /// When the task's launch began.
    #[serde(default)]
    pub created_at: Option<Timestamp>,
    /// When its program was executed.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// How far readings are apart, in µs.
    #[serde(default)]
    pub interval_usec: u64,
    /// Command and arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// The limits of its description.
    #[serde(default)]
    pub limits: Map<String, Value>,
}

impl Header {
    /// Of a recording of `id` that begins now.
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

/// Why a recording ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The task has ended.
    Exited,
    /// Somebody wanted no more.
    Asked,
    /// It was to be no longer.
    TimeOver,
    /// The task's shim died.
    ShimDied,
    /// The task could not be read any more.
    Unreadable,
}

/// A recording that is written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// What each reading says alike is told by the first.
    has_reading: bool,
}

impl Writer {
    /// A new file, for its owner alone: commands may tell secrets.
    ///
    /// # Errors
    /// `AlreadyExists` when there is a file of this name.
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

    /// A reading, without processes.
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

    /// How the task has ended.
    pub fn exit(&mut self, report: &ExitReport) -> Result<()> {
        self.line("exit", report)
    }

    /// The last line.
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

/// A recording that was read. What a file does not have is not there.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The first line.
    pub header: Header,
    /// Readings, in the order of their times.
    pub samples: Vec<Sample>,
    /// Events, as they were written, in the order of their times.
    pub events: Vec<Value>,
    /// How the task has ended.
    pub exit: Option<ExitReport>,
    /// When the recording ended.
    pub ended_at: Option<Timestamp>,
}

/// Of a reading what a picture shows.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Sample {
    /// When it was read.
    pub read_at: Timestamp,
    /// CPU time.
    #[serde(default)]
    pub cpu: CpuSample,
    /// Memory, in bytes.
    #[serde(default)]
    pub memory: MemorySample,
    /// Processes and threads.
    #[serde(default)]
    pub pids: PidsSample,
}

/// As in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[allow(missing_docs, reason = "as in Stats")]
pub struct CpuSample {
    pub usage_usec: Option<u64>,
    pub limit_usec: Option<u64>,
    pub period_usec: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
}

/// As in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[allow(missing_docs, reason = "as in Stats")]
pub struct MemorySample {
    pub usage_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub high_bytes: Option<u64>,
}

/// As in [`Stats`].
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[allow(missing_docs, reason = "as in Stats")]
pub struct PidsSample {
    pub current: Option<u64>,
    pub limit: Option<u64>,
}

/// A line, as far as it is known.
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

/// Reads a recording.
///
/// # Errors
/// `BadSpec` when it is none, is of a later form, or a line is damaged that is
/// not the last.
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
            // Cut short, as by a full disk or the machine's end.
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
