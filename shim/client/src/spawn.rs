//! Starts a shim: a separate process that outlives the one that starts it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_executor::ShimCgroup;
use bowline_executor::internal::page_release::FRUGAL;
use bowline_executor::internal::{Sealed, hand_down, open_sealed};
use bowline_executor::systemd::Systemd;
use bowline_model::folder::EventCounts;
use bowline_model::folder::{Folder, Lock};
use bowline_model::watch::MARKER;
use bowline_model::{Doing, Error, Kind, Result};
use rustix::fs::OFlags;

/// The environment variables that the shim inherits.
const HANDED_DOWN: &[&str] = &[
    "BOWLINE_LOG",
    // The address of the bus that leads to systemd.
    "DBUS_SYSTEM_BUS_ADDRESS",
    #[cfg(feature = "absent")]
    "BOWLINE_ABSENT",
    #[cfg(feature = "remade")]
    "BOWLINE_REMADE",
];

/// The paths of bowline's programs, and what is known of the shim's binary.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    shim: Option<PathBuf>,
    /// What is known of the shim's binary, for a program that starts many.
    known: Option<Arc<Mutex<Option<Binary>>>>,
    /// How many sockets of ours, from descriptor 3 on, a shim that is started for a task hands to its command.
    pub(crate) sockets: u32,
}

/// A shim's binary from which shims were started.
#[derive(Debug)]
struct Binary {
    version: FileVersion,
    /// Its copy that nobody can change.
    sealed: Arc<Sealed>,
    /// Whether a shim that was started from it has said that it serves what this library needs.
    serves: bool,
}

impl Binary {
    fn is(&self, sealed: &Arc<Sealed>) -> bool {
        Arc::ptr_eq(&self.sealed, sealed)
    }
}

/// Which file it is, and that it was not written since: device, inode, size, and the time of its last change.
type FileVersion = (u64, u64, u64, (i64, i64));

impl Programs {
    /// With the shim's binary at `shim`.
    pub fn with_shim(shim: PathBuf) -> Programs {
        Programs { shim: Some(shim), ..Programs::default() }
    }

    /// Like these, for a program that starts many shims: what is known of their binary is kept from one to the next,
    /// until another is installed.
    pub fn for_many(self) -> Programs {
        Programs { known: Some(Arc::default()), ..self }
    }

    /// Like these, for a task whose command gets the descriptors from 3 on, this many: the sockets of sd_listen_fds(3), which
    /// are not close-on-exec.
    pub fn handing_on(self, sockets: u32) -> Programs {
        Programs { sockets, ..self }
    }

    /// The copy of the shim's binary at `binary` that nobody can change.
    pub(crate) fn sealed(&self, binary: &Path) -> Result<Arc<Sealed>> {
        let Some(mut known) = self.known() else { return open_sealed(binary).map(Arc::new) };
        let version = file_version(binary)?;
        if let Some(known) = known.as_ref().filter(|known| known.version == version) {
            return Ok(known.sealed.clone());
        }
        let sealed = Arc::new(open_sealed(binary)?);
        *known = Some(Binary { version, sealed: sealed.clone(), serves: false });
        Ok(sealed)
    }

    /// Whether a shim from the copy `sealed` has said that it serves what this library needs.
    pub(crate) fn is_known_to_serve(&self, sealed: &Arc<Sealed>) -> bool {
        self.known().is_some_and(|known| known.as_ref().is_some_and(|known| known.serves && known.is(sealed)))
    }

    /// Records that a shim from the copy `sealed` has said that it serves what this library needs.
    pub(crate) fn serves(&self, sealed: &Arc<Sealed>) {
        let mut known = self.known();
        if let Some(known) = known.as_mut().and_then(|known| known.as_mut()).filter(|known| known.is(sealed)) {
            known.serves = true;
        }
    }

    /// Whether what is known of the binary is kept.
    pub(crate) fn are_for_many(&self) -> bool {
        self.known.is_some()
    }

