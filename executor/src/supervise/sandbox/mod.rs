//! A sandbox under supervision: what its members share, made and taken down.
//!
//! `bowline_model::sandbox` has the sandbox's files.

pub(crate) mod budgets;
pub(crate) mod connection;
pub(crate) mod pause_process;
pub(crate) mod pause_slot;
pub(crate) mod requests;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use bowline_cgroup::{Cgroup, Layout};
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::Folder;
use bowline_model::sandbox::{SandboxRecord, Whole};
use bowline_spec::budget::{MemoryQos, own_memory, own_shares};
use bowline_spec::id::TaskId;
use bowline_spec::{Mount, Namespace, Network, Task as Description};
use tokio::sync::{Mutex, RwLock, RwLockReadGuard};

use crate::facts::SandboxFacts;
use crate::hostside::memory_min;
use crate::hostside::systemd::Systemd;
use crate::hostside::task_units::remove_tasks_cgroup;
use crate::lifecycle::sandbox::{Life, Trigger};
use crate::oci::host::default_hostname;
use crate::process::worker;
use crate::supervise::handles::SandboxHandles;
use crate::supervise::shim_cgroup::Overhead;
use crate::view::network;
use crate::view::rootfs::layers::{self, Layer};
use crate::view::sandbox_namespaces;
use crate::view::sandbox_namespaces::Shared;
use crate::waits::watched_value::WatchedValue;

/// Where POSIX shared memory is.
const SHM: &str = "/dev/shm";

/// The size limit of the members' `/dev/shm`, the same as everywhere.
const SHM_SIZE: &str = "size=64m";

pub struct Sandbox {
    pub(super) id: TaskId,
    pub(super) folder: Folder,
    pub(super) facts: WatchedValue<SandboxFacts>,
    pub(super) handles: RefCell<SandboxHandles>,
    /// Read-locked by each launch of a member.
    pub(super) launching: RwLock<()>,
    /// Held while another pause process is started.
    pub(super) renewing_pids: Mutex<()>,
    /// Held while the joint limits change.
    pub(super) budgeting: Mutex<()>,
}

impl Sandbox {
    pub(super) fn new(id: TaskId, folder: Folder, record: SandboxRecord) -> Sandbox {
        Sandbox {
            id,
            folder,
            facts: WatchedValue::new(SandboxFacts::new(record)),
            handles: RefCell::default(),
            launching: RwLock::default(),
            renewing_pids: Mutex::default(),
            budgeting: Mutex::default(),
        }
    }

    /// The cgroup of a record, if it is there.
    pub(super) fn cgroup_of(layout: &Layout, record: &SandboxRecord) -> Result<Option<Cgroup>> {
        match (layout.open(&record.cgroup)?, &record.unit) {
            (Some(_), Some(unit)) => layout.adopt(unit).map(Some),
            (found, _) => Ok(found.map(|mut cgroup| {
                layout.take_existed(&mut cgroup, &record.parents_made);
                cgroup
            })),
        }
    }

    /// Applies a trigger to the sandbox's life. Returns whether the trigger has a place in its state.
    pub(super) fn apply(&self, trigger: Trigger) -> bool {
        self.facts.update(|facts| facts.life.apply(trigger))
    }

    pub(super) fn life(&self) -> Life {
        self.facts.read(|facts| facts.life)
    }

    pub(super) fn id(&self) -> &TaskId {
        &self.id
    }

    pub(super) fn keep_record(&self) -> Result<()> {
        self.facts.read(|facts| self.folder.write_sandbox(&facts.record))
    }

