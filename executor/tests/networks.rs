//! Networks of sandboxes: the namespaces that members share, as the kernel shows
//! them, and what real plugins make in them.
//!
//! Needs root; says SKIPPED without. Each case runs in a process of its own with
//! one thread, as a shim has it: this program again.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test tells what it does")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

mod cases {
    pub(crate) mod inside;
    pub(crate) mod plugins;
    pub(crate) mod sandbox;
    pub(crate) mod sandbox_namespaces;
    pub(crate) mod worker;
}

/// A name, and what is to hold.
pub(crate) type Case = (&'static str, fn());

/// The case that is this process's, by its name.
pub(crate) const CASE: &str = "BOWLINE_NETWORKS_CASE";

/// How long what comes about by itself may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs what is asynchronous, in this one thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// The device and inode of a namespace's file, which identify the namespace.
pub(crate) fn namespace(path: impl AsRef<Path>) -> (u64, u64) {
    let of = std::fs::metadata(path.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()));
    (std::os::unix::fs::MetadataExt::dev(&of), std::os::unix::fs::MetadataExt::ino(&of))
}

fn main() -> ExitCode {
    let all: Vec<Case> = [&cases::sandbox_namespaces::ALL[..], &cases::worker::ALL, &cases::plugins::ALL].concat();
    if let Ok(case) = std::env::var(CASE) {
        let helpers = [cases::plugins::SHIM, cases::plugins::UNFORWARDED, cases::worker::SHIM];
        let (_, run) = all.iter().chain(&helpers).find(|(name, _)| *name == case).expect("a case");
        run();
        return ExitCode::SUCCESS;
    }
    if std::fs::read_dir("/root").is_err() {
        assert!(std::env::var("CI").is_err(), "networks need root");
        println!("SKIPPED: networks need root");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let exe = std::env::current_exe().expect("this program");
    let mut failed = Vec::new();
    for (name, _) in all.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(&**w))) {
        let done = Command::new(&exe).env(CASE, name).status().expect("it runs").success();
        println!("test {name} ... {}", if done { "ok" } else { "FAILED" });
        if !done {
            failed.push(*name);
        }
    }
    println!("failed: {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
