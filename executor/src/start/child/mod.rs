//! What runs between clone and execve, for init and execs alike.
//!
//! ```text
//!   init: cgroups ─► maps ─► namespaces ─► mounts ─► (HOOKS … HOOKED) ─► root ─► READY … START ─┐
//!                                                                 ├─► confine ─► execve
//!   exec: cgroups ─► cgroup namespace ────────────────────────────┘
//! ```
//!
//! Init and execs take one path, so that an exec can have neither less protection nor more rights than init. Signal
//! handlers are gone from the start (CLONE_CLEAR_SIGHAND), so none of the shim's ever runs here. Progress and
//! errors go up a close-on-exec pipe: if it closes without a message, the user's program runs. The process leaves
//! by execve or `_exit` only. Must not: touch the parent's state, log, or run a destructor.

mod capabilities;
mod command;
mod confine;
mod descriptors;
mod environment;
pub mod messages;
mod payload;
mod scheduling;
mod terminal;

pub use capabilities::give_up as give_up_capabilities;
pub use confine::{oom_score_adj, set_ids};
pub use descriptors::ChildFds;
pub use messages::{CLOSED, EXECUTES, HOOKED, HOOKS, LEFT, MAPPED, PID, READY, START, tell_error};
pub use payload::{Payload, preserved};
pub use scheduling::first_affinity;

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::reserve::StartMark;
use bowline_sys as sys;
use oci_spec::runtime::Spec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::output::io::{End, Stdio};
use crate::rights::lsm::{Labels, Opened};
use crate::start::hooks::{Container, Point};
use crate::view::memory_policy;
use crate::view::namespaces::Namespaces;
use crate::view::network;
use crate::view::rootfs::{self, Additions, Binds, Sources};
use crate::view::time_namespace;

const READ_ONLY_FOR_HOOKS: &str = "hooks find the host's /usr and /etc read-only in this task; one that writes there \
                                   needs a root of the task's own: --rootfs DIR";

/// What init needs in addition.
pub struct Init<'a> {
    pub spec: &'a Spec,
    pub id: &'a str,
    /// The base of relative paths in the spec.
    pub bundle: &'a Path,
    pub namespaces: &'a Namespaces,
    /// Mount sources that the shim opened, where a new user namespace could not open them.
    pub sources: Option<Sources>,
    /// The user namespace that hides the owners of files in the host view.
    pub nobody: Option<BorrowedFd<'a>>,
    /// The host's mount namespace, if the task shares it.
    pub mounts: Option<BorrowedFd<'a>>,
    /// The folders in which a command without a `/` is looked for before PATH.
    pub command_folders: &'a [PathBuf],
    /// What its root has beyond the configuration.
    pub additions: &'a Additions,
    /// The descriptor that [`MAPPED`] and [`START`] come from.
    pub orders: RawFd,
    /// Where [`START`] comes from, and where it reports then, if its creator leaves.
    pub successors: Option<[RawFd; 2]>,
}

/// Becomes the task's init, or reports why not.
pub fn run_init(payload: &Payload<'_>, init: Init<'_>, report: RawFd) -> ! {
    let report = Cell::new(report);
    let outcome = become_init(payload, init, &report);
    fail(payload, report.get(), outcome)
}

/// Becomes an exec of a task. The process is already in the task's namespaces, except for the cgroup namespace:
/// `cgroup_of` is init, if the task has its own. An exec that `is_apart` makes another one.
pub fn run_exec(
    payload: &Payload<'_>,
    namespaces: &Namespaces,
    cgroup_of: Option<BorrowedFd<'_>>,
    is_apart: bool,
    report: RawFd,
) -> ! {
    fail(payload, report, become_exec(payload, namespaces, cgroup_of, is_apart, report))
}

fn fail(payload: &Payload<'_>, report: RawFd, outcome: Result<Infallible>) -> ! {
    let Err(error) = outcome;
    match payload.last_words {
        Some(words) => words.store(&serde_json::to_vec(&error).unwrap_or_default()),
        None => tell_error(report, &error),
    }
    payload.start_mark.into_iter().for_each(StartMark::unset);
    sys::exit_now(1)
}

