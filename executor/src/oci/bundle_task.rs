//! A task whose description names a bundle: the configuration is the bundle's, with what the description says beside it.
//!
//! Unlike a manager's bundle, nothing of the task is kept in that folder: any number of tasks may run from one. Must not:
//! make anything but the copy of the configuration that a later shim of the task reads.

use std::path::Path;

use bowline_cgroup as cgroup;
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::Folder;
use bowline_spec::Task;
use bowline_spec::id::TaskId;
use oci_spec::runtime::{Process, Spec};

use crate::oci::bundle::{self, Configuration};
use crate::oci::tolerance;
use crate::rights::seccomp::Profile;
use crate::view::joined_users;
use crate::view::namespaces::Namespaces;

/// Below this path, `bowline spec` and the default name the cgroup of one task each.
const OUR_CGROUPS: &str = "/bowline/";

/// The configuration of a task from a bundle.
pub struct Configured {
    /// Whatever the bundle and the description say.
    pub spec: Spec,
    /// What its seccomp filter is compiled from.
    pub profile: Option<Profile>,
    /// Whether the bundle says where the cgroup is.
    pub names_cgroup: bool,
    /// What was asked for and has no effect.
    pub notes: Vec<String>,
}

/// Reads the `bundle` of `task`, whose folder keeps a copy of the configuration.
///
/// # Errors
/// `NotFound` without a bundle; `BadSpec` naming the field of `config.json`.
pub fn configure(task: &Task, bundle: &Path, id: &TaskId, folder: &Folder) -> Result<Configured> {
    let read = bundle::read_once(bundle, folder).map_err(|error| match error.kind() == Kind::NotFound {
        true => error.hint("a bundle is a folder with config.json; `bowline spec FILE` prints one"),
        false => error,
    });
    let Configuration { mut spec, seccomp, mut notes } = read?;
    joined_users::complete(&mut spec)?;
    let in_user_namespace = Namespaces::of(&spec)?.in_user_namespace();
    if let Some(process) = spec.process_mut() {
        if !in_user_namespace {
            notes.extend(tolerance::grant(process));
        }
        lay_on(process, task)?;
    }
    if let (Some(_), Some(root)) = (task.ephemeral, spec.root_mut()) {
        root.set_readonly(Some(false));
    }
    if !task.labels.is_empty() {
        let labels = task.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        spec.annotations_mut().get_or_insert_default().extend(labels);
    }
    let asked = bundle::asked_cgroup(&spec).filter(|path| !path.starts_with(OUR_CGROUPS));
    let names_cgroup = asked.is_some();
    let path = match asked {
        // A unit's, as a description's `cgroup` may be.
        Some(unit) if !unit.starts_with('/') && unit.contains(':') => unit.to_owned(),
        Some(_) => bundle::cgroup_path(asked, id),
        None => format!("{}/{id}", cgroup::of_sandbox(id)),
    };
    if let Some(linux) = spec.linux_mut() {
        linux.set_cgroups_path(Some(path.into()));
    }
    Ok(Configured { spec, profile: seccomp.map(|profile| Profile::Given(Box::new(profile))), names_cgroup, notes })
}

/// Puts what `task` says of the process in the place of what the bundle says.
fn lay_on(process: &mut Process, task: &Task) -> Result<()> {
    if !task.command.is_empty() {
        process.set_args(Some([&task.command].into_iter().chain(&task.args).cloned().collect()));
    }
    if let Some(workdir) = &task.workdir {
        process.set_cwd(workdir.clone());
    }
    if !task.env.is_empty() {
        let key = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
        let mut env = process.env().clone().unwrap_or_default();
        env.retain(|variable| !task.env.contains_key(&key(variable)));
        env.extend(task.env.iter().map(|(key, value)| format!("{key}={value}")));
        process.set_env(Some(env));
    }
    if process.terminal() == Some(true) && !task.terminal {
        let message = "process.terminal: the bundle wants a terminal, and the task has none";
        return Err(Error::new(Kind::BadSpec, message).hint("give it one by -t, or write false in its config.json"));
    }
    process.set_terminal(Some(task.terminal));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"ociVersion":"1.0.2","root":{"path":"rootfs"},"linux":{"cgroupsPath":"/bowline/a/a"},
        "process":{"user":{"uid":0,"gid":0},"args":["sleep","1"],"cwd":"/","env":["A=1","B=2"]}}"#;

    fn configured(task: Task, config: &str) -> Result<Spec> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), config).expect("written");
        let own = tempfile::tempdir().expect("a folder");
        let id = "web".parse().expect("an id");
        configure(&task, folder.path(), &id, &Folder::at(own.path())).map(|configured| configured.spec)
    }

    #[test]
    fn what_the_description_says_takes_the_place_of_what_the_bundle_says() {
        let spec = configured(Task::default(), CONFIG).expect("good");
        let process = spec.process().as_ref().expect("a process");
        assert_eq!(process.args().as_deref(), Some(&["sleep".to_owned(), "1".to_owned()][..]));
        let task = Task {
            command: "echo".into(),
            env: [("B".to_owned(), "3".to_owned())].into(),
            workdir: Some("/tmp".into()),
            ..Task::default()
        };
        let spec = configured(task, CONFIG).expect("good");
        let process = spec.process().as_ref().expect("a process");
        assert_eq!(process.args().as_deref(), Some(&["echo".to_owned()][..]));
        assert_eq!(process.env().as_deref(), Some(&["A=1".to_owned(), "B=3".to_owned()][..]));
        assert_eq!(process.cwd(), Path::new("/tmp"));
    }

    #[test]
    fn each_task_has_a_cgroup_of_its_own_unless_the_bundle_names_another() {
        let path = |config: &str| {
            let spec = configured(Task::default(), config).expect("good");
            spec.linux().as_ref().and_then(|linux| linux.cgroups_path().clone())
        };
        assert_eq!(path(CONFIG), Some("/bowline/web/web".into()));
        assert_eq!(path(&CONFIG.replace("\"/bowline/a/a\"", "\"\"")), Some("/bowline/web/web".into()));
        assert_eq!(path(&CONFIG.replace("/bowline/a/a", "jobs/a")), Some("/jobs/a".into()));
        let unit = "system.slice:jobs:a";
        assert_eq!(path(&CONFIG.replace("/bowline/a/a", unit)), Some(unit.into()));
    }

    #[test]
    fn a_terminal_is_the_description_s_to_give() {
        let config = CONFIG.replace("\"cwd\"", "\"terminal\":true,\"cwd\"");
        assert_eq!(configured(Task::default(), &config).expect_err("no terminal").kind(), Kind::BadSpec);
        assert!(configured(Task { terminal: true, ..Task::default() }, &config).is_ok());
    }
}
