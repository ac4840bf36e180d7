//! `bowline-oci`, the command of an OCI runtime, by the cases that hold for runc too: `UNDER_TEST=reference` runs that one.

mod bad_input;
mod callers;
mod create;
mod delete;
mod exec;
mod exec_rights;
mod hooks;
mod kill;
mod killed;
mod life;
mod listing;
mod notify;
mod parents;
mod podman;
mod records;
mod rootless;
mod run;
mod signals;
mod streams;
mod systemd;
mod terminal;

/// A script that runs until it is killed.
const SLEEPS: &str = "echo ready; exec sleep 1000";
