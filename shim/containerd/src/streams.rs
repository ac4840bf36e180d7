//! The streams that containerd connects to a process, and the ends that the shim keeps open.
//!
//! ```text
//!   init: process ─► FIFO ─► containerd's client      the shim holds the other
//!         process ◄─ FIFO ◄─ containerd's client      end of each as well
//!   exec: process ─► pipe ─► shim ─► FIFO ─► containerd's client
//! ```
//!
//! Init gets a FIFO directly: nobody copies its output, a full FIFO blocks it, and nothing is lost while containerd is
//! away. The reading end that the shim holds protects the process from EPIPE, and preserves its output until the
//! process is deleted, which waits until that is read. All that holds init's FIFO ends with init. What an exec leaves running does not: the executor
//! copies an exec's output, so that Delete can end it. The writing end of stdin prevents end of file before CloseIO.
//! The executor runs a `binary://` logger. A process never gets a `file://`: the executor writes the file, from a pipe.
//!
//! No process starts before its output has a reader: a client that opens a FIFO after the last writer has gone would
//! wait forever.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_executor::internal::{Ready, Release, until_read};
use bowline_executor::{Input, Logger, Released, Target};
use bowline_model::json::handover::Fd;
use bowline_model::{Doing, Error, Kind, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

/// How long Delete waits for a client that does not read what an exec has written, as other shims do.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// How long Delete waits for a client that does not read what init has written.
const UNREAD: Duration = Duration::from_secs(1);

/// The pause between two looks at what is unread, at first and at most.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// A process's streams, as containerd names them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// The path of a FIFO; empty if the process has no stdin.
    pub stdin: String,
    /// A FIFO, a URI, or empty.
    pub stdout: String,
    /// A FIFO, a URI, or empty; always empty with a terminal.
    pub stderr: String,
    pub terminal: bool,
}

/// The ends that the shim holds open for a process.
#[derive(Debug, Default)]
pub struct Ends {
    stdin: Option<OwnedFd>,
    outputs: Vec<OwnedFd>,
    /// Ends what the executor copies into the FIFOs.
    copied: Option<Release>,
}

impl Ends {
    /// Closes the shim's end of stdin, so that it ends once its other writers have closed it.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Has the outputs end when these ends are let go, whatever still runs; for the executor.
    pub fn releases(&mut self) -> Released {
        self.copied.get_or_insert_with(Release::of_new).released()
    }

    /// Lets the process go: the FIFOs of its outputs close as soon as what it has written is in them. Returns then, or
    /// when a client has not read for a while; the client still gets what it reads later.
    pub async fn release(self) {
        let Ends { stdin, outputs, copied } = self;
        drop((stdin, outputs));
        if let Some(copied) = copied {
            let _ = timeout(LAST_OUTPUT, copied.release()).await;
        }
    }

    /// Waits until a client has read what is in the FIFOs, a second at most: what is unread goes with the last end, and a
    /// client may be about to open its own.
    pub async fn until_read(&self) {
        let is_unread = |end: &OwnedFd| rustix::io::ioctl_fionread(end).is_ok_and(|unread| unread > 0);
        let all_read = async {
            let mut pause = LOOKS[0];
            // Poll, because the kernel tells no reader of what another one has read.
            while self.outputs.iter().any(is_unread) {
                sleep(pause).await;
                pause = (pause * 2).min(LOOKS[1]);
            }
        };
        let _ = timeout(UNREAD, all_read).await;
    }

    /// The ends for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed {
            stdin: self.stdin.as_ref().map(Fd::of),
            outputs: self.outputs.iter().map(Fd::of).collect(),
            copied: self.copied.as_ref().map(Release::number),
        }
    }
}

/// The ends of a process, as a shim hands them over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    stdin: Option<Fd>,
    outputs: Vec<Fd>,
    copied: Option<u64>,
}

impl Handed {
    /// # Errors
    /// `Damaged` when one is missing.
    pub fn take(self) -> Result<Ends> {
        Ok(Ends {
            stdin: self.stdin.map(Fd::take).transpose()?,
            outputs: self.outputs.into_iter().map(Fd::take).collect::<Result<_>>()?,
            copied: self.copied.map(Release::again),
        })
    }
}

