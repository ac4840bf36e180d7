//! The shim for containerd: `containerd-shim-bowline-v1`.
//!
//! ```text
//!   containerd ─► start ─► listens, starts the serving process, replies, ends
//!                            └─► serve: Task calls until the last container goes
//!              ─► delete: cleans up when the serving process died
//! ```
//!
//! One binary does all three, by its arguments: `invocation` reads them, and `bootstrap` what comes through stdin.

pub mod address;
mod background;
pub mod bootstrap;
mod bowline_service;
mod containers;
pub mod delete;
mod error_codes;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handover;
mod info;
pub mod invocation;
pub mod log;
mod manager_events;
pub mod metrics;
pub mod options;
pub mod publisher;
mod runtime;
mod sandbox;
mod sandbox_calls;
pub mod serve;
mod service;
pub mod start;
mod stdout;
mod streams;

use std::io::Write as _;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use bowline_executor::VERSION;
use bowline_executor::internal::{InheritedLimits, close_all_but, inherited_fd, leave_behind};
use bowline_model::{Doing, Error, Kind, Result};

use bowline_executor::internal::upgrade::{Handover, read_facts};

use handover::Handed;
use invocation::{Action, Invocation};
pub use runtime::{BINARY, RUNTIME};
use serve::Begin;
use stdout::say;

/// Runs the whole program. containerd shows stderr to its users.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = error.hint_text().map(|hint| format!("; {hint}")).unwrap_or_default();
            // No newline: containerd appends its own error.
            let _ = write!(std::io::stderr().lock(), "{BINARY}: {error}{hint}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.into_string();
        word.map_err(|word| Error::new(Kind::Usage, format!("argument {word:?} is not text")))
    });
    let words = words.collect::<Result<Vec<String>>>()?;
    let action = invocation::parse(words, |name| std::env::var(name).ok())?;
    match action {
        Action::Version => say(format!("{BINARY}:\n  Version:  {VERSION}\n\n").as_bytes()),
        Action::Info => say(&info::answer(bootstrap::read(std::io::stdin().lock())?)?),
        Action::Start(invocation) => start::run(invocation),
        Action::Delete(invocation) => {
            log::to_stderr();
            // `delete` runs hooks, as the shim would have.
            leave_behind(InheritedLimits::Managers)?;
            delete::run(&invocation)
        }
        Action::Serve(invocation, listener) => serve(invocation, listener),
        Action::TakeOver(invocation, handover) => go_on(invocation, handover),
        Action::ReadFacts => read_facts::<Handed>(),
    }
}

/// Runs the serving process. Its errors go to the log, because `start` has already replied and ended.
fn serve(invocation: Invocation, listener: RawFd) -> Result<()> {
    // The parent may have passed on more open fds than it names.
    close_all_but(&mut [listener]);
    log::to_fifo(&invocation, None);
    logged(begin(invocation, listener))
}

/// Runs the serving process that goes on with what the program before it has handed over.
fn go_on(invocation: Invocation, from: invocation::HandoverArgs) -> Result<()> {
    match Handover::<Handed>::take(from.facts, from.refused.is_some()) {
        Err(error) => {
            log::to_fifo(&invocation, None);
            logged(Err(error))
        }
        Ok(Handover { executor, manager: mut handed }) => {
            log::to_fifo(&invocation, handed.log());
            let _ = rustix::thread::set_name(c"containerd-shim");
            let handed = Box::new(handed);
            logged(serve::run(invocation, Begin::Again { executor, handed, refused: from.refused }))
        }
    }
}

fn logged(served: Result<()>) -> Result<()> {
    served.inspect_err(|error| tracing::error!("{error}"))
}

fn begin(invocation: Invocation, listener: RawFd) -> Result<()> {
    let listener = inherited_fd(listener).ok_or_else(|| {
        Error::new(Kind::Usage, "the listening socket was not handed down").hint("`start` does; containerd calls it")
    })?;
    // Use a separate session, so that signals for the manager's session do not reach the shim. `setsid` fails only for
    // a process group leader, which has one already.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"containerd-shim");
    // The shim reaps the orphans of tasks in the host's pid namespace.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .doing(Kind::Internal, || "cannot become a subreaper")?;
    // The bundle is removed while the shim runs, and its file system is unmounted.
    std::env::set_current_dir("/").doing(Kind::Internal, || "cannot change to /")?;
    serve::run(invocation, Begin::First(UnixListener::from(listener)))
}