/// Whether init waits until its users are mapped, and it has the host's network devices.
pub fn awaits_mapped(spec: &Spec, namespaces: &Namespaces) -> bool {
    namespaces.is_new(libc::CLONE_NEWUSER) || network::devices::are_wanted(spec)
}

fn become_init(payload: &Payload<'_>, init: Init<'_>, report: &Cell<RawFd>) -> Result<Infallible> {
    let Init { spec, id, bundle, namespaces, sources, nobody, mounts, command_folders, additions, orders, successors } =
        init;
    let container = Container { id, bundle, spec };
    let mut sources = sources;
    let labels = begin(payload)?;
    scheduling::run_anywhere();
    if !namespaces.in_user_namespace() {
        oom_score_adj("self", payload.process)?;
    }
    if awaits_mapped(spec, namespaces) {
        await_order(orders, MAPPED)?;
    }
    if namespaces.is_new(libc::CLONE_NEWCGROUP) {
        sys::unshare(libc::CLONE_NEWCGROUP).doing(Kind::Unsupported, || "cannot make a cgroup namespace")?;
    }
    if namespaces.is_new(sys::CLONE_NEWTIME) {
        time_namespace::enter_new(spec)?;
    }
    let is_mapped = namespaces.in_user_namespace() || !sys::in_first_user_namespace();
    let binds = Binds { exact: additions.exact_binds, in_user_namespace: is_mapped };
    let mut sources = match sources.take() {
        Some(sources) => sources,
        None if sys::has_mount_fds() => rootfs::open_sources(spec, bundle, binds, nobody)?,
        None => {
            // With a user namespace, the worker that cloned this process has staged the sources.
            if !namespaces.in_user_namespace() {
                rootfs::stage_sources(spec, bundle, binds)?;
            }
            rootfs::take_up_sources(spec, bundle, binds)?
        }
    };
    rootfs::attach(spec, bundle, &sources)?;
    if namespaces.in_user_namespace() {
        // What is mounted from here on belongs to the task's root.
        confine::set_ids(0, 0, Some(&[][..]).filter(|_| !namespaces.joins(libc::CLONE_NEWUSER)))?;
    }
    if namespaces.makes_ipc_as_root() {
        sys::unshare(libc::CLONE_NEWIPC).doing(Kind::Unsupported, || "cannot make an IPC namespace")?;
    }
    if let Some(size) = additions.ephemeral {
        rootfs::make_ephemeral(&mut sources, size, is_mapped)?;
    }
    if namespaces.is_new(libc::CLONE_NEWNET) {
        network::prepare_new()?;
    }
    // Without a name, leave the namespace alone: it may be the host's.
    if let Some(hostname) = spec.hostname().as_ref().filter(|hostname| !hostname.is_empty()) {
        let set = match rustix::system::sethostname(hostname.as_bytes()) {
            Err(Errno::PERM) if additions.has_default_name => Ok(()),
            set => set,
        };
        set.doing(Kind::BadSpec, || format!("cannot set it to {hostname}"))
            .map_err(|error| error.in_field("hostname"))?;
    }
    if let Some(domain) = spec.domainname().as_ref().filter(|domain| !domain.is_empty()) {
        rustix::system::setdomainname(domain.as_bytes())
            .doing(Kind::BadSpec, || format!("domainname: cannot set it to {domain}"))?;
    }
    let hooks = || {
        if container.has(Point::Prestart) || container.has(Point::CreateRuntime) {
            sys::write_fd(report.get(), &[HOOKS]).doing(Kind::Internal, || "the shim has gone")?;
            await_order(orders, HOOKED)?;
        }
        let env = || payload.process.env().iter().flatten().map(OsString::from).collect();
        let ran = container.run_inside(Point::CreateContainer, &rootfs::path(spec, bundle)?, env, None);
        let sees_host = || spec.mounts().iter().flatten().any(bowline_spec::shows_host);
        // One that is missing has nothing to do with that.
        let may_be_that = |error: &Error| error.kind() != Kind::BadSpec && sees_host();
        ran.map_err(|error| if may_be_that(&error) { error.hint(READ_ONLY_FOR_HOOKS) } else { error })
    };
    let wants_null = payload.stdio.wants_null();
    let entered = rootfs::enter(spec, &sources, is_mapped, mounts, wants_null, additions, hooks)?;
    // Nothing that runs inside may get at the host's mounts.
    mounts.into_iter().for_each(|mounts| sys::close_fd(mounts.as_raw_fd()));
    if let (Some(pty), Some(wish)) = (&entered.terminal, &payload.stdio.terminal) {
        terminal::take(wish, payload.process, pty)?;
        if payload.init.is_none() {
            terminal::control(pty)?;
        }
    }
    if let Some(null) = &entered.null {
        take_null(payload.stdio, null.as_fd())?;
    }
    command::check_folder(payload.process)?;
    let program = command::find(payload.process, command_folders)?;
    confine::set_rlimits(payload.process)?;
    memory_policy::apply(payload.spec)?;
    scheduling::apply(payload.process)?;
    // Their fds are closed with the rest.
    std::mem::forget((sources, entered));
    let also = [report.get(), orders].into_iter().chain(successors.into_iter().flatten());
    close_what_was_used(payload, labels.as_ref(), also);
    // Whoever listens gets the listener while the container is created, as from runc: the filter is loaded by then. An init
    // that its creator leaves has no more rights than the program, as with runc: an exec may come first.
    let early = payload.notify.is_some() || successors.is_some();
    if successors.is_some() {
        // Anybody may end it, as runc's: nobody passes signals on to it.
        sys::exit_on(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]).doing(Kind::Internal, || "cannot handle signals")?;
    }
    let has_hooks = container.has(Point::StartContainer);
    let tell = |byte| sys::write_fd(report.get(), &[byte]).doing(Kind::Internal, || "the shim has gone");
    let mark = || {
        let told = payload.start_mark.map_or(Ok(()), StartMark::set);
        told.doing(Kind::Internal, || "cannot store that the command is executed")
    };
    let held = || {
        tell(READY)?;
        let from = match successors {
            Some([next_orders, next_report]) => {
                // Should the creator die before it has recorded this process, this process ends too.
                await_order(orders, LEFT)?;
                report.set(next_report);
                next_orders
            }
            None => orders,
        };
        await_order(from, START)?;
        // Before a filter is loaded, which may deny it.
        if has_hooks { Ok(()) } else { mark() }
    };
    if !early {
        held()?;
    }
    // These hooks are the image's own: they get no more rights than the program.
    let last = || {
        if early {
            held()?;
        }
        if !has_hooks {
            return Ok(());
        }
        let env = || program.envp().iter().map(|variable| OsString::from_vec(variable.to_bytes().to_vec())).collect();
        // Where the filter is not loaded yet, each hook loads it for itself.
        let filter = payload.filter.filter(|_| confine::filters_last(payload));
        container.run_inside(Point::StartContainer, payload.process.cwd(), env, filter)?;
        // Without a shim the launch has failed: nothing is executed.
        tell(EXECUTES)?;
        mark()
    };
    let outcome = confine::execute(payload, labels.as_ref(), &program, last);
    // Not returned: the filter may deny what the destructors here call.
    fail(payload, report.get(), outcome)
}

