//! The wire protocol between a shim and its clients.
//!
//! ```text
//!   client ─ttrpc─► calls ─► a service of the shim: `shim/task`, `shim/containerd`
//! ```
//!
//! Must not: know the services.

pub mod calls;
pub mod upgrading;
pub mod wire;
