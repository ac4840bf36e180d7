//! The flags of `run` and `start` that say what a task is, in docker's names where docker has one.
//!
//! Each stands for a field of the description. Must not: decide what a flag does to a description, which is the job of
//! `input::flags`.

use std::net::IpAddr;
use std::path::PathBuf;

use bowline_executor::{CgroupDriver, ShimCgroup};
use bowline_spec::capability::Entry;
use bowline_spec::host_limits::{UnitKind, UnitName};
use bowline_spec::id::TaskId;
use bowline_spec::rlimit::{Resource, Rlimit};
use bowline_spec::signal::Signal;
use bowline_spec::user::{NameOrId, User};
use bowline_spec::values::{ByteSize, Duration};
use bowline_spec::{HostName, LogFormat, Mount, Namespace, NetworkMode, OnUnhealthy};
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use super::parsers::{LIMITS, number, one_of, variable};
use super::update::LimitFlags;
use crate::input::cdi::gpus::{Gpus, gpus};
use crate::input::cdi::known::FOLDERS;
use crate::input::environment::Variable;
use crate::input::mounts::{AskedDevice, asked_device, mount, tmpfs, volume};
use crate::input::network::{Ports, network, ports};
use crate::input::secrets::SecretFile;
use crate::input::security::{SecurityOpt, label, ulimit};
use crate::input::set::Setting;

const FILES: &str = "Files and devices";
const ISOLATION: &str = "Isolation";
const HEALTH: &str = "Health checks";
const OUTPUT: &str = "Logs";
const SHIM: &str = "Shim and cgroup";

// A task as typed: a description, flags on top of it, and the command.
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// The task's id [default: made up]
    #[arg(long, value_name = "ID")]
    pub name: Option<TaskId>,
    /// Remove a task of that name first, as `rm -f` does, even if the launch then fails
    #[arg(long)]
    pub replace: bool,
    /// A task description: TOML, or JSON if it ends in .json; - for stdin
    #[arg(short, long, value_name = "F")]
    pub file: Option<PathBuf>,
    /// Run an OCI bundle: a folder with config.json, such as `bowline spec` prints. A command on the command line replaces
    /// the bundle's
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "sandbox")]
    pub bundle: Option<PathBuf>,
    /// The program to run in place of the bundle's; the command on the command line becomes its arguments
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new(), requires = "bundle")]
    pub entrypoint: Option<String>,
    /// Any field of the description, over all else: memory.high=48M, env."A.B"=x, args[0]=x; null removes it
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<Setting>,
    /// An environment variable, or the name of one that is set here; may be repeated
    #[arg(short, long, value_name = "K=V")]
    pub env: Vec<Variable>,
    /// A file of variables, one K=V a line; --env comes first; may be repeated
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// A file that only the task's user reads, at /run/secrets/NAME, in memory. The variables of an --env-file that is
    /// a secret too are shown nowhere. May be repeated
    #[arg(long, value_name = "FILE[:NAME]", value_hint = ValueHint::FilePath)]
    pub secret: Vec<SecretFile>,
    /// The working directory
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub workdir: Option<PathBuf>,
    /// A name and a value that are kept with the task: tier=web; may be repeated
    #[arg(short, long, value_name = "K=V", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// Pass stdin on; for a task in the background, keep it open for `attach`
    #[arg(short, long)]
    pub interactive: bool,
    /// Give it a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Whether an init is above the command: it forwards signals, reaps, and keeps output and exit status if the shim
    /// dies [default: true without --rootfs]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub init: Option<bool>,
    /// Stop it after this long, as its description says: 500ms, 2s, 10m; `run` then exits with 124
    #[arg(long, value_name = "TIME", value_parser = timeout, allow_negative_numbers = true)]
    pub timeout: Option<Duration>,
    /// The signal that asks it to end [default: TERM]
    #[arg(long, value_name = "SIGNAL")]
    pub stop_signal: Option<Signal>,
    /// How long it may then take before it is killed; a number is seconds [default: 10s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub stop_timeout: Option<Duration>,
    /// The command and its arguments; whatever follows its first word is the command's, flags too
    #[arg(trailing_var_arg = true, value_name = "CMD", value_hint = ValueHint::AnyPath)]
    pub command: Vec<String>,
    #[command(flatten)]
    pub limits: LimitFlags,
    #[command(flatten)]
    pub process: ProcessFlags,
    // The heading of the limits would be that of all flags that have none.
    #[command(flatten, next_help_heading = None::<&str>)]
    pub files: FileFlags,
    #[command(flatten)]
    pub isolation: IsolationFlags,
    #[command(flatten)]
    pub health: HealthFlags,
    #[command(flatten)]
    pub log: LogFlags,
    #[command(flatten)]
    pub shim: ShimFlags,
}

