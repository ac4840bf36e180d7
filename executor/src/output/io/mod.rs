//! Standard streams: from a process's pipes or terminal to files, FIFOs, ring buffers and attached clients, and back.
//!
//! ```text
//!   process ─pipe or terminal─► stream ─► tail (last bytes, in memory)
//!      ▲                          ├─────► log
//!      │                          └─────► outlets (file, FIFO, guests)
//!      └──── file, or a pipe that a FIFO or guests feed ◄── input
//! ```
//!
//! If the shim need not see the output, the process gets a manager's FIFO or our own client's pipe directly, or a pipe
//! that the shim copies into the FIFO where the manager must be able to end it (`relay`). It never gets a file, nor a
//! FIFO of our own client: a process that holds a host file can change its mode, its owner and its content.
//!
//! A slow FIFO reader holds up its own stream only. A file that cannot be written, or a reader that
//! has gone, holds up nothing: the lost bytes are counted. When the client that has the process in
//! its foreground stops reading a stream, and no attached client reads it either, the pipe is
//! closed: the process gets EPIPE or SIGPIPE, as in any pipeline. When the process has ended, the
//! rest of its pipe is read at once, so that the tail is complete, and then flushed for as long as
//! the reader takes any of it. What a client has not taken then stays in its FIFO. Must not: know a
//! task's state.

mod counter;
mod end;
mod flag;
mod handed;
mod input;
mod logger;
mod losses;
mod outlet;
mod readers;
mod relay;
mod spare_end;
mod stream;
mod tail;
mod terminal;
mod unread;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc, watch};

pub use counter::Counter;
pub use end::{End, Owner, Stdio, is_null, pipe};
use flag::{Flag, FlagReader};
pub use handed::{Handed, Taken};
pub use input::Input;
use logger::Logged;
pub use logger::{Logger, Logging, Ready};
use spare_end::{Keeper, KeptEnd};
pub use terminal::{WindowSize, Wish};

use crate::output::log;
pub use losses::Losses;
use outlet::Outlet;
pub use outlet::{CallersPipe, Refused, Target};
pub use readers::until_read;
use relay::Relay;
pub use relay::{Release, Released, all_releases_taken};
pub use stream::Progress;
use stream::{Route, Stream};
pub use tail::{TAIL, Tail, new_tail};
use terminal::Terminal;
pub use terminal::{Awaited, wish};
pub use unread::Unread;

/// How to connect a process.
pub struct Connections<'a> {
    /// The source of its stdin. With a terminal, stdin is open whatever this says.
    pub input: &'a Input,
    /// The target of its stdout, or of everything that it writes to its terminal.
    pub stdout: &'a Target,
    /// The target of its stderr.
    pub stderr: &'a Target,
    /// The owner of the process's ends.
    pub owner: Owner,
    /// The logs of its stdout and stderr.
    pub logs: [Option<log::Writer>; 2],
    /// One tail for both streams, or one for each.
    pub tails: [Tail; 2],
    /// The size of its terminal, if it gets one.
    pub terminal: Option<WindowSize>,
    /// Whether output goes straight to the FIFOs or pipes that `stdout` and `stderr` name, unseen by the
    /// shim. A terminal always sits in between, and so does a pipe when a target is not a FIFO, or is that of a client in
    /// the foreground: no file of the host is handed to a process but a manager's FIFO.
    pub direct: bool,
    /// If set, the process gets pipes even with `direct`, and the FIFOs close once it is released.
    pub released: Option<Released>,
    /// Whether its pipes are read for as long as any process writes to them, even after the process itself has ended.
    pub follow: bool,
    /// Whether an init keeps the pipes of its outputs open: see [`Stdio::kept`].
    pub kept: bool,
    /// The folder of a task whose outputs another shim may take over.
    pub folder: Option<&'a Path>,
}

