//! bowline as a person at a shell sees it: by its command, from start to end, beside those of crun and runc.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_model::{Doing, Error, Kind, Result};

use crate::contenders::{Contenders, Job};
use crate::floor::Filter;
use crate::groups::Held;
use crate::rounds::{Gap, Rounds};
use crate::runner::Runner;
use crate::table::{BOWLINE, DUTY, FLOOR, Row};

/// bowline's command, with a state folder of its own and a task that sleeps there.
pub struct CommandLine {
    program: String,
    work: PathBuf,
    runner: Runner,
}

/// The name of the task that sleeps.
const SLEEPER: &str = "command-line";

impl CommandLine {
    /// The command in `bin`; its state and its log are below `work`.
    pub fn start(bin: &Path, work: &Path, sleeper: &Job) -> Result<CommandLine> {
        let work = work.join("cl");
        let what = || format!("cannot write to {}", work.display());
        fs::create_dir(&work).doing(Kind::Internal, what)?;
        let log = File::create(work.join("log")).doing(Kind::Internal, what)?;
        let program = bin.join("bowline").to_string_lossy().into_owned();
        let mut command_line = CommandLine { program, work: work.clone(), runner: Runner::Here(log) };
        let file = command_line.describe("sleeper.json", sleeper)?;
        command_line.execute(&["start", "--name", SLEEPER, "--file", &file])?;
        Ok(command_line)
    }

    /// Writes what a job is to a file, and returns its path.
    fn describe(&self, name: &str, job: &Job) -> Result<String> {
        let path = self.work.join(name);
        fs::write(&path, &job.description).doing(Kind::Internal, || format!("cannot write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn execute(&mut self, args: &[&str]) -> Result<Duration> {
        let state = self.work.join("s").to_string_lossy().into_owned();
        let own = [self.program.as_str(), "--state", &state];
        let words: Vec<String> = own.into_iter().chain(args.iter().copied()).map(str::to_owned).collect();
        self.run(words)
    }

    /// Runs a command that must succeed.
    fn run(&mut self, words: Vec<String>) -> Result<Duration> {
        let (took, success) = self.runner.run(std::slice::from_ref(&words))?;
        if success {
            return Ok(took);
        }
        let log = fs::read_to_string(self.work.join("log")).unwrap_or_default();
        let why = log.lines().last().unwrap_or("it does not say why");
        Err(Error::new(Kind::Internal, format!("cannot run {}: {why}", words.join(" "))))
    }
}

impl Drop for CommandLine {
    fn drop(&mut self) {
        let _ = self.execute(&["rm", "--force", SLEEPER]);
    }
}

/// What the command itself costs, and a task from creation to removal.
pub fn run(rounds: &mut Rounds, on: &mut Contenders, ours: &mut CommandLine) -> Result<Vec<Row>> {
    let job = on.job(&["/bin/true"], "default")?;
    let file = ours.describe("job.json", &job)?;
    let bundles = on.bundles("command-line", &job)?;
    let names = ["version", "run", "run in the host view"].map(|what| format!("command line: {what}"));
    let names = names.each_ref().map(String::as_str);
    let rows = rounds.measure(
        names,
        Gap::None,
        &mut (on, ours),
        |_| Ok(()),
        |(on, ours), column| {
            Ok(match column {
                FLOOR => [
                    Some(ours.run(vec!["/bin/true".to_owned()])?),
                    Some(on.floor.launch(Filter::Loaded, false)?[1]),
                    None,
                ],
                DUTY => [None, Some(on.duty.launch(Filter::Loaded, false)?[1]), None],
                BOWLINE => [
                    Some(ours.execute(&["--version"])?),
                    Some(ours.execute(&["run", "--rm", "--file", &file])?),
                    Some(ours.execute(&["run", "--rm", "--", "/bin/true"])?),
                ],
                _ => match on.peer(column).zip(bundles.of(column)) {
                    Some((peer, bundle)) => [Some(peer.version_command()?), Some(peer.run(bundle)?), None],
                    None => [None; 3],
                },
            })
        },
    )?;
    Ok(rows.into())
}

/// A command in a running task.
pub fn exec(
    rounds: &mut Rounds,
    on: &mut Contenders,
    ours: &mut CommandLine,
    held: &Held,
    gap: Gap,
) -> Result<Vec<Row>> {
    let name = match gap {
        Gap::None => "command line: exec",
        Gap::Random | Gap::Fixed => "command line: exec, 100 ms apart",
    };
    let rows = rounds.measure(
        [name],
        gap,
        &mut (on, ours),
        |_| Ok(()),
        |(on, ours), column| {
            Ok([match column {
                FLOOR => Some(on.floor.exec()?),
                DUTY => Some(on.duty.exec()?),
                BOWLINE => Some(ours.execute(&["exec", SLEEPER, "/bin/true"])?),
                _ => held.exec(on, column)?,
            }])
        },
    )?;
    Ok(rows.into())
}
