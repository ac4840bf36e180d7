//! Control groups: the hierarchies of this host, and one cgroup in them.
//!
//! A *path* is the same below every hierarchy: `/bowline/web/web`. Processes
//! join v1 by writing `0` to `tasks`, themselves, and the unified hierarchy by
//! being cloned into it: writing another process's pid to `cgroup.procs` waits
//! 5–16 ms for an RCU grace period after a quiet spell. Folders and `tasks`
//! files stay open, so that an exec resolves no path.
//!
//! Other crates decide what a process deserves; this one only finds, makes, fills, reads, kills and removes.

mod cgroup;
mod destroy;
mod device_list;
mod devices;
mod difference;
mod enforce;
mod entry;
mod exec_group;
mod files;
mod freezing;
mod hierarchy;
pub mod huge_pages;
mod identity;
mod join;
mod layout;
mod limit;
mod membership;
mod memory_min;
mod old_values;
mod oom;
mod owner;
mod path;
mod pressure;
mod replaced;
mod sets;
pub mod systemd;
mod threads;
mod tree;
mod unseen;
mod v1;
mod v2;
mod values;
mod version;
mod version_support;
mod write;

pub use cgroup::Cgroup;
pub use destroy::{Destroyed, Permit, has_ended};
pub use difference::Difference;
pub use entry::Entry;
pub use exec_group::ExecGroup;
pub use freezing::Freezing;
pub use hierarchy::Hierarchy;
pub use identity::{CgroupIdentity, boot, is_another_namespace, namespace};
pub use join::join_existing;
pub use layout::{Existed, Layout, detect, is_v2};
pub use limit::check_devices;
pub use membership::{Membership, UNIFIED};
pub use oom::OomWatch;
pub use path::{checked_path, is_ours, of_sandbox};
pub use pressure::PressureWatch;
pub use replaced::remaining;
pub use systemd::{Driver, Unit};
pub use tree::read_fd;
pub use unseen::sees_all;
pub use version::Version;
