//! A command in a task with streams: `nomad alloc exec`, with or without a terminal.
//!
//! ```text
//!   host ─stdin, size─► [FIFO] ─► shim ─► command
//!        ◄─stdout, stderr─ [FIFOs] ◄──────┘
//! ```
//!
//! The FIFOs are in the task's folder, under a name that `bowline gc` knows. The outputs are pipes where the shim sees us.
//! When the host leaves, the command is killed.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use bowline_client::output_pipe::OutputPipe;
use bowline_client::{Presence, Shim, find_or_adopt};
use bowline_executor::internal::hold_attached;
use bowline_model::folder::ATTACHED;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::{ExecRequest, ExecResponse, WindowSize};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tonic::{Status, Streaming};

use crate::error_codes;
use crate::proto::driver::{
    ExecTaskStreamingIoOperation as Operation, ExecTaskStreamingRequest as Request,
    ExecTaskStreamingResponse as Response, ExitResult, exec_task_streaming_request,
};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::stream::Items;
use crate::tasks::Known;

/// The bytes read at a time: a pipe's capacity.
const CHUNK: usize = 64 * 1024;

/// The terminal's size until the host tells it, and its kind.
const ROWS: u32 = 24;
const COLUMNS: u32 = 80;
const TERM: &str = "TERM=xterm";

/// How long a host may take to tell the size of its terminal before the command is started without it.
const FIRST_SIZE: Duration = Duration::from_millis(50);

/// How long a terminal's last output may take.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// The streams of one command.
struct Streams {
    folder: TempDir,
    /// The lock of the folder.
    _held: File,
    /// Keeps what was written for a command that has not opened its stdin yet, also once the host has closed that.
    _unread: pipe::Receiver,
    stdin: Option<pipe::Sender>,
    stdout: Stream,
    /// Without a terminal, which has one stream for all.
    stderr: Option<Stream>,
}

/// An output of the command.
struct Stream {
    from: pipe::Receiver,
    /// What the shim opens.
    path: String,
    /// What it opens is another end of this.
    pipe: Option<OutputPipe>,
}

impl Stream {
    fn fifo(path: &Path) -> io::Result<Stream> {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        let from = pipe::OpenOptions::new().open_receiver(path)?;
        Ok(Stream { from, path: path.to_string_lossy().into_owned(), pipe: None })
    }

    fn pipe() -> io::Result<Stream> {
        let (read, pipe) = OutputPipe::new()?;
        Ok(Stream { from: pipe::Receiver::from_owned_fd(read)?, path: pipe.path(), pipe: Some(pipe) })
    }

    fn inode(&self) -> Option<u64> {
        self.pipe.as_ref().map(|pipe| pipe.inode)
    }
}

