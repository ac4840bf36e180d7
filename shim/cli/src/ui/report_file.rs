//! The file that `run --report` writes: the exit report, or what kept the task from having one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bowline_model::report::ExitReport;
use bowline_model::{Doing as _, Error, Kind, Result, trust};
use serde::Serialize;

use crate::ui::json;
use crate::ui::print::complain;

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

    /// Writes how the task has ended. Returns false, and says why, if that cannot be written.
    pub fn ended(&mut self, report: &ExitReport) -> bool {
        self.write(report)
    }

    /// Writes why there is no report, unless something is written; says why if it cannot.
    pub fn failed(&mut self, error: &Error) {
        if !self.is_written {
            self.write(&Failed { error: &error.to_string(), hint: error.hint_text() });
        }
    }

    fn write<T: Serialize>(&mut self, object: &T) -> bool {
        self.is_written = true;
        let what = || format!("cannot write the report to {}", self.path.display());
        let write = |line: String| self.file.write_all((line + "\n").as_bytes()).doing(Kind::Internal, what);
        let written = json::line(object).and_then(write);
        written.inspect_err(|error| complain(&error.to_string(), None)).is_ok()
    }
}
