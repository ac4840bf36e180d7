//! All tasks of a shim, handed over to the program that is executed in its place, and taken over there.
//!
//! ```text
//!   at rest ─► facts, descriptors by number ─► execve ─► handles from both ─► `takeover`
//! ```
//!
//! The program goes on as the parent of all children, with the same descriptors. Only cgroups are opened again, by the
//! identity in their record. Must not: change a task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use bowline_cgroup::{self as cgroup, Layout};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::events;
use bowline_model::folder::{Folder, Lock};
use bowline_model::json::handover::{Fd, bytes};
use bowline_model::liveness::Live;
use bowline_model::record::HandedLimit;
use bowline_model::reserve;
use bowline_model::stats::Stats;
use bowline_model::watch::KernelLog;
use bowline_spec::id::TaskId;
use bowline_sys as sys;
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

use super::Found;
use super::adoption;
use crate::facts::{Cgroups, SandboxFacts, ShimFacts, TaskFacts};
use crate::output::io::{self, Tail, Taken};
use crate::output::log::{self, LogFiles};
use crate::process::inheritance;
use crate::rights::claimed_uid;
use crate::rights::seccomp;
use crate::start::entrance::{self, Entrance};
use crate::start::init_program;
use crate::start::launch::{HandedInit, Held};
use crate::supervise::exec::groups;
use crate::supervise::exec::running::BegunExec;
use crate::supervise::handles::{Dying, ExecHandles, SandboxHandles, TaskHandles};
use crate::supervise::sandbox::Sandbox;
use crate::supervise::sandbox::pause_slot::LivePauseProcess;
use crate::supervise::shim_cgroup::{self, Overhead};
use crate::supervise::supervisor::{Config, Leave, Supervisor};
use crate::supervise::task::Task;
use crate::supervise::task::launch_plan::LaunchPlan;
use crate::view::namespaces::Namespaces;
use crate::view::rootfs::Additions;
use crate::view::sandbox_namespaces;
use crate::waits::claim::{Claim, End};
use crate::waits::watched_value::WatchedValue;

/// Everything that a shim knows and holds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    shim: ShimFacts,
    journal: events::Handed,
    overhead: shim_cgroup::Handed,
    /// The limit of open files of all children, where the shim has another. Since version 2 of the facts.
    #[serde(default)]
    files: Option<HandedLimit>,
    pause: Option<HandedProcess>,
    sandbox: Option<HandedSandbox>,
    /// By their ids, which are longer than a user's may be where a manager has made them.
    tasks: BTreeMap<String, HandedTask>,
}

