//! The floors: `floor/floor.c`, one process each that is asked a line of words at a time.
//!
//! It measures itself, so that neither its start nor our pipes count. See its
//! own header for what it does. Must not: be started anew for each measurement.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use bowline_model::{Doing, Error, Kind, Result};

/// The program as `build.rs` has compiled it.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floor"));

/// Whether a process of the duty floor gets the filter; the bare one has none.
#[derive(Debug, Clone, Copy)]
pub enum Filter {
    Loaded,
    Absent,
}

impl Filter {
    fn word(self) -> &'static str {
        match self {
            Filter::Loaded => " filter",
            Filter::Absent => "",
        }
    }
}

/// What makes a floor the duty floor.
pub struct Duty<'a> {
    /// The instructions of a seccomp filter.
    pub filter: &'a [u8],
    /// The folder in which it keeps the record of a task.
    pub state: &'a Path,
}

/// Writes the program, whose name says what it is: see its own headers.
pub fn place(path: &Path) -> Result<()> {
    let what = || format!("cannot write the floor to {}", path.display());
    fs::write(path, PROGRAM).doing(Kind::Internal, what)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).doing(Kind::Internal, what)
}

pub struct Floor {
    child: Child,
    /// Taken away at the end: the end of its input ends it.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Floor {
    /// Starts it out of the folder `work`, with `root` as its tasks' root and
    /// `cgroup` as the name of what their cgroups are in: the bare floor, or the
    /// one that has a `duty`.
    pub fn start(work: &Path, root: &Path, cgroup: &str, duty: Option<&Duty<'_>>) -> Result<Floor> {
        let what = || "cannot start the floor";
        let program = work.join(cgroup);
        place(&program)?;
        let mut command = Command::new(&program);
        command.arg(root).arg(cgroup).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(Duty { filter, state }) = duty {
            let path = work.join("filter");
            fs::write(&path, filter).doing(Kind::Internal, what)?;
            command.arg(path).arg(state.join("record"));
        }
        // ctrl-C is for us; we then end it as ever.
        command.process_group(0);
        let mut child = command.spawn().doing(Kind::Internal, what)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        Ok(Floor { child, input, output: BufReader::new(output) })
    }

    /// A task from beginning to end: until its exit, until all is removed.
    pub fn launch(&mut self, filter: Filter, init: bool) -> Result<[Duration; 2]> {
        self.ask(&format!("launch{}{}", filter.word(), if init { " init" } else { "" }))
    }

    /// Starts the task that [`Floor::exec`] is for, with a filter.
    pub fn hold(&mut self) -> Result<()> {
        self.ask::<2>("hold filter").map(drop)
    }

    pub fn exec(&mut self) -> Result<Duration> {
        self.ask("exec filter").map(|[exited, _]| exited)
    }

    /// Kills that task and removes it.
    pub fn stop(&mut self) -> Result<[Duration; 2]> {
        self.ask("stop")
    }

    /// Starts tasks that sleep until there are `count` of them: how long that took. The bare floor alone can.
    pub fn crowd(&mut self, count: usize) -> Result<Duration> {
        self.ask(&format!("crowd {count}")).map(|[started, _]| started)
    }

    /// Kills and removes all of them.
    pub fn disperse(&mut self) -> Result<()> {
        self.ask::<2>("disperse").map(drop)
    }

    /// Its process, which makes those of its tasks.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What a page fault takes: in a file that is cached, in new memory, in memory that a child shares.
    pub fn faults(&mut self) -> Result<[Duration; 3]> {
        self.ask("faults")
    }

    fn ask<const N: usize>(&mut self, word: &str) -> Result<[Duration; N]> {
        let what = || format!("the floor cannot {word}; it says why above");
        let mut answer = String::new();
        let input = self.input.as_mut().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        writeln!(input, "{word}").doing(Kind::Internal, what)?;
        self.output.read_line(&mut answer).doing(Kind::Internal, what)?;
        let numbers = answer.split_whitespace().filter_map(|number| number.parse().ok().map(Duration::from_nanos));
        let numbers: Vec<Duration> = numbers.collect();
        numbers.try_into().map_err(|_| Error::new(Kind::Internal, what()))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        drop(self.input.take());
        // It removes what it has made, then ends.
        let _ = self.child.wait();
    }
}
