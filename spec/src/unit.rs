//! Names of systemd's units, and the cgroups that systemd makes of them.
//!
//! ```text
//!   kubepods-burstable.slice ─► /kubepods.slice/kubepods-burstable.slice
//! ```
//!
//! Source of the rules: systemd.unit(5), systemd.slice(5), systemd-escape(1).
//! Pure: asks systemd nothing.

use std::fmt::Write as _;

/// The longest name of a unit, its suffix included.
pub const LONGEST: usize = 255;

/// The root of all slices.
pub const ROOT: &str = "-.slice";

/// A cgroup's name cannot begin with one of these and a dot, since the kernel's
/// files do: systemd puts `_` before such a name.
const RESERVED: [&str; 12] =
    ["cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids", "hugetlb", "misc", "rdma"];

/// Escapes characters that a unit's name cannot have as `\xNN`, like
/// systemd-escape, except `-`, which is allowed and common in ids.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'.' if at == 0 => out.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' | b'-' => out.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
    out
}

/// Escapes `text` as one part of a slice's name, `-` included: in a slice's name
/// `-` nests, so `web-1` would be inside `web`.
pub fn part(text: &str) -> String {
    escaped(text).replace('-', "\\x2d")
}

/// Undoes [`escaped`] and [`part`]; `None` for a malformed escape or a result that is not UTF-8.
pub fn unescaped(name: &str) -> Option<String> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'\\' {
            let hex = after.strip_prefix(b"x").and_then(|hex| hex.get(..2))?;
            // from_str_radix would take a sign.
            let digit = |hex: u8| char::from(hex).to_digit(16);
            out.push(u8::try_from(digit(hex[0])? * 16 + digit(hex[1])?).ok()?);
            rest = after.get(3..)?;
        } else {
            out.push(byte);
            rest = after;
        }
    }
    String::from_utf8(out).ok()
}

/// The parent of a slice, from its name alone.
pub fn parent(slice: &str) -> String {
    let stem = slice.strip_suffix(".slice").unwrap_or(slice);
    let above = stem.rsplit_once('-').map(|(above, _)| above).filter(|above| !above.is_empty());
    above.map_or(ROOT.to_owned(), |above| format!("{above}.slice"))
}

/// The cgroup of a slice: `/a.slice/a-b.slice` for `a-b.slice`, empty for the
/// root slice.
pub fn slice_path(slice: &str) -> String {
    let mut path = String::new();
    if slice == ROOT {
        return path;
    }
    let stem = slice.strip_suffix(".slice").unwrap_or(slice);
    let ends = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
    for end in ends {
        path = path + "/" + &folder(&format!("{}.slice", &stem[..end]));
    }
    path
}

/// The folder that systemd makes for a unit.
pub fn folder(unit: &str) -> String {
    let reserved = |word: &&str| unit.strip_prefix(*word).is_some_and(|rest| rest.starts_with('.'));
    if unit.starts_with(['_', '.']) || RESERVED.iter().any(reserved) {
        return format!("_{unit}");
    }
    unit.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slices_nest_by_their_names() {
        for (slice, path, above) in [
            ("-.slice", "", "-.slice"),
            ("a.slice", "/a.slice", "-.slice"),
            ("a-b.slice", "/a.slice/a-b.slice", "a.slice"),
            ("test-a-b.slice", "/test.slice/test-a.slice/test-a-b.slice", "test-a.slice"),
            ("cpu.slice", "/_cpu.slice", "-.slice"),
            ("cpux.slice", "/cpux.slice", "-.slice"),
            ("_a.slice", "/__a.slice", "-.slice"),
        ] {
            assert_eq!((slice_path(slice).as_str(), parent(slice).as_str()), (path, above), "{slice}");
        }
    }

    #[test]
    fn a_part_of_a_slices_name_has_no_hyphen() {
        assert_eq!(part("web-1"), "web\\x2d1");
        assert_eq!(part(".a/b"), "\\x2ea\\x2fb");
        assert_eq!(slice_path(&format!("{}.slice", part("a-b"))), "/a\\x2db.slice");
    }

    #[test]
    fn what_nobody_has_escaped_is_no_text() {
        for name in ["\\", "\\x", "\\x2", "\\y2d", "\\xgg", "\\xff", "\\x+1"] {
            assert_eq!(unescaped(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_escaped_parses_back_and_is_a_units_name(text in "\\PC{0,40}") {
            for name in [escaped(&text), part(&text)] {
                prop_assert_eq!(unescaped(&name), Some(text.clone()));
                let valid = |c: char| c.is_ascii_alphanumeric() || ":_.-\\".contains(c);
                prop_assert!(name.chars().all(valid), "{}", name);
            }
            prop_assert!(!part(&text).contains('-'));
        }

        #[test]
        fn unescaping_never_panics(text in "\\PC*|[\\\\x0-9a-f]*") {
            let _ = unescaped(&text);
        }
    }
}
