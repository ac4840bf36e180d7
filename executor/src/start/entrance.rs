//! The way into a task for its execs, and for whoever resolves a name there.
//!
//! ```text
//!   init stays where it is ─► setns(2) by its pidfd
//!   it may leave ─► namespaces and root, held from before its program runs ─► setns(2) for each
//!                ─► a later shim ─► those of init now: the recorded ones? ─► held
//!                                                                       └► nobody enters
//! ```
//!
//! A program that may call unshare(2) needs no right to make user and mount namespaces of its own, and to mount its own
//! files over a command or `/etc/passwd` there. Whoever entered these would run it with the rights of an exec. What is
//! held keeps its inode: no other namespace gets that number. Must not: enter anything that the task has made.

use std::fmt::Display;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::handover::Fd;
use bowline_model::liveness::Live;
use bowline_model::record::Identities;
use bowline_spec::UserIds;
use bowline_sys as sys;
use libc::c_int;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::process::worker::{self, Worker};
use crate::rights::seccomp::Filter;
use crate::view::accounts::{self, Wanted};
use crate::view::namespaces::{self, Namespaces};

/// The name of the root among [`Identities`].
const ROOT: &str = "root";

/// The way into one task.
#[derive(Debug, Default)]
pub struct Entrance {
    /// What is held; nothing for an init that stays where it is.
    namespaces: Vec<(c_int, OwnedFd)>,
    /// Its root, where that is not the root of its mount namespace.
    root: Option<OwnedFd>,
    /// What init has left, in words, where nobody else held that.
    left: Option<String>,
}

/// An [`Entrance`], as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    namespaces: Vec<(c_int, Fd)>,
    root: Option<Fd>,
    left: Option<String>,
}

/// Whether the init of a task may leave what it was launched in. `bowline-init` never does.
fn may_leave(filter: Option<&Filter>, is_bowline_init: bool) -> bool {
    !is_bowline_init && !filter.is_some_and(Filter::keeps_namespaces)
}

impl Entrance {
    /// Holds what an init with this pid is in, if it may leave that. Called before it executes its program.
    ///
    /// # Errors
    /// `Internal` where something cannot be opened.
    pub fn of_new(
        pid: i32,
        namespaces: &Namespaces,
        filter: Option<&Filter>,
        is_bowline_init: bool,
    ) -> Result<Entrance> {
        let kinds = if may_leave(filter, is_bowline_init) { namespaces.entered() } else { Vec::new() };
        let held = kinds.into_iter().map(|kind| Ok((kind, open_namespace(pid, kind)?))).collect::<Result<_>>()?;
        // chroot(2) is another matter than unshare(2): filters leave it to capabilities, which a user namespace gives.
        let root = (namespaces.shares_mounts() && !is_bowline_init).then(|| open_root(pid)).transpose()?;
        Ok(Entrance { namespaces: held, root, left: None })
    }

    /// Like [`Entrance::of_new`], for a task whose program runs: nobody enters anything but what was `recorded`.
    ///
    /// # Errors
    /// `Internal` where something cannot be examined.
    pub fn again(
        pid: i32,
        namespaces: &Namespaces,
        filter: Option<&Filter>,
        is_bowline_init: bool,
        recorded: &Identities,
    ) -> Result<Entrance> {
        let found = Entrance::of_new(pid, namespaces, filter, is_bowline_init)?;
        let mut recorded = recorded.clone();
        let users = namespaces::name(libc::CLONE_NEWUSER).to_owned();
        if !namespaces.in_user_namespace() && !recorded.contains_key(&users) {
            // An older bowline records nothing; the shim's own user namespace is known all the same.
            recorded.insert(users, identity(open("self", "ns/user", OFlags::RDONLY)?.as_fd())?);
        }
        let left = left(&found.identities(pid)?, &recorded);
        Ok(Entrance { left, ..found })
    }

