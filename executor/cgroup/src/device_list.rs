//! The device allow-list on cgroup v1: what the rules of a configuration leave, in a form that the kernel keeps.
//!
//! ```text
//!   rules, of which the last that fits a device counts ─► one answer for all devices, and a list of exceptions from it
//! ```
//!
//! The kernel (security/device_cgroup.c) takes an exception back only by the same type and numbers, and ignores whatever
//! is less or more than one that it has. So the list is worked out here: a rule that takes back several exceptions takes
//! each of them back, and one that takes back a part of an exception is refused. Pure.

use bowline_error::{Error, Kind, Result};
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

/// What opens and makes devices, as letters of a rule.
const LETTERS: [char; 3] = ['r', 'w', 'm'];

/// The rules that leave on v1 what `rules` mean, without one that takes anything back: first the one for all devices,
/// then its exceptions. None of none.
///
/// # Errors
/// `Unsupported` naming the rule that denies a part of what another one allows, or all but a part.
pub fn of(rules: &[LinuxDeviceCgroup]) -> Result<Vec<LinuxDeviceCgroup>> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    // What no rule speaks of is denied, as on v2.
    let (all, from) = rules.iter().rposition(is_for_all).map_or((false, 0), |at| (rules[at].allow(), at + 1));
    let mut exceptions: Vec<Devices> = Vec::new();
    for (index, rule) in rules.iter().enumerate().skip(from) {
        for devices in of_rule(index, rule) {
            match rule.allow() == all {
                true => take_back(&mut exceptions, &devices, all)?,
                false => exceptions.push(devices),
            }
        }
    }
    let mut list = vec![of_all(all)];
    list.extend(joined(exceptions).iter().map(|devices| devices.rule(!all)));
    Ok(list)
}

/// Whether a rule is for every device and every access to it. v1's file knows no other rule for both types of devices.
fn is_for_all(rule: &LinuxDeviceCgroup) -> bool {
    let access = rule.access().as_deref().unwrap_or_default();
    is_for_both(rule)
        && number(rule.major()).is_none()
        && number(rule.minor()).is_none()
        && LETTERS.iter().all(|letter| access.contains(*letter))
}

fn is_for_both(rule: &LinuxDeviceCgroup) -> bool {
    matches!(rule.typ(), None | Some(LinuxDeviceType::A))
}

/// A number of a rule; none is every number.
fn number(number: Option<i64>) -> Option<i64> {
    number.filter(|number| *number >= 0)
}

fn of_all(allow: bool) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow).set_typ(Some(LinuxDeviceType::A)).set_access(Some(LETTERS.iter().collect()));
    rule
}

/// Devices of one type, and access to them.
#[derive(Clone)]
struct Devices {
    kind: LinuxDeviceType,
    major: Option<i64>,
    minor: Option<i64>,
    /// Which of [`LETTERS`] the rule names, in their order.
    access: [bool; LETTERS.len()],
    /// The place of the rule that names them.
    rule: usize,
}

/// What a rule names: one of both types names devices of each.
fn of_rule(index: usize, rule: &LinuxDeviceCgroup) -> Vec<Devices> {
    let access = rule.access().as_deref().unwrap_or_default();
    let of = |kind| Devices {
        kind,
        major: number(rule.major()),
        minor: number(rule.minor()),
        access: LETTERS.map(|letter| access.contains(letter)),
        rule: index,
    };
    match rule.typ() {
        Some(kind) if !is_for_both(rule) => vec![of(kind)],
        _ => vec![of(LinuxDeviceType::B), of(LinuxDeviceType::C)],
    }
}

impl Devices {
    fn is_like(&self, other: &Devices) -> bool {
        (self.kind, self.major, self.minor) == (other.kind, other.major, other.minor)
    }

    /// Whether some access to some device is in both.
    fn meets(&self, other: &Devices) -> bool {
        let numbers = [(self.major, other.major), (self.minor, other.minor)];
        self.kind == other.kind
            && numbers.iter().all(|(one, other)| one.is_none() || other.is_none() || one == other)
            && self.access.iter().zip(other.access).any(|(one, other)| *one && other)
    }

