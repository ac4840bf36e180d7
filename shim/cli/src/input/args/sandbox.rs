//! The arguments of `bowline sandbox`.

use std::path::PathBuf;

use bowline_executor::CgroupDriver;
use bowline_spec::budget::Class;
use bowline_spec::id::TaskId;
use bowline_spec::values::{ByteSize, Ceiling, Cpus, IdSet, Place};
use bowline_spec::{Enforcement, NetworkMode};
use clap::{Args, Subcommand};

use crate::input::args::parsers::{class, one_of};
use crate::input::args::task::CdiFolders;
use crate::input::args::update::{LimitFlags, count};
use crate::input::examples;
use crate::input::network::{Ports, network, ports};
use crate::input::set::Setting;

#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Make a sandbox, with its limits and its network; print its id
    #[command(after_help = examples::SANDBOX_CREATE)]
    Create(Box<CreateArgs>),
    /// List all sandboxes
    #[command(visible_alias = "list", after_help = examples::SANDBOX_LS)]
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Ids only
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
    },
    /// Print everything known about a sandbox, as JSON
    #[command(after_help = examples::SANDBOX_INSPECT)]
    Inspect {
        /// The sandbox
        id: TaskId,
    },
    /// Print what a sandbox's members use together
    #[command(after_help = examples::SANDBOX_STATS)]
    Stats {
        /// The sandbox
        id: TaskId,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Change a sandbox's limits: all that are named, or none
    #[command(after_help = examples::SANDBOX_UPDATE)]
    Update {
        /// The sandbox
        id: TaskId,
        #[command(flatten)]
        limits: Box<LimitFlags>,
    },
    /// Ask the plugins whether a sandbox's network is as they made it
    #[command(after_help = examples::SANDBOX_CHECK)]
    Check {
        /// The sandbox
        id: TaskId,
    },
    /// Charge a sandbox's helper processes beside it, like its shim
    #[command(after_help = examples::SANDBOX_CHARGE)]
    Charge {
        /// The sandbox
        id: TaskId,
        /// The processes; a pid without a process is skipped and reported
        #[arg(required = true, value_name = "PID", allow_negative_numbers = true)]
        pids: Vec<String>,
    },
    /// Remove sandboxes, with those of their members that have ended
    #[command(after_help = examples::SANDBOX_RM)]
    Rm {
        /// The sandboxes
        #[arg(required = true, value_name = "ID")]
        ids: Vec<TaskId>,
        /// Kill members that run; a missing sandbox is no error
        #[arg(short, long)]
        force: bool,
    },
}

// A sandbox as typed: a description, and flags on top of it.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The sandbox's id [default: made up]
    #[arg(long, value_name = "ID")]
    pub name: Option<TaskId>,
    /// Remove a sandbox of that name first, with its members, as `sandbox rm -f` does
    #[arg(long)]
    pub replace: bool,
    /// A sandbox's description: TOML, or JSON if it ends in .json; - for stdin
    #[arg(short, long, value_name = "F")]
    pub file: Option<PathBuf>,
    /// Any field of the description, over all else: memory.high=1G, overhead=inside; null removes it
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<Setting>,
    /// Where its cgroup is: /ecs/ID, or /ecs/ for whatever id, or a slice of systemd's, ecstasks-ID.slice [default: /bowline/ID]
    #[arg(long, value_name = "PATH")]
    pub place: Option<Place>,
    /// Memory limit of all members together: 64M, 1G
    #[arg(short, long, value_name = "SIZE", allow_negative_numbers = true)]
    pub memory: Option<ByteSize>,
    /// CPU limit of all members together, in CPUs: 0.5
    #[arg(long, allow_negative_numbers = true)]
    pub cpus: Option<Cpus>,
    /// The CPUs they may run on: 0-1,3
    #[arg(long, value_name = "CPUS", visible_alias = "cpuset-cpus")]
    pub cpuset: Option<IdSet>,
    /// Limit of processes and threads of all members together; -1 for none
    #[arg(long, visible_alias = "pids-limit", allow_negative_numbers = true, value_parser = count)]
    pub pids: Option<Ceiling<u64>>,
    /// The class of service: guaranteed, burstable or best-effort [default: what the members make]
    #[arg(long, value_parser = class(), hide_possible_values = true)]
    pub qos: Option<Class>,
    /// What to do about limits that this host cannot enforce: required, best-effort or off
    #[arg(long, value_name = "MODE", value_parser = one_of::<Enforcement, 3>(["required", "best-effort", "off"]), hide_possible_values = true)]
    pub cgroup: Option<Enforcement>,
    /// The network: host, none or private, bridge, cni, or the path of a network namespace [default: host]
    #[arg(long, value_name = "NETWORK", value_parser = network, visible_alias = "net")]
    pub network: Option<NetworkMode>,
    /// A port of the host that leads to one of the sandbox: 8080:80, 53:53/udp, 8000-8009; may be repeated
    #[arg(short, long, value_name = "HOST:SANDBOX", value_parser = ports)]
    pub publish: Vec<Ports>,
    /// The host name that the members share [default: the id]
    #[arg(long)]
    pub hostname: Option<String>,
    /// Let the members see each other's processes
    #[arg(long)]
    pub share_pid: bool,
    /// Who makes the cgroups: cgroupfs or systemd; auto is cgroupfs
    #[arg(long, value_name = "DRIVER", env = "BOWLINE_CGROUP_DRIVER", default_value = "auto")]
    pub cgroup_driver: CgroupDriver,
    #[command(flatten)]
    pub cdi: CdiFolders,
    /// Print everything known about it, as JSON, instead of the id
    #[arg(long)]
    pub json: bool,
}
