//! The files of a task's log: the shim writes them, others read them. A log in the journal has none.

use std::path::{Path, PathBuf};

use bowline_model::log_line::LogStream;
use bowline_spec::id::TaskId;
use bowline_spec::{LogFormat, Task};

/// A file of a log that is being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// The newest file; older ones are [`rotated_file`]s of it.
    pub path: PathBuf,
    /// Where the places of the file and its older files are recorded.
    pub places: PathBuf,
}

/// The files of a log that are being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFiles {
    /// One file for all streams that are kept, as JSON, and the names of these streams.
    Json(LogFile, Vec<LogStream>),
    /// One file for each stream that is kept; there may be none.
    Raw(Vec<(LogStream, LogFile)>),
    /// No file: the streams that are kept are in the journal, by the task's id and its state folder.
    Journal(Vec<LogStream>, TaskId, PathBuf),
}

impl LogFiles {
    /// The log files of `task`, known as `id`, whose folder is `folder`.
    pub fn of(task: &Task, id: &TaskId, folder: &Path) -> LogFiles {
        let named = |name: &str, in_folder: &str, index: usize| {
            let path = match &task.log.path {
                Some(path) => path.join(format!("{id}.{name}")),
                None => folder.join(in_folder),
            };
            LogFile { path, places: folder.join(format!("places.{index}")) }
        };
        // A stream with a file of its own is kept there already.
        let output = [(LogStream::Stdout, &task.output.stdout), (LogStream::Stderr, &task.output.stderr)];
        let kept: Vec<LogStream> = output.iter().filter(|(_, own)| own.is_none()).map(|(stream, _)| *stream).collect();
        match task.log.format() {
            LogFormat::None => LogFiles::Raw(Vec::new()),
            _ if kept.is_empty() => LogFiles::Raw(Vec::new()),
            LogFormat::Journald => {
                let state = folder.parent().unwrap_or(folder);
                LogFiles::Journal(kept, id.clone(), state.to_owned())
            }
            LogFormat::Json => LogFiles::Json(named("json", "log.json", 0), kept),
            LogFormat::Raw => {
                let path = |stream: LogStream| {
                    let name = format!("{}.log", stream.as_str());
                    (stream, named(&name, &name, stream as usize))
                };
                LogFiles::Raw(kept.into_iter().map(path).collect())
            }
        }
    }

    /// Whether the log keeps this stream; one with a file of its own is not in it.
    pub fn has(&self, stream: LogStream) -> bool {
        match self {
            LogFiles::Json(_, kept) | LogFiles::Journal(kept, ..) => kept.contains(&stream),
            LogFiles::Raw(files) => files.iter().any(|(kept, _)| *kept == stream),
        }
    }

    /// Each file, with its stream if it keeps only one.
    pub fn all(&self) -> Vec<(Option<LogStream>, &LogFile)> {
        match self {
            LogFiles::Json(file, _) => vec![(None, file)],
            LogFiles::Raw(files) => files.iter().map(|(stream, file)| (Some(*stream), file)).collect(),
            LogFiles::Journal(..) => Vec::new(),
        }
    }
}

/// The name that the file at `path` has after `age` rotations; `path` itself after none.
pub fn rotated_file(path: &Path, age: u32) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    name.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn files(toml: &str) -> Vec<(Option<LogStream>, String)> {
        let text = format!("command = 'true'\n{toml}");
        let task = bowline_spec::parse(&text, bowline_spec::Format::Toml).unwrap();
        let files = LogFiles::of(&task, &"web".parse().unwrap(), Path::new("/s/web"));
        files.all().into_iter().map(|(stream, file)| (stream, file.path.display().to_string())).collect()
    }

    #[test]
    fn a_log_is_where_the_description_says() {
        let (stdout, stderr) = (Some(LogStream::Stdout), Some(LogStream::Stderr));
        assert_eq!(files(""), []);
        assert_eq!(files("log.format = 'json'"), [(None, "/s/web/log.json".into())]);
        assert_eq!(files("log.path = '/l'"), [(None, "/l/web.json".into())]);
        let raw = [(stdout, "/l/web.stdout.log".into()), (stderr, "/l/web.stderr.log".into())];
        assert_eq!(files("log = { format = 'raw', path = '/l' }"), raw);
        let one = [(stderr, "/s/web/stderr.log".into())];
        assert_eq!(files("log.format = 'raw'\noutput.stdout = '/o'"), one, "stdout has a file of its own");
        assert_eq!(files("log.format = 'json'\noutput = { stdout = '/o', stderr = '/o' }"), []);
    }

    #[test]
    fn rotated_files_are_numbered_by_age() {
        assert_eq!(rotated_file(Path::new("/l/web.json"), 0), Path::new("/l/web.json"));
        assert_eq!(rotated_file(Path::new("/l/web.json"), 12), Path::new("/l/web.json.12"));
    }
}
