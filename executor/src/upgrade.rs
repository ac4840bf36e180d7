//! Upgrades a shim: executes another program in its place, which goes on with its tasks.
//!
//! ```text
//!   a child of the new program reads facts ─► come to rest ─► write facts ─► execve ─► take over ─► go on
//!                                  └─ fails ───────┴─────────────┴────────────┴─► wake up: nothing has changed
//! ```
//!
//! The pid, the children, the sockets and the calls stay. A program that cannot read the facts when it is executed
//! executes the old one again. Callers are answered until the shim rests, which takes some milliseconds. Must not: know
//! what a manager's calls are.

#[cfg(test)]
mod of_each_version;
mod versions;

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
use bowline_model::clock::Moment;
use bowline_model::json::handover::{self, Fd};
use bowline_sys::proc_stat::{self, ProcStat};
use bowline_sys::{self as sys, Ended, Image};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::FdFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::facts::WantedUpgrade;
use crate::process::inheritance;
use crate::process::program::{Program, Started};
use crate::process::sealed;
use crate::process::worker;
use crate::supervise::{Handed, Supervisor};
use crate::waits;

/// How long an upgrade waits for the work that is under way.
const BUSY: Duration = Duration::from_secs(10);

/// How long callers may go unanswered while the shim comes to rest: containerd waits two seconds for a task's state.
const UNANSWERED: Duration = Duration::from_secs(1);

/// How much of the processor the new program may take to read the facts, and how long it may do nothing meanwhile. A busy
/// machine lets it wait for the processor or the disk for longer.
const READING: Duration = Duration::from_secs(10);

/// How long it may take on the busiest machine.
const READING_AT_MOST: Duration = Duration::from_secs(300);

/// The number of the new program's descriptor in the child that executes it.
const PROGRAM: RawFd = 3;

/// The flag with the number of the descriptor that has the facts.
pub const TAKE_OVER: &str = "--take-over";
/// The flag with why the new program has executed this one again.
pub const REFUSED: &str = "--refused";
/// The only argument of a program that reads facts from its stdin and prints which versions of them it reads.
pub const READ_FACTS: &str = "read-facts";

/// The hint where the program is not one that can take over from this shim.
const NAME_THE_SHIM: &str = "install bowline whole, or name the shim: `--shim FILE`";

/// What a manager's services hand over: their sockets, connections and open calls.
pub trait Manager {
    /// See [`ManagerPart::MANAGER`].
    fn name(&self) -> &'static str;

    /// Their part, as JSON, which the new program reads as its [`ManagerPart`].
    ///
    /// # Errors
    /// Why it cannot be handed over.
    fn hand_over(&self) -> Result<String>;

    /// Whether each open call only waits, and can be made again.
    fn calls_wait(&self) -> bool;
}

/// What [`Manager::hand_over`] has written, as the new program reads it.
pub trait ManagerPart: DeserializeOwned {
    /// The manager whose shim this is. A shim of another one cannot take over.
    const MANAGER: &'static str;
}

/// What a shim has handed over, with its manager's part `M`.
pub struct Handover<M> {
    /// The tasks and all that belongs to them.
    pub executor: Box<Handed>,
    /// The sockets, connections and open calls.
    pub manager: M,
}

/// Everything that a shim hands over, as it is written. The first four fields are in every version.
#[derive(Serialize, Deserialize)]
struct Facts {
    /// The version of all this.
    facts: u32,
    /// The version of the program that has written this.
    version: String,
    /// The descriptors that stay open.
    fds: BTreeSet<RawFd>,
    /// The program that has written this.
    old: Fd,
    executor: Box<Handed>,
    /// What [`Manager::hand_over`] has returned.
    manager: String,
}

/// What a program answers that is asked to read facts.
#[derive(Serialize, Deserialize)]
struct Answer {
    /// The first and the last version of facts that it reads.
    reads: (u32, u32),
    /// The manager whose shim it is; a program of before this was answered leaves it out.
    #[serde(default)]
    manager: Option<String>,
}

impl<M: ManagerPart> Handover<M> {
    /// Takes over what is in the file with this number, and closes all descriptors but those that were handed over.
    /// `is_old` says that this program has handed it over itself, and was executed again.
    ///
    /// # Errors
    /// Does not return where the old program can be executed again; else `Damaged`.
    pub fn take(number: RawFd, is_old: bool) -> Result<Handover<M>> {
        // The tasks run already, and an execve has shown this process to them.
        inheritance::hide()?;
        let mut file =
            File::from(sys::inherited_fd(number).ok_or_else(|| Error::new(Kind::Damaged, "there are no facts"))?);
        let mut text = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut text)).doing(Kind::Internal, || "cannot read the facts")?;
        let (facts, manager) = match parse(&text).and_then(may_go_on) {
            Err(error) if !is_old => return Err(go_back(&file, &text, error)),
            parsed => parsed?,
        };
        let kept = facts.fds.iter().copied().filter(|fd| *fd != facts.old.number());
        sys::close_all_but(&mut kept.collect::<Vec<_>>());
        // Closed by that.
        std::mem::forget(file);
        Ok(Handover { executor: facts.executor, manager })
    }
}