fn become_exec(
    payload: &Payload<'_>,
    namespaces: &Namespaces,
    cgroup_of: Option<BorrowedFd<'_>>,
    is_apart: bool,
    report: RawFd,
) -> Result<Infallible> {
    let labels = begin(payload)?;
    payload.entry.close();
    scheduling::last_affinity(payload.process)?;
    // Its root is the task's cgroup too. A task may be allowed no more of them.
    let is_apart = is_apart && sys::unshare(libc::CLONE_NEWCGROUP).is_ok();
    if let Some(init) = cgroup_of.filter(|_| !is_apart) {
        sys::setns(init, libc::CLONE_NEWCGROUP).doing(Kind::Internal, || "cannot join the task's cgroup namespace")?;
    }
    if let Some(wish) = &payload.stdio.terminal {
        if namespaces.in_user_namespace() {
            // The terminal belongs to its maker, who must be a user of the namespace to give it away.
            confine::set_ids(0, 0, None)?;
        }
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = root.doing(Kind::Internal, || "cannot open the task's root")?;
        let pty = rootfs::open_terminal(root.as_fd())?;
        terminal::take(wish, payload.process, &pty)?;
        terminal::control(&pty)?;
    }
    let program = command::find(payload.process, &[])?;
    confine::set_rlimits(payload.process)?;
    memory_policy::apply(payload.spec)?;
    scheduling::apply(payload.process)?;
    let outcome = confine::execute(payload, labels.as_ref(), &program, || Ok(()));
    // Not returned: see `become_init`.
    fail(payload, report, outcome)
}

