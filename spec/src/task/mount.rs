//! What is mounted in the root, and which devices are in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::left_out::is_default;
use crate::invalid::Invalid;
use crate::text::text_value;
use crate::values::{Mode, TmpfsSize};

/// A mount inside the root.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
// As with a task: `validate` says better what to write.
#[schemars(extend("required" = ["destination"]))]
pub struct Mount {
    /// What is mounted; `bind` by default.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: MountKind,
    /// Where inside the root; absolute.
    pub destination: PathBuf,
    /// bind: the absolute path on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    /// Whether it is read-only; for a recursive bind, the mounts below it too.
    #[serde(skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// bind: whether mounts below the source are included; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// bind: whether later mounts show on the other side; `rprivate` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation: Option<Propagation>,
    /// tmpfs: the most it holds; half the host's memory by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<TmpfsSize>,
    /// tmpfs: the most files and folders in it; by default one for each page of half the host's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// tmpfs: the user, inside, that its top folder belongs to; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// tmpfs: the group, inside, that its top folder belongs to; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// tmpfs: octal permissions of its top folder; 1777 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether nothing there can be executed; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noexec: Option<bool>,
    /// Whether set-user-ID bits there have no effect; by default only for tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nosuid: Option<bool>,
    /// Whether device nodes there have no effect; by default only for tmpfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodev: Option<bool>,
}

/// What a mount shows at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MountKind {
    /// A file or folder of the host.
    #[default]
    Bind,
    /// An empty filesystem in memory.
    Tmpfs,
}

/// Whether later mounts show on the other side, as in mount_namespaces(7); `r` includes the mounts below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the kernel's own terms
pub enum Propagation {
    Private,
    Rprivate,
    Slave,
    Rslave,
    Shared,
    Rshared,
    Unbindable,
    Runbindable,
}

impl Propagation {
    /// The option of mount(8) that stands for it, such as `rslave`.
    pub fn as_str(self) -> &'static str {
        match self {
            Propagation::Private => "private",
            Propagation::Rprivate => "rprivate",
            Propagation::Slave => "slave",
            Propagation::Rslave => "rslave",
            Propagation::Shared => "shared",
            Propagation::Rshared => "rshared",
            Propagation::Unbindable => "unbindable",
            Propagation::Runbindable => "runbindable",
        }
    }
}

/// A host device inside the task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["path"]))]
pub struct Device {
    /// The node inside the root; absolute.
    pub path: PathBuf,
    /// The node on the host; the same path by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// What the task may do: `r` (read), `w` (write), `m` (mknod); all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}

impl Device {
    /// The node on the host.
    pub fn host_path(&self) -> &Path {
        self.host_path.as_deref().unwrap_or(&self.path)
    }
}

/// What may be done with a device: some of `rwm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// `r`: the device may be read.
    pub read: bool,
    /// `w`: the device may be written.
    pub write: bool,
    /// `m`: device nodes for it may be made.
    pub mknod: bool,
}

impl Default for Access {
    fn default() -> Access {
        Access { read: true, write: true, mknod: true }
    }
}

impl FromStr for Access {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Access, Invalid> {
        let once = |letter| text.matches(letter).count() <= 1;
        let known = text.chars().all(|c| "rwm".contains(c));
        if text.is_empty() || !known || !(once('r') && once('w') && once('m')) {
            return Err(Invalid::value(format!("{text:?} is not an access; write some of \"rwm\"")));
        }
        Ok(Access { read: text.contains('r'), write: text.contains('w'), mknod: text.contains('m') })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (allowed, letter) in [(self.read, "r"), (self.write, "w"), (self.mknod, "m")] {
            if allowed {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

text_value!(Access, "Access", string, "some of \"rwm\": read, write, mknod", "rw");
