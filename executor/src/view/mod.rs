//! What a process sees: its root, namespaces, networks, users, secrets, and what a service manager has for it.

pub(crate) mod accounts;
pub(crate) mod idmap;
pub(crate) mod inside_root;
pub(crate) mod joined_users;
pub(crate) mod memory_policy;
pub(crate) mod mount_points;
pub(crate) mod name_files;
pub(crate) mod namespaces;
pub mod network;
pub(crate) mod rootfs;
pub mod sandbox_namespaces;
pub mod secrets;
pub mod service;
pub(crate) mod time_namespace;
