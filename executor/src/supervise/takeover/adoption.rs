//! Takes over a task whose shim died: from its record, its processes and its cgroup. Of a sandbox, all members.
//!
//! ```text
//!   record ─► started, in this boot ─► init, by pid and start time ─┐
//!                                   └─► cgroup, by its identity ─────┴─► `takeover`
//!
//!   sandbox's record ─► cgroup ─► namespaces, by their members ─► pause process ─► members ─► joint limits
//! ```
//!
//! The new shim is not the parent of the task's processes. `bowline-init` has kept the output and the end of the
//! program; without it the output has ended, and the kernel may tell the end. Must not: signal or change anything that
//! is not known to be the task's.

use std::borrow::Cow;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use bowline_cgroup::Cgroup;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::folder::{EventCounts, Folder, Lock, Record};
use bowline_model::liveness::Live;
use bowline_model::liveness::UNSEEN;
use bowline_model::report::StoppedBy;
use bowline_model::watch::ProcessIdentity;
use bowline_spec::NetworkMode;
use bowline_spec::id::TaskId;
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended};
use oci_spec::runtime::User;
use tokio::io::Interest;

use super::Found;
use crate::facts::TaskFacts;
use crate::hostside::undo;
use crate::hostside::undo_sandbox::{self, misnamed_pause};
use crate::lifecycle::sandbox::Trigger;
use crate::lifecycle::shim;
use crate::oci::bundle;
use crate::oci::bundle_task::Configured;
use crate::output::io::{self, KeptOutput, Losses, Pumps, Tail, Target, Unread};
use crate::output::log::{self, LogFiles};
use crate::process::inheritance;
use crate::rights::claimed_uid;
use crate::start::entrance::Entrance;
use crate::start::init_program::{self, Kept};
use crate::supervise::handles::TaskHandles;
use crate::supervise::sandbox::Sandbox;
use crate::supervise::sandbox::connection;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::takeover::record::facts_after_death;
use crate::supervise::task::Task;
use crate::supervise::task::launch_plan::LaunchPlan;
use crate::supervise::task::planning::configured;
use crate::view::sandbox_namespaces::Shared;
use crate::view::secrets::Secrets;
use crate::waits;
use crate::waits::claim::{Claim, End};

impl Supervisor {
    /// Takes over the task or the sandbox of the shim's folder, whose lock the shim holds. A task that has ended meanwhile
    /// gets its report.
    ///
    /// # Errors
    /// `WrongState` for what cannot be taken over; `BadSpec` where its description does not fit the host any more. It
    /// runs on untouched.
    pub async fn adopt(self: &Rc<Self>, events: &EventCounts) -> Result<()> {
        let folder = self.config.folder.clone();
        if folder.is_sandbox() {
            return Box::pin(self.adopt_sandbox(folder, events)).await;
        }
        self.adopt_task(folder, None, events).await?;
        self.apply(shim::Trigger::Last);
        Ok(())
    }

    async fn adopt_sandbox(self: &Rc<Self>, folder: Folder, events: &EventCounts) -> Result<()> {
        let id: TaskId = folder.name().parse().map_err(Error::from)?;
        let refused = |why: &str| Error::new(Kind::WrongState, format!("sandbox {id} cannot be taken over: {why}"));
        let by_anyone = |why: &str| refused(why).hint(folder.removal_hint());
        let mut record = folder.sandbox()?.ok_or_else(|| by_anyone("it has no record"))?;
        folder.check_form().map_err(|newer| by_anyone(newer.message()))?;
        record.adoptable().map_err(by_anyone)?;
        let cgroup = Sandbox::cgroup_of(&self.layout, &record)?.ok_or_else(|| refused("its cgroup is gone"))?;
        if let Some(why) = undo_sandbox::cgroups(&record, &self.layout, &folder).1.first() {
            return Err(by_anyone(&format!("by `cgroup` or `overhead` in its record, {why}")));
        }
        if let Some(pid) = misnamed_pause(&record, &id)? {
            return Err(by_anyone(&format!("process {pid}, which `pause_pid` in its record names, is not of it")));
        }
        let members: Vec<Folder> =
            self.config.state.members(&id)?.iter().map(|id| self.config.state.folder(id)).collect();
        if record.is_elsewhere(&self.layout, &members)? {
            return Err(refused(UNSEEN));
        }
        record.shim_pid = Some(std::process::id().cast_signed());
        if let Some(path) = &record.overhead {
            self.overhead.be_sandboxs(&self.layout, path, record.overhead_unit.clone(), Some(&record.cgroup));
            let helpers = self.layout.processes_at(path);
            self.facts.update(|facts| facts.helpers.extend(helpers.into_iter().filter_map(ProcessIdentity::of)));
        }
        self.hold();
        let sandbox = Rc::new(Sandbox::new(id.clone(), folder, record));
        sandbox.handles.borrow_mut().cgroup = Some(cgroup);
        *self.sandbox.borrow_mut() = Some(sandbox.clone());
        sandbox.apply(Trigger::Made);
        sandbox.share_again(&live_inits(&members)?).await?;
        self.hold_pids_again(&sandbox).await?;
        tracing::warn!(%id, "took over a sandbox whose shim died");
        self.adopt_members(&sandbox, members, events).await?;
        self.budget_members(&sandbox).await?;
        self.overhead.enter_again(&self.layout).await?;
        sandbox.set_whole(true);
        self.record_sandbox_at_last(&sandbox);
        self.release();
        Ok(())
    }