/// The shim's side of a process's streams while the process is being set up.
pub enum Wiring {
    /// Pipes, which the shim reads and feeds already.
    Pipes(Pumps),
    /// A terminal that the process has not made yet.
    Terminal {
        /// Where the terminal comes from.
        awaited: Awaited,
        /// Where the terminal's output goes.
        outlet: Outlet,
        /// The log of the terminal's output.
        log: Option<log::Writer>,
        /// The last bytes of the terminal's output.
        tail: Tail,
        /// Where it is noted what of it is lost.
        losses: Option<Losses>,
    },
}

/// The streams of one process, being pumped.
#[derive(Debug)]
pub struct Pumps {
    /// Set once the process has ended.
    process_ended: Flag,
    lines: Lines,
    kept: Option<Kept>,
    /// The folder of the task, if another shim may take it over.
    folder: Option<PathBuf>,
    /// The outputs, in the order of `lines.progress`.
    outputs: Vec<Pumped>,
    /// The progress of those that end with the process.
    ending: Vec<watch::Receiver<Progress>>,
    /// The logger that takes the outputs, if one does.
    logger: Option<Logged>,
}

/// An output, while it is pumped.
#[derive(Debug)]
enum Pumped {
    Stream(Weak<Mutex<Stream>>),
    Relay(Weak<Mutex<Relay>>),
}

/// The reading ends that an init keeps.
#[derive(Debug, Default)]
struct Kept {
    /// The ends, until the init gets them.
    ends: Vec<OwnedFd>,
    /// How many ends were added so far; the next one gets this index.
    count: u32,
    keeper: Keeper,
}

/// Handles for joining a process's streams.
#[derive(Debug, Clone)]
pub struct Lines {
    /// One for stdout and one for stderr; a terminal has only one.
    outputs: Vec<mpsc::UnboundedSender<Outlet>>,
    input: Option<Rc<AsyncFd<File>>>,
    terminal: Option<Rc<Terminal>>,
    process_ended: FlagReader,
    /// How far each output has come.
    progress: Vec<watch::Receiver<Progress>>,
    /// Who writes to its input.
    feeds: input::Feeds,
}

/// The FIFOs of a client that attaches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// What the client writes to; it has this open already.
    pub stdin: Option<PathBuf>,
    /// Where the client reads stdout, or the terminal.
    pub stdout: Target,
    /// Where the client reads stderr.
    pub stderr: Target,
}

/// Creates a process's stream ends and pumps its pipes on the current `LocalSet`.
///
/// Returns the process's ends and the shim's side.
pub fn wire(wanted: Connections<'_>) -> Result<(Stdio, Wiring)> {
    let Connections { input, stdout, stderr, owner, logs, tails, terminal, direct, released, follow, .. } = wanted;
    let ([out_log, err_log], [out_tail, err_tail]) = (logs, tails);
    if let Some(size) = terminal {
        let (wish, awaited) = terminal::wish(size)?;
        let stdio =
            Stdio { stdin: End::Null, stdout: End::Null, stderr: End::Null, terminal: Some(wish), kept: Vec::new() };
        let losses = wanted.folder.map(|folder| Losses::of(folder, 0));
        let outlet = Outlet::open(stdout)?;
        return Ok((stdio, Wiring::Terminal { awaited, outlet, log: out_log, tail: out_tail, losses }));
    }
    let mut pumps = Pumps::new(None, None);
    pumps.kept = wanted.kept.then(Kept::default);
    pumps.folder = wanted.folder.map(Path::to_owned);
    let stdin = pumps.open_input(input, owner)?;
    let way = Way { owner, direct, released, follow };
    let out = pumps.open_output("stdout", stdout, &way, out_log, out_tail)?;
    // Both streams go to one file: a single pipe keeps their order.
    let one = direct && stdout == stderr && !pumps.lines.progress.is_empty();
    let err = match &out {
        End::Fd(pipe) if one => End::Fd(pipe.try_clone().doing(Kind::Internal, || "cannot give a process its stderr")?),
        _ => pumps.open_output("stderr", stderr, &way, err_log, err_tail)?,
    };
    let kept = pumps.kept.as_mut().map(|kept| std::mem::take(&mut kept.ends)).unwrap_or_default();
    Ok((Stdio { stdin, stdout: out, stderr: err, terminal: None, kept }, Wiring::Pipes(pumps)))
}

