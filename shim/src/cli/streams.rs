//! Passing a task's output through: FIFOs that the shim writes to, and a
//! thread for each that copies to our own stdout or stderr.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::JoinHandle;

use bowline_executor::{Doing, Folder, Kind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

/// The FIFOs of one attachment, being read.
pub struct Streams {
    /// Where the shim writes stdout to.
    pub stdout: String,
    /// Where the shim writes stderr to.
    pub stderr: String,
    _folder: TempDir,
    copies: Vec<JoinHandle<()>>,
    /// While it is open, an empty FIFO may still be opened by its writer.
    writers_may_come: OwnedFd,
}

impl Streams {
    /// Makes the FIFOs in the task's folder, and copies whatever comes.
    pub fn attach(folder: &Folder) -> Result<Streams> {
        let what = || format!("cannot make FIFOs in {}", folder.path().display());
        let own = tempfile::Builder::new().prefix("attach-").tempdir_in(folder.path()).doing(Kind::Internal, what)?;
        let (no_more, writers_may_come) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
        let mut copies = Vec::new();
        let mut paths = Vec::new();
        let outputs: [(&str, Box<dyn Write + Send>); 2] =
            [("stdout", Box::new(io::stdout())), ("stderr", Box::new(io::stderr()))];
        for (name, output) in outputs {
            let path = own.path().join(name);
            let fifo = fifo(&path).doing(Kind::Internal, what)?;
            let no_more = no_more.try_clone().doing(Kind::Internal, what)?;
            copies.push(std::thread::spawn(move || copy(fifo, &no_more, output)));
            paths.push(path.to_string_lossy().into_owned());
        }
        let (Some(stderr), Some(stdout)) = (paths.pop(), paths.pop()) else { unreachable!("two were pushed") };
        Ok(Streams { stdout, stderr, _folder: own, copies, writers_may_come })
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

fn join(copies: Vec<JoinHandle<()>>) {
    for copy in copies {
        // It panicked: what it wrote is written.
        let _ = copy.join();
    }
}

/// Makes a FIFO and opens its reading end without waiting for a writer.
fn fifo(path: &Path) -> io::Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    File::options().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)
}

fn copy(mut fifo: File, no_more: &OwnedFd, mut output: Box<dyn Write + Send>) {
    let mut buffer = vec![0u8; 64 * 1024];
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
