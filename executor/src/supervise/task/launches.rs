//! A launch, from description to running task. A launch that fails is undone.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use bowline_cgroup::{self as cgroup, Cgroup, Existed};
use bowline_error::{Error, Kind, Result};
use bowline_model::folder::Record;
use bowline_model::liveness::Live;
use bowline_model::reserve::Reserve;
use bowline_model::stats;
use bowline_model::stats::enforcement;
use bowline_model::status::Status;
use bowline_spec::id::TaskId;
use bowline_spec::values::ByteSize;
use jiff::Timestamp;

use super::Task;
use super::launch_plan::LaunchPlan;
use super::nesting::{self, Claim};
use super::{callers, ending};
use crate::facts::SandboxFacts;
use crate::hostside::task_units::{self as units, Placeholder, remove_cgroup};
use crate::lifecycle::shim;
use crate::lifecycle::task::{Life, Trigger};
use crate::oci::bundle;
use crate::output::io::{self, Connections, Input, Logger, Logging, Owner, Stdio, Target};
use crate::output::log::{self, LogFiles};
use crate::output::manager_events::ManagerEvent;
use crate::request::{Bundle, Launch, Launched, Source};
use crate::start::init_program::{InitProgram, InitWatch};
use crate::start::launch::{Held, Prepared, Starting};
use crate::supervise::children::Expecting;
use crate::supervise::exec::slots::ExecSlots;
use crate::supervise::supervisor::{Leave, Supervisor, leaving_now};
use crate::view::rootfs;
use crate::view::rootfs::Additions;
use crate::view::rootfs::layers::{self, Layer};
use crate::waits;

/// A task that is set up but has not executed its program yet.
struct Created {
    task: Rc<Task>,
    /// `None` for a restored task, which is stopped instead.
    held: Option<Held>,
    /// What was asked for and has no effect.
    notes: Vec<String>,
}

impl Supervisor {
    /// Creates and starts a task. A task that cannot be started leaves nothing behind.
    pub async fn launch(self: &Rc<Self>, launch: Launch) -> Result<Launched> {
        let id = launch.id.clone();
        let outcome = self.launch_where_it_belongs(launch).await;
        // A member that came before its sandbox was made is not the last.
        let waits_for_sandbox = || outcome.is_err() && self.config.folder.is_sandbox();
        if self.config.leave == Leave::WithLastTask && !self.has_sandbox() && !waits_for_sandbox() {
            self.apply(shim::Trigger::Last);
        }
        if outcome.is_ok() {
            self.settle(id);
        }
        outcome
    }

    /// Runs `act` as the launch of a task. From this call on, the launch is in the facts and keeps the shim alive.
    ///
    /// # Errors
    /// `AlreadyExists` while a task with this id is being launched; else the error of `act`.
    pub async fn launching(
        self: &Rc<Self>,
        launch: Launch,
        act: impl AsyncFnOnce(&Rc<Self>, Launch) -> Result<Launched> + 'static,
    ) -> Result<Launched> {
        let id = launch.id.clone();
        if !self.facts.update(|facts| facts.launching.insert(id.clone())) {
            return Err(Error::new(Kind::AlreadyExists, format!("task {id} is being launched already")));
        }
        self.hold();
        let launching = async move |it: &Rc<Self>, id: &TaskId| {
            let launched = act(it, launch).await;
            it.facts.update(|facts| facts.launching.remove(id));
            it.release();
            launched
        };
        self.work_on(&id, "a launch", launching).await
    }

    /// Launches a task in the sandbox, if the shim has one.
    async fn launch_where_it_belongs(self: &Rc<Self>, launch: Launch) -> Result<Launched> {
        let Some(sandbox) = self.sandbox() else {
            // No task is launched outside the sandbox, neither before the sandbox exists nor after.
            return match self.removed_sandbox() {
                Some(error) => Err(error),
                None => self.launch_one(launch).await,
            };
        };
        let _launching = sandbox.enter().await?;
        let (id, removes) = (launch.id.clone(), launch.remove);
        let mut launched = self.launch_one(launch).await;
        if let Ok(launched) = &mut launched {
            let notes = |facts: &SandboxFacts| facts.shares.get(&id).map(|share| share.notes.clone());
            launched.notes.extend(sandbox.facts.read(notes).unwrap_or_default());
        }
        // A running task leaves the budget when it ends.
        if launched.is_err() && self.task(&id).is_err() {
            self.leave_budget(&sandbox, &id).await;
            // If the launcher still holds the folder, it removes it.
            removes.then(|| self.config.state.folder(&id).remove_unheld(None));
        }
        launched
    }

