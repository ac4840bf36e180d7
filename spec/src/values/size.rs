//! A number of bytes.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

const SUFFIXES: [(char, u32); 5] = [('t', 40), ('g', 30), ('m', 20), ('k', 10), ('b', 0)];

/// A number of bytes: `64M`, `1.5G`, `64MiB`, `1048576`.
///
/// As Docker reads them: any case, K, M, G and T are powers of 1024, and a
/// `B` or `iB` behind them changes nothing. At most 2^63 − 1, since OCI's
/// fields are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// `bytes` bytes; more than 2^63 − 1 counts as that.
    pub const fn bytes(bytes: u64) -> ByteSize {
        if bytes > i64::MAX as u64 { ByteSize(i64::MAX as u64) } else { ByteSize(bytes) }
    }

    /// `mib` times 1024² bytes.
    pub const fn mib(mib: u64) -> ByteSize {
        ByteSize::bytes(mib.saturating_mul(1 << 20))
    }

    /// The number of bytes, at most `i64::MAX`.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number of bytes, as OCI's fields want it.
    pub const fn as_i64(self) -> i64 {
        // Constructed at most i64::MAX.
        self.0 as i64
    }
}

impl FromStr for ByteSize {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<ByteSize, Invalid> {
        let wrong = || Invalid::value(format!("{text:?} is not a size; write it as 64M, 1G or a number of bytes"));
        let lower = text.trim().to_ascii_lowercase();
        let digits_end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (digits, unit) = lower.split_at(digits_end);
        let shift = match unit.trim_start() {
            "" => 0,
            unit => {
                SUFFIXES
                    .iter()
                    .find(|(letter, _)| {
                        let rest = unit.strip_prefix(*letter);
                        // "b" takes no second b: "bb" and "bib" are typing errors.
                        rest.is_some_and(|r| r.is_empty() || (*letter != 'b' && (r == "b" || r == "ib")))
                    })
                    .ok_or_else(wrong)?
                    .1
            }
        };
        let bytes = scale(digits, shift).ok_or_else(wrong)?;
        if bytes > i64::MAX as u64 {
            return Err(Invalid::value(format!("{text} is more than any machine has")));
        }
        Ok(ByteSize(bytes))
    }
}

/// `digits` (with at most one dot) times 2^`shift`, cut to whole bytes.
/// Nothing for what is not a number; more than u64 holds becomes its maximum.
fn scale(digits: &str, shift: u32) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || digits.ends_with('.') {
        return None;
    }
    let whole = whole.parse::<u128>().unwrap_or(u128::from(u64::MAX));
    let whole = whole.min(u128::from(u64::MAX)) << shift;
    // 18 decimals are finer than a byte of a tebibyte.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = fraction.parse::<u128>().unwrap_or(0) << shift;
    let part = part / 10u128.pow(u32::try_from(fraction.len()).unwrap_or(18));
    Some(u64::try_from(whole + part).unwrap_or(u64::MAX))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SUFFIXES.iter().find(|(_, shift)| *shift > 0 && self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((letter, shift)) => {
                write!(f, "{}{}", self.0 >> shift, letter.to_ascii_uppercase())
            }
            None => write!(f, "{}", self.0),
        }
    }
}

text_value!(
    ByteSize,
    "ByteSize",
    string_or_number,
    "a size: 64M, 1G (K, M, G, T are powers of 1024) or a number of bytes",
    "64M",
    1048576
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_docker_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("12", 12),
            ("12b", 12),
            ("64k", 65_536),
            ("64KB", 65_536),
            ("64KiB", 65_536),
            ("64M", 67_108_864),
            ("64 MiB", 67_108_864),
            ("1.5g", 1_610_612_736),
            ("2T", 2_199_023_255_552),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().as_u64(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "M",
            "64Q",
            "-1",
            "1.2.3M",
            ".5M",
            "5.",
            "0x10",
            "64MM",
            "64BiB",
            "1e3",
            "9999999999T",
            "9223372036854775808",
            "∞",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        let error = "64Q".parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(error, "\"64Q\" is not a size; write it as 64M, 1G or a number of bytes");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(bytes in 0..=i64::MAX as u64, shift in 0u32..50) {
            let size = ByteSize::bytes(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }

        #[test]
        fn reading_never_panics(text in "\\PC*") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
