//! Writes files into the bundle for tools that know them from other shims. The executor's own record is not among them.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::options::Options;
use super::runtime;

/// The file with init's pid.
const PID: &str = "init.pid";
/// The file with the options that the container was created with.
const OPTIONS: &str = "options.json";
/// The file with the name of the runtime.
const RUNTIME: &str = "runtime";

/// Writes the files. An error is only logged: a task must not fail because of files that we do not read.
pub fn write(bundle: &Path, pid: i32, options: &Options) {
    let options = serde_json::json!({
        "systemd_cgroup": options.systemd_cgroup == Some(true),
        "shim_cgroup": options.shim_cgroup,
        "no_new_keyring": options.no_new_keyring,
        "no_pivot_root": options.no_pivot_root,
    });
    let all = [(PID, pid.to_string()), (OPTIONS, options.to_string()), (RUNTIME, runtime::RUNTIME.to_owned())];
    for (name, text) in all {
        let path = bundle.join(name);
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
            tracing::warn!(%error, path = %path.display(), "cannot write");
        }
    }
}