    async fn launch_one(self: &Rc<Self>, launch: Launch) -> Result<Launched> {
        let Created { task, held, notes } = self.set_up(launch).await?;
        let _turn = task.turns.starting.lock().await;
        let begun = async {
            let watched = self.open_watch(&task)?;
            self.record_init(&task)?;
            match held {
                Some(held) => task.execute(held).await?,
                None => self.go_on(&task)?,
            }
            Ok(watched)
        };
        let watched = match begun.await {
            Ok(watched) => watched,
            Err(error) => return Err(self.undo(&task, error).await),
        };
        self.started(&task)?;
        task.may_close_pipes();
        self.run_to_end(&task);
        self.watch_oom_of_unit(&task);
        let pid = self.settle_start(&task).await?;
        self.begin_checks(&task);
        self.begin_watch(&task, watched);
        self.begin_timeout(&task);
        Ok(Launched { pid, notes })
    }

    /// Sets a task up without starting it, for a manager that starts it separately.
    pub async fn create(self: &Rc<Self>, launch: Launch) -> Result<Launched> {
        let restored = launch.checkpoint.is_some();
        let Created { task, held, notes } = match launch.source.clone() {
            Source::Bundle(bundle) if !bundle.layers.is_empty() || restored => {
                self.set_up_mounted(launch, &bundle).await?
            }
            Source::Bundle(_) | Source::Task(_) => self.set_up(launch).await?,
        };
        task.handles.borrow_mut().held = held;
        task.facts.update(|facts| facts.restored = restored);
        self.watch_oom_of_unit(&task);
        task.keep_record();
        let pid = task.pid().unwrap_or_default();
        self.tell_manager(&task, || ManagerEvent::Created { pid });
        self.run_to_end(&task);
        Ok(Launched { pid, notes })
    }

    /// Starts a created task. An exit in the meantime is reported afterwards.
    pub async fn start(self: &Rc<Self>, id: &TaskId) -> Result<()> {
        let task = self.task(id)?;
        let _turn = task.turns.starting.lock().await;
        let life = task.facts.read(|facts| facts.life);
        if life.is_reaped() {
            return Err(Error::new(Kind::WrongState, format!("task {id} has exited and cannot be started")));
        }
        if let Life::Starting | Life::Killing(_) = life {
            let is = if life == Life::Starting { "still being created" } else { "being killed" };
            return Err(Error::new(Kind::WrongState, format!("task {id} is {is} and cannot be started")));
        }
        let held = task.handles.borrow_mut().held.take();
        match held {
            Some(held) => task.execute(held).await?,
            None if task.facts.read(|facts| facts.restored) => {
                self.go_on(&task)?;
                task.facts.update(|facts| facts.restored = false);
            }
            None => return Err(Error::new(Kind::WrongState, format!("task {id} was started already"))),
        }
        self.started(&task)?;
        self.settle_start(&task).await?;
        self.settle(id.clone());
        Ok(())
    }

    /// Runs the hooks of a program that runs, and tells the manager, whose start has then succeeded. Returns the pid of
    /// init, which may have ended.
    pub(crate) async fn settle_start(&self, task: &Rc<Task>) -> Result<i32> {
        self.run_poststart_hooks(task).await?;
        let pid = task.facts.read(|facts| facts.record.pid).unwrap_or_default();
        self.tell_manager(task, || ManagerEvent::Started { pid });
        Ok(pid)
    }

    /// Records init before it is ordered to start the program: should the shim die before that is recorded, a later one
    /// finds out whether it was started. Except with a seccomp agent, where this cannot be known.
    fn record_init(&self, task: &Task) -> Result<()> {
        let is_told = task.filter.as_ref().is_none_or(|filter| filter.listener.is_none());
        let is_known = is_told && task.facts.read(|facts| facts.record.outlives_shim());
        if is_known { task.write_record() } else { Ok(()) }
    }

    /// Records and reports that the program was executed.
    fn started(self: &Rc<Self>, task: &Rc<Task>) -> Result<()> {
        task.apply(&self.layout, Trigger::Started)?;
        self.record_start(task);
        Ok(())
    }

