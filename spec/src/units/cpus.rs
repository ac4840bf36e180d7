//! A number of CPUs, possibly fractional.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// Above what Linux can be built for (NR_CPUS 8192), below what overflows a quota.
const MOST: f64 = 65_536.0;

/// How much CPU time per wall time: `0.5`, `2`. Above 0, finite.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Cpus(f64);

impl Cpus {
    /// `cpus` CPUs; an error unless above 0 and at most 65,536.
    pub fn new(cpus: f64) -> Result<Cpus, Invalid> {
        if cpus > 0.0 && cpus <= MOST {
            Ok(Cpus(cpus))
        } else {
            Err(Invalid::value(format!(
                "{cpus} is not a number of CPUs; write a number above 0, such as 0.5 or 2"
            )))
        }
    }

    /// The number of CPUs.
    pub const fn as_f64(self) -> f64 {
        self.0
    }

    /// The CPU time, in µs, that this many CPUs give in a period of `period_us`.
    pub fn quota_us(self, period_us: u64) -> i64 {
        (self.0 * period_us as f64).round() as i64
    }
}

impl FromStr for Cpus {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Cpus, Invalid> {
        let cpus = text.trim().parse::<f64>().map_err(|_| {
            Invalid::value(format!(
                "{text} is not a number of CPUs; write a number above 0, such as 0.5 or 2"
            ))
        })?;
        Cpus::new(cpus)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl serde::Serialize for Cpus {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

text_value!(
    read Cpus,
    "Cpus",
    string_or_number,
    "a number of CPUs above 0, such as 0.5 or 2",
    0.5,
    "2"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_cpu_less_and_nonsense_are_refused() {
        for text in ["0", "-1", "0.0", "NaN", "inf", "-inf", "", "two", "1e9"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn half_a_cpu_is_half_the_period() {
        assert_eq!("0.5".parse::<Cpus>().unwrap().quota_us(100_000), 50_000);
        assert_eq!("1.1".parse::<Cpus>().unwrap().quota_us(100_000), 110_000);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(cpus in 1e-6..65_536.0f64) {
            let cpus = Cpus::new(cpus).unwrap();
            prop_assert_eq!(cpus.to_string().parse::<Cpus>().unwrap(), cpus);
        }
    }
}
