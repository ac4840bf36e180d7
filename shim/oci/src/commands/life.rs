//! What changes the state of a container: `start`, `kill`, `pause`, `resume`, `delete`.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use bowline_executor::internal::{Container, Containers, run_call};
use bowline_model::Result;
use bowline_spec::signal::Signal;
use regex_lite::Regex;

use super::Call;
use crate::arguments::{Flag, switch, usage};
use crate::globals;
use crate::notify::Notify;

pub const OF_KILL: &[Flag] = &[switch(&["all", "a"]), switch(&["regex", "r"])];
pub const OF_DELETE: &[Flag] = &[switch(&["force", "f"]), switch(&["regex", "r"])];

/// Has the init of a created container execute the program.
pub fn start(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let id = call.id()?;
    let mut notify = None;
    let begin = |container: &Container| Notify::begin(container).map(|begun| notify = begun);
    let started = run_call(async || containers.start(id, begin).await)?;
    if let Some((notify, init)) = notify.zip(started.record.live_init()?) {
        notify.wait(init.pid, init.pidfd.as_fd())?;
    }
    Ok(0)
}

/// Sends a signal, by default SIGTERM.
pub fn kill(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let selected = selected(call, &containers)?;
    let signal = match &call.arguments[1..] {
        [] => "TERM",
        [signal] => signal.as_str(),
        [_, extra, ..] => return Err(usage(format!("{extra:?} is one argument too many"))),
    };
    // Signal 0 only asks, as that of kill(2).
    let parse = || signal.parse::<Signal>().map_err(|error| usage(format!("unknown signal: {error}")));
    let signal = if signal == "0" { None } else { Some(parse()?) };
    each(&selected, |id| containers.kill(id, signal, call.flags.is_on("all")))
}

/// The ids of the containers that are meant: one, or all that fit the expression of crun's `--regex`.
fn selected(call: &Call<'_>, containers: &Containers) -> Result<Vec<String>> {
    let pattern = call.arguments.first().ok_or_else(|| usage("the id of a container is missing"))?;
    if !call.flags.is_on("regex") {
        return Ok(vec![pattern.clone()]);
    }
    let pattern = Regex::new(pattern).map_err(|error| usage(format!("--regex: {pattern:?}: {error}")))?;
    let ids = containers.all()?.into_iter().map(|(id, _)| id.as_str().to_owned());
    Ok(ids.filter(|id| pattern.is_match(id)).collect())
}

/// Acts on each container; returns the first error, after all.
fn each(ids: &[String], mut act: impl FnMut(&str) -> Result<()>) -> Result<u8> {
    let mut first = Ok(0);
    for id in ids {
        if let Err(error) = act(id) {
            first = first.and(Err(error));
        }
    }
    first
}

pub fn pause(call: &Call<'_>) -> Result<u8> {
    globals::containers(call.globals)?.pause(call.id()?, true).map(|()| 0)
}

pub fn resume(call: &Call<'_>) -> Result<u8> {
    globals::containers(call.globals)?.pause(call.id()?, false).map(|()| 0)
}

/// Removes one container, and says what is left of it.
pub fn delete_one(containers: &Containers, id: &str, force: bool) -> Result<()> {
    for left in containers.delete(id, force)? {
        tracing::warn!("{left}");
        // Nobody else learns of a hook that has failed.
        let _ = writeln!(std::io::stderr().lock(), "{left}");
    }
    Ok(())
}

/// Removes a container.
pub fn delete(call: &Call<'_>) -> Result<u8> {
    let containers: Containers = globals::containers(call.globals)?;
    let selected = selected(call, &containers)?;
    if let Some(extra) = call.arguments.get(1) {
        return Err(usage(format!("{extra:?} is one argument too many")));
    }
    each(&selected, |id| delete_one(&containers, id, call.flags.is_on("force")))
}