    fn known(&self) -> Option<MutexGuard<'_, Option<Binary>>> {
        self.known.as_ref().map(|known| known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The shim's binary: the one that was named, else the one beside our own binary, else the first in the PATH.
    ///
    /// # Errors
    /// `Internal` when there is none.
    pub fn shim(&self) -> Result<PathBuf> {
        let named = match &self.shim {
            Some(named) => named.clone(),
            None => beside_or_in_path(&ourselves()?, "bowline-shim"),
        };
        if named.is_file() {
            return Ok(named);
        }
        Err(Error::new(Kind::Internal, format!("cannot find {}", named.display()))
            .hint("bowline and bowline-shim are installed side by side; install both"))
    }

    /// The binary of containerd's shim, which is beside our own binary or in the PATH.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn containerd_shim(&self) -> Result<PathBuf> {
        let named = beside_or_in_path(&ourselves()?, "containerd-shim-bowline-v1");
        if named.is_file() {
            return Ok(named);
        }
        Err(Error::new(Kind::NotFound, format!("cannot find {}", named.display()))
            .hint("install it beside bowline, or name it with --shim"))
    }

    /// The binary of Nomad's task driver, which is beside our own binary or in the PATH; `None` where it is missing.
    pub fn nomad_driver(&self) -> Option<PathBuf> {
        Some(beside_or_in_path(&ourselves().ok()?, "nomad-driver-bowline")).filter(|path| path.is_file())
    }

    /// `bowline-init`, which a shim looks for beside its own binary and in the PATH; `None` where it is missing.
    pub fn init(&self) -> Option<PathBuf> {
        self.shim().ok().map(|shim| init(&shim)).filter(|path| path.is_file())
    }

    /// Access to systemd for a program that is not a shim and cleans up after one.
    pub fn systemd(&self) -> Result<Systemd> {
        let beside = self.shim.clone().map_or_else(ourselves, Ok)?;
        Ok(Systemd::by(bowline(&beside)))
    }
}

/// What a new shim begins with.
#[derive(Debug)]
pub enum Begin {
    /// Nothing but this many sockets: it leaves when the child's stdin closes, unless it was asked for something. Before it
    /// ends it may say there what the removal of its task has left.
    Empty(u32),
    /// What is in its folder, whose shim died: see `adopt`. At this end, its stdin, it says why it could not.
    Adopting(EventCounts, UnixStream),
}

impl Begin {
    /// The flags for it, what becomes the shim's stdin, and our end of that, if it is not the caller's.
    fn flags_and_stdin(self) -> std::io::Result<(Vec<String>, Stdio, Option<ChildStdin>)> {
        match self {
            // The end of this socket tells the shim that we are gone.
            Begin::Empty(sockets) => {
                let (ours, its) = UnixStream::pair()?;
                let flags = if sockets == 0 { Vec::new() } else { vec!["--sockets".to_owned(), sockets.to_string()] };
                Ok((flags, OwnedFd::from(its).into(), Some(OwnedFd::from(ours).into())))
            }
            Begin::Adopting(events, stdin) => {
                let events: Vec<String> = events.iter().map(|(id, count)| format!("{id}={count}")).collect();
                Ok((vec!["--adopt".to_owned(), events.join(",")], OwnedFd::from(stdin).into(), None))
            }
        }
    }
}

/// Starts a shim for `folder` from the binary at `binary`; its socket accepts connections when this returns. The shim is
/// our child until we end.
pub fn spawn_from(binary: &Path, folder: &Folder, lock: Lock, shim_cgroup: &ShimCgroup, begin: Begin) -> Result<Child> {
    // Closed once the shim runs: see `Sealed::mount`.
    spawn(&open_sealed(binary)?, binary, folder, lock, shim_cgroup, begin)
}

