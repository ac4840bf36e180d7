//! Accepts configurations that ask for something this host or our types lack. The runtime specification wants such a
//! container to start, with a warning in the log.
//!
//! ```text
//!   text ─► as it is ─► fails ─► adapted ─► Spec, Process or resources ─► grant: capabilities that this host can give
//! ```
//!
//! A configuration without such requests is parsed once. Must not: accept what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use bowline_error::{Error, Kind, Result};
use bowline_spec::capability::Capability as Known;
use oci_spec::runtime::{Capabilities, Capability, LinuxResources, LinuxSchedulerFlag, LinuxSeccomp, Process, Spec};
use rustix::thread::{self, CapabilitySet};
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde_json::{Map, Value, json};

use crate::oci::{self, Sent};

/// The most bytes of a configuration: what is read is held in memory.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// Flags of the scheduler: the name that the specification gives them, and the one that oci-spec does.
const SCHEDULER_FLAGS: [(&str, &str); 2] =
    [("SCHED_FLAG_RESET_ON_FORK", "SCHED_RESET_ON_FORK"), ("SCHED_FLAG_DL_OVERRUN", "SCHED_FLAG_D_L_OVERRUN")];

/// All flags of the scheduler that the specification has.
const ALL_SCHEDULER_FLAGS: [&str; 7] = [
    "SCHED_FLAG_RESET_ON_FORK",
    "SCHED_FLAG_RECLAIM",
    "SCHED_FLAG_DL_OVERRUN",
    "SCHED_FLAG_KEEP_POLICY",
    "SCHED_FLAG_KEEP_PARAMS",
    "SCHED_FLAG_UTIL_CLAMP_MIN",
    "SCHED_FLAG_UTIL_CLAMP_MAX",
];

/// A flag of the scheduler by the name that the specification gives it.
pub fn name_of_flag(flag: &LinuxSchedulerFlag) -> String {
    let ours = flag.to_string();
    SCHEDULER_FLAGS.iter().find(|(_, name)| *name == ours).map_or(ours, |(name, _)| (*name).to_owned())
}

/// Parses a configuration. Returns it with a note if a part was left out.
///
/// # Errors
/// `BadSpec` naming the field; `Unsupported` for a value that the library does not know.
pub fn spec(text: &[u8]) -> Result<(Spec, Option<String>)> {
    #[derive(Deserialize)]
    struct Config {
        process: Option<Named>,
    }
    let named = serde_json::from_slice(text).ok().and_then(|config: Config| config.process);
    let unknown = named.as_ref().map(Named::unknown).unwrap_or_default();
    let spec = parsed(text, named, |config: &mut Value| {
        let vm = json!({
            "hypervisor": { "path": "", "parameters": [] },
            "kernel": { "path": "", "parameters": [], "initrd": "" },
            "image": { "path": "", "format": "" },
        });
        let mut adapted = leave_out_unset(config, &[("vm", vm)]);
        if let Some(linux) = config.get_mut("linux") {
            adapted |= leave_out_no_filter(linux);
            adapted |= linux.get_mut("resources").is_some_and(leave_out_no_type);
            adapted |= leave_out_unset(linux, &[("personality", json!({ "domain": "", "flags": [] }))]);
        }
        config.get_mut("process").is_some_and(adapt) || adapted
    });
    spec.map(|spec| (spec, without(unknown)))
}

/// Parses the process of an exec.
///
/// # Errors
/// `BadSpec` naming the field; `Unsupported` for a value that the library does not know.
pub fn process(text: &[u8]) -> Result<Process> {
    let named: Option<Named> = serde_json::from_slice(text).ok();
    let unknown = named.as_ref().map(Named::unknown).unwrap_or_default();
    parsed(text, named, adapt).inspect(|_| drop(without(unknown)))
}

/// Parses the limits of an update.
///
/// # Errors
/// `BadSpec` naming the field; `Unsupported` for a value that the library does not know.
pub fn resources(text: &[u8]) -> Result<LinuxResources> {
    parsed(text, None, |value| {
        if value.is_null() {
            *value = json!({});
            return true;
        }
        leave_out_no_type(value)
    })
}

/// What the library takes by other names than the specification, or by default, as it is written.
#[derive(Deserialize)]
struct Named {
    capabilities: Option<BTreeMap<String, Option<Vec<String>>>>,
    scheduler: Option<NamedFlags>,
    #[serde(rename = "ioPriority")]
    io_priority: Option<NamedClass>,
}

