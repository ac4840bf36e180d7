//! The command line as typed: every command with its flags.
//!
//! The first lines of the doc comments become the text of `--help`, the man pages and the completions. Must not: act on
//! the arguments.

pub mod cgroup;
pub mod host_limits;
mod parsers;
pub mod sandbox;
pub mod task;
pub mod update;

use std::path::PathBuf;

use bowline_executor::VERSION;
use bowline_model::log_line::LogStream;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use bowline_spec::user::User;
use bowline_spec::values::Duration;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint};
use regex_lite::Regex;

use self::cgroup::CgroupArgs;
use self::host_limits::LimitsArgs;
pub use self::sandbox::SandboxCommand;
use self::task::{CdiFolders, SpecArgs, TaskArgs};
use self::update::LimitFlags;
use super::chosen::Chosen;
use super::examples;
use super::filter::{Filter, Labelled};
use crate::input::environment::Variable;
use crate::input::moment::Moment;
use crate::input::signal::SignalOrNone;
use crate::input::task_names::TaskRef;
use crate::ui::detach::{self, DetachKeys};
use crate::ui::order::By;
use bowline_metrics::args::MetricsArgs;

/// The heading in every help above the flags that every command has.
pub const GLOBAL: &str = "Global options";

/// Runs a command isolated and limited, watches it, and takes it down with grace.
#[derive(Debug, Parser)]
#[command(name = "bowline", version = VERSION, about, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_flag = true, after_help = examples::BOWLINE)]
pub struct Cli {
    /// The folder that keeps the records of tasks
    #[arg(long, global = true, env = "BOWLINE_STATE", value_name = "DIR", default_value = bowline_client::STATE)]
    #[arg(help_heading = GLOBAL)]
    pub state: PathBuf,
    /// When to use colours; NO_COLOR means never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = GLOBAL)]
    pub color: clap::ColorChoice,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::Help, help_heading = GLOBAL)]
    help: Option<bool>,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// All commands with all of their flags. Parsing makes those of the command that is called alone.
    pub fn whole() -> clap::Command {
        let mut whole = Cli::command();
        whole.build();
        whole
    }
}

