//! What `stats` and `top` do alike: they begin with the tasks that are named, say which cannot be read, and read.

use bowline_executor::{Error, Kind, Result, StateDir};

use crate::complain;
use crate::input::named::TaskRef;
use crate::input::several::settle;
use crate::ui::readings::{Reading, Sampler};

/// The tasks that are named, or all that run, for as long as a command reads them.
pub struct Sampling {
    /// Reads those that can be read.
    pub sampler: Sampler,
    all: bool,
    /// None of those that were named can be read.
    pub nothing: bool,
    /// The exit code of the first failure.
    code: Option<u8>,
}

impl Sampling {
    /// Begins, and says which of `names` cannot be read.
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

    /// What `end` is for the command: the first failure counts.
    pub fn code(&self, end: u8) -> u8 {
        self.code.unwrap_or(end)
    }

    /// Whether anything that was named has failed so far.
    pub fn has_failed(&self) -> bool {
        self.code.is_some()
    }

    /// One answer of all. Of those that are named, an error that `fails` is a failure; of all that run, those that
    /// have ended since are left out, and those whose shim does not answer are named.
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