impl Streams {
    fn make(known: &Known, tty: bool, shim: &Shim) -> Result<Streams> {
        let at = known.folder();
        let what = || format!("cannot make FIFOs in {}", at.path().display());
        let prefix = format!("{ATTACHED}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(at.path()).doing(Kind::Internal, what)?;
        let held = hold_attached(folder.path()).doing(Kind::Internal, what)?;
        let path = |name: &str| folder.path().join(name);
        // The shim reads a terminal anyway.
        let pipes = !tty && shim.sees_us();
        let output = |name: &str| if pipes { Stream::pipe() } else { Stream::fifo(&path(name)) };
        let made = || -> io::Result<_> {
            let Stream { from: unread, path: input, .. } = Stream::fifo(&path("stdin"))?;
            let stdin = pipe::OpenOptions::new().open_sender(input)?;
            let stdout = output("stdout")?;
            let stderr = if tty { None } else { Some(output("stderr")?) };
            Ok((unread, stdin, stdout, stderr))
        };
        let (unread, stdin, stdout, stderr) = made().doing(Kind::Internal, what)?;
        Ok(Streams { folder, _held: held, _unread: unread, stdin: Some(stdin), stdout, stderr })
    }

    /// The request to the shim, with a terminal of this size if the command wants one.
    fn request(&self, setup: exec_task_streaming_request::Setup, told: Option<WindowSize>) -> ExecRequest {
        ExecRequest {
            command: setup.command,
            env: setup.tty.then(|| TERM.to_owned()).into_iter().collect(),
            stdin: self.folder.path().join("stdin").to_string_lossy().into_owned(),
            stdout: self.stdout.path.clone(),
            stderr: self.stderr.as_ref().map(|stderr| stderr.path.clone()).unwrap_or_default(),
            stdout_inode: self.stdout.inode(),
            stderr_inode: self.stderr.as_ref().and_then(Stream::inode),
            foreground: true,
            direct: true,
            terminal: setup.tty.then(|| told.unwrap_or_else(|| size(ROWS, COLUMNS))).into(),
            name: self.name(),
            ..ExecRequest::default()
        }
    }

    /// A name that no other command of the task has.
    fn name(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Runs what the first message of `host` asks for; its output, and at last its end, go to `items`.
///
/// # Errors
/// What could not be started, as a status.
pub async fn run(
    known: &Known,
    setup: exec_task_streaming_request::Setup,
    settings: &Settings,
    host: Streaming<Request>,
    items: &Items<Response>,
    shutdown: &Shutdown,
) -> std::result::Result<(), Status> {
    let failed = |error: Error| error_codes::of(&error);
    let shim = live(known, settings).await.map_err(failed)?;
    let mut streams = Streams::make(known, setup.tty, &shim).map_err(failed)?;
    let (name, stdin, tty) = (streams.name(), streams.stdin.take(), setup.tty);
    let mut host = Host { messages: host, size: None, first: None };
    if setup.tty {
        host.await_size().await;
    }
    let request = streams.request(setup, host.size.take());
    let mut running = Running { shim: shim.clone(), name: name.clone(), ended: false };
    let mut output = Output { streams: &mut streams, items };
    let outcome = {
        let ended = shim.exec(request);
        let typed = host.feed(stdin, &shim, &name);
        let passed = output.copy();
        let silent = shim.silence_at_first();
        tokio::pin!(ended, typed, passed, silent);
        let (mut feeds, mut flows) = (true, true);
        let outcome = loop {
            tokio::select! {
                // The shim has to know the command before a size comes.
                biased;
                outcome = &mut ended => break outcome,
                error = &mut silent => break Err(error),
                () = shutdown.begun() => {
                    running.ended = shim.kill_exec(&name).await.is_ok();
                    return Err(Status::unavailable("the plugin ends, and the command with it"));
                }
                gone = &mut typed, if feeds => {
                    feeds = false;
                    // Nobody is left to tell.
                    if gone { return Ok(()) }
                }
                () = &mut passed, if flows => flows = false,
            }
        };
        // A terminal is closed once everything is written.
        if tty && flows && outcome.is_ok() {
            let _ = tokio::time::timeout(LAST_OUTPUT, passed).await;
        }
        outcome
    };
    let outcome = outcome.map_err(failed)?;
    running.ended = true;
    output.finish().await;
    items.send(Ok(ended(&outcome))).await;
    Ok(())
}

/// A command that is killed unless it ends while the host is there, in whatever way that leaves.
struct Running {
    shim: Shim,
    name: String,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (shim, name) = (self.shim.clone(), std::mem::take(&mut self.name));
        if !self.ended
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // It may have ended meanwhile, or have been refused.
            runtime.spawn(async move { shim.kill_exec(&name).await });
        }
    }
}

async fn live(known: &Known, settings: &Settings) -> Result<Shim> {
    let programs = settings.programs();
    match find_or_adopt(&known.folder(), &known.id, &programs).await? {
        Presence::Live(shim) => Ok(shim),
        Presence::Exited(_) | Presence::Dead | Presence::Starting => {
            Err(Error::new(Kind::WrongState, format!("task {} does not run", known.nomads)))
        }
    }
}

fn size(rows: u32, columns: u32) -> WindowSize {
    WindowSize { rows, columns, ..WindowSize::default() }
}

/// What the host sends, message by message.
struct Host {
    messages: Streaming<Request>,
    /// The terminal's size, if the host has told it before the command was started.
    size: Option<WindowSize>,
    /// A message that was read before the command was started.
    first: Option<Request>,
}

impl Host {
    /// Waits a moment for the terminal's size, which a host sends first: a program may ask for it as it begins.
    async fn await_size(&mut self) {
        if let Ok(Ok(Some(message))) = tokio::time::timeout(FIRST_SIZE, self.messages.message()).await {
            self.size = size_in(&message);
            self.first = Some(message);
        }
    }