// Each run would pay for the flags of all commands. clap makes those of a command after its text, which the doc comment
// of a struct of flags would replace: such structs have plain comments.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Run a task in the foreground; exit with its code
    #[command(after_help = examples::RUN)]
    Run {
        #[command(flatten)]
        task: TaskArgs,
        #[command(flatten)]
        detach: DetachArgs,
        #[command(flatten)]
        how: RunArgs,
    },
    /// Start a task in the background; print its id
    #[command(after_help = examples::START)]
    Start {
        #[command(flatten)]
        task: TaskArgs,
        /// Accepted as `run` has it: the task is in the background in any case
        #[arg(short, long, hide = true)]
        detach: bool,
        /// Remove the task once it has ended
        #[arg(long)]
        rm: bool,
        /// Print id and pid as JSON
        #[arg(long)]
        json: bool,
        /// Write the pid of its shim to a file, for systemd's `PIDFile=`: the shim ends with the task, and stops it on SIGTERM
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "sandbox")]
        pid_file: Option<PathBuf>,
    },
    /// Attach to a running task's streams; exit with its code if it ends
    #[command(after_help = examples::ATTACH)]
    Attach {
        /// The task
        id: TaskRef,
        #[command(flatten)]
        attach: AttachArgs,
    },
    /// Run a command in a running task; exit with its code, 124 on a timeout
    #[command(after_help = examples::EXEC)]
    Exec {
        /// The task
        id: TaskRef,
        #[command(flatten)]
        exec: ExecArgs,
    },
    /// Stop tasks: a signal, then SIGKILL when the grace is over
    #[command(after_help = examples::STOP)]
    Stop {
        #[command(flatten)]
        tasks: Chosen,
        /// The signal, by name or number [default: the description's, else TERM]
        #[arg(short, long)]
        signal: Option<Signal>,
        /// How long to wait before killing; a number is seconds [default: the description's, else 10s]
        #[arg(short = 't', long, visible_alias = "time", allow_negative_numbers = true)]
        grace: Option<Duration>,
    },
    /// Send a signal to tasks
    #[command(after_help = examples::KILL)]
    Kill {
        #[command(flatten)]
        tasks: Chosen,
        /// The signal, by name or number; 0 or SIGNULL sends none: it fails for a task that has ended
        #[arg(short, long, default_value = "KILL")]
        signal: SignalOrNone,
    },
    /// Wait for tasks to end; print their exit codes
    #[command(after_help = examples::WAIT)]
    Wait {
        #[command(flatten)]
        tasks: Chosen,
        /// Print the whole exit report; of several tasks a list, with their ids
        #[arg(long)]
        json: bool,
        /// Wait no longer than this; 124 if a task has not ended by then: 500ms, 2s
        #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
        timeout: Option<Duration>,
    },
    /// Print everything known about tasks, as JSON
    #[command(after_help = examples::INSPECT)]
    Inspect(InspectArgs),
    /// List all tasks
    #[command(visible_aliases = ["ls", "list"], after_help = examples::PS)]
    Ps(PsArgs),
    /// Print what tasks have written
    #[command(after_help = examples::LOGS)]
    Logs {
        #[command(flatten)]
        tasks: Chosen,
        #[command(flatten)]
        logs: LogsArgs,
    },
    /// Print what tasks use now
    #[command(after_help = examples::STATS)]
    Stats(StatsArgs),
    /// Show the processes of tasks, the busiest first
    #[command(after_help = examples::TOP)]
    Top(TopArgs),
    /// Change limits of a running task: all that are named, or none
    #[command(after_help = examples::UPDATE)]
    Update {
        /// The task
        id: TaskRef,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Print the events of tasks, oldest first
    #[command(after_help = examples::EVENTS)]
    Events {
        #[command(flatten)]
        args: EventsArgs,
    },
    /// Explain why a task ended, or is slow, with the figures behind it
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        #[command(flatten)]
        tasks: Chosen,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Serve metrics of all tasks, for Prometheus and similar tools
    #[command(after_help = examples::METRICS)]
    Metrics(MetricsArgs),
    /// Freeze all processes of tasks
    #[command(after_help = examples::PAUSE)]
    Pause {
        /// The tasks
        #[arg(required = true, value_name = "ID")]
        ids: Vec<TaskRef>,
    },
    /// Start new shims for tasks and sandboxes whose shims died; print their ids
    #[command(after_help = examples::ADOPT)]
    Adopt {
        /// The tasks, or sandboxes; a member is taken over with its sandbox
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
        ids: Vec<TaskRef>,
        /// Each whose shim died and that can be taken over
        #[arg(long)]
        all: bool,
    },
    /// Replace the program of the shims of running tasks by the installed one; print the ids of those tasks
    #[command(after_help = examples::UPGRADE)]
    Upgrade {
        /// The tasks, or sandboxes; with --containerd containers, or pods
        #[arg(required_unless_present_any = ["all", "containerd"], conflicts_with = "all", value_name = "ID")]
        ids: Vec<TaskRef>,
        /// Each that runs, also without a shim
        #[arg(long)]
        all: bool,
        /// The shims of containerd, which has its state folder at DIR [default: /run/containerd]
        #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, value_hint = ValueHint::DirPath)]
        containerd: Option<Option<PathBuf>>,
        /// Only find out whether the installed shim could take over
        #[arg(long)]
        dry_run: bool,
        /// The new shim; by default the one that is installed beside this program
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        shim: Option<PathBuf>,
    },
    /// Let paused tasks continue
    #[command(after_help = examples::RESUME)]
    Resume {
        /// The tasks
        #[arg(required = true, value_name = "ID")]
        ids: Vec<TaskRef>,
    },
    /// Remove tasks that have ended, or clean up after those whose shim died
    #[command(after_help = examples::RM)]
    Rm {
        /// The tasks
        #[arg(required_unless_present_any = ["exited", "label"], conflicts_with_all = ["exited", "label"], value_name = "ID")]
        ids: Vec<TaskRef>,
        /// Instead of ids, all tasks with this label: tier=web, or tier with any value; of several, with all; may be repeated
        #[arg(long, value_name = "K[=V]")]
        label: Vec<Labelled>,
        /// Kill them first if they run; a missing task is no error
        #[arg(short, long, conflicts_with = "exited")]
        force: bool,
        /// All that have ended; print their ids
        #[arg(long)]
        exited: bool,
    },
    /// Tasks under one budget, which share a network
    #[command(after_help = examples::SANDBOX)]
    Sandbox {
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Remove leftovers: cgroups without a shim, what a shim that died has left
    #[command(after_help = examples::GC)]
    Gc(GcArgs),
    /// Look at, make, change and remove a cgroup by its path
    #[command(disable_help_subcommand = true, subcommand_required = true, arg_required_else_help = true, after_help = examples::CGROUP)]
    Cgroup(CgroupArgs),
    /// Limit the host's own slices and services as a manifest says, by systemd
    #[command(disable_help_subcommand = true, subcommand_required = true, arg_required_else_help = true, after_help = examples::LIMITS)]
    Limits(LimitsArgs),
    /// Print the OCI configuration that a description stands for
    #[command(after_help = examples::SPEC)]
    Spec(SpecArgs),
    /// Print the JSON schema of the task description
    #[command(after_help = examples::SCHEMA)]
    Schema {
        /// Print the schema of a sandbox's description instead
        #[arg(long)]
        sandbox: bool,
        /// Print the schema of a manifest for `limits` instead
        #[arg(long, conflicts_with = "sandbox")]
        limits: bool,
    },
    /// Print what this host can do, the effect of each problem, and the command that fixes it
    #[command(after_help = examples::DOCTOR)]
    Doctor {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cdi: CdiFolders,
    },
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: CompletedShell,
    },
    /// Write the man pages, bowline(1) and one for each command
    #[command(hide = true)]
    Man {
        /// The existing folder to write them to [default: bowline(1) is printed]
        dir: Option<PathBuf>,
    },
    /// Ask systemd for what stdin says; print the answer
    #[command(hide = true, name = bowline_executor::systemd::COMMAND)]
    Units,
}

