//! The lives of what a shim has: of a task, an exec, a sandbox, and the shim itself. States,
//! what can happen in each, and what is then to be done.
//!
//! Pure: `supervise` performs the actions and owns the clock. One function for each
//! life changes its state, and spells out every pair of state and trigger.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod exec;
pub mod sandbox;
pub mod shim;
pub mod shutdown;
pub mod task;

pub use task::Status;