fn parse<M: ManagerPart>(text: &[u8]) -> Result<(Facts, M)> {
    let facts = parse_facts(text)?;
    let manager = handover::read(facts.manager.as_bytes())?;
    Ok((facts, manager))
}

fn parse_facts(text: &[u8]) -> Result<Facts> {
    let what = || "cannot read the facts";
    let mut facts: Value = serde_json::from_slice(text).doing(Kind::Damaged, what)?;
    versions::to_memory(&mut facts)?;
    handover::read_value(facts).doing(Kind::Damaged, what)
}

#[cfg(feature = "absent")]
fn may_go_on<P>(parsed: P) -> Result<P> {
    match versions::stand_in::of_this_program() {
        Some(stand_in) if stand_in.cannot_go_on => Err(Error::new(Kind::Internal, "this program cannot go on")),
        _ => Ok(parsed),
    }
}

/// Nothing but the facts keeps a program from going on.
#[cfg(not(feature = "absent"))]
fn may_go_on<P>(parsed: P) -> Result<P> {
    Ok(parsed)
}

/// Executes the old program again; returns only the reason why even that failed.
fn go_back(file: &File, text: &[u8], error: Error) -> Error {
    let facts = serde_json::from_slice::<Value>(text).ok();
    let old = facts.and_then(|facts| facts["old"].as_i64()?.try_into().ok()).and_then(sys::inherited_fd);
    if let (Some(old), Ok(())) = (old, rustix::io::fcntl_setfd(file, FdFlags::empty())) {
        let refused = [REFUSED.to_owned(), error.message().to_owned()];
        let failed = image(file.as_raw_fd(), &refused).execute_file(old.as_fd());
        tracing::error!(error = %failed, "cannot go back to the old program");
    }
    error
}

/// Reads facts from stdin and prints which versions this program reads, and whose shim it is: what [`READ_FACTS`] asks for.
///
/// # Errors
/// Why it cannot go on with these facts.
pub fn read_facts<M: ManagerPart>() -> Result<()> {
    inheritance::hide()?;
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).doing(Kind::Internal, || "cannot read the facts")?;
    let answer = Answer { reads: versions::known(), manager: Some(M::MANAGER.to_owned()) };
    let answer = serde_json::to_string(&answer).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{answer}").and_then(|()| stdout.flush()).doing(Kind::Internal, || "cannot answer")?;
    parse::<M>(&text).map(drop)
}

/// Executes another program in the place of this one, and then does not return; or only asks it whether it could take
/// over.
///
/// # Errors
/// Why that is impossible: nothing has changed then.
pub(crate) async fn execute(supervisor: &Rc<Supervisor>, manager: &dyn Manager, wanted: &WantedUpgrade) -> Result<()> {
    let binary = &wanted.program;
    let program = sealed::open(binary)?.program;
    let ours = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let ours = ours.doing(Kind::Internal, || "cannot open our own program")?;
    let calls_wait = || manager.calls_wait();
    let give_up = Moment::now().after(BUSY);
    waits::until_quiet(calls_wait, give_up).await?;
    // What changes until the shim rests does not matter for whether the program can read it.
    let draft = write(supervisor, manager, &ours)?;
    let version = probe(supervisor, manager.name(), &program, binary, &draft).await?;
    if wanted.dry_run {
        return Ok(());
    }
    // Reading may take long where the machine is busy.
    let give_up = Moment::now().after(BUSY);
    let _rest = loop {
        waits::until_quiet(calls_wait, give_up).await?;
        match waits::come_to_rest(calls_wait, give_up.min(Moment::now().after(UNANSWERED))).await {
            Err(_) if give_up > Moment::now() => {}
            rest => break rest?,
        }
    };
    // What comes from here on waits for the new program. The loop hears what has come before.
    sys::block_signals(&sys::ALL_SIGNALS);
    tokio::task::yield_now().await;
    // From here on nothing else runs.
    let error = replace(supervisor, manager, &ours, &program, version);
    sys::block_signals(&[]);
    Err(error.within(format_args!("cannot execute {}", binary.display())))
}

/// Executes `program`, which reads facts of this version; returns only with the reason why that failed.
fn replace(supervisor: &Supervisor, manager: &dyn Manager, ours: &OwnedFd, program: &OwnedFd, version: u32) -> Error {
    if !waits::is_idle() || supervisor.is_leaving() {
        return Error::new(Kind::WrongState, "the shim has begun something meanwhile").hint("try again");
    }
    let executed = || -> Result<std::convert::Infallible> {
        let file = memory_file(&versions::written(write(supervisor, manager, ours)?, version)?)?;
        let image = image(Fd::of(&file).number(), &[]);
        handover::keep_open(true)?;
        Err(image.execute_file(program.as_fd())).doing(Kind::NotExecutable, || "the kernel refuses it")
    };
    let Err(error) = executed();
    let _ = handover::keep_open(false);
    error
}