/// A shell that there is a script for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompletedShell {
    Bash,
    Fish,
    Zsh,
}

// What is done about a task in the foreground.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run it in the background and print its id, as `start` does
    #[arg(short, long)]
    pub detach: bool,
    /// Remove the task once it has ended, whoever is attached by then
    #[arg(long)]
    pub rm: bool,
    /// Stop the task once this command, or the process that started it, has ended
    #[arg(long, conflicts_with = "detach")]
    pub die_with_parent: bool,
    /// Print its exit report, with the last 4 KiB of each output, instead of its output; with -d id and pid
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,
    /// Write its exit report to a file, as JSON, beside its output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = report, conflicts_with = "detach")]
    pub report: Option<PathBuf>,
}

fn report(text: &str) -> std::result::Result<PathBuf, String> {
    match text {
        "" | "-" => Err("it names a file, as stdout and stderr are the task's; `--json` prints the report".to_owned()),
        path => Ok(path.into()),
    }
}

// How one leaves a terminal.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The keys that leave a terminal and let the task run on; empty for none
    #[arg(long, value_name = "KEYS", env = "BOWLINE_DETACH_KEYS", default_value = detach::DEFAULT)]
    pub detach_keys: DetachKeys,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub detach: DetachArgs,
    /// Only watch the output: send nothing to the task
    #[arg(long)]
    pub no_stdin: bool,
    /// Pass signals on to the task instead of leaving it
    #[arg(long)]
    pub sig_proxy: bool,
}

// Which lines of a log, and how they are printed.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Also print what is written from now on, until the task has ended
    #[arg(short, long)]
    pub follow: bool,
    /// The last N lines only, or all
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = tail)]
    pub tail: Option<u64>,
    /// From this time on: 10m ago, or 2026-05-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<Moment>,
    /// Up to this time: 10m ago, or 2026-05-01T12:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    pub until: Option<Moment>,
    /// One stream only: stdout or stderr
    #[arg(long, value_parser = stream())]
    pub stream: Option<LogStream>,
    /// Only lines that match a regular expression; of a number of last lines, those
    #[arg(short, long, value_name = "REGEX")]
    pub grep: Option<Regex>,
    /// With the time before each line
    #[arg(short, long, conflicts_with = "json")]
    pub timestamps: bool,
    /// The lines as they are kept: JSON, with stream and time
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Return once it runs; its output goes nowhere, and its end is an event of the task
    #[arg(short, long = "detach", conflicts_with_all = ["interactive", "tty", "json"])]
    pub detached: bool,
    /// Pass stdin on to it
    #[arg(short, long)]
    pub interactive: bool,
    /// Give it a terminal
    #[arg(short, long, conflicts_with = "json")]
    pub tty: bool,
    #[command(flatten)]
    pub detach: DetachArgs,
    /// Kill it, with all it started, after this long: 500ms, 2s
    #[arg(long, value_parser = task::timeout, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// The user [default: the task's]
    #[arg(short, long)]
    pub user: Option<User>,
    /// A variable on top of the task's, or the name of one that is set here; may be repeated
    #[arg(short, long, value_name = "K=V")]
    pub env: Vec<Variable>,
    /// A file of variables, one K=V a line; --env comes first; may be repeated
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// The working directory [default: the task's]
    #[arg(short, long, value_name = "DIR", value_parser = parsers::absolute)]
    pub workdir: Option<String>,
    /// Print how it ended and the last 4 KiB of each stream, as JSON
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments; whatever follows its first word is the command's, flags too
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::AnyPath)]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Also print new events as they come
    #[arg(short, long)]
    pub follow: bool,
    /// As JSON, one event a line
    #[arg(long)]
    pub json: bool,
    /// Only from then on: 10m ago, or 2026-05-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<Moment>,
    /// Only up to then: 10m ago, or 2026-05-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub until: Option<Moment>,
    /// The tasks [default: all]
    #[arg(value_name = "ID")]
    pub ids: Vec<TaskId>,
}

