//! The managers' languages: the command line, and the service behind it.
//!
//! ```text
//!   bin/bowline ─► cli ─► client ─ttrpc─► calls ─► service ─► executor ◄─ bin/bowline-shim
//!             └─► bowline-units, for `bowline units`: for all shims
//!   bin/containerd-shim-bowline-v1 ─► containerd ─► executor
//!   cli ─► containerd: where its shims are, and how they are known
//! ```

pub mod calls;
pub mod cli;
pub mod client;
pub mod containerd;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod service;
pub mod spawn;
pub mod wire;
