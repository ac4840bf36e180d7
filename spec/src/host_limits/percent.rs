//! CPU time in percent of one CPU.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// As many CPUs as Linux can be built for, in percent.
const MOST: u32 = 819_200;

/// CPU time in percent of one CPU: `25`, `"25%"`, and `200` for two CPUs.
///
/// A whole number above 0: it is what systemd keeps of a quota, and cuts off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuPercent(u32);

impl CpuPercent {
    /// Whole percents of one CPU: 200 is two CPUs.
    pub const fn as_u32(self) -> u32 {
        self.0
    }
}

impl FromStr for CpuPercent {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<CpuPercent, Invalid> {
        let wrong = |why: &str| Invalid::value(format!("{text} is {why}; write 25 for a quarter of a CPU"));
        let trimmed = text.trim();
        let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
        let percent = number.parse::<f64>().ok().filter(|percent| percent.is_finite());
        let percent = percent.ok_or_else(|| wrong("no number of percents"))?;
        if percent <= 0.0 {
            return Err(wrong("not above 0 percent, and would stop what it limits"));
        }
        if percent.fract() != 0.0 {
            return Err(wrong("no whole number of percents, which is all that systemd keeps"));
        }
        if percent > f64::from(MOST) {
            return Err(wrong("more than any machine has"));
        }
        // Whole, and in range.
        Ok(CpuPercent(percent as u32))
    }
}

impl fmt::Display for CpuPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl serde::Serialize for CpuPercent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

text_value!(
    read CpuPercent,
    "CpuPercent",
    string_or_number,
    "CPU time in whole percents of one CPU, above 0, such as 25 or 200",
    25,
    "25%"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_whole_and_above_none() {
        for (text, percent) in [("25", 25), ("25%", 25), (" 200 % ", 200), ("1", 1), ("1e2", 100), ("819200", MOST)] {
            assert_eq!(text.parse::<CpuPercent>().unwrap().as_u32(), percent, "{text}");
        }
        for (text, why) in [
            ("0", "not above 0"),
            ("-5", "not above 0"),
            ("0.0%", "not above 0"),
            ("NaN", "no number"),
            ("inf", "no number"),
            ("", "no number"),
            ("half", "no number"),
            ("25%%", "no number"),
            ("0.5", "no whole"),
            ("819201", "more than any"),
            ("1e300", "more than any"),
        ] {
            let error = text.parse::<CpuPercent>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text} is {why}")), "{error}");
        }
    }

    #[test]
    fn json_has_it_as_a_number() {
        let percent: CpuPercent = serde_json::from_str("\"25%\"").unwrap();
        assert_eq!(serde_json::to_string(&percent).unwrap(), "25");
        assert_eq!(serde_json::from_str::<CpuPercent>("25.0").unwrap(), percent);
        assert!(serde_json::from_str::<CpuPercent>("-1").is_err());
    }
}