    /// Like [`Supervisor::started`], for a task that runs already.
    pub(crate) fn record_start(&self, task: &Rc<Task>) {
        let workload_pid = task.find_workload();
        task.facts.update(|facts| {
            facts.record.started_at = Some(Timestamp::now());
            facts.record.workload_pid = workload_pid;
        });
        task.keep_record();
        if task.facts.read(|facts| facts.record.durable) {
            let task = task.clone();
            waits::work("a sync of the record", Some(task.id.clone()), async move {
                if let Err(error) = task.sync().await {
                    tracing::warn!(%error, "the record may not survive a power loss");
                }
            });
        }
        self.tell_launched(task);
    }

    pub(crate) fn run_to_end(self: &Rc<Self>, task: &Rc<Task>) {
        self.hold();
        self.follow(task);
    }

    /// Waits for the end of a task, and takes it through that.
    pub(crate) fn follow(self: &Rc<Self>, task: &Rc<Task>) {
        let (supervisor, task) = (self.clone(), task.clone());
        waits::begin(move || task.clone().run_to_end(supervisor.clone()));
    }

    /// Undoes a launch that failed after its task was registered. For callers that wait for the task, this is an
    /// end like any other, except that there is no report.
    async fn undo(self: &Rc<Self>, task: &Rc<Task>, error: Error) -> Error {
        let stopped = (task.status() == Status::Stopping)
            .then(|| Error::new(Kind::WrongState, format!("task {} was stopped while it was being launched", task.id)));
        // An init, or a hook, that the shim killed does not report why.
        let error = match self.may_launch().err().or(stopped) {
            Some(why) if matches!(error.kind(), Kind::Internal | Kind::WrongState) => why,
            _ => error,
        };
        let error = task.undo(self, error).await;
        ending::give_up(&task.folder, &task.facts.read(|facts| facts.record.clone())).await;
        // The poststop hooks undo what the task's other hooks have set up.
        self.begin_poststop_hooks(task).await;
        self.tasks.borrow_mut().remove(&task.id);
        drop(task.handles.borrow_mut().lock.take());
        if task.owns_folder {
            task.folder.remove_unheld(None);
        }
        if let Err(error) = task.apply(&self.layout, Trigger::Done) {
            tracing::error!(%error, "a launch that failed is not done with");
        }
        error
    }

    /// Mounts the root before the set-up, and unmounts it if the set-up fails.
    async fn set_up_mounted(self: &Rc<Self>, launch: Launch, bundle: &Bundle) -> Result<Created> {
        let root = bundle::root(&bundle.path);
        let mut layers = bundle.layers.clone();
        if layers.is_empty() {
            // criu requires a mount, even where there is nothing to mount.
            let source = root.to_string_lossy().into_owned();
            let options = vec!["rbind".to_owned(), "rw".to_owned()];
            layers.push(Layer { kind: "bind".to_owned(), source, target: String::new(), options });
        }
        layers::mount(&root, &layers).await?;
        match self.set_up(launch).await {
            Ok(created) => {
                created.task.facts.update(|facts| facts.mounted = Some(root));
                Ok(created)
            }
            Err(error) => {
                if let Err(left) = layers::unmount(&root).await {
                    tracing::error!(error = %left, "a mount is left behind");
                }
                Err(error)
            }
        }
    }