    /// Allows a member to be launched, until the guard is dropped.
    ///
    /// # Errors
    /// `WrongState` when the sandbox is being removed, its removal has failed, or another process has removed its
    /// cgroup.
    pub(super) async fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.launching.read().await;
        match self.life() {
            Life::Making | Life::Ready => {}
            Life::Broken => {
                let message =
                    format!("the removal of sandbox {} has failed midway: nothing is launched into it", self.id);
                return Err(Error::new(Kind::WrongState, message).hint("remove it again"));
            }
            Life::Going { .. } | Life::Dismantling | Life::Gone => return Err(self.is_removed()),
        }
        let there = self.handles.borrow().cgroup.as_ref().is_some_and(Cgroup::is_there);
        if !there {
            let cgroup = self.facts.read(|facts| facts.record.cgroup.clone());
            let gone = format!("cgroup {cgroup} of sandbox {}, with its limits, was removed by somebody else", self.id);
            return Err(Error::new(Kind::WrongState, gone)
                .hint(format!("nothing new is launched into it; remove it with `bowline sandbox rm -f {}`", self.id)));
        }
        Ok(guard)
    }

    pub(super) fn is_removed(&self) -> Error {
        Error::new(Kind::WrongState, format!("sandbox {} is being removed", self.id))
    }

    /// Whether a member whose launch has begun may go on.
    ///
    /// # Errors
    /// `WrongState` when the sandbox is removed by force.
    pub(super) fn may_launch(&self) -> Result<()> {
        if self.life().is_forced() { Err(self.is_removed()) } else { Ok(()) }
    }

    /// Thaws the whole sandbox, whichever process froze it: a frozen process handles no signal, and does not even
    /// die on v1.
    pub(super) fn thaw(&self, layout: &Layout) {
        if let Some(cgroup) = self.handles.borrow().cgroup.as_ref() {
            let _ = layout.freeze(cgroup, false);
        }
    }

    /// A member's description, completed with what the member shares, and with what the rule of the budget gives it
    /// in its own cgroup; the shared pid namespace is at `pids`.
    pub(super) fn joined(
        &self,
        task: &Description,
        id: &TaskId,
        pids: Option<PathBuf>,
        memory_qos: Option<MemoryQos>,
    ) -> Result<Description> {
        let record = self.facts.read(|facts| facts.record.clone());
        let shared = &self.handles.borrow().shared;
        let refuse = |field: &str, why: &str| Err(Error::new(Kind::BadSpec, why).in_field(field));
        if task.cgroup.is_some() {
            return refuse("cgroup", "a member's is in that of its sandbox; leave it out");
        }
        if task.bundle.is_some() {
            return refuse("bundle", "its configuration says what a member shares with others; launch it by itself");
        }
        if task.profile.is_some() {
            return refuse("profile", "a member shares network and IPC objects with others; launch it by itself");
        }
        if task.network != Network::default() {
            return refuse("network", "a member has its sandbox's; give it there");
        }
        let mut joined = task.clone();
        joined.cgroup = Some(PathBuf::from(record.cgroup_of(id)));
        joined.cpu.shares = own_shares(&record.sandbox, task);
        joined.unified.extend(own_memory(&record.sandbox, task, memory_qos));
        let of = &mut joined.namespaces;
        let fill = |own: &mut Option<Namespace>, path: Option<PathBuf>| {
            if own.is_none() {
                *own = path.map(Namespace::Path);
            }
        };
        if task.hostname.is_some() && of.uts.is_none() {
            return refuse(
                "hostname",
                "a member has its sandbox's; give it there, or write namespaces.uts = \"private\"",
            );
        }
        // A member with its own user namespace may only mount what shows its own IPC objects and processes.
        let own_users = *of.user() == Namespace::Private;
        let (shares_ipc, shares_uts) = (of.ipc.is_none() && !own_users, of.uts.is_none());
        fill(&mut of.network, shared.network());
        fill(&mut of.uts, shared.uts());
        if !own_users {
            fill(&mut of.ipc, shared.ipc());
            fill(&mut of.pid, pids);
        }
        if shares_uts && let Some(hostname) = &record.sandbox.hostname {
            joined.env.entry("HOSTNAME".to_owned()).or_insert_with(|| hostname.clone());
        }
        if shares_ipc && !task.mounts.iter().any(|mount| mount.destination == Path::new(SHM)) {
            let mount = Mount {
                destination: PathBuf::from(SHM),
                source: Some(self.folder.shm()),
                nosuid: Some(true),
                nodev: Some(true),
                noexec: Some(true),
                ..Mount::default()
            };
            joined.mounts.insert(0, mount);
        }
        Ok(joined)
    }

    /// Creates the namespaces that the members share.
    pub(super) async fn share(&self) -> Result<()> {
        self.share_namespaces(Shared::default()).await?;
        let shm = Layer {
            kind: "tmpfs".to_owned(),
            source: "shm".to_owned(),
            target: String::new(),
            options: ["nosuid", "nodev", "noexec", "mode=1777", SHM_SIZE].map(str::to_owned).to_vec(),
        };
        let at = self.folder.shm();
        std::fs::create_dir(&at)
            .map_err(|e| Error::new(Kind::Internal, format!("cannot create {}: {e}", at.display())))?;
        layers::mount(&at, &[shm]).await
    }

    /// Has the namespaces that the members share: those that were `found`, and new ones.
    async fn share_namespaces(&self, found: Shared) -> Result<()> {
        let mut wanted = self.facts.read(|SandboxFacts { record, .. }| {
            let network = &record.sandbox.network;
            sandbox_namespaces::Wanted {
                network: network.mode(),
                ipc: true,
                uts: true,
                hostname: record.sandbox.hostname.clone(),
                sysctls: network.sysctls.clone(),
            }
        });
        let hostname = wanted.hostname.get_or_insert_with(|| default_hostname(self.id.as_str())).clone();
        let made = sandbox_namespaces::make(&wanted.beyond(&found)).await?;
        let shared = found.or(made);
        self.facts.update(|SandboxFacts { record, .. }| {
            record.sandbox.hostname = Some(hostname);
            let paths = [("network", shared.network()), ("ipc", shared.ipc()), ("uts", shared.uts())];
            let paths = paths.into_iter().filter_map(|(kind, path)| Some((kind.to_owned(), path?)));
            record.namespaces = paths.collect();
        });
        self.handles.borrow_mut().shared = shared;
        Ok(())
    }

    /// Takes over the namespaces and the ports of a sandbox whose shim died, by its `processes`. A namespace that is
    /// gone, as no process was in it, is made again.
    ///
    /// # Errors
    /// `WrongState` when a network is gone that plugins have set up.
    pub(super) async fn share_again(&self, processes: &[i32]) -> Result<()> {
        let (inodes, network) = self.facts.read(|SandboxFacts { record, .. }| {
            let inodes = record.whole.as_ref().map(|whole| whole.namespaces.clone()).unwrap_or_default();
            (inodes, record.sandbox.network.clone())
        });
        let found = Shared::found(&inodes, processes, &network::pinned_at(self.folder.path()))?;
        if found.network().is_none() && network.has_plugins() {
            return Err(Error::new(Kind::WrongState, format!("the network of sandbox {} is gone", self.id)));
        }
        self.share_namespaces(found).await?;
        self.handles.borrow_mut().shared.ports = connection::ports_again(&network);
        Ok(())
    }

    /// Lets another shim take the sandbox over, should this one die, or no longer.
    pub(super) fn set_adoptable(&self, is_it: bool) -> Result<()> {
        self.set_whole(is_it);
        self.keep_record()
    }

    pub(super) fn set_whole(&self, is_it: bool) {
        let namespaces = self.handles.borrow().shared.inodes();
        self.facts.update(|facts| facts.record.whole = if is_it { Whole::with(namespaces) } else { None });
    }

    /// Runs the plugins that create the sandbox's interfaces.
    pub(super) async fn connect(&self) -> Result<()> {
        let network = self.facts.read(|facts| facts.record.sandbox.network.clone());
        let netns = self.handles.borrow().shared.network();
        if let Some(netns) = netns.filter(|_| network.has_plugins()) {
            let name = self.facts.read(|facts| facts.record.name_of(&self.id));
            let made = connection::connect(self.folder.path(), &name, &network, netns).await?;
            let (ports, interfaces) = made;
            self.handles.borrow_mut().shared.ports = ports;
            self.facts.update(|facts| facts.record.interfaces = interfaces);
        }
        let shared = std::mem::take(&mut self.handles.borrow_mut().shared);
        let settled = shared.settle().await;
        self.handles.borrow_mut().shared = shared;
        settled
    }

    /// Undoes as much as was made. What plugins refuse to undo stays, with everything that they need for another
    /// try. Returns the helpers that were moved to the root cgroup.
    pub(super) async fn take_down(&self, overhead: &Overhead, systemd: &Systemd, layout: &Layout) -> Result<Vec<i32>> {
        let network = self.facts.read(|facts| facts.record.sandbox.network.clone());
        connection::disconnect(self.folder.path(), &network).await?;
        self.facts.update(|facts| facts.record.interfaces.clear());
        let shared = std::mem::take(&mut self.handles.borrow_mut().shared);
        drop(shared);
        layers::unmount(&self.folder.shm()).await?;
        let moved = overhead.leave(layout).await;
        let cgroup = self.handles.borrow_mut().cgroup.take();
        if let Some(cgroup) = cgroup {
            // Whatever somebody has moved there ends with it, as with a task.
            remove_tasks_cgroup(layout, systemd, cgroup).await;
            let spared = self.facts.read(|facts| facts.joint.memory_min.map(|_| facts.record.cgroup.clone()));
            if let Some(path) = spared {
                let settle = || {
                    memory_min::settle(layout, systemd, &path);
                    Ok(())
                };
                worker::run("memory.min", settle).await?;
            }
        }
        self.facts.update(|facts| facts.record.taken_down = true);
        if let Err(error) = self.keep_record() {
            // As on a full disk, in which the removal makes room. Without the note, whoever comes next finds nothing to end.
            tracing::warn!(%error, "the record does not say that its sandbox is taken down");
        }
        Ok(moved)
    }
}
