//! `bowline-oci`, the command of an OCI runtime: what conmon, Podman, CRI-O, Buildah, containerd's shim for runc and dockerd
//! call in the place of runc or crun.
//!
//! ```text
//!   arguments ─► command ─► `Containers` of the executor ─► one call ─► answer, code
//! ```
//!
//! Nothing stays resident: see `one_call` in bowline-executor. Must not: have a second implementation of what the executor
//! does.

mod arguments;
mod attached;
mod commands;
mod globals;
mod handing;
mod notify;
mod process;
mod seal;
mod state;

use std::io::Write as _;
use std::process::ExitCode;

use bowline_model::{Error, Kind};
use tracing::Level;

use arguments::parse;
use globals::Log;

/// The code for an error of the command itself.
const FAILED: u8 = 1;
/// That of `exec`, whose other codes are those of the process.
const EXEC_FAILED: u8 = 255;

fn main() -> ExitCode {
    let mut log = None;
    let arguments: Vec<String> = match std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect() {
        Ok(arguments) => arguments,
        Err(bad) => {
            let _ = writeln!(std::io::stderr().lock(), "{bad:?}: arguments are UTF-8");
            return ExitCode::from(FAILED);
        }
    };
    match run(&arguments, &mut log) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let message = line(&error);
            let _ = writeln!(std::io::stderr().lock(), "{message}");
            if let Some(log) = &log {
                log.write("error", &message);
            }
            let is_exec = parse(&arguments, &[globals::FLAGS], false)
                .is_ok_and(|(_, rest)| rest.first().is_some_and(|c| c == "exec"));
            ExitCode::from(if is_exec { EXEC_FAILED } else { FAILED })
        }
    }
}

fn run(arguments: &[String], log: &mut Option<Log>) -> bowline_executor::Result<u8> {
    let (flags, rest) = parse(arguments, &[globals::FLAGS], false)?;
    let inherited = commands::inherit(&rest);
    *log = Log::of(&flags)?;
    let inherited = inherited?;
    let level = if flags.is_on("debug") { Level::DEBUG } else { globals::level(&flags)? };
    let (of_log, is_debugged) = (Log::of(&flags)?, flags.is_on("debug"));
    bowline_log::begin(level, move |metadata, event| {
        let fields = event.fields.iter().map(|(name, value)| format!(" {name}={}", bowline_log::quoted(value)));
        let message = event.message.clone() + &fields.collect::<String>();
        let level = metadata.level().as_str().to_lowercase();
        match &of_log {
            Some(log) => log.write(&level, &message),
            // Stderr may be the container's own.
            None if is_debugged => drop(writeln!(std::io::stderr().lock(), "level={level} msg={message:?}")),
            None => {}
        }
    });
    // Not its arguments, which may be secret.
    tracing::debug!(version = bowline_executor::VERSION, command = rest.first(), "called");
    if flags.is_on("version") {
        return commands::version();
    }
    match rest.split_first() {
        Some((command, rest)) if !flags.is_on("help") => commands::run(command, rest, &flags, inherited),
        _ => commands::help(),
    }
}

/// An error as one line, in the words by which callers tell errors apart: Podman looks for those of a command that is not
/// there, and of one that may not be executed.
fn line(error: &Error) -> String {
    let known = match error.kind() {
        Kind::CommandNotFound => ": executable file not found in $PATH",
        Kind::NotExecutable => ": permission denied",
        _ => "",
    };
    let hint = error.hint_text().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    format!("{}{known}{hint}", error.message()).replace('\n', " ")
}
