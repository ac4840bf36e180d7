//! Talking to a shim, and to what it has left when it has gone.

pub mod patience;
pub mod sandbox;
pub mod scrape;
pub mod spawn;

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use bowline_executor::{Doing, Error, ExitReport, Folder, Kind, Owner, Result, died_with_shim};
use patience::{BEFORE_ASKING, Patience, lock_after, silent};
use ttrpc::context;

use bowline_protocol::wire::from_status;
use bowline_protocol::wire::proto::bowline::{
    AttachRequest, Empty, ExecRequest, ExecResponse, LaunchRequest, LaunchResponse, Process, ResizeRequest,
    SignalRequest, StateResponse, StopRequest, TaskRequest, UpdateRequest, WindowSize,
};
use bowline_protocol::wire::proto::bowline_ttrpc::BowlineClient;

/// How long after a shim has answered it is asked again, while a call takes long.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection to the shim of one task.
pub struct Shim {
    client: BowlineClient,
    id: String,
    folder: Folder,
}

/// How a task stands, by who answers for it.
pub enum Presence {
    /// Its shim does.
    Live(Shim),
    /// It has ended; this is its report.
    Exited(Box<ExitReport>),
    /// Its shim died before it.
    Dead,
    /// Its shim is not up yet.
    Starting,
}

/// No time limit: a wait may take years.
fn patient() -> ttrpc::context::Context {
    context::with_timeout(0)
}

/// There is no such task.
pub fn unknown(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no task named {id}")).hint("`bowline ps` lists all tasks")
}

/// What a task that is only being launched cannot do yet.
pub fn starting(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} is still being launched")).hint("try again in a moment")
}

/// What a task that has ended cannot do any more.
pub fn exited(id: &str) -> Error {
    Error::new(Kind::WrongState, format!("task {id} has exited"))
        .hint(format!("`bowline wait --json {id}` tells how, `bowline rm {id}` removes it"))
}

/// Finds out who answers for the task in `folder`.
///
/// # Errors
/// `NotFound` when there is no such task; `Unavailable` when its shim lets nobody
/// in, and stays.
pub async fn find(folder: &Folder, id: &str) -> Result<Presence> {
    loop {
        let found = match connect(folder).await {
            Ok(client) => return Ok(Presence::Live(Shim { client, id: id.to_owned(), folder: folder.clone() })),
            Err(_) if !folder.exists()? => return Err(unknown(id)),
            // More than it has let in wait at its socket.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(silent(id)),
            Err(error) => without_shim(folder, error.kind()).await,
        };
        // Removed while we looked.
        match found.map_err(|error| if error.kind() == Kind::NotFound { unknown(id) } else { error })? {
            Some(presence) => return Ok(presence),
            None => continue,
        }
    }
}

/// Who answers where the socket did not, for this reason; nobody if it is there
/// by now, and is to be asked again.
async fn without_shim(folder: &Folder, refused: ErrorKind) -> Result<Option<Presence>> {
    // What is there and refuses is of a shim that is going, or has gone.
    if refused == ErrorKind::NotFound {
        if folder.socket().exists() {
            return Ok(None);
        }
        // A member of a sandbox that has ended has none either.
        if !has_report(folder)? && matches!(folder.owner()?, Owner::Shim) {
            return Ok(Some(Presence::Starting));
        }
    }
    gone(folder).await.map(Some)
}

/// Whether a shim that lives has said that it has no such task.
fn is_unknown(error: &ttrpc::Error) -> bool {
    from_status(error).is_some_and(|told| told.kind() == Kind::NotFound)
}

/// Whether somebody has the folder of a task that has not ended.
pub fn is_held(folder: &Folder) -> Result<bool> {
    Ok(!has_report(folder)? && matches!(folder.owner()?, Owner::Shim))
}

/// Whether there is a report. One that is damaged is none: a shim that lives writes another.
fn has_report(folder: &Folder) -> Result<bool> {
    match folder.exit() {
        Err(error) if error.kind() == Kind::Damaged => Ok(false),
        exit => exit.map(|exit| exit.is_some()),
    }
}

impl Shim {
    fn request(&self) -> TaskRequest {
        TaskRequest { id: self.id.clone(), ..TaskRequest::default() }
    }

