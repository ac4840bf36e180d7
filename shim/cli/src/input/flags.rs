//! From flags to a description: what each flag of `run` and `start` is there, on top of what a file says.
//!
//!   TaskArgs ─ Flags::of: files and folders are looked at ─► Flags ─ lay_on ─► the description
//!
//! Flags win over the file, and `--set` over both. Must not: launch anything.

use bowline_executor::secrets::Secrets;
use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::values::{ByteSize, Ceiling};
use bowline_spec::{Healthcheck, Mount, Namespace, Network, NetworkMode, Task, TaskProfile};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::input::args::task::{FileFlags, HealthFlags, IsolationFlags, TaskArgs};
use crate::input::args::update::LimitFlags;
use crate::input::cdi::gpus::Gpus;
use crate::input::description::of_command_line;
use crate::input::environment;
use crate::input::limits;
use crate::input::mounts::{self, AskedDevice};
use crate::input::network::Ports;
use crate::input::secrets;
use crate::input::security::SecurityOpt;
use crate::input::set::{self, Parse, Setting};

/// Flags whose files and folders have been looked at.
pub struct Flags {
    args: TaskArgs,
    env: Vec<(String, String)>,
    mounts: Vec<Mount>,
    secrets: Secrets,
}

impl Flags {
    /// Reads what the flags name.
    ///
    /// # Errors
    /// `Usage` for an env file that is wrong, or a secret that is too large; `NotFound` for a source of a mount, an env
    /// file or a secret that does not exist.
    pub fn of(mut args: TaskArgs) -> Result<Flags> {
        let secrets = secrets::read(&args.secret, &mut args.env_file)?;
        let env = environment::variables(&args.env_file, std::mem::take(&mut args.env))?;
        if let Some(rootfs) = &mut args.files.rootfs {
            *rootfs = std::path::absolute(&*rootfs).doing(Kind::Usage, || "--rootfs: not a path")?;
        }
        if let Some(bundle) = &mut args.bundle {
            *bundle = std::path::absolute(&*bundle).doing(Kind::Usage, || "--bundle: not a path")?;
        }
        let FileFlags { volume, mount, tmpfs, shm_size, .. } = &mut args.files;
        tmpfs.extend(shm_size.take());
        let mut mounts: Vec<Mount> = [volume, mount, tmpfs].into_iter().flat_map(std::mem::take).collect();
        // What is mounted below another comes later, in whatever order they are typed.
        mounts.sort_by_key(|mount| mount.destination.components().count());
        Ok(Flags { env, mounts: mounts::with_sources(mounts)?, secrets, args })
    }

    /// What has no place in a description.
    pub fn take_secrets(&mut self) -> Secrets {
        std::mem::take(&mut self.secrets)
    }

    /// Sets what the flags say in `task`.
    ///
    /// # Errors
    /// `Usage` for flags that need others, and for a field that `--set` cannot set.
    pub fn lay_on(self, task: &mut Task) -> Result<()> {
        let Flags { args, env, mounts, secrets: _ } = self;
        if let Some(entrypoint) = args.entrypoint {
            (task.command, task.args) = (entrypoint, args.command);
        } else if let Some((command, rest)) = args.command.split_first() {
            task.command.clone_from(command);
            task.args = rest.to_vec();
        }
        task.bundle = args.bundle.or(task.bundle.take());
        task.name = args.name.or(task.name.take());
        task.env.extend(env);
        task.workdir = args.workdir.or(task.workdir.take());
        task.labels.extend(args.label);
        task.init = args.init.or(task.init);
        task.stdin |= args.interactive;
        task.terminal |= args.tty;
        if let (true, Ok(term)) = (args.tty, std::env::var("TERM")) {
            task.env.entry("TERM".to_owned()).or_insert(term);
        }
        task.timeout = args.timeout.or(task.timeout);
        task.stop.signal = args.stop_signal.or(task.stop.signal);
        task.stop.grace = args.stop_timeout.or(task.stop.grace);
        let memory_swap = limits(task, args.limits)?;
        task.oom_score_adj = args.process.oom_score_adj.or(task.oom_score_adj);
        task.rlimits.extend(args.process.ulimit);
        task.mounts.extend(mounts);
        let ephemeral = args.files.ephemeral;
        files(task, args.files);
        isolation(task, args.isolation);
        health(task, args.health)?;
        task.log.format = args.log.format.or(task.log.format);
        task.log.max_size = args.log.size.or(task.log.max_size);
        task.log.max_files = args.log.files.or(task.log.max_files);
        set_all(task, &args.set, bowline_spec::parse, TASK_FIELDS)?;
        let memory = task.settled().memory.limit;
        if let (Some(both), None) = (memory_swap, task.memory.swap) {
            task.memory.swap = Some(limits::swap(memory, both)?);
            task.memory.limit = memory;
        }
        if ephemeral.is_some() {
            task.ephemeral.get_or_insert(half(memory));
        }
        Ok(())
    }
}

/// Sets the limits that the flags name, but `--memory-swap`: the profile and `--set` may limit memory too. Returns that.
fn limits(task: &mut Task, mut flags: LimitFlags) -> Result<Option<Ceiling<ByteSize>>> {
    let both = flags.memory_swap.take();
    if both.is_some() {
        task.memory.swap = None;
    }
    limits::named(flags, || Ok(None))?.lay_on(task);
    Ok(both)
}

/// The default size of an ephemeral root. The filesystem is full before the task is out of memory.
fn half(memory: Option<ByteSize>) -> ByteSize {
    memory.map_or(ByteSize::mib(1024), |limit| ByteSize::bytes(limit.as_u64() / 2))
}

