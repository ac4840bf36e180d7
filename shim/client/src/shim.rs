//! Asks the shim of a task; once the shim is gone, reads what it left behind.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_model::folder::{Folder, Owner, Record};
use bowline_model::report::ExitReport;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline_ttrpc::BowlineClient;
use bowline_protocol::wire::{DETACHES, ENDS_WITH, NEEDED, REMOVES, SERVES_UNITS, TAKES_SECRETS, from_status};
use tokio::time::{sleep, timeout};

use crate::connection::{connect_at, connect_watched, patient};
use crate::errors::{dead, exited, starting, unknown, unless_removed};
use crate::left_behind::{Socket, gone, is_held, replaced, report_in, socket_of};
use crate::patience::{self, ANSWERS_WITHIN, BEFORE_ASKING, POLLS, Patience, silent, turned_away};
use bowline_protocol::wire::proto::bowline::{
    AttachRequest, DetachExecRequest, Empty, ExecRequest, ExecResponse, KillExecRequest, LaunchRequest, LaunchResponse,
    Process, ResizeRequest, SignalExecRequest, SignalRequest, StateResponse, StopRequest, TaskRequest, UpdateRequest,
    WindowSize,
};

/// How long to wait before asking a shim again whether it answers, during a long call.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// A connection to the shim of one task.
#[derive(Clone)]
pub struct Shim {
    pub(crate) client: BowlineClient,
    pub(crate) id: String,
    pub(crate) folder: Folder,
    /// The one that the connection was made to, if it was there to be looked at.
    pub(crate) socket: Option<Socket>,
    /// A descriptor of the connection, which shows whether that is still open; absent where the shim is a sandbox's.
    pub(crate) connection: Option<Arc<OwnedFd>>,
    /// Of a sandbox's member, the inode of its folder: its shim has others, and soon perhaps another of its name. Found out
    /// before the connection was made, as a member that has ended has no link to the sandbox's socket any more.
    pub(crate) member: Option<u64>,
}

/// Whether a live shim has answered that it has no such task.
fn is_unknown(error: &ttrpc::Error) -> bool {
    from_status(error).is_some_and(|told| told.kind() == Kind::NotFound)
}

