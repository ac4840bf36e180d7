//! A set of CPU or memory node numbers, as the kernel lists them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// Keeps `0-4294967295` from filling the memory; Linux has at most 8,192 CPUs.
const HIGHEST: u32 = 65_535;

/// A non-empty set of CPU or memory node numbers: `0-1,3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdSet(BTreeSet<u32>);

impl IdSet {
    /// The numbers in it, at least one.
    pub fn ids(&self) -> &BTreeSet<u32> {
        &self.0
    }

    /// The set of `ids`; nothing if there are none.
    pub fn new(ids: BTreeSet<u32>) -> Option<IdSet> {
        (!ids.is_empty()).then_some(IdSet(ids))
    }
}

impl FromStr for IdSet {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<IdSet, Invalid> {
        let wrong = || Invalid::value(format!("{text} is not a list of numbers such as 0-1,3"));
        let id = |s: &str| {
            let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            let id = s.parse::<u32>().ok().filter(|id| plain && *id <= HIGHEST);
            id.ok_or_else(wrong)
        };
        let mut ids = BTreeSet::new();
        for part in text.trim().split(',') {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (id(first)?, id(last)?);
            if first > last {
                return Err(wrong());
            }
            ids.extend(first..=last);
        }
        Ok(IdSet(ids))
    }
}

impl fmt::Display for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if(|id| *id == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

text_value!(IdSet, "IdSet", string_or_number, "a list of CPU or memory node numbers, such as 0-1,3", "0-1,3");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_and_joined() {
        let set = "3,0-1,2".parse::<IdSet>().unwrap();
        assert_eq!(set.to_string(), "0-3");
        assert_eq!("0,2, 4-5".parse::<IdSet>().unwrap().to_string(), "0,2,4-5");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", ",", "1-", "-1", "2-1", "a", "0-4294967295", "+1", "1--2"] {
            assert!(text.parse::<IdSet>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ids in proptest::collection::btree_set(0..=HIGHEST, 1..50)) {
            let set = IdSet::new(ids).unwrap();
            prop_assert_eq!(set.to_string().parse::<IdSet>().unwrap(), set);
        }
    }
}
