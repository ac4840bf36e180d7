//! `nomad-driver-bowline`: see `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline_nomad::run()
}