    /// Takes over the members that have not ended. One that no shim could take over stays without.
    async fn adopt_members(
        self: &Rc<Self>,
        sandbox: &Sandbox,
        members: Vec<Folder>,
        events: &EventCounts,
    ) -> Result<()> {
        for member in members {
            if matches!(member.exit(), Ok(Some(_))) {
                continue;
            }
            let name = member.name();
            match self.adopt_task(member, Some(sandbox), events).await {
                Ok(()) => {}
                Err(error) if is_final(&error) => tracing::error!(%error, %name, "a member stays without a shim"),
                Err(error) => return Err(error.within(format_args!("member {name}"))),
            }
        }
        Ok(())
    }

    async fn adopt_task(
        self: &Rc<Self>,
        folder: Folder,
        sandbox: Option<&Sandbox>,
        events: &EventCounts,
    ) -> Result<()> {
        let id: TaskId = folder.name().parse().map_err(Error::from)?;
        let lock = if sandbox.is_some() { Some(members_lock(&folder).await?) } else { None };
        let none = || Error::new(Kind::NotFound, format!("there is no record of task {id}"));
        let mut record = folder.record()?.ok_or_else(none)?;
        let refused = |why: &str| Error::new(Kind::WrongState, format!("task {id} cannot be taken over: {why}"));
        let by_anyone = |why: &str| refused(why).hint(folder.removal_hint());
        folder.check_form().map_err(|newer| by_anyone(newer.message()))?;
        record.adoptable().map_err(by_anyone)?;
        let init = record.live_init()?;
        if init.is_none() && record.is_elsewhere(&self.layout)? {
            return Err(refused(UNSEEN));
        }
        let in_launch = record.started_at.is_none();
        if in_launch && !is_started(&folder, &record, init.as_ref()).await? {
            return Err(by_anyone("its launch was not complete, and its command was never started"));
        }
        let cgroup = self.cgroup_of(&record)?;
        // One that has ended needs none, also before somebody reaps it.
        if init.is_some() && cgroup.is_none() && record.runs() {
            let removed = folder.removal_hint();
            let hint = format!("run the command where the task was started; if there is none there either, {removed}");
            return Err(refused(
                "its cgroup is gone, or another one has its path, by `cgroup` and `identity` in its record",
            )
            .hint(hint));
        }
        if let Some(cgroup) = &cgroup {
            undo::check_opened(&self.layout, &folder, &record, cgroup)
                .map_err(|why| by_anyone(&format!("by `cgroup` and `identity` in its record, {why}")))?;
            self.check_init(&record, cgroup, init.as_ref()).await.map_err(|why| by_anyone(&why))?;
        }
        if record.bundle().is_some() && !bundle::has_copy(&folder) {
            return Err(by_anyone("its folder lacks `config.json`, the copy of its bundle's"));
        }
        if let Some(shims) = record.unit.as_ref().and_then(|unit| unit.of_shim_too()) {
            self.overhead.be_unit(&self.layout, shims);
        }
        inheritance::go_on_with(&record.limits);
        record.shim_pid = std::process::id().cast_signed();
        let plan = self.plan_adopted(&id, record, &folder, sandbox).await?;
        let mut plan = LaunchPlan { lock, ..plan };
        match init.as_ref().filter(|_| plan.record.secret_variables) {
            // The files are there.
            Some(live) if plan.record.init => {
                Secrets { files: Vec::new(), env: init_program::kept_secrets(live.pid)? }.lay_on(&mut plan.spec)?;
            }
            Some(_) => {
                tracing::warn!("without bowline-init, commands in the task lack its secret variables from now on")
            }
            None => {}
        }
        if sandbox.is_none() {
            self.overhead.take_over(&self.layout).await?;
        }
        let found = self.found_on_host(&id, plan, init, cgroup, events.get(&id).copied())?;
        let task = self.take_over_task(id.clone(), found);
        tracing::warn!(%id, "took over a task whose shim died");
        if in_launch {
            self.record_start(&task);
        }
        self.hold();
        if task.handles.borrow().init.is_some() {
            self.note_what_is_due(&task);
            if let Err(error) = task.go_on_stopping(&self.layout) {
                tracing::warn!(%error, %id, "a stop that was begun is not heard");
            }
        }
        self.go_on_with(&task);
        if in_launch && let Err(error) = self.settle_start(&task).await {
            tracing::error!(%error, "the launch that the shim before began has failed");
        }
        Ok(())
    }

