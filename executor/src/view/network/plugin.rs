//! Runs one CNI plugin: finds it by its name, runs it once, and reads what it says.
//!
//! A plugin reads its configuration from stdin and its parameters from environment variables, answers on stdout,
//! and logs on stderr. `bounded_run` limits its time and its output.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::watch::MARKER;
use bowline_sys::Ended;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bounded_run::{self, Bounds, ProgramOutput, told};
use super::rules;
use super::version::NEWEST;
use crate::process::program::Program;

/// How long a plugin may take unless the caller says otherwise: it may wait for a lock, or for a DHCP server.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Those of the standard plugins that run iptables.
const RUN_IPTABLES: [&str; 3] = ["bridge", "firewall", "portmap"];

/// The folders with the plugins, and how long each plugin may take.
#[derive(Debug, Clone, Copy)]
pub struct Plugins<'a> {
    pub folders: &'a [PathBuf],
    pub bounds: Bounds<'a>,
}

/// The parameters of a call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// "ADD", "CHECK", "DEL" or "VERSION".
    pub command: &'static str,
    pub id: &'a str,
    /// The namespace; `None` once it is gone.
    pub netns: Option<&'a Path>,
    pub interface: &'a str,
    /// Pairs, as plugins take them.
    pub args: &'a str,
}

/// Why a plugin has failed.
#[derive(Debug)]
pub struct Failed {
    pub error: Error,
    /// Whether the plugin reported the failure itself, as CNI wants it: then it has cleaned up.
    pub orderly: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, orderly: false }
    }
}

/// A plugin's report that it failed.
#[derive(Deserialize)]
struct Failure {
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl Plugins<'_> {
    /// Finds the program of the plugin `kind`: the first one in the folders.
    ///
    /// # Errors
    /// `Unsupported`, with the folders, when it is in none.
    pub fn find(&self, kind: &str) -> Result<PathBuf> {
        if kind.is_empty() || kind.contains('/') || kind == ".." {
            return Err(Error::new(Kind::BadSpec, format!("{kind:?} is not a network plugin's name")));
        }
        let found = self.folders.iter().map(|folder| folder.join(kind)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            let message = format!("cannot find the network plugin {kind} in {}", folders.join(", "));
            let hint = "install containernetworking-plugins, as Debian calls them, or name their folder by \
                        network.plugin_folders";
            Error::new(Kind::Unsupported, message).hint(hint)
        })
    }

    /// Runs ADD.
    ///
    /// # Errors
    /// As [`Plugins::tell`]; also `Internal`, with the beginning of the answer, if the answer is not a result.
    pub fn ask(&self, kind: &str, call: Call<'_>, config: &Value) -> std::result::Result<Value, Failed> {
        let said = self.run(kind, call, config)?;
        result_of(&said.answer, config).ok_or_else(|| garbage(kind, call.command, &said).into())
    }

    /// Runs CHECK or DEL, which have no answer.
    ///
    /// # Errors
    /// `Unsupported` for a plugin that is missing; `Timeout`; else the plugin's own error, with its code:
    /// `Unsupported` for a version that it lacks, `BadSpec` for a configuration that it does not accept, `Internal`
    /// for the rest.
    pub fn tell(&self, kind: &str, call: Call<'_>, config: &Value) -> Result<()> {
        self.run(kind, call, config).map(drop).map_err(|failed| failed.error)
    }

    /// The versions of CNI that a plugin supports.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>> {
        // Old plugins want every variable to have some value.
        let dummy = "dummy";
        let call = Call { command: "VERSION", id: dummy, netns: Some(Path::new(dummy)), interface: dummy, args: "" };
        let said = self.run(kind, call, &json!({"cniVersion": NEWEST})).map_err(|failed| failed.error)?;
        versions_in(&said.answer).ok_or_else(|| garbage(kind, call.command, &said))
    }

    /// Runs the plugin, and fails unless it succeeds.
    fn run(&self, kind: &str, call: Call<'_>, config: &Value) -> std::result::Result<ProgramOutput, Failed> {
        let path = self.find(kind)?;
        let what = || format!("network plugin {kind} failed at {}", call.command);
        let said = self.run_to_end(&path, call, config).map_err(|error| error.within(what()))?;
        let how = match said.ended {
            Ended::Exited(0) => return Ok(said),
            Ended::Exited(code) => format!("exit code {code}"),
            Ended::Signaled(signal) => format!("killed by signal {signal}"),
            Ended::Unknown => "its end is not known".to_owned(),
        };
        if let Some(error) = failure_in(&said.answer) {
            let error = error.within(what());
            let error = match RUN_IPTABLES.contains(&kind) && rules::find("iptables").is_none() {
                true => error.hint("install iptables, which this plugin runs"),
                false => error,
            };
            return Err(Failed { error, orderly: true });
        }
        let answer = String::from_utf8_lossy(&said.answer);
        let said = if answer.is_empty() { &*said.log } else { &*answer };
        let said = if said.is_empty() { "nothing".to_owned() } else { format!("{:?}", told(said)) };
        Err(Error::new(Kind::Internal, format!("{}: {how}, and it said {said}", what())).into())
    }

    fn environment(&self, call: Call<'_>) -> Vec<OsString> {
        let folders: Vec<OsString> = self.folders.iter().map(|folder| folder.clone().into_os_string()).collect();
        let netns = call.netns.map(|path| path.as_os_str().to_owned()).unwrap_or_default();
        let all: [(&str, OsString); 7] = [
            ("PATH", bounded_run::path()),
            ("CNI_COMMAND", call.command.into()),
            ("CNI_CONTAINERID", call.id.into()),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", call.interface.into()),
            ("CNI_ARGS", call.args.into()),
            ("CNI_PATH", folders.join(":".as_ref())),
        ];
        // With this mark, processes that a plugin leaves running are expected in the shim's cgroup.
        let mark = std::env::var_os(MARKER).map(|value| (MARKER, value));
        all.into_iter().chain(mark).map(|(name, value)| [name.into(), value].join("=".as_ref())).collect()
    }

    fn run_to_end(&self, path: &Path, call: Call<'_>, config: &Value) -> Result<ProgramOutput> {
        let text = serde_json::to_vec(config).doing(Kind::Internal, || "cannot write its configuration")?;
        bounded_run::run(Program::new(path, [path], self.environment(call))?.reading(&text)?, self.bounds)
    }
}