/// An output that an init has kept open while no shim read it.
pub struct KeptOutput<'a> {
    /// The process's name for the stream.
    pub name: &'static str,
    /// A reading end of its pipe.
    pub read: OwnedFd,
    /// The place of the end that the init keeps among all those.
    pub index: u32,
    pub target: &'a Target,
    /// The log of the output.
    pub log: Option<log::Writer>,
    /// The last bytes of the output.
    pub tail: Tail,
    /// Where the shim before has kept what it had read and not passed on.
    pub unread: Unread,
    /// What the shim before has lost of it, and where that is noted.
    pub lost: Option<(u64, Option<Refused>)>,
    pub losses: Losses,
}

/// Pumps outputs that `init` keeps, on the current `LocalSet`.
pub fn take_over<'a>(init: Option<OwnedFd>, kept: impl IntoIterator<Item = KeptOutput<'a>>) -> Result<Pumps> {
    let mut pumps = Pumps::new(None, None);
    let keeper = Keeper::default();
    for KeptOutput { name, read, index, target, log, tail, unread, lost, losses } in kept {
        let what = || format!("cannot watch {name}");
        let from = Rc::new(sys::register_fd(File::from(read)).doing(Kind::Internal, what)?);
        let kept = Some(KeptEnd { keeper: keeper.clone(), index });
        // Its reader may have gone with the shim before. The task goes on.
        let mut outlet = Outlet::open(target).or_else(|error| {
            tracing::warn!(%error, stream = name, "output goes nowhere but to the log");
            Outlet::open(&Target::Null)
        })?;
        if let Target::Foreground(path) = target
            && let Some(counted) = counter::written(path, || outlet.waiting())
        {
            unread.has_counted(counted);
        }
        if let Some((dropped, refused)) = lost {
            outlet.has_lost(dropped, refused);
        }
        go_on_with(&unread, &mut outlet, log.as_ref());
        let (unread, losses) = (Some(unread), Some(losses));
        let route = Route { log, tail, goes_with_process: false, follow: false, kept, unread, losses };
        pumps.begin(name, from, outlet, route);
    }
    if let Some(init) = init {
        keeper.set_init(init);
    }
    Ok(pumps)
}

/// Does what the shim before has left to do with what it had read.
fn go_on_with(unread: &Unread, outlet: &mut Outlet, log: Option<&log::Writer>) {
    outlet.write(&unread.pending());
    unread.set_remaining(outlet.pending().len());
    if let Some(log) = log {
        log.hold(unread.held());
        if !unread.is_logged() {
            match unread.mark() {
                Some(mark) => log.go_on(unread.chunk(), mark),
                None => log.write(unread.chunk()),
            };
            log.with_held(|held| unread.logged(held));
            unread.set_remaining(outlet.pending().len());
        }
    }
}

impl Wiring {
    /// Starts pumping, once the process has reported that it is set up.
    pub fn connect(self) -> Result<Pumps> {
        match self {
            Wiring::Pipes(pumps) => Ok(pumps),
            Wiring::Terminal { awaited, outlet, log, tail, losses } => {
                let terminal = awaited.receive()?;
                let from = terminal.master.clone();
                let mut pumps = Pumps::new(Some(from.clone()), Some(Rc::new(terminal)));
                pumps.begin(
                    "terminal",
                    from,
                    outlet,
                    Route { log, tail, goes_with_process: true, follow: false, kept: None, unread: None, losses },
                );
                Ok(pumps)
            }
        }
    }
}

/// How the outputs of a process leave it: see [`Connections`].
#[derive(Debug)]
struct Way {
    owner: Owner,
    direct: bool,
    released: Option<Released>,
    follow: bool,
}

/// Prepares the FIFO at `path` for the process to hold.
fn handed_over(fifo: File, path: &Path, owner: Owner) -> Result<OwnedFd> {
    // The process did not ask for a non-blocking stream.
    rustix::io::ioctl_fionbio(&fifo, false).doing(Kind::Internal, || format!("cannot set up {}", path.display()))?;
    let end = OwnedFd::from(fifo);
    owner.take(&end)?;
    Ok(end)
}

