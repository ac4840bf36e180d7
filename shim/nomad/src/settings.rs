//! What the agent's configuration says about this driver, and what the agent knows of its node.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bowline_client::spawn::Programs;
use bowline_client::{Client, STATE};
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::capability::{Capability, default_set};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::proto::base::{ClientTopology, ClientTopologyCore, SetConfigRequest};
use crate::schema::{self, Field, Form};

/// The options of the block `plugin "nomad-driver-bowline" { config { … } }`.
pub const AGENT: &[Field] = &[
    Field::new("enabled", Form::Flag, "", "Whether jobs can use the driver.").or("true"),
    Field::new(
        "bin_dir",
        Form::Text,
        "",
        "Where `bowline-shim`, `bowline-init` and `bowline` are; by default in the plugin's folder, then the agent's \
         `PATH`.",
    ),
    Field::new(
        "state_dir",
        Form::Text,
        "",
        "The state folder, for `bowline --state`; by default `BOWLINE_STATE` of the agent's environment, else \
         `/run/bowline`. Running tasks stay in theirs.",
    ),
    Field::new(
        "allow_caps",
        Form::List,
        "",
        "Capabilities that a job may name in `cap_add`, or `all`; by default the 13 that a task has anyway.",
    ),
    Field::new(
        "allow_privileged",
        Form::Flag,
        "",
        "Whether jobs may use the host's devices, its pid and ipc namespaces, `unconfined` filters, set-user-ID bits, \
         and a negative `oom_score_adj`.",
    )
    .or("false"),
    Field::new(
        "allow_host_paths",
        Form::Flag,
        "",
        "Whether jobs may name host folders and files in `image`, `mount` and `seccomp`.",
    )
    .or("false"),
    Field::new(
        "allow_root",
        Form::Flag,
        "",
        "Whether a job's `user` may be root, which Nomad forbids its own drivers.",
    )
    .or("false"),
    Field::new(
        "disable_log_collection",
        Form::Flag,
        "",
        "Whether Nomad starts no logmon, of 16 MB, for each task. `nomad alloc logs` then shows nothing, and output is \
         lost. For one task: `logs { disabled = true }` in its job.",
    )
    .or("false"),
    Field::new("pids_limit", Form::Number, "", "The default of a task's `pids_limit`.").or("4096"),
    Field::new("default_pid_mode", Form::Text, "", "The default of a task's `pid_mode`: `private` or `host`.")
        .or("\"private\""),
    Field::new("default_ipc_mode", Form::Text, "", "The default of a task's `ipc_mode`.").or("\"private\""),
];

#[derive(Debug, Clone)]
pub struct Settings {
    pub enabled: bool,
    pub bin_dir: Option<PathBuf>,
    pub state_dir: PathBuf,
    pub allow_caps: BTreeSet<Capability>,
    pub allow_privileged: bool,
    pub allow_host_paths: bool,
    pub allow_root: bool,
    pub disable_log_collection: bool,
    pub pids_limit: u64,
    pub default_pid_mode: String,
    pub default_ipc_mode: String,
    pub topology: Topology,
    /// Where bowline's programs are, and what is known of them.
    pub programs: Programs,
}

/// The CPUs of the node, as the agent counts them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Topology {
    /// How many cores there are.
    pub cores: u32,
    /// What they can do together, in MHz; 0 where the agent has not told.
    pub total_mhz: u64,
}

/// As they are written, without their defaults: a host may leave those to us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    enabled: Option<bool>,
    bin_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    allow_caps: Option<Vec<String>>,
    allow_privileged: bool,
    allow_host_paths: bool,
    allow_root: bool,
    disable_log_collection: bool,
    pids_limit: Option<u64>,
    default_pid_mode: Option<String>,
    default_ipc_mode: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enabled: true,
            bin_dir: None,
            state_dir: std::env::var_os("BOWLINE_STATE").map_or_else(|| STATE.into(), PathBuf::from),
            allow_caps: default_set(),
            allow_privileged: false,
            allow_host_paths: false,
            allow_root: false,
            disable_log_collection: false,
            pids_limit: bowline_spec::DEFAULT_PIDS,
            default_pid_mode: "private".to_owned(),
            default_ipc_mode: "private".to_owned(),
            topology: Topology { cores: cores(), total_mhz: 0 },
            programs: Programs::default().for_many(),
        }
    }
}

impl Settings {
    /// The settings that the agent sends.
    ///
    /// # Errors
    /// `BadSpec` naming the option.
    pub fn of(request: &SetConfigRequest) -> Result<Settings> {
        let values = match request.msgpack_config.as_slice() {
            // An agent without a `config` block.
            [] => Map::new(),
            packed => schema::read(AGENT, packed, "config")?,
        };
        let driver = request.nomad_config.as_ref().and_then(|config| config.driver.as_ref());
        let topology = driver.and_then(|driver| driver.topology.as_ref());
        Ok(Settings::written(values)?.on(topology))
    }