/// The result in the answer to an ADD with `config`.
pub fn result_of(answer: &[u8], config: &Value) -> Option<Value> {
    let Ok(Value::Object(mut result)) = serde_json::from_slice(answer) else { return None };
    // An old plugin's result may name no version; it then has the configuration's.
    result.entry("cniVersion").or_insert_with(|| config["cniVersion"].clone());
    Some(Value::Object(result))
}

/// The versions in the answer to VERSION.
pub fn versions_in(answer: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Versions {
        cni_version: String,
        #[serde(default)]
        supported_versions: Vec<String>,
    }
    let Versions { cni_version, supported_versions } = serde_json::from_slice(answer).ok()?;
    // 0.2.0, the first version that has VERSION, need not list any.
    if supported_versions.is_empty() && cni_version == "0.2.0" {
        return Some(vec!["0.1.0".to_owned(), cni_version]);
    }
    Some(supported_versions).filter(|versions| !versions.is_empty())
}

/// The failure that a plugin reports in its answer.
pub fn failure_in(answer: &[u8]) -> Option<Error> {
    let Failure { code, msg, details } = serde_json::from_slice(answer).ok()?;
    let parts = [Some(told(&msg)), (!details.is_empty()).then(|| told(&details))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Some(Error::new(kind_of(code), format!("code {code}: {}", parts.join(": "))))
}

/// The error kind for a code of the specification.
fn kind_of(code: u64) -> Kind {
    match code {
        // A version, or a field, that the plugin does not know.
        1 | 2 => Kind::Unsupported,
        // Input that the plugin cannot decode, or a configuration that makes no sense.
        6 | 7 => Kind::BadSpec,
        _ => Kind::Internal,
    }
}

fn garbage(kind: &str, command: &str, said: &ProgramOutput) -> Error {
    let said = if said.answer.is_empty() {
        "nothing".to_owned()
    } else {
        format!("{:?}", told(&String::from_utf8_lossy(&said.answer)))
    };
    Error::new(
        Kind::Internal,
        format!("network plugin {kind} failed at {command}: it said {said} in place of an answer"),
    )
}

#[cfg(test)]
mod tests;
