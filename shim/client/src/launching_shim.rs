//! A shim that was started for a launch, until the launch succeeds or is abandoned.
//!
//! ```text
//!   folder made and locked ─► shim started ─► Up ─► launched ─► let_go, done
//!                                              │   └ shim died: a new one goes on, or there was no task yet ─┐
//!                                              └─► refused ──► abandon ◄─────────────────────────────────────┘
//! ```

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin};
use std::sync::Arc;

use bowline_executor::internal::{Sealed, remove_folder, undo_sandbox};
use bowline_executor::{LeftAlone, ShimCgroup, undo};
use bowline_model::folder::Owner;
use bowline_model::folder::{Folder, Lock, StateDir};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{LaunchRequest, LaunchResponse};
use bowline_spec::id::TaskId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, Shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::adopt::find_or_adopt;
use crate::children;
use crate::errors::events_tell;
use crate::patience::{Patience, lock_after, serves};
use crate::presence::{Presence, find};
use crate::sandbox;
use crate::shim::Shim;
use crate::spawn::{self, Begin, Programs};

/// The most bytes that a shim says as it leaves.
const LONGEST_SAID: usize = 8 << 10;

/// A running shim that has not launched its task yet.
pub struct Up {
    folder: Folder,
    by: By,
    programs: Programs,
    /// The sandbox that the task is to be a member of, with its folder as it was then.
    sandbox: Option<(TaskId, Folder)>,
    /// The copy of the binary that it was started from, if that is kept for others.
    pub binary: Option<Arc<Sealed>>,
    /// The connection to the shim.
    pub shim: Shim,
}

/// Who owns the shim: we or a sandbox.
enum By {
    /// The shim is our child process.
    Us(Child),
    /// The shim is a sandbox's. We hold a lock on the member's folder until the shim has answered, which has one by then.
    Sandbox(Option<Lock>),
    /// The sandbox's shim died before it had answered, and no other has the member.
    Nobody,
}

impl Up {
    /// Returns a shim for the task `id`: its sandbox's, or a new one.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken; `NotFound` without that sandbox; `Unsupported` without root.
    pub async fn for_task(
        state: &StateDir,
        id: &TaskId,
        sandbox: Option<&TaskId>,
        shim_cgroup: &ShimCgroup,
        programs: &Programs,
    ) -> Result<Up> {
        let Some(sandbox) = sandbox else { return Up::shim(id, shim_cgroup, programs, || state.create(id)).await };
        if programs.sockets > 0 {
            let message =
                format!("LISTEN_FDS: the shim of sandbox {sandbox} runs already, and gets no sockets for a task");
            return Err(Error::new(Kind::Unsupported, message).hint("start the task outside of the sandbox"));
        }
        let shim = sandbox::of(state, sandbox, programs).await?;
        // That of this shim, also where another sandbox has the name by now.
        let its = shim.folder().clone();
        let (folder, lock) = pinned(state.create_member(id, sandbox)?)?;
        let (by, programs, sandbox) = (By::Sandbox(Some(lock)), programs.clone(), Some((sandbox.clone(), its)));
        Ok(Up { shim: shim.member(id, folder.clone()), folder, by, programs, sandbox, binary: None })
    }

