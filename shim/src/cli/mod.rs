//! `bowline`: a manager for one person or script on one machine.
//!
//! Arguments as typed are in `args`; what each command does is in a file of its
//! name or kind. Results go to stdout, one message to stderr.

mod args;
mod attach;
mod completions;
mod control;
mod describe;
mod detach;
mod doctor;
mod events;
mod exec;
mod launch;
mod logs;
mod man;
mod moment;
mod session;
mod show;
mod stats;
mod streams;
mod terminal;
mod update;

use std::io::Write as _;
use std::process::ExitCode;

use args::{Cli, Command};
use bowline_executor::{Doing, Error, Kind, Result, StateDir};
use bowline_spec::id::TaskId;
use clap::Parser as _;

/// Exit code of bowline's own failures.
const FAILED: u8 = 125;
/// Exit code of an exec whose deadline came.
const TIMED_OUT: u8 = 124;
/// Exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome =
        runtime.doing(Kind::Internal, || "cannot start the event loop").and_then(|runtime| runtime.block_on(run(cli)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(error.message(), error.hint_text());
            ExitCode::from(exit_code(error.kind()))
        }
    }
}

async fn run(cli: Cli) -> Result<u8> {
    let state = StateDir::new(std::path::absolute(&cli.state).doing(Kind::Usage, || "--state: not a path")?);
    match cli.command {
        Command::Run { task, detach, rm } => launch::run(&state, task, detach.detach_keys, rm).await,
        Command::Start { task } => launch::start(&state, task).await,
        Command::Attach { id, attach } => attach::run(&state, &id, attach).await,
        Command::Exec { id, exec } => exec::run(&state, &id, exec).await,
        Command::Stop { id, signal, grace } => control::stop(&state, &id, signal, grace).await,
        Command::Kill { id, signal } => control::kill(&state, &id, signal).await,
        Command::Wait { id, json } => control::wait(&state, &id, json).await,
        Command::Inspect { id } => show::inspect(&state, &id).await,
        Command::Ps { json } => show::ps(&state, json).await,
        Command::Logs { id, logs } => logs::run(&state, &id, &logs),
        Command::Stats { id, json } => stats::run(&state, &id, json).await,
        Command::Update { id, limits } => update::run(&state, &id, limits).await,
        Command::Events { args } => events::run(&state, &args),
        Command::Pause { id } => control::pause(&state, &id).await,
        Command::Resume { id } => control::resume(&state, &id).await,
        Command::Rm { id, force } => control::rm(&state, &id, force).await,
        Command::Spec { file } => describe::spec(&file),
        Command::Schema => describe::schema(),
        Command::Doctor { json } => doctor::run(&state, json),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { dir } => man::run(dir.as_deref()),
    }
}

/// The one place where an error becomes an exit code.
fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::CommandNotFound => 127,
        Kind::NotExecutable => 126,
        Kind::Usage => USAGE,
        Kind::Timeout => TIMED_OUT,
        Kind::NotFound
        | Kind::AlreadyExists
        | Kind::WrongState
        | Kind::BadSpec
        | Kind::Unsupported
        | Kind::Internal => FAILED,
    }
}

fn misused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help and version, as asked for.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(std::io::stderr(), "{text}");
        return ExitCode::from(USAGE);
    }
    let first: Vec<&str> = text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    let message = first.join(" ");
    complain(message.trim_start_matches("error: "), Some("see `bowline --help`"));
    ExitCode::from(USAGE)
}

fn complain(message: &str, hint: Option<&str>) {
    let mut stderr = std::io::stderr().lock();
    // Nobody left to tell.
    let _ = writeln!(stderr, "bowline: {message}");
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "hint: {hint}");
    }
}

/// Prints a result.
fn say(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").doing(Kind::Internal, || "cannot write to stdout")
}

/// Prints a result as JSON.
fn say_json<T: serde::Serialize>(value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).doing(Kind::Internal, || "cannot write JSON")?;
    say(&text)
}

/// What a task whose shim died cannot do any more.
fn dead(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("the shim of task {id} died before the task; how that ended is not known"))
        .hint(format!("`bowline rm {id}` cleans up after it"))
}

/// What a task that is only being launched cannot do yet.
fn starting(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("task {id} is still being launched"))
}

fn exited(id: &TaskId) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has exited"))
}
