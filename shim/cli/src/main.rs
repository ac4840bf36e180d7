//! The `bowline` binary: the command line, and the part that every shim uses to talk to systemd.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::main()
}
