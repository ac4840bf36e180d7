//! The shim: one single-threaded process for one sandbox, which runs until its tasks have ended.
//!
//! `bowline` starts it and passes a listening socket, the lock of its folder, and as stdin a socket that closes when
//! `bowline` ends. The shim parses its flags by hand: an argument parser would take up half of its private memory.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;

use bowline_executor::internal::upgrade::{Handover, READ_FACTS, REFUSED, TAKE_OVER, read_facts};
use bowline_executor::internal::{close_all_but, inherited_fd};
use bowline_executor::systemd::Systemd;
use bowline_executor::{Config, Executor, ShimCgroup, serve, serve_on};
use bowline_log::LogEvent;
use bowline_model::folder::EventCounts;
use bowline_model::folder::{Folder, StateDir};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::calls::Handed;
use bowline_shim::{Entrance, HandedEntrance};
use jiff::Timestamp;
use rustix::net::SendFlags;
use tracing::{Level, Metadata};

/// The fd of the listening socket, unless `--listener-fd` gives another.
const LISTENER_FD: RawFd = 3;
/// The fd of the folder's lock, unless `--lock-fd` gives another.
const LOCK_FD: RawFd = 4;

fn main() -> ExitCode {
    // First of all, so that a signal to the group of whoever started us, such as by Ctrl-C, is not for us too. Fails only
    // for the leader of a process group, which is in a session of its own already.
    let _ = rustix::process::setsid();
    if std::env::args().skip(1).eq([READ_FACTS]) {
        return match read_facts::<HandedEntrance>() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr().lock(), "{error}");
                ExitCode::FAILURE
            }
        };
    }
    bowline_log::begin(bowline_log::level(Level::WARN), |metadata, event| {
        let _ = std::io::stderr().lock().write_all(line(metadata, &event).as_bytes());
    });
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            tell_starter(&error);
            ExitCode::from(125)
        }
    }
}

