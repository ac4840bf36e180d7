//! The lives of what a shim has: tasks, execs, a sandbox, and the shim itself. Each defines its states, what can
//! happen in them, and the action that follows.
//!
//! Pure: `supervise` performs the actions and owns the clock. Each life has one function that changes its state,
//! and that spells out every pair of state and trigger.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod exec;
pub mod sandbox;
pub mod shim;
pub mod task;
