//! Builds an exec's process description: init's, changed as the caller asks.

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::effective_until_execve;
use bowline_spec::user::User;
use oci_spec::runtime::{Process, UserBuilder};

use super::cloning::gone;
use crate::facts::TaskFacts;
use crate::oci::bundle;
use crate::oci::tolerance;
use crate::oci::unsupported;
use crate::output::io::Owner;
use crate::request::Exec;
use crate::supervise::task::Task;
use crate::view::accounts::Wanted;

impl Task {
    /// Init's process, with the changes that the request asks for.
    pub(crate) async fn exec_process(&self, request: &Exec) -> Result<Process> {
        if let Some(process) = &request.process {
            return self.completed(process);
        }
        if request.command.first().is_none_or(String::is_empty) {
            return Err(Error::new(Kind::Usage, "the command to run is empty"));
        }
        let init = self.spec.process().as_ref();
        let mut process = init.cloned().ok_or_else(|| Error::new(Kind::Internal, "the task has no process"))?;
        process.set_args(Some(request.command.clone()));
        process.set_terminal(Some(request.terminal.is_some()));
        if !request.env.is_empty() {
            process.set_env(Some(merged(process.env().as_deref().unwrap_or_default(), &request.env)?));
        }
        if let Some(workdir) = &request.workdir {
            if !workdir.is_absolute() {
                let message = format!("{} is not absolute", workdir.display());
                return Err(Error::new(Kind::BadSpec, message).in_field("workdir"));
            }
            process.set_cwd(workdir.clone());
        }
        if let Some(user) = &request.user {
            if self.handles.borrow().claimed.is_some() {
                let message = format!("user {user}: a task of the profile untrusted has but one user, its own");
                return Err(Error::new(Kind::BadSpec, message).hint("leave --user out"));
            }
            let home = Box::pin(self.become_user(&mut process, user)).await?;
            if !self.says_home(request) {
                let env = merged(process.env().as_deref().unwrap_or_default(), &[format!("HOME={home}")])?;
                process.set_env(Some(env));
            }
        }
        // Init's may be what a bundle says, or what another user has.
        if request.user.is_some() || self.is_described() {
            settle_effective(&mut process);
        }
        Ok(process)
    }

    /// Whether the task's configuration is made from a description, rather than a bundle's.
    fn is_described(&self) -> bool {
        self.facts.read(|facts| facts.record.description().is_ok_and(|task| task.bundle.is_none()))
    }

    /// Completes a process that the manager describes with init's settings for whatever it leaves out, so that the
    /// exec has no less protection than init.
    fn completed(&self, wanted: &Process) -> Result<Process> {
        bundle::check_process(wanted)?;
        self.spec.linux().as_ref().map_or(Ok(()), |linux| unsupported::check_user(wanted.user(), linux))?;
        let mut process = wanted.clone();
        let Some(init) = self.spec.process() else { return Ok(process) };
        if process.capabilities().is_none() {
            process.set_capabilities(init.capabilities().clone());
        }
        if !self.namespaces.in_user_namespace() {
            tolerance::grant(&mut process);
        }
        if process.scheduler().is_none() {
            process.set_scheduler(init.scheduler().clone());
        }
        if process.io_priority().is_none() {
            process.set_io_priority(*init.io_priority());
        }
        if process.exec_cpu_affinity().is_none() {
            process.set_exec_cpu_affinity(init.exec_cpu_affinity().clone());
        }
        if process.rlimits().as_deref().is_none_or(<[_]>::is_empty) {
            process.set_rlimits(init.rlimits().clone());
        }
        if process.apparmor_profile().as_deref().is_none_or(str::is_empty) {
            process.set_apparmor_profile(init.apparmor_profile().clone());
        }
        if process.selinux_label().as_deref().is_none_or(str::is_empty) {
            process.set_selinux_label(init.selinux_label().clone());
        }
        if process.oom_score_adj().is_none() {
            process.set_oom_score_adj(init.oom_score_adj());
        }
        Ok(process)
    }

    /// The user and group that own an exec's streams on the host.
    pub(crate) fn owner_of_streams(&self, process: &Process) -> Owner {
        self.facts.read(|facts| Owner::of(&self.spec, Some(process), facts.particulars.stream_group))
    }

    /// Whether the request or the task's description sets HOME, for whoever the user is.
    fn says_home(&self, request: &Exec) -> bool {
        let described = |facts: &TaskFacts| facts.record.description().is_ok_and(|task| task.env.contains_key("HOME"));
        request.env.iter().any(|variable| variable.starts_with("HOME=")) || self.facts.read(described)
    }

    /// Makes `user` the process's. Returns that user's home.
    async fn become_user(&self, process: &mut Process, user: &str) -> Result<String> {
        let user: User = user.parse()?;
        let wanted = Wanted { user: Some(&user.user), group: user.group.as_ref(), groups: &[] };
        let resolving = {
            let handles = self.handles.borrow();
            let init = handles.init.as_ref().ok_or_else(|| gone(self))?;
            handles.entrance.resolve(init, &self.namespaces, wanted)?
        };
        let ids = resolving.answer().await?;
        let user = UserBuilder::default().uid(ids.uid).gid(ids.gid).additional_gids(ids.groups);
        process.set_user(user.build().doing(Kind::Internal, || "cannot describe a user")?);
        Ok(ids.home.map_or_else(|| "/".to_owned(), |home| home.to_string_lossy().into_owned()))
    }
}

/// Makes effective what the program will have: see [`bowline_spec::effective_until_execve`].
fn settle_effective(process: &mut Process) {
    let is_root = process.user().uid() == 0;
    if let Some(mut sets) = process.capabilities().clone() {
        sets.set_effective(effective_until_execve(&sets, is_root));
        process.set_capabilities(Some(sets));
    }
}

/// `base` with the variables of `more` added or replaced.
fn merged(base: &[String], more: &[String]) -> Result<Vec<String>> {
    let mut all = base.to_vec();
    for variable in more {
        let key = match variable.split_once('=') {
            Some((key, _)) if !key.is_empty() => format!("{key}="),
            _ => return Err(Error::new(Kind::Usage, format!("{variable:?} is not KEY=value"))),
        };
        all.retain(|v| !v.starts_with(&key));
        all.push(variable.clone());
    }
    Ok(all)
}
