//! Talking to a shim, and to what it has left when it has gone.

pub mod figures;
pub mod sandbox;

use std::io::ErrorKind;
use std::path::Path;

use bowline_executor::{Doing, Error, ExitReport, Folder, Kind, Owner, Result, died_with_shim};
use ttrpc::context;

use crate::wire::from_status;
use crate::wire::proto::bowline::{
    AttachRequest, Empty, ExecRequest, ExecResponse, LaunchRequest, LaunchResponse, Process, ResizeRequest,
    SignalRequest, StateResponse, StopRequest, TaskRequest, UpdateRequest, WindowSize,
};
use crate::wire::proto::bowline_ttrpc::BowlineClient;

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
/// `NotFound` when there is no such task.
pub async fn find(folder: &Folder, id: &str) -> Result<Presence> {
    loop {
        let found = match connect(folder).await {
            Ok(client) => return Ok(Presence::Live(Shim { client, id: id.to_owned(), folder: folder.clone() })),
            Err(_) if !folder.exists()? => return Err(unknown(id)),
            Err(error) => without_shim(folder, error.kind()),
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
fn without_shim(folder: &Folder, refused: ErrorKind) -> Result<Option<Presence>> {
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
    gone(folder).map(Some)
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
            // Gone between our question and its answer: it has left a report, or died.
            Err(_) => gone(&self.folder)?.report(&self.folder),
        }
    }

    /// Sends a signal to init.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        let request = SignalRequest { id: self.id.clone(), signal, ..SignalRequest::default() };
        self.client.signal(patient(), &request).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Begins to bring the task down.
    pub async fn stop(&self, signal: Option<i32>, grace_ms: Option<u64>) -> Result<()> {
        let request = StopRequest { id: self.id.clone(), signal, grace_ms, ..StopRequest::default() };
        self.client.stop(patient(), &request).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Freezes the task.
    pub async fn pause(&self) -> Result<()> {
        self.client.pause(patient(), &self.request()).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Thaws it.
    pub async fn resume(&self) -> Result<()> {
        self.client.resume(patient(), &self.request()).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Runs a command in the task.
    pub async fn exec(&self, mut request: ExecRequest) -> Result<ExecResponse> {
        request.id.clone_from(&self.id);
        self.client.exec(patient(), &request).await.map_err(|e| self.failed(&e))
    }

    /// Connects FIFOs to the task's streams.
    pub async fn attach(&self, mut request: AttachRequest) -> Result<()> {
        request.id.clone_from(&self.id);
        self.client.attach(patient(), &request).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Makes the terminal of the task, or of its exec of that name, this large.
    pub async fn resize(&self, exec: &str, size: WindowSize) -> Result<()> {
        let (id, exec) = (self.id.clone(), exec.to_owned());
        let request = ResizeRequest { id, exec, size: Some(size).into(), ..ResizeRequest::default() };
        self.client.resize(patient(), &request).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// Changes limits, given as JSON.
    pub async fn update(&self, update: String) -> Result<()> {
        let request = UpdateRequest { id: self.id.clone(), update, ..UpdateRequest::default() };
        self.client.update(patient(), &request).await.map(drop).map_err(|e| self.failed(&e))
    }

    /// The processes of the task.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        let response = self.client.processes(patient(), &self.request()).await;
        response.map(|r| r.processes).map_err(|e| self.failed(&e))
    }

    /// The version of the shim: a call that does nothing else.
    pub async fn version(&self) -> Result<String> {
        let response = self.client.version(patient(), &Empty::default()).await;
        response.map(|r| r.version).map_err(|e| self.failed(&e))
    }

    /// What the task uses, as JSON.
    pub async fn stats(&self) -> Result<String> {
        let response = self.client.stats(patient(), &self.request()).await;
        response.map(|r| r.stats).map_err(|e| self.failed(&e))
    }

    /// Where the task is in its life; `None` while it is being launched.
    pub async fn state(&self) -> Result<Option<StateResponse>> {
        match self.client.state(patient(), &self.request()).await {
            Ok(state) => Ok(Some(state)),
            Err(error) => match self.failed(&error) {
                error if error.kind() == Kind::NotFound => Ok(None),
                error => Err(error),
            },
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

async fn connect(folder: &Folder) -> std::io::Result<BowlineClient> {
    connect_at(&folder.socket()).await
}

async fn connect_at(socket: &Path) -> std::io::Result<BowlineClient> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let socket = ttrpc::r#async::transport::Socket::from(stream);
    Ok(BowlineClient::new(ttrpc::r#async::Client::new(socket)))
}

/// What a shim has left that no longer answers. Waits until it has gone: its
/// report is whole before it goes.
fn gone(folder: &Folder) -> Result<Presence> {
    if let Some(report) = folder.exit()? {
        return Ok(Presence::Exited(Box::new(report)));
    }
    if matches!(folder.owner()?, Owner::Shim) {
        // On its way out.
        drop(folder.lock()?);
    }
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
        let look = |refused| without_shim(&folder, refused).unwrap();
        assert!(matches!(look(ErrorKind::NotFound), Some(Presence::Starting)));
        let listener = UnixListener::bind(folder.socket()).unwrap();
        // To wait for its lock is to wait for its end.
        assert!(look(ErrorKind::NotFound).is_none());
        drop((listener, lock));
        assert!(matches!(look(ErrorKind::ConnectionRefused), Some(Presence::Dead)));
    }
}