/// The reading end of a pipe without a writer: an output that has ended.
pub fn ended_pipe() -> Result<OwnedFd> {
    let (read, _) = pipe()?;
    rustix::io::ioctl_fionbio(&read, true).doing(Kind::Internal, || "cannot set up a pipe")?;
    Ok(read)
}

impl Kept {
    /// Keeps another end of the pipe that `read` is one of.
    fn keep(&mut self, read: &OwnedFd) -> std::io::Result<KeptEnd> {
        self.ends.push(read.try_clone()?);
        self.count += 1;
        Ok(KeptEnd { keeper: self.keeper.clone(), index: self.count - 1 })
    }
}

impl Pumps {
    fn new(input: Option<Rc<AsyncFd<File>>>, terminal: Option<Rc<Terminal>>) -> Pumps {
        let process_ended = Flag::new();
        let (outputs, progress, feeds) = (Vec::new(), Vec::new(), Rc::default());
        let lines = Lines { outputs, input, terminal, process_ended: process_ended.reader(), progress, feeds };
        Pumps { process_ended, lines, kept: None, folder: None, outputs: Vec::new(), ending: Vec::new(), logger: None }
    }

    /// Creates the process's end of an output; pumps the other end if the shim reads it.
    fn open_output(
        &mut self,
        name: &'static str,
        target: &Target,
        way: &Way,
        log: Option<log::Writer>,
        tail: Tail,
    ) -> Result<End> {
        let outlet = match target {
            Target::Null if way.direct => return Ok(End::Null),
            Target::Path(path) | Target::Own(path) if way.direct => match outlet::open(target, path)? {
                (fifo, kind) if kind.is_fifo() => {
                    let end = match &way.released {
                        Some(released) => self.relay(name, fifo, way.owner, released.clone())?,
                        None => handed_over(fifo, path, way.owner)?,
                    };
                    return Ok(End::Fd(end));
                }
                (null, _) if is_null(&null)? => return Ok(End::Null),
                (file, kind) => Outlet::to(file, kind)?,
            },
            Target::ForegroundPipe(pipe) if way.direct => {
                return Ok(End::Fd(handed_over(pipe.open()?.0, &pipe.path, way.owner)?));
            }
            target => Outlet::open(target)?,
        };
        let (read, write) = pipe()?;
        way.owner.take(&write)?;
        let what = || format!("cannot watch {name}");
        rustix::io::ioctl_fionbio(&read, true).doing(Kind::Internal, what)?;
        let kept = self.kept.as_mut().map(|kept| kept.keep(&read)).transpose().doing(Kind::Internal, what)?;
        let from = Rc::new(sys::register_fd(File::from(read)).doing(Kind::Internal, what)?);
        let folder = self.folder.as_deref();
        let unread = kept.as_ref().zip(folder).map(|(kept, folder)| Unread::of_new(folder, kept.index));
        let losses = folder.map(|folder| Losses::of(folder, self.lines.progress.len()));
        // A client in the foreground leaves once the process has ended.
        let follow = way.follow && !matches!(target, Target::Foreground(_));
        self.begin(name, from, outlet, Route { log, tail, goes_with_process: false, follow, kept, unread, losses });
        Ok(End::Fd(write))
    }

    /// Names the init that keeps the pipes open.
    pub fn kept_by(&self, init: OwnedFd) {
        if let Some(kept) = &self.kept {
            kept.keeper.set_init(init);
        }
    }

    /// Creates a pipe that is copied into `fifo` until the process is released; returns the process's end.
    fn relay(&mut self, name: &'static str, fifo: File, owner: Owner, released: Released) -> Result<OwnedFd> {
        let (read, write) = pipe()?;
        owner.take(&write)?;
        let (tell, hear) = watch::channel(Progress::default());
        let relay = Relay::new(name, read, fifo, self.lines.process_ended.clone(), released, tell)?;
        self.outputs.push(Pumped::Relay(relay.begin()));
        self.lines.progress.push(hear);
        Ok(write)
    }