    async fn set_up(self: &Rc<Self>, launch: Launch) -> Result<Created> {
        let id = launch.id.clone();
        if self.tasks.borrow().contains_key(&id) {
            return Err(Error::new(Kind::AlreadyExists, format!("task {id} exists already")));
        }
        self.may_launch()?;
        if launch.remove {
            self.note_removal(&id);
        }
        callers::check_live(&launch.ends_with)?;
        if let Source::Task(task) = &launch.source {
            launch.secrets.fit(task)?;
        }
        let expecting = self.children.expect();
        let mut plan = match launch.source.clone() {
            Source::Task(task) => match self.sandbox() {
                None => self.plan(&id, *task, &launch).await?,
                Some(sandbox) => self.plan_member(&sandbox, &id, *task, &launch).await?,
            },
            Source::Bundle(bundle) => self.plan_bundle(&id, bundle, launch.driver, launch.durable).await?,
        };
        plan.particulars = launch.particulars.clone();
        launch.secrets.lay_on(&mut plan.spec)?;
        plan.record.secret_variables = !launch.secrets.env.is_empty();
        plan.additions = Additions {
            secrets: launch.secrets.files.clone(),
            ephemeral: plan.record.task.as_ref().and_then(|task| task.ephemeral).map(ByteSize::as_u64),
            exact_binds: !plan.is_described(),
            service: launch.service.lay_on(&mut plan.spec, &mut plan.notes),
            ..std::mem::take(&mut plan.additions)
        };
        let (folder, owns_folder, record) = (plan.folder.clone(), plan.owns_folder, plan.record.clone());
        // Written before anything is created that a crash would leave behind.
        let made = match folder.write_record(&plan.record) {
            Ok(()) => self.make(id, plan, launch, expecting).await,
            // Drops the lock of the folder.
            Err(error) => Err(error).inspect_err(|_| drop(plan)),
        };
        if made.is_err() {
            ending::give_up(&folder, &record).await;
            match owns_folder {
                true => folder.remove_unheld(None),
                // The record says what to kill after a crash, and by then that may belong to another task.
                false => folder.forget_launch(),
            }
        }
        made
    }

    async fn make(
        self: &Rc<Self>,
        id: TaskId,
        mut plan: LaunchPlan,
        mut launch: Launch,
        expecting: Expecting<'_>,
    ) -> Result<Created> {
        plan.make_mount_points();
        let launcher = launch.launcher.take();
        let Launch { stdin, mut stdout, mut stderr, logger, direct, size, attached, checkpoint, secrets, .. } = launch;
        let notes = std::mem::take(&mut plan.notes);
        plan.reserve = Some(plan.folder.reserve_exit()?);
        if plan.record.outlives_shim() {
            plan.exec_slots = Some(ExecSlots::begin(&plan.folder)?);
        }
        let logging = self.until_leaving(self.start_logger(logger.as_ref())).await?;
        if let Some(logging) = &logging {
            [stdout, stderr] = logging.targets();
        }
        let description = plan.record.task.as_ref();
        let (said, logs, open) = match description {
            Some(task) => {
                let files = LogFiles::of(task, &id, plan.folder.path());
                (task.output.clone(), log::open(task, &files)?, task.stdin)
            }
            None => (bowline_spec::Output::default(), [None, None], false),
        };
        let outputs = [&said.stdout, &said.stderr].into_iter().flatten().map(PathBuf::as_path);
        let (_writers, read) = self.until_leaving(async { Ok(io::until_read(outputs).await) }).await?;
        read?;
        let process = plan.spec.process().as_ref();
        let tails = [io::new_tail(io::TAIL), io::new_tail(io::TAIL)];
        let (mut stdio, wiring) = io::wire(Connections {
            input: if stdin == Input::Null && open { &Input::Open } else { &stdin },
            stdout: &said.stdout.map_or(stdout, Target::Path),
            stderr: &said.stderr.map_or(stderr, Target::Path),
            owner: Owner::of(&plan.spec, process, plan.particulars.stream_group),
            logs,
            tails: tails.clone(),
            terminal: process.filter(|process| process.terminal() == Some(true)).map(|process| size.or_of(process)),
            direct,
            // All processes of a task end with its init.
            released: None,
            follow: false,
            kept: plan.record.init,
            folder: plan.record.outlives_shim().then_some(plan.folder.path()),
        })?;
        let (init, init_watch) = self.prepare_init(&plan, std::mem::take(&mut stdio.kept), &secrets.env)?.unzip();
        let (cgroup, starting, live) = match &checkpoint {
            None => {
                let (cgroup, starting, live) = self.clone_init(&id, &mut plan, stdio, init).await?;
                (cgroup, Some(starting), live)
            }
            Some(images) => {
                let (cgroup, live) = self.restore_init(&id, &plan, images, stdio).await?;
                (cgroup, None, live)
            }
        };
        let pid = live.pid;
        let claim = expecting.claim(pid);
        plan.record.parents_made = self.layout.parents_made(&cgroup);
        if let Some(identity) = &mut plan.record.identity {
            identity.cgroups = self.layout.files_of(&cgroup);
        }
        let task = Rc::new(Task::new(id.clone(), plan, live, claim, tails, cgroup));
        task.handles.borrow_mut().init_watch = init_watch.map(Rc::new);
        task.handles.borrow_mut().launcher = launcher;
        self.tasks.borrow_mut().insert(id.clone(), task.clone());
        self.end_with_callers(&task);

        let ready = async {
            self.may_launch()?;
            let hooks = async || self.run_create_hooks(&task, pid).await;
            let held = match starting {
                Some(starting) => Some(starting.ready(pid, &task.spec, &task.namespaces, hooks).await?),
                None => None,
            };
            task.hold_entrance(pid)?;
            let mut pumps = wiring.connect()?;
            attached.map_or(Ok(()), |attachment| pumps.lines().attach(&attachment))?;
            task.apply(&self.layout, Trigger::SetUp)?;
            if let Some(logging) = logging {
                pumps.logged_by(logging);
            }
            Ok((held, pumps))
        };
        match ready.await {
            Ok((held, pumps)) => {
                task.handles.borrow_mut().pumps = Some(Rc::new(pumps));
                Ok(Created { task, held, notes })
            }
            Err(error) => Err(self.undo(&task, task.was_killed().unwrap_or(error)).await),
        }
    }