/// The facts in the form in memory, as JSON; [`handover::named`] has the descriptors afterwards.
fn write(supervisor: &Supervisor, manager: &dyn Manager, ours: &OwnedFd) -> Result<Vec<u8>> {
    handover::begin();
    let (old, executor, manager) = (Fd::of(ours), Box::new(supervisor.hand_over()?), manager.hand_over()?);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let facts = Facts { facts: versions::IN_MEMORY, version, fds: handover::named(), old, executor, manager };
    serde_json::to_vec(&facts).doing(Kind::Internal, || "cannot write the facts")
}

fn memory_file(text: &[u8]) -> Result<File> {
    let what = || "cannot write the facts";
    let mut file = File::from(memfd_create("facts", MemfdFlags::CLOEXEC).doing(Kind::Internal, what)?);
    file.write_all(text).doing(Kind::Internal, what)?;
    Ok(file)
}

/// Has a child of the new program read a `draft` of the facts, in the newest version that both programs know. Returns
/// that version.
async fn probe(supervisor: &Supervisor, manager: &str, program: &OwnedFd, binary: &Path, draft: &[u8]) -> Result<u32> {
    let refused =
        |why: String| Error::new(Kind::NotExecutable, format!("{} cannot take over: {why}", binary.display()));
    let (oldest, own) = versions::known();
    let mut version = own;
    loop {
        let (said, end) =
            ask(supervisor, program, &versions::written(draft.to_vec(), version)?).await.map_err(&refused)?;
        if let Ended::Signaled(signal) = end {
            return Err(refused(format!("it was ended by signal {signal} as it read the facts")));
        }
        let answer: Option<Answer> = said.lines().find_map(|line| serde_json::from_str(line).ok());
        // It says what it is before it refuses anything.
        let Some(Answer { reads: (first, last), manager: of }) = answer else {
            return Err(refused("it is no shim of bowline".to_owned()).hint(NAME_THE_SHIM));
        };
        if let Some(of) = of.filter(|of| of != manager) {
            let message = format!("it is the shim for {of}, and not the shim for this manager, {manager}");
            return Err(refused(message).hint(NAME_THE_SHIM));
        }
        match versions::for_reader((first, last)) {
            Some(known) if known < version => version = known,
            Some(_) if end == Ended::Exited(0) => return Ok(version),
            Some(_) => return Err(refused(last_line(&said, "it refuses the facts"))),
            None => {
                let message =
                    format!("it reads facts of version {first} to {last}, and this shim writes {oldest} and {own}");
                return Err(refused(message));
            }
        }
    }
}

/// A child of the new program; one that nobody waits for any more, as the shim leaves or it takes too long, is killed.
struct Asked(Started);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Has a child of `program` read `facts`. Returns what it has said, and how it has ended.
async fn ask(supervisor: &Supervisor, program: &OwnedFd, facts: &[u8]) -> std::result::Result<(String, Ended), String> {
    // As the child knows it.
    let path = PathBuf::from(format!("/proc/self/fd/{PROGRAM}"));
    let expecting = supervisor.children.expect();
    let started = || {
        let environment = environment().map(OsString::from_vec);
        let probe = Program::new(&path, ["bowline-shim", READ_FACTS], environment)?;
        probe.reading(facts)?.captured().with_fd(program.as_fd(), PROGRAM).start()
    };
    let mut asked = Asked(started().map_err(|error| error.to_string())?);
    let started = &mut asked.0;
    let claim = expecting.claim(started.pid);
    started.executed().await.map_err(|error| error.to_string())?;
    let ended = async {
        if let Ok(pidfd) = started.pidfd.try_clone() {
            worker::ended(pidfd).await;
        }
    };
    let too_long = too_long(started.pid);
    tokio::select! {
        biased;
        () = ended => {}
        why = too_long => return Err(why),
    }
    supervisor.children.sweep();
    match claim.end().map(|end| end.ended) {
        Some(Ended::Unknown) | None => Err("how it read the facts is not known".to_owned()),
        Some(ended) => Ok((started.said(), ended)),
    }
}

/// Returns why nobody waits for the new program any more, once it has taken too long.
async fn too_long(pid: i32) -> String {
    const LOOK: Duration = Duration::from_secs(1);
    let most_ticks = READING.as_secs() * rustix::param::clock_ticks_per_second();
    let late = Moment::now().after(READING_AT_MOST);
    let (mut used, mut idle) = (0, Duration::ZERO);
    loop {
        tokio::time::sleep(LOOK).await;
        let stat = proc_stat::read(pid).unwrap_or_default();
        let Some(stat) = ProcStat::parse(&stat) else { continue };
        let ticks = stat.number(14).unwrap_or_default() + stat.number(15).unwrap_or_default();
        if ticks == used && !matches!(stat.state(), "R" | "D") {
            idle += LOOK;
        }
        used = ticks;
        if used >= most_ticks {
            return format!("it has not read the facts in {READING:?} of the processor");
        }
        if idle >= READING || late <= Moment::now() {
            let waited = if idle >= READING { READING } else { READING_AT_MOST };
            return format!("it has not read the facts in {waited:?}");
        }
    }
}

fn last_line(said: &str, otherwise: &str) -> String {
    said.lines().rfind(|line| !line.trim().is_empty()).map_or(otherwise.to_owned(), |line| line.trim().to_owned())
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
