//! The program `bowline-init`, which is the first process of a task above its workload.
//!
//! ```text
//!   shim ─clone─► child ─fork─► workload
//!                   └ execve ─► bowline-init ─► status file, and a byte where it keeps output
//! ```
//!
//! It keeps the output pipes open while no shim reads them, and stores how the workload has ended, so that both outlive
//! the shim. Must not: be given a right that the workload lacks, or anything of the host's but its own files.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{Ended, Image};
use rustix::fs::{FileType, Mode, OFlags};

use crate::folder::Folder;
use crate::io::pipe;
use crate::{sealed, trust};

/// The name in lists of processes.
const NAME: &str = "bowline-init";

/// What `bowline-init` is handed, until it runs.
#[derive(Debug)]
pub struct InitProgram {
    binary: OwnedFd,
    status: File,
    notify: OwnedFd,
    kept: Vec<OwnedFd>,
}

impl InitProgram {
    /// Prepares the program at `binary` for the task of `folder`, to keep the reading ends `kept`. Returns the end of a
    /// pipe that becomes readable when the workload has ended and output is unread.
    ///
    /// # Errors
    /// `Internal` where the program is missing or the folder cannot be written to.
    pub fn prepare(binary: &Path, folder: &Folder, kept: Vec<OwnedFd>) -> Result<(InitProgram, OwnedFd)> {
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
        Ok((InitProgram { binary, status, notify, kept }, hear))
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
        let words = words.map(|word| std::ffi::CString::new(word).unwrap_or_default());
        let argv = words.chain(shown.argv().iter().cloned()).collect();
        Image::new(c"bowline-init".into(), argv, Vec::new())
    }
}

/// What a running `bowline-init` keeps for a shim to come.
#[derive(Debug, Default)]
pub struct Kept {
    /// The end of a pipe that becomes readable when the workload has ended and output is unread.
    pub notify: Option<OwnedFd>,
    /// A reading end of each output, in their order; `None` for one that was closed.
    pub outputs: Vec<Option<OwnedFd>>,
}

/// Opens what the `bowline-init` with this pid keeps; its command line says by which numbers.
///
/// # Errors
/// `Internal` when the process has another command line.
pub fn reopen(pid: i32) -> Result<Kept> {
    let what = || format!("cannot find what {NAME} {pid} keeps");
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).doing(Kind::Internal, what)?;
    let words = line.split(|byte| *byte == 0).skip(1).take_while(|word| *word != b"--");
    let numbers: Option<Vec<RawFd>> = words.map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect();
    match numbers.as_deref() {
        Some([_, _, notify, outputs @ ..]) => Ok(Kept {
            notify: open_pipe(pid, *notify),
            outputs: outputs.iter().map(|fd| open_pipe(pid, *fd)).collect(),
        }),
        // It has ended, and has no command line any more.
        Some([]) if line.is_empty() => Ok(Kept::default()),
        Some(_) | None => Err(Error::new(Kind::Internal, what())),
    }
}

/// Opens another reading end of the pipe that process `pid` has as `fd`; `None` when that is no pipe.
fn open_pipe(pid: i32, fd: RawFd) -> Option<OwnedFd> {
    // Not opened before it is known what it is: opening anything else may have an effect, or wait.
    let path = rustix::fs::open(format!("/proc/{pid}/fd/{fd}"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&path).ok()?.st_mode);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::open(format!("/proc/self/fd/{}", path.as_raw_fd()), flags, Mode::empty()).ok();
    (kind == FileType::Fifo).then(open).flatten()
}

/// How the workload of the task in `folder` has ended, if that is known: its init has stored it.
pub fn workload_ended(folder: &Folder) -> Option<Ended> {
    let stored = trust::read(&folder.status()).ok()?;
    let number = u64::from_ne_bytes(stored.get(..bowline_init::PAGE)?.try_into().ok()?);
    let status = ExitStatus::from_raw(bowline_init::status(number)?);
    Some(match status.signal() {
        Some(signal) => Ended::Signaled(signal),
        None => Ended::Exited(status.code().unwrap_or_default()),
    })
}