    /// Starts a new shim for the folder that `create` makes.
    ///
    /// # Errors
    /// `Unsupported` without root; whatever error `create` returns; why the shim cannot be started. Nothing is left
    /// then.
    pub async fn shim(
        id: &TaskId,
        shim_cgroup: &ShimCgroup,
        programs: &Programs,
        create: impl FnOnce() -> Result<(Folder, Lock)>,
    ) -> Result<Up> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(Kind::Unsupported, "cannot launch a task without being root: permission denied")
                .hint("run bowline as root; rootless is not supported yet"));
        }
        let binary = programs.shim()?;
        let (folder, lock) = pinned(create()?)?;
        let started = programs.sealed(&binary).and_then(|sealed| {
            let child = spawn::spawn(&sealed, &binary, &folder, lock, shim_cgroup, Begin::Empty(programs.sockets))?;
            Ok((sealed, child))
        });
        let (sealed, mut child) = match started {
            Ok(started) => started,
            Err(error) => return Err(discard(&folder, error)),
        };
        // Closed here otherwise, which takes a moment, in which the shim starts.
        let binary = programs.are_for_many().then_some(sealed);
        match find(&folder, id).await {
            Ok(Presence::Live(shim)) => {
                Ok(Up { folder, by: By::Us(child), programs: programs.clone(), sandbox: None, binary, shim })
            }
            other => {
                // One that was told to leave, as somebody removes the task, ends by itself.
                let has_left = matches!(other, Ok(Presence::Dead)) && child.wait().is_ok_and(|ended| ended.success());
                // Does no harm: the shim serves no task yet.
                let _ = child.kill();
                let error = match other {
                    _ if has_left || !folder.is_still_there() => removed_meanwhile(id),
                    Err(error) => error,
                    Ok(_) => Error::new(Kind::Internal, format!("the shim of {id} died as it started")),
                };
                Err(give_up(By::Us(child), &folder, programs, error))
            }
        }
    }

    /// Has the shim make the sandbox that the folder describes.
    ///
    /// # Errors
    /// Why there is no sandbox: the caller abandons it. `WrongState` where somebody else has removed it meanwhile.
    pub async fn create_sandbox(&mut self) -> Result<()> {
        let broken = match self.shim.create_sandbox_or_break_off().await? {
            Ok(()) => return Ok(()),
            Err(broken) => broken,
        };
        // One that was told to leave, as somebody removes the sandbox, ends by itself.
        let has_left = match &mut self.by {
            By::Us(child) => ends(child) && child.wait().is_ok_and(|ended| ended.success()),
            By::Sandbox(_) | By::Nobody => false,
        };
        let is_removed = has_left || !self.folder.is_still_there();
        Err(if is_removed { removed_meanwhile(&self.shim.id) } else { broken })
    }

    /// Launches the task; answers once its program is executed. If the shim dies before it has answered, a new one takes
    /// the task over where its program was started.
    ///
    /// # Errors
    /// Why there is no task: the caller abandons it.
    pub async fn launch(&mut self, request: LaunchRequest) -> Result<LaunchResponse> {
        self.launch_unless(request, std::future::pending::<()>()).await.0
    }

    /// Like [`Up::launch`]. If `interrupt` completes before the answer, a shim of ours is told to leave: it breaks the
    /// launch off, or stops what it has launched just then. A sandbox's shim goes on. What completed is returned too.
    pub async fn launch_unless<T>(
        &mut self,
        request: LaunchRequest,
        interrupt: impl Future<Output = T>,
    ) -> (Result<LaunchResponse>, Option<T>) {
        let mut interrupted = None;
        let answer = {
            let answer = self.shim.launch_or_break_off(request);
            tokio::pin!(answer, interrupt);
            loop {
                tokio::select! {
                    biased;
                    by = &mut interrupt, if interrupted.is_none() => {
                        interrupted = Some(by);
                        if let By::Us(child) = &self.by {
                            terminate(child);
                        }
                    }
                    answer = &mut answer => break answer,
                }
            }
        };
        let launched = match answer {
            Ok(answer) => match self.launched(answer).await {
                // A shim that is silent, or turns us away, lives.
                Err(error) if error.kind() != Kind::Unavailable => {
                    Err(self.sandbox_that_went().await.map_or(error, sandbox::removed))
                }
                launched => launched,
            },
            Err(error) => Err(error),
        };
        (launched, interrupted)
    }

    /// `error` of a wait for the end of what was launched; another where the task was removed with its sandbox.
    pub async fn unless_removed_with_sandbox(&self, error: Error) -> Error {
        if error.kind() != Kind::NotFound {
            return error;
        }
        let Some(sandbox) = self.sandbox_that_went().await else { return error };
        let task = &self.shim.id;
        let message =
            format!("sandbox {sandbox} is being removed, and task {task} with it, before it was known how that ended");
        Error::new(Kind::WrongState, message).hint(events_tell(task))
    }

    /// The task's sandbox, where that was removed: its shim has gone without an answer.
    async fn sandbox_that_went(&self) -> Option<&TaskId> {
        let (id, folder) = self.sandbox.as_ref()?;
        // Whoever removes it has its lock until it is removed; so has a new shim, which answers.
        let mut patience = Patience::with(folder);
        while matches!(folder.owner(), Ok(Owner::Shim)) && !serves(folder).await && !patience.is_over().await {}
        sandbox::has_gone(folder).then_some(id)
    }

    async fn launched(&mut self, launched: Result<LaunchResponse>) -> Result<LaunchResponse> {
        if let By::Sandbox(lock) = &mut self.by {
            drop(lock.take());
        }
        let broken = match launched {
            Ok(launched) => return Ok(launched),
            Err(broken) => broken,
        };
        let id = self.shim.id.clone();
        loop {
            match find_or_adopt(&self.folder, &id, &self.programs).await {
                Ok(Presence::Live(new)) if new.succeeds(&self.shim) => match new.state().await {
                    // That of a sandbox does not go on with a member whose command was not started.
                    Ok(None) => return Err(self.shim_died(broken)?),
                    Ok(Some(_)) => self.shim = new,
                    Err(silent) if silent.kind() == Kind::Unavailable => return Err(silent),
                    // Somebody else has started it, and it does not take over a task whose command was not started.
                    Err(_) => continue,
                },
                Ok(Presence::Live(same)) => match same.version().await {
                    // Its children have its socket for a moment after it was killed.
                    Err(error) if error.kind() != Kind::Unavailable => continue,
                    Err(silent) => return Err(silent),
                    // It lives, and has turned us away.
                    Ok(_) => return Err(broken),
                },
                Ok(Presence::Starting) => return Err(broken),
                // Whoever waits for its end finds the report.
                Ok(Presence::Exited(_)) => {}
                Ok(Presence::Dead) => return Err(self.shim_died(broken)?),
                Err(error) => return Err(self.shim_died(error)?),
            }
            break;
        }
        let pid = match self.folder.record() {
            // It has ended, and was removed since.
            Err(error) if error.kind() == Kind::NotFound => None,
            record => record?.and_then(|record| record.pid),
        };
        let pid = pid.unwrap_or_default();
        Ok(LaunchResponse { pid, ..LaunchResponse::default() })
    }

    /// Whatever is left of the launch is ours to undo. Returns the error to give it up with: `error`, where the task's
    /// command may have been run.
    fn shim_died(&mut self, error: Error) -> Result<Error> {
        if let By::Sandbox(_) = self.by {
            self.by = By::Nobody;
        }
        let record = match self.folder.record() {
            Err(error) if error.kind() == Kind::NotFound => return Ok(removed_meanwhile(&self.shim.id)),
            record => record?,
        };
        let may_have_run = record.is_some_and(|record| self.folder.may_have_run(&record));
        Ok(if may_have_run { error } else { never_started(&self.shim.id) })
    }

    /// Undoes a launch that has succeeded.
    pub async fn take_back(mut self, error: Error) -> Error {
        // It may have ended.
        let _ = self.shim.stop(Some(Signal::KILL.as_raw()), Some(0)).await;
        if let By::Sandbox(lock) = &mut self.by {
            drop(lock.take());
            if let Err(left) = lock_after(&self.folder).await {
                return error.hint(format!("besides, {left}"));
            }
        }
        self.abandon(error)
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The pid of a shim of the task's own, which we have started.
    pub fn own_shim(&self) -> Option<i32> {
        match &self.by {
            By::Us(child) => i32::try_from(child.id()).ok(),
            By::Sandbox(_) | By::Nobody => None,
        }
    }

    /// Lets the shim go on without us; returns the task's folder. Whether it was our child or not, it lives as long as
    /// what it has launched, and its end is collected: see `children`.
    pub fn let_go(self) -> Folder {
        let Up { folder, by, shim, .. } = self;
        hang_up(&shim);
        drop(shim);
        match by {
            By::Us(child) => children::keep(child),
            By::Sandbox(lock) => drop(lock),
            By::Nobody => {}
        }
        folder
    }

    /// Waits until the shim has finished after the task's end, which the caller knows: a shim that `removes` the task does
    /// that now. Returns the folder, and what the shim says the removal has left.
    ///
    /// # Errors
    /// `Unavailable` if the shim does not answer meanwhile.
    pub async fn done(self, removes: bool) -> Result<(Folder, LeftAlone)> {
        let Up { folder, by, shim, .. } = self;
        if removes {
            hang_up(&shim);
        }
        drop(shim);
        match by {
            By::Us(mut child) => {
                let said = child.stdin.take().filter(|_| removes);
                if !ends(&child) {
                    unheld(&folder).await?;
                }
                let status = child.wait().doing(Kind::Internal, || "cannot wait for the shim")?;
                if !status.success() {
                    // Another may have taken the task over.
                    unheld(&folder).await?;
                }
                Ok((folder, said.map(left_alone).unwrap_or_default()))
            }
            By::Sandbox(_) | By::Nobody => {
                drop(by);
                unheld(&folder).await?;
                // Should the sandbox's shim die, cleaning up the sandbox also cleans up the member.
                Ok((folder, LeftAlone::new()))
            }
        }
    }

    /// With `rm`, cleans up after a shim of ours that died before its task; for a sandbox's shim, removing the sandbox
    /// does that. Returns the error.
    pub fn bereft(self, error: Error, rm: bool) -> Error {
        match (&self.by, rm) {
            // Drop the hint, which suggests this clean-up.
            (By::Us(_), true) => self.abandon(Error::new(error.kind(), error.message())),
            (By::Us(_), false) | (By::Sandbox(_) | By::Nobody, _) => error,
        }
    }

    /// Undoes everything after a failed launch; returns the error.
    pub fn abandon(self, error: Error) -> Error {
        let Up { folder, by, programs, shim, .. } = self;
        hang_up(&shim);
        drop(shim);
        give_up(by, &folder, &programs, error)
    }

    /// Gives up a sandbox that could not be created. Networks that plugins cannot undo are kept for another try.
    pub fn abandon_sandbox(self, state: &StateDir, id: &TaskId, error: Error) -> Error {
        let Up { folder, by, programs, shim, .. } = self;
        drop(shim);
        if let By::Us(mut child) = by {
            dismiss(&mut child);
        }
        // By its name: not where that belongs to another sandbox by now.
        let undone = folder.lock().and_then(|_lock| undo_sandbox(state, id, &programs.systemd()?));
        match undone {
            Ok(_) => discard(&folder, error),
            Err(left) if left.kind() == Kind::NotFound => error,
            Err(left) => error.hint(format!("besides, {left}; `bowline sandbox rm {id}` tries again")),
        }
    }
}

