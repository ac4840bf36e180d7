//! What a job calls a field of the task description.

use crate::options::TASK;
use crate::schema::option_of;

/// How many mounts and devices come before those of the job's `config`.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    /// Those of what is in the task's folder, which come first.
    pub brought: usize,
    pub mounts: usize,
    pub devices: usize,
}

/// The name that a job has for `field` of a description; the same for what is none.
pub fn name_of(field: &str, offsets: Offsets) -> String {
    /// What the options do not set, and where a job says it.
    const JOBS: [(&str, &str); 10] = [
        ("memory", "resources.memory"),
        ("cpu.shares", "resources.cpu"),
        ("cpu.limit", "resources.cpu"),
        ("cpu.cpuset", "resources.cores"),
        ("user", "user"),
        ("group", "user"),
        ("namespaces.network", "network"),
        ("env", "env"),
        ("mounts", "volume_mount"),
        ("devices", "device"),
    ];
    if field.starts_with("mounts[") && shifted(field, "mounts", offsets.brought).is_none() {
        return "template".to_owned();
    }
    let ours = shifted(field, "mounts", offsets.mounts).or_else(|| shifted(field, "devices", offsets.devices));
    let is_jobs =
        |prefix: &str| field.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let jobs = || JOBS.iter().find(|(prefix, _)| is_jobs(prefix)).map(|(_, name)| (*name).to_owned());
    let option = || match ours.as_deref() {
        Some(ours) => option_of(TASK, ours),
        None if field.starts_with("mounts[") || field.starts_with("devices[") => None,
        None => option_of(TASK, field),
    };
    option().map(|option| format!("config.{option}")).or_else(jobs).unwrap_or_else(|| field.to_owned())
}

/// `field` with the index that it has in the job's `config`; `None` for what is not in it.
fn shifted(field: &str, list: &str, offset: usize) -> Option<String> {
    let (index, rest) = field.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
    let index = index.parse::<usize>().ok()?.checked_sub(offset)?;
    Some(format!("{list}[{index}]{rest}"))
}
