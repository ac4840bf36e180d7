//! The process of an `exec`, from a file or from flags.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

use bowline_executor::internal::{parse_process, read_up_to};
use bowline_model::{Doing, Error, Kind, Result};
use oci_spec::runtime::Process;
use serde_json::{Value, json};

use crate::arguments::{Given, usage};

/// The most bytes of a process's file.
const LARGEST: u64 = 1 << 20;

/// Reads the file of a process, which may be a pipe of the caller's: `--process <(…)`.
///
/// # Errors
/// `Usage` where it cannot be read.
pub fn read(path: &str) -> Result<Vec<u8>> {
    let read = || {
        // A FIFO without a writer is empty.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        rustix::io::ioctl_fionbio(&file, false)?;
        let kind = file.metadata()?.file_type();
        if kind.is_file() || kind.is_fifo() {
            return read_up_to(file, LARGEST);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a pipe"))
    };
    read().doing(Kind::Usage, || format!("--process: cannot read {path}"))
}

/// The process that is asked for, by the `text` of its file or by flags. `config` reads the container's configuration, which
/// a file has no need of.
///
/// # Errors
/// `Usage` for flags that contradict each other; `BadSpec` naming a field.
pub fn of(
    flags: &Given,
    text: Option<&[u8]>,
    command: &[String],
    config: impl FnOnce() -> Result<Value>,
) -> Result<Process> {
    let mut value = match text {
        Some(text) => {
            let what = || format!("--process: {}", flags.value("process").unwrap_or_default());
            serde_json::from_slice(text).doing(Kind::BadSpec, what)?
        }
        None => of_flags(flags, command, &config()?["process"])?,
    };
    if flags.is_on("tty") {
        value["terminal"] = json!(true);
    }
    parse_process(value.to_string().as_bytes())
}

/// The container's own process with what the flags change, and another command.
fn of_flags(flags: &Given, command: &[String], own: &Value) -> Result<Value> {
    if command.first().is_none_or(String::is_empty) {
        return Err(usage("exec: neither --process nor a command is given"));
    }
    let mut process = own.clone();
    process["args"] = json!(command);
    process["terminal"] = json!(flags.is_on("tty"));
    if let Some(cwd) = flags.value("cwd").filter(|cwd| !cwd.is_empty()) {
        if !cwd.starts_with('/') {
            return Err(usage(format!("--cwd: {cwd:?} is not absolute")));
        }
        process["cwd"] = json!(cwd);
    }
    let mut env: Vec<Value> = own["env"].as_array().cloned().unwrap_or_default();
    for variable in flags.values("env") {
        if variable.find('=').is_none_or(|at| at == 0) {
            return Err(usage(format!("--env: {variable:?} is not of the form NAME=VALUE")));
        }
        env.push(json!(variable));
    }
    process["env"] = json!(env);
    if let Some(user) = flags.value("user").filter(|user| !user.is_empty()) {
        let (uid, gid) = user.split_once(':').map_or((user, None), |(uid, gid)| (uid, Some(gid)));
        process["user"]["uid"] = json!(number("user", uid)?);
        if let Some(gid) = gid {
            process["user"]["gid"] = json!(number("user", gid)?);
        }
    }
    let groups = flags.values("additional-gids").flat_map(|groups| groups.split(','));
    let groups = groups.map(|group| number("additional-gids", group)).collect::<Result<Vec<u32>>>()?;
    if !groups.is_empty() {
        process["user"]["additionalGids"] = json!(groups);
    }
    if let Some(profile) = flags.value("apparmor").filter(|profile| !profile.is_empty()) {
        process["apparmorProfile"] = json!(profile);
    }
    if let Some(label) = flags.value("process-label").filter(|label| !label.is_empty()) {
        process["selinuxLabel"] = json!(label);
    }
    if flags.is_on("no-new-privs") {
        process["noNewPrivileges"] = json!(true);
    }
    for capability in flags.values("cap").flat_map(|all| all.split(',')) {
        // As runc: not inheritable, and ambient where the container's own process may inherit it.
        let is_inherited =
            own["capabilities"]["inheritable"].as_array().is_some_and(|all| all.contains(&json!(capability)));
        for set in ["bounding", "effective", "permitted"].into_iter().chain(is_inherited.then_some("ambient")) {
            let set = &mut process["capabilities"][set];
            let mut all = set.as_array().cloned().unwrap_or_default();
            all.push(json!(capability));
            *set = json!(all);
        }
    }
    Ok(process)
}

fn number(flag: &str, text: &str) -> Result<u32> {
    text.parse().map_err(|_| -> Error { usage(format!("--{flag}: {text:?} is not a number")) })
}
