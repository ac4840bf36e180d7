//! Upgrades a shim: executes another program in its place, which goes on with its tasks.
//!
//! ```text
//!   come to rest ─► write facts ─► a child of the new program reads them ─► execve ─► take over ─► go on
//!        └──────────────┴─────────────────────┴─ fails ─► wake up: nothing has changed
//! ```
//!
//! The pid, the children, the sockets and the calls stay. A program that cannot read the facts when it is executed
//! executes the old one again. Must not: know what a manager's calls are.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Ended, Image};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::clock::Moment;
use crate::facts::WantedUpgrade;
use crate::handover::{self, Fd};
use crate::program::Program;
use crate::supervise::{Handed, Supervisor};
use crate::{inheritance, sealed, waits, worker};

/// The version of the facts that this program writes.
const FACTS: u32 = 1;

/// The first and the last version of facts that this program reads.
const READABLE: (u32, u32) = (FACTS, FACTS);

/// How long an upgrade waits for the work that is under way.
const BUSY: Duration = Duration::from_secs(10);

/// How long the new program may take to read the facts.
const READING: Duration = Duration::from_secs(10);

/// The number of the new program's descriptor in the child that executes it.
const PROGRAM: RawFd = 3;

/// The flag with the number of the descriptor that has the facts.
pub const TAKE_OVER: &str = "--take-over";
/// The flag with why the new program has executed this one again.
pub const REFUSED: &str = "--refused";
/// The only argument of a program that is to read facts from its stdin, and to print which it reads.
pub const READ_FACTS: &str = "read-facts";

/// What a manager's services hand over: their sockets, connections and open calls.
pub trait Manager {
    /// Their part, as JSON.
    ///
    /// # Errors
    /// Why it cannot be handed over.
    fn hand_over(&self) -> Result<String>;

    /// Whether each open call only waits, and can be made again.
    fn calls_wait(&self) -> bool;
}

/// Everything that a shim hands over.
#[derive(Serialize, Deserialize)]
pub struct Handover {
    facts: u32,
    /// The version of the program that has written this.
    pub version: String,
    /// The descriptors that stay open.
    fds: BTreeSet<RawFd>,
    /// The program that has written this.
    old: Fd,
    /// The tasks and all that belongs to them.
    pub executor: Handed,
    /// What [`Manager::hand_over`] has returned.
    pub manager: String,
}

/// What a program answers that has read facts.
#[derive(Serialize, Deserialize)]
struct Reads {
    /// The first and the last version of facts that it reads.
    reads: (u32, u32),
}

impl Handover {
    /// Takes over what is in the file with this number, and closes all descriptors but those that were handed over.
    /// `is_old` says that this program has handed it over itself, and was executed again.
    ///
    /// # Errors
    /// Does not return where the old program can be executed again; else `Damaged`.
    pub fn take(number: RawFd, is_old: bool) -> Result<Handover> {
        // The tasks run already, and an execve has shown this process to them.
        inheritance::hide()?;
        let mut file =
            File::from(sys::inherited_fd(number).ok_or_else(|| Error::new(Kind::Damaged, "there are no facts"))?);
        let mut text = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut text)).doing(Kind::Internal, || "cannot read the facts")?;
        let handover = match parse(&text) {
            Err(error) if !is_old => return Err(go_back(&file, &text, error)),
            parsed => parsed?,
        };
        let kept = handover.fds.iter().copied().filter(|fd| *fd != handover.old.number());
        sys::close_all_but(&mut kept.collect::<Vec<_>>());
        // Closed by that.
        std::mem::forget(file);
        Ok(handover)
    }
}

fn parse(text: &[u8]) -> Result<Handover> {
    let version: OnlyVersion = serde_json::from_slice(text).doing(Kind::Damaged, || "cannot read the facts")?;
    let (first, last) = READABLE;
    if !(first..=last).contains(&version.facts) {
        let message =
            format!("this program reads facts of version {first} to {last}, not of version {}", version.facts);
        return Err(Error::new(Kind::Unsupported, message));
    }
    serde_json::from_slice(text).doing(Kind::Damaged, || "cannot read the facts")
}