    /// Prepares the task's `bowline-init`, if it has one, and how the shim learns from it.
    fn prepare_init(
        &self,
        plan: &LaunchPlan,
        kept: Vec<OwnedFd>,
        secret: &[String],
    ) -> Result<Option<(InitProgram, InitWatch)>> {
        if !plan.record.init {
            return Ok(None);
        }
        let without = || Error::new(Kind::Unsupported, "this executor has no bowline-init").in_field("init");
        let binary = self.config.init.as_deref().ok_or_else(without)?;
        InitProgram::prepare(binary, &plan.folder, kept, secret).map(Some)
    }

    /// Starts the logger that takes a process's output, if there is one.
    pub(crate) async fn start_logger(&self, logger: Option<&Logger>) -> Result<Option<Logging>> {
        let Some(logger) = logger else { return Ok(None) };
        let expecting = self.children.expect();
        logger.start(|pid| expecting.claim(pid)).await.map(Some)
    }

    /// Creates the task's cgroup. Where systemd refuses a slice that belongs to somebody else, and may, the task falls
    /// back to its default cgroup. A slice that nobody limits enforces nothing.
    async fn make_cgroup_or_other(&self, plan: &mut LaunchPlan) -> Result<(Cgroup, Option<Placeholder>)> {
        let made = self.make_cgroup(plan).await;
        let slice = plan.record.enforcement.as_ref().map(|enforcement| enforcement.slice.clone());
        if let (Ok(_), Some(slice)) = (&made, slice)
            && let Some(lack) = enforcement::lack(&self.layout, &slice)
        {
            plan.is_not_held(lack);
        }
        match made {
            Err(error) if plan.insists_on_slice() => Err(LaunchPlan::refused_in_slice(error)),
            Err(error) if plan.record.enforcement.is_some() && plan.record.unit.is_some() => {
                tracing::warn!(%error, "the task is started outside of its slice");
                plan.do_without_slice(&error);
                plan.folder.write_record(&plan.record)?;
                self.make_cgroup(plan).await
            }
            made => made,
        }
    }

    /// Creates the task's cgroup. A cgroup that systemd makes needs a process in it: the placeholder.
    pub(crate) async fn make_cgroup(&self, plan: &LaunchPlan) -> Result<(Cgroup, Option<Placeholder>)> {
        match &plan.record.unit {
            None => {
                let path = &plan.record.cgroup;
                let cgroup = match self.sandbox() {
                    Some(sandbox) => {
                        let mut cgroup = self.layout.create(path)?;
                        sandbox.facts.read(|facts| cgroup.stay_in(&facts.record.cgroup));
                        cgroup
                    }
                    None if cgroup::is_ours(path) => self.layout.create(path)?,
                    // What was there goes with a container of a manager, as with runc.
                    None if plan.record.task.is_none() => self.layout.create_or_use_with_devices(path)?,
                    None => {
                        // Another task's is in use. Nomad names a cgroup for each task: no records but sandboxes' are read.
                        let state = &self.config.state;
                        nesting::check(state, &state.sandboxes()?, &plan.folder.name(), "cgroup", path)?;
                        let claim = Claim::of_task(&self.layout, &plan.folder);
                        claim.check(path)?;
                        note_existed(plan, self.layout.found(path));
                        let mut cgroup = self.layout.create_or_use_with_devices(path)?;
                        cgroup.stay_if_found();
                        claim.store_or_remove(&mut cgroup, path)?;
                        cgroup
                    }
                };
                // Rare, because the next task finds the parents there.
                note_existed(plan, self.layout.parents_made(&cgroup));
                Ok((cgroup, None))
            }
            Some(unit) => {
                let (systemd, given) = (&self.config.systemd, !plan.is_described());
                let (cgroup, placeholder) = units::create(&self.layout, systemd, unit, &plan.spec, given).await?;
                Ok((cgroup, Some(placeholder)))
            }
        }
    }

