//! The exit codes of bowline itself: which error ends it with which.

use bowline_executor::internal::ArrivedSignal;
use bowline_model::Kind;

/// Exit code when bowline itself fails.
pub const FAILED: u8 = 125;
/// Exit code after a timeout.
pub const TIMED_OUT: u8 = 124;
/// Exit code when something was skipped and reported, and the rest was done.
pub const PARTLY: u8 = 1;
/// Exit code of `cgroup exists` and `cgroup name` if there is no such cgroup.
pub const NOWHERE: u8 = 1;
/// Exit code of an invalid command line.
pub const USAGE: u8 = 2;

/// Exit code after a signal that ended what was asked for.
pub fn by_signal(signal: ArrivedSignal) -> u8 {
    u8::try_from(128 + signal.number).unwrap_or(FAILED)
}

/// The one place where an error becomes an exit code.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::CommandNotFound => 127,
        Kind::NotExecutable => 126,
        Kind::Usage => USAGE,
        Kind::Timeout => TIMED_OUT,
        Kind::NotFound
        | Kind::AlreadyExists
        | Kind::WrongState
        | Kind::BadSpec
        | Kind::Unsupported
        | Kind::Exhausted
        | Kind::Damaged
        | Kind::Unavailable
        | Kind::Internal
        | _ => FAILED,
    }
}