/// What every version of facts begins with.
#[derive(Deserialize)]
struct OnlyVersion {
    facts: u32,
}

/// The parts that a program that cannot read the facts needs to go back.
#[derive(Deserialize)]
struct OnlyOld {
    old: RawFd,
}

/// Executes the old program again; returns only the reason why even that failed.
fn go_back(file: &File, text: &[u8], error: Error) -> Error {
    let old = serde_json::from_slice::<OnlyOld>(text).ok().and_then(|only| sys::inherited_fd(only.old));
    if let (Some(old), Ok(())) = (old, rustix::io::fcntl_setfd(file, FdFlags::empty())) {
        let refused = [REFUSED.to_owned(), error.message().to_owned()];
        let failed = image(file.as_raw_fd(), &refused).execute_file(old.as_fd());
        tracing::error!(error = %failed, "cannot go back to the old program");
    }
    error
}

/// Reads facts from stdin and prints which versions this program reads: what [`READ_FACTS`] asks for.
///
/// # Errors
/// Why it cannot go on with these facts.
pub fn read_facts() -> Result<()> {
    inheritance::hide()?;
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).doing(Kind::Internal, || "cannot read the facts")?;
    let answer = serde_json::to_string(&Reads { reads: READABLE }).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{answer}").and_then(|()| stdout.flush()).doing(Kind::Internal, || "cannot answer")?;
    parse(&text).map(drop)
}

/// Executes another program in the place of this one, and then does not return; or only asks it whether it could take
/// over.
///
/// # Errors
/// Why that is impossible: nothing has changed then.
pub(crate) async fn execute(supervisor: &Rc<Supervisor>, manager: &dyn Manager, wanted: &WantedUpgrade) -> Result<()> {
    let binary = &wanted.program;
    let program = sealed::open(binary)?;
    let _rest = waits::come_to_rest(|| manager.calls_wait(), Moment::now().after(BUSY)).await?;
    let ours = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let ours = ours.doing(Kind::Internal, || "cannot open our own program")?;
    let draft = write(supervisor, manager, &ours)?;
    probe(supervisor, &program, binary, &draft).await?;
    if wanted.dry_run {
        return Ok(());
    }
    // What comes from here on waits for the new program. The loop hears what has come before.
    sys::block_signals(&sys::ALL_SIGNALS);
    tokio::task::yield_now().await;
    // From here on nothing else runs.
    let error = replace(supervisor, manager, &ours, &program);
    sys::block_signals(&[]);
    Err(error.within(format_args!("cannot execute {}", binary.display())))
}

/// Executes `program`; returns only with the reason why that failed.
fn replace(supervisor: &Supervisor, manager: &dyn Manager, ours: &OwnedFd, program: &OwnedFd) -> Error {
    if !waits::is_idle() || supervisor.is_leaving() {
        return Error::new(Kind::WrongState, "the shim has begun something meanwhile").hint("try again");
    }
    let executed = || -> Result<std::convert::Infallible> {
        let file = memory_file(&write(supervisor, manager, ours)?)?;
        let image = image(Fd::of(&file).number(), &[]);
        handover::keep_open(true)?;
        Err(image.execute_file(program.as_fd())).doing(Kind::NotExecutable, || "the kernel refuses it")
    };
    let Err(error) = executed();
    // One that is closed already needs no flag.
    let _ = handover::keep_open(false);
    error
}

/// The facts, as JSON; [`handover::named`] has the descriptors afterwards.
fn write(supervisor: &Supervisor, manager: &dyn Manager, ours: &OwnedFd) -> Result<Vec<u8>> {
    handover::begin();
    let (old, executor, manager) = (Fd::of(ours), supervisor.hand_over()?, manager.hand_over()?);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let handover = Handover { facts: FACTS, version, fds: handover::named(), old, executor, manager };
    serde_json::to_vec(&handover).doing(Kind::Internal, || "cannot write the facts")
}

