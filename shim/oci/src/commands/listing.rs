//! What only reads: `state`, `list`, `ps`, `features`.

use std::process::Command;

use bowline_executor::internal::features as of_executor;
use bowline_model::{Doing, Error, Kind, Result};

use super::Call;
use crate::arguments::{Flag, switch, usage, value};
use crate::globals;
use crate::state::{self, State, print};

pub const OF_LIST: &[Flag] = &[value(&["format", "f"]), switch(&["quiet", "q"])];
pub const OF_PS: &[Flag] = &[value(&["format", "f"])];

/// Whether the format is JSON.
fn is_json(call: &Call<'_>) -> Result<bool> {
    match call.flags.value("format") {
        None | Some("table") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => Err(usage(format!("--format: {other:?} is neither table nor json"))),
    }
}

pub fn state(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let state = State::of(&containers, &containers.find(call.id()?)?)?;
    let text = serde_json::to_string_pretty(&state).doing(Kind::Internal, || "cannot write JSON")?;
    print(&(text + "\n")).map(|()| 0)
}

pub fn list(call: &Call<'_>) -> Result<u8> {
    state::list(&globals::containers(call.globals)?, is_json(call)?, call.flags.is_on("quiet")).map(|()| 0)
}

/// The processes of a container: their pids as JSON, or the lines that ps(1) prints for them.
pub fn ps(call: &Call<'_>) -> Result<u8> {
    let Some((id, options)) = call.arguments.split_first() else {
        return Err(usage("the id of a container is missing"));
    };
    let containers = globals::containers(call.globals)?;
    let pids = containers.processes(&containers.find(id)?)?;
    if is_json(call)? {
        return print(&format!("{}\n", serde_json::json!(pids))).map(|()| 0);
    }
    let options = if options.is_empty() { &["-ef".to_owned()][..] } else { options };
    let output = Command::new("ps").args(options).output().doing(Kind::Unsupported, || "cannot run ps")?;
    if !output.status.success() {
        let message = format!("ps: {}", String::from_utf8_lossy(&output.stderr).trim());
        return Err(Error::new(Kind::Usage, message));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let no_pid = || Error::new(Kind::Usage, "ps: its output has no column PID");
    let column = head.split_whitespace().position(|name| name == "PID").ok_or_else(no_pid)?;
    let is_ours = |line: &&str| {
        let pid = line.split_whitespace().nth(column).and_then(|pid| pid.parse::<i32>().ok());
        pid.is_some_and(|pid| pids.contains(&pid))
    };
    let shown: String = std::iter::once(head).chain(lines.filter(is_ours)).map(|line| format!("{line}\n")).collect();
    print(&shown).map(|()| 0)
}

pub fn features(_: &Call<'_>) -> Result<u8> {
    print(&format!("{:#}\n", of_executor(&[]))).map(|()| 0)
}
