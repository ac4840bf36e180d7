//! Turns what is asked for into the plan of a launch: of a description, a member of a sandbox, or a manager's bundle.
//!
//! A network of the task's own is made here, as the plan says which namespace the task joins. Must not: start the task,
//! or make a cgroup.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;

use bowline_cgroup::{self as cgroup, CgroupIdentity, Driver, Unit};
use bowline_error::{Doing, Kind, Result};
use bowline_model::folder::{Folder, Lock, ROOTFS, Record};
use bowline_model::record::Poststop;
use bowline_model::report::SliceEnforcement;
use bowline_spec::budget::settled_shares;
use bowline_spec::id::TaskId;
use bowline_spec::{Task as Description, TaskProfile};
use jiff::Timestamp;
use oci_spec::runtime::Spec;

use super::launch_plan::LaunchPlan;
use crate::facts::Particulars;
use crate::hostside::task_units as units;
use crate::oci::bundle::{self, Configuration};
use crate::oci::bundle_task::{self, Configured};
use crate::oci::host;
use crate::oci::tolerance;
use crate::process::inheritance;
use crate::request::{Bundle, Launch};
use crate::rights::claimed_uid;
use crate::rights::claimed_uid::ClaimedUid;
use crate::rights::seccomp::{self, Profile};
use crate::start::hooks::{self, Container};
use crate::supervise::sandbox::Sandbox;
use crate::supervise::sandbox::connection;
use crate::supervise::sandbox::requests::is_being_made;
use crate::supervise::supervisor::Supervisor;
use crate::view::joined_users;
use crate::view::mount_points::MountPoints;
use crate::view::name_files::{About, NameFiles};
use crate::view::namespaces::{self, Namespaces};
use crate::view::rootfs::Additions;
use crate::view::sandbox_namespaces::Shared;

impl Supervisor {
    /// Turns a description into the plan of its launch. A task that is not the executor's first gets a folder of its own,
    /// as a member of a sandbox has.
    pub(crate) async fn plan(&self, id: &TaskId, task: Description, launch: &Launch) -> Result<LaunchPlan> {
        let (folder, lock) = match id.as_str() == self.config.folder.name() {
            true => (self.config.folder.clone(), None),
            // Its shim is up, and was not asked to make it yet.
            false if self.config.folder.is_sandbox() => return Err(is_being_made(&self.config.folder.name())),
            false => self.config.state.create(id).map(|(folder, lock)| (folder, Some(lock)))?,
        };
        let (at, made) = (folder.clone(), lock.is_some());
        let network = task.network.clone();
        let plan = self.plan_in(folder, lock, id, task, launch).await;
        if plan.is_err() {
            connection::give_up(at.path(), &network).await;
            if made {
                at.remove_unheld(None);
            }
        }
        plan
    }

    async fn plan_in(
        &self,
        folder: Folder,
        lock: Option<Lock>,
        id: &TaskId,
        task: Description,
        launch: &Launch,
    ) -> Result<LaunchPlan> {
        let task = task.settled().into_owned();
        let claimed = task.profile.map(|TaskProfile::Untrusted| claimed_uid::claim()).transpose()?;
        let mut task = task;
        let name = self.named(id);
        let made = connection::make(folder.path(), &name, &task.network).await?;
        let (shared, interfaces) = made.unwrap_or_default();
        let joined = connection::joined(&task, shared.network());
        let Configured { mut spec, profile, names_cgroup, notes } = configured(&joined, id, claimed.as_ref(), &folder)?;
        let about = About { task: &joined, shared_name: None, interfaces: &interfaces };
        let names = NameFiles::write(&about, id.as_str(), &spec, folder.path())?;
        names.lay_on(&mut spec, joined.mounts.len(), folder.path());
        let has_default_name = joined.hostname.is_none() && joined.bundle.is_none();
        drop(joined);
        let MountPoints { for_now, covered, notes: lacking, .. } = names.mount_points;
        let notes = [notes, lacking].concat();
        if !names_cgroup && let Some(linux) = spec.linux_mut() {
            linux.set_cgroups_path(Some(format!("{}/{id}", cgroup::of_sandbox(&name)).into()));
        }
        if lacks_root(&task, &spec) {
            make_root(&folder, &spec)?;
            spec.root_mut().get_or_insert_default().set_path(folder.file("rootfs"));
        }
        if let (Some((command, args)), true) = (args(&spec), task.command.is_empty()) {
            (task.command, task.args) = (command, args);
        }
        let cgroup = spec.linux().as_ref().and_then(|l| l.cgroups_path().as_ref());
        let cgroup = cgroup.and_then(|path| path.to_str()).unwrap_or_default().to_owned();
        let asked = names_cgroup.then_some(&*cgroup);
        let unit = match &launch.slice {
            None => launch.driver.unit_of(asked, &name, &name)?,
            Some(slice) => Some(units::in_slice(slice, asked, launch.driver, &name)?),
        };
        if unit.as_ref().is_some_and(|unit| unit.own_slice) {
            self.overhead.be_unit(&self.layout, Unit::of_shim(&(self.config.folder.name() + &self.mark))?);
        }
        let enforcement = launch.slice.clone().map(SliceEnforcement::of);
        let (durable, remove) = (launch.durable, launch.remove);
        // The executor's own cgroup goes with its own folder, not with that of a further task.
        let owns_folder = lock.is_some();
        let overhead = self.overhead.path().filter(|_| !owns_folder);
        let init = self.has_init(&task);
        let (user, foreground) = (spec.process().as_ref().map(|process| process.user().clone()), launch.foreground());
        let poststop = poststop_of(&task, id, &spec, &folder)?;
        let record = self.record(cgroup, unit);
        let record =
            Record { task: Some(task), durable, remove, enforcement, overhead, init, user, foreground, ..record };
        let (ends_with, folder_name) = (launch.ends_with.clone(), Some(folder.name()));
        let record = Record { folder: folder_name, interfaces, poststop, ends_with, mount_points: for_now, ..record };
        let plan = self.planned(spec, profile, record, folder).await?;
        let additions = Additions { covered, has_default_name, ..Additions::default() };
        let slice_optional = launch.slice_optional;
        Ok(LaunchPlan { slice_optional, claimed, owns_folder, lock, shared, notes, additions, ..plan })
    }