impl Shim {
    /// The folder of the task; pinned if it was found so.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    fn request(&self) -> TaskRequest {
        TaskRequest { id: self.id.clone(), folder: self.member, ..TaskRequest::default() }
    }

    /// The error of a failed call; explains a broken connection by what the shim has left behind.
    pub(crate) async fn failed(&self, error: &ttrpc::Error) -> Error {
        if is_unknown(error) && (self.lacks_member().await || self.never_begun()) {
            dead(&self.folder, &self.id)
        } else {
            self.explain(error).await
        }
    }

    /// Whether it is the shim of a sandbox that could not take this member over, which runs.
    async fn lacks_member(&self) -> bool {
        let runs = |record: &Record| record.sandbox.is_some() && record.started_at.is_some() && record.runs();
        matches!(self.folder.record(), Ok(Some(record)) if runs(&record))
            && self.client.state(patient(), &self.request()).await.is_err_and(|error| is_unknown(&error))
    }

    /// Whether it is the shim of a sandbox, and the launch of this member was cut short.
    pub fn never_begun(&self) -> bool {
        let folder = &self.folder;
        folder.sandbox_by_socket().is_some() && folder.never_ran() && matches!(folder.owner(), Ok(Owner::Nobody(_)))
    }

    async fn explain(&self, error: &ttrpc::Error) -> Error {
        let told = from_status(error);
        if told.is_none() && self.turns_away().await {
            return turned_away(&self.id);
        }
        let is_gone = told.as_ref().is_none_or(|error| error.kind() == Kind::NotFound);
        if is_gone && matches!(self.folder.exit(), Ok(Some(_))) {
            return exited(&self.id);
        }
        let Some(told) = told else {
            return if matches!(self.folder.exists(), Ok(false)) { unknown(&self.id) } else { self.broke_off() };
        };
        match (told.kind(), told.hint_text()) {
            (Kind::NotFound | Kind::WrongState, None) => {
                told.hint(format!("`bowline inspect {}` shows the state of the task", self.id))
            }
            _ => told,
        }
    }

    /// The error of a call whose shim went while it served it.
    pub(crate) fn broke_off(&self) -> Error {
        let (id, log) = (&self.id, self.folder.file("shim.log"));
        let (what, inspect) =
            if self.folder.is_sandbox() { ("sandbox", "sandbox inspect") } else { ("task", "inspect") };
        let message = format!(
            "the shim of {what} {id} was killed or broke off while it served this call; whether the call had its effect is not known"
        );
        let more = match log.metadata() {
            Ok(meta) if meta.len() > 0 => format!("; {} may say more", log.display()),
            Ok(_) | Err(_) => String::new(),
        };
        let hint =
            format!("`bowline {inspect} {id}` shows the state of the {what}; the next command gets a new shim{more}");
        Error::new(Kind::Internal, message).hint(hint)
    }

    /// The result of `call`, or an error when the shim stops answering.
    async fn answer<T>(&self, call: impl Future<Output = ttrpc::Result<T>>) -> Result<T> {
        self.unless_silent(async { self.explained(call.await).await }).await
    }

    /// What a call was answered, or why it failed.
    async fn explained<T>(&self, answer: ttrpc::Result<T>) -> Result<T> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(&error).await),
        }
    }

    /// Whether the shim lives and accepts connections although it has closed ours. If it is leaving, returns when it has
    /// left.
    pub(crate) async fn turns_away(&self) -> bool {
        let lives_on = patience::lives_on(&self.folder).await;
        // What has answered may have been another that has gone since.
        lives_on && self.socket.is_some() && socket_of(&self.folder) == self.socket
    }

    /// Connects again to a shim that may have turned us away, after a call that failed for that reason. Returns whether
    /// to repeat the call.
    ///
    /// # Errors
    /// `Unavailable` once the shim counts as not answering.
    pub(crate) async fn connects_again(&mut self, failed: &ttrpc::Error, patience: &mut Patience<'_>) -> Result<bool> {
        if from_status(failed).is_some() || self.has_successor() {
            return Ok(false);
        }
        if patience.is_over().await {
            return Err(turned_away(&self.id));
        }
        let Ok((client, connection)) = connect_watched(&self.folder).await else { return Ok(false) };
        if self.has_successor() {
            // It was not asked, and waiting for what it does would not end.
            return Ok(false);
        }
        (self.client, self.connection) = (client, Some(Arc::new(connection)));
        Ok(true)
    }

    /// The result of `call`, which explains its own failure, or an error when the shim stops answering.
    pub(crate) async fn unless_silent<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            answer = call => answer,
            error = self.silence() => Err(error),
        }
    }

    /// Returns an error once the shim stops answering, to await beside a long call.
    pub async fn silence(&self) -> Error {
        self.silence_of(POLLS).await
    }

    /// Like [`Shim::silence`], where the shim counts as not answering after this many polls.
    pub(crate) async fn silence_of(&self, polls: u32) -> Error {
        loop {
            if let Err(silent) = self.answers(polls).await {
                return silent;
            }
            sleep(AGAIN).await;
        }
    }

    /// Like [`Shim::silence`], but never returns once the shim has answered, for a call that may last as long as a
    /// task.
    pub async fn silence_at_first(&self) -> Error {
        match self.answers(POLLS).await {
            Err(silent) => silent,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Checks that the shim answers, for at most this many polls.
    async fn answers(&self, polls: u32) -> Result<()> {
        let mut patience = Patience::of_polls(&self.folder, polls);
        // Usually the call itself is answered at once.
        for _ in 0..BEFORE_ASKING {
            patience.next_poll().await;
        }
        let request = Empty::default();
        let version = self.client.version(patient(), &request);
        tokio::pin!(version);
        loop {
            tokio::select! {
                biased;
                // Also on an error: a broken connection fails the call itself.
                _ = &mut version => return Ok(()),
                over = patience.is_over() => if over {
                    return Err(silent(&self.id));
                },
            }
        }
    }

    /// Launches the task; answers once its program is executed.
    ///
    /// # Errors
    /// `Unsupported` for secrets, for a task in the background that is to be removed, for one that ends with its caller, and
    /// for what a service manager has for a command, if the shim is of a bowline that would ignore that.
    pub async fn launch(&self, request: LaunchRequest) -> Result<LaunchResponse> {
        self.launch_or_break_off(request).await?
    }

    /// Like [`Shim::launch`]; the inner error is a connection that broke off before the answer.
    pub(crate) async fn launch_or_break_off(&self, mut request: LaunchRequest) -> Result<Result<LaunchResponse>> {
        if !request.secrets.is_empty() || !request.secret_env.is_empty() {
            self.serves(TAKES_SECRETS).await?;
        }
        // A sandbox's may be older than we are. Whoever has the task in its foreground removes it then.
        let is_watched = request.foreground || request.attach.is_some();
        if request.remove && !is_watched && self.member.is_some() {
            self.serves(REMOVES).await?;
        }
        if !request.ends_with.is_empty() {
            self.serves(ENDS_WITH).await?;
        }
        if request.service.is_some() && self.member.is_some() {
            self.serves(SERVES_UNITS).await?;
        }
        request.id.clone_from(&self.id);
        match self.client.launch(patient(), &request).await {
            Ok(launched) => Ok(Ok(launched)),
            Err(error) => match from_status(&error) {
                None => Ok(Err(self.failed(&error).await)),
                // There is no task whose state a hint could name.
                Some(told) => Err(told),
            },
        }
    }

    /// Waits for the end of the task, even if the shim ends first; `None` when the shim died before the task, or turned
    /// us away and must be asked again. Of a task that was removed meanwhile, the journal tells how it ended.
    ///
    /// # Errors
    /// `NotFound` when the task is removed and nothing tells how it ended.
    pub async fn wait(&self) -> Result<Option<ExitReport>> {
        match self.wait_while_there().await {
            Err(error) if error.kind() == Kind::NotFound && matches!(self.folder.exists(), Ok(false)) => {
                self.folder.removed_report().map(Some).ok_or_else(|| unless_removed(&self.folder, &self.id, error))
            }
            waited => waited.map_err(|error| unless_removed(&self.folder, &self.id, error)),
        }
    }

    async fn wait_while_there(&self) -> Result<Option<ExitReport>> {
        let error = match self.client.wait(patient(), &self.request()).await {
            Ok(response) => {
                let report = serde_json::from_str(&response.report);
                return report.doing(Kind::Internal, || "the shim's report is damaged").map(Some);
            }
            Err(error) => error,
        };
        // Nobody has asked the shim to launch the task yet.
        if is_unknown(&error) && is_held(&self.folder)? {
            return Err(starting(&self.id));
        }
        // Written before the shim went, or by another, which may have left again. One that has taken over a sandbox knows
        // nothing of a member that had ended before.
        if let Some(report) = report_in(&self.folder)? {
            return Ok(Some(report));
        }
        // It may have as many files open as it may. Nothing tells when there is room.
        if from_status(&error).is_none() && self.turns_away().await {
            sleep(AGAIN).await;
            return Ok(None);
        }
        match patience::serves(&self.folder).await {
            // A new shim has taken the task over.
            true if self.has_successor() => Ok(None),
            true => match report_in(&self.folder)? {
                Some(report) => Ok(Some(report)),
                None => Err(self.failed(&error).await),
            },
            // The shim went before it answered: it left a report, or died.
            false => self.left().await,
        }
    }

    /// The report that the shim has left; `None` once it is known to have died, or another has its task: one that takes
    /// the task over holds the lock as well, and answers nobody before it has done that.
    async fn left(&self) -> Result<Option<ExitReport>> {
        let replaced = async {
            match self.socket {
                Some(socket) => replaced(&self.folder, Some(socket)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            left = gone(&self.folder) => Ok(left?.map(|report| *report)),
            () = replaced => Ok(None),
        }
    }

    /// Whether this is another shim than `before`, which went.
    pub(crate) fn succeeds(&self, before: &Shim) -> bool {
        self.socket != before.socket
    }

    /// Whether the folder has the socket of another shim by now.
    fn has_successor(&self) -> bool {
        let now = socket_of(&self.folder);
        self.socket.zip(now).is_some_and(|(then, now)| then != now)
    }

    /// Like [`Shim::wait`], for a task that was asked to end.
    ///
    /// # Errors
    /// `Unavailable` when the shim stops answering meanwhile.
    pub async fn wait_answering(&self) -> Result<Option<ExitReport>> {
        self.unless_silent(self.wait()).await
    }

    // Signal, pause, resume and update first check that the shim answers: a stopped shim would carry out the change
    // when it continues, whatever the caller has done instead.

    /// Sends a signal to init.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        let request = SignalRequest { id: self.id.clone(), signal, folder: self.member, ..SignalRequest::default() };
        self.version().await?;
        self.answer(self.client.signal(patient(), &request)).await.map(drop)
    }

    /// Begins to shut the task down. A shim that turns us away is asked again until it counts as not answering.
    pub async fn stop(&mut self, signal: Option<i32>, grace_ms: Option<u64>) -> Result<()> {
        let (id, folder) = (self.id.clone(), self.member);
        let request = StopRequest { id, signal, grace_ms, folder, ..StopRequest::default() };
        let folder = self.folder.clone();
        let mut patience = Patience::with(&folder);
        loop {
            let asked = self.unless_silent(async { Ok(self.client.stop(patient(), &request).await) }).await?;
            match asked {
                Err(error) if self.connects_again(&error, &mut patience).await? => {}
                asked => return self.explained(asked).await.map(drop),
            }
        }
    }

    /// Freezes all processes of the task.
    pub async fn pause(&self) -> Result<()> {
        self.version().await?;
        self.answer(self.client.pause(patient(), &self.request())).await.map(drop)
    }

    /// Lets a paused task go on.
    pub async fn resume(&self) -> Result<()> {
        self.version().await?;
        self.answer(self.client.resume(patient(), &self.request())).await.map(drop)
    }

    /// Runs a command in the task.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<ExecResponse> {
        request.id.clone_from(&self.id);
        request.folder = self.member;
        if request.detached {
            self.serves(DETACHES).await?;
        }
        self.explained(self.client.exec(patient(), &request).await).await
    }

    /// Kills the exec that is named so, and what it has started.
    ///
    /// # Errors
    /// `NotFound` when it has ended; `Unsupported` when the shim is too old for this.
    pub async fn kill_exec(&self, name: &str) -> Result<()> {
        let (id, name) = (self.id.clone(), name.to_owned());
        let request = KillExecRequest { id, name, folder: self.member, ..KillExecRequest::default() };
        self.answer(self.client.kill_exec(patient(), &request)).await.map(drop)
    }

    /// Sends a signal to the process group of the exec that is named so.
    ///
    /// # Errors
    /// As [`Shim::kill_exec`].
    pub async fn signal_exec(&self, name: &str, signal: i32) -> Result<()> {
        let (id, name) = (self.id.clone(), name.to_owned());
        let request = SignalExecRequest { id, name, signal, folder: self.member, ..SignalExecRequest::default() };
        self.answer(self.client.signal_exec(patient(), &request)).await.map(drop)
    }

    /// Lets the exec that is named so run on when this connection ends.
    ///
    /// # Errors
    /// As [`Shim::kill_exec`].
    pub async fn detach_exec(&self, name: &str) -> Result<()> {
        let (id, name) = (self.id.clone(), name.to_owned());
        let request = DetachExecRequest { id, name, folder: self.member, ..DetachExecRequest::default() };
        self.answer(self.client.detach_exec(patient(), &request)).await.map(drop)
    }

    /// Connects FIFOs to the task's streams; false if the shim went before it answered: [`Shim::wait`] returns then.
    pub async fn attach(&self, mut request: AttachRequest) -> Result<bool> {
        request.id.clone_from(&self.id);
        request.folder = self.member;
        let attached = async {
            match self.client.attach(patient(), &request).await {
                Err(error) if from_status(&error).is_none() && !self.turns_away().await => Ok(false),
                answer => self.explained(answer).await.map(|_| true),
            }
        };
        self.unless_silent(attached).await
    }

    /// Sets the terminal size of the task, or of its exec named `exec`.
    pub async fn resize(&self, exec: &str, size: WindowSize) -> Result<()> {
        let (id, exec) = (self.id.clone(), exec.to_owned());
        let request =
            ResizeRequest { id, exec, size: Some(size).into(), folder: self.member, ..ResizeRequest::default() };
        self.answer(self.client.resize(patient(), &request)).await.map(drop)
    }

    /// Changes limits, given as JSON. Returns what is different from the request.
    pub async fn update(&self, update: String) -> Result<Vec<String>> {
        let request = UpdateRequest { id: self.id.clone(), update, folder: self.member, ..UpdateRequest::default() };
        self.version().await?;
        self.answer(self.client.update(patient(), &request)).await.map(|response| response.notes)
    }

    /// All processes of the task.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        self.answer(self.client.processes(patient(), &self.request())).await.map(|response| response.processes)
    }

    /// The version of the shim; the call has no effect.
    pub async fn version(&self) -> Result<String> {
        self.answer(self.client.version(patient(), &Empty::default())).await.map(|response| response.version)
    }

    /// Checks that the shim serves all that revision [`NEEDED`] of `bowline.v1` has.
    ///
    /// # Errors
    /// `Unsupported` when the shim is of an older bowline.
    pub async fn check_revision(&self) -> Result<()> {
        self.serves(NEEDED).await
    }

    async fn serves(&self, needed: u32) -> Result<()> {
        let told = self.answer(self.client.version(patient(), &Empty::default())).await?;
        if told.revision >= needed {
            return Ok(());
        }
        let (id, version, revision) = (&self.id, told.version, told.revision);
        let message = format!(
            "the shim of {id} is of bowline {version} and serves revision {revision} of bowline.v1; this program needs {needed}"
        );
        Err(Error::new(Kind::Unsupported, message)
            .hint("install a bowline-shim that is not older than the library; tasks of the old one end with its own `bowline`"))
    }

    /// Everything that the shim knows, as JSON.
    pub async fn facts(&self) -> Result<String> {
        self.answer(self.client.facts(patient(), &Empty::default())).await.map(|response| response.facts)
    }

    /// The resource usage of the task, as JSON.
    pub async fn stats(&self) -> Result<String> {
        self.answer(self.client.stats(patient(), &self.request())).await.map(|response| response.stats)
    }

    /// The state of the task; `None` while it is being launched.
    pub async fn state(&self) -> Result<Option<StateResponse>> {
        let asked = async {
            match self.client.state(patient(), &self.request()).await {
                Ok(state) => Ok(Some(state)),
                Err(error) => Err(self.explain(&error).await),
            }
        };
        match self.unless_silent(asked).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            state => state,
        }
    }
}

