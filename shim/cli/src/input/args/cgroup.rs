//! The arguments of `bowline cgroup`.

use std::fmt;
use std::str::FromStr;

use bowline_executor::internal::checked_cgroup_path;
use bowline_spec::budget::Class;
use bowline_spec::values::{ByteSize, Ceiling, Cpus, IdSet};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use rustix::param::page_size;

use crate::input::args::parsers::{class, variable};
use crate::input::args::update::{ceiling, count};
use crate::input::examples;

/// The path of a cgroup below every hierarchy: absolute, plain, not the root.
#[derive(Debug, Clone)]
pub struct CgroupPath(String);

impl FromStr for CgroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<CgroupPath, String> {
        match checked_cgroup_path(text) {
            Ok(path) => Ok(CgroupPath(path.to_owned())),
            Err(error) => Err(format!("{error}; {}", error.hint_text().unwrap_or_default())),
        }
    }
}

impl CgroupPath {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Args)]
pub struct CgroupArgs {
    #[command(subcommand)]
    pub command: CgroupCommand,
}

#[derive(Debug, Subcommand)]
pub enum CgroupCommand {
    /// Print where this cgroup exists; exit with 1 unless every hierarchy has it
    #[command(after_help = examples::CGROUP_EXISTS)]
    Exists {
        #[command(flatten)]
        at: At,
    },
    /// Make a cgroup with its parents, wherever it is missing
    #[command(after_help = examples::CGROUP_ENSURE)]
    Ensure {
        #[command(flatten)]
        at: At,
        /// For threads of a process that is in its parent (cgroup v2)
        #[arg(long)]
        threaded: bool,
    },
    /// Print what a cgroup uses now
    #[command(after_help = examples::CGROUP_USAGE)]
    Usage {
        #[command(flatten)]
        at: At,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the limits of a cgroup
    #[command(after_help = examples::CGROUP_SHOW)]
    Show {
        #[command(flatten)]
        at: At,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change limits of a cgroup: all that are named, or none
    #[command(after_help = examples::CGROUP_SET)]
    Set {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        limits: SetArgs,
    },
    /// Give a cgroup the least CPU time when CPU time is short
    #[command(after_help = examples::CGROUP_REDUCE_CPU)]
    ReduceCpu {
        #[command(flatten)]
        at: At,
    },
    /// Kill every process of a cgroup and of those below it
    #[command(after_help = examples::CGROUP_KILL)]
    Kill {
        #[command(flatten)]
        at: At,
    },
    /// Kill every process of a cgroup and remove it with all below it
    #[command(after_help = examples::CGROUP_DESTROY)]
    Destroy {
        #[command(flatten)]
        at: At,
        /// Print what was there, and what was moved to a parent, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Move single threads to a cgroup
    #[command(after_help = examples::CGROUP_PLACE)]
    Place {
        #[command(flatten)]
        at: At,
        /// The thread ids on the host; an id without a thread is skipped
        #[arg(long = "tid", required = true, num_args = 1.., value_name = "N", allow_negative_numbers = true)]
        tids: Vec<String>,
    },
    /// Print the cgroup of a pod or a sandbox by its name, or whose cgroup a path is; exit with 1 if nobody's
    #[command(after_help = examples::CGROUP_NAME)]
    Name(NameArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct NameArgs {
    /// A cgroup's path, in the form of either driver, or a slice's name
    #[arg(value_name = "PATH", group = "what")]
    pub path: Option<String>,
    /// The uid of a pod
    #[arg(long, value_name = "UID", group = "what", requires = "qos")]
    pub pod: Option<String>,
    /// The id of a sandbox
    #[arg(long, value_name = "ID", group = "what")]
    pub sandbox: Option<String>,
    /// The pod's class of service: guaranteed, burstable or best-effort
    #[arg(long, value_name = "CLASS", value_parser = class(), hide_possible_values = true, requires = "pod")]
    pub qos: Option<Class>,
    /// The cgroup above all pods or all sandboxes [default: kubepods, bowline]
    #[arg(long, value_name = "PATH")]
    pub root: Option<String>,
    /// Who makes the cgroup
    #[arg(long, default_value = "cgroupfs", conflicts_with = "path")]
    pub driver: NamingDriver,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads a limit of memory. The kernel takes whole pages, and none as well, which would end all that is there.
fn memory(text: &str) -> Result<Ceiling<ByteSize>, String> {
    match ceiling::<ByteSize>(text)? {
        Ceiling::At(size) if size.as_u64() < page_size() as u64 => {
            Err(format!("a limit of less than {} bytes, a page, leaves no memory; max is no limit", page_size()))
        }
        limit => Ok(limit),
    }
}

/// Whose rules a cgroup's name follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NamingDriver {
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Args)]
pub struct At {
    /// The cgroup's path below every hierarchy: /parent/name
    #[arg(value_name = "PATH")]
    pub path: CgroupPath,
}

// Limits as typed; `max` lifts one.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SetArgs {
    /// CPU limit, in CPUs: 0.5, max
    #[arg(long, allow_negative_numbers = true, value_parser = ceiling::<Cpus>)]
    pub cpus: Option<Ceiling<Cpus>>,
    /// The weight when CPU time is short: 2 to 262144
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=262_144))]
    pub shares: Option<u64>,
    /// Memory limit: 64M, max
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = memory)]
    pub memory: Option<Ceiling<ByteSize>>,
    /// Limit of processes and threads: 64, max
    #[arg(long, allow_negative_numbers = true, value_parser = count)]
    pub pids: Option<Ceiling<u64>>,
    /// The CPUs it may run on: 0-1,3
    #[arg(long, value_name = "CPUS")]
    pub cpuset: Option<IdSet>,
    /// The memory nodes it may use: 0
    #[arg(long, value_name = "NODES")]
    pub mems: Option<IdSet>,
    /// Huge pages by their size: 2MB=64M; may be repeated
    #[arg(long, value_name = "PAGE=SIZE", value_parser = variable)]
    pub hugepages: Vec<(String, String)>,
}