/// A process's streams, as the executor takes them.
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Input,
    pub stdout: Target,
    pub stderr: Target,
    /// The program that takes stdout and stderr instead.
    pub logger: Option<Logger>,
}

impl Io {
    /// Waits for readers of stdout and stderr where these are FIFOs. Returns writing ends, so that the readers find a
    /// writer until the process has its own ends, which begins without a reader too.
    pub async fn readers(&self) -> Vec<OwnedFd> {
        until_read([&self.stdout, &self.stderr].into_iter().filter_map(|text| fifo_of(text))).await.0
    }

    /// Opens the ends that the shim holds, so that the executor can open the others at once.
    ///
    /// # Errors
    /// `NotFound` for a FIFO that does not exist, `BadSpec` for a file that is not a FIFO.
    pub fn open(&self, container: &str, namespace: &str) -> Result<(Streams, Ends)> {
        let mut ends = Ends::default();
        let mut streams = Streams::default();
        if !self.stdin.is_empty() {
            let path = PathBuf::from(&self.stdin);
            // A FIFO opened for both directions never waits for the other side.
            ends.stdin = Some(open_fifo("stdin", &path, File::options().read(true).write(true))?);
            streams.stdin = Input::Path(path);
        }
        streams.logger = logger(&self.stdout, container, namespace)?;
        if streams.logger.is_some() {
            return Ok((streams, ends));
        }
        streams.stdout = output("stdout", &self.stdout, &mut ends)?;
        if !self.terminal {
            streams.stderr = output("stderr", &self.stderr, &mut ends)?;
        }
        Ok((streams, ends))
    }
}

