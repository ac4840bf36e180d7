//! The driver that Nomad starts, by its protocols.

mod exec;
mod folder;
mod output;
mod plugin;
pub mod recover;
mod refused;
mod resources;
mod start_again;
mod stats;
mod task;
mod view;