    /// Whether every device of `other` is one of these.
    fn has_all_of(&self, other: &Devices) -> bool {
        let numbers = [(self.major, other.major), (self.minor, other.minor)];
        self.kind == other.kind && numbers.iter().all(|(one, other)| one.is_none() || one == other)
    }

    fn rule(&self, allow: bool) -> LinuxDeviceCgroup {
        let mut rule = LinuxDeviceCgroup::default();
        let access = LETTERS.iter().zip(self.access).filter(|(_, has)| *has).map(|(letter, _)| letter);
        rule.set_allow(allow).set_typ(Some(self.kind)).set_major(self.major).set_minor(self.minor);
        rule.set_access(Some(access.collect()));
        rule
    }
}

/// Takes `devices` back from the exceptions, to which the answer for all devices, `all`, is given again.
fn take_back(exceptions: &mut Vec<Devices>, devices: &Devices, all: bool) -> Result<()> {
    for exception in exceptions.iter_mut().filter(|exception| exception.meets(devices)) {
        if !devices.has_all_of(exception) {
            return Err(hole(exception, devices, all));
        }
        for (has, taken) in exception.access.iter_mut().zip(devices.access) {
            *has &= !taken;
        }
    }
    exceptions.retain(|exception| exception.access.contains(&true));
    Ok(())
}

/// The exceptions, where the access to the same devices is joined, as the kernel keeps it.
fn joined(exceptions: Vec<Devices>) -> Vec<Devices> {
    let mut joined: Vec<Devices> = Vec::new();
    for exception in exceptions {
        match joined.iter_mut().find(|other| other.is_like(&exception)) {
            Some(other) => other.access.iter_mut().zip(exception.access).for_each(|(has, more)| *has |= more),
            None => joined.push(exception),
        }
    }
    joined
}

