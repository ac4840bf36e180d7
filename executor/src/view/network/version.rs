//! Versions of CNI: which one a list is run with, and what each of them supports.

use bowline_error::{Error, Kind, Result};

/// The newest version that is supported here.
pub const NEWEST: &str = "1.1.0";

/// The version of a list that names none, as in the first specification.
const OLDEST: &str = "0.1.0";

/// From this version on there is CHECK, and DEL gets the result of ADD.
const CHECK: [u64; 3] = [0, 4, 0];

/// Whether plugins of this version can be asked to CHECK, and take a result with DEL.
pub fn has_check(version: &str) -> bool {
    parts(version).is_ok_and(|version| version >= CHECK)
}

/// The version that a list is run with: of those that it offers, the newest that is supported here.
///
/// # Errors
/// `BadSpec` for what is not a version.
pub fn chosen(version: Option<&str>, versions: &[&str]) -> Result<String> {
    let newest = parts(NEWEST)?;
    let mut best = None;
    // A version that stands alone is what the list's author wants, however new; plugins report if they lack it.
    for offered in versions.iter().copied().chain(version.filter(|_| !versions.is_empty())) {
        let of = parts(offered)?;
        if of <= newest && best.is_none_or(|(other, _)| of > other) {
            best = Some((of, offered));
        }
    }
    let chosen = best.map(|(_, version)| version).or(version).unwrap_or(OLDEST);
    parts(chosen)?;
    Ok(chosen.to_owned())
}

/// The numbers of a version such as `1.0.0`; missing ones are 0.
fn parts(version: &str) -> Result<[u64; 3]> {
    let none = || Error::new(Kind::BadSpec, format!("{version:?} is not a version of CNI, such as {NEWEST}"));
    let mut parts = [0; 3];
    for (index, text) in version.split('.').enumerate() {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        *parts.get_mut(index).ok_or_else(none)? = number.ok_or_else(none)?;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_is_spoken_here_is_chosen() {
        for (version, versions, expected) in [
            (None, &[][..], "0.1.0"),
            (Some("0.4.0"), &[], "0.4.0"),
            (Some("9.0.0"), &[], "9.0.0"),
            (Some("0.3.1"), &["0.4.0", "1.0.0", "1.2.0"], "1.0.0"),
            (Some("1.1.0"), &["0.4.0"], "1.1.0"),
            (None, &["0.4.0", "0.3.1"], "0.4.0"),
            (Some("1.0.0"), &["2.0.0"], "1.0.0"),
            (None, &["0.10.0", "0.9.0"], "0.10.0"),
        ] {
            assert_eq!(chosen(version, versions).expect("versions"), expected, "{version:?} {versions:?}");
        }
        for text in ["", "1.a", "1.0.0.0", "1..0", "+1", "v1"] {
            assert_eq!(chosen(Some(text), &[]).map_err(|e| e.kind()), Err(Kind::BadSpec), "{text}");
            assert!(chosen(None, &["1.0.0", text]).is_err(), "{text}");
        }
    }

    #[test]
    fn check_is_of_some_versions() {
        for (version, has) in [("0.3.1", false), ("0.4.0", true), ("1", true), ("1.1.0", true), ("x", false)] {
            assert_eq!(has_check(version), has, "{version}");
        }
    }
}
