//! The managers' languages: the command line, and the service behind it.
//!
//! ```text
//!   bin/bowline ─► cli ─► client ─ttrpc─► service ─► executor ◄─ bin/bowline-shim
//! ```

pub mod cli;
pub mod client;
pub mod service;
pub mod spawn;
pub mod wire;
