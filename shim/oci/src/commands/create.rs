//! `create`, and `run`, which goes on from there.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use bowline_executor::WindowSize;
use bowline_executor::internal::{Container, Containers, Create, Streams, close_all_but, run_call, sockets_for_us};
use bowline_model::{Doing, Kind, Result, pid_file};
use bowline_spec::id::TaskId;

use super::Call;
use super::life::delete_one;
use crate::arguments::{Flag, Given, switch, usage, value};
use crate::attached::{self, Signals};
use crate::globals;
use crate::handing;
use crate::notify::{self, Notify};
use crate::process;

/// The flags of both.
pub const FLAGS: &[Flag] = &[
    value(&["bundle", "b"]),
    value(&["config", "f"]),
    value(&["console-socket"]),
    value(&["pidfd-socket"]),
    value(&["pid-file"]),
    value(&["preserve-fds"]),
    switch(&["no-pivot"]),
    switch(&["no-new-keyring"]),
    // There is none: crun has it for both.
    switch(&["no-subreaper"]),
];

/// What `run` has besides.
pub const OF_RUN: &[Flag] = &[switch(&["detach", "d"]), switch(&["keep"])];

/// What is taken of the caller's descriptors.
#[derive(Debug, Default)]
pub struct Inherited {
    /// How many there are, from 3 on.
    preserved: u32,
    /// How many of them are sockets to listen at.
    listening: u32,
    /// The text of `--process`, whose file may be one of them.
    pub process: Option<Result<Vec<u8>>>,
}

/// Reads what is to be read of the caller's descriptors, and closes those that nobody asks for: a caller such as conmon
/// leaves its own open. Called before this program opens any that it keeps.
///
/// # Errors
/// `Usage` for one that is asked for and not open.
pub fn inherit(flags: &Given) -> Result<Inherited> {
    let listening = sockets_for_us();
    let preserved = listening.saturating_add(flags.number("preserve-fds")?.unwrap_or_default());
    if preserved > 65_536 {
        return Err(usage(format!("--preserve-fds: {preserved} descriptors are more than a process has")));
    }
    let process = flags.value("process").map(process::read);
    close_all_but(&mut (3..3 + preserved.cast_signed()).collect::<Vec<_>>());
    let missing = (3..3 + preserved).find(|fd| !Path::new(&format!("/proc/self/fd/{fd}")).exists());
    if let Some(fd) = missing {
        return Err(usage(format!("--preserve-fds: descriptor {fd} is not open")));
    }
    Ok(Inherited { preserved, listening, process })
}

/// The streams that the flags ask for; whether this process takes the terminal itself.
///
/// # Errors
/// `Usage` for a socket that nobody listens at.
pub fn streams(flags: &Given, inherited: &Inherited, attached: bool) -> Result<Streams> {
    let &Inherited { preserved, listening, .. } = inherited;
    let console = flags.value("console-socket").filter(|path| !path.is_empty());
    let console = console.map(|path| handing::connect("console-socket", path)).transpose()?;
    let size = if attached { crate::attached::size() } else { WindowSize::default() };
    // So with runc.
    let keeps_lines = attached && !rustix::termios::isatty(rustix::stdio::stdout());
    Ok(Streams { console, preserved, listening, size, keeps_lines, attached })
}

/// What is to be done once the process is known, and before it goes on.
pub fn known(flags: &Given) -> Result<impl FnOnce(std::os::fd::BorrowedFd<'_>, i32) -> Result<()> + use<>> {
    let pid_file = flags.value("pid-file").filter(|path| !path.is_empty()).map(PathBuf::from);
    let socket = flags.value("pidfd-socket").filter(|path| !path.is_empty());
    let socket = socket.map(|path| handing::connect("pidfd-socket", path)).transpose()?;
    Ok(move |pidfd: std::os::fd::BorrowedFd<'_>, pid: i32| {
        socket.as_ref().map_or(Ok(()), |socket| handing::send_pidfd(socket, pidfd))?;
        pid_file.as_deref().map_or(Ok(()), |path| pid_file::write(path, pid))
    })
}

fn wanted(call: &Call<'_>, attached: bool) -> Result<Create> {
    let flags = &call.flags;
    let id = call.id()?;
    let id = TaskId::of_container(id).map_err(|error| usage(format!("{error}")))?;
    let streams = streams(flags, &call.inherited, attached)?;
    let bundle = flags.value("bundle").filter(|path| !path.is_empty()).unwrap_or(".");
    let bundle = std::fs::canonicalize(bundle).doing(Kind::NotFound, || format!("cannot use the bundle {bundle}"))?;
    let config = flags.value("config").map(|file| Path::new(file).to_owned());
    Ok(Create {
        id,
        bundle,
        config,
        driver: globals::driver(call.globals)?,
        keeps_keyring: flags.is_on("no-new-keyring"),
        moves_root: flags.is_on("no-pivot"),
        notifies: notify::manager().is_some(),
        streams,
        known: Box::new(known(flags)?),
    })
}

/// Creates a container.
pub fn create(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let wanted = wanted(call, false)?;
    run_call(async || containers.create(wanted).await).map(|_| 0)
}

/// Creates a container, starts it, and waits for its end, unless it is detached.
pub fn run(call: &Call<'_>) -> Result<u8> {
    let containers = globals::containers(call.globals)?;
    let detached = call.flags.is_on("detach");
    let wanted = wanted(call, !detached)?;
    let id = wanted.id.as_str().to_owned();
    let signals = if detached { None } else { Some(Signals::begin()?) };
    let started = run_call(async || {
        let begun = containers.create(wanted).await?;
        let mut notify = None;
        let begin = |container: &Container| Notify::begin(container).map(|begun| notify = begun);
        match containers.start(&id, begin).await {
            Ok(_) => Ok((begun, notify)),
            Err(error) => {
                drop(begun);
                give_up(&containers, &id);
                Err(error)
            }
        }
    });
    let (begun, notify) = started?;
    let Some(signals) = signals else {
        return notify.map_or(Ok(()), |notify| notify.wait(begun.live.pid, begun.live.pidfd.as_fd())).map(|()| 0);
    };
    let code = attached::follow(begun, &signals, notify);
    if !call.flags.is_on("keep") {
        delete_one(&containers, &id, true)?;
    }
    code
}

/// Removes a container that could not be started. The error of the start is the one to tell.
fn give_up(containers: &Containers, id: &str) {
    if let Err(error) = containers.delete(id, true) {
        tracing::error!(%error, "a container that could not be started is left");
    }
}
