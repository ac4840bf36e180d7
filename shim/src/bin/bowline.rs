//! The command line, and what speaks to systemd, also for every shim.
//!
//! The one place that names `bowline_units`: a binary that does not is linked
//! without it.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline::cli::main(
        |request| Box::pin(bowline_units::carry_out(request)),
        |question| Box::pin(bowline_units::answer(question)),
    )
}