/// The error for a part that would be taken out of an exception. It names the rule that denies: one that allows may be
/// of those that every container has.
fn hole(whole: &Devices, part: &Devices, all: bool) -> Error {
    let (rule, denied, allowed, verb) = match all {
        false => (part.rule, part.rule(false), whole.rule(true), "allowed"),
        true => (whole.rule, whole.rule(false), part.rule(true), "denied"),
    };
    let message = format!("linux.resources.devices[{rule}]: cgroup v1 cannot deny {denied} where {allowed} is allowed");
    Error::new(Kind::Unsupported, message).hint(format!("name the devices that are {verb} one by one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule as text: `+ c 10:* rw`, where `-` denies.
    fn rule(text: &str) -> LinuxDeviceCgroup {
        let words: Vec<&str> = text.split(' ').collect();
        let [allow, kind, numbers, access] = words[..] else { panic!("{text}") };
        let kind = match kind {
            "a" => LinuxDeviceType::A,
            "b" => LinuxDeviceType::B,
            _ => LinuxDeviceType::C,
        };
        let (major, minor) = numbers.split_once(':').expect("two numbers");
        let number = |text: &str| if text == "*" { Some(-1) } else { text.parse().ok() };
        let mut rule = LinuxDeviceCgroup::default();
        rule.set_allow(allow == "+").set_typ(Some(kind)).set_access(Some(access.to_owned()));
        rule.set_major(number(major)).set_minor(number(minor));
        rule
    }

    fn listed(rules: &[&str]) -> Result<Vec<String>> {
        let rules: Vec<LinuxDeviceCgroup> = rules.iter().map(|text| rule(text)).collect();
        let text = |rule: &LinuxDeviceCgroup| format!("{} {rule}", if rule.allow() { '+' } else { '-' });
        of(&rules).map(|list| list.iter().map(text).collect())
    }

    #[track_caller]
    fn assert_left(rules: &[&str], left: &[&str]) {
        assert_eq!(listed(rules), Ok(left.iter().map(|text| (*text).to_owned()).collect()), "{rules:?}");
    }

    /// `rules` are refused, and the denial at `index` is named.
    #[track_caller]
    fn assert_refused(rules: &[&str], index: usize) {
        let error = listed(rules).expect_err("a hole");
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().starts_with(&format!("linux.resources.devices[{index}]: ")), "{error}");
    }

    #[test]
    fn what_no_rule_speaks_of_is_denied() {
        assert_left(&[], &[]);
        assert_left(&["+ c 1:3 rw"], &["- a *:* rwm", "+ c 1:3 rw"]);
        assert_left(&["- c 1:3 rw"], &["- a *:* rwm"]);
    }

    #[test]
    fn the_last_rule_for_all_devices_sets_aside_what_was_before() {
        assert_left(&["+ c 1:3 rwm", "- a *:* rwm", "+ b 8:0 r"], &["- a *:* rwm", "+ b 8:0 r"]);
        assert_left(&["- a *:* rwm", "- b 8:0 r", "+ a *:* mwr", "- b 8:1 r"], &["+ a *:* rwm", "- b 8:1 r"]);
        assert_left(&["- a *:* rwm", "+ c 10:* rwm", "- c 10:237 rwm", "- a *:* rwm"], &["- a *:* rwm"]);
    }

    #[test]
    fn a_rule_for_all_kinds_that_is_not_for_all_devices_is_for_each_kind() {
        let left = ["- a *:* rwm", "+ b 10:* m", "+ c 10:* m", "+ b *:* r", "+ c *:* r"];
        assert_left(&["- a *:* rwm", "+ a 10:* m", "+ a *:* r"], &left);
    }

    #[test]
    fn access_to_the_same_devices_is_joined() {
        assert_left(&["+ c 1:3 r", "+ c 1:5 r", "+ c 1:3 w"], &["- a *:* rwm", "+ c 1:3 rw", "+ c 1:5 r"]);
    }

    #[test]
    fn a_rule_takes_back_every_exception_that_it_covers() {
        assert_left(&["+ c 10:5 rwm", "- c 10:5 w"], &["- a *:* rwm", "+ c 10:5 rm"]);
        assert_left(&["+ c 10:5 rw", "+ c 10:6 r", "+ c 9:5 r", "- c 10:* rwm"], &["- a *:* rwm", "+ c 9:5 r"]);
        assert_left(&["+ c 10:5 rwm", "+ b 10:5 r", "- c *:* rw"], &["- a *:* rwm", "+ c 10:5 m", "+ b 10:5 r"]);
        assert_left(&["+ c 10:5 r", "- a *:* r", "+ c 10:5 w"], &["- a *:* rwm", "+ c 10:5 w"]);
        assert_left(&["+ c 10:* r", "+ c 10:5 w", "- c 10:5 w"], &["- a *:* rwm", "+ c 10:* r"]);
        let all = "+ a *:* rwm";
        assert_left(&[all, "- c 10:5 rwm", "- b 8:0 w", "+ c *:* m", "+ b *:* rwm"], &[all, "- c 10:5 rw"]);
    }

    #[test]
    fn a_part_of_what_is_allowed_cannot_be_denied() {
        assert_refused(&["- a *:* rwm", "+ c 10:* rwm", "- c 10:237 rwm"], 2);
        assert_refused(&["- a *:* rwm", "+ c *:* rwm", "- c 10:* w"], 2);
        assert_refused(&["+ c *:* rw", "- a 10:237 rw"], 1);
        // Neither has all of the other.
        assert_refused(&["+ c 10:* rw", "- c *:237 r"], 1);
    }

    #[test]
    fn all_but_a_part_cannot_be_denied_where_all_is_allowed() {
        assert_refused(&["+ a *:* rwm", "- b 8:0 r", "- c 10:* rwm", "+ c 10:237 rwm"], 2);
    }

    #[test]
    fn a_part_with_other_access_is_no_part() {
        assert_left(&["+ c 10:* r", "- c 10:237 w"], &["- a *:* rwm", "+ c 10:* r"]);
        assert_left(&["+ b *:* m", "- b 8:0 rw"], &["- a *:* rwm", "+ b *:* m"]);
    }
}
