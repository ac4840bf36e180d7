//! The command line, and what speaks to systemd, also for every shim.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::main()
}