/// The exit report that a shim cannot write yet, if `state` contains one.
///
/// # Errors
/// `Internal` when it is not a report.
pub fn unwritten(state: &StateResponse) -> Result<Option<ExitReport>> {
    let report = Some(&state.unwritten).filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
    report.transpose().doing(Kind::Internal, || "the shim's report is damaged")
}

/// Everything that the shim at `address` knows, as JSON. `address` is a socket's path, with or without `unix://`.
///
/// # Errors
/// `NotFound` when nobody listens there, `Unavailable` when no answer comes within five seconds.
pub async fn facts_at(address: &str) -> Result<String> {
    let path = address.trim().trim_start_matches("unix://");
    let client = connect_at(Path::new(path)).await.doing(Kind::NotFound, || format!("no shim listens at {path}"))?;
    let silent = |how: String| Error::new(Kind::Unavailable, format!("the shim at {path} does not answer{how}"));
    let answer = timeout(ANSWERS_WITHIN, client.facts(patient(), &Empty::default())).await;
    let answer = answer.map_err(|_| silent(format!(" within {} s", ANSWERS_WITHIN.as_secs())))?;
    answer
        .map(|answer| answer.facts)
        .map_err(|error| from_status(&error).unwrap_or_else(|| silent(format!(": {error}"))))
}