#[derive(Deserialize)]
struct NamedFlags {
    flags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct NamedClass {
    class: Option<String>,
    priority: Option<i64>,
}

impl NamedClass {
    fn is_none(&self) -> bool {
        self.class.as_ref().is_none_or(String::is_empty)
    }
}

impl Named {
    /// The capabilities that the specification does not have.
    fn unknown(&self) -> BTreeSet<String> {
        let capabilities = self.capabilities.iter().flat_map(BTreeMap::values).flatten().flatten();
        capabilities.filter(|name| !is_known(name)).cloned().collect()
    }

    /// Whether a part is left out.
    fn is_adapted(&self) -> bool {
        !self.unknown().is_empty() || self.io_priority.as_ref().is_some_and(NamedClass::is_none)
    }

    /// # Errors
    /// `BadSpec` for a flag that the specification does not have, and for a priority without a class.
    fn check(&self) -> Result<()> {
        let mut flags = self.scheduler.iter().flat_map(|scheduler| &scheduler.flags).flatten();
        if let Some(flag) = flags.find(|flag| !ALL_SCHEDULER_FLAGS.contains(&flag.as_str())) {
            let message = format!("process.scheduler.flags: {flag} is unknown");
            let all = ALL_SCHEDULER_FLAGS.join(", ");
            return Err(Error::new(Kind::BadSpec, message).hint(format!("the flags are {all}")));
        }
        let priority = self.io_priority.as_ref().filter(|wanted| wanted.is_none()).and_then(|wanted| wanted.priority);
        if let Some(priority) = priority.filter(|priority| *priority != 0) {
            let message = format!("process.ioPriority.class: there is none for the priority {priority}");
            return Err(Error::new(Kind::BadSpec, message)
                .hint("the classes are IOPRIO_CLASS_RT, IOPRIO_CLASS_BE and IOPRIO_CLASS_IDLE"));
        }
        Ok(())
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
    named.as_ref().map_or(Ok(()), Named::check)?;
    let as_it_is = oci::parse(text);
    if as_it_is.is_ok() && !named.is_some_and(|named| named.is_adapted()) {
        return as_it_is;
    }
    // Its error says where in the text it is.
    let Ok(mut value) = serde_json::from_slice(text) else { return as_it_is };
    let adapted = leave_out_null(&mut value);
    if adapt(&mut value) || adapted { oci::parse(value.to_string().as_bytes()) } else { as_it_is }
}

/// Objects whose keys the manager chooses: what it has said of one is not left out.
const NAMED_BY_MANAGERS: [&str; 4] = ["annotations", "netDevices", "sysctl", "unified"];

/// Takes out the fields that are null: Go writes a list so that nobody has made, and reads all of them as unset. Returns
/// whether there were any.
fn leave_out_null(value: &mut Value) -> bool {
    match value {
        Value::Array(items) => items.iter_mut().map(leave_out_null).filter(|any| *any).count() > 0,
        Value::Object(fields) => {
            let any = fields.values().any(Value::is_null);
            // The only list that the library wants to be there.
            if let Some(names) = fields.get_mut("names").filter(|names| names.is_null()) {
                *names = json!([]);
            }
            fields.retain(|_, value| !value.is_null());
            let inside = fields.iter_mut().filter(|(name, _)| !NAMED_BY_MANAGERS.contains(&name.as_str()));
            inside.map(|(_, value)| leave_out_null(value)).filter(|any| *any).count() > 0 || any
        }
        _ => false,
    }
}

/// Takes out the sections that look as they do here, without what they lack: Go writes a whole section of which nothing is
/// set. Returns whether there were any.
fn leave_out_unset(of: &mut Value, sections: &[(&str, Value)]) -> bool {
    let Some(fields) = of.as_object_mut() else { return false };
    let before = fields.len();
    fields.retain(|name, value| {
        let unset = sections.iter().find(|(section, _)| name == section);
        !unset.is_some_and(|(_, unset)| value.is_object() && is_unset(value, unset))
    });
    fields.len() < before
}

/// Whether a value says no more than `unset`, by values of the same types.
fn is_unset(value: &Value, unset: &Value) -> bool {
    match (value, unset) {
        (Value::Null, _) => true,
        (Value::Object(fields), Value::Object(unset)) => {
            fields.iter().all(|(name, value)| unset.get(name).is_some_and(|unset| is_unset(value, unset)))
        }
        _ => value == unset,
    }
}

/// Takes out a filter without a default action and without rules, whatever else it says, if that can be read: there is
/// none. Returns whether there was one.
fn leave_out_no_filter(linux: &mut Value) -> bool {
    let unset = json!({ "defaultAction": "", "syscalls": [] });
    let is_none = |filter: &Value| {
        let mut filter = filter.clone();
        let Some(fields) = filter.as_object_mut() else { return false };
        let said: Map<String, Value> =
            ["defaultAction", "syscalls"].into_iter().filter_map(|name| fields.remove_entry(name)).collect();
        fields.insert("defaultAction".to_owned(), json!("SCMP_ACT_ALLOW"));
        is_unset(&Value::Object(said), &unset) && serde_json::from_value::<LinuxSeccomp>(filter).is_ok()
    };
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

fn adapt(process: &mut Value) -> bool {
    let scheduler = json!({
        "policy": "", "nice": 0, "priority": 0, "flags": [], "runtime": 0, "deadline": 0, "period": 0,
    });
    let mut adapted = leave_out_unset(
        process,
        &[
            ("execCPUAffinity", json!({ "initial": "", "final": "" })),
            ("ioPriority", json!({ "class": "", "priority": 0 })),
            ("scheduler", scheduler),
        ],
    );
    adapted |= process.get_mut("execCPUAffinity").is_some_and(close_up);
    let Some(fields) = process.as_object_mut() else { return false };
    if fields.get("user").is_none_or(Value::is_null) {
        fields.insert("user".to_owned(), json!({ "uid": 0, "gid": 0 }));
        adapted = true;
    }
    let sets = fields.get_mut("capabilities").and_then(Value::as_object_mut);
    for set in sets.into_iter().flat_map(|sets| sets.values_mut()).filter_map(Value::as_array_mut) {
        let before = set.len();
        set.retain(|name| name.as_str().is_none_or(is_known));
        adapted |= set.len() < before;
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

/// Takes blanks and empty items out of lists of CPUs, which the library refuses, and runc does not. Returns whether there
/// were any.
fn close_up(affinity: &mut Value) -> bool {
    let mut any = false;
    for value in affinity.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let Some(list) = value.as_str() else { continue };
        let items: Vec<&str> = list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        let closed = items.join(",");
        if closed != list && !closed.is_empty() {
            *value = json!(closed);
            any = true;
        }
    }
    any
}

/// Leaves out the capabilities that this host does not give: the shim lacks them itself. Returns a note if there are any.
/// Not for a process in another user namespace than the shim's, which is given any.
pub fn grant(process: &mut Process) -> Option<String> {
    let mut sets = process.capabilities().clone()?;
    let ours = thread::capabilities(None).map_or_else(|_| CapabilitySet::empty(), |sets| sets.permitted);
    let mut lacking = BTreeSet::new();
    let mut granted = |set: &Option<Capabilities>| {
        let have = |capability: &&Capability| {
            let bit = CapabilitySet::from_bits_retain(1 << Known::of_oci(capability).number());
            if !ours.contains(bit) {
                lacking.insert(Known::of_oci(capability).to_string());
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
    let note = without(lacking)?;
    process.set_capabilities(Some(sets));
    Some(note)
}

/// Logs, and returns as a note, that a process does without these capabilities. The words are runc's, because people
/// search for them in logs.
fn without(names: BTreeSet<String>) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let names: Vec<String> = names.into_iter().collect();
    let note = format!("process.capabilities: ignoring unknown or unavailable capabilities: [{}]", names.join(" "));
    tracing::warn!("{note}");
    Some(note)
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
        for name in ALL_SCHEDULER_FLAGS {
            assert!(flags(json!([name])).is_ok(), "{name}");
        }
        for unknown in ["SCHED_FLAG_X", "SCHED_FLAG_D_L_OVERRUN", "SCHED_RESET_ON_FORK"] {
            let error = flags(json!([unknown])).expect_err("unknown");
            assert!(error.to_string().contains(unknown), "{error}");
        }
    }

    #[test]
    fn a_list_of_cpus_may_have_blanks() {
        let process = of(&json!({ "execCPUAffinity": { "initial": "0, 1", "final": " 2-3,,4 " } })).expect("a process");
        let affinity = process.exec_cpu_affinity().as_ref().expect("some");
        assert_eq!(affinity.initial().as_deref(), Some("0,1"));
        assert_eq!(affinity.cpu_affinity_final().as_deref(), Some("2-3,4"));
        assert!(of(&json!({ "execCPUAffinity": { "initial": "0 1" } })).is_err());
        assert!(of(&json!({ "execCPUAffinity": { "initial": "," } })).is_err());
    }

    #[test]
    fn a_section_that_is_unset_is_left_out_but_not_one_of_other_types() {
        for section in [
            json!({ "ioPriority": { "class": "", "priority": 0 } }),
            json!({ "ioPriority": { "class": null } }),
            json!({ "ioPriority": { "priority": 0 } }),
            json!({ "scheduler": { "policy": "", "flags": null, "nice": 0 } }),
            json!({ "execCPUAffinity": { "initial": "", "final": "" } }),
        ] {
            let process = of(&section).unwrap_or_else(|error| panic!("{section}: {error}"));
            assert!(process.io_priority().is_none() && process.scheduler().is_none(), "{section}");
        }
        for (section, named) in [
            (json!({ "ioPriority": { "class": false } }), "ioPriority.class"),
            (json!({ "ioPriority": { "class": "", "priority": "" } }), "ioPriority.class"),
            (json!({ "ioPriority": { "priority": 4 } }), "ioPriority.class"),
            (json!({ "ioPriority": { "class": "", "priority": 4 } }), "ioPriority.class"),
            (json!({ "scheduler": { "policy": 0 } }), "scheduler.policy"),
            (json!({ "execCPUAffinity": { "initial": 0 } }), "execCPUAffinity.initial"),
        ] {
            let error = of(&section).expect_err("a wrong type").to_string();
            assert!(error.contains(named), "{section}: {error}");
        }
    }

    fn with_linux(linux: &Value) -> Result<Spec> {
        super::spec(json!({ "ociVersion": "1.2.0", "linux": linux }).to_string().as_bytes()).map(|(spec, _)| spec)
    }

    #[test]
    fn a_filter_is_left_out_only_where_there_is_none() {
        let none: [&str; 0] = [];
        for filter in [
            json!({}),
            json!(null),
            json!({ "defaultAction": "", "syscalls": null, "architectures": ["SCMP_ARCH_X86"] }),
            json!({ "defaultAction": null, "syscalls": none }),
        ] {
            let spec = with_linux(&json!({ "seccomp": filter })).expect("no filter");
            assert!(spec.linux().as_ref().is_some_and(|linux| linux.seccomp().is_none()), "{filter}");
        }
        for filter in [
            json!({ "defaultAction": false }),
            json!({ "defaultAction": {} }),
            json!({ "defaultAction": none }),
            json!({ "defaultAction": 0 }),
            json!({ "syscalls": "" }),
            json!({ "defaultAction": "", "architectures": false }),
            json!(none),
            json!(false),
        ] {
            let error = with_linux(&json!({ "seccomp": filter })).expect_err("wrong").to_string();
            assert!(error.contains("linux.seccomp"), "{filter}: {error}");
        }
        assert!(with_linux(&json!({ "personality": { "domain": "" } })).is_ok());
        assert!(with_linux(&json!({ "personality": { "domain": 0 } })).is_err());
    }

    #[test]
    fn null_is_unset() {
        let rule = json!({ "names": null, "action": "SCMP_ACT_ALLOW", "args": null });
        let filter = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule] });
        assert!(with_linux(&json!({ "seccomp": filter, "maskedPaths": null })).is_ok());
        assert!(with_linux(&json!({ "sysctl": { "net.x": null } })).is_err());
        let user = of(&json!({ "user": { "uid": null, "gid": 7 } })).expect("a process").user().clone();
        assert_eq!((user.uid(), user.gid()), (0, 7));
        assert!(resources(b"null").is_ok_and(|resources| resources == LinuxResources::default()));
        assert!(resources(br#"{"pids":{"limit":null},"cpu":{"shares":512}}"#).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = spec(b"{\n\"ociVersion\": 1}").expect_err("no version");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
