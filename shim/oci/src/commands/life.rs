//! What changes the state of a container: `start`, `kill`, `pause`, `resume`, `delete`.

use bowline_executor::Result;
use bowline_executor::internal::{Containers, run_call};
use bowline_spec::signal::Signal;

use super::Call;
use crate::arguments::{Flag, switch, usage, value};
use crate::globals;

pub const OF_KILL: &[Flag] = &[switch(&["all", "a"]), value(&["regex", "r"])];
pub const OF_DELETE: &[Flag] = &[switch(&["force", "f"]), value(&["regex", "r"])];

/// Has the init of a created container execute the program.
pub fn start(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let id = call.id()?;
    run_call(async || containers.start(id).await).map(|_| 0)
}

/// Sends a signal, by default SIGTERM.
pub fn kill(call: &Call<'_>) -> Result<u8> {
    let (id, signal) = match call.arguments {
        [id] => (id, "TERM"),
        [id, signal] => (id, signal.as_str()),
        [] => return Err(usage("the id of a container is missing")),
        [_, _, extra, ..] => return Err(usage(format!("{extra:?} is one argument too many"))),
    };
    let signal: Signal = signal.parse().map_err(|error| usage(format!("unknown signal: {error}")))?;
    globals::containers(call.globals)?.kill(id, signal, call.flags.is_on("all")).map(|()| 0)
}

pub fn pause(call: &Call<'_>) -> Result<u8> {
    globals::containers(call.globals)?.pause(call.id()?, true).map(|()| 0)
}

pub fn resume(call: &Call<'_>) -> Result<u8> {
    globals::containers(call.globals)?.pause(call.id()?, false).map(|()| 0)
}

/// Removes a container.
pub fn delete(call: &Call<'_>) -> Result<u8> {
    let containers: Containers = globals::containers(call.globals)?;
    for left in containers.delete(call.id()?, call.flags.is_on("force"))? {
        tracing::warn!("{left}");
    }
    Ok(0)
}
