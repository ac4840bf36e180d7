//! How much a tmpfs holds.

use std::fmt;
use std::str::FromStr;

use super::ByteSize;
use crate::invalid::Invalid;
use crate::text::text_value;

/// The most that a tmpfs holds: `64M`, or `50%` of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TmpfsSize {
    /// So many bytes.
    Bytes(ByteSize),
    /// A part of the host's memory: 1 to 100.
    Percent(u8),
}

impl TmpfsSize {
    /// The number of bytes; `None` where only the host knows it.
    pub fn bytes(self) -> Option<u64> {
        match self {
            TmpfsSize::Bytes(size) => Some(size.as_u64()),
            TmpfsSize::Percent(_) => None,
        }
    }

    /// As the kernel's option has it.
    pub fn option(self) -> String {
        match self {
            TmpfsSize::Bytes(size) => size.as_u64().to_string(),
            TmpfsSize::Percent(part) => format!("{part}%"),
        }
    }
}

impl FromStr for TmpfsSize {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<TmpfsSize, Invalid> {
        let Some(part) = text.trim().strip_suffix('%') else { return text.parse().map(TmpfsSize::Bytes) };
        match part.parse() {
            Ok(part @ 1..=100) => Ok(TmpfsSize::Percent(part)),
            _ => Err(Invalid::value(format!("{text:?} is no part of the host's memory; write 1% to 100%"))),
        }
    }
}

impl fmt::Display for TmpfsSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TmpfsSize::Bytes(size) => size.fmt(f),
            TmpfsSize::Percent(part) => write!(f, "{part}%"),
        }
    }
}

text_value!(TmpfsSize, "TmpfsSize", string_or_number, "a byte size, or a part of the host's memory: 50%", "64M", "50%");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_parts_are_read_and_written() {
        for (text, option) in [("64M", "67108864"), ("7", "7"), ("50%", "50%"), ("100%", "100%")] {
            let size: TmpfsSize = text.parse().expect("a size");
            assert_eq!((size.to_string().as_str(), size.option().as_str()), (text, option));
        }
        for text in ["", "%", "0%", "101%", "1.5%", "-1%", "50 %%", "x"] {
            assert!(text.parse::<TmpfsSize>().is_err(), "{text}");
        }
    }
}