/// Closes the connection at once: a shim that removes the task waits for that, and dropping it closes it only once the
/// event loop turns again.
fn hang_up(shim: &Shim) {
    if let Some(connection) = &shim.connection {
        let _ = rustix::net::shutdown(connection, Shutdown::Both);
    }
}

/// The error of a launch whose shim died before the task's command was run.
fn never_started(id: &str) -> Error {
    Error::new(Kind::Internal, format!("the shim of task {id} died before it had started the task"))
        .hint("nothing is left of the task; try again")
}

/// The error for what somebody else removes or replaces while its shim starts.
fn removed_meanwhile(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("{id} was removed while it was being started"))
        .hint("somebody else removes or replaces it at the same time; look at which one is there, or try again")
}

/// Returns once nobody holds the folder, or it is removed.
async fn unheld(folder: &Folder) -> Result<()> {
    match lock_after(folder).await {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        lock => lock.map(drop),
    }
}

/// A new folder, pinned: what is done about the launch is never done to a later task of the same name.
fn pinned((folder, lock): (Folder, Lock)) -> Result<(Folder, Lock)> {
    match folder.pin() {
        Ok(pinned) => Ok((pinned, lock)),
        Err(error) => {
            drop(lock);
            Err(discard(&folder, error))
        }
    }
}