    /// Applies the limits of the plan to a cgroup without a process. One that was there before keeps its limit of
    /// processes, unless the description says another.
    pub(crate) fn limit_new(&self, cgroup: &Cgroup, plan: &LaunchPlan) -> Result<()> {
        let resources = plan.spec.linux().as_ref().and_then(|l| l.resources().as_ref());
        let Some(resources) = resources else { return Ok(()) };
        let is_unsaid = plan.record.task.as_ref().is_some_and(|task| task.pids.is_none());
        let is_default = plan.is_described() && plan.record.unit.is_none() && is_unsaid;
        let is_limited = || stats::last(&self.layout, cgroup).figures.pids_limit.is_some();
        if !is_default || cgroup::is_ours(&plan.record.cgroup) || !is_limited() {
            return self.layout.apply(cgroup, resources);
        }
        let mut resources = resources.clone();
        resources.set_pids(None);
        self.layout.apply(cgroup, &resources)
    }

    /// Creates the task's cgroup, applies the limits and clones init into it.
    async fn clone_init(
        &self,
        id: &TaskId,
        plan: &mut LaunchPlan,
        stdio: Stdio,
        init: Option<InitProgram>,
    ) -> Result<(Cgroup, Starting, Live)> {
        let (cgroup, placeholder) = self.make_cgroup_or_other(plan).await?;
        let LaunchPlan { spec, filter, additions, .. } = &*plan;
        let limited = self.limit_new(&cgroup, plan);
        for (at, option) in rootfs::ignored_cgroup_options(spec, self.layout.version()) {
            tracing::warn!("mount {}: {option} has no effect: the hierarchies of the host have theirs", at.display());
        }
        let (bundle, filter, id) = (plan.bundle(), filter.as_ref(), id.as_str());
        let sockets = self.config.sockets.take();
        let command_folders = plan.record.task.as_ref().map_or(&[][..], |task| &task.command_folders);
        let start_mark = plan.reserve.as_ref().filter(|_| plan.record.outlives_shim()).map(Reserve::start_mark);
        let prepared = Prepared {
            id,
            spec,
            bundle,
            cgroup: &cgroup,
            filter,
            stdio,
            keeps_keyring: plan.particulars.keeps_keyring,
            command_folders,
            init,
            additions,
            start_mark,
            successors: None,
            preserved: u32::try_from(sockets.len()).unwrap_or_default(),
        };
        let cloned = match limited.and_then(|()| prepared.clone_init()) {
            Ok(mut starting) => {
                let leaving = self.facts.until_it(|facts| facts.life.is_leaving());
                let live = starting.live(leaving).await.map(|live| (starting, live));
                live.map_err(|error| if error.kind() == Kind::Timeout { leaving_now() } else { error })
            }
            Err(error) => Err(error),
        };
        if let Some(placeholder) = placeholder {
            placeholder.leave().await;
        }
        match cloned {
            Ok((starting, live)) => Ok((cgroup, starting, live)),
            Err(error) => {
                // Nothing was cloned.
                remove_cgroup(&self.layout, &self.config.systemd, cgroup).await;
                Err(error)
            }
        }
    }
}

/// Records how much of the path of the task's cgroup existed before, for whoever undoes the launch.
fn note_existed(plan: &LaunchPlan, parents_made: Existed) {
    if parents_made.is_empty() {
        return;
    }
    let record = Record { parents_made, ..(*plan.record).clone() };
    if let Err(error) = plan.folder.write_record(&record) {
        tracing::error!(%error, "the record lacks what existed of a cgroup");
    }
}
