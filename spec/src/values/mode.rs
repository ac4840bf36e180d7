//! Permission bits.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// Permission bits, written in octal: `1777`, `0755`.
///
/// Only as a string: the number 1777 would be octal to the reader and decimal
/// to TOML and JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mode(u32);

impl Mode {
    /// The permission bits, at most 0o7777.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Mode, Invalid> {
        let octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let bits = u32::from_str_radix(text, 8).ok();
        bits.filter(|bits| octal && *bits <= 0o7777)
            .map(Mode)
            .ok_or_else(|| Invalid::value(format!("{text} is not a file mode; write it in octal, such as 1777")))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

text_value!(Mode, "Mode", string, "permission bits in octal, as a string", "1777");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "10000", "-7", "+7", "0o7", "rwx"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(bits in 0..=0o7777u32) {
            prop_assert_eq!(Mode(bits).to_string().parse::<Mode>().unwrap(), Mode(bits));
        }
    }
}
