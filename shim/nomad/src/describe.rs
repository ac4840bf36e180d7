//! The task description that stands for what Nomad asks for.
//!
//! ```text
//!   TaskConfig ─┬ options (msgpack) ─ placed by their table ─┐
//!               ├ resources ─ node ──────────────────────────┼─► JSON ─ parsed ─► description
//!               └ folders, network, user, environment ───────┘       └ refused ─► the option's name
//! ```
//!
//! The description's own rules are bowline-spec's; here are only Nomad's. Pure: touches nothing on the host.

mod names;
mod permitted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bowline_client::nomad_labels;
use bowline_model::{Error, Kind, Result};
use bowline_spec::capability::default_set;
use bowline_spec::names::{LOCALHOST, host_line, resolv_conf};
use bowline_spec::{Format, Invalid, Task};
use serde_json::{Map, Value, json};

use self::names::{Offsets, name_of};
use crate::node::{self, Limits};
use crate::options::TASK;
use crate::own_folder::Brought;
use crate::proto::driver::network_isolation_spec::NetworkIsolationMode;
use crate::proto::driver::{DnsConfig, Mount, NetworkIsolationSpec, Resources, TaskConfig};
use crate::schema::{self, place, set};
use crate::settings::Settings;
use crate::task_id;

/// Where Nomad's folders are in the task.
const FOLDERS: [(&str, &str); 3] = [("/alloc", "alloc"), ("/local", "local"), ("/secrets", "secrets")];

/// Where a command without a `/` is looked for before PATH: `lookupTaskBin` in Nomad's drivers/shared/executor.
const COMMAND_FOLDERS: [&str; 2] = ["/local", "/"];

/// As Nomad's `exec`: a task runs as this user unless its job names one.
const USER: &str = "nobody";
/// The user `nobody` by number, for a root that may lack the name.
const USER_OF_A_FOLDER: &str = "65534:65534";

/// The label that tells this start of the task from any other.
pub const NONCE: &str = "nomad.nonce";

/// The task to start, and what goes with it.
#[derive(Debug)]
pub struct Described {
    pub description: Task,
    /// Files that are bound into the task, with their text.
    pub files: Vec<(PathBuf, String)>,
    offsets: Offsets,
}

impl Described {
    /// Shows the task what its job has put into its folder, before all other mounts: what Nomad or the job mounts is what
    /// the task sees.
    pub fn bring(&mut self, mut brought: Vec<Brought>) {
        let mounts = &mut self.description.mounts;
        brought.retain(|one| !mounts.iter().any(|mount| one.inside.starts_with(&mount.destination)));
        self.offsets.brought = brought.len();
        self.offsets.mounts += brought.len();
        mounts.splice(0..0, brought.into_iter().map(shown));
    }

    /// `error` of the launch, with the name that a job has for the field that its message begins with, if it does.
    pub fn named(&self, error: Error) -> Error {
        let Some((field, rest)) = error.message().split_once(": ") else { return error };
        let renamed = Error::new(error.kind(), format!("{}: {rest}", name_of(field, self.offsets)));
        error.hint_text().into_iter().fold(renamed, |error, hint| error.hint(hint))
    }
}

/// What is not in the request.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    pub settings: &'a Settings,
    pub cgroup_v2: bool,
    pub nonce: &'a str,
}

/// Describes the task.
///
/// # Errors
/// `BadSpec` naming the option or the field of the job that is wrong.
pub fn describe(task: &TaskConfig, around: Around<'_>) -> Result<Described> {
    let options = schema::read(TASK, &task.msgpack_driver_config, "config")?;
    let folder = TaskFolder::of(task)?;
    let mut whole = Map::new();
    let files = folder.place(task, &options, &mut whole);
    let offsets = Offsets { brought: 0, mounts: length(&whole, "mounts"), devices: task.devices.len() };
    place_devices(task, &mut whole);
    let hard = options.get("cpu_hard_limit") == Some(&Value::Bool(true));
    place_defaults(task, around, &mut whole);
    place(TASK, &own_paths(options.clone(), &folder.path), &mut whole);
    place_image(&options, around.settings, &mut whole)?;
    place_limits(task, hard, around, &mut whole)?;
    place_labels(task, around.nonce, &mut whole)?;
    place_capabilities(around.settings, &mut whole);
    whole.entry("init").or_insert(true.into());
    let text = Value::Object(whole).to_string();
    let mut description = bowline_spec::parse(&text, Format::Json).map_err(|invalid| named(&invalid, offsets))?;
    permitted::check(&mut description, around.settings, offsets, &folder.path)?;
    Ok(Described { description, files, offsets })
}

fn shown(brought: Brought) -> bowline_spec::Mount {
    bowline_spec::Mount { source: Some(brought.source), destination: brought.inside, ..bowline_spec::Mount::default() }
}

/// The folders that Nomad has made for the task.
struct TaskFolder {
    allocation: PathBuf,
    path: PathBuf,
}

