//! `bowline`: a manager for one person or script on one machine.
//!
//! Arguments as typed are here; what each command does is in a file of its
//! name or kind. Results go to stdout, one message to stderr.

mod control;
mod describe;
mod exec;
mod launch;
mod show;
mod stats;
mod streams;
mod update;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use bowline_executor::{Doing, Error, Kind, Result, ShimCgroup, StateDir, VERSION};
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::units::{ByteSize, Ceiling, Cpus, Duration, IdSet};
use bowline_spec::user::User;
use clap::{Args, Parser, Subcommand};

/// Runs a command isolated and limited, watches it, and takes it down with grace.
#[derive(Debug, Parser)]
#[command(name = "bowline", version = VERSION, about, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    /// The folder that keeps what is known of each task
    #[arg(long, global = true, env = "BOWLINE_STATE", value_name = "DIR", default_value = "/run/bowline")]
    state: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a task in the foreground; exit with its code
    Run {
        #[command(flatten)]
        task: TaskArgs,
        /// Remove the task once it has ended
        #[arg(long)]
        rm: bool,
    },
    /// Start a task in the background; print its id
    Start {
        #[command(flatten)]
        task: TaskArgs,
    },
    /// Run a command in a running task; exit with its code, 124 on a timeout
    Exec {
        /// The task
        id: TaskId,
        #[command(flatten)]
        exec: ExecArgs,
    },
    /// Stop a task: a signal, then SIGKILL when the grace is over
    Stop {
        /// The task
        id: TaskId,
        /// The signal, by name or number [default: the description's, else TERM]
        #[arg(long)]
        signal: Option<Signal>,
        /// How long to wait before killing [default: the description's, else 10s]
        #[arg(long)]
        grace: Option<Duration>,
    },
    /// Send a signal to a task
    Kill {
        /// The task
        id: TaskId,
        /// The signal, by name or number
        #[arg(default_value = "KILL")]
        signal: Signal,
    },
    /// Wait for a task to end; print its exit code
    Wait {
        /// The task
        id: TaskId,
        /// Print the whole exit report
        #[arg(long)]
        json: bool,
    },
    /// Print everything that is known of a task, as JSON
    Inspect {
        /// The task
        id: TaskId,
    },
    /// List all tasks
    Ps {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print what a task uses now
    Stats {
        /// The task
        id: TaskId,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change limits of a running task: all that are named, or none
    Update {
        /// The task
        id: TaskId,
        #[command(flatten)]
        limits: UpdateArgs,
    },
    /// Freeze all processes of a task
    Pause {
        /// The task
        id: TaskId,
    },
    /// Let a paused task go on
    Resume {
        /// The task
        id: TaskId,
    },
    /// Remove a task that has ended, or clean up after one whose shim died
    Rm {
        /// The task
        id: TaskId,
        /// Kill it first if it runs
        #[arg(short, long)]
        force: bool,
    },
    /// Print the OCI configuration that a description stands for
    Spec {
        /// The description: TOML, or JSON if it ends in .json; - for stdin
        file: PathBuf,
    },
    /// Print the JSON schema of the task description
    Schema,
    /// Tell what this host can do
    Doctor,
}

/// A task as typed: a description, flags on top of it, and the command.
#[derive(Debug, Args)]
struct TaskArgs {
    /// The task's id [default: made up]
    #[arg(long, value_name = "ID")]
    name: Option<TaskId>,
    /// A task description: TOML, or JSON if it ends in .json; - for stdin
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// A folder to be the task's root filesystem [default: a view of the host's]
    #[arg(long, value_name = "DIR")]
    rootfs: Option<PathBuf>,
    /// The most memory: 64M, 1G
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// The most CPU time, in CPUs: 0.5
    #[arg(long)]
    cpus: Option<Cpus>,
    /// The most processes and threads
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,
    /// An environment variable; may be repeated
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The user, by name or number, perhaps with a group: web, 1000:1000
    #[arg(long)]
    user: Option<User>,
    /// Where the shim itself is charged: inherit, root, overhead, or a cgroup path
    #[arg(long, value_name = "MODE", default_value = "overhead")]
    shim_cgroup: ShimCgroup,
    /// Sync the exit report to disk before anybody is told of the exit
    #[arg(long)]
    durable: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct ExecArgs {
    /// Kill it, with all it started, after this long: 500ms, 2s
    #[arg(long)]
    timeout: Option<Duration>,
    /// The user [default: the task's]
    #[arg(long)]
    user: Option<User>,
    /// An environment variable on top of the task's; may be repeated
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The working directory [default: the task's]
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Print how it ended and the last 4 KiB of each stream, as JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Limits as typed; `max` lifts one.
#[derive(Debug, Args)]
struct UpdateArgs {
    /// The most memory: 64M, max
    #[arg(long, value_name = "SIZE")]
    memory: Option<Ceiling<ByteSize>>,
    /// Swap beyond the memory limit: 16M, max
    #[arg(long, value_name = "SIZE")]
    swap: Option<Ceiling<ByteSize>>,
    /// Memory beyond which the task is slowed down (cgroup v2): 48M, max
    #[arg(long, value_name = "SIZE")]
    memory_high: Option<Ceiling<ByteSize>>,
    /// Memory up to which the kernel spares the task: 16M, 0
    #[arg(long, value_name = "SIZE")]
    memory_low: Option<ByteSize>,
    /// The most CPU time, in CPUs: 0.5, max
    #[arg(long)]
    cpus: Option<Ceiling<Cpus>>,
    /// The weight when CPU time is short: 2 to 262144
    #[arg(long)]
    cpu_shares: Option<u64>,
    /// The CPUs the task may run on: 0-1,3
    #[arg(long, value_name = "CPUS")]
    cpuset: Option<IdSet>,
    /// The memory nodes it may use: 0
    #[arg(long, value_name = "NODES")]
    mems: Option<IdSet>,
    /// The most processes and threads: 64, max
    #[arg(long)]
    pids: Option<Ceiling<u64>>,
    /// Block devices: weight=500, or /dev/sda,read_bps=1M,write_iops=max; may be repeated
    #[arg(long, value_name = "IO")]
    io: Vec<update::IoArg>,
    /// Huge pages by their size: 2MB=64M; may be repeated
    #[arg(long, value_name = "PAGE=SIZE", value_parser = variable)]
    hugepages: Vec<(String, String)>,
    /// A raw cgroup v2 file: memory.oom.group=1; may be repeated
    #[arg(long, value_name = "FILE=VALUE", value_parser = variable)]
    unified: Vec<(String, String)>,
}

fn variable(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=value")),
    }
}

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
        Command::Run { task, rm } => launch::run(&state, task, rm).await,
        Command::Start { task } => launch::start(&state, task).await,
        Command::Exec { id, exec } => exec::run(&state, &id, exec).await,
        Command::Stop { id, signal, grace } => control::stop(&state, &id, signal, grace).await,
        Command::Kill { id, signal } => control::kill(&state, &id, signal).await,
        Command::Wait { id, json } => control::wait(&state, &id, json).await,
        Command::Inspect { id } => show::inspect(&state, &id).await,
        Command::Ps { json } => show::ps(&state, json).await,
        Command::Stats { id, json } => stats::run(&state, &id, json).await,
        Command::Update { id, limits } => update::run(&state, &id, limits).await,
        Command::Pause { id } => control::pause(&state, &id).await,
        Command::Resume { id } => control::resume(&state, &id).await,
        Command::Rm { id, force } => control::rm(&state, &id, force).await,
        Command::Spec { file } => describe::spec(&file),
        Command::Schema => describe::schema(),
        Command::Doctor => describe::doctor(&state),
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
