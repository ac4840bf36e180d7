//! The task description, and the OCI configuration it stands for.
//!
//!   text ─ parse ─► Task ─ build(facts about the host) ─► oci_spec Spec
//!                    └ validate: everything that can be told without a host
//!   Sandbox + what its members may use ─ budget ─► limits of the whole
//!   a sandbox's or a pod's name ◄─ place ─► its cgroup
//!   its Network ─ network ─► CNI configuration lists
//!   JSON ─ host_limits ─► limits of the host's units, and what differs
//!
//! Owns the descriptions, their values, their validation, the default protections,
//! and the rules by which several containers share a budget.
//! Pure: the same input gives the same output. Must not: read files, the clock
//! or the environment, make system calls, know any manager.

#![warn(missing_docs)]

pub mod address;
pub mod budget;
mod build;
pub mod capability;
mod class;
mod format;
pub mod host_limits;
pub mod id;
mod invalid;
mod locate;
pub mod names;
pub mod network;
mod parse;
pub mod place;
pub mod rlimit;
pub mod seccomp;
pub mod signal;
mod task;
mod text;
pub mod unit;
pub mod untrusted;
mod update;
pub mod user;
mod validate;
pub mod values;
mod written;

pub use build::{
    DEFAULT_PATH, DeviceNode, ETC, HOST_VIEW, Host, MASKED_PATHS, OPT, READONLY_PATHS, UserIds, build,
    build_unfiltered, build_update, common_device_rules, effective_until_execve, hides_owners, render, shows_host,
};
pub use format::Format;
pub use id::TaskId;
pub use invalid::Invalid;
pub use parse::{
    parse, parse_member_with, parse_sandbox, parse_sandbox_with, parse_update, parse_with, sandbox_schema, schema,
};
pub use signal::Signal;
pub use task::{
    Access, Association, Budget, CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, Cpu, DEFAULT_PIDS, Device, Egress,
    Enforcement, Healthcheck, HostName, IdMapping, Ingress, Interface, Io, IoDevice, Log, LogFormat, Memory, Mount,
    MountKind, Names, Namespace, Namespaces, Network, NetworkMode, OnUnhealthy, Output, Overhead, PLUGIN_FOLDERS,
    Plugins, Port, Propagation, Protocol, Proxy, Redirect, Sandbox, Seccomp, Stalled, Stop, Task, TaskProfile, Watch,
    WatchAction, WatchCount, WatchMemory, WatchOom, WatchPressure, WatchProcesses, WatchThrottled,
};
pub use update::{CpuUpdate, IoDeviceUpdate, IoUpdate, MemoryUpdate, Update};
pub use validate::check_pids;
pub use written::written;