    fn written(values: Map<String, Value>) -> Result<Settings> {
        let wrong = |option: &str, why: String| Error::new(Kind::BadSpec, format!("config.{option}: {why}"));
        let written: Written =
            serde_json::from_value(Value::Object(values)).doing(Kind::BadSpec, || "config: cannot be read")?;
        let defaults = Settings::default();
        let shim = written.bin_dir.as_ref().map(|folder| folder.join("bowline-shim"));
        let settings = Settings {
            enabled: written.enabled.unwrap_or(defaults.enabled),
            bin_dir: written.bin_dir,
            programs: shim.map_or(defaults.programs, |shim| Programs::with_shim(shim).for_many()),
            state_dir: written.state_dir.unwrap_or(defaults.state_dir),
            allow_caps: match written.allow_caps {
                Some(names) => allowed(&names).map_err(|why| wrong("allow_caps", why))?,
                None => defaults.allow_caps,
            },
            allow_privileged: written.allow_privileged,
            allow_host_paths: written.allow_host_paths,
            allow_root: written.allow_root,
            disable_log_collection: written.disable_log_collection,
            pids_limit: written.pids_limit.unwrap_or(defaults.pids_limit),
            default_pid_mode: written.default_pid_mode.unwrap_or(defaults.default_pid_mode),
            default_ipc_mode: written.default_ipc_mode.unwrap_or(defaults.default_ipc_mode),
            topology: defaults.topology,
        };
        for (option, path) in [("state_dir", Some(&settings.state_dir)), ("bin_dir", settings.bin_dir.as_ref())] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(wrong(option, format!("{} is not an absolute path", path.display())));
            }
        }
        for (option, mode) in
            [("default_pid_mode", &settings.default_pid_mode), ("default_ipc_mode", &settings.default_ipc_mode)]
        {
            if !["private", "host"].contains(&mode.as_str()) {
                return Err(wrong(option, format!("{mode:?} is neither \"private\" nor \"host\"")));
            }
        }
        if settings.pids_limit == 0 {
            return Err(wrong("pids_limit", "is 0; a task needs at least 1".to_owned()));
        }
        Ok(settings)
    }

    fn on(self, topology: Option<&ClientTopology>) -> Settings {
        let topology = topology.map_or(self.topology, Topology::of);
        Settings { topology, ..self }
    }

    /// How tasks are started and found.
    ///
    /// # Errors
    /// `WrongState` where others may write to the state folder.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(&self.state_dir)?.with_programs(self.programs()))
    }

    pub fn programs(&self) -> Programs {
        self.programs.clone()
    }

    pub fn state(&self) -> StateDir {
        StateDir::new(&self.state_dir)
    }
}

fn allowed(names: &[String]) -> std::result::Result<BTreeSet<Capability>, String> {
    if names.iter().any(|name| name.eq_ignore_ascii_case("all")) {
        return Ok(Capability::all());
    }
    names.iter().map(|name| name.parse().map_err(|invalid: bowline_spec::Invalid| invalid.reason)).collect()
}

impl Topology {
    /// As Nomad sums it up: what a person has overridden, else each core's speed (client/lib/numalib).
    fn of(told: &ClientTopology) -> Topology {
        let speed = |core: &ClientTopologyCore| {
            let known = [core.base_speed, core.max_speed, core.guess_speed].into_iter().find(|mhz| *mhz > 0);
            known.unwrap_or(0)
        };
        let usable = || told.cores.iter().filter(|core| !core.disable);
        let summed = usable().map(speed).sum();
        let total_mhz = if told.override_total_compute > 0 { told.override_total_compute } else { summed };
        let found = u32::try_from(usable().count()).unwrap_or(u32::MAX);
        Topology { cores: if found > 0 { found } else { cores() }, total_mhz }
    }
}

/// How many CPUs this process may use, at least one.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(values: Value) -> Result<Settings> {
        let Value::Object(values) = values else { panic!() };
        Settings::written(values)
    }

    #[test]
    fn what_is_not_written_is_the_safe_default() {
        let settings = Settings::of(&SetConfigRequest::default()).unwrap();
        assert!(settings.enabled && !settings.allow_privileged && !settings.allow_host_paths);
        assert_eq!((settings.allow_caps.len(), settings.pids_limit), (13, 4096));
        assert!(settings.state().path().is_absolute());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (values, text) in [
            (json!({"allow_caps": ["NOPE"]}), "config.allow_caps: NOPE is not a capability"),
            (json!({"state_dir": "run"}), "config.state_dir: run is not an absolute path"),
            (json!({"default_pid_mode": "shared"}), "config.default_pid_mode: \"shared\" is neither"),
            (json!({"pids_limit": 0}), "config.pids_limit: is 0"),
            (json!({"pids_limit": -1}), "config: cannot be read"),
        ] {
            let error = written(values).unwrap_err();
            assert!(error.message().starts_with(text), "{error}");
        }
        assert_eq!(written(json!({"allow_caps": ["all"]})).unwrap().allow_caps.len(), 41);
    }

    #[test]
    fn the_node_can_do_what_its_cores_can() {
        let core = |base_speed, guess_speed, disable| ClientTopologyCore {
            base_speed,
            guess_speed,
            disable,
            ..ClientTopologyCore::default()
        };
        let cores = vec![core(2000, 0, false), core(0, 3000, false), core(2000, 0, true)];
        let told = ClientTopology { cores, ..ClientTopology::default() };
        assert_eq!(Topology::of(&told), Topology { cores: 2, total_mhz: 5000 });
        let told = ClientTopology { override_total_compute: 9000, ..told };
        assert_eq!(Topology::of(&told).total_mhz, 9000);
    }
}
