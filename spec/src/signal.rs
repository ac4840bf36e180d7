//! Signals, by name or number.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// The names of signals 1 to 31, as x86-64 and aarch64 number them
/// (include/uapi/asm-generic/signal.h).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Second names of some of them.
const ALIASES: [(&str, i32); 5] = [("IOT", 6), ("CLD", 17), ("POLL", 29), ("RTMIN", RTMIN), ("RTMAX", LAST)];

/// The first real-time signal that a program can use: glibc keeps 32 and 33.
const RTMIN: i32 = 34;
const LAST: i32 = 64;

/// A signal, 1 to 64: `SIGTERM`, `term`, `15`, `RTMIN+3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(i32);

impl Signal {
    /// The terminal has gone; many daemons reload their configuration on it.
    pub const HUP: Signal = Signal(1);
    /// Interrupt, as from ctrl-C.
    pub const INT: Signal = Signal(2);
    /// Quit, as from `ctrl-\`; by default it dumps core too.
    pub const QUIT: Signal = Signal(3);
    /// Kill; cannot be caught.
    pub const KILL: Signal = Signal(9);
    /// Terminate; the default of a graceful stop.
    pub const TERM: Signal = Signal(15);

    /// The signal with that number; nothing outside 1 to 64.
    pub fn from_number(number: i32) -> Option<Signal> {
        (1..=LAST).contains(&number).then_some(Signal(number))
    }

    /// Its number, as kill(2) takes it.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Whether it ends a process that does nothing about it: signal(7).
    pub const fn ends_by_default(self) -> bool {
        // CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH.
        !matches!(self.0, 17..=23 | 28)
    }

    /// Its name without `SIG`: `TERM`, `RTMIN+3`. The two that glibc keeps for
    /// itself have none, and give their number.
    pub fn name(self) -> String {
        match self.0 {
            RTMIN => "RTMIN".into(),
            LAST => "RTMAX".into(),
            number if number > RTMIN => format!("RTMIN+{}", number - RTMIN),
            number => match usize::try_from(number - 1).ok().and_then(|i| NAMES.get(i)) {
                Some(name) => (*name).into(),
                None => number.to_string(),
            },
        }
    }
}

impl FromStr for Signal {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Signal, Invalid> {
        let wrong = || {
            Invalid::value(format!("{text:?} is not a signal; write a name such as SIGTERM or a number from 1 to 64"))
        };
        let upper = text.trim().to_ascii_uppercase();
        if !upper.is_empty() && upper.bytes().all(|b| b.is_ascii_digit()) {
            let number = upper.parse().map_err(|_| wrong())?;
            return Signal::from_number(number).ok_or_else(wrong);
        }
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Some(index) = NAMES.iter().position(|n| *n == name) {
            return i32::try_from(index + 1).map(Signal).map_err(|_| wrong());
        }
        if let Some((_, number)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
            return Ok(Signal(*number));
        }
        let distance = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<i32>().ok().filter(|d| plain && *d <= LAST - RTMIN)
        };
        let from_min = name.strip_prefix("RTMIN+").and_then(distance).map(|d| RTMIN + d);
        let from_max = name.strip_prefix("RTMAX-").and_then(distance).map(|d| LAST - d);
        from_min.or(from_max).map(Signal).ok_or_else(wrong)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            32 | 33 => write!(f, "{}", self.0),
            _ => write!(f, "SIG{}", self.name()),
        }
    }
}

text_value!(
    Signal,
    "Signal",
    string_or_number,
    "a signal: a name such as SIGTERM, or a number from 1 to 64",
    "SIGTERM",
    15
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_numbers_and_real_time_signals_are_read() {
        for (text, number) in [
            ("SIGTERM", 15),
            ("term", 15),
            ("Sigkill", 9),
            ("15", 15),
            ("SIGSYS", 31),
            ("CLD", 17),
            ("RTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("RTMAX-1", 63),
            ("64", 64),
        ] {
            assert_eq!(text.parse::<Signal>().unwrap().number(), number, "{text}");
        }
    }

    #[test]
    fn what_is_no_signal_is_refused() {
        for text in ["", "0", "65", "-9", "SIG", "SIGFOO", "SIG9", "RTMIN+31", "RTMIN-1", "RTMIN++1", "9x"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(number in 1..=64i32) {
            let signal = Signal::from_number(number).unwrap();
            prop_assert_eq!(signal.to_string().parse::<Signal>().unwrap(), signal);
            prop_assert_eq!(signal.name().parse::<Signal>().unwrap(), signal);
        }

        #[test]
        fn reading_never_panics(text in "\\PC*") {
            let _ = text.parse::<Signal>();
        }
    }
}
