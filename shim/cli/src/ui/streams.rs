//! Passes a task's streams through: FIFOs or pipes that the shim opens, and a thread for each that copies to our stdout
//! or stderr, or from our stdin.
//!
//! A thread for an output begins once something comes: most commands are silent on one stream or both, and two threads
//! are 0.1 of the 2.8 ms that an exec takes. A copy ends when the FIFO ends or our own reader is gone. It then closes
//! the FIFO, which tells the shim, and so the task if it is in our foreground. A copy ends in the same way if output
//! cannot be written; the error is reported afterwards.

use std::cell::LazyCell;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use bowline_client::inotify;
use bowline_client::output_pipe::OutputPipe;
use bowline_executor::internal::{Counter, hold_attached, register_fd_for, remove_left_in};
use bowline_model::folder::ATTACHED;
use bowline_model::folder::Folder;
use bowline_model::{Doing, Error, Kind, Result};
use jiff::Timestamp;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mknodat};
use tempfile::TempDir;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::ui::detach::Typing;
use crate::ui::reader::{self, Reader};

/// The bytes copied at a time: the capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// What there is to see of an output whose reader has gone: an error of a pipe, the end of a socket. Typed input of a
/// terminal looks alike, and does no harm but to begin the copy.
const LEFT: Interest = Interest::READABLE.add(Interest::ERROR);

/// Which of a task's outputs are passed on.
#[derive(Debug, Clone, Copy)]
pub struct Outputs {
    /// The task's stdout, or all that it writes to its terminal.
    pub stdout: bool,
    pub stderr: bool,
}

/// What outputs come through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// FIFOs, which any shim can open that sees the task's folder.
    Fifos,
    /// FIFOs where what is read is counted, for a shim that takes the task over.
    CountedFifos,
    /// Pipes, for a shim that [sees us](bowline_client::Shim::sees_us).
    Pipes,
}

/// What one output of a task is written to.
#[derive(Debug, Clone, Default)]
pub struct WritingEnd {
    /// Its path for the shim; empty if the output is not passed on.
    pub path: String,
    /// The inode of a pipe.
    pub inode: Option<u64>,
}

/// The FIFOs or pipes of one attachment, and the copies of what comes through them.
pub struct Streams {
    pub stdout: WritingEnd,
    pub stderr: WritingEnd,
    folder: OwnFolder,
    /// Writing ends of our own: a FIFO does not end when a shim dies, as the next one may open it again, and a pipe is
    /// there for the shim to open.
    kept_open: Vec<OwnedFd>,
    /// The copies to our stdout and stderr that have not begun.
    waiting: [Option<Copying>; 2],
    copies: Vec<JoinHandle<Result<()>>>,
    /// While this is open, a writer may still open an empty FIFO.
    writers_may_come: OwnedFd,
}

