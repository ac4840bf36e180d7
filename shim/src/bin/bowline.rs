//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::cli::main()
}
