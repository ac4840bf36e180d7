//! `exec`: a further process in a container.

use bowline_executor::internal::{ContainerExec, run_call};
use bowline_model::Result;

use super::{Call, create};
use crate::arguments::{Flag, switch, usage, value};
use crate::attached::{self, Signals};
use crate::globals;
use crate::process;

pub const FLAGS: &[Flag] = &[
    value(&["console-socket"]),
    value(&["pidfd-socket"]),
    value(&["pid-file"]),
    value(&["process", "p"]),
    value(&["cwd"]),
    value(&["env", "e"]),
    value(&["user", "u"]),
    value(&["additional-gids", "g"]),
    value(&["process-label"]),
    value(&["apparmor"]),
    value(&["cap", "c"]),
    value(&["preserve-fds"]),
    value(&["cgroup"]),
    switch(&["tty", "t"]),
    switch(&["detach", "d"]),
    switch(&["no-new-privs"]),
    switch(&["ignore-paused"]),
];

/// Runs a process in a container; its code is the command's, unless it is detached.
pub fn exec(call: &Call<'_>) -> Result<u8> {
    let flags = &call.flags;
    let Some((id, command)) = call.arguments.split_first() else {
        return Err(usage("the id of a container is missing"));
    };
    let detached = flags.is_on("detach");
    let streams = create::streams(flags, &call.inherited, !detached)?;
    let containers = globals::containers(call.globals)?;
    let text = call.inherited.process.clone().transpose()?;
    let process = process::of(flags, text.as_deref(), command, || containers.find(id)?.config())?;
    let signals = if detached { None } else { Some(Signals::begin()?) };
    let wanted = ContainerExec {
        process,
        cgroups: flags.values("cgroup").map(str::to_owned).collect(),
        ignores_pause: flags.is_on("ignore-paused"),
        streams,
    };
    let known = create::known(flags)?;
    let begun = run_call(async || containers.exec(id, wanted, known).await)?;
    match signals {
        Some(signals) => attached::follow(begun, &signals, None),
        None => Ok(0),
    }
}
