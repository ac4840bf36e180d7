//! The task driver that Nomad starts: a plugin that has bowline start each task, and asks its shim.
//!
//! ```text
//!   agent ──gRPC──► nomad-driver-bowline ──bowline.v1──► one shim for each task
//!                     │ describe: Nomad's configuration ─► task description
//!                     └ tasks: Nomad's ids ─► bowline's
//! ```
//!
//! The plugin may be killed at any moment: what must be known later is in the task's folder, and in the state that Nomad
//! keeps for us. Must not: start a task in another way than `bowline-client` does, or be the parent of a task.

mod command;
mod describe;
mod driver;
mod earlier;
mod error_codes;
mod events;
mod fingerprint;
mod handshake;
mod log;
mod node;
mod options;
mod own_folder;
mod plugin;
mod proto;
mod recovery;
#[cfg(test)]
mod reference;
mod schema;
mod serve;
mod settings;
mod shutdown;
mod start;
mod stats;
mod stream;
mod streaming;
mod task_id;
mod tasks;

use std::io::Write as _;
use std::process::ExitCode;

use handshake::Handshake;

/// The name of the driver, in job files and in the agent's configuration.
pub(crate) const NAME: &str = "bowline";

/// Serves the agent that has started this process, until it asks for the end.
pub fn run() -> ExitCode {
    let said = match Handshake::from_environment(|name| std::env::var(name).ok()) {
        Ok(handshake) => {
            log::begin();
            serve::run(&handshake).map_err(|error| error.to_string())
        }
        Err(refusal) => Err(refusal),
    };
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(std::io::stderr().lock(), "{message}");
            ExitCode::FAILURE
        }
    }
}
