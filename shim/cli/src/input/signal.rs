//! The signal that a command sends, as the command line names it.

use std::str::FromStr;

use bowline_spec::Invalid;
use bowline_spec::signal::Signal;

/// What is sent: a signal, or for `0` none, which Nomad calls `SIGNULL`. That only checks, as with kill(2), whether the process exists.
#[derive(Debug, Clone, Copy)]
pub struct SignalOrNone(pub Option<Signal>);

impl FromStr for SignalOrNone {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<SignalOrNone, Invalid> {
        let text = text.trim();
        let none = text == "0" || ["SIGNULL", "NULL"].iter().any(|name| text.eq_ignore_ascii_case(name));
        let signal = (!none).then(|| text.parse());
        signal.transpose().map(SignalOrNone)
    }
}