/// The logger that a URI names: `binary:///path?key=value` runs it with `key` and `value` (containerd's runtime v2,
/// "Logging").
fn logger(uri: &str, container: &str, namespace: &str) -> Result<Option<Logger>> {
    let (ready, rest) = match uri.split_once("://") {
        Some(("binary", rest)) => (Ready::Closed, rest),
        Some(("binary-v2", rest)) => (Ready::Byte, rest),
        _ => return Ok(None),
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let program = percent_encoding::percent_decode_str(path).decode_utf8();
    let program = PathBuf::from(program.doing(Kind::BadSpec, || format!("stdout: {uri} is not text"))?.as_ref());
    if !program.is_absolute() {
        return Err(Error::new(Kind::BadSpec, format!("stdout: the logger of {uri} is not absolute")));
    }
    let pairs = form_urlencoded::parse(query.as_bytes());
    let args = pairs.flat_map(|(key, value)| [key.into_owned(), value.into_owned()]);
    let env = vec![format!("CONTAINER_ID={container}"), format!("CONTAINER_NAMESPACE={namespace}")];
    Ok(Some(Logger { program, args: args.filter(|arg| !arg.is_empty()).collect(), env, ready }))
}

/// The path of the FIFO that an output names, if it names one.
fn fifo_of(text: &str) -> Option<&Path> {
    let path = match text.split_once("://") {
        None => text,
        Some(("fifo", path)) => path,
        Some(_) => return None,
    };
    Some(Path::new(path)).filter(|path| !path.as_os_str().is_empty())
}

fn output(name: &str, text: &str, ends: &mut Ends) -> Result<Target> {
    if let Some(path) = fifo_of(text) {
        ends.outputs.push(open_fifo(name, path, File::options().read(true))?);
        return Ok(Target::Path(path.to_owned()));
    }
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    match scheme {
        // The name is empty.
        "" | "fifo" => Ok(Target::Null),
        "file" => {
            let path = PathBuf::from(rest);
            make_file(name, &path)?;
            Ok(Target::Path(path))
        }
        _ => Err(Error::new(Kind::Unsupported, format!("{name}: {scheme}:// is not supported"))
            .hint("a FIFO, file:// or binary:// is")),
    }
}

fn open_fifo(name: &str, path: &Path, options: &mut OpenOptions) -> Result<OwnedFd> {
    let what = || format!("{name}: cannot open {}", path.display());
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let fifo = opened.doing(Kind::NotFound, what)?;
    if !fifo.metadata().doing(Kind::Internal, what)?.file_type().is_fifo() {
        return Err(Error::new(Kind::BadSpec, format!("{name}: {} is not a FIFO", path.display())));
    }
    Ok(fifo.into())
}

/// Creates a file for appending, and its parent folders.
fn make_file(name: &str, path: &Path) -> Result<()> {
    let what = || format!("{name}: cannot create {}", path.display());
    if !path.is_absolute() {
        return Err(Error::new(Kind::BadSpec, format!("{name}: {} is not absolute", path.display())));
    }
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder).doing(Kind::BadSpec, what)?;
    }
    // Non-blocking, because a FIFO without a reader would hang here. The executor opens the file again, and refuses a
    // symlink: through one, a file would be created anywhere.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let flags = flags.bits().cast_signed();
    match File::options().append(true).create(true).mode(0o644).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Ok(()),
        opened => opened.doing(Kind::BadSpec, what).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    fn fifo(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
    }

    #[test]
    fn nothing_named_is_nothing_open() {
        let (streams, ends) = Io::default().open("c", "n").expect("nothing to do");
        assert_eq!((streams.stdin, streams.stdout, streams.stderr), (Input::Null, Target::Null, Target::Null));
        assert!(ends.stdin.is_none() && ends.outputs.is_empty());
    }

    #[test]
    fn a_fifo_is_held_open_whoever_comes_and_goes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out");
        fifo(&path);
        let io = Io { stdout: path.display().to_string(), ..Io::default() };
        let (streams, ends) = io.open("c", "n").expect("opened");
        assert_eq!(streams.stdout, Target::Path(path.clone()));
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let writer = File::options().write(true).custom_flags(nonblocking).open(&path);
        assert!(writer.is_ok(), "it has a reader: {writer:?}");
        drop(ends);
        let writer = File::options().write(true).custom_flags(nonblocking).open(&path);
        assert!(writer.is_err(), "it has none any more");
    }

    #[tokio::test]
    async fn a_reader_is_waited_for_and_finds_a_writer() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out");
        fifo(&path);
        let nobodys = Io { stdout: "file:///nowhere".to_owned(), ..Io::default() };
        assert!(nobodys.readers().await.is_empty());
        let io = Io { stdout: format!("fifo://{}", path.display()), ..Io::default() };
        let mut readers = std::pin::pin!(io.readers());
        let pause = tokio::time::sleep(Duration::from_millis(50));
        tokio::select! {
            _ = &mut readers => panic!("nobody reads"),
            () = pause => {}
        }
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let reader = File::options().read(true).custom_flags(nonblocking).open(&path).expect("a FIFO");
        let writers = readers.await;
        assert_eq!(writers.len(), 1);
        let mut byte = [0];
        assert_eq!(rustix::io::read(&reader, &mut byte), Err(Errno::AGAIN), "it has a writer");
        drop(writers);
        assert_eq!(rustix::io::read(&reader, &mut byte), Ok(0));
    }

    #[test]
    fn what_is_missing_or_no_fifo_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let missing = Io { stdin: dir.path().join("none").display().to_string(), ..Io::default() };
        assert_eq!(missing.open("c", "n").expect_err("missing").kind(), Kind::NotFound);
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        let file = Io { stdout: file.display().to_string(), ..Io::default() };
        assert_eq!(file.open("c", "n").expect_err("a file").kind(), Kind::BadSpec);
        let odd = Io { stderr: "npipe:////./pipe".to_owned(), ..Io::default() };
        assert_eq!(odd.open("c", "n").expect_err("unknown").kind(), Kind::Unsupported);
    }

    #[test]
    fn a_file_gets_its_folders() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a/b/log");
        let io = Io { stdout: format!("file://{}", path.display()), ..Io::default() };
        let (streams, _) = io.open("c", "n").expect("made");
        assert_eq!(streams.stdout, Target::Path(path.clone()));
        assert!(path.is_file());
    }
}