/// A child, which may have ended.
#[derive(Debug, Serialize, Deserialize)]
struct HandedProcess {
    pid: i32,
    pidfd: Option<Fd>,
    end: Option<End>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedSandbox {
    id: TaskId,
    folder: PathBuf,
    facts: SandboxFacts,
    shared: sandbox_namespaces::Handed,
    /// The members' pid namespace. Its number is in the path by which they join it.
    pids: Option<Fd>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedTask {
    #[serde(deserialize_with = "TaskFacts::read")]
    facts: TaskFacts,
    spec: Box<Spec>,
    filter: Option<seccomp::Handed>,
    folder: PathBuf,
    owns_folder: bool,
    init: HandedProcess,
    /// Starts the program, until it has started. Since version 2 of the facts.
    #[serde(default)]
    held: Option<HandedInit>,
    /// Since version 2 of the facts.
    #[serde(default)]
    lingering: Vec<io::Handed>,
    init_watch: Option<init_program::Handed>,
    /// Processes that were sent SIGKILL, and when.
    dying: (Vec<Fd>, Moment),
    pumps: Option<io::Handed>,
    /// Of stdout; of both outputs from a program that kept no other.
    tail: HandedTail,
    #[serde(default)]
    stderr_tail: Option<HandedTail>,
    execs: BTreeMap<u64, HandedExec>,
    /// The number of the empty cgroup for an exec.
    exec_group: Option<u64>,
    last_stats: Option<Box<Stats>>,
    kernel_log: Option<Fd>,
    reserve: Option<reserve::Handed>,
    lock: Option<Fd>,
    claimed: Option<claimed_uid::Handed>,
    #[serde(default)]
    shared: sandbox_namespaces::Handed,
    /// `None` from a program that held nothing.
    #[serde(default)]
    entrance: Option<entrance::Handed>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HandedExec {
    process: Option<HandedProcess>,
    pumps: Option<io::Handed>,
    tails: Vec<HandedTail>,
    /// The number of its cgroup.
    group: Option<u64>,
}

/// The last bytes of an output, and how many are kept at most.
#[derive(Debug, Serialize, Deserialize)]
struct HandedTail {
    most: usize,
    #[serde(with = "bytes")]
    bytes: Vec<u8>,
}

impl Handed {
    /// The limit of open files that all children have.
    pub fn files(&self) -> Option<HandedLimit> {
        self.files
    }
}

impl Supervisor {
    /// Everything for the program that is executed in the shim's place. Called while the shim is at rest.
    ///
    /// # Errors
    /// `WrongState` when there is nothing that could be handed over, or something that cannot be.
    pub fn hand_over(&self) -> Result<Handed> {
        let refused =
            |why: String| Err(Error::new(Kind::WrongState, format!("the shim cannot be upgraded now: {why}")));
        let tasks = self.tasks.borrow();
        if tasks.is_empty() && self.sandbox().is_none() && self.config.leave == Leave::WithLastTask {
            return refused("it has no task".to_owned());
        }
        for (id, task) in &*tasks {
            let handles = task.handles.borrow();
            if handles.held.as_ref().is_some_and(|held| held.hand_over().is_none()) {
                return refused(format!(
                    "task {id} was not started yet, and its seccomp filter keeps it from reporting a failure"
                ));
            }
            if handles.pumps.is_none() {
                return refused(format!("task {id} is being created"));
            }
        }
        let pause = self.pause_slot.0.borrow().as_deref().map(|process| HandedProcess {
            pid: process.live.pid,
            pidfd: Some(Fd::of(&process.live.pidfd)),
            end: process.claim.end(),
        });
        Ok(Handed {
            shim: self.facts.read(Clone::clone),
            journal: self.journal.as_ref().map_or_else(Default::default, |journal| journal.borrow().hand_over()),
            overhead: self.overhead.hand_over(),
            files: inheritance::hand_over(),
            pause,
            sandbox: self.sandbox().map(|sandbox| sandbox.hand_over()),
            tasks: tasks.iter().map(|(id, task)| (id.to_string(), task.hand_over())).collect(),
        })
    }

    /// A supervisor with everything that the program before this one has handed over.
    ///
    /// # Errors
    /// `Damaged` when something is missing; `Internal` when something cannot be opened again.
    pub fn take_over(config: Config, handed: Handed) -> Result<Rc<Supervisor>> {
        let layout = Rc::new(cgroup::detect()?);
        let mark = config.mark();
        // An earlier bowline named it by its id alone.
        let names = [config.folder.name() + &mark, config.folder.name()].map(|name| cgroup::of_sandbox(&name));
        let name = handed.overhead.place(&layout, &names);
        let overhead = Overhead::take(&config.shim_cgroup, name, &config.systemd, &layout, handed.overhead)?;
        let it = Rc::new(Supervisor::with(config, mark, layout, overhead));
        it.facts.update_silently(|facts| *facts = handed.shim);
        if let Some(journal) = &it.journal {
            journal.borrow_mut().go_on(handed.journal);
        }
        if let Some(pause) = handed.pause {
            let (live, claim) = it.process(pause)?;
            let live = live.ok_or_else(|| Error::new(Kind::Damaged, "the pause process has no descriptor"))?;
            *it.pause_slot.0.borrow_mut() = Some(Rc::new(LivePauseProcess { live, claim }));
        }
        if let Some(sandbox) = handed.sandbox {
            *it.sandbox.borrow_mut() = Some(Rc::new(sandbox.take(&it.layout)?));
        }
        for (id, task) in handed.tasks {
            let id = TaskId::of_manager(&id).doing(Kind::Damaged, || "a task that was handed over has no id")?;
            let found = it.found_in(&id, task).map_err(|error| error.within(format_args!("task {id}")))?;
            let task = it.take_over_task(id, found);
            let limits = task.facts.read(|facts| facts.record.limits.clone());
            if !limits.is_empty() {
                // The program before this one may have taken it over from a shim with other ones.
                inheritance::go_on_with(&limits);
            }
        }
        io::all_releases_taken();
        Ok(it)
    }

    /// Waits for everything that the program before this one has waited for.
    pub fn go_on_waiting(self: &Rc<Self>) {
        let tasks: Vec<Rc<Task>> = self.tasks.borrow().values().cloned().collect();
        tasks.iter().for_each(|task| self.go_on_with(task));
        self.may_be_idle();
        let Some(sandbox) = self.sandbox() else { return };
        if sandbox.facts.read(|facts| facts.record.whole.is_some()) {
            self.record_sandbox_at_last(&sandbox);
        }
        if self.facts.read(|facts| facts.life.is_leaving()) {
            self.leave_after_members(sandbox);
        }
    }

    /// An exec that the program before this one has begun.
    ///
    /// # Errors
    /// `NotFound` when its task or it is not known any more.
    pub fn begun_exec(&self, id: &TaskId, number: u64) -> Result<BegunExec> {
        Ok(BegunExec::again(self.task(id)?, number))
    }

    fn process(&self, handed: HandedProcess) -> Result<(Option<Live>, Claim)> {
        let HandedProcess { pid, pidfd, end } = handed;
        let live = pidfd.map(Fd::take).transpose()?.map(|pidfd| Live { pid, pidfd });
        let claim = match (end, &live) {
            // A task that was adopted is another process's child.
            (None, Some(live)) if !sys::is_child(pid) => adoption::claim_by_pidfd(live)?,
            (end, _) => self.claim_child(pid, end),
        };
        Ok((live, claim))
    }

    /// The end of a child, which the program before this one may have seen.
    fn claim_child(&self, pid: i32, end: Option<End>) -> Claim {
        match end {
            Some(end) => {
                let claim = Claim::new(pid);
                claim.reaped(end);
                claim
            }
            None => self.children.claim_again(pid),
        }
    }

    fn found_in(&self, id: &TaskId, handed: HandedTask) -> Result<Found> {
        let HandedTask { mut facts, spec, filter, folder, owns_folder, init, pumps, execs, exec_group, .. } = handed;
        let (live, claim) = self.process(init)?;
        let cgroup = match facts.cgroups {
            Cgroups::InUse => self.cgroup_of(&facts.record)?,
            Cgroups::Removing | Cgroups::Removed => None,
        };
        let stderr_tail = handed.stderr_tail.map_or_else(|| io::new_tail(io::TAIL), HandedTail::take);
        let tails = [handed.tail.take(), stderr_tail];
        let log = |handed| match facts.record.description() {
            Ok(task) => log::go_on(task, &LogFiles::of(task, id, &folder), handed),
            // A manager keeps its own logs.
            Err(_) => [None, None],
        };
        let init_pidfd = live.as_ref().filter(|_| facts.record.init).map(|live| live.pidfd.try_clone());
        let keeper = init_pidfd.transpose().doing(Kind::Internal, || "cannot open a pidfd twice")?;
        let of_child = |pid, end| self.claim_child(pid, end);
        let kept_in = facts.record.outlives_shim().then_some(folder.as_path());
        let taken = Taken { tails: &tails, keeper, folder: kept_in, log: &log, claim: &of_child };
        let pumps = pumps.map(|pumps| pumps.take(&taken)).transpose()?.map(Rc::new);
        let mut handles = TaskHandles::new(live, claim, tails, cgroup);
        let (dying, since) = handed.dying;
        handles.dying = Dying { killed: dying.into_iter().map(Fd::take).collect::<Result<_>>()?, since };
        handles.init_watch = handed.init_watch.map(init_program::Handed::take).transpose()?.map(Rc::new);
        handles.pumps = pumps;
        handles.held = handed.held.map(HandedInit::take).transpose()?;
        handles.last_stats = handed.last_stats;
        handles.kernel_log = handed.kernel_log.map(KernelLog::take).transpose()?;
        handles.exec_group = exec_group.and_then(|number| self.open_group(&handles, number));
        let no_tail = [io::new_tail(0)];
        for (number, exec) in execs {
            let HandedExec { process, pumps, tails, group } = exec;
            let (live, claim) = process.map(|process| self.process(process)).transpose()?.unzip();
            let tails: Vec<Tail> = tails.into_iter().map(HandedTail::take).collect();
            let taken = Taken::of_exec(if tails.is_empty() { &no_tail } else { &tails }, &of_child);
            let pumps = pumps.map(|pumps| pumps.take(&taken)).transpose()?.map(Rc::new);
            let group = group.and_then(|number| self.open_group(&handles, number));
            let pidfd = live.flatten().map(|live| live.pidfd);
            handles.execs.insert(number, ExecHandles { claim, pidfd, pumps, tails, group });
        }
        for pumps in handed.lingering {
            handles.lingering.push(Rc::new(pumps.take(&Taken::of_exec(&no_tail, &of_child))?));
        }
        let plan = LaunchPlan {
            namespaces: Namespaces::of(&spec)?,
            spec,
            filter: filter.map(seccomp::Handed::take),
            record: std::mem::take(&mut facts.record),
            particulars: std::mem::take(&mut facts.particulars),
            folder: Folder::at(folder),
            owns_folder,
            slice_optional: false,
            reserve: handed.reserve.map(reserve::Handed::take).transpose()?,
            exec_slots: None,
            lock: handed.lock.map(Fd::take).transpose()?.map(Lock::from_fd),
            claimed: handed.claimed.map(claimed_uid::Handed::take).transpose()?,
            additions: Additions::default(),
            shared: handed.shared.take()?,
            notes: Vec::new(),
        };
        handles.entrance = match (handed.entrance, &handles.init) {
            (Some(entrance), _) => entrance.take()?,
            (None, Some(live)) => adoption::entrance(live, &plan)?,
            (None, None) => Entrance::default(),
        };
        Ok(Found { plan, facts, handles })
    }

    pub(crate) fn open_group(&self, handles: &TaskHandles, number: u64) -> Option<Rc<cgroup::ExecGroup>> {
        let cgroup = handles.cgroup.as_ref()?;
        self.layout.open_exec_group(cgroup, &groups::group_name(number), number).ok().map(Rc::new)
    }
}

impl Task {
    fn hand_over(&self) -> HandedTask {
        let handles = self.handles.borrow();
        let pidfd = handles.init.as_ref().map(|init| Fd::of(&init.pidfd));
        HandedTask {
            facts: self.facts.read(Clone::clone),
            spec: self.spec.clone(),
            filter: self.filter.as_ref().map(seccomp::Filter::hand_over),
            folder: self.folder.path().to_owned(),
            owns_folder: self.owns_folder,
            init: HandedProcess { pid: handles.claim.pid, pidfd, end: handles.claim.end() },
            held: handles.held.as_ref().and_then(Held::hand_over),
            lingering: handles.lingering.iter().filter(|pumps| !pumps.are_flushed()).map(|p| p.hand_over()).collect(),
            init_watch: handles.init_watch.as_deref().map(init_program::InitWatch::hand_over),
            dying: (handles.dying.killed.iter().map(Fd::of).collect(), handles.dying.since),
            pumps: handles.pumps.as_deref().map(io::Pumps::hand_over),
            tail: HandedTail::of(&handles.tails[0]),
            stderr_tail: Some(HandedTail::of(&handles.tails[1])),
            execs: handles.execs.iter().map(|(number, exec)| (*number, exec.hand_over())).collect(),
            exec_group: handles.exec_group.as_ref().map(|group| group.number()),
            last_stats: handles.last_stats.clone(),
            kernel_log: handles.kernel_log.as_ref().map(KernelLog::hand_over),
            reserve: handles.reserve.as_ref().map(reserve::Reserve::hand_over),
            lock: handles.lock.as_ref().map(Fd::of),
            claimed: handles.claimed.as_ref().map(claimed_uid::ClaimedUid::hand_over),
            shared: handles.shared.hand_over(),
            entrance: Some(handles.entrance.hand_over()),
        }
    }
}

impl ExecHandles {
    fn hand_over(&self) -> HandedExec {
        let process = self.claim.as_ref().map(|claim| HandedProcess {
            pid: claim.pid,
            pidfd: self.pidfd.as_ref().map(Fd::of),
            end: claim.end(),
        });
        HandedExec {
            process,
            pumps: self.pumps.as_deref().map(io::Pumps::hand_over),
            tails: self.tails.iter().map(HandedTail::of).collect(),
            group: self.group.as_ref().map(|group| group.number()),
        }
    }
}

impl HandedTail {
    fn of(tail: &Tail) -> HandedTail {
        let tail = tail.borrow();
        HandedTail { most: tail.capacity(), bytes: tail.to_vec() }
    }

    fn take(self) -> Tail {
        let tail = io::new_tail(self.most);
        tail.borrow_mut().push(&self.bytes);
        tail
    }
}

impl Sandbox {
    fn hand_over(&self) -> HandedSandbox {
        let handles = self.handles.borrow();
        HandedSandbox {
            id: self.id.clone(),
            folder: self.folder.path().to_owned(),
            facts: self.facts.read(Clone::clone),
            shared: handles.shared.hand_over(),
            pids: handles.pids.as_ref().map(Fd::of),
        }
    }
}

impl HandedSandbox {
    fn take(self, layout: &Layout) -> Result<Sandbox> {
        let record = self.facts.record.clone();
        let cgroup = Sandbox::cgroup_of(layout, &record)?;
        let sandbox =
            Sandbox { facts: WatchedValue::new(self.facts), ..Sandbox::new(self.id, Folder::at(self.folder), record) };
        *sandbox.handles.borrow_mut() =
            SandboxHandles { cgroup, shared: self.shared.take()?, pids: self.pids.map(Fd::take).transpose()? };
        Ok(sandbox)
    }
}