    /// Checks that a record names the task's init, or one that has ended.
    ///
    /// # Errors
    /// Why it does not.
    async fn check_init(
        &self,
        record: &Record,
        cgroup: &Cgroup,
        init: Option<&Live>,
    ) -> std::result::Result<(), String> {
        let give_up = Moment::now().after(ENDS_WITHIN);
        let mut wait = Duration::from_micros(200);
        while let Some(why) = record.misnames_init(&self.layout, cgroup, init) {
            let ends = |live: &Live| {
                proc_stat::read(live.pid).is_none_or(|stat| ProcStat::parse(&stat).is_none_or(|stat| stat.ends()))
            };
            if !init.is_none_or(ends) || Moment::now() > give_up {
                return Err(why);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The cgroup of a record, if it is there and is the one that the task was started in.
    pub(crate) fn cgroup_of(&self, record: &Record) -> Result<Option<Cgroup>> {
        let found = self.layout.open(&record.cgroup)?;
        let is_its = |cgroup: &Cgroup| record.identity.as_ref().is_some_and(|of| of.is_of(&self.layout, cgroup));
        let mut cgroup = match (found.filter(is_its), &record.unit) {
            (Some(_), Some(unit)) => Some(self.layout.adopt(unit)?),
            (found, _) => found,
        };
        if let Some(cgroup) = &mut cgroup {
            self.layout.take_existed(cgroup, &record.parents_made);
        }
        if let (Some(cgroup), Some(sandbox)) = (&mut cgroup, self.sandbox()) {
            sandbox.facts.read(|facts| cgroup.stay_in(&facts.record.cgroup));
        }
        Ok(cgroup)
    }

    /// The plan that the task was launched by, for its execs and updates.
    async fn plan_adopted(
        &self,
        id: &TaskId,
        record: Record,
        folder: &Folder,
        sandbox: Option<&Sandbox>,
    ) -> Result<LaunchPlan> {
        let description = record.description()?;
        let own = record.user.as_ref().filter(|_| description.profile.is_some()).map(User::uid);
        let claimed = own.map(claimed_uid::claim_again).transpose()?;
        let netns = record.pid.filter(|_| description.network.mode() != NetworkMode::Host);
        let netns = netns.map(|pid| format!("/proc/{pid}/ns/net").into());
        let joined = match sandbox {
            Some(sandbox) => Cow::Owned(self.joined(sandbox, description, id)?),
            None => connection::joined(description, netns),
        };
        let Configured { mut spec, profile, .. } = configured(&joined, id, claimed.as_ref(), folder)?;
        if let (Some(process), Some(user)) = (spec.process_mut(), &record.user) {
            process.set_user(user.clone());
        }
        let reserve = Some(folder.reserve_exit_again()?);
        let shared = Shared::with_ports(connection::ports_again(&description.network));
        drop(joined);
        Ok(LaunchPlan { claimed, reserve, shared, ..self.planned(spec, profile, record, folder.clone()).await? })
    }

    /// The task as its record, its processes and its cgroup show it.
    fn found_on_host(
        &self,
        id: &TaskId,
        mut plan: LaunchPlan,
        init: Option<Live>,
        cgroup: Option<Cgroup>,
        events: Option<u64>,
    ) -> Result<Found> {
        if std::mem::take(&mut plan.record.in_poststart) {
            tracing::warn!(%id, "its poststart hooks ended with its shim: what they had still to do was not done");
        }
        let kept = match &init {
            Some(live) if plan.record.init => init_program::reopen(live.pid, &plan.folder)?,
            Some(_) | None => Kept::default(),
        };
        let tails = [io::new_tail(io::TAIL), io::new_tail(io::TAIL)];
        let pumps = pumps(&plan, id, &init, kept.outputs, &tails)?;
        let claim = claim(&plan, &init)?;
        let entrance = init.as_ref().map(|live| entrance(live, &plan)).transpose()?.unwrap_or_default();
        // Its init says so once, while no shim listened. It may have been ended since.
        let end = plan.folder.kept_end(&plan.record).map(End::now);
        let init_lost = plan.record.reused_pid().filter(|_| init.is_none());
        if let Some(why) = &init_lost {
            tracing::warn!(%id, "{why}: what is left in the task's cgroup is ended, and the task counts as ended");
        }
        let frozen = cgroup.as_ref().is_some_and(|cgroup| self.layout.is_frozen(cgroup));
        let facts =
            TaskFacts { end, init_lost, events: events.unwrap_or_default(), ..facts_after_death(&plan.record, frozen) };
        let handles = TaskHandles {
            init_watch: kept.watch.map(Rc::new),
            pumps: Some(Rc::new(pumps)),
            entrance,
            ..TaskHandles::new(init, claim, tails, cgroup)
        };
        Ok(Found { plan, facts, handles })
    }

    /// Notes what a launch would have noted, of a task that runs: what of it is due, and what it was counted at.
    fn note_what_is_due(&self, task: &Task) {
        self.note_kills_before(task);
        self.note_exec_groups(task);
        if task.facts.read(|facts| facts.history.stopped_by != Some(StoppedBy::Timeout)) {
            task.note_timeout();
        }
        task.note_checks();
        self.forget_throttling(task);
        task.note_settling();
    }
}

/// The pids of the members' inits that live.
fn live_inits(members: &[Folder]) -> Result<Vec<i32>> {
    let mut inits = Vec::new();
    for member in members {
        match member.record() {
            Err(error) if is_final(&error) => {}
            record => inits.extend(record?.map(|record| record.live_init()).transpose()?.flatten()),
        }
    }
    Ok(inits.iter().map(|init| init.pid).collect())
}

/// Whether any other shim would fail too. A file or a descriptor that is missing may be there again, so that such errors
/// are not final.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), Kind::WrongState | Kind::Damaged | Kind::NotFound)
}

/// How long what is in a pid namespace may take to end with its init.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// How long somebody may have a member's lock alone. Whoever looks at whose it is has it for a moment, and whoever removes
/// the member until its processes have ended.
const LOCKED_FOR: Duration = Duration::from_secs(5);

/// The lock of a member whose shim died, once nobody has it alone.
///
/// # Errors
/// `NotFound` when the member was removed meanwhile; `WrongState` when somebody keeps the lock.
async fn members_lock(folder: &Folder) -> Result<Lock> {
    let is_in_use = |error: &Error| error.kind() == Kind::WrongState;
    match folder.lock_shared() {
        Err(error) if is_in_use(&error) => tracing::warn!(%error, "waits for the lock of a member"),
        locked => return locked,
    }
    let give_up = Moment::now().after(LOCKED_FOR);
    let mut wait = Duration::from_millis(1);
    // Nothing tells that a lock is free but taking it, which would block the only thread.
    loop {
        tokio::time::sleep(wait).await;
        match folder.lock_shared() {
            Err(error) if is_in_use(&error) && Moment::now() < give_up => {
                wait = (wait * 2).min(Duration::from_millis(100))
            }
            locked => return locked,
        }
    }
}

/// How long an init may take to execute a program that it is about to, and one that may have its order to mark that.
const EXECUTES_WITHIN: Duration = Duration::from_secs(10);
const MARKS_WITHIN: Duration = Duration::from_secs(1);

/// Whether the program of a task was started whose shim died while it was launched. An init that is about to execute it has
/// marked the room for the report. One that never got the order ends by itself, as does one that has run its last hooks;
/// one whose hooks run on is killed.
///
/// # Errors
/// `Timeout` when the init neither ends nor executes anything.
async fn is_started(folder: &Folder, record: &Record, init: Option<&Live>) -> Result<bool> {
    let Some(Live { pid, pidfd }) = init else { return Ok(folder.may_have_run(record)) };
    let stat = || -> Result<Option<bool>> {
        let stat = proc_stat::find(*pid).doing(Kind::Internal, || format!("cannot look at process {pid}"))?;
        let stat = stat.as_deref().and_then(ProcStat::parse).filter(|stat| !stat.ends());
        Ok(stat.map(|stat| stat.is_a_fork()))
    };
    let (begun, mut wait) = (Moment::now(), Duration::from_micros(200));
    // Nothing tells that a process which is not one's own child executes a program.
    loop {
        match stat()? {
            // It has ended.
            None => return Ok(folder.may_have_run(record)),
            // In the middle of execve(2) it has no command line, by which `bowline-init` is known.
            Some(false) if folder.may_have_run(record) && (!record.init || init_program::has_command_line(*pid)?) => {
                return Ok(true);
            }
            Some(_) => {}
        }
        if !folder.may_have_run(record) && Moment::now() > begun.after(MARKS_WITHIN) {
            // An error means that it has ended. What it has marked meanwhile counts.
            drop(sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL));
        }
        if Moment::now() > begun.after(EXECUTES_WITHIN) {
            let message = format!("its init does not start within {EXECUTES_WITHIN:?}");
            return Err(Error::new(Kind::Timeout, message));
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(50));
    }
}

/// The way into a task whose program runs already.
pub fn entrance(live: &Live, plan: &LaunchPlan) -> Result<Entrance> {
    let LaunchPlan { namespaces, filter, record, .. } = plan;
    match Entrance::again(live.pid, namespaces, filter.as_ref(), record.init, &record.launched_in) {
        // It has ended.
        Err(error) if error.kind() == Kind::WrongState => Ok(Entrance::default()),
        entrance => entrance,
    }
}

/// The claim on the end of an init that is another process's child.
fn claim(plan: &LaunchPlan, init: &Option<Live>) -> Result<Claim> {
    let claim = Claim::new(plan.record.pid.unwrap_or_default());
    let Some(live) = init else {
        claim.reaped(End::now(plan.folder.kept_end(&plan.record).unwrap_or(Ended::Unknown)));
        return Ok(claim);
    };
    claim_by_pidfd(live)
}

/// The claim on the end of another process's child.
pub fn claim_by_pidfd(live: &Live) -> Result<Claim> {
    let claim = Claim::new(live.pid);
    let what = || "cannot watch a task's init";
    let pidfd = live.pidfd.try_clone().doing(Kind::Internal, what)?;
    let pidfd = Rc::new(sys::register_fd_for(File::from(pidfd), Interest::READABLE).doing(Kind::Internal, what)?);
    let of = claim.clone();
    waits::begin(move || {
        let (claim, pidfd) = (of.clone(), pidfd.clone());
        async move {
            if pidfd.readable().await.is_ok() && claim.is_unreaped() {
                let ended = sys::ended_elsewhere(pidfd.get_ref().as_fd());
                claim.reaped(End::now(ended.unwrap_or(Ended::Unknown)));
            }
        }
    });
    Ok(claim)
}

/// The task's streams, as far as its init has kept them.
fn pumps(
    plan: &LaunchPlan,
    id: &TaskId,
    init: &Option<Live>,
    outputs: Vec<Option<OwnedFd>>,
    tails: &[Tail; 2],
) -> Result<Pumps> {
    let description = plan.record.description()?;
    // Opened by the next write; a torn line is completed first.
    let logs = log::go_on(description, &LogFiles::of(description, id, plan.folder.path()), log::Handed::default());
    let said = [&description.output.stdout, &description.output.stderr];
    let targets: Vec<Target> = said.into_iter().zip(&plan.record.foreground).map(target).collect();
    let names = ["stdout", "stderr"];
    // An init that has ended keeps none; the shim before may have left bytes that it had not read.
    let outputs = outputs.into_iter().chain([None, None]);
    let outputs = outputs.zip(names).zip(&targets).zip(logs).zip(tails).zip(0..);
    let folder = plan.folder.path();
    let has_left = |index: u32| Losses::found(folder, index as usize).is_some() || Unread::of(folder, index).has_left();
    let has_any_left = (0..).zip(&targets).any(|(index, _)| has_left(index));
    let kept = outputs.filter_map(|(((((read, name), target), log), tail), index)| {
        let unread = Unread::of(folder, index);
        let (lost, losses) = (Losses::found(folder, index as usize), Losses::of(folder, index as usize));
        // Each in its place: by that the report knows them.
        let read = read.or_else(|| has_any_left.then(io::ended_pipe)?.ok())?;
        Some(KeptOutput { name, read, index, target, log, tail: tail.clone(), unread, lost, losses })
    });
    let keeper = init.as_ref().and_then(|live| live.pidfd.try_clone().ok());
    io::take_over(keeper, kept)
}

fn target((said, foreground): (&Option<std::path::PathBuf>, &Option<std::path::PathBuf>)) -> Target {
    match (said, foreground) {
        (Some(file), _) => Target::Path(file.clone()),
        (None, Some(fifo)) => Target::Foreground(fifo.clone()),
        (None, None) => Target::Null,
    }
}