    /// What is held of the init with this pid, for the record.
    ///
    /// # Errors
    /// `Internal` where something cannot be examined.
    pub fn identities(&self, pid: i32) -> Result<Identities> {
        let of = |(flag, fd): &(c_int, OwnedFd)| Ok((namespaces::name(*flag).to_owned(), identity(fd.as_fd())?));
        let root = self.root.iter().map(|root| Ok((ROOT.to_owned(), identity(root.as_fd())?)));
        let mut all = self.namespaces.iter().map(of).chain(root).collect::<Result<Identities>>()?;
        if !self.namespaces.is_empty() {
            // Last, and also where it is the host's. An init that has left its user namespace cannot come back: in the
            // recorded one, it was in that while the others were opened. Once nobody holds another one of the recorded
            // namespaces, a new one may get its number, but only an init with rights in its first user namespace
            // could make that.
            let users = open_namespace(pid, libc::CLONE_NEWUSER)?;
            all.insert(namespaces::name(libc::CLONE_NEWUSER).to_owned(), identity(users.as_fd())?);
        }
        Ok(all)
    }

    /// Checks that init has not left what is held, for who works with init itself.
    ///
    /// # Errors
    /// `WrongState` where it has.
    pub fn check_init(&self, pid: i32) -> Result<()> {
        self.check()?;
        let held = self.identities(pid)?;
        let now = held.keys().filter_map(|kind| {
            let flag = self.namespaces.iter().map(|(flag, _)| *flag).find(|flag| namespaces::name(*flag) == kind)?;
            Some(open_namespace(pid, flag).and_then(|fd| Ok((kind.clone(), identity(fd.as_fd())?))))
        });
        match left(&now.collect::<Result<_>>()?, &held) {
            None => Ok(()),
            Some(left) => {
                let message = format!("the first process of the task has left what it was launched in ({left})");
                Err(Error::new(Kind::WrongState, message))
            }
        }
    }

    /// Checks that what was launched can be entered.
    ///
    /// # Errors
    /// `WrongState` where init has left that, and nobody held it.
    pub fn check(&self) -> Result<()> {
        let Some(left) = &self.left else { return Ok(()) };
        Err(refused(left, ", and the shim that held that has died")
            .hint("start the task again; with `init = true` its first process stays where it is"))
    }

    /// Like [`Entrance::check`], for a container that never had a shim.
    ///
    /// # Errors
    /// `WrongState` where init has left what was launched.
    pub fn check_without_shim(&self) -> Result<()> {
        self.left.as_ref().map_or(Ok(()), |left| Err(refused(left, ", and nothing else holds that")))
    }

    /// Enters the task, in a process that has cloned nothing yet: all but its cgroup namespace.
    ///
    /// # Errors
    /// `WrongState` where the task has ended.
    pub fn enter(&self, init: &Live, namespaces: &Namespaces) -> Result<()> {
        let what = || "cannot enter the task's namespaces";
        // Without a mount namespace, the task's root is that of its processes alone.
        let by_init = (namespaces.shares_mounts() && self.root.is_none()).then(|| open_root(init.pid)).transpose()?;
        if namespaces.joins(libc::CLONE_NEWUSER) {
            namespaces::drop_groups()?;
        }
        if self.namespaces.is_empty() {
            match namespaces.exec_flags() {
                0 => {}
                flags => sys::setns(init.pidfd.as_fd(), flags).doing(Kind::WrongState, what)?,
            }
        }
        // The user namespace comes last: the rights to join the others go with it.
        for (flag, fd) in self.namespaces.iter().filter(|(flag, _)| *flag != libc::CLONE_NEWCGROUP) {
            sys::setns(fd.as_fd(), *flag).doing(Kind::WrongState, what)?;
        }
        let root = self.root.as_ref().or(by_init.as_ref());
        root.map_or(Ok(()), |root| namespaces::change_root(root.as_fd())).doing(Kind::WrongState, what)
    }

