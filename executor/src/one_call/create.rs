//! Creating a container: everything up to its program.

use std::fs::Permissions;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bowline_cgroup::{Cgroup, CgroupIdentity, Driver, Unit};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::{Container as Recorded, Folder, Record};
use bowline_model::liveness::Live;
use bowline_spec::id::TaskId;
use bowline_sys::{self as sys, proc_stat};
use jiff::Timestamp;
use oci_spec::runtime::{Mount, Process, Spec};
use rustix::fs::{Mode, OFlags};

use super::{Begun, Containers, NOTIFY, NOTIFY_PLACE, NOTIFY_SOCKET, ORDERS, REPORT, Streams, hand_terminal, streams};
use crate::hostside::task_units as units;
use crate::hostside::undo::undo;
use crate::oci::bundle::{self, Configuration};
use crate::oci::tolerance;
use crate::process::inheritance;
use crate::rights::seccomp::Filter;
use crate::start::entrance::Entrance;
use crate::start::hooks::{self, Container as Hooked, Point};
use crate::start::launch::Prepared;
use crate::view::joined_users;
use crate::view::namespaces::Namespaces;
use crate::view::rootfs::{self, Additions};

/// What is asked for with a new container.
pub struct Create {
    /// The id of the container.
    pub id: TaskId,
    /// The folder of the configuration.
    pub bundle: PathBuf,
    /// The file of the configuration, where it is not in the bundle.
    pub config: Option<PathBuf>,
    /// How the path of the cgroup is read.
    pub driver: Driver,
    /// Whether the processes stay in the caller's session keyring.
    pub keeps_keyring: bool,
    /// Whether the root is moved over the host's, in the place of pivot_root(2).
    pub moves_root: bool,
    /// Whether a service manager waits for messages of the container.
    pub notifies: bool,
    /// The streams of init.
    pub streams: Streams,
    /// Called with init's pidfd and pid once those are recorded, before the container is created: an error undoes it.
    pub known: Box<Known>,
}