/// Like [`spawn_from`], from the copy `sealed` of the binary.
pub(crate) fn spawn(
    sealed: &Sealed,
    binary: &Path,
    folder: &Folder,
    lock: Lock,
    shim_cgroup: &ShimCgroup,
    begin: Begin,
) -> Result<Child> {
    let what = || format!("cannot start a shim for {}", folder.path().display());
    let listener = listen(folder)?;
    let log = folder.file("shim.log");
    let log = File::options()
        .append(true)
        .create(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&log)
        .doing(Kind::Internal, || format!("cannot open {}", log.display()))?;

    // Move the fds out of the way of the numbers that the shim expects.
    let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 10);
    let listener = above(&listener.into()).doing(Kind::Internal, what)?;
    let lock = above(&lock.into_fd()).doing(Kind::Internal, what)?;
    let program = above(&sealed.program).doing(Kind::Internal, what)?;
    let numbers = [&listener, &lock].map(|fd| fd.as_raw_fd().to_string());
    let (flags, stdin, ours) = begin.flags_and_stdin().doing(Kind::Internal, what)?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command
        .arg0("bowline-shim")
        .arg("--folder")
        .arg(folder.path())
        .args(["--shim-cgroup", &shim_cgroup.to_string(), "--listener-fd", &numbers[0], "--lock-fd", &numbers[1]])
        .arg("--bowline")
        .arg(bowline(binary))
        .arg("--init")
        .arg(init(binary))
        .args(flags)
        .env_clear()
        .envs(std::env::vars_os().filter(|(key, _)| HANDED_DOWN.iter().any(|name| key == name)))
        .env(MARKER, folder.name().as_str())
        .env(FRUGAL.0, FRUGAL.1)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(log);
    let handed = hand_down(&mut command, vec![listener, lock]).doing(Kind::Internal, what)?;
    let started = command.spawn().doing(Kind::Internal, what);
    drop(handed);
    started.map(|mut child| {
        child.stdin = ours;
        child
    })
}

fn file_version(binary: &Path) -> Result<FileVersion> {
    let meta = std::fs::metadata(binary).doing(Kind::Internal, || format!("cannot look at {}", binary.display()))?;
    Ok((meta.dev(), meta.ino(), meta.len(), (meta.ctime(), meta.ctime_nsec())))
}

/// Listens at the folder's socket, whose lock the caller holds. Binds under another name first, so that whoever finds the socket can connect: a
/// socket that is bound but not listening yet refuses, like the socket of a gone shim.
fn listen(folder: &Folder) -> Result<UnixListener> {
    let socket = folder.socket();
    let what = || format!("cannot listen at {}", socket.display());
    let aside = folder.file("shim");
    // Left by whoever was killed in between.
    let _ = std::fs::remove_file(&aside);
    let bound = UnixListener::bind(&aside).or_else(|error| {
        // The disk may have room for one alone. Who holds the lock may remove what a dead shim has left.
        std::fs::remove_file(&socket).map_err(|_| error)?;
        UnixListener::bind(&aside)
    });
    let listener = bound.doing(Kind::Internal, what)?;
    std::fs::rename(&aside, &socket).doing(Kind::Internal, what)?;
    Ok(listener)
}

/// The path of our own binary.
pub fn ourselves() -> Result<PathBuf> {
    std::env::current_exe().doing(Kind::Internal, || "cannot find our own binary")
}

/// The path of `bowline` for a shim whose binary is at `shim`: beside it, else in the PATH, else beside it although
/// missing. The shim runs from a sealed copy and cannot find `bowline` itself. A path, so that an upgrade takes effect.
pub fn bowline(shim: &Path) -> PathBuf {
    beside_or_in_path(shim, "bowline")
}

/// The path of `bowline-init` for a shim whose binary is at `shim`, as [`bowline`] finds its own.
fn init(shim: &Path) -> PathBuf {
    beside_or_in_path(shim, "bowline-init")
}

/// Where the program `name` is: beside `program`, else in the PATH, else beside it although missing.
fn beside_or_in_path(program: &Path, name: &str) -> PathBuf {
    let beside = program.with_file_name(name);
    if beside.is_file() {
        return beside;
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).filter(|folder| folder.is_absolute()).map(|f| f.join(name));
    found.find(|path| path.is_file()).unwrap_or(beside)
}

/// Access to systemd for one of bowline's own programs that is not a shim and cleans up after one.
pub fn systemd() -> Result<Systemd> {
    Programs::default().systemd()
}
