//! Sampling shared by `stats` and `top`: resolves the named tasks, reports those that cannot be read, and reads the
//! rest.

use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};

use crate::input::each_task::settle;
use crate::input::task_names::TaskRef;
use crate::readings::{Reading, Sampler};
use crate::ui::print::complain;

/// The tasks that a command samples: the named ones, or all that run.
pub struct Sampling {
    /// Reads the tasks that can be read.
    pub sampler: Sampler,
    all: bool,
    /// Whether none of the named tasks can be read.
    pub nothing: bool,
    /// The exit code of the first failure.
    code: Option<u8>,
}

impl Sampling {
    /// Resolves `names` and reports each that cannot be read.
    pub async fn begin(state: &StateDir, names: &[TaskRef]) -> Result<Sampling> {
        let (sampler, errors) = Sampler::new(state, names).await?;
        let all = names.is_empty();
        let nothing = errors.len() == names.len() && !all;
        let mut code = None;
        for error in errors {
            settle(Err(error), &mut code);
        }
        Ok(Sampling { sampler, all, nothing, code })
    }

    /// The exit code of the command: that of the first failure, else `end`. Reports tasks that a live view has lost.
    pub fn code(&mut self, end: u8) -> u8 {
        for error in self.sampler.lost.drain(..) {
            settle(Err(error), &mut self.code);
        }
        self.code.unwrap_or(end)
    }

    /// Whether any named task has failed so far.
    pub fn has_failed(&self) -> bool {
        self.code.is_some()
    }

    /// Takes one measurement of all tasks. For named tasks, an error is a failure if `fails` says so. For all running
    /// tasks, those that have ended are skipped, and a shim that does not answer is reported.
    pub async fn read(&mut self, fails: impl Fn(&Error) -> bool) -> Result<Vec<Reading>> {
        let mut readings = Vec::new();
        for (_, reading) in self.sampler.read_twice().await? {
            match reading {
                Ok(reading) => readings.push(reading),
                Err(error) if self.all && error.kind() == Kind::Unavailable => {
                    complain(error.message(), error.hint_text());
                }
                Err(error) if !self.all && fails(&error) => settle(Err(error), &mut self.code),
                Err(_) => {}
            }
        }
        Ok(readings)
    }
}
