//! A quota of CPU time as systemd has it: time for each second.
//!
//! `CPUQuotaPerSecUSec` is a number of µs on the bus, and text where systemd
//! prints it: `250ms`, `1.500000s`, `2min 30s`, `infinity`. Source:
//! org.freedesktop.systemd1(5), systemd.time(7).

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::CpuPercent;
use crate::invalid::Invalid;

/// No limit, as systemd writes it.
pub const INFINITY: u64 = u64::MAX;

/// A percent of a CPU, in µs of a second.
const PERCENT: u64 = 10_000;

/// The words for spans of time that systemd prints, longest first, in µs each.
const WORDS: [(&str, u64); 7] = [
    ("w", 604_800_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// CPU time for each second, in µs; or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostCpuQuota(u64);

impl HostCpuQuota {
    /// No limit, which systemd prints as `infinity`.
    pub const NONE: HostCpuQuota = HostCpuQuota(INFINITY);

    /// `usec` µs for each second, as it is on the bus: `u64::MAX` is no limit.
    pub const fn per_second(usec: u64) -> HostCpuQuota {
        HostCpuQuota(usec)
    }

    /// The quota in µs for each second; `u64::MAX` is no limit.
    pub const fn as_usec(self) -> u64 {
        self.0
    }

    /// In percent of one CPU; `None` for no limit.
    pub fn percent(self) -> Option<f64> {
        (self != HostCpuQuota::NONE).then(|| self.0 as f64 / PERCENT as f64)
    }
}

impl From<CpuPercent> for HostCpuQuota {
    fn from(percent: CpuPercent) -> HostCpuQuota {
        HostCpuQuota(u64::from(percent.as_u32()) * PERCENT)
    }
}

impl FromStr for HostCpuQuota {
    type Err = Invalid;

    /// Parses what systemd prints: `250ms`, `1min 30s` or `infinity`.
    fn from_str(text: &str) -> Result<HostCpuQuota, Invalid> {
        let wrong = || Invalid::value(format!("{text:?} is no CPU time for each second, such as 250ms or infinity"));
        match text.trim() {
            "infinity" => return Ok(HostCpuQuota::NONE),
            "0" => return Ok(HostCpuQuota(0)),
            "" => return Err(wrong()),
            _ => {}
        }
        let mut usec: u64 = 0;
        for part in text.split_whitespace() {
            let end = part.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let (number, word) = part.split_at(end);
            let (_, each) = WORDS.iter().find(|(known, _)| *known == word).ok_or_else(wrong)?;
            let more = scaled(number, *each).ok_or_else(wrong)?;
            usec = usec.checked_add(more).ok_or_else(wrong)?;
        }
        Ok(HostCpuQuota(usec))
    }
}

/// A number with at most one dot, times `each`, cut to a whole one.
fn scaled(number: &str, each: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(each)?;
    // Finer than a µs of a week.
    let fraction = &fraction[..fraction.len().min(15)];
    let part = fraction.parse::<u128>().ok()? * u128::from(each) / 10u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_add(u64::try_from(part).ok()?)
}

impl fmt::Display for HostCpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            INFINITY => f.write_str("infinity"),
            0 => f.write_str("0"),
            usec => {
                let (word, each) = WORDS[4..].iter().find(|(_, each)| usec.is_multiple_of(*each)).unwrap_or(&WORDS[6]);
                write!(f, "{}{word}", usec / each)
            }
        }
    }
}

impl Serialize for HostCpuQuota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_systemd_prints_is_read() {
        for (text, usec) in [
            ("infinity", INFINITY),
            ("0", 0),
            ("250ms", 250_000),
            ("1s", 1_000_000),
            ("1.500000s", 1_500_000),
            ("1.5s", 1_500_000),
            ("50us", 50),
            ("1s 500ms", 1_500_000),
            ("2min 30s", 150_000_000),
            ("1h 1us", 3_600_000_001),
            ("123.456ms", 123_456),
        ] {
            assert_eq!(text.parse::<HostCpuQuota>().unwrap().as_usec(), usec, "{text}");
        }
        for text in ["", " ", "5", "-1s", "s", "1.s", ".5s", "1.2.3s", "1 s", "1S", "NaN", "[not set]", "99999999999w"]
        {
            assert!(text.parse::<HostCpuQuota>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_percent_is_ten_milliseconds_of_a_second() {
        let quota = HostCpuQuota::from("25".parse::<CpuPercent>().unwrap());
        assert_eq!((quota.as_usec(), quota.to_string().as_str(), quota.percent()), (250_000, "250ms", Some(25.0)));
        assert_eq!((HostCpuQuota::NONE.to_string().as_str(), HostCpuQuota::NONE.percent()), ("infinity", None));
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(usec: u64) {
            prop_assert_eq!(HostCpuQuota(usec).to_string().parse::<HostCpuQuota>().unwrap(), HostCpuQuota(usec));
        }

        #[test]
        fn reading_never_panics(text in "\\PC*|[0-9.a-z ]*") {
            let _ = text.parse::<HostCpuQuota>();
        }
    }
}
