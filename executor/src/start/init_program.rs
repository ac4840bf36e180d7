//! The program `bowline-init`, which is the first process of a task above its workload.
//!
//! ```text
//!   shim ─clone─► child ─fork─► workload
//!                   └ execve ─► bowline-init ─► status file, and a byte where it keeps output
//! ```
//!
//! It keeps the output pipes open while no shim reads them, and stores how the workload has ended, so that both outlive
//! the shim, as do secret variables, which are its environment. Must not: be given a right that the workload lacks, or anything of the host's but its own files.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::{Folder, stored_end};
use bowline_model::json::handover::Fd;
use bowline_model::trust;
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended, Image};
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::output::io::pipe;
use crate::process::sealed;

/// The name in lists of processes.
const NAME: &str = "bowline-init";

/// What `bowline-init` is handed, until it runs.
#[derive(Debug)]
pub struct InitProgram {
    binary: OwnedFd,
    status: File,
    notify: OwnedFd,
    kept: Vec<OwnedFd>,
    /// The variables that it keeps, in its own environment: no file has them, and no record.
    secret: Vec<CString>,
}

/// Where the shim learns of the workload's end. Open from the launch on: the end of a task needs no descriptor.
#[derive(Debug)]
pub struct InitWatch {
    status: File,
    notify: AsyncFd<File>,
}

impl InitProgram {
    /// Prepares the program at `binary` for the task of `folder`, to keep the reading ends `kept` and the `secret`
    /// variables.
    ///
    /// # Errors
    /// `Internal` where the program is missing or the folder cannot be written to.
    pub fn prepare(
        binary: &Path,
        folder: &Folder,
        kept: Vec<OwnedFd>,
        secret: &[String],
    ) -> Result<(InitProgram, InitWatch)> {
        let missing = || format!("cannot use {}", binary.display());
        let opened = sealed::open_small(binary);
        let hint = match &opened {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "set the sysctl vm.memfd_noexec below 2, or do without by `init = false`"
            }
            _ => "install bowline-init beside bowline-shim, or do without by `init = false`",
        };
        let opened = opened.doing(Kind::Internal, missing);
        let binary = opened.map_err(|error| error.hint(hint))?;
        let path = folder.status();
        let opened = trust::open(File::options().read(true).write(true).create(true).truncate(true), &path);
        let status = opened.and_then(|mut file| {
            // Takes the room: init only stores into the file's memory.
            file.write_all(&[0; bowline_init::PAGE]).map(|()| file)
        });
        let status = status.doing(Kind::Internal, || format!("cannot write {}", path.display()))?;
        let (hear, notify) = pipe()?;
        let watch = InitWatch::new(status.try_clone().doing(Kind::Internal, || "cannot open a file twice")?, hear)?;
        // One with a NUL cannot be the workload's either.
        let secret = secret.iter().map(|variable| CString::new(variable.as_str()).unwrap_or_default()).collect();
        Ok((InitProgram { binary, status, notify, kept, secret }, watch))
    }

    /// The descriptors that the program needs, by number.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.binary.as_raw_fd()).chain(self.inherited().map(|fd| fd.as_raw_fd()))
    }

    fn inherited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.status.as_fd(), self.notify.as_fd()].into_iter().chain(self.kept.iter().map(|fd| fd.as_fd()))
    }

    /// Executes the program above `workload`, a child of the calling process; returns only with the reason why that
    /// failed. Lists of processes show the arguments of `shown`.
    pub fn execute(&self, workload: i32, shown: &Image) -> Error {
        let handed = self.inherited().try_for_each(|fd| rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()));
        let error = match handed {
            Ok(()) => self.image(workload, shown).execute_file(self.binary.as_fd()),
            Err(errno) => errno.into(),
        };
        Error::new(Kind::Internal, format!("cannot run {NAME}: {error}"))
    }

    fn image(&self, workload: i32, shown: &Image) -> Image {
        let numbers = std::iter::once(workload).chain(self.inherited().map(|fd| fd.as_raw_fd()));
        let words =
            [NAME.to_owned()].into_iter().chain(numbers.map(|number| number.to_string())).chain(["--".to_owned()]);
        // Digits and dashes have no NUL.
        let words = words.map(|word| CString::new(word).unwrap_or_default());
        let argv = words.chain(shown.argv().iter().cloned()).collect();
        Image::new(c"bowline-init".into(), argv, self.secret.clone())
    }
}

/// An [`InitWatch`], as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    status: Fd,
    notify: Fd,
}