impl Streams {
    /// Creates the FIFOs in the task's folder, or the pipes; in that of a task that is not new, removes what killed clients
    /// have left. The receiver fires when stdout can no longer be written,
    /// because its reader is gone or space has run out.
    pub fn attach(
        folder: &Folder,
        wanted: Outputs,
        through: Through,
        is_new: bool,
    ) -> Result<(Streams, oneshot::Receiver<()>)> {
        let what = || format!("cannot make FIFOs in {}", folder.path().display());
        let mut own = OwnFolder::of(folder, !is_new);
        let (no_more, writers_may_come) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
        let mut kept_open = Vec::new();
        let mut prepare = |name: &'static str, output: BorrowedFd<'static>, end: Option<oneshot::Sender<()>>| {
            let (from, written, counter) = if through == Through::Pipes {
                let (read, pipe) = OutputPipe::new().doing(Kind::Internal, || "cannot make a pipe")?;
                rustix::io::ioctl_fionbio(&read, true).doing(Kind::Internal, || "cannot set up a pipe")?;
                let written = WritingEnd { path: pipe.path(), inode: Some(pipe.inode) };
                kept_open.push(pipe.into());
                (File::from(read), written, None)
            } else {
                let path = own.path(name).doing(Kind::Internal, what)?;
                let fifo = fifo(&path, OFlags::RDONLY).doing(Kind::Internal, what)?;
                kept_open.push(File::options().write(true).open(&path).doing(Kind::Internal, what)?.into());
                let written = WritingEnd { path: path.to_string_lossy().into_owned(), inode: None };
                // Without one, the last piece may come twice where a shim is killed.
                let counted = through == Through::CountedFifos && Counter::make(&path).is_ok();
                (fifo, written, counted.then_some(path))
            };
            let no_more = no_more.try_clone().doing(Kind::Internal, what)?;
            let from = register_fd_for(from, Interest::READABLE).doing(Kind::Internal, what)?;
            let reader = match output.try_clone_to_owned().and_then(|fd| register_fd_for(fd, LEFT)) {
                // Nobody has to read from a file.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
                reader => Some(reader.doing(Kind::Internal, || format!("cannot watch {name}"))?),
            };
            Ok::<_, Error>((written, Copying { name, from, counter, no_more, output, reader, end }))
        };
        let (end, unread) = oneshot::channel();
        let stdout = wanted.stdout.then(|| prepare("stdout", rustix::stdio::stdout(), Some(end))).transpose()?;
        let stderr = wanted.stderr.then(|| prepare("stderr", rustix::stdio::stderr(), None)).transpose()?;
        let ((stdout, out), (stderr, err)) = (stdout.unzip(), stderr.unzip());
        if is_new && !wanted.stdout && !wanted.stderr {
            // A shim that takes the task over removes it at once where nobody is attached.
            own.path("").doing(Kind::Internal, what)?;
        }
        let (stdout, stderr) = (stdout.unwrap_or_default(), stderr.unwrap_or_default());
        let (waiting, copies) = ([out, err], Vec::new());
        Ok((Streams { stdout, stderr, folder: own, kept_open, waiting, copies, writers_may_come }, unread))
    }

    /// Begins each copy once it has something to do. Never returns; may be dropped at any moment.
    pub async fn copy(&mut self) -> Infallible {
        loop {
            let [stdout, stderr] = &mut self.waiting;
            let due = tokio::select! {
                due = due(stdout) => due,
                due = due(stderr) => due,
            };
            self.copies.extend(due.map(Copying::begin));
        }
    }

    /// A name that no other attachment to the task has.
    pub fn name(&self) -> String {
        self.folder.name.clone()
    }

    /// Creates the FIFO that our stdin goes to.
    pub fn input(&mut self) -> Result<InputFifo> {
        let path = self.folder.path("stdin").doing(Kind::Internal, || "cannot make a folder for a FIFO")?;
        let what = || format!("cannot make {}", path.display());
        // Open it for writing and reading, so that it has both ends from the start: a reader that opens it then waits
        // for bytes instead of seeing its end.
        let placeholder = fifo(&path, OFlags::RDWR).doing(Kind::Internal, what)?;
        let opened = inotify::begin(CreateFlags::empty(), what)?;
        inotify::add(&opened, &path, WatchFlags::OPEN, what)?;
        Ok(InputFifo { path, placeholder, opened })
    }

    /// Copies until the shim has closed both streams.
    ///
    /// # Errors
    /// `Internal` if some output could not be written.
    pub fn until_closed(mut self) -> Result<()> {
        drop(self.kept_open);
        let waiting = self.waiting.into_iter().flatten();
        self.copies.extend(waiting.filter(|copying| !copying.has_ended()).map(Copying::begin));
        join(self.copies)
    }

    /// Copies what has been written so far, and no more.
    ///
    /// # Errors
    /// See [`Streams::until_closed`].
    pub fn what_is_there(mut self) -> Result<()> {
        let waiting = self.waiting.into_iter().flatten();
        self.copies.extend(waiting.filter(Copying::is_due).map(Copying::begin));
        drop(self.writers_may_come);
        join(self.copies)
    }
}

/// A folder of ours in the task's folder, once something is in it.
struct OwnFolder {
    within: PathBuf,
    /// Names us, and this attachment among all of the task's: the pid lets `gc` recognise what a killed process has left.
    name: String,
    /// Whether others may have left theirs.
    clears: bool,
    made: Option<(TempDir, File)>,
}