/// Tells the starter of the shim why it could not take a task over, or what the removal of a task may have left: the starter
/// reads at the other end of the socket that is our stdin. Any other stdin takes nothing.
fn tell_starter(what: &impl serde::Serialize) {
    let text = serde_json::to_vec(what).unwrap_or_default();
    let _ = rustix::net::send(rustix::stdio::stdin(), &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// A line of `shim.log`: time, level, module, message, fields.
fn line(metadata: &Metadata<'_>, event: &LogEvent) -> String {
    let (now, level, module) = (Timestamp::now(), metadata.level(), metadata.target());
    let mut line = format!("{now:.6} {level:>5} {module}: {}", event.message);
    for (name, value) in &event.fields {
        let _ = write!(line, " {name}={}", bowline_log::quoted(value));
    }
    line.push('\n');
    line
}

struct Arguments {
    folder: PathBuf,
    shim_cgroup: ShimCgroup,
    systemd: Systemd,
    init: Option<PathBuf>,
    listener: RawFd,
    lock: RawFd,
    /// How many sockets for the task's command were handed down, from 3 on.
    sockets: RawFd,
    adopt: Option<EventCounts>,
    /// The file with what the program before this one has handed over.
    facts: Option<RawFd>,
    /// Why the program that should have taken over has executed this one again.
    refused: Option<String>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments> {
    let usage = |what: &str| {
        let usage =
            "usage: bowline-shim --folder DIR --bowline FILE [--init FILE] [--shim-cgroup MODE] [--adopt ID=EVENTS,…]";
        Error::new(Kind::Usage, format!("{usage}: {what}"))
    };
    let (mut folder, mut bowline, mut init) = (None, None, None);
    let (mut shim_cgroup, mut listener, mut lock) = (ShimCgroup::default(), LISTENER_FD, LOCK_FD);
    let (mut sockets, mut adopt, mut facts, mut refused) = (0, None, None, None);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| usage(&format!("{flag} needs a value")))?;
        let number = || value.parse().map_err(|_| usage(&format!("{flag} needs a number")));
        match flag.as_str() {
            "--folder" => folder = Some(PathBuf::from(&value)),
            "--shim-cgroup" => shim_cgroup = value.parse()?,
            "--bowline" => bowline = Some(PathBuf::from(&value)),
            "--init" => init = Some(PathBuf::from(&value)),
            "--listener-fd" => listener = number()?,
            "--lock-fd" => lock = number()?,
            "--sockets" => sockets = number()?,
            "--adopt" => adopt = Some(counts(&value).ok_or_else(|| usage(&format!("{flag} needs numbers of events")))?),
            TAKE_OVER => facts = Some(number()?),
            REFUSED => refused = Some(value.clone()),
            _ => return Err(usage(&format!("unknown flag {flag}"))),
        }
    }
    let folder = folder.ok_or_else(|| usage("--folder is missing"))?;
    let systemd = Systemd::by(bowline.ok_or_else(|| usage("--bowline is missing"))?);
    Ok(Arguments { folder, shim_cgroup, systemd, init, listener, lock, sockets, adopt, facts, refused })
}

/// How many events there are of each task: `ID=EVENTS,…`.
fn counts(text: &str) -> Option<EventCounts> {
    let count = |text: &str| {
        let (id, count) = text.split_once('=')?;
        Some((id.parse().ok()?, count.parse().ok()?))
    };
    text.split(',').filter(|text| !text.is_empty()).map(count).collect()
}

fn run(args: impl Iterator<Item = String>) -> Result<()> {
    #[cfg(feature = "absent")]
    tracing::warn!("taken for absent: {}", bowline_executor::internal::all_absent().join(" "));
    let arguments = parse(args)?;
    let handover = arguments.facts.map(|facts| Handover::take(facts, arguments.refused.is_some())).transpose()?;
    let (handed, entrance, sockets) = match handover {
        Some(handover) => (Some(handover.executor), Entrance::take(handover.manager)?, Vec::new()),
        None => {
            let (entrance, sockets) = first_entrance(&arguments)?;
            (None, entrance, sockets)
        }
    };
    let _ = rustix::thread::set_name(c"bowline-shim");
    // The shim reaps the orphans of tasks in the host's pid namespace.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .doing(Kind::Internal, || "cannot become a subreaper")?;
    std::env::set_current_dir("/").doing(Kind::Internal, || "cannot change to /")?;
    let state = arguments.folder.parent().unwrap_or(std::path::Path::new("/"));
    let Arguments { folder, shim_cgroup, systemd, init, adopt, refused, .. } = &arguments;
    let takes_over = handed.is_some();
    let (adopt, refused) = (adopt.clone().filter(|_| !takes_over), refused.clone());
    let adopts = adopt.is_some();
    let config = Config::new(Folder::at(folder), StateDir::new(state), shim_cgroup.clone(), systemd.clone());
    let config = Config { init: init.clone(), adopt, only_a_shim: true, sockets: sockets.into(), ..config };
    let manager = |executor: Executor| async move {
        if takes_over {
            executor.ready().await;
            executor.end_upgrade(refused);
        } else if adopts {
            // Whoever connects meanwhile waits in the socket's backlog.
            executor.ready().await;
        } else if let Ok(stdin) = rustix::stdio::stdin().try_clone_to_owned() {
            executor.leave_with(stdin);
        }
        let left = bowline_shim::serve(executor, entrance).await?;
        if !left.is_empty() {
            tell_starter(&left);
        }
        // Everything is answered and removed: the kernel frees the rest faster than dropping it piece by piece.
        std::process::exit(0)
    };
    match handed {
        Some(handed) => serve_on(config, Some(handed), manager),
        None => serve(config, manager),
    }
}

/// What the shim's starter has handed down, with the sockets for the task's command.
fn first_entrance(arguments: &Arguments) -> Result<(Entrance, Vec<OwnedFd>)> {
    let sockets = 3..3 + arguments.sockets;
    // The parent may have passed on more open fds than it names.
    close_all_but(&mut sockets.clone().chain([arguments.listener, arguments.lock]).collect::<Vec<_>>());
    let missing = |what: &str| Error::new(Kind::Usage, format!("{what} was not handed down"));
    let listener = inherited_fd(arguments.listener).ok_or_else(|| missing("the listening socket"))?;
    let lock = inherited_fd(arguments.lock).ok_or_else(|| missing("the lock"))?;
    let sockets = sockets.map(|number| inherited_fd(number).ok_or_else(|| missing("a socket for the command")));
    Ok((Entrance::new(listener, lock, Handed::default())?, sockets.collect::<Result<_>>()?))
}