/// Makes a unique id for a task or a sandbox, from 48 random bits.
pub fn made_up(kind: &str) -> Result<TaskId> {
    use std::io::Read as _;
    let what = || "cannot make up an id";
    let mut random = [0u8; 6];
    let mut source = std::fs::File::open("/dev/urandom").doing(Kind::Internal, what)?;
    source.read_exact(&mut random).doing(Kind::Internal, what)?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{hex}").parse().doing(Kind::Internal, what)
}

/// Whether a shim that has sent its report exits within a second, as nearly all do.
fn ends(child: &Child) -> bool {
    const SOON: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return false };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&SOON)).is_ok_and(|ready| ready > 0)
}

/// What a shim that has ended said to us, whose end of its stdin this is.
fn left_alone(stdin: ChildStdin) -> LeftAlone {
    let mut text = [0; LONGEST_SAID];
    // All of it is there. A child of the shim's may have the other end for a moment longer.
    let (said, _) = rustix::net::recv(&stdin, &mut text[..], RecvFlags::DONTWAIT).unwrap_or_default();
    serde_json::from_slice(&text[..said]).unwrap_or_default()
}

/// Stops our own shim, which would otherwise wait for a request forever. Returns whether a signal killed it.
fn dismiss(child: &mut Child) -> bool {
    // Not one that was waited for: its pid may be another's by now.
    if let Ok(None) = child.try_wait() {
        terminate(child);
    }
    child.wait().is_ok_and(|status| status.signal().is_some())
}

