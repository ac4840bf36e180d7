//! Who the task is: user, groups, mappings, host name.

use super::rules::{no_nul, require};
use crate::invalid::Invalid;
use crate::task::{IdMapping, Namespace, Task};

/// The most ranges the kernel takes in a uid_map (user_namespaces(7)).
const MOST_MAPPINGS: usize = 340;
/// __NEW_UTS_LEN: the longest host name the kernel keeps.
const LONGEST_HOSTNAME: usize = 64;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let both = task.group.is_some() && task.user.as_ref().is_some_and(|u| u.group.is_some());
    require(!both, "group", || "is given twice: here and in user".into())?;
    // NGROUPS_MAX, linux/limits.h.
    require(task.groups.len() <= 65_536, "groups", || "has more than 65536 entries".into())?;
    if let Some(hostname) = task.hostname.as_ref().filter(|hostname| !hostname.is_empty()) {
        check_hostname(hostname)?;
        require(*task.namespaces.uts() != Namespace::Host, "hostname", || {
            "would rename the host; it needs namespaces.uts = \"private\"".into()
        })?;
    }
    let private = *task.namespaces.user() == Namespace::Private;
    for (field, mappings) in [("uid_mappings", &task.uid_mappings), ("gid_mappings", &task.gid_mappings)] {
        require(private || mappings.is_empty(), field, || "is of no use without namespaces.user = \"private\"".into())?;
        require(!private || !mappings.is_empty(), field, || "is needed for namespaces.user = \"private\"".into())?;
        check_mappings(field, mappings)?;
    }
    Ok(())
}

pub(super) fn check_hostname(hostname: &str) -> Result<(), Invalid> {
    no_nul("hostname", hostname)?;
    require(hostname.len() <= LONGEST_HOSTNAME, "hostname", || {
        format!("has {} characters; at most {LONGEST_HOSTNAME}", hostname.len())
    })?;
    // RFC 1123, section 2.1.
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    require(hostname.split('.').all(label), "hostname", || {
        format!("{hostname:?} is not a host name: letters, digits and '-' in parts joined by dots")
    })
}

fn check_mappings(field: &str, mappings: &[IdMapping]) -> Result<(), Invalid> {
    require(mappings.len() <= MOST_MAPPINGS, field, || format!("has more than {MOST_MAPPINGS} ranges"))?;
    for (index, mapping) in mappings.iter().enumerate() {
        let entry = format!("{field}[{index}]");
        require(mapping.size > 0, &entry, || "maps nothing: size is 0".into())?;
        for first in [mapping.container, mapping.host] {
            // 2^32 - 1 is "no id" to the kernel.
            require(first.checked_add(mapping.size).is_some(), &entry, || {
                format!("{} ids from {first} go beyond the last one", mapping.size)
            })?;
        }
        for earlier in &mappings[..index] {
            let overlap = |a: u32, b: u32| {
                u64::from(a) < u64::from(b) + u64::from(earlier.size)
                    && u64::from(b) < u64::from(a) + u64::from(mapping.size)
            };
            let both = overlap(mapping.container, earlier.container) || overlap(mapping.host, earlier.host);
            require(!both, &entry, || "overlaps an earlier range".into())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn a_group_is_given_once() {
        accepted("user = 'nobody:nogroup'");
        accepted("user = 'nobody'\ngroup = 'nogroup'\ngroups = ['audio', 20]");
        refused("user = '1:1'\ngroup = 1", "group", "twice");
        refused("user = ''", "user", "empty");
        refused("user = 4294967295", "user", "too large");
        refused("user = -1", "user", "not the name");
        refused("groups = ['a', 'b:c']", "groups[1]", "not the name");
    }

    #[test]
    fn host_names_are_checked() {
        accepted("hostname = 'web-1.example'");
        accepted("hostname = ''\nnamespaces.uts = 'host'");
        for name in ["a b", "-a", "a-", "a..b", "a/b"] {
            refused(&format!("hostname = '{name}'"), "hostname", "not a host name");
        }
        refused(&format!("hostname = '{}'", "a".repeat(65)), "hostname", "65");
        refused("hostname = 'a'\nnamespaces.uts = 'host'", "hostname", "rename the host");
    }

    #[test]
    fn mappings_go_with_a_private_user_namespace_only() {
        let range = "[{container = 0, host = 100000, size = 65536}]";
        accepted(&format!("uid_mappings = {range}\ngid_mappings = {range}\nnamespaces.user = 'private'"));
        refused(&format!("uid_mappings = {range}"), "uid_mappings", "of no use");
        refused("namespaces.user = 'private'", "uid_mappings", "is needed");
        refused(&format!("namespaces.user = 'private'\nuid_mappings = {range}"), "gid_mappings", "is needed");
    }

    #[test]
    fn ranges_must_be_sound() {
        let with = |ranges: &str| {
            let ok = "[{container = 0, host = 100000, size = 65536}]";
            format!("namespaces.user = 'private'\ngid_mappings = {ok}\nuid_mappings = [{ranges}]")
        };
        let range =
            |container: u32, host: u32, size: u32| format!("{{container = {container}, host = {host}, size = {size}}}");
        let first = range(0, 1000, 10);
        refused(&with(&range(0, 1, 0)), "uid_mappings[0]", "size is 0");
        refused(&with(&range(0, u32::MAX, 1)), "uid_mappings[0]", "beyond");
        refused(&with(&format!("{first}, {}", range(9, 2000, 1))), "uid_mappings[1]", "overlaps");
        refused(&with(&format!("{first}, {}", range(20, 1009, 5))), "uid_mappings[1]", "overlaps");
        accepted(&with(&format!("{first}, {}", range(10, 1010, 5))));
    }
}
