//! Passing a task's streams through: FIFOs that the shim opens, and a thread
//! for each that copies to our own stdout or stderr, or from our stdin.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use bowline_executor::{ATTACHED, Doing, Folder, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, inotify, mknodat};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::detach::Typing;

/// Copied at a time, in bytes: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// The FIFOs of one attachment, being read.
pub struct Streams {
    /// Where the shim writes stdout to.
    pub stdout: String,
    /// Where the shim writes stderr to; nowhere from a terminal.
    pub stderr: String,
    folder: TempDir,
    copies: Vec<JoinHandle<()>>,
    /// While it is open, an empty FIFO may still be opened by its writer.
    writers_may_come: OwnedFd,
}

impl Streams {
    /// Makes the FIFOs in the task's folder, and copies whatever comes. A
    /// terminal has one stream.
    pub fn attach(folder: &Folder, terminal: bool) -> Result<Streams> {
        let what = || format!("cannot make FIFOs in {}", folder.path().display());
        // By whose pid `gc` knows what is left of one that was killed.
        let prefix = format!("{ATTACHED}{}-", std::process::id());
        let own = tempfile::Builder::new().prefix(&prefix).tempdir_in(folder.path()).doing(Kind::Internal, what)?;
        let (no_more, writers_may_come) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
        let mut copies = Vec::new();
        let mut begin = |name: &str, output: Box<dyn Write + Send>| -> Result<String> {
            let path = own.path().join(name);
            let fifo = fifo(&path, OFlags::RDONLY).doing(Kind::Internal, what)?;
            let no_more = no_more.try_clone().doing(Kind::Internal, what)?;
            copies.push(std::thread::spawn(move || copy(fifo, &no_more, output)));
            Ok(path.to_string_lossy().into_owned())
        };
        let stdout = begin("stdout", Box::new(io::stdout()))?;
        let stderr = if terminal { String::new() } else { begin("stderr", Box::new(io::stderr()))? };
        Ok(Streams { stdout, stderr, folder: own, copies, writers_may_come })
    }

    /// A name that no other attachment to the task has.
    pub fn name(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Makes the FIFO that our stdin goes to.
    pub fn input(&self) -> Result<InputFifo> {
        let path = self.folder.path().join("stdin");
        let what = || format!("cannot make {}", path.display());
        // Readable too, so that it has a writer and a reader from the start:
        // whoever opens it to read waits for bytes instead of finding its end.
        let placeholder = fifo(&path, OFlags::RDWR).doing(Kind::Internal, what)?;
        let opened = inotify::init(inotify::CreateFlags::CLOEXEC).doing(Kind::Internal, what)?;
        inotify::add_watch(&opened, &path, inotify::WatchFlags::OPEN).doing(Kind::Internal, what)?;
        Ok(InputFifo { path, placeholder, opened })
    }

    /// Copies on until the shim has closed both streams.
    pub fn until_closed(self) {
        join(self.copies);
    }

    /// Copies what has been written so far, and no more.
    pub fn what_is_there(self) {
        drop(self.writers_may_come);
        join(self.copies);
    }
}

/// A FIFO for our stdin, before anybody reads it.
pub struct InputFifo {
    path: PathBuf,
    placeholder: File,
    opened: OwnedFd,
}

impl InputFifo {
    /// Where it is.
    pub fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Copies our stdin, from when the task has opened the FIFO until either
    /// ends. `typing` says what of it are the keys to leave; the answer comes
    /// once they have been typed.
    pub fn forward(self, typing: Option<Typing>) -> oneshot::Receiver<()> {
        let (left, leave) = oneshot::channel();
        std::thread::spawn(move || {
            // An error means that nobody reads it any more, or that our own
            // stdin has none: the task's then ends too.
            if let Ok(true) = self.opened().and_then(|fifo| forward(fifo, typing)) {
                let _ = left.send(());
            }
        });
        leave
    }

    /// Waits for its reader, and gives up being one.
    fn opened(self) -> io::Result<File> {
        let mut watched = [PollFd::new(&self.opened, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
        // Does not wait: the placeholder still reads.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let fifo = File::options().write(true).custom_flags(flags).open(&self.path)?;
        rustix::io::ioctl_fionbio(&fifo, false)?;
        drop(self.placeholder);
        Ok(fifo)
    }
}

/// Copies stdin to its end; true if the keys to leave came first.
fn forward(mut fifo: File, mut typing: Option<Typing>) -> io::Result<bool> {
    let mut buffer = vec![0u8; CHUNK];
    let mut passed = Vec::new();
    loop {
        // Not by std's buffer: what it has read ahead would be lost.
        let length = match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(length) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Some(typing) = &mut typing else {
            fifo.write_all(&buffer[..length])?;
            continue;
        };
        passed.clear();
        let left = typing.pass(&buffer[..length], &mut passed);
        fifo.write_all(&passed)?;
        if left {
            return Ok(true);
        }
    }
}

fn join(copies: Vec<JoinHandle<()>>) {
    for copy in copies {
        // It panicked: what it wrote is written.
        let _ = copy.join();
    }
}

/// Makes a FIFO and opens it without waiting for its other end.
fn fifo(path: &Path, access: OFlags) -> io::Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn copy(mut fifo: File, no_more: &OwnedFd, mut output: Box<dyn Write + Send>) {
    let mut buffer = vec![0u8; CHUNK];
    loop {
        // A FIFO that nobody has opened yet is neither readable nor hung up.
        let mut watched = [PollFd::new(&fifo, PollFlags::IN), PollFd::from_borrowed_fd(no_more.as_fd(), PollFlags::IN)];
        if poll(&mut watched, None).is_err() {
            continue;
        }
        let last = !watched[1].revents().is_empty();
        match fifo.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let written = output.write_all(&buffer[..length]).and_then(|()| output.flush());
                if written.is_err() {
                    // Our own reader has gone: closing the FIFO tells the shim.
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if last {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