impl OwnFolder {
    fn of(folder: &Folder, clears: bool) -> OwnFolder {
        let name = format!("{ATTACHED}{}-{:x}", std::process::id(), Timestamp::now().as_nanosecond());
        OwnFolder { within: folder.path().to_owned(), name, clears, made: None }
    }

    /// The path of what has this name in it.
    fn path(&mut self, name: &str) -> io::Result<PathBuf> {
        let made = match self.made.take() {
            Some(made) => made,
            None => {
                if self.clears {
                    remove_left_in(&self.within);
                }
                let folder = tempfile::Builder::new().prefix(&self.name).rand_bytes(0).tempdir_in(&self.within)?;
                let held = hold_attached(folder.path())?;
                (folder, held)
            }
        };
        Ok(self.made.insert(made).0.path().join(name))
    }
}

/// A copy of one output that has not begun.
struct Copying {
    name: &'static str,
    /// The reading end of a FIFO or pipe.
    from: AsyncFd<File>,
    /// The path that the counter of what is read goes by, where one does.
    counter: Option<PathBuf>,
    no_more: OwnedFd,
    output: BorrowedFd<'static>,
    /// `output`, if its reader can go away.
    reader: Option<AsyncFd<OwnedFd>>,
    /// Gets a message when `output` can no longer be written.
    end: Option<oneshot::Sender<()>>,
}

impl Copying {
    /// What poll(2) sees of it now. An error is left to the copy.
    fn seen(&self) -> PollFlags {
        let mut watched = [PollFd::new(self.from.get_ref(), PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).map_or(PollFlags::IN, |_| watched[0].revents())
    }

    /// Whether there is something to read.
    fn is_due(&self) -> bool {
        self.seen().contains(PollFlags::IN)
    }

    /// Whether nothing will come any more.
    fn has_ended(&self) -> bool {
        self.seen() == PollFlags::HUP
    }

    /// Waits until there is something to read, or nobody reads `output` any more.
    async fn due(&self) {
        let gone = async {
            match &self.reader {
                Some(reader) => drop(reader.ready(LEFT).await),
                None => std::future::pending().await,
            }
        };
        // An error leaves the decision to the copy.
        tokio::select! {
            _ = self.from.readable() => {}
            () = gone => {}
        }
    }

    /// Copies in a thread of its own, as a write may block.
    fn begin(self) -> JoinHandle<Result<()>> {
        let Copying { name, from, counter, no_more, output, reader, end } = self;
        drop(reader);
        let from = from.into_inner();
        std::thread::spawn(move || {
            // Mapped once there is something to count.
            let counter = LazyCell::new(|| counter.as_deref().and_then(Counter::of));
            let copied = copy(from, || counter.as_ref(), &no_more, output);
            if let (false, Some(end)) = (matches!(copied, Ok(Reader::There)), end) {
                let _ = end.send(());
            }
            copied.doing(Kind::Internal, || format!("cannot write to {name}")).map(drop)
        })
    }
}

/// Takes the copy once it has something to do; never returns without one.
async fn due(waiting: &mut Option<Copying>) -> Option<Copying> {
    match waiting {
        Some(copying) => copying.due().await,
        None => std::future::pending().await,
    }
    waiting.take()
}

/// The FIFO for our stdin, before anything reads it.
pub struct InputFifo {
    path: PathBuf,
    placeholder: File,
    opened: OwnedFd,
}

impl InputFifo {
    pub fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Copies our stdin, from when the task opens the FIFO until either ends. `typing` recognises the detach keys; the
    /// receiver fires once they were typed.
    pub fn forward(self, typing: Option<Typing>) -> oneshot::Receiver<()> {
        let (left, leave) = oneshot::channel();
        std::thread::spawn(move || {
            // An error means that nobody reads the FIFO any more, or that our own stdin cannot be read: the task's
            // stdin then ends too.
            if let Ok(true) = self.opened().and_then(|fifo| forward(fifo, typing)) {
                let _ = left.send(());
            }
        });
        leave
    }

