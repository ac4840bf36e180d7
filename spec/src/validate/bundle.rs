//! A task from a bundle: the description must not set fields that belong to the bundle's config.json.

use super::rules::{absolute, require};
use crate::invalid::Invalid;
use crate::task::Task;

/// The fields that a bundle's configuration lacks, and fields of the process that may replace the bundle's.
const BESIDE_A_BUNDLE: [&str; 17] = [
    "args",
    "bundle",
    "command",
    "env",
    "ephemeral",
    "healthcheck",
    "init",
    "labels",
    "log",
    "name",
    "output",
    "stdin",
    "stop",
    "terminal",
    "timeout",
    "watch",
    "workdir",
];

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let Some(bundle) = &task.bundle else { return Ok(()) };
    absolute("bundle", bundle)?;
    require(!task.command.is_empty() || task.args.is_empty(), "args", || {
        "are those of a command, and none is written: the bundle has its own arguments".into()
    })?;
    // What is not written is not serialised either.
    let written = serde_json::to_value(task).map_err(|error| Invalid::new("bundle", error.to_string()))?;
    let mut fields = written.as_object().into_iter().flat_map(|fields| fields.keys());
    match fields.find(|field| !BESIDE_A_BUNDLE.contains(&field.as_str())) {
        None => Ok(()),
        Some(field) => Err(Invalid::new(field, "the bundle's config.json says it for the task; change it there")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};
    use crate::parse::{Format, parse};

    #[test]
    fn a_bundle_says_what_its_configuration_can_say() {
        accepted("bundle = '/b'\ntimeout = '5s'\nlabels = {a = 'b'}\nenv.A = '1'\nstop.signal = 'INT'");
        assert!(parse("bundle = '/b'", Format::Toml).is_ok());
        refused("bundle = 'b'", "bundle", "not an absolute path");
        for (line, field) in [
            ("rootfs = '/r'", "rootfs"),
            ("memory.limit = '64M'", "memory"),
            ("user = 1", "user"),
            ("profile = 'untrusted'", "profile"),
            ("namespaces.network = 'private'", "namespaces"),
            ("pids = 5", "pids"),
        ] {
            refused(&format!("bundle = '/b'\n{line}"), field, "config.json");
        }
        let error = parse("bundle = '/b'\nargs = ['x']", Format::Toml).expect_err("args without a command");
        assert_eq!(error.field, "args");
    }
}