fn terminate(child: &Child) {
    if let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        let _ = pidfd_send_signal(pidfd, Signal::TERM);
    }
}

/// Ends our own shim, undoes what one that was killed has left, and removes the folder; returns the error.
fn give_up(by: By, folder: &Folder, programs: &Programs, error: Error) -> Error {
    // A shim that was killed did not undo what it had made, if only a cgroup ahead. Never undo after a shim that exited
    // by itself, or refused: what it was refused, such as a cgroup, belongs to somebody else.
    let was_killed = match by {
        // The shim has undone the launch, and leaves once it has finished the poststop hooks.
        By::Us(mut child) if !folder.is_still_there() => {
            if ends(&child) {
                let _ = child.wait();
            } else {
                children::keep(child);
            }
            return error;
        }
        By::Us(mut child) => dismiss(&mut child),
        By::Sandbox(lock) => {
            drop(lock);
            false
        }
        By::Nobody => true,
    };
    let undone = match was_killed {
        true => programs.systemd().and_then(|systemd| undo(folder, &systemd)).map(drop),
        false => Ok(()),
    };
    let error = match undone {
        Ok(()) => error,
        // Somebody else has removed the folder, and what was left.
        Err(left) if left.kind() == Kind::NotFound => error,
        Err(left) => error.hint(format!("besides, {left}")),
    };
    discard(folder, error)
}

fn discard(folder: &Folder, error: Error) -> Error {
    match folder.lock().and_then(|lock| remove_folder(folder, &lock)) {
        Ok(None) => error,
        Ok(Some(left)) => error.hint(format!("besides, {left}")),
        // Somebody else removed the folder meanwhile.
        Err(left) if left.kind() == Kind::NotFound => error,
        Err(left) => error.hint(format!("besides, {left}")),
    }
}