impl Handed {
    pub fn take(self) -> Result<InitWatch> {
        InitWatch::new(File::from(self.status.take()?), self.notify.take()?)
    }
}

impl InitWatch {
    /// Prepares the watch for the program that replaces the shim.
    pub fn hand_over(&self) -> Handed {
        Handed { status: Fd::of(&self.status), notify: Fd::of(self.notify.get_ref()) }
    }

    fn new(status: File, notify: OwnedFd) -> Result<InitWatch> {
        let notify = sys::register_fd_for(File::from(notify), Interest::READABLE);
        Ok(InitWatch { status, notify: notify.doing(Kind::Internal, || "cannot watch a pipe")? })
    }

    /// Waits until the workload has ended and output is unread, or init has ended, perhaps before it is reaped.
    pub async fn changed(&self) {
        let _ = self.notify.readable().await;
    }

    /// How the workload has ended, if it has and init has stored it.
    pub fn workload_ended(&self) -> Option<Ended> {
        stored_end(&self.status)
    }
}

/// What a running `bowline-init` keeps for a shim to come.
#[derive(Debug, Default)]
pub struct Kept {
    /// Where the shim learns of the workload's end.
    pub watch: Option<InitWatch>,
    /// A reading end of each output, in their order; `None` for one that was closed.
    pub outputs: Vec<Option<OwnedFd>>,
}

/// Opens what the `bowline-init` with this pid keeps for the task of `folder`; its command line says by which numbers.
///
/// # Errors
/// `Internal` when the process has another command line, or the task's status cannot be read.
pub fn reopen(pid: i32, folder: &Folder) -> Result<Kept> {
    let line = read_of(pid, "cmdline")?;
    let words = line.split(|byte| *byte == 0).skip(1).take_while(|word| *word != b"--");
    let numbers: Option<Vec<RawFd>> = words.map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect();
    match numbers.as_deref() {
        Some([_, _, notify, outputs @ ..]) => Ok(Kept {
            watch: open_pipe(pid, *notify)?.map(|notify| InitWatch::new(folder.open_status()?, notify)).transpose()?,
            outputs: outputs.iter().map(|fd| open_pipe(pid, *fd)).collect::<Result<_>>()?,
        }),
        // It has ended, and has no command line any more.
        Some([]) if line.is_empty() => Ok(Kept::default()),
        // It ends, and has kept the one that it was forked with, the shim's, until now.
        Some(_) | None if ends(pid) => Ok(Kept::default()),
        Some(_) | None => Err(Error::new(Kind::Internal, format!("process {pid} is no {NAME}"))),
    }
}

fn ends(pid: i32) -> bool {
    proc_stat::read(pid).as_deref().and_then(ProcStat::parse).is_none_or(|stat| stat.ends())
}

/// Whether a process has a command line: one that executes `bowline-init` has none for a moment, nor has one that has
/// ended.
///
/// # Errors
/// `Internal` when that cannot be read.
pub fn has_command_line(pid: i32) -> Result<bool> {
    Ok(!read_of(pid, "cmdline")?.is_empty())
}

/// The secret variables that the `bowline-init` with this pid keeps. Nobody but root can read them there.
///
/// # Errors
/// `Internal` when they cannot be read.
pub fn kept_secrets(pid: i32) -> Result<Vec<String>> {
    let kept = read_of(pid, "environ")?;
    let variables = kept.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
    Ok(variables.map(|variable| String::from_utf8_lossy(variable).into_owned()).collect())
}

/// A file of the `bowline-init` with this pid; empty once that has ended.
fn read_of(pid: i32, file: &str) -> Result<Vec<u8>> {
    let path = format!("/proc/{pid}/{file}");
    match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(Vec::new()),
        read => read.doing(Kind::Internal, || format!("cannot read {path} of a task's {NAME}")),
    }
}

/// Opens another reading end of the pipe that process `pid` has as `fd`; `None` when that is no pipe, or has gone.
fn open_pipe(pid: i32, fd: RawFd) -> Result<Option<OwnedFd>> {
    let open = || {
        // Not opened before it is known what it is: opening anything else may have an effect, or wait.
        let path = rustix::fs::open(format!("/proc/{pid}/fd/{fd}"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&path)?.st_mode) != FileType::Fifo {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/self/fd/{}", path.as_raw_fd()), flags, Mode::empty()).map(Some)
    };
    let opened = open().map_err(io::Error::from);
    sys::unless_gone(opened).doing(Kind::Internal, || format!("cannot open pipe {fd} of a task's {NAME}"))
}