    /// The error of a call; a connection that broke is explained by what the
    /// shim has left.
    fn failed(&self, error: &ttrpc::Error) -> Error {
        let told = from_status(error);
        let is_gone = told.as_ref().is_none_or(|error| error.kind() == Kind::NotFound);
        if is_gone && matches!(self.folder.exit(), Ok(Some(_))) {
            return exited(&self.id);
        }
        let Some(told) = told else {
            if matches!(self.folder.exists(), Ok(false)) {
                return unknown(&self.id);
            }
            let log = std::fs::read_to_string(self.folder.file("shim.log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or("it left no word in shim.log");
            return Error::new(Kind::Internal, format!("the shim of task {} broke off: {error}; {last}", self.id));
        };
        match (told.kind(), told.hint_text()) {
            (Kind::NotFound | Kind::WrongState, None) => {
                told.hint(format!("`bowline inspect {}` tells how the task stands", self.id))
            }
            _ => told,
        }
    }

    /// What `call` comes to, unless the shim is not answering at all.
    async fn answer<T>(&self, call: impl Future<Output = ttrpc::Result<T>>) -> Result<T> {
        self.unless_silent(async { call.await.map_err(|e| self.failed(&e)) }).await
    }

    async fn unless_silent<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            answer = call => answer,
            error = self.silence() => Err(error),
        }
    }