fn memory_file(text: &[u8]) -> Result<File> {
    let what = || "cannot write the facts";
    let mut file = File::from(memfd_create("facts", MemfdFlags::CLOEXEC).doing(Kind::Internal, what)?);
    file.write_all(text).doing(Kind::Internal, what)?;
    Ok(file)
}

/// Has a child of the new program read the facts.
async fn probe(supervisor: &Supervisor, program: &OwnedFd, binary: &Path, facts: &[u8]) -> Result<()> {
    let refused =
        |why: String| Error::new(Kind::NotExecutable, format!("{} cannot take over: {why}", binary.display()));
    // As the child knows it.
    let path = PathBuf::from(format!("/proc/self/fd/{PROGRAM}"));
    let expecting = supervisor.children.expect();
    let environment = environment().map(OsString::from_vec);
    let probe = Program::new(&path, ["bowline-shim", READ_FACTS], environment)?;
    let probe = probe.reading(facts)?.captured().with_fd(program.as_fd(), PROGRAM);
    let mut started = probe.start().map_err(|error| refused(error.to_string()))?;
    let claim = expecting.claim(started.pid);
    started.executed().await.map_err(|error| refused(error.to_string()))?;
    let ended = async {
        if let Ok(pidfd) = started.pidfd.try_clone() {
            worker::ended(pidfd).await;
        }
    };
    if timeout(READING, ended).await.is_err() {
        started.kill();
        return Err(refused(format!("it has not read the facts in {READING:?}")));
    }
    supervisor.children.sweep();
    let said = started.said();
    match claim.end().map(|end| end.ended) {
        Some(Ended::Exited(0)) => {}
        Some(Ended::Exited(_)) => return Err(refused(last_line(&said, "it refuses the facts"))),
        Some(Ended::Signaled(signal)) => {
            return Err(refused(format!("it was ended by signal {signal} as it read the facts")));
        }
        Some(Ended::Unknown) | None => return Err(refused("how it read the facts is not known".to_owned())),
    }
    let reads: Option<Reads> = said.split(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice(line).ok());
    match reads {
        Some(Reads { reads: (first, last) }) if (first..=last).contains(&FACTS) => Ok(()),
        Some(Reads { reads: (first, last) }) => {
            Err(refused(format!("it reads facts of version {first} to {last}, and this shim writes version {FACTS}")))
        }
        None => Err(refused("it is no shim of bowline".to_owned())),
    }
}

fn last_line(said: &[u8], otherwise: &str) -> String {
    let text = String::from_utf8_lossy(said);
    text.lines().rfind(|line| !line.trim().is_empty()).map_or(otherwise.to_owned(), |line| line.trim().to_owned())
}

/// Our own arguments and environment, for a program that takes over what is in the file `facts`.
fn image(facts: RawFd, besides: &[String]) -> Image {
    let mut ours = std::env::args_os();
    let mut words = Vec::new();
    while let Some(word) = ours.next() {
        if word == TAKE_OVER || word == REFUSED {
            // With its value.
            ours.next();
        } else {
            words.push(word.into_vec());
        }
    }
    words.extend(
        [TAKE_OVER.to_owned(), facts.to_string()].into_iter().chain(besides.iter().cloned()).map(String::into_bytes),
    );
    // Neither can have a NUL, as the kernel has passed both to us.
    let strings = |all: Vec<Vec<u8>>| all.into_iter().filter_map(|one| CString::new(one).ok()).collect();
    Image::new(c"bowline-shim".into(), strings(words), strings(environment().collect()))
}

/// Our environment, as `KEY=value`.
fn environment() -> impl Iterator<Item = Vec<u8>> {
    std::env::vars_os().map(|(key, value)| [key.into_vec(), value.into_vec()].join(&b'='))
}