// Limits of each process, which it has from its start.
#[derive(Debug, Args)]
pub struct ProcessFlags {
    /// How readily the OOM killer picks it: -1000 (never) to 1000
    #[arg(long, value_name = "N", value_parser = oom_score_adj, allow_negative_numbers = true, help_heading = LIMITS)]
    pub oom_score_adj: Option<i32>,
    /// A resource limit of each process: nofile=1024, core=0:-1; may be repeated
    #[arg(long, value_name = "NAME=SOFT[:HARD]", value_parser = ulimit, help_heading = LIMITS)]
    pub ulimit: Vec<(Resource, Rlimit)>,
}

// What the task sees of the host's files and devices.
#[derive(Debug, Args)]
pub struct FileFlags {
    /// The folder with the task's root filesystem [default: a view of the host's]
    #[arg(long, value_name = "DIR", help_heading = FILES)]
    pub rootfs: Option<PathBuf>,
    /// Make the root itself read-only, as it is without --rootfs
    #[arg(long, help_heading = FILES)]
    pub read_only: bool,
    /// Keep changes to the root in memory, at most SIZE, until the task ends [default SIZE: half of the memory limit, else 1G]
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, conflicts_with = "read_only")]
    #[arg(help_heading = FILES)]
    pub ephemeral: Option<Option<ByteSize>>,
    /// A file or folder of the host, which must be there, and its place in the task; may be repeated
    #[arg(short, long, value_name = "SRC:DST[:ro]", value_parser = volume, help_heading = FILES)]
    pub volume: Vec<Mount>,
    /// A mount as fields: type=bind,source=SRC,target=DST,readonly, or type=tmpfs,target=DST
    #[arg(long, value_name = "FIELDS", value_parser = mount, help_heading = FILES)]
    pub mount: Vec<Mount>,
    /// An empty folder in memory: /scratch, /scratch:size=64M,mode=0700,uid=1000; may be repeated
    #[arg(long, value_name = "DST[:OPTIONS]", value_parser = tmpfs, help_heading = FILES)]
    pub tmpfs: Vec<Mount>,
    /// The size of /dev/shm: 64M
    #[arg(long, value_name = "SIZE", value_parser = shm, allow_negative_numbers = true, help_heading = FILES)]
    pub shm_size: Option<Mount>,
    /// A device of the host's: /dev/kvm, /dev/sda:/dev/disk:r; or what a vendor's file describes: nvidia.com/gpu=0. May be
    /// repeated
    #[arg(long, value_name = "HOST[:PATH][:rwm]", value_parser = asked_device, help_heading = FILES)]
    pub device: Vec<AskedDevice>,
    /// GPUs of NVIDIA, as --device nvidia.com/gpu=0: all, 2, device=0,1
    #[arg(long, value_name = "GPUS", value_parser = gpus, allow_negative_numbers = true, help_heading = FILES)]
    pub gpus: Option<Gpus>,
    #[command(flatten)]
    pub cdi: CdiFolders,
}

// What `bowline spec` has.
#[derive(Debug, Args)]
pub struct SpecArgs {
    /// The description: TOML, or JSON if it ends in .json; - for stdin
    pub file: PathBuf,
    #[command(flatten)]
    pub cdi: CdiFolders,
}

// Where vendors' files of devices are.
#[derive(Debug, Args)]
pub struct CdiFolders {
    /// A folder with vendors' files of devices (CDI), of which a later one goes before an earlier one; may be repeated
    /// [default: /etc/cdi and /var/run/cdi]
    #[arg(long = "cdi-spec-dir", id = "cdi_spec_dir", value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(env = "BOWLINE_CDI_SPEC_DIRS", value_delimiter = ':', default_values = FOLDERS, hide_default_value = true)]
    #[arg(help_heading = FILES)]
    pub folders: Vec<PathBuf>,
}