    fn begin(&mut self, name: &'static str, from: Rc<AsyncFd<File>>, outlet: Outlet, route: Route) {
        let (invite, guests) = mpsc::unbounded_channel();
        let (tell, hear) = watch::channel(Progress::default());
        let process_ended = self.lines.process_ended.clone();
        self.ending.extend((!route.follow).then(|| hear.clone()));
        let stream = Stream::new(name, from, outlet, guests, route, process_ended, tell);
        self.outputs.push(Pumped::Stream(stream.begin()));
        self.lines.progress.push(hear);
        self.lines.outputs.push(invite);
    }

    /// Creates the process's end of its stdin; keeps the other end if input is fed.
    fn open_input(&mut self, input: &Input, owner: Owner) -> Result<End> {
        let (stdin, fed) = input.open(owner, &self.lines.process_ended, &self.lines.feeds)?;
        self.lines.input = fed;
        Ok(stdin)
    }

    /// Follows the logger that takes the outputs to its end, which comes after the process's.
    pub fn logged_by(&mut self, logging: Logging) {
        self.logger = logging.run_to_end(self.lines.process_ended.clone());
    }

    /// The handles for joining the streams.
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Marks the process as ended and waits until its tail is complete.
    pub async fn finish(&self) {
        self.process_ended.set();
        for stream in &self.lines.progress {
            // An error means that the pump has ended: the tail is as complete as it gets.
            let _ = stream.clone().wait_for(|p| p.tail_whole || p.flushed).await;
        }
    }

    /// Waits until the outputs that end with the process are written or given up: their readers then have all.
    pub async fn passed_on(&self) {
        for stream in &self.ending {
            let _ = stream.clone().wait_for(|p| p.flushed).await;
        }
    }

    /// Waits until all output is written or given up, and the logger has gone.
    pub async fn flushed(&self) {
        for stream in &self.lines.progress {
            let _ = stream.clone().wait_for(|p| p.flushed).await;
        }
        if let Some(logger) = &self.logger {
            logger.gone().await;
        }
    }

    /// Whether all that [`Self::flushed`] waits for has come.
    pub fn are_flushed(&self) -> bool {
        self.lines.progress.iter().all(|stream| stream.borrow().flushed)
            && self.logger.as_ref().is_none_or(Logged::has_gone)
    }
}

impl Lines {
    /// Whether the process has a terminal.
    pub fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Bytes lost so far because their file or reader would not take them.
    pub fn dropped(&self) -> u64 {
        self.progress.iter().map(|p| p.borrow().dropped).sum()
    }

    /// How far each output has come.
    pub fn progress(&self) -> Vec<Progress> {
        self.progress.iter().map(|stream| *stream.borrow()).collect()
    }

    /// Whether the process gets what an attached client writes.
    pub fn take_input(&self) -> bool {
        self.input.is_some()
    }

    /// Connects a client to the process until either leaves.
    ///
    /// # Errors
    /// `WrongState` for input that nothing reads; `BadSpec` for a FIFO that cannot be opened.
    pub fn attach(&self, attachment: &Attachment) -> Result<()> {
        for (target, output) in [&attachment.stdout, &attachment.stderr].into_iter().zip(&self.outputs) {
            if *target != Target::Null {
                // An error means that the output has ended; the FIFO is then closed at once.
                let _ = output.send(Outlet::guest(target)?);
            }
        }
        match (&attachment.stdin, &self.input) {
            (None, _) => Ok(()),
            (Some(path), Some(to)) => input::feed(path, to.clone(), self.process_ended.clone(), &self.feeds),
            (Some(_), None) => Err(Error::new(Kind::WrongState, "its stdin is not open to those who attach")
                .hint("start the task with -i to keep stdin open, or attach with --no-stdin")),
        }
    }

    /// Sets the size of the process's terminal.
    ///
    /// # Errors
    /// `WrongState` when the process has no terminal.
    pub fn resize(&self, size: WindowSize) -> Result<()> {
        match &self.terminal {
            Some(terminal) => terminal.resize(size),
            None => Err(Error::new(Kind::WrongState, "it has no terminal").hint("start it with -t for one")),
        }
    }
}
