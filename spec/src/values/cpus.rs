//! A number of CPUs, possibly fractional.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// Above what Linux can be built for (NR_CPUS 8192), below what overflows a quota.
const MOST: u64 = 65_536;
const MILLION: u64 = 1_000_000;

/// How much CPU time per wall time: `0.5`, `2`. Above 0.
///
/// Kept in millionths, the kernel's µs of a second, so that what is written
/// and read again is the same to the last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus {
    millionths: u64,
}

impl Cpus {
    /// `cpus` CPUs, to the nearest millionth; an error unless that is above 0
    /// and at most 65,536 CPUs.
    pub fn new(cpus: f64) -> Result<Cpus, Invalid> {
        // NaN becomes 0, what is too large the maximum.
        let millionths = (cpus * MILLION as f64).round() as u64;
        match millionths {
            0 if cpus > 0.0 => Err(Invalid::value(format!("{cpus} is less than a millionth of a CPU"))),
            0 => {
                Err(Invalid::value(format!("{cpus} is not a number of CPUs; write a number above 0, such as 0.5 or 2")))
            }
            _ if millionths > MOST * MILLION => Err(Invalid::value(format!(
                "{cpus} is more than {MOST} CPUs, the highest limit there is; leave it out for none"
            ))),
            _ => Ok(Cpus { millionths }),
        }
    }

    /// The number of CPUs, in steps of a millionth.
    pub fn as_f64(self) -> f64 {
        self.millionths as f64 / MILLION as f64
    }

    /// The CPU time, in µs, that this many CPUs give in a period of `period_us`.
    pub fn quota_us(self, period_us: u64) -> i64 {
        let quota = u128::from(self.millionths) * u128::from(period_us) / u128::from(MILLION);
        i64::try_from(quota).unwrap_or(i64::MAX)
    }
}

impl FromStr for Cpus {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Cpus, Invalid> {
        let cpus = text.trim().parse::<f64>().map_err(|_| {
            Invalid::value(format!("{text:?} is not a number of CPUs; write a number above 0, such as 0.5 or 2"))
        })?;
        Cpus::new(cpus)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

impl serde::Serialize for Cpus {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
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
        for text in ["0", "-1", "0.0", "NaN", "inf", "-inf", "", "two", "1e9", "1e-9"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_outside_the_range_is_still_a_number() {
        for (text, why) in [
            ("100000", "100000 is more than 65536 CPUs"),
            ("65536.5", "more than 65536"),
            ("1e-9", "less than a millionth"),
        ] {
            let error = text.parse::<Cpus>().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("not a number"), "{error}");
        }
        assert_eq!("65536".parse::<Cpus>().unwrap().quota_us(100_000), 6_553_600_000);
    }

    #[test]
    fn half_a_cpu_is_half_the_period() {
        assert_eq!("0.5".parse::<Cpus>().unwrap().quota_us(100_000), 50_000);
        assert_eq!("0.01".parse::<Cpus>().unwrap().quota_us(100_000), 1_000);
        assert_eq!("1.1".parse::<Cpus>().unwrap().quota_us(100_000), 110_000);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(cpus in 1e-6..65_536.0f64) {
            let cpus = Cpus::new(cpus).unwrap();
            prop_assert_eq!(cpus.to_string().parse::<Cpus>().unwrap(), cpus);
            let json = serde_json::to_string(&cpus).unwrap();
            prop_assert_eq!(serde_json::from_str::<Cpus>(&json).unwrap(), cpus);
        }
    }
}