// Who the task is, and what keeps it apart.
#[derive(Debug, Args)]
pub struct IsolationFlags {
    /// The user, by name or number, perhaps with a group: web, 1000:1000
    #[arg(short, long, help_heading = ISOLATION)]
    pub user: Option<User>,
    /// A supplementary group, by name or number; may be repeated
    #[arg(long, value_name = "GROUP", help_heading = ISOLATION)]
    pub group_add: Vec<NameOrId>,
    /// For untrusted code: its own user, no network, no capabilities, little of everything
    #[arg(long, conflicts_with_all = ["user", "sandbox"], help_heading = ISOLATION)]
    pub untrusted: bool,
    /// The sandbox to join; what made the sandbox's cgroup makes the task's too
    #[arg(long, value_name = "ID", conflicts_with = "shim_cgroup", help_heading = ISOLATION)]
    pub sandbox: Option<TaskId>,
    /// host, private or none (a loopback interface alone), bridge, or the path of a network namespace [default: host]
    #[arg(long, value_parser = network, visible_alias = "net", conflicts_with = "sandbox", help_heading = ISOLATION)]
    pub network: Option<NetworkMode>,
    /// With --network bridge, a port of the host that leads to one of the task: 8080:80, 53:53/udp, 8000-8009; may be repeated
    #[arg(short, long, value_name = "HOST:TASK", value_parser = ports, conflicts_with = "sandbox", help_heading = ISOLATION)]
    pub publish: Vec<Ports>,
    /// The host name inside [default: the task's id]
    #[arg(long, value_name = "NAME", conflicts_with = "sandbox", help_heading = ISOLATION)]
    pub hostname: Option<String>,
    /// A line of /etc/hosts: db:10.0.0.7; host-gateway stands for the host's address; may be repeated
    #[arg(long, value_name = "NAME:ADDRESS", help_heading = ISOLATION)]
    pub add_host: Vec<HostName>,
    /// The address of a name server, instead of the host's; may be repeated
    #[arg(long, value_name = "ADDRESS", help_heading = ISOLATION)]
    pub dns: Vec<IpAddr>,
    /// A domain in which short names are looked up, instead of the host's, or `.` for none; may be repeated
    #[arg(long, value_name = "DOMAIN", help_heading = ISOLATION)]
    pub dns_search: Vec<String>,
    /// An option of /etc/resolv.conf, instead of the host's: ndots:2; may be repeated
    #[arg(long, value_name = "OPTION", alias = "dns-opt", help_heading = ISOLATION)]
    pub dns_option: Vec<String>,
    /// private or host: System V IPC, message queues and /dev/shm [default: private]
    #[arg(long, value_name = "MODE", value_parser = own_or_host(), conflicts_with = "sandbox", help_heading = ISOLATION)]
    pub ipc: Option<Namespace>,
    /// private or host: the processes that it sees [default: private]
    #[arg(long, value_name = "MODE", value_parser = own_or_host(), conflicts_with = "sandbox", help_heading = ISOLATION)]
    pub pid: Option<Namespace>,
    /// A kernel setting of its own namespaces: net.ipv4.ip_forward=1; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, help_heading = ISOLATION)]
    pub sysctl: Vec<(String, String)>,
    /// A capability to add to the default ones: NET_ADMIN, ALL; may be repeated
    #[arg(long, value_name = "CAP", value_delimiter = ',', help_heading = ISOLATION)]
    pub cap_add: Vec<Entry>,
    /// A capability to take from the default ones: CHOWN, ALL; may be repeated
    #[arg(long, value_name = "CAP", value_delimiter = ',', help_heading = ISOLATION)]
    pub cap_drop: Vec<Entry>,
    /// seccomp=native, seccomp=unconfined, seccomp=PROFILE.json, apparmor=PROFILE or no-new-privileges[=false]; may be repeated
    #[arg(long, value_name = "OPTION", help_heading = ISOLATION)]
    pub security_opt: Vec<SecurityOpt>,
}