    /// Comes about once the shim is not answering: what to say then. For a call that
    /// takes long to wait beside.
    pub async fn silence(&self) -> Error {
        loop {
            if let Err(silent) = self.answers().await {
                return silent;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// As [`Shim::silence`], and never once the shim has answered: for a call that
    /// may take as long as a task runs.
    pub async fn silence_at_first(&self) -> Error {
        match self.answers().await {
            Err(silent) => silent,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Whether the shim gives any answer.
    async fn answers(&self) -> Result<()> {
        let mut patience = Patience::with(&self.folder);
        // Mostly the answer comes at once.
        for _ in 0..BEFORE_ASKING {
            patience.look().await;
        }
        let request = Empty::default();
        let version = self.client.version(patient(), &request);
        tokio::pin!(version);
        loop {
            tokio::select! {
                biased;
                // A connection that broke fails the call itself.
                _ = &mut version => return Ok(()),
                over = patience.is_over() => if over {
                    return Err(silent(&self.id));
                },
            }
        }
    }

    /// Launches the task.
    pub async fn launch(&self, mut request: LaunchRequest) -> Result<LaunchResponse> {
        request.id.clone_from(&self.id);
        self.client.launch(patient(), &request).await.map_err(|e| self.failed(&e))
    }

    /// Waits for the task's end, also through the shim's own.
    pub async fn wait(&self) -> Result<ExitReport> {
        match self.client.wait(patient(), &self.request()).await {
            Ok(response) => {
                let report = serde_json::from_str(&response.report);
                report.doing(Kind::Internal, || "the shim's report is damaged")
            }
            // Nobody has asked it for the task yet.
            Err(error) if is_unknown(&error) && is_held(&self.folder)? => Err(starting(&self.id)),
            // It has sent us away, as where it has as many files open as it may.
            Err(error) if patience::serves(&self.folder).await => Err(self.failed(&error)),
            // Gone between our question and its answer: it has left a report, or died.
            Err(_) => gone(&self.folder).await?.report(&self.folder),
        }
    }

    /// Waits for the end of a task that was told to end.
    ///
    /// # Errors
    /// `Unavailable` when the shim is not answering meanwhile.
    pub async fn wait_answering(&self) -> Result<ExitReport> {
        self.unless_silent(self.wait()).await
    }

    // What changes something is asked only of a shim that answers: one that is
    // stopped would do it when it goes on, whatever has been done instead.

    /// Sends a signal to init.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        let request = SignalRequest { id: self.id.clone(), signal, ..SignalRequest::default() };
        self.version().await?;
        self.answer(self.client.signal(patient(), &request)).await.map(drop)
    }

    /// Begins to bring the task down.
    pub async fn stop(&self, signal: Option<i32>, grace_ms: Option<u64>) -> Result<()> {
        let request = StopRequest { id: self.id.clone(), signal, grace_ms, ..StopRequest::default() };
        self.answer(self.client.stop(patient(), &request)).await.map(drop)
    }

    /// Freezes the task.
    pub async fn pause(&self) -> Result<()> {
        self.version().await?;
        self.answer(self.client.pause(patient(), &self.request())).await.map(drop)
    }

    /// Thaws it.
    pub async fn resume(&self) -> Result<()> {
        self.version().await?;
        self.answer(self.client.resume(patient(), &self.request())).await.map(drop)
    }

    /// Runs a command in the task.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<ExecResponse> {
        request.id.clone_from(&self.id);
        self.client.exec(patient(), &request).await.map_err(|e| self.failed(&e))
    }

    /// Connects FIFOs to the task's streams.
    pub async fn attach(&self, mut request: AttachRequest) -> Result<()> {
        request.id.clone_from(&self.id);
        self.answer(self.client.attach(patient(), &request)).await.map(drop)
    }

    /// Makes the terminal of the task, or of its exec of that name, this large.
    pub async fn resize(&self, exec: &str, size: WindowSize) -> Result<()> {
        let (id, exec) = (self.id.clone(), exec.to_owned());
        let request = ResizeRequest { id, exec, size: Some(size).into(), ..ResizeRequest::default() };
        self.answer(self.client.resize(patient(), &request)).await.map(drop)
    }

    /// Changes limits, given as JSON.
    pub async fn update(&self, update: String) -> Result<()> {
        let request = UpdateRequest { id: self.id.clone(), update, ..UpdateRequest::default() };
        self.version().await?;
        self.answer(self.client.update(patient(), &request)).await.map(drop)
    }

    /// The processes of the task.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        self.answer(self.client.processes(patient(), &self.request())).await.map(|response| response.processes)
    }

    /// The version of the shim: a call that does nothing else.
    pub async fn version(&self) -> Result<String> {
        self.answer(self.client.version(patient(), &Empty::default())).await.map(|response| response.version)
    }

    /// Everything that the shim knows, as JSON.
    pub async fn facts(&self) -> Result<String> {
        self.answer(self.client.facts(patient(), &Empty::default())).await.map(|response| response.facts)
    }

    /// What the task uses, as JSON.
    pub async fn stats(&self) -> Result<String> {
        self.answer(self.client.stats(patient(), &self.request())).await.map(|response| response.stats)
    }

    /// Where the task is in its life; `None` while it is being launched.
    pub async fn state(&self) -> Result<Option<StateResponse>> {
        match self.answer(self.client.state(patient(), &self.request())).await {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The exit report that a shim cannot write yet, if its word on the task's state has one.
///
/// # Errors
/// `Internal` for one that is no report.
pub fn unwritten(state: &StateResponse) -> Result<Option<ExitReport>> {
    let report = Some(&state.unwritten).filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
    report.transpose().doing(Kind::Internal, || "the shim's report is damaged")
}

/// Everything that the shim knows that listens at `address`, a socket's path with `unix://` or without, as JSON.
///
/// # Errors
/// `NotFound` where nobody listens, `Unavailable` when there is no answer in time.
pub async fn facts_at(address: &str) -> Result<String> {
    let path = address.trim().trim_start_matches("unix://");
    let client = connect_at(Path::new(path)).await.doing(Kind::NotFound, || format!("no shim listens at {path}"))?;
    let answer = client.facts(patient(), &Empty::default()).await;
    let silent = |error| Error::new(Kind::Unavailable, format!("the shim at {path} does not answer: {error}"));
    answer.map(|answer| answer.facts).map_err(|error| from_status(&error).unwrap_or_else(|| silent(error)))
}

async fn connect(folder: &Folder) -> std::io::Result<BowlineClient> {
    connect_at(&folder.socket()).await
}

async fn connect_at(socket: &Path) -> std::io::Result<BowlineClient> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let socket = ttrpc::r#async::transport::Socket::from(stream);
    Ok(BowlineClient::new(ttrpc::r#async::Client::new(socket)))
}

/// What a shim has left that serves nobody any more. Waits until it has gone: its
/// report is whole before it goes.
async fn gone(folder: &Folder) -> Result<Presence> {
    if let Some(report) = folder.exit()? {
        return Ok(Presence::Exited(Box::new(report)));
    }
    drop(lock_after(folder).await?);
    let report = folder.exit()?;
    Ok(report.map_or(Presence::Dead, |report| Presence::Exited(Box::new(report))))
}

impl Presence {
    /// The report of a task that has ended, also of one that did so unseen.
    fn report(self, folder: &Folder) -> Result<ExitReport> {
        match self {
            Presence::Exited(report) => Ok(*report),
            Presence::Dead | Presence::Live(_) | Presence::Starting => Ok(died_with_shim(folder.record()?.as_ref())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use bowline_executor::StateDir;

    use super::*;

    #[test]
    fn a_shim_that_comes_up_while_somebody_looks_is_not_taken_for_one_that_goes() {
        let root = tempfile::tempdir().unwrap();
        let (folder, lock) = StateDir::new(root.path()).create(&"web".parse().unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let look = |refused| runtime.block_on(without_shim(&folder, refused)).unwrap();
        assert!(matches!(look(ErrorKind::NotFound), Some(Presence::Starting)));
        let listener = UnixListener::bind(folder.socket()).unwrap();
        // To wait for its lock is to wait for its end.
        assert!(look(ErrorKind::NotFound).is_none());
        drop((listener, lock));
        assert!(matches!(look(ErrorKind::ConnectionRefused), Some(Presence::Dead)));
    }
}