impl TaskFolder {
    fn of(task: &TaskConfig) -> Result<TaskFolder> {
        let allocation = PathBuf::from(&task.alloc_dir);
        let is_name = Path::new(&task.name).components().count() == 1 && !task.name.contains(['/', '\0']);
        if !allocation.is_absolute() || !is_name || task.name == ".." {
            let (dir, name) = (&task.alloc_dir, &task.name);
            return Err(Error::new(Kind::BadSpec, format!("task {name:?} has no folder in the allocation's, {dir:?}")));
        }
        Ok(TaskFolder { path: allocation.join(&task.name), allocation })
    }

    /// Puts Nomad's own mounts in place. Returns the files that are bound, unless the job mounts something there.
    fn place(
        &self,
        task: &TaskConfig,
        options: &Map<String, Value>,
        whole: &mut Map<String, Value>,
    ) -> Vec<(PathBuf, String)> {
        let mut mounts = Vec::new();
        for (inside, name) in FOLDERS {
            let source = if name == "alloc" { self.allocation.join(name) } else { self.path.join(name) };
            mounts.push(json!({"source": source, "destination": inside}));
        }
        let mut files = Vec::new();
        let network = task.network_isolation_spec.as_ref();
        let resolver = task.dns.as_ref().and_then(resolver).map(|text| ("resolv.conf", text));
        let hosts = network.and_then(hosts).map(|text| ("hosts", text));
        let asked = options.get("mount").and_then(Value::as_array).into_iter().flatten();
        let asked = asked.filter_map(|mount| mount.get("target")?.as_str());
        let volumes = task.mounts.iter().map(|mount| from_root(&mount.task_path));
        let taken: Vec<_> = asked.map(PathBuf::from).chain(volumes).collect();
        for (name, text) in resolver.into_iter().chain(hosts) {
            let (path, inside) = (self.path.join(name), Path::new("/etc").join(name));
            if taken.contains(&inside) {
                continue;
            }
            mounts.push(json!({"source": path, "destination": inside, "read_only": true}));
            files.push((path, text));
        }
        mounts.extend(task.mounts.iter().map(volume));
        whole.insert("mounts".to_owned(), mounts.into());
        files
    }
}

/// The place of a volume: Nomad takes a relative one from the root. One that climbs, the description refuses.
fn from_root(place: &str) -> PathBuf {
    if place.is_empty() { PathBuf::new() } else { Path::new("/").join(place) }
}

fn volume(mount: &Mount) -> Value {
    let propagation = match mount.propagation_mode.as_str() {
        "host-to-task" => "rslave",
        "bidirectional" => "rshared",
        "" | "private" => "rprivate",
        // Refused by the description, with its name.
        other => other,
    };
    json!({
        "source": mount.host_path,
        "destination": from_root(&mount.task_path),
        "read_only": mount.readonly,
        "propagation": propagation,
    })
}

/// The text of `/etc/resolv.conf`.
fn resolver(dns: &DnsConfig) -> Option<String> {
    Some(resolv_conf(&dns.servers, &dns.searches, &dns.options)).filter(|text| !text.is_empty())
}

/// The text of `/etc/hosts` in the network of a group.
fn hosts(network: &NetworkIsolationSpec) -> Option<String> {
    let host = network.hosts_config.as_ref().filter(|host| !host.hostname.is_empty() && !host.address.is_empty())?;
    Some(LOCALHOST.to_owned() + &host_line(&host.address, &host.hostname))
}

fn place_devices(task: &TaskConfig, whole: &mut Map<String, Value>) {
    let each = task.devices.iter().map(|device| {
        let mut placed = json!({"path": device.task_path, "host_path": device.host_path});
        if !device.cgroup_permissions.is_empty() {
            placed["access"] = device.cgroup_permissions.clone().into();
        }
        placed
    });
    whole.insert("devices".to_owned(), each.collect::<Vec<_>>().into());
}

/// What the options can change.
fn place_defaults(task: &TaskConfig, around: Around<'_>, whole: &mut Map<String, Value>) {
    let settings = around.settings;
    let env: BTreeMap<_, _> = task.env.iter().chain(&task.device_env).collect();
    set(whole, "name", task_id::of(&task.id).as_str().into());
    set(whole, "env", json!(env));
    // The network's or the host's name, and Nomad's own files.
    set(whole, "hostname", "".into());
    set(whole, "names.files", false.into());
    set(whole, "pids", settings.pids_limit.into());
    set(whole, "namespaces.pid", settings.default_pid_mode.clone().into());
    set(whole, "namespaces.ipc", settings.default_ipc_mode.clone().into());
    set(whole, "stop.signal", "SIGINT".into());
    set(whole, "log.format", "none".into());
    set(whole, "command_folders", json!(COMMAND_FOLDERS));
    for (stream, path) in [("output.stdout", &task.stdout_path), ("output.stderr", &task.stderr_path)] {
        // Nomad names its FIFOs even where it makes none.
        if !settings.disable_log_collection && !path.is_empty() && path != "/dev/null" {
            set(whole, stream, path.clone().into());
        }
    }
    let network = task.network_isolation_spec.as_ref().filter(|spec| spec.mode() != NetworkIsolationMode::Host);
    if let Some(network) = network.filter(|spec| !spec.path.is_empty()) {
        set(whole, "namespaces.network", network.path.clone().into());
        let hostname = network.hosts_config.as_ref().map_or("", |host| &host.hostname);
        if !hostname.is_empty() {
            set(whole, "hostname", hostname.into());
        }
    }
}

