//! The devices that a unit may use, as properties for systemd.
//!
//! On v2 the policy stays `auto`, with which systemd attaches no program of its own and never touches ours. On v1
//! `auto` would make systemd write `a` to `devices.allow`, which means every device of the host, so on v1 systemd gets
//! the same rules: `strict`, and what is allowed. Pure.

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

/// Looks up a driver's name in the text of `/proc/devices`, proc(5): two lists, each with its heading.
pub fn driver_of(known: &str, kind: char, major: u64) -> Option<String> {
    let heading = if kind == 'b' { "Block devices:" } else { "Character devices:" };
    let list = known.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    let mut entries = list.filter_map(|line| line.trim().split_once(' '));
    entries.find(|(number, _)| number.parse() == Ok(major)).map(|(_, name)| name.trim().to_owned())
}

/// What v1's rules allow, of those in the order in which they are written; `None` where that is everything.
///
/// `driver_of` returns the name that character ('c') or block ('b') devices of a major number have.
pub fn allowed(
    rules: &[&LinuxDeviceCgroup],
    driver_of: impl Fn(char, u64) -> Option<String>,
) -> Option<Vec<(String, String)>> {
    let mut strict = false;
    let mut allowed: Vec<(String, String)> = Vec::new();
    for rule in rules {
        let kind = match rule.typ().unwrap_or(LinuxDeviceType::A) {
            LinuxDeviceType::B => 'b',
            LinuxDeviceType::C | LinuxDeviceType::U => 'c',
            LinuxDeviceType::A | LinuxDeviceType::P => {
                strict = !rule.allow();
                allowed.clear();
                continue;
            }
        };
        let Some(device) = device(kind, rule, &driver_of) else { continue };
        allowed.retain(|(known, _)| *known != device);
        if rule.allow() {
            allowed.push((device, rule.access().clone().unwrap_or_else(|| "rwm".to_owned())));
        }
    }
    strict.then_some(allowed)
}

/// The devices of a rule, as systemd names them.
fn device(kind: char, rule: &LinuxDeviceCgroup, driver_of: impl Fn(char, u64) -> Option<String>) -> Option<String> {
    let word = if kind == 'b' { "block" } else { "char" };
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    Some(match (number(rule.major()), number(rule.minor())) {
        (None, _) => format!("{word}-*"),
        (Some(major), None) => format!("{word}-{}", driver_of(kind, major)?),
        (Some(major), Some(minor)) => format!("/dev/{word}/{major}:{minor}"),
    })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxDeviceCgroupBuilder;

    use super::*;

    #[test]
    fn what_rules_allow_is_listed_where_systemd_would_undo_them() {
        let rule = |allow, kind, major: i64, minor: i64, access: &str| {
            let rule = LinuxDeviceCgroupBuilder::default().allow(allow).typ(kind).major(major).minor(minor);
            rule.access(access).build().expect("a rule")
        };
        let allowed = |rules: &[LinuxDeviceCgroup]| {
            let rules: Vec<&LinuxDeviceCgroup> = rules.iter().collect();
            allowed(&rules, |kind, major| (kind == 'c' && major == 136).then(|| "pts".to_owned()))
        };
        let (all, block, character) = (LinuxDeviceType::A, LinuxDeviceType::B, LinuxDeviceType::C);
        let none = rule(false, all, -1, -1, "rwm");
        let rules = [
            none.clone(),
            rule(true, character, 1, 3, "rwm"),
            rule(true, character, 136, -1, "rw"),
            rule(true, character, -1, -1, "m"),
            rule(true, block, 8, 0, "r"),
            rule(true, character, 77, -1, "r"),
            rule(false, block, 8, 0, "r"),
        ];
        let expected = [("/dev/char/1:3", "rwm"), ("char-pts", "rw"), ("char-*", "m")];
        let expected = expected.map(|(device, access)| (device.to_owned(), access.to_owned())).to_vec();
        assert_eq!(allowed(&rules), Some(expected));
        assert_eq!(allowed(&[none, rule(true, all, -1, -1, "rwm")]), None);
    }

    #[test]
    fn drivers_are_found_by_their_major_number() {
        let known = "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  8 sd\n 65 sd\n";
        assert_eq!(driver_of(known, 'c', 136).as_deref(), Some("pts"));
        assert_eq!(driver_of(known, 'b', 8).as_deref(), Some("sd"));
        assert_eq!((driver_of(known, 'b', 1), driver_of(known, 'c', 8)), (None, None));
    }
}
