//! Numbers in values for files of cgroup v2, as the kernel parses them: each file has its own function for that.
//!
//! Stricter than the kernel in one place: it takes digits with anything behind them for some files, such as `1M` for 1
//! in `io.max`. That is no number here.

use crate::values::Amount;

/// What the kernel's files say for "no limit".
const MAX: &str = "max";

/// The suffixes of an amount of memory, each 1024 times the one before.
const SUFFIXES: [char; 6] = ['k', 'm', 'g', 't', 'p', 'e'];

/// An amount of memory, in bytes: memparse(). A number in any base, with a suffix or without.
pub fn memory(text: &str) -> Option<Amount> {
    if text == MAX {
        return Some(Amount(None));
    }
    let last = text.chars().last()?.to_ascii_lowercase();
    // The hexadecimal digit E is one.
    if let Some(bytes) = of_any_base(text) {
        return Some(Amount(Some(bytes)));
    }
    let power = SUFFIXES.iter().position(|suffix| *suffix == last)?;
    let number = of_any_base(&text[..text.len() - 1])?;
    number.checked_mul(1 << (10 * (power + 1))).map(|bytes| Amount(Some(bytes)))
}

/// A number of processes: kstrtoll() in any base.
pub fn count(text: &str) -> Option<Amount> {
    if text == MAX { Some(Amount(None)) } else { whole(text).map(|number| Amount(Some(number))) }
}

/// A number alone: kstrtoull() in any base, which takes a sign.
pub fn whole(text: &str) -> Option<u64> {
    of_any_base(text.strip_prefix('+').unwrap_or(text))
}

/// A number or "no limit", of sscanf().
pub fn rate(text: &str) -> Option<Amount> {
    if text == MAX { Some(Amount(None)) } else { decimal(text).map(|number| Amount(Some(number))) }
}

/// A number of sscanf(), whose `%u` knows base 10 alone.
pub fn decimal(text: &str) -> Option<u64> {
    digits(text, 10)
}

/// `0x` is for base 16, `0` for base 8.
fn of_any_base(text: &str) -> Option<u64> {
    if let Some(hexadecimal) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return digits(hexadecimal, 16);
    }
    digits(text, if text.starts_with('0') { 8 } else { 10 })
}

/// Digits alone: the standard library would take a sign.
fn digits(text: &str, base: u32) -> Option<u64> {
    let all = text.chars().all(|digit| digit.is_digit(base));
    if all { u64::from_str_radix(text, base).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_suffixes_and_bases() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("1K", 1 << 10),
            ("2g", 2 << 30),
            ("1T", 1 << 40),
            ("1p", 1 << 50),
            ("1E", 1 << 60),
            ("0x10k", 16 << 10),
            ("0X1e", 0x1e),
            ("010", 8),
            ("010K", 8 << 10),
        ];
        for (text, bytes) in cases {
            assert_eq!(memory(text), Some(Amount(Some(bytes))), "{text}");
        }
        assert_eq!(memory("max"), Some(Amount(None)));
        for text in ["", "K", "MAX", "1MB", "1 M", "+1", "-1", "08", "0x", "1.5G", "32E", "99999999999999999999", "1é"]
        {
            assert_eq!(memory(text), None, "{text}");
        }
    }

    #[test]
    fn other_numbers_have_no_suffix() {
        assert_eq!([whole("+100"), whole("0144"), whole("0x64")], [Some(100); 3]);
        assert_eq!([whole("1k"), whole("-1"), whole("++1"), whole("")], [None; 4]);
        assert_eq!((count("max"), count("+5")), (Some(Amount(None)), Some(Amount(Some(5)))));
        assert_eq!((count("-1"), count("1K")), (None, None));
        assert_eq!([decimal("010"), decimal("10")], [Some(10); 2]);
        assert_eq!([decimal("0x10"), decimal("+1"), decimal("1M"), decimal("")], [None; 4]);
        assert_eq!((rate("max"), rate("007")), (Some(Amount(None)), Some(Amount(Some(7)))));
    }
}
