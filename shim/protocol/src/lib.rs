//! What a shim and its clients say to each other.
//!
//! ```text
//!   client ─ttrpc─► calls ─► a service, which a shim has: `shim/task`, `shim/containerd`
//! ```
//!
//! Must not: know what is served.

pub mod calls;
pub mod wire;
