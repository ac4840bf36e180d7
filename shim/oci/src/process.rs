//! The process of an `exec`, from a file or from flags.

use std::path::Path;

use bowline_executor::internal::{parse_process, read_regular_file};
use bowline_model::{Doing, Error, Kind, Result};
use oci_spec::runtime::Process;
use serde_json::{Value, json};

use crate::arguments::{Given, usage};

/// The most bytes of a process's file.
const LARGEST: u64 = 1 << 20;

/// The process that is asked for. `config` reads the container's configuration, which a file has no need of.
///
/// # Errors
/// `Usage` for flags that contradict each other; `BadSpec` naming a field.
pub fn of(flags: &Given, command: &[String], config: impl FnOnce() -> Result<Value>) -> Result<Process> {
    let value = match flags.value("process") {
        Some(path) => {
            let what = || format!("--process: cannot read {path}");
            let text = read_regular_file(Path::new(path), LARGEST).doing(Kind::Usage, what)?;
            let value: Value = serde_json::from_slice(&text).doing(Kind::BadSpec, || format!("--process: {path}"))?;
            value
        }
        None => of_flags(flags, command, &config()?["process"])?,
    };
    let mut value = value;
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
        // As runc: not ambient, and not inheritable.
        for set in ["bounding", "effective", "permitted"] {
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
