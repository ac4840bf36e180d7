//! Accepts configurations that ask for something this host or our types lack. The runtime specification wants such a
//! container to start, with a warning in the log.
//!
//! ```text
//!   text ─► as it is ─► fails ─► adapted ─► Spec or Process ─► grant: capabilities that this host can give
//! ```
//!
//! A configuration without such requests is parsed once. Must not: accept what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use bowline_error::Result;
use libcontainer::capabilities::CapabilityExt as _;
use oci_spec::runtime::{Capabilities, Capability, LinuxResources, Process, Spec};
use rustix::thread::{self, CapabilitySet};
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde_json::{Value, json};

use crate::oci::{self, Sent};

/// Flags of the scheduler: the name that the specification gives them, and the one that oci-spec does.
const SCHEDULER_FLAGS: [(&str, &str); 2] =
    [("SCHED_FLAG_RESET_ON_FORK", "SCHED_RESET_ON_FORK"), ("SCHED_FLAG_DL_OVERRUN", "SCHED_FLAG_D_L_OVERRUN")];

/// Parses a configuration.
///
/// # Errors
/// As [`oci::parse`].
pub fn spec(text: &[u8]) -> Result<Spec> {
    #[derive(Deserialize)]
    struct Config {
        process: Option<Named>,
    }
    let named = serde_json::from_slice(text).ok().and_then(|config: Config| config.process);
    parsed(text, named, |config: &mut Value| {
        let mut adapted = leave_out_empty(config, &["vm"]);
        adapted |= config.get_mut("linux").is_some_and(leave_out_no_filter);
        adapted |= config.pointer_mut("/linux/resources").is_some_and(leave_out_no_type);
        adapted |= config.get_mut("linux").is_some_and(|linux| leave_out_empty(linux, &["personality"]));
        config.get_mut("process").is_some_and(adapt) || adapted
    })
}

/// Parses the process of an exec.
///
/// # Errors
/// As [`oci::parse`].
pub fn process(text: &[u8]) -> Result<Process> {
    parsed(text, serde_json::from_slice(text).ok(), adapt)
}

/// Parses what a manager sends to change limits.
///
/// # Errors
/// As [`oci::parse`].
pub fn resources(text: &[u8]) -> Result<LinuxResources> {
    parsed(text, None, leave_out_no_type)
}

/// The names of a process's capabilities, as they are written.
#[derive(Deserialize)]
struct Named {
    capabilities: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl Named {
    fn has_unknown(&self) -> bool {
        self.capabilities.iter().flat_map(BTreeMap::values).flatten().flatten().any(|name| !is_known(name))
    }
}

/// Whether the specification has a capability of this name. The library also knows others, such as `kill` and
/// `cap_kill`.
fn is_known(name: &str) -> bool {
    let is_full = name.starts_with("CAP_") && !name.bytes().any(|byte| byte.is_ascii_lowercase());
    is_full && Capability::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).is_ok()
}

/// Parses `text` as it is, or as `adapt` makes it. `adapt` returns whether it has changed anything.
fn parsed<T: Sent>(text: &[u8], named: Option<Named>, adapt: impl FnOnce(&mut Value) -> bool) -> Result<T> {
    let as_it_is = oci::parse(text);
    if as_it_is.is_ok() && !named.is_some_and(|named| named.has_unknown()) {
        return as_it_is;
    }
    // Its error says where in the text it is.
    let Ok(mut value) = serde_json::from_slice(text) else { return as_it_is };
    if adapt(&mut value) { oci::parse(value.to_string().as_bytes()) } else { as_it_is }
}

/// Takes the fields with these names out that are unset: Go writes a structure that is empty. Returns whether there were
/// any.
fn leave_out_empty(of: &mut Value, names: &[&str]) -> bool {
    let Some(fields) = of.as_object_mut() else { return false };
    let before = fields.len();
    fields.retain(|name, value| !names.contains(&name.as_str()) || !value.is_object() || !is_empty(value));
    fields.len() < before
}

/// Takes out a filter without a default action and without rules, whatever else it says: there is none. Returns whether
/// there was one.
fn leave_out_no_filter(linux: &mut Value) -> bool {
    let unset = |filter: &Value, field: &str| filter.get(field).is_none_or(is_empty);
    let is_none = |filter: &Value| filter.is_object() && unset(filter, "defaultAction") && unset(filter, "syscalls");
    let Some(fields) = linux.as_object_mut().filter(|fields| fields.get("seccomp").is_some_and(is_none)) else {
        return false;
    };
    fields.remove("seccomp").is_some()
}

/// Takes empty types out of rules for devices, which are for all then. Returns whether there were any.
fn leave_out_no_type(resources: &mut Value) -> bool {
    let rules = resources.get_mut("devices").and_then(Value::as_array_mut);
    let left_out = rules.into_iter().flatten().map(|rule| leave_out_empty_text(rule, "type"));
    left_out.filter(|left_out| *left_out).count() > 0
}

fn leave_out_empty_text(of: &mut Value, name: &str) -> bool {
    let Some(fields) = of.as_object_mut().filter(|fields| fields.get(name) == Some(&json!(""))) else { return false };
    fields.remove(name).is_some()
}

/// Whether a value means unset, as Go writes it.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