// How the shim asks whether the task is healthy.
#[derive(Debug, Args)]
pub struct HealthFlags {
    /// A command for a shell in the task; exit code 0 is healthy
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new(), help_heading = HEALTH)]
    pub health_cmd: Option<String>,
    /// The time between two checks [default: 30s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HEALTH)]
    pub health_interval: Option<Duration>,
    /// How long a check may take [default: 30s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HEALTH)]
    pub health_timeout: Option<Duration>,
    /// How many failures in a row make it unhealthy [default: 3]
    #[arg(long, value_name = "N", value_parser = number::<u32>, allow_negative_numbers = true, help_heading = HEALTH)]
    pub health_retries: Option<u32>,
    /// How long failures do not count after its start [default: 0]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HEALTH)]
    pub health_start_period: Option<Duration>,
    /// The time between two checks in that period [default: 5s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, help_heading = HEALTH)]
    pub health_start_interval: Option<Duration>,
    /// What to do when it is unhealthy: none or stop [default: none]
    #[arg(long, value_name = "ACTION", value_parser = one_of::<OnUnhealthy, 2>(["none", "stop"]), hide_possible_values = true, help_heading = HEALTH)]
    pub health_on_failure: Option<OnUnhealthy>,
    /// Without the checks that the description asks for
    #[arg(long, conflicts_with = "health_cmd", help_heading = HEALTH)]
    pub no_healthcheck: bool,
}

// What is kept of the task's output.
#[derive(Debug, Args)]
pub struct LogFlags {
    /// How output is kept: json, raw, journald or none [default: json for a task in the background]
    #[arg(long = "log", id = "log", value_name = "FORMAT", help_heading = OUTPUT)]
    pub format: Option<LogFormat>,
    /// How large a log file may become [default: 10M]
    #[arg(long = "log-size", id = "log_size", value_name = "SIZE", allow_negative_numbers = true, help_heading = OUTPUT)]
    pub size: Option<ByteSize>,
    /// How many log files to keep [default: 5]
    #[arg(long = "log-files", id = "log_files", value_name = "N", value_parser = number::<u32>, allow_negative_numbers = true, help_heading = OUTPUT)]
    pub files: Option<u32>,
}

// How the task is launched, of which its description says nothing.
#[derive(Debug, Args)]
pub struct ShimFlags {
    /// Where the shim itself is charged: inherit, root, overhead, or a cgroup path
    #[arg(long = "shim-cgroup", id = "shim_cgroup", value_name = "MODE", default_value = "overhead", help_heading = SHIM)]
    pub cgroup: ShimCgroup,
    /// What makes the task's cgroup: cgroupfs, systemd, or auto (systemd if the path is slice:prefix:name)
    #[arg(long = "cgroup-driver", value_name = "DRIVER", env = "BOWLINE_CGROUP_DRIVER", default_value = "auto")]
    #[arg(help_heading = SHIM)]
    pub driver: CgroupDriver,
    /// The systemd slice for the task's scope; with `,optional`, the task starts outside it if systemd refuses
    #[arg(long, value_name = "SLICE[,optional]", value_parser = slice, conflicts_with = "sandbox", help_heading = SHIM)]
    pub slice: Option<Slice>,
    /// Sync the exit report and all other records to disk before the exit is reported
    #[arg(long, help_heading = SHIM)]
    pub durable: bool,
}

pub fn timeout(text: &str) -> std::result::Result<Duration, String> {
    let timeout: Duration = text.parse().map_err(|wrong: bowline_spec::Invalid| wrong.to_string())?;
    if timeout == Duration::default() {
        return Err(format!("{text} leaves no time to run; write it as 500ms, or 2s"));
    }
    Ok(timeout)
}

fn oom_score_adj(text: &str) -> std::result::Result<i32, String> {
    let readiness = text.parse().ok().filter(|readiness| (-1000..=1000).contains(readiness));
    readiness.ok_or_else(|| format!("{text:?} is not a number from -1000 to 1000"))
}

fn own_or_host() -> impl TypedValueParser<Value = Namespace> {
    one_of(["private", "host"])
}

fn shm(text: &str) -> std::result::Result<Mount, String> {
    tmpfs(&format!("/dev/shm:size={text}")).map_err(|wrong| wrong.trim_start_matches("size: ").to_owned())
}

/// A slice of systemd's, and whether the task may start outside it.
#[derive(Debug, Clone)]
pub struct Slice {
    pub name: String,
    pub is_optional: bool,
}

fn slice(text: &str) -> std::result::Result<Slice, String> {
    let (name, is_optional) = text.strip_suffix(",optional").map_or((text, false), |name| (name, true));
    let name: UnitName = name.parse().map_err(|wrong: bowline_spec::Invalid| wrong.to_string())?;
    match name.kind() {
        UnitKind::Slice => Ok(Slice { name: name.to_string(), is_optional }),
        UnitKind::Service | UnitKind::Scope => Err(format!("{name} is no slice, as it does not end with .slice")),
    }
}