fn files(task: &mut Task, flags: FileFlags) {
    task.rootfs = flags.rootfs.or(task.rootfs.take());
    if let Some(size) = flags.ephemeral {
        task.ephemeral = size;
    }
    if flags.read_only {
        task.readonly_rootfs = Some(true);
    }
    for device in flags.device {
        match device {
            AskedDevice::Node(node) => task.devices.push(node),
            AskedDevice::Cdi(device) => task.cdi_devices.push(device),
        }
    }
    task.cdi_devices.extend(flags.gpus.into_iter().flat_map(|Gpus(devices)| devices));
}

fn isolation(task: &mut Task, flags: IsolationFlags) {
    task.user = flags.user.or(task.user.take());
    add(&mut task.groups, flags.group_add);
    task.profile = flags.untrusted.then_some(TaskProfile::Untrusted).or(task.profile);
    network(task, flags.network);
    task.network.ports.extend(flags.publish.into_iter().flat_map(|Ports(ports)| ports));
    task.namespaces.ipc = flags.ipc.or(task.namespaces.ipc.take());
    task.namespaces.pid = flags.pid.or(task.namespaces.pid.take());
    task.sysctls.extend(flags.sysctl);
    task.hostname = flags.hostname.or(task.hostname.take());
    add(&mut task.names.hosts, flags.add_host);
    add(&mut task.names.servers, flags.dns);
    add(&mut task.names.search, flags.dns_search);
    add(&mut task.names.options, flags.dns_option);
    add(&mut task.capabilities.add, flags.cap_add);
    add(&mut task.capabilities.drop, flags.cap_drop);
    for option in flags.security_opt {
        match option {
            SecurityOpt::Seccomp(seccomp) => task.seccomp = Some(seccomp),
            SecurityOpt::Apparmor(profile) => task.apparmor = Some(profile),
            SecurityOpt::NoNewPrivileges(on) => task.no_new_privs = Some(on),
        }
    }
}

/// What docker's single word is here: a namespace of the task's, or a network that is made for it.
fn network(task: &mut Task, mode: Option<NetworkMode>) {
    let Some(mode) = mode else { return };
    let network = std::mem::take(&mut task.network);
    task.namespaces.network = match mode {
        NetworkMode::Bridge | NetworkMode::Cni => {
            task.network = Network { mode: Some(mode), ..network };
            None
        }
        NetworkMode::Host => Some(Namespace::Host),
        NetworkMode::None => Some(Namespace::Private),
        NetworkMode::Path(path) => Some(Namespace::Path(path)),
    };
}

/// Adds entries that are not there yet.
fn add<T: PartialEq>(to: &mut Vec<T>, entries: Vec<T>) {
    for entry in entries {
        if !to.contains(&entry) {
            to.push(entry);
        }
    }
}

fn health(task: &mut Task, flags: HealthFlags) -> Result<()> {
    if flags.no_healthcheck {
        task.healthcheck = None;
    }
    if let Some(command) = flags.health_cmd {
        let exec = ["/bin/sh".to_owned(), "-c".to_owned(), command].into();
        task.healthcheck = Some(Healthcheck { exec, ..task.healthcheck.take().unwrap_or_default() });
    }
    let how = Healthcheck {
        interval: flags.health_interval,
        timeout: flags.health_timeout,
        retries: flags.health_retries,
        start_period: flags.health_start_period,
        start_interval: flags.health_start_interval,
        on_unhealthy: flags.health_on_failure.unwrap_or_default(),
        ..Healthcheck::default()
    };
    let Some(check) = &mut task.healthcheck else {
        let message = "flags that begin with --health- say how a check is made, and there is none";
        let error = Error::new(Kind::Usage, message).hint("name its command by --health-cmd 'test -e /tmp/ready'");
        return if how == Healthcheck::default() { Ok(()) } else { Err(error) };
    };
    check.interval = how.interval.or(check.interval);
    check.timeout = how.timeout.or(check.timeout);
    check.retries = how.retries.or(check.retries);
    check.start_period = how.start_period.or(check.start_period);
    check.start_interval = how.start_interval.or(check.start_interval);
    check.on_unhealthy = flags.health_on_failure.unwrap_or(check.on_unhealthy);
    Ok(())
}

/// Where the fields of a task are explained.
pub const TASK_FIELDS: &str = "docs/reference.md and `bowline schema` have every field and its form";

/// Where the fields of a sandbox are explained.
pub const SANDBOX_FIELDS: &str =
    "docs/sandbox-reference.md and `bowline schema --sandbox` have every field and its form";

/// Sets what `--set` says in a description, whose fields are explained in `reference`.
///
/// # Errors
/// `Usage` naming the field.
pub fn set_all<T: Serialize + DeserializeOwned>(
    described: &mut T,
    settings: &[Setting],
    parse: Parse<T>,
    reference: &str,
) -> Result<()> {
    let one = |setting| set::set(described, setting, parse);
    settings.iter().try_for_each(one).map_err(|invalid| of_command_line(&invalid).within("--set").hint(reference))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_what_is_left_of_both() {
        let size = |text: &str| text.parse::<ByteSize>().expect("a size");
        let of = |memory: Option<&str>, both: &str| limits::swap(memory.map(size), Ceiling::At(size(both)));
        assert_eq!(of(Some("64M"), "128M").expect("enough"), Ceiling::At(size("64M")));
        assert_eq!(of(Some("64M"), "64M").expect("none"), Ceiling::At(size("0")));
        assert_eq!(limits::swap(None, Ceiling::Unlimited).expect("no limit"), Ceiling::Unlimited);
        assert_eq!(of(Some("64M"), "32M").expect_err("less").kind(), Kind::Usage);
        assert_eq!(of(None, "32M").expect_err("of what").kind(), Kind::Usage);
    }
}