/// What is done with a pidfd and a pid.
pub type Known = dyn FnOnce(BorrowedFd<'_>, i32) -> Result<()>;

/// A container that is being created.
struct Plan {
    configuration: Configuration,
    filter: Option<Filter>,
    namespaces: Namespaces,
    record: Record,
}

impl Containers {
    /// Creates a container: when this returns, its init waits for [`Containers::start`].
    ///
    /// # Errors
    /// `AlreadyExists` where the id is taken; what its configuration, its hooks or this host refuse. Nothing is left then.
    pub async fn create(&self, wanted: Create) -> Result<Begun> {
        inheritance::leave_behind(inheritance::InheritedLimits::Managers)?;
        let id = wanted.id.clone();
        let taken = |error: Error| match error.kind() {
            Kind::AlreadyExists => {
                Error::new(Kind::AlreadyExists, format!("container with given ID already exists: {id}"))
            }
            _ => error,
        };
        self.state.make()?;
        self.state.check()?;
        self.state.sweep();
        let (folder, lock) = self.state.create_container(&id).map_err(taken)?;
        let created = self.create_in(&folder, wanted).await;
        self.reap_workers(created.as_ref().ok().map(|begun| begun.live.pid));
        let Err(error) = created else { return created };
        // What could not be undone keeps its record, for `delete --force`.
        match undo(&folder, &self.systemd).and_then(|_| folder.remove_quietly(lock)) {
            Ok(()) => Err(error),
            Err(left) => Err(error.hint(format!("besides, {left}"))),
        }
    }

    async fn create_in(&self, folder: &Folder, wanted: Create) -> Result<Begun> {
        let mut plan = self.plan(folder, &wanted).await?;
        // Before anything is made that a crash would leave behind.
        folder.write_record(&plan.record)?;
        self.make(folder, &mut plan, wanted).await
    }

    async fn plan(&self, folder: &Folder, wanted: &Create) -> Result<Plan> {
        let mut configuration = match &wanted.config {
            Some(file) => bundle::read_once_from(file, &wanted.bundle, folder)?,
            None => bundle::read_once(&wanted.bundle, folder)?,
        };
        let spec = &mut configuration.spec;
        joined_users::complete(spec)?;
        if wanted.notifies {
            add_notify(spec, &folder.file(NOTIFY))?;
        }
        let keeps_groups = spec.annotations().as_ref().is_some_and(|all| all.contains_key(KEEPS_GROUPS));
        if let Some(process) = spec.process_mut() {
            wanted.streams.fit(process)?;
            wanted.streams.announce(process);
            if keeps_groups {
                keep_groups(process)?;
            }
        }
        let namespaces = Namespaces::of(spec)?;
        if !namespaces.in_user_namespace() {
            configuration.notes.extend(spec.process_mut().as_mut().and_then(tolerance::grant));
        }
        for note in &configuration.notes {
            tracing::warn!("{note}");
        }
        let filter = self.filter(&mut configuration).await?;
        let (spec, id) = (&configuration.spec, wanted.id.as_str());
        let asked = bundle::asked_cgroup(spec);
        let unit = wanted.driver.unit_of(asked, id, id)?;
        let poststop = hooks::poststop_of(Hooked { id, bundle: &wanted.bundle, spec })?;
        let own = std::process::id().cast_signed();
        let rootfs = spec.root().as_ref().map(|root| wanted.bundle.join(root.path())).unwrap_or_default();
        let container = Recorded {
            bundle: wanted.bundle.clone(),
            rootfs: std::fs::canonicalize(&rootfs).unwrap_or(rootfs),
            oci_version: spec.version().clone(),
            annotations: spec.annotations().clone().unwrap_or_default().into_iter().collect(),
            owner: rustix::process::getuid().as_raw(),
            keeps_keyring: wanted.keeps_keyring,
            notifies: wanted.notifies,
            creator: proc_stat::started(own).map(|started| (own, started)),
        };
        let record = Record {
            folder: Some(id.to_owned()),
            created_at: Timestamp::now(),
            shim_pid: own,
            cgroup: unit.as_ref().map_or_else(|| bundle::cgroup_path(asked, &wanted.id), Unit::path),
            identity: CgroupIdentity::to_come(),
            unit,
            limits: inheritance::to_record(),
            container: Some(Box::new(container)),
            poststop,
            ..Record::default()
        };
        Ok(Plan { configuration, filter, namespaces, record })
    }

    async fn make(&self, folder: &Folder, plan: &mut Plan, wanted: Create) -> Result<Begun> {
        let layout = self.layout()?;
        let resources = plan.configuration.spec.linux().as_ref().and_then(|linux| linux.resources().clone());
        let (cgroup, placeholder) = match &plan.record.unit {
            Some(unit) => {
                let (cgroup, placeholder) =
                    units::create(layout, &self.systemd, unit, &plan.configuration.spec, true).await?;
                (cgroup, Some(placeholder))
            }
            None => (layout.create_or_use_with_devices(&plan.record.cgroup)?, None),
        };
        plan.record.parents_made = layout.parents_made(&cgroup);
        if let Some(identity) = &mut plan.record.identity {
            identity.cgroups = layout.files_of(&cgroup);
        }
        folder.write_record(&plan.record)?;
        let begun = match resources.as_ref().map_or(Ok(()), |resources| layout.apply(&cgroup, resources)) {
            Ok(()) => self.hold(folder, plan, wanted, &cgroup).await,
            Err(error) => Err(error),
        };
        if let Some(placeholder) = placeholder {
            placeholder.leave().await;
        }
        begun
    }

    /// Clones init, and leaves it held.
    async fn hold(&self, folder: &Folder, plan: &mut Plan, wanted: Create, cgroup: &Cgroup) -> Result<Begun> {
        let Plan { configuration, filter, namespaces, record } = plan;
        let (spec, id) = (&configuration.spec, wanted.id.as_str());
        for (at, option) in rootfs::ignored_cgroup_options(spec, self.layout()?.version()) {
            tracing::warn!("mount {}: {option} has no effect: the hierarchies of the host have theirs", at.display());
        }
        let process = spec.process().as_ref().ok_or_else(|| Error::new(Kind::BadSpec, "process: missing"))?;
        let (stdio, terminal) = streams(spec, process, &wanted.streams)?;
        let (orders, report) = (fifo(&folder.file(ORDERS))?, fifo(&folder.file(REPORT))?);
        let prepared = Prepared {
            id,
            spec,
            bundle: &wanted.bundle,
            cgroup,
            filter: filter.as_ref(),
            stdio,
            keeps_keyring: wanted.keeps_keyring,
            command_folders: &[],
            init: None,
            additions: &Additions { exact_binds: true, moves_root: wanted.moves_root, ..Additions::default() },
            start_mark: None,
            successors: Some([orders.as_fd(), report.as_fd()]),
            preserved: wanted.streams.preserved,
        };
        let mut starting = prepared.clone_init()?;
        let live = starting.live(std::future::pending()).await?;
        let pid = live.pid;
        (record.pid, record.pid_started) = (Some(pid), proc_stat::started(pid));
        let made = async {
            folder.write_record(record)?;
            let hooked = Hooked { id, bundle: &wanted.bundle, spec };
            let hooks = async || {
                for point in [Point::Prestart, Point::CreateRuntime] {
                    hooked.run(point, Some(pid), std::future::pending(), Err).await?;
                }
                Ok(())
            };
            let held = starting.ready(pid, spec, namespaces, hooks).await?;
            record.launched_in = Entrance::of_new(pid, namespaces, filter.as_ref(), false)?.identities(pid)?;
            let terminal = hand_terminal(terminal, wanted.streams.console.as_ref())?;
            if let Some(container) = &mut record.container {
                container.creator = None;
            }
            folder.write_record(record)?;
            (wanted.known)(live.pidfd.as_fd(), pid)?;
            held.leave()?;
            Ok(terminal)
        };
        match made.await {
            Ok(terminal) => Ok(Begun { live, terminal }),
            Err(error) => {
                end(&live).await;
                Err(error)
            }
        }
    }
}

/// Gives the container a folder in which a socket for its messages comes to be.
fn add_notify(spec: &mut Spec, folder: &Path) -> Result<()> {
    let made =
        std::fs::create_dir(folder).and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(0o755)));
    made.doing(Kind::Internal, || format!("cannot make {}", folder.display()))?;
    let options = ["bind", "ro", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
    let mut mount = Mount::default();
    mount.set_destination(NOTIFY_PLACE.into()).set_typ(Some("bind".to_owned()));
    mount.set_source(Some(folder.to_owned())).set_options(Some(options));
    spec.mounts_mut().get_or_insert_default().push(mount);
    if let Some(process) = spec.process_mut() {
        let env = process.env_mut().get_or_insert_default();
        env.retain(|variable| !variable.starts_with("NOTIFY_SOCKET="));
        env.push(format!("NOTIFY_SOCKET={NOTIFY_PLACE}/{NOTIFY_SOCKET}"));
    }
    Ok(())
}

