//! What keeps the task apart: namespaces, mappings, the system call filter.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text::text_value;

/// The filter that the task's system calls go through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    /// The profile that containerd and Docker users know.
    #[default]
    Default,
    /// The default profile for programs of the processor's own architecture alone: 32-bit and x32 programs are killed.
    Native,
    /// No filter: the task may make every system call.
    Unconfined,
    /// A profile in a file of the host, in OCI's or Docker's form.
    File(PathBuf),
}

impl FromStr for Seccomp {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Seccomp, Invalid> {
        match text {
            "default" => Ok(Seccomp::Default),
            "native" => Ok(Seccomp::Native),
            "unconfined" => Ok(Seccomp::Unconfined),
            path if path.starts_with('/') => Ok(Seccomp::File(path.into())),
            _ => Err(Invalid::value(format!(
                "{text:?} is neither \"default\", \"native\", \"unconfined\" nor the absolute path of a profile"
            ))),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seccomp::Default => f.write_str("default"),
            Seccomp::Native => f.write_str("native"),
            Seccomp::Unconfined => f.write_str("unconfined"),
            Seccomp::File(path) => path.display().fmt(f),
        }
    }
}

text_value!(
    Seccomp,
    "Seccomp",
    string,
    "\"default\", \"native\", \"unconfined\", or the absolute path of a profile",
    "default",
    "native",
    "unconfined",
    "/etc/seccomp/web.json"
);

/// One namespace: the task's own, the host's, or one that exists already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// A new namespace, which belongs to the task.
    Private,
    /// The namespace of the process that launches the task.
    Host,
    /// The one at this path, such as `/run/netns/blue`.
    Path(PathBuf),
}

impl FromStr for Namespace {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Namespace, Invalid> {
        match text {
            "private" => Ok(Namespace::Private),
            "host" => Ok(Namespace::Host),
            path if path.starts_with('/') => Ok(Namespace::Path(path.into())),
            _ => Err(Invalid::value(format!(
                "{text:?} is neither \"private\", \"host\" nor the absolute path of a namespace"
            ))),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Namespace::Private => f.write_str("private"),
            Namespace::Host => f.write_str("host"),
            Namespace::Path(path) => path.display().fmt(f),
        }
    }
}

text_value!(
    Namespace,
    "Namespace",
    string,
    "\"private\", \"host\", or the absolute path of a namespace",
    "private",
    "host",
    "/run/netns/blue"
);

/// Which namespaces are the task's own; the mount namespace always is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Namespaces {
    /// Processes; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<Namespace>,
    /// System V IPC, POSIX message queues and `/dev/shm`; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc: Option<Namespace>,
    /// Host and domain name; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uts: Option<Namespace>,
    /// Interfaces, addresses, ports; the host's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Namespace>,
    /// What `/proc/self/cgroup` shows; private by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Namespace>,
    /// Users and groups; the host's by default. Private needs mappings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Namespace>,
}

/// The default of each field that has one.
#[allow(missing_docs)]
impl Namespaces {
    pub fn pid(&self) -> &Namespace {
        self.pid.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn ipc(&self) -> &Namespace {
        self.ipc.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn uts(&self) -> &Namespace {
        self.uts.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn network(&self) -> &Namespace {
        self.network.as_ref().unwrap_or(&Namespace::Host)
    }

    pub fn cgroup(&self) -> &Namespace {
        self.cgroup.as_ref().unwrap_or(&Namespace::Private)
    }

    pub fn user(&self) -> &Namespace {
        self.user.as_ref().unwrap_or(&Namespace::Host)
    }
}

/// A range of ids inside, and the range that it stands for outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdMapping {
    /// The first id inside.
    pub container: u32,
    /// The first id outside.
    pub host: u32,
    /// How many; at least 1.
    pub size: u32,
}
