//! Devices by the Container Device Interface (CDI): their names, and what a vendor's file says of one.
//!
//! The fields of edits have the names of the CDI specification, as vendors' files have them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::left_out::is_default;
use crate::invalid::Invalid;
use crate::text::text_value;

/// The name of a device that a file of CDI describes: `vendor.com/class=name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CdiDevice {
    /// The vendor and the class: `vendor.com/class`.
    pub kind: String,
    /// The name among the devices of that kind.
    pub name: String,
}

impl CdiDevice {
    /// Whether `kind` is a vendor and a class.
    pub fn is_kind(kind: &str) -> bool {
        let is_part = |part: &str| part.starts_with(|first: char| first.is_ascii_alphabetic()) && is_plain(part, "_-.");
        kind.split_once('/').is_some_and(|(vendor, class)| is_part(vendor) && is_part(class))
    }

    /// Whether a device can have this name among those of its kind.
    pub fn is_name(name: &str) -> bool {
        is_plain(name, "_-.:")
    }
}

/// Whether `text` begins and ends with a letter or a digit, and has only these and `others` between.
fn is_plain(text: &str, others: &str) -> bool {
    let is_end = |letter: char| letter.is_ascii_alphanumeric();
    let is_inside = |letter: char| is_end(letter) || others.contains(letter);
    text.starts_with(is_end) && text.ends_with(is_end) && text.chars().all(is_inside)
}

impl FromStr for CdiDevice {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<CdiDevice, Invalid> {
        match text.split_once('=') {
            Some((kind, name)) if CdiDevice::is_kind(kind) && CdiDevice::is_name(name) => {
                Ok(CdiDevice { kind: kind.to_owned(), name: name.to_owned() })
            }
            _ => Err(Invalid::value(format!("{text:?} is no device of CDI; write vendor.com/class=name"))),
        }
    }
}

impl fmt::Display for CdiDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.name)
    }
}

text_value!(CdiDevice, "CdiDevice", string, "a device of CDI: vendor.com/class=name", "nvidia.com/gpu=all");

/// What a task gets for devices: `containerEdits` of the CDI specification, up to version 1.1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiEdits {
    /// Environment variables, `NAME=value`; each replaces the task's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes; each replaces one of that path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<CdiNode>,
    /// Mounts; each replaces one at that place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<CdiMount>,
    /// Programs of the host that run at points of the task's life, as root.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
    /// Supplementary groups; 0 is ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Interfaces to move into the task's network, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_devices: Option<Value>,
    /// A class of Intel RDT, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<Value>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiNode {
    /// The node inside.
    pub path: PathBuf,
    /// The node on the host, which says what is left out below; `path` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// `b`, `c`, `u` or `p`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The major number; 0 is that of the host's node.
    #[serde(skip_serializing_if = "is_default")]
    pub major: i64,
    /// The minor number.
    #[serde(skip_serializing_if = "is_default")]
    pub minor: i64,
    /// Permission bits; 0666 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Some of `rwm`, or `none`; `rwm` by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// Its owner inside; the task's user by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group inside; that of the task's user by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiMount {
    /// The source.
    pub host_path: PathBuf,
    /// The place inside.
    pub container_path: PathBuf,
    /// The type of the filesystem; of no meaning for a bind.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Options as in a `config.json`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl CdiMount {
    /// Whether it binds its source.
    pub fn is_bind(&self) -> bool {
        self.kind == "bind" || self.options.iter().any(|option| option == "bind" || option == "rbind")
    }
}

/// A program of the host that runs at a point of the task's life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiHook {
    /// The point, such as `createContainer`.
    pub hook_name: String,
    /// The program; absolute.
    pub path: PathBuf,
    /// All arguments, the program's name among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment, `NAME=value`; without it that of whoever runs it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which it is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// The file that says so; no field of such a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

impl CdiEdits {
    /// The file of the hook that an error calls `field`: `hooks.createRuntime[0]`, the first one of its point.
    pub fn file_of_hook(&self, field: &str) -> Option<&Path> {
        let (point, number) = field.strip_prefix("hooks.")?.strip_suffix(']')?.split_once('[')?;
        let mut of_point = self.hooks.iter().filter(|hook| hook.hook_name == point);
        of_point.nth(number.parse().ok()?)?.file.as_deref()
    }
}

/// The points of a task's life at which hooks run.
pub const HOOK_NAMES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_of_a_point_is_found_by_its_number() {
        let hook = |point: &str, file: &str| CdiHook {
            hook_name: point.to_owned(),
            file: Some(file.into()),
            ..CdiHook::default()
        };
        let hooks = vec![hook("poststop", "/a"), hook("createRuntime", "/a"), hook("createRuntime", "/b")];
        let edits = CdiEdits { hooks, ..CdiEdits::default() };
        assert_eq!(edits.file_of_hook("hooks.createRuntime[1]"), Some(Path::new("/b")));
        assert_eq!(edits.file_of_hook("hooks.poststop[0]"), Some(Path::new("/a")));
        for other in ["hooks.poststop[1]", "hooks.prestart[0]", "mounts[0]", "hooks.poststop", ""] {
            assert_eq!(edits.file_of_hook(other), None, "{other}");
        }
    }

    #[test]
    fn a_device_has_a_vendor_a_class_and_a_name() {
        for good in ["nvidia.com/gpu=all", "nvidia.com/gpu=0", "a/b=c", "v-1.com/net_x.y=GPU-1:2.3"] {
            assert_eq!(good.parse::<CdiDevice>().expect(good).to_string(), good);
        }
        for bad in
            ["", "/dev/kvm", "nvidia.com=0", "/gpu=0", "a/=0", "a/b", "a/b=", "1a/b=c", "a/b-=c", "a/b=c.", "a/b/c=d"]
        {
            assert!(bad.parse::<CdiDevice>().is_err(), "{bad:?}");
        }
    }
}