fn adapt(process: &mut Value) -> bool {
    let mut adapted = leave_out_empty(process, &["execCPUAffinity", "ioPriority", "scheduler"]);
    let Some(fields) = process.as_object_mut() else { return false };
    if fields.get("user").is_none_or(Value::is_null) {
        fields.insert("user".to_owned(), json!({ "uid": 0, "gid": 0 }));
        adapted = true;
    }
    let sets = fields.get_mut("capabilities").and_then(Value::as_object_mut);
    let mut unknown = BTreeSet::new();
    for set in sets.into_iter().flat_map(|sets| sets.values_mut()).filter_map(Value::as_array_mut) {
        set.retain(|name| {
            let known = name.as_str().is_none_or(is_known);
            if !known {
                unknown.extend(name.as_str().map(str::to_owned));
            }
            known
        });
    }
    if !unknown.is_empty() {
        warn_of(unknown);
        adapted = true;
    }
    let flags = fields.get_mut("scheduler").and_then(|scheduler| scheduler.get_mut("flags"));
    for flag in flags.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some((_, ours)) = SCHEDULER_FLAGS.iter().find(|(name, _)| flag == name) {
            *flag = json!(ours);
            adapted = true;
        }
    }
    adapted
}

/// Leaves out the capabilities that this host does not give: the shim lacks them itself. Not for a process in another
/// user namespace than the shim's, which is given any.
pub fn grant(process: &mut Process) {
    let Some(mut sets) = process.capabilities().clone() else { return };
    let ours = thread::capabilities(None).map_or_else(|_| CapabilitySet::empty(), |sets| sets.permitted);
    let mut lacking = BTreeSet::new();
    let mut granted = |set: &Option<Capabilities>| {
        let have = |capability: &&Capability| {
            let bit = CapabilitySet::from_bits_retain(capability.to_cap().bitmask());
            if !ours.contains(bit) {
                lacking.insert(capability.to_cap().to_string());
            }
            ours.contains(bit)
        };
        set.as_ref().map(|set| set.iter().filter(have).copied().collect::<Capabilities>())
    };
    let of = sets.clone();
    sets.set_bounding(granted(of.bounding()))
        .set_effective(granted(of.effective()))
        .set_permitted(granted(of.permitted()))
        .set_inheritable(granted(of.inheritable()))
        .set_ambient(granted(of.ambient()));
    if !lacking.is_empty() {
        warn_of(lacking);
        process.set_capabilities(Some(sets));
    }
}

/// The words are runc's, because people search for them in logs.
fn warn_of(names: BTreeSet<String>) {
    let names: Vec<String> = names.into_iter().collect();
    tracing::warn!("process.capabilities: ignoring unknown or unavailable capabilities: [{}]", names.join(" "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &Value) -> Result<Process> {
        let mut process = json!({ "cwd": "/", "user": { "uid": 7 } });
        process.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        super::process(process.to_string().as_bytes())
    }

    #[test]
    fn a_process_without_a_user_is_root() {
        let user = |process: Process| (process.user().uid(), process.user().gid());
        assert_eq!(of(&json!({ "user": null })).map(user).expect("a process"), (0, 0));
        assert_eq!(of(&json!({})).map(user).expect("a process"), (7, 0));
    }

    #[test]
    fn unknown_capabilities_alone_are_left_out() {
        let process = of(&json!({ "capabilities": { "bounding": ["CAP_KILL", "CAP_X"], "ambient": ["X"] } }));
        let capabilities = process.expect("a process").capabilities().clone().expect("some");
        assert_eq!(capabilities.bounding().iter().flatten().collect::<Vec<_>>(), [&Capability::Kill]);
        assert_eq!(capabilities.ambient().as_ref().map(|set| set.len()), Some(0));
        let process = of(&json!({ "capabilities": { "bounding": ["CHOWN", "cap_kill", "Setuid", "CAP_kill"] } }));
        let capabilities = process.expect("a process").capabilities().clone().expect("some");
        assert_eq!(capabilities.bounding().as_ref().map(|set| set.len()), Some(0));
        assert!(of(&json!({ "capabilities": { "bounding": [1] } })).is_err());
    }

    #[test]
    fn flags_of_the_scheduler_have_the_names_of_the_specification() {
        let flags = |flags: Value| of(&json!({ "scheduler": { "policy": "SCHED_OTHER", "flags": flags } }));
        for (name, _) in SCHEDULER_FLAGS {
            assert!(flags(json!([name])).is_ok(), "{name}");
        }
        let error = flags(json!(["SCHED_FLAG_X"])).expect_err("unknown");
        assert!(error.to_string().contains("SCHED_FLAG_X"), "{error}");
    }

    #[test]
    fn a_rule_for_devices_with_an_empty_type_is_for_all() {
        let text = |rules: Value| json!({ "devices": rules }).to_string();
        let empty = json!({ "allow": false, "type": "", "access": "rwm" });
        let read = resources(text(json!([empty, empty])).as_bytes()).expect("resources");
        assert!(read.devices().iter().flatten().all(|rule| rule.typ().is_none()));
        let error = resources(text(json!([empty, { "allow": true, "type": "x" }])).as_bytes()).expect_err("x");
        assert!(error.to_string().contains("devices[1].type"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = spec(b"{\n\"ociVersion\": 1}").expect_err("no version");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