    /// The next message, or what the stream ends with.
    async fn next(&mut self) -> std::result::Result<Option<Request>, Status> {
        match self.first.take() {
            Some(first) => Ok(Some(Request { tty_size: None, ..first })),
            None => self.messages.message().await,
        }
    }

    /// Passes on what the host sends, until it ends. Returns whether the host has gone before it has closed its side.
    async fn feed(&mut self, mut stdin: Option<pipe::Sender>, shim: &Shim, exec: &str) -> bool {
        loop {
            let message = match self.next().await {
                Ok(Some(message)) => message,
                // Its side is closed: it still reads.
                Ok(None) => return false,
                Err(_) => return true,
            };
            if let Some(size) = size_in(&message) {
                // Answered once the command is executed. It may have ended since.
                let _ = shim.resize(exec, size).await;
            }
            let Some(operation) = message.stdin else { continue };
            if let Some(stdin) = &mut stdin
                && !operation.data.is_empty()
            {
                // Nobody may read it any more: what is typed goes nowhere then.
                let _ = stdin.write_all(&operation.data).await;
            }
            if operation.close {
                stdin = None;
            }
        }
    }
}

fn size_in(message: &Request) -> Option<WindowSize> {
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    message.tty_size.as_ref().map(|wanted| size(number(wanted.height), number(wanted.width)))
}

/// The command's output on its way to the host.
struct Output<'a> {
    streams: &'a mut Streams,
    items: &'a Items<Response>,
}

impl Output<'_> {
    /// Passes both streams on until their end.
    async fn copy(&mut self) {
        let Streams { stdout, stderr, .. } = &mut *self.streams;
        let stderr = async {
            if let Some(stderr) = stderr {
                copy(&mut stderr.from, self.items, stderr_of).await;
            }
        };
        tokio::join!(copy(&mut stdout.from, self.items, stdout_of), stderr);
    }

    /// Passes on what is written already, and closes both streams. What the command has left running may keep them open.
    async fn finish(&mut self) {
        let streams = [(Some(&self.streams.stdout), stdout_of as Made), (self.streams.stderr.as_ref(), stderr_of)];
        for (from, made) in streams {
            let mut buffer = vec![0; CHUNK];
            // Past the event loop, which may not have heard of the last bytes.
            let read =
                |buffer: &mut Vec<u8>| from.and_then(|from| rustix::io::read(&from.from, buffer.as_mut_slice()).ok());
            while let Some(length @ 1..) = read(&mut buffer) {
                self.items.send(Ok(made(data(&buffer[..length])))).await;
            }
            self.items.send(Ok(made(Operation { data: Vec::new(), close: true }))).await;
        }
    }
}

type Made = fn(Operation) -> Response;

fn stdout_of(operation: Operation) -> Response {
    Response { stdout: Some(operation), ..Response::default() }
}

fn stderr_of(operation: Operation) -> Response {
    Response { stderr: Some(operation), ..Response::default() }
}

fn data(bytes: &[u8]) -> Operation {
    Operation { data: bytes.to_vec(), close: false }
}

/// Passes a stream on until its end. What is read has its place among the items already, so nothing is lost when this
/// is dropped.
async fn copy(from: &mut pipe::Receiver, items: &Items<Response>, made: Made) {
    let mut buffer = vec![0; CHUNK];
    while let Some(place) = items.place().await
        && let Ok(length @ 1..) = from.read(&mut buffer).await
    {
        place.send(Ok(made(data(&buffer[..length]))));
    }
}

fn ended(outcome: &ExecResponse) -> Response {
    let (exit_code, signal) = (outcome.exit_code.unwrap_or(-1), outcome.signal.unwrap_or_default());
    let result = Some(ExitResult { exit_code, signal, ..ExitResult::default() });
    Response { exited: true, result, ..Response::default() }
}
