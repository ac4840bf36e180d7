//! A span of time.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// Longest first: `Display` goes through them in this order. Nanoseconds each.
const SUFFIXES: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A span of time: `10s`, `200ms`, `1m30s`, `1.5s`, `0`. A plain number is
/// seconds. At most 2^64 ns, some 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(std::time::Duration);

impl Duration {
    /// `seconds` seconds.
    pub const fn from_secs(seconds: u32) -> Duration {
        Duration(std::time::Duration::from_secs(seconds as u64))
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u32) -> Duration {
        Duration(std::time::Duration::from_millis(millis as u64))
    }

    /// As the standard library's type.
    pub const fn as_std(self) -> std::time::Duration {
        self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> std::time::Duration {
        duration.0
    }
}

impl FromStr for Duration {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Duration, Invalid> {
        let wrong = || Invalid::value(format!("{text:?} is not a duration; write it as 10s, 200ms or 1m30s"));
        let text_trimmed = text.trim();
        if text_trimmed.is_empty() {
            return Err(wrong());
        }
        let mut rest = text_trimmed;
        let mut nanos: u128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, tail) = rest.split_at(end);
            let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let per_unit = match unit {
                // Only a number that stands alone may do without its unit.
                "" if number.len() == text_trimmed.len() => 1_000_000_000,
                _ => SUFFIXES.iter().find(|u| u.0 == unit).ok_or_else(wrong)?.1,
            };
            nanos = nanos.saturating_add(multiply(number, per_unit).ok_or_else(wrong)?);
            rest = tail;
        }
        let nanos = u64::try_from(nanos).map_err(|_| Invalid::value(format!("{text} is longer than 584 years")))?;
        Ok(Duration(std::time::Duration::from_nanos(nanos)))
    }
}

/// `number` (with at most one dot) times `unit` nanoseconds, cut to whole ones.
fn multiply(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
        return None;
    }
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX);
    let fraction = &fraction[..fraction.len().min(18)];
    let part = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit);
    let part = part / 10u128.pow(u32::try_from(fraction.len()).unwrap_or(18));
    Some(whole.saturating_mul(u128::from(unit)).saturating_add(part))
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0");
        }
        for (unit, nanos) in SUFFIXES {
            if left >= nanos {
                write!(f, "{}{unit}", left / nanos)?;
                left %= nanos;
            }
        }
        Ok(())
    }
}

text_value!(
    Duration,
    "Duration",
    string_or_number,
    "a duration: 10s, 200ms, 1m30s, or a number of seconds",
    "10s",
    "200ms"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("10", 10_000),
            ("10s", 10_000),
            ("200ms", 200),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("0.25", 250),
            ("2h", 7_200_000),
        ] {
            let read = text.parse::<Duration>().unwrap();
            assert_eq!(read.as_std().as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "s", "10x", "-1s", "1s5", "5 s", "1..5s", "1.s", "99999999999999999999h", "10S"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos: u64) {
            let duration = Duration(std::time::Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<Duration>().unwrap(), duration);
        }

        #[test]
        fn reading_never_panics(text in "[0-9.hmsun ]*|\\PC*") {
            let _ = text.parse::<Duration>();
        }
    }
}
