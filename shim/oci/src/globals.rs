//! What all commands have in common: the flags before the command, the state folder, the log.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use bowline_cgroup::Driver;
use bowline_executor::internal::{Containers, in_first_user_namespace};
use bowline_executor::systemd::Systemd;
use bowline_model::{Doing, Error, Kind, Result, trust};
use jiff::Timestamp;
use serde_json::json;
use tracing::Level;

use crate::arguments::{Flag, Given, switch, usage, value};

/// The flags before the command.
pub const FLAGS: &[Flag] = &[
    value(&["root"]),
    value(&["log"]),
    value(&["log-format"]),
    value(&["log-level"]),
    switch(&["debug"]),
    switch(&["systemd-cgroup"]),
    value(&["cgroup-manager"]),
    value(&["criu"]),
    value(&["rootless"]),
    switch(&["version", "v", "V"]),
    switch(&["help", "h"]),
];

/// The state folder of the real root.
const STATE: &str = "/run/bowline-oci";

/// Where errors go besides stderr.
#[derive(Debug)]
pub struct Log {
    file: File,
    json: bool,
}

impl Log {
    /// The log that the flags ask for.
    ///
    /// # Errors
    /// `Usage` for a format that there is not; `Internal` where the file cannot be opened.
    pub fn of(flags: &Given) -> Result<Option<Log>> {
        let json = match flags.value("log-format") {
            None | Some("text" | "") => false,
            Some("json") => true,
            Some(other) => return Err(usage(format!("--log-format: {other:?} is neither text nor json"))),
        };
        let Some(path) = flags.value("log").filter(|path| !path.is_empty()) else { return Ok(None) };
        let file = trust::open_named(OpenOptions::new().append(true), Path::new(path));
        let file = file.doing(Kind::Internal, || format!("cannot open the log {path}"))?;
        Ok(Some(Log { file, json }))
    }

    /// Appends a line.
    pub fn write(&self, level: &str, message: &str) {
        let now = format!("{:.0}", Timestamp::now());
        let line = match self.json {
            true => json!({ "level": level, "msg": message, "time": now }).to_string(),
            false => format!("time={now:?} level={level} msg={message:?}"),
        };
        // There is nobody else to tell.
        let _ = (&self.file).write_all(format!("{line}\n").as_bytes());
    }
}

/// What is logged.
///
/// # Errors
/// `Usage` for a level that there is not.
pub fn level(flags: &Given) -> Result<Level> {
    match flags.value("log-level") {
        None => Ok(bowline_log::level(Level::WARN)),
        Some("warning") => Ok(Level::WARN),
        Some("fatal" | "panic") => Ok(Level::ERROR),
        Some(level) => level.parse().map_err(|_| usage(format!("--log-level: there is no level {level:?}"))),
    }
}

/// How a container's cgroup is named and made.
///
/// # Errors
/// `Usage` for a manager that there is not; `Unsupported` for one that makes none.
pub fn driver(flags: &Given) -> Result<Driver> {
    match flags.value("cgroup-manager") {
        Some("systemd") => Ok(Driver::Systemd),
        Some("disabled") => {
            let message = "--cgroup-manager disabled: a container without a cgroup could not be ended as a whole";
            Err(Error::new(Kind::Unsupported, message))
        }
        Some("cgroupfs") | None => Ok(if flags.is_on("systemd-cgroup") { Driver::Systemd } else { Driver::Literal }),
        Some(other) => Err(usage(format!("--cgroup-manager: {other:?} is neither cgroupfs nor systemd"))),
    }
}

/// The containers of the state folder that the flags name.
///
/// # Errors
/// `Unsupported` for a user who is not root.
pub fn containers(flags: &Given) -> Result<Containers> {
    let root = match flags.value("root").filter(|root| !root.is_empty()) {
        Some(root) => std::path::absolute(root).doing(Kind::Usage, || format!("--root: {root}"))?,
        None => default_state(),
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(Kind::Unsupported, "this command needs root").hint("containers without root come later"));
    }
    Ok(Containers::new(root, Systemd::by(beside("bowline"))))
}

/// Where the state is that no flag names. As with runc, that of a user's own runtime folder for who is root of a user
/// namespace alone.
fn default_state() -> PathBuf {
    let is_root = in_first_user_namespace() || std::env::var_os("USER").is_some_and(|name| name == "root");
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !is_root && !folder.is_empty());
    runtime.map_or_else(|| PathBuf::from(STATE), |folder| Path::new(&folder).join("bowline-oci"))
}

/// A program that is installed beside this one.
fn beside(name: &str) -> PathBuf {
    let own = crate::seal::installed();
    own.parent().unwrap_or(Path::new("/usr/bin")).join(name)
}