    /// Plans a member of a sandbox and adds it to the joint budget.
    pub(crate) async fn plan_member(
        &self,
        sandbox: &Rc<Sandbox>,
        id: &TaskId,
        mut task: Description,
        launch: &Launch,
    ) -> Result<LaunchPlan> {
        let asked = task.cpu.shares;
        let (shares, notes) = sandbox.facts.read(|facts| settled_shares(&facts.record.sandbox, id.as_str(), asked));
        task.cpu.shares = shares;
        let folder = self.config.state.folder(id);
        let lock = folder.lock_shared()?;
        if task.namespaces.pid.is_none() {
            self.renew_pids(sandbox).await?;
        }
        let joined = self.joined(sandbox, &task, id)?;
        let mut spec = host::configure_unfiltered(&joined, id.as_str(), None)?;
        let profile = host::profile(&joined)?;
        let (name, interfaces) =
            sandbox.facts.read(|facts| (facts.record.sandbox.hostname.clone(), facts.record.interfaces.clone()));
        let shared_name = name.as_deref().filter(|_| task.namespaces.uts.is_none());
        let interfaces = if task.namespaces.network.is_none() { interfaces } else { Vec::new() };
        let about = About { task: &joined, shared_name, interfaces: &interfaces };
        let names = NameFiles::write(&about, id.as_str(), &spec, folder.path())?;
        names.lay_on(&mut spec, joined.mounts.len(), folder.path());
        let MountPoints { for_now, covered, notes: lacking, .. } = names.mount_points;
        if task.rootfs.is_none() {
            make_root(&folder, &spec)?;
        }
        let resources = spec.linux().as_ref().and_then(|l| l.resources().as_ref());
        self.join_budget(sandbox, id, &task, resources, notes).await?;
        let notes = host::lacks_of_all(&joined).into_iter().chain(lacking).collect();
        let (cgroup, unit) = sandbox.facts.read(|facts| (facts.record.cgroup_of(id), facts.record.unit_of(id)));
        let unit = unit?;
        let of = Some(sandbox.id().clone());
        let init = self.has_init(&task);
        let (user, foreground) = (spec.process().as_ref().map(|process| process.user().clone()), launch.foreground());
        let poststop = poststop_of(&task, id, &spec, &folder)?;
        let record = Record {
            task: Some(task),
            durable: launch.durable,
            remove: launch.remove,
            ends_with: launch.ends_with.clone(),
            sandbox: of,
            overhead: None,
            init,
            poststop,
            ..self.record(cgroup, unit)
        };
        let record = Record { folder: Some(folder.name()), user, foreground, mount_points: for_now, ..record };
        let has_default_name = joined.hostname.is_none();
        let additions = Additions { covered, has_default_name, ..Additions::default() };
        Ok(LaunchPlan { lock: Some(lock), notes, additions, ..self.planned(spec, profile, record, folder).await? })
    }

