//! Starts a shim: a separate process that outlives the one that starts it.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bowline_executor::pages::FRUGAL;
use bowline_executor::systemd::Systemd;
use bowline_executor::watch::MARKER;
use bowline_executor::{Doing, Error, Folder, Kind, Lock, Result, Sealed, ShimCgroup, hand_down, open_sealed};
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

/// Where bowline's programs are.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    shim: Option<PathBuf>,
}

impl Programs {
    /// With the shim's binary at `shim`.
    pub fn with_shim(shim: PathBuf) -> Programs {
        Programs { shim: Some(shim) }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Nothing: it leaves when the child's stdin closes, unless it was asked for something.
    Empty,
    /// The task in its folder, whose shim died, after so many events: see [`crate::adopt`].
    Adopting(u64),
}

impl Begin {
    fn flags(self) -> Vec<String> {
        match self {
            Begin::Empty => Vec::new(),
            Begin::Adopting(events) => vec!["--adopt".to_owned(), events.to_string()],
        }
    }
}

/// Starts a shim for `folder` from the binary at `binary`; its socket accepts connections when this returns. The shim is
/// our child until we end.
pub fn spawn_from(binary: &Path, folder: &Folder, lock: Lock, shim_cgroup: &ShimCgroup, begin: Begin) -> Result<Child> {
    let what = || format!("cannot start a shim for {}", folder.path().display());
    let listener = listen(folder)?;
    let Sealed { program, mount } = open_sealed(binary)?;
    let log = folder.file("shim.log");
    let log = File::options()
        .append(true)
        .create(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&log)
        .doing(Kind::Internal, || format!("cannot open {}", log.display()))?;

    // Move the fds out of the way of the numbers that the shim expects.
    let above = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, 10);
    let listener = above(listener.into()).doing(Kind::Internal, what)?;
    let lock = above(lock.into_fd()).doing(Kind::Internal, what)?;
    let program = above(program).doing(Kind::Internal, what)?;
    let numbers = [&listener, &lock].map(|fd| fd.as_raw_fd().to_string());
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    hand_down(&mut command, vec![listener, lock]);
    let started = command
        .arg0("bowline-shim")
        .arg("--folder")
        .arg(folder.path())
        .args(["--shim-cgroup", &shim_cgroup.to_string(), "--listener-fd", &numbers[0], "--lock-fd", &numbers[1]])
        .arg("--bowline")
        .arg(bowline(binary))
        .arg("--init")
        .arg(init(binary))
        .args(begin.flags())
        .env_clear()
        .envs(std::env::vars_os().filter(|(key, _)| HANDED_DOWN.iter().any(|name| key == name)))
        .env(MARKER, folder.name().as_str())
        .env(FRUGAL.0, FRUGAL.1)
        // The end of this pipe tells the shim that we are gone.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .doing(Kind::Internal, what);
    drop(mount);
    started
}

/// Listens at the folder's socket. Binds under another name first, so that whoever finds the socket can connect: a
/// socket that is bound but not listening yet refuses, like the socket of a gone shim.
fn listen(folder: &Folder) -> Result<UnixListener> {
    let socket = folder.socket();
    let what = || format!("cannot listen at {}", socket.display());
    let aside = folder.file("shim");
    // Left by whoever was killed in between.
    let _ = std::fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside).doing(Kind::Internal, what)?;
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