/// Closes the fds that init has used by now: a container that is created may never be started. It keeps its streams,
/// `also`, and what the steps to come need.
fn close_what_was_used(payload: &Payload<'_>, labels: Option<&Opened<'_>>, also: impl IntoIterator<Item = RawFd>) {
    let mut keep: Vec<RawFd> = also.into_iter().chain(payload.notify.map(|fd| fd.as_raw_fd())).collect();
    keep.extend(payload.preserved());
    keep.extend(labels.into_iter().flat_map(Opened::fds));
    keep.extend(payload.start_mark.map(StartMark::fd));
    if let Some(init) = payload.init {
        keep.extend(init.fds().chain(payload.labels.map(Labels::fd)));
    }
    sys::close_all_but(&mut keep);
}

/// The first steps of init and execs: joins the task's cgroups and begins a session. The process that cloned this
/// one has arranged its fds already.
fn begin<'a>(payload: &Payload<'a>) -> Result<Option<Opened<'a>>> {
    let labels = payload.labels.map(Labels::open).transpose()?;
    // Close the host's /proc. A workload below `bowline-init` opens files of its own there.
    let over = payload.labels.filter(|_| payload.init.is_none());
    over.map(Labels::fd).into_iter().for_each(sys::close_fd);
    sys::default_signals([libc::SIGPIPE]);
    payload.entry.join().doing(Kind::Internal, || format!("cannot join cgroup {}", payload.entry.path()))?;
    rustix::process::setsid().doing(Kind::Internal, || "cannot begin a session")?;
    if !payload.keeps_keyring {
        match &labels {
            Some(labels) => labels.with_key_label(begin_keyring)?,
            None => begin_keyring()?,
        }
    }
    Ok(labels)
}

/// Puts `null`, from init's own root, where [`ChildFds`] had nothing for a stream.
fn take_null(stdio: &Stdio, null: BorrowedFd<'_>) -> Result<()> {
    for (end, number) in [&stdio.stdin, &stdio.stdout, &stdio.stderr].into_iter().zip(0..) {
        if matches!(end, End::Null) {
            sys::place_fd(null, number).doing(Kind::Internal, || "cannot set up the standard streams")?;
        }
    }
    Ok(())
}

fn begin_keyring() -> Result<()> {
    match sys::new_session_keyring() {
        // There is no key service, or this process may not use it: then there is nothing to hide.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)) => Ok(()),
        done => done.doing(Kind::Internal, || "cannot begin a session keyring"),
    }
}

/// Waits for the shim's order. A closed pipe means that the shim has died: this process then ends too.
fn await_order(orders: RawFd, expected: u8) -> Result<()> {
    let mut byte = [0u8];
    match sys::read_fd(orders, &mut byte) {
        Ok(1) if byte[0] == expected => Ok(()),
        Ok(_) => Err(Error::new(Kind::Internal, "the shim has gone")),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => await_order(orders, expected),
        Err(error) => Err(error).doing(Kind::Internal, || "cannot hear from the shim"),
    }
}