#[derive(Debug, Args)]
pub struct GcArgs {
    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Look for pods below this cgroup too, whose shim has gone: kubepods
    #[arg(long, value_name = "ROOT")]
    pub pods_root: Option<String>,
    /// The pods that are alive, by their uids, one a line; - for stdin. Others are orphans if their shim has gone
    #[arg(long, value_name = "FILE")]
    pub alive: Option<PathBuf>,
    /// Sandboxes, tasks or pods, by their whole ids [default: all]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The tasks; of several a list is printed
    #[arg(required_unless_present = "address", value_name = "ID")]
    pub ids: Vec<TaskRef>,
    /// Fill a template for each instead: '{{ status }} {{ exit.exit_code }}'
    #[arg(short, long, value_name = "TEMPLATE")]
    pub format: Option<String>,
    /// Print everything that each shim knows instead, as JSON, for debugging
    #[arg(long, conflicts_with = "format")]
    pub facts: bool,
    /// With --facts: ask the shim that listens there, as at containerd's BUNDLE/address
    #[arg(long, value_name = "SOCKET", requires = "facts", conflicts_with = "ids")]
    pub address: Option<String>,
}

#[derive(Debug, Args)]
pub struct PsArgs {
    /// Accepted as docker has it: all tasks are listed in any case
    #[arg(short, long)]
    pub all: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Ids only
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Only those of a name, status, exit code, label or sandbox: name=web, status=running, exited=0, label=tier=web,
    /// sandbox=shop; may be repeated
    #[arg(short, long, value_name = "FILTER")]
    pub filter: Vec<Filter>,
    /// A line for each: '{{.ID}} {{.Status}}', with Names, State, Command, CreatedAt, RunningFor, Labels, Pid, ExitCode,
    /// Sandbox; 'table {{.ID}}\t{{.Status}}' in columns; or json
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["json", "quiet"])]
    pub format: Option<String>,
    /// What to sort by
    #[arg(long, value_enum, value_name = "BY", default_value = "id")]
    pub sort: SortBy,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Do not cut what is wider than the terminal
    #[arg(long)]
    pub no_trunc: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    Id,
    /// The oldest first.
    Created,
    /// Those that run before those that have ended.
    Status,
}

#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The tasks [default: all that run]
    #[arg(value_name = "ID")]
    pub ids: Vec<TaskRef>,
    /// As JSON; of several tasks a list
    #[arg(long)]
    pub json: bool,
    /// Repeat until q or Ctrl-C; with --json one line for each reading
    #[arg(short, long)]
    pub watch: bool,
    /// What the tables are sorted by [default: id, with --watch cpu, where the keys c, m and i change it]
    #[arg(long, value_enum, value_name = "BY", conflicts_with = "json")]
    pub sort: Option<By>,
    /// The time between readings, with --watch or --record [default: 2s, with --record 1s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,
    /// Record one task until it has ended, or until Ctrl-C: readings and events, to a new file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch", "from"])]
    pub record: Option<PathBuf>,
    /// Record for no longer than this
    #[arg(long = "for", value_name = "TIME", requires = "record", conflicts_with_all = ["json", "watch"])]
    pub length: Option<Duration>,
    /// Draw the recording as an SVG picture
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch"])]
    pub plot: Option<PathBuf>,
    /// The recording to draw, instead of making one
    #[arg(long, value_name = "FILE", requires = "plot", conflicts_with_all = ["ids", "interval", "json", "watch"])]
    pub from: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// The tasks [default: all that run]
    #[arg(value_name = "ID")]
    pub ids: Vec<TaskRef>,
    /// Print once, as when stdout is not a terminal
    #[arg(long)]
    pub once: bool,
    /// Once, as JSON
    #[arg(long)]
    pub json: bool,
    /// What to sort by; live, the keys c, m and i change it
    #[arg(long, value_enum, value_name = "BY", default_value = "cpu")]
    pub sort: By,
    /// The time between readings
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
}

fn stream() -> impl TypedValueParser<Value = LogStream> {
    let names = [LogStream::Stdout.as_str(), LogStream::Stderr.as_str()];
    PossibleValuesParser::new(names).map(|name| match name == LogStream::Stdout.as_str() {
        true => LogStream::Stdout,
        false => LogStream::Stderr,
    })
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let interval: Duration = text.parse().map_err(|wrong: bowline_spec::Invalid| wrong.to_string())?;
    // Short intervals are refused, as each reading takes the shim's time too.
    if interval < Duration::from_millis(100) { Err(format!("{text} is shorter than 100ms")) } else { Ok(interval) }
}

/// Parses `--tail N`; docker's `all` is more lines than any log has.
fn tail(text: &str) -> Result<u64, String> {
    match text {
        "all" => Ok(u64::MAX),
        text => text.parse().map_err(|_| format!("{text:?} is not a number of lines; write 10, or all")),
    }
}