/// Podman's annotation for `--group-add keep-groups`, which crun knows too.
const KEEPS_GROUPS: &str = "run.oci.keep_original_groups";

/// Leaves the process in the groups of the caller.
fn keep_groups(process: &mut Process) -> Result<()> {
    let own = rustix::process::getgroups().doing(Kind::Internal, || "cannot read the caller's groups")?;
    let mut user = process.user().clone();
    let mut groups = user.additional_gids().clone().unwrap_or_default();
    groups.extend(own.into_iter().map(rustix::process::Gid::as_raw));
    user.set_additional_gids(Some(groups));
    process.set_user(user);
    Ok(())
}

/// Ends an init that nobody will start.
async fn end(live: &Live) {
    // One that has ended already needs no signal.
    let _ = sys::pidfd_send_signal(live.pidfd.as_fd(), libc::SIGKILL);
    if let Ok(pidfd) = live.pidfd.try_clone() {
        crate::process::worker::ended(pidfd).await;
    }
}

/// Makes a FIFO, and opens both of its ends: whoever has it waits in it, whether somebody else has opened it or not.
fn fifo(path: &Path) -> Result<OwnedFd> {
    let what = || format!("cannot make {}", path.display());
    rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR).doing(Kind::Internal, what)?;
    rustix::fs::open(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).doing(Kind::Internal, what)
}