    /// Waits for a reader, then closes our own reading end.
    fn opened(self) -> io::Result<File> {
        let mut watched = [PollFd::new(&self.opened, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
        // This open does not wait, as the placeholder still reads.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let fifo = File::options().write(true).custom_flags(flags).open(&self.path)?;
        rustix::io::ioctl_fionbio(&fifo, false)?;
        drop(self.placeholder);
        Ok(fifo)
    }
}

/// Copies stdin to its end. Returns true if the detach keys came first.
fn forward(mut fifo: File, mut typing: Option<Typing>) -> io::Result<bool> {
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut passed = Vec::new();
    loop {
        // Read without the standard library's buffer: what it reads ahead would be lost.
        buffer.clear();
        match rustix::io::read(io::stdin(), spare_capacity(&mut buffer)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let Some(typing) = &mut typing else {
            fifo.write_all(&buffer)?;
            continue;
        };
        passed.clear();
        let left = typing.pass(&buffer, &mut passed);
        fifo.write_all(&passed)?;
        if left {
            return Ok(true);
        }
    }
}

fn join(copies: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    let panicked = |_| Err(Error::new(Kind::Internal, "cannot pass output on: a thread panicked"));
    let mut all = Ok(());
    for copy in copies {
        all = all.and(copy.join().unwrap_or_else(panicked));
    }
    all
}

/// Creates a FIFO and opens it without waiting for its other end.
fn fifo(path: &Path, access: OFlags) -> io::Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Copies until the FIFO ends or our own reader is gone. A terminal that has hung up does not end the copy: SIGHUP
/// decides what to do, and until then output is read and dropped.
fn copy<'c>(
    fifo: File,
    counter: impl Fn() -> Option<&'c Counter>,
    no_more: &OwnedFd,
    output: BorrowedFd<'_>,
) -> io::Result<Reader> {
    // Its memory is new only as far as something is read into it.
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut hung_up = false;
    let mut due = None;
    loop {
        // A FIFO that nobody has opened yet is neither readable nor hung up. Watching `output` detects a reader that is
        // gone even while nothing is written.
        let mut watched = [
            PollFd::new(&fifo, PollFlags::IN),
            PollFd::from_borrowed_fd(no_more.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(output, PollFlags::empty()),
        ];
        let count = if hung_up { 2 } else { 3 };
        if poll(&mut watched[..count], None).is_err() {
            continue;
        }
        let (comes, last) = (watched[0].revents().contains(PollFlags::IN), !watched[1].revents().is_empty());
        let mut reader = if hung_up { Reader::There } else { Reader::after(watched[2].revents()) };
        if reader == Reader::There {
            buffer.clear();
            let mut read = || Ok(rustix::io::read(&fifo, spare_capacity(&mut buffer))?);
            let length = match comes.then(&counter).flatten() {
                Some(counter) => counter.count(read),
                None => read(),
            };
            let length = match length {
                Ok(0) => return Ok(Reader::There),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !last => continue,
                Err(_) => return Ok(Reader::There),
            };
            if !hung_up {
                reader = reader::write_all(output, &buffer)?;
            }
            if last && is_last(&fifo, &mut due, length) {
                return Ok(reader);
            }
        }
        if reader == Reader::Gone {
            if !is_terminal(output) {
                return Ok(Reader::Gone);
            }
            hung_up = true;
        }
    }
}

/// Whether everything has been read that was in the FIFO when the copy was told to finish: a process that still writes
/// may never stop. `due` holds the bytes left of that, and `length` bytes were just read.
fn is_last(fifo: &File, due: &mut Option<u64>, length: usize) -> bool {
    let left = match due {
        Some(due) => due.saturating_sub(length as u64),
        None => rustix::io::ioctl_fionread(fifo).unwrap_or(0),
    };
    *due = Some(left);
    left == 0
}

/// Whether `output` is a terminal. Goes by the file type, as a terminal that has hung up answers nothing else.
fn is_terminal(output: BorrowedFd<'_>) -> bool {
    fstat(output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}