    /// Plans the launch of a manager's bundle.
    pub(crate) async fn plan_bundle(
        &self,
        id: &TaskId,
        bundle: Bundle,
        driver: Driver,
        durable: bool,
    ) -> Result<LaunchPlan> {
        let Configuration { mut spec, seccomp, mut notes } = bundle::read(&bundle.path)?;
        if let Some(member) = &bundle.member {
            member.fit(&mut spec)?;
        }
        joined_users::complete(&mut spec)?;
        if !Namespaces::of(&spec)?.in_user_namespace() {
            notes.extend(spec.process_mut().as_mut().and_then(tolerance::grant));
        }
        let asked = bundle::asked_cgroup(&spec);
        let unit = driver.unit_of(asked, id.as_str(), id.as_str())?;
        let record = Record { durable, ..self.record(bundle::cgroup_path(asked, id), unit) };
        let profile = seccomp.map(|profile| Profile::Given(Box::new(profile)));
        Ok(LaunchPlan { notes, ..self.planned(spec, profile, record, Folder::at(bundle.path)).await? })
    }

    pub(crate) async fn planned(
        &self,
        spec: Spec,
        profile: Option<Profile>,
        record: Record,
        folder: Folder,
    ) -> Result<LaunchPlan> {
        let namespaces = Namespaces::of(&spec)?;
        let filter = match profile {
            Some(profile) => Some(seccomp::filter(profile, &self.config.state.filter_cache()).await?),
            None => None,
        };
        Ok(LaunchPlan {
            spec: Box::new(spec),
            namespaces,
            filter,
            record: Box::new(record),
            particulars: Particulars::default(),
            folder,
            owns_folder: false,
            slice_optional: false,
            reserve: None,
            exec_slots: None,
            lock: None,
            claimed: None,
            additions: Additions::default(),
            shared: Shared::default(),
            notes: Vec::new(),
        })
    }

    /// Whether the task gets `bowline-init`. A default does without a program that is not installed.
    fn has_init(&self, task: &Description) -> bool {
        if task.init.is_some() || !task.init() {
            return task.init();
        }
        let found = self.config.init.as_deref().is_some_and(Path::exists);
        if let (false, Some(missing)) = (found, &self.config.init) {
            tracing::warn!(missing = %missing.display(), "no init is above the task's command: bowline-init is missing");
        }
        found
    }

    /// The record of a task whose launch begins.
    fn record(&self, cgroup: String, unit: Option<Unit>) -> Record {
        Record {
            created_at: Timestamp::now(),
            shim_pid: std::process::id().cast_signed(),
            cgroup: unit.as_ref().map_or(cgroup, Unit::path),
            identity: CgroupIdentity::to_come(),
            unit,
            overhead: self.overhead.path(),
            limits: inheritance::to_record(),
            ..Record::default()
        }
    }
}

/// The configuration of a task that is in no sandbox, and has this folder.
pub(crate) fn configured(
    task: &Description,
    id: &TaskId,
    claimed: Option<&ClaimedUid>,
    folder: &Folder,
) -> Result<Configured> {
    if let Some(bundle) = &task.bundle {
        return bundle_task::configure(task, bundle, id, folder);
    }
    let spec = host::configure_unfiltered(task, id.as_str(), claimed)?;
    let notes = Vec::from_iter(host::lacks_of_all(task));
    Ok(Configured { spec, profile: host::profile(task)?, names_cgroup: task.cgroup.is_some(), notes })
}

/// The poststop hooks of a task that has this folder. Hooks of a description find its configuration there.
fn poststop_of(task: &Description, id: &TaskId, spec: &Spec, folder: &Folder) -> Result<Option<Box<Poststop>>> {
    if task.bundle.is_none() {
        bundle::keep_for_hooks(spec, folder)?;
    }
    let bundle = task.bundle.as_deref().unwrap_or(folder.path());
    hooks::poststop_of(Container { id: id.as_str(), bundle, spec })
}

/// Whether the task gets an empty root folder, for the host view; also one whose bundle is what `bowline spec` printed,
/// alone in its folder.
fn lacks_root(task: &Description, spec: &Spec) -> bool {
    let Some(bundle) = &task.bundle else { return task.rootfs.is_none() };
    let is_missing = spec.root().as_ref().is_some_and(|root| !bundle.join(root.path()).exists());
    is_missing && spec.mounts().iter().flatten().any(bowline_spec::hides_owners)
}

/// The command and the arguments of the process.
fn args(spec: &Spec) -> Option<(String, Vec<String>)> {
    let args = spec.process().as_ref()?.args().as_ref()?;
    args.split_first().map(|(command, args)| (command.clone(), args.to_vec()))
}

/// Creates the empty folder that the host view is mounted into. In a user namespace, that namespace's root creates
/// the mount points, so it owns the folder.
fn make_root(folder: &Folder, spec: &Spec) -> Result<()> {
    let path = folder.file(ROOTFS);
    let what = || format!("cannot create {}", path.display());
    fs::create_dir(&path).doing(Kind::Internal, what)?;
    // Whatever umask the shim was started with.
    fs::set_permissions(&path, Permissions::from_mode(0o755)).doing(Kind::Internal, what)?;
    let (uid, gid) = namespaces::host_ids(spec, 0, 0);
    std::os::unix::fs::chown(&path, Some(uid), Some(gid)).doing(Kind::Internal, what)
}