/// Sources of mounts within the task's own folder are named without the way to it; a device is where it is on the host.
fn own_paths(mut options: Map<String, Value>, folder: &Path) -> Map<String, Value> {
    for mount in options.get_mut("mount").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(source) = mount.get("source").and_then(Value::as_str).map(PathBuf::from) {
            mount["source"] = json!(folder.join(source));
        }
    }
    for device in options.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten() {
        let (host, inside) = (device["host_path"].clone(), device.get("container_path"));
        if inside.and_then(Value::as_str).is_none_or(str::is_empty) {
            device["container_path"] = host;
        }
        if device.get("cgroup_permissions") == Some(&Value::from("")) {
            device.as_object_mut().map(|device| device.remove("cgroup_permissions"));
        }
    }
    options
}

fn place_image(options: &Map<String, Value>, settings: &Settings, whole: &mut Map<String, Value>) -> Result<()> {
    let image = options.get("image").and_then(Value::as_str).unwrap_or("host");
    let wrong = |why: String| Err(Error::new(Kind::BadSpec, format!("config.image: {why}")));
    let is_host = image == "host";
    if !is_host && !image.starts_with('/') {
        return wrong(format!("{image:?} is neither \"host\" nor the absolute path of a folder"));
    }
    if !is_host && !settings.allow_host_paths {
        return wrong(format!("{image} is a folder of the host, and the agent does not set allow_host_paths"));
    }
    if !is_host {
        set(whole, "rootfs", image.into());
    }
    Ok(())
}

fn place_limits(task: &TaskConfig, hard: bool, around: Around<'_>, whole: &mut Map<String, Value>) -> Result<()> {
    let none = Resources::default();
    let limits = Limits::of(task.resources.as_ref().unwrap_or(&none), around.settings.topology, hard)?;
    let mut place = |field: &str, value: Option<Value>| value.into_iter().for_each(|value| set(whole, field, value));
    place("cpu.shares", limits.shares.map(Value::from));
    place("cpu.limit", limits.cpus.map(Value::from));
    place("cpu.cpuset", limits.cpuset.map(Value::from));
    place("memory.limit", limits.memory.map(Value::from));
    place("memory.low", limits.memory_low.map(Value::from));
    place("cgroup", node::cgroup(task, around.cgroup_v2).map(Value::from));
    let user = match (task.user.as_str(), whole.contains_key("rootfs")) {
        ("", false) => USER,
        ("", true) => USER_OF_A_FOLDER,
        (named, _) => named,
    };
    set(whole, "user", user.into());
    name_user(user, whole);
    Ok(())
}

/// Sets USER and LOGNAME, as Nomad's own driver does, where the job does not.
fn name_user(user: &str, whole: &mut Map<String, Value>) {
    let name = user.split(':').next().unwrap_or_default();
    // One that a number names may have any name.
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return;
    }
    if let Some(env) = whole.get_mut("env").and_then(Value::as_object_mut) {
        for key in ["USER", "LOGNAME"] {
            env.entry(key).or_insert_with(|| name.into());
        }
    }
}

fn place_labels(task: &TaskConfig, nonce: &str, whole: &mut Map<String, Value>) -> Result<()> {
    let ours = [
        (nomad_labels::JOB, &task.job_name),
        (nomad_labels::GROUP, &task.task_group_name),
        (nomad_labels::TASK, &task.name),
        (nomad_labels::ALLOCATION, &task.alloc_id),
        (nomad_labels::NAMESPACE, &task.namespace),
        (nomad_labels::ID, &task.id),
        (NONCE, &nonce.to_owned()),
    ];
    let labels = whole.entry("labels").or_insert_with(|| Map::new().into());
    let Value::Object(labels) = labels else { return Ok(()) };
    for (name, value) in ours {
        if labels.insert(name.to_owned(), value.clone().into()).is_some() {
            return Err(Error::new(Kind::BadSpec, format!("config.labels.{name}: the driver sets this label")));
        }
    }
    Ok(())
}

/// The default capabilities that the agent does not allow are no task's.
fn place_capabilities(settings: &Settings, whole: &mut Map<String, Value>) {
    let denied =
        default_set().difference(&settings.allow_caps).map(|name| Value::from(name.name())).collect::<Vec<_>>();
    if !denied.is_empty() {
        set(whole, "capabilities.drop", denied.into());
    }
}

fn length(whole: &Map<String, Value>, list: &str) -> usize {
    whole.get(list).and_then(Value::as_array).map_or(0, Vec::len)
}

/// The error for what a description does not allow, by the name that a job has for it.
fn named(invalid: &Invalid, offsets: Offsets) -> Error {
    Error::new(Kind::BadSpec, format!("{}: {}", name_of(&invalid.field, offsets), invalid.reason))
}

#[cfg(test)]
mod tests;
