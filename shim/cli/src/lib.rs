//! `bowline`: a task manager for one person or script on one machine.
//!
//! `input` parses the command line; `commands` has a file for each command, `launch_request` what `run` and `start`
//! share; `readings` and `sampling` ask shims for figures; `ui` shows things to people. Results go to stdout, one message
//! to stderr.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

mod commands;
mod exit_code;
mod input;
mod launch_request;
mod reach;
mod readings;
mod sampling;
mod ui;

use std::process::ExitCode;

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Kind, Result};
use clap::{ArgMatches, FromArgMatches as _};

use commands::{
    adopt, attach, cgroup, completions, doctor, events, exec, explain, gc, inspect, kill, limits, logs, man, metrics,
    pause, ps, resume, rm, run, sandbox, schema, spec, start, stats, stop, top, units, update, upgrade, wait,
};
use exit_code::exit_code;
use input::args::{Cli, Command};
use input::chosen::Chosen;
use input::{completion, hints, misuse, switches, unit};
use ui::colour;
use ui::print::complain;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if completion::answer() {
        return ExitCode::SUCCESS;
    }
    let parsed = switches::parse(std::env::args_os().collect());
    let (matches, cli) = match parsed.and_then(|matches| Cli::from_arg_matches(&matches).map(|cli| (matches, cli))) {
        Ok(both) => both,
        Err(error) => return misuse::tell(&error),
    };
    if let Some(error) = misuse::keys_that_leave_nothing(&matches) {
        return misuse::tell(&error);
    }
    colour::choose(cli.color);
    let state = cli.state.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .doing(Kind::Internal, || "cannot start the event loop")
        .and_then(|runtime| runtime.block_on(run(cli, &matches)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let error = unit::hinted(hints::hinted(error, &matches), &state);
            complain(error.message(), error.hint_text());
            ExitCode::from(exit_code(error.kind()))
        }
    }
}

async fn run(cli: Cli, matches: &ArgMatches) -> Result<u8> {
    let state = StateDir::new(std::path::absolute(&cli.state).doing(Kind::Usage, || "--state: not a path")?);
    if reads_state(&cli.command) {
        state.check()?;
    }
    match cli.command {
        Command::Run { task, how, .. } if how.detach => start::start(&state, task, how.rm, how.json, None).await,
        Command::Run { task, detach, how } => {
            // Its report has the hint too.
            let done = |error| hints::hinted(error, matches);
            run::run(&state, task, detach.detach_keys, how, done).await
        }
        Command::Start { task, rm, json, pid_file, .. } => start::start(&state, task, rm, json, pid_file).await,
        Command::Attach { id, attach } => attach::run(&state, &id.resolve(&state)?, attach).await,
        Command::Exec { id, exec } => exec::run(&state, &id.resolve(&state)?, exec).await,
        Command::Stop { tasks, signal, grace } => stop::run(&state, &tasks, signal, grace).await,
        Command::Kill { tasks, signal } => kill::run(&state, &tasks, signal).await,
        Command::Wait { tasks, json, timeout } => wait::run(&state, &tasks, json, timeout).await,
        Command::Inspect(args) => inspect::run(&state, args).await,
        Command::Ps(args) => ps::run(&state, args).await,
        Command::Logs { tasks, logs } => logs::run(&state, &tasks, logs).await,
        Command::Stats(args) => stats::run(&state, args).await,
        Command::Top(args) => top::run(&state, args).await,
        Command::Update { id, limits } => update::run(&state, &id.resolve(&state)?, limits).await,
        Command::Events { args } => events::run(&state, &args),
        Command::Explain { tasks, json } => explain::run(&state, &tasks, json).await,
        Command::Metrics(args) => metrics::run(&state, args).await,
        Command::Pause { ids } => pause::run(&state, &ids).await,
        Command::Adopt { ids, all } => adopt::run(&state, &ids, all).await,
        Command::Upgrade { ids, containerd: Some(containerd), dry_run, shim, .. } => {
            upgrade::run_containerd(containerd, &ids, dry_run, shim).await
        }
        Command::Upgrade { ids, all, dry_run, shim, .. } => upgrade::run(&state, &ids, all, dry_run, shim).await,
        Command::Resume { ids } => resume::run(&state, &ids).await,
        Command::Rm { exited: true, label, .. } => rm::exited(&state, &label).await,
        Command::Rm { ids, label, force, .. } => rm::run(&state, &Chosen { ids, label }, force).await,
        Command::Sandbox { command } => sandbox::run(&state, command).await,
        Command::Gc(args) => gc::run(&state, &args).await,
        Command::Cgroup(args) => cgroup::run(&state, args.command),
        Command::Limits(args) => limits::run(&state, args.command).await,
        Command::Spec(args) => spec::run(&args.file, &args.cdi.folders),
        Command::Schema { limits: true, .. } => limits::schema(),
        Command::Schema { sandbox, .. } => schema::run(sandbox),
        Command::Doctor { json, cdi } => doctor::run(&state, &cdi.folders, json),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { dir } => man::run(dir.as_deref()),
        Command::Units => units::run().await,
    }
}

/// Whether a command uses the state folder.
fn reads_state(command: &Command) -> bool {
    !matches!(
        command,
        Command::Cgroup(_)
            | Command::Spec(_)
            | Command::Schema { .. }
            | Command::Doctor { .. }
            | Command::Completions { .. }
            | Command::Man { .. }
            | Command::Units
            | Command::Upgrade { containerd: Some(_), .. }
    )
}
