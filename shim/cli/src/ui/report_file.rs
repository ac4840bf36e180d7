//! The file that `run --report` writes: the exit report, or what kept the task from having one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bowline_model::report::ExitReport;
use bowline_model::{Doing as _, Error, Kind, Result, trust};
use serde::Serialize;

use crate::ui::json;

/// The file, empty until something is known.
pub struct ReportFile {
    file: File,
    path: PathBuf,
    is_written: bool,
}

/// What is written when there is no report.
#[derive(Serialize)]
struct Failed<'e> {
    error: &'e str,
    hint: Option<&'e str>,
}

impl ReportFile {
    /// Creates or empties the file at `path`, which its owner alone can read if it is new.
    ///
    /// # Errors
    /// `Usage` if it cannot be written, or another user has put it there.
    pub fn open(path: PathBuf) -> Result<ReportFile> {
        let file =
            Self::empty(&path).doing(Kind::Usage, || format!("cannot write the report to {}", path.display()))?;
        Ok(ReportFile { file, path, is_written: false })
    }

    fn empty(path: &Path) -> std::io::Result<File> {
        let file = trust::open_named(OpenOptions::new().write(true).mode(0o600), path)?;
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Writes how the task has ended.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub fn ended(&mut self, report: &ExitReport) -> Result<()> {
        self.write(report)
    }

    /// Writes why there is no report, unless there is one.
    ///
    /// # Errors
    /// `Internal` if it cannot be written.
    pub fn failed(&mut self, error: &Error) -> Result<()> {
        if self.is_written {
            return Ok(());
        }
        self.write(&Failed { error: &error.to_string(), hint: error.hint_text() })
    }

    fn write<T: Serialize>(&mut self, object: &T) -> Result<()> {
        self.is_written = true;
        let line = json::line(object)? + "\n";
        let what = || format!("cannot write the report to {}", self.path.display());
        self.file.write_all(line.as_bytes()).doing(Kind::Internal, what)
    }
}