    /// The cgroup namespace that is held.
    pub fn cgroup(&self) -> Option<BorrowedFd<'_>> {
        self.held(libc::CLONE_NEWCGROUP)
    }

    /// The cgroup namespace of the exec with this pid, which is unreaped, if it is not the task's.
    pub fn own_cgroup_namespace(&self, init: &Live, exec: i32) -> Option<OwnedFd> {
        let own = open_namespace(exec, libc::CLONE_NEWCGROUP).ok()?;
        // An init of which nothing is held stays where it is.
        let tasks = match self.cgroup() {
            Some(held) => identity(held),
            None => open_namespace(init.pid, libc::CLONE_NEWCGROUP).and_then(|fd| identity(fd.as_fd())),
        };
        (identity(own.as_fd()).ok()? != tasks.ok()?).then_some(own)
    }

    /// Has a worker resolve a user by the files of the task's root, whatever root its init has by now.
    ///
    /// # Errors
    /// `WrongState` where the task cannot be entered. The worker's are those of [`accounts::resolve`].
    pub fn resolve(&self, init: &Live, namespaces: &Namespaces, wanted: Wanted<'_>) -> Result<Worker<UserIds>> {
        self.check()?;
        worker::start("a user's name", || {
            if let Some(root) = &self.root {
                return accounts::resolve(root.as_fd(), wanted);
            }
            if namespaces.shares_mounts() {
                return accounts::resolve(open_root(init.pid)?.as_fd(), wanted);
            }
            let what = || "cannot enter the task's mount namespace";
            let own = namespaces::open_own_mounts()?;
            let mounts = self.held(libc::CLONE_NEWNS).unwrap_or(init.pidfd.as_fd());
            sys::setns(mounts, libc::CLONE_NEWNS).doing(Kind::WrongState, what)?;
            // The root of the namespace: that of init may be another one by chroot(2).
            let root = fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).doing(Kind::Internal, what)?;
            // Files are read by the host's /proc.
            sys::setns(own.as_fd(), libc::CLONE_NEWNS).doing(Kind::Internal, || "cannot get back")?;
            accounts::resolve(root.as_fd(), wanted)
        })
    }

    fn held(&self, flag: c_int) -> Option<BorrowedFd<'_>> {
        self.namespaces.iter().find(|(of, _)| *of == flag).map(|(_, fd)| fd.as_fd())
    }

    /// The way in for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed {
            namespaces: self.namespaces.iter().map(|(flag, fd)| (*flag, Fd::of(fd))).collect(),
            root: self.root.as_ref().map(Fd::of),
            left: self.left.clone(),
        }
    }
}

impl Handed {
    /// # Errors
    /// `Damaged` when a descriptor is missing.
    pub fn take(self) -> Result<Entrance> {
        let Handed { namespaces, root, left } = self;
        let namespaces = namespaces.into_iter().map(|(flag, fd)| Ok((flag, fd.take()?))).collect::<Result<_>>()?;
        Ok(Entrance { namespaces, root: root.map(Fd::take).transpose()?, left })
    }
}

/// What of `recorded` is another one now, in words.
fn left(now: &Identities, recorded: &Identities) -> Option<String> {
    let left = now.iter().filter(|(kind, of)| recorded.get(*kind).is_some_and(|recorded| recorded != *of));
    let left: Vec<&str> = left.map(|(kind, _)| kind.as_str()).collect();
    (!left.is_empty()).then(|| left.join(", "))
}

fn refused(left: &str, who_held: &str) -> Error {
    let message = format!("nobody can enter the task: its first process has left what it was launched in ({left})");
    Error::new(Kind::WrongState, message + who_held)
}

/// The namespace of a kind of an init that is unreaped: its pid is its own.
fn open_namespace(pid: i32, kind: c_int) -> Result<OwnedFd> {
    open(pid, &format!("ns/{}", namespaces::file(kind)), OFlags::RDONLY)
}

/// # Errors
/// `WrongState` where the process has ended.
fn open(pid: impl Display, file: &str, access: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/{file}");
    fs::open(&path, access | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        let kind = if matches!(errno, Errno::NOENT | Errno::SRCH) { Kind::WrongState } else { Kind::Internal };
        Error::new(kind, format!("cannot open {path}: {errno}"))
    })
}

fn open_root(pid: i32) -> Result<OwnedFd> {
    open(pid, "root", OFlags::PATH)
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let stat = fs::fstat(fd).doing(Kind::Internal, || "cannot examine what a task was launched in")?;
    Ok((stat.st_dev, stat.st_ino))
}
