//! The state folder: what outlives a shim.
//!
//! ```text
//!   <state>/<id>/  lock         held by the shim for as long as it lives
//!                  task.json    what is needed to find and undo the task
//!                  exit.json    the exit report, once there is one
//!                  status       how the workload has ended, from its `bowline-init`
//!                  execs        what the next shim must know of execs: see `supervise/exec/slots.rs`
//!                  config.json  a copy of its bundle's configuration, or its own for hooks
//!                  unread.0, …  what the shim has read of an output and not passed on: see `output/io/unread.rs`
//!                  lost.0, …    how much of an output is lost: see `output/io/losses.rs`
//!                  shim.sock    where the shim answers
//!                  log.json…, or stdout.log…, stderr.log…: the task's log
//!                  places.0, …  where in the log each of its files begins: see `output/log/places.rs`
//!                  hostname, hosts, resolv.conf: mounted into its root
//!                  shim.log, rootfs/
//!   <state>/.events/  what has happened to tasks: see `events`
//! ```
//!
//! A sandbox's folder is beside those of tasks: see `sandbox`.
//!
//! The kernel frees the lock when the shim ends, in whatever way. Files are written whole, by
//! rename; `record` defines their form. A damaged file is `Damaged`, and keeps nobody from the
//! others. Must not: start anything new.

mod kept_exit;
mod lock;
mod misplaced;
mod removal;
mod state_dir;

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::id::TaskId;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};

use crate::events::{self, Entry, Event, Reader};
use crate::host_name;
use crate::json::record;
use crate::report::ExitReport;
use crate::reserve::{self, Put, Reserve};
use crate::trust;

pub use crate::record::{Container, History, Record, died_with_shim};
pub use kept_exit::stored_end;
pub use lock::{Lock, Owner};
pub use misplaced::Misplaced;
pub use state_dir::{LASTING, StateDir};

/// The record of the task.
pub const RECORD: &str = "task.json";
/// The exit report, and the file that reserves room for it.
const EXIT: &str = "exit.json";
const RESERVED: &str = "exit.json.new";
/// The record of a sandbox.
pub const SANDBOX_RECORD: &str = "sandbox.json";
/// One of these is in the folder of each task whose launch has got so far, and of each sandbox.
const RECORDS: [&str; 4] = [RECORD, EXIT, RESERVED, SANDBOX_RECORD];
/// A record without these fields still says what the task's cgroups are.
const BESIDE_THE_CGROUPS: [&str; 2] = ["task", "enforcement"];

/// The longest path a unix socket can have: `sun_path` less its NUL (unix(7)).
const LONGEST_SOCKET_PATH: usize = 107;

/// The lock file; its holder owns the folder.
const LOCK: &str = "lock";

/// Where a task's root is put together, if it has none of its own.
pub const ROOTFS: &str = "rootfs";

/// The folder of the journal of events, beside the tasks'. Ids never begin with a dot.
const EVENTS: &str = ".events";

/// The prefix of the folder of a client that is attached to a task, inside the task's folder; the client's pid follows.
pub const ATTACHED: &str = "attach-";

/// How many events the journal has of each task that is taken over. Whoever starts the shim reads that; no shim links the
/// reader.
pub type EventCounts = BTreeMap<TaskId, u64>;

/// The folder of one task, by its name.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    /// See [`Folder::pinned`].
    pinned: Option<Arc<Pin>>,
}

/// One folder, whatever has its name later.
#[derive(Debug)]
struct Pin {
    /// While it is open, no other folder gets this inode.
    _open: OwnedFd,
    /// Its device and inode.
    identity: (u64, u64),
    /// When it was there.
    at: Timestamp,
}

impl Folder {
    /// The folder at `path`, as the shim's caller passed it.
    pub fn at(path: impl Into<PathBuf>) -> Folder {
        Folder { path: path.into(), pinned: None }
    }

    /// This folder as it is now. Once it is removed, all that looks into it fails with `NotFound`, also where a later task
    /// has the same name by then.
    ///
    /// # Errors
    /// `NotFound` when there is no such folder, or it is no task's.
    pub fn pinned(&self) -> Result<Folder> {
        let is_pinned = self.pinned.is_some();
        self.pin().and_then(|pinned| if is_pinned || self.is_ours() { Ok(pinned) } else { Err(self.is_gone()) })
    }

    /// Like [`Folder::pinned`], for a folder that is known to be a task's, as the caller has made it.
    ///
    /// # Errors
    /// `NotFound` when there is no such folder.
    pub fn pin(&self) -> Result<Folder> {
        if self.pinned.is_some() {
            return Ok(self.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = rustix::fs::open(&self.path, flags, Mode::empty()).and_then(|open| {
            let stat = rustix::fs::fstat(&open)?;
            Ok(Pin { _open: open, identity: (stat.st_dev, stat.st_ino), at: Timestamp::now() })
        });
        match pin {
            Ok(pin) => Ok(Folder { path: self.path.clone(), pinned: Some(Arc::new(pin)) }),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(self.is_gone()),
            Err(errno) => Err(cannot("look into", &self.path, &errno.into())),
        }
    }

    /// Whether the folder with this name is the one that was pinned; always, where none was. What was found by the name
    /// before that is in the same folder, as no removed one comes back.
    pub fn is_still_there(&self) -> bool {
        let Some(pin) = &self.pinned else { return true };
        rustix::fs::lstat(&self.path).is_ok_and(|now| (now.st_dev, now.st_ino) == pin.identity)
    }

    /// When a pinned folder was there.
    fn pinned_at(&self) -> Option<Timestamp> {
        self.pinned.as_ref().map(|pin| pin.at)
    }

    /// The inode of a pinned folder.
    pub fn inode(&self) -> Option<u64> {
        self.pinned.as_ref().map(|pin| pin.identity.1)
    }

    fn is_gone(&self) -> Error {
        Error::new(Kind::NotFound, format!("there is no task named {}", self.name()))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error for a caller that wants this folder for a new `what` of the same id.
    fn taken(&self, id: &TaskId, what: &str) -> Error {
        if !self.is_ours() && self.path.exists() {
            let message = format!("{} is there already, and is no task's", self.path.display());
            return Error::new(Kind::WrongState, message)
                .hint("choose another name, or another state folder by --state");
        }
        let (there, command) = if self.is_sandbox() { ("sandbox", "sandbox rm") } else { ("task", "rm") };
        let remove = format!("`bowline {command} {id}` removes it, with -f also while it runs");
        let (same, hint) = match there == what {
            true => (String::new(), format!("choose another name, or start it anew with --replace; {remove}")),
            false => (format!("; a {what} cannot have its name"), format!("choose another name; {remove}")),
        };
        Error::new(Kind::AlreadyExists, format!("a {there} named {id} exists already{same}")).hint(hint)
    }

    /// Whether there is a task of this id.
    pub fn exists(&self) -> Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(meta) => Ok(meta.is_dir() && self.is_still_there()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(cannot("look into", &self.path, &error)),
        }
    }

    /// Whether the folder is a task's or a sandbox's, or of bowline's beside them, whose names begin with a dot: the state
    /// folder may have others', which are left alone.
    pub fn is_ours(&self) -> bool {
        if self.name().starts_with('.') || RECORDS.iter().any(|name| fs::symlink_metadata(self.file(name)).is_ok()) {
            return true;
        }
        let may_be = |path: &Path, wanted: fn(&Metadata) -> bool| match fs::symlink_metadata(path) {
            Ok(meta) => wanted(&meta),
            // Whoever uses one that cannot be looked into is told.
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        // What a launch that did not get so far begins with.
        may_be(&self.socket(), |_| true)
            || may_be(&self.path, |folder| folder.mode() & 0o077 == 0)
                && may_be(&self.file(LOCK), |lock| lock.is_file() && lock.len() == 0)
    }

    /// The path of the shim's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("shim.sock")
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The record of the task; `None` when its launch never got so far.
    ///
    /// # Errors
    /// `Damaged` when it cannot be read, or is gone although the task was launched.
    pub fn record(&self) -> Result<Option<Record>> {
        let record = self.read(RECORD).and_then(|record| match record {
            // Written meanwhile, or removed by somebody.
            None if self.has_reserved() => self.read(RECORD),
            record => Ok(record),
        });
        let record = match record {
            Ok(None) if self.has_reserved() => {
                Err(Error::new(Kind::Damaged, format!("{} is missing", self.file(RECORD).display())))
            }
            record => record,
        };
        let record = record.and_then(|record: Option<Record>| {
            self.check_name(record.as_ref().and_then(|record| record.folder.as_deref())).map(|()| record)
        });
        record.map_err(|error| self.hinted(error, "rm"))
    }

    /// Whether the launch of a task with a folder of ours has got beyond its record, and the task has no report yet.
    fn has_reserved(&self) -> bool {
        self.is_in_state_folder() && self.file(RESERVED).exists()
    }

    /// What a damaged record says of the task's cgroups, if it says anything.
    pub fn salvaged_record(&self) -> Option<Record> {
        record::parse_without(&trust::read(&self.file(RECORD)).ok()?, &BESIDE_THE_CGROUPS)
    }

    /// The exit report of the task; `None` while there is none.
    ///
    /// # Errors
    /// `Damaged` when it cannot be read.
    pub fn exit(&self) -> Result<Option<ExitReport>> {
        self.read(EXIT).map_err(|error| self.hinted(error, "rm"))
    }

    /// Adds to the error of a damaged record which command removes the task or sandbox.
    pub fn hinted(&self, error: Error, command: &str) -> Error {
        if error.kind() != Kind::Damaged || error.hint_text().is_some() || !self.is_in_state_folder() {
            return error;
        }
        let name = self.name();
        error.hint(format!("`bowline {command} -f {name}` ends and removes what is left of {name}"))
    }

    /// What ends and removes a task or sandbox that no shim can take over.
    pub fn removal_hint(&self) -> String {
        format!("`bowline {} -f {}` ends and removes what is left of it", self.removal(), self.name())
    }

    fn removal(&self) -> &'static str {
        if self.is_sandbox() { "sandbox rm" } else { "rm" }
    }

    /// Whether the folder is in our state folder: a manager's bundle has no lock.
    pub fn is_in_state_folder(&self) -> bool {
        self.file(LOCK).exists()
    }

    /// The sandbox that the task is a member of, by where its socket leads, whatever its record says.
    pub fn sandbox_by_socket(&self) -> Option<TaskId> {
        fs::read_link(self.socket()).ok()?.parent()?.file_name()?.to_str()?.parse().ok()
    }

    /// Writes the record of the task.
    pub fn write_record(&self, record: &Record) -> Result<()> {
        self.write(RECORD, record)
    }

    /// Removes the record, as for a task that was removed.
    pub fn forget_record(&self) {
        if let Err(error) = fs::remove_file(self.file(RECORD)) {
            tracing::warn!(path = %self.path.display(), %error, "a record is left behind");
        }
    }

    /// Removes what a refused launch has left.
    pub fn forget_launch(&self) {
        // A launch that was refused early has reserved nothing.
        let _ = fs::remove_file(self.file(RESERVED));
        self.forget_record();
    }

    /// Reserves room for the exit report.
    pub fn reserve_exit(&self) -> Result<Reserve> {
        let path = self.file(RESERVED);
        Reserve::take(&path).map_err(|error| cannot("write", &path, &error))
    }

    /// Whether the command of the task with this record may have run, where its launch was cut short and its init has
    /// executed its program or ended.
    pub fn may_have_run(&self, record: &Record) -> bool {
        reserve::is_marked(&self.file(RESERVED)).unwrap_or(record.pid.is_some())
    }

    /// Whether the command of the task, whose shim has died, was not run and will not be.
    pub fn never_ran(&self) -> bool {
        let ran = |record: &Record| record.started_at.is_some() || self.may_have_run(record) || record.runs();
        match self.record() {
            Ok(Some(record)) => !ran(&record),
            Ok(None) => self.has_no_task(),
            Err(_) => false,
        }
    }

    /// Whether a launch has made the folder, and was cut short before its record, which comes before any process.
    pub fn has_no_task(&self) -> bool {
        let is_missing =
            |name: &&str| fs::symlink_metadata(self.file(name)).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        RECORDS.iter().all(is_missing) && self.is_ours()
    }

    /// Takes over the room for the exit report that an earlier shim has reserved.
    pub fn reserve_exit_again(&self) -> Result<Reserve> {
        let path = self.file(RESERVED);
        Reserve::take_over(&path).map_err(|error| cannot("write", &path, &error))
    }

    /// Writes the exit report, whole, into the reserved room; after an error the caller may try again.
    pub fn write_exit(&self, reserve: &mut Reserve, report: &ExitReport) -> Result<Put> {
        let path = self.file(EXIT);
        reserve.put(report, &self.file(RESERVED), &path).map_err(|error| cannot("write", &path, &error))
    }

    /// Makes all records of the task survive a power loss, as far as the disk
    /// does: its own, its sandbox's, the journal. Blocks.
    pub fn sync(&self, sandbox: Option<&TaskId>) -> Result<()> {
        let sandbox = sandbox.map(|id| Folder::at(self.path.with_file_name(id.as_str())));
        let of_sandbox =
            sandbox.iter().flat_map(|of| [of.file(SANDBOX_RECORD), of.file("networks.json"), of.path.clone()]);
        let own = [self.file(RECORD), self.file(EXIT), self.path.clone()];
        // The name of the task's folder is an entry of the state folder.
        let state = self.is_in_state_folder().then(|| {
            let events = self.path.with_file_name(EVENTS);
            [events.join(events::CURRENT), events, self.path.parent().unwrap_or(&self.path).to_owned()]
        });
        for path in own.into_iter().chain(of_sandbox).chain(state.into_iter().flatten()) {
            match File::open(&path).and_then(|file| file.sync_all()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot("sync", &path, &error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes `value` to a file of the folder, whole or not at all.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        let text = record::text(value).doing(Kind::Internal, || format!("cannot write {name} as JSON"))?;
        self.write_text(name, &text)
    }

    /// Like [`Folder::write`], of a text.
    pub fn write_text(&self, name: &str, text: &[u8]) -> Result<()> {
        let (path, temporary) = (self.file(name), self.file(&format!("{name}.new")));
        trust::write(&path, &temporary, text).map_err(|error| cannot("write", &path, &error))
    }

    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.file(name);
        let read = trust::read(&path);
        if !self.is_still_there() {
            return Err(self.is_gone());
        }
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable("read", &path, &error)),
        };
        record::parse(&text, &path).map(Some)
    }

    /// Checks that the record of the task or the sandbox may be written again: see `json::record`.
    ///
    /// # Errors
    /// `WrongState` for one of a newer bowline.
    pub fn check_form(&self) -> Result<()> {
        let path = self.file(if self.is_sandbox() { SANDBOX_RECORD } else { RECORD });
        // Whoever needs an unreadable record reports it.
        trust::read(&path).map_or(Ok(()), |text| record::check_form(&text, &path))
    }

    /// How many events the journal has of the task.
    pub fn events(&self) -> u64 {
        self.written_events().last().map_or(0, |entry| entry.seq)
    }

    /// The task's events in the journal, from its creation on: an earlier task may have had the same name.
    pub fn written_events(&self) -> Vec<Entry> {
        self.written_lives().pop().unwrap_or_default()
    }

    /// The events in the journal of all tasks that had this name, each from its creation on.
    fn written_lives(&self) -> Vec<Vec<Entry>> {
        let read = Reader::open(self.path.with_file_name(EVENTS)).and_then(|mut journal| journal.read());
        let mut lives: Vec<Vec<Entry>> = Vec::new();
        for entry in read.unwrap_or_default().into_iter().filter(|entry| entry.id.as_str() == self.name()) {
            match lives.last_mut() {
                Some(life) if !matches!(entry.event, Event::Created { .. }) => life.push(entry),
                _ => lives.push(vec![entry]),
            }
        }
        lives
    }

    /// The name of the folder, which is that of its task or sandbox.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What follows the ids of this state folder in names on the host; nothing for a manager's bundle.
    pub fn mark(&self) -> String {
        let state = self.path.parent().filter(|_| self.is_in_state_folder());
        state.map(host_name::mark).unwrap_or_default()
    }

    /// The name of the task or sandbox on the host.
    pub fn name_on_host(&self) -> String {
        self.name() + &self.mark()
    }
}

/// The error for a file of a task that cannot be used: the task is damaged, unless it is this process that lacks a right
/// or room.
fn unreadable(verb: &str, path: &Path, error: &io::Error) -> Error {
    let said = cannot(verb, path, error);
    let is_ours = matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSPC | libc::EROFS)
    );
    match said.hint_text() {
        _ if is_ours => said,
        Some(hint) => Error::new(Kind::Damaged, said.message()).hint(hint),
        None => Error::new(Kind::Damaged, said.message()),
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot {verb} {}: {error}", path.display());
    if error.raw_os_error() == Some(libc::ELOOP) {
        return Error::new(Kind::Internal, message).hint("it is a symlink, which bowline never makes there: remove it");
    }
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => "bowline needs to be root, or a state folder of your own (--state DIR)",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::StorageFull if verb.starts_with("create") => {
            "choose another state folder with --state DIR"
        }
        ErrorKind::ReadOnlyFilesystem => "try again once it can be written: a disk becomes read-only after an error",
        ErrorKind::StorageFull => "try again once there is room",
        _ => return Error::new(Kind::Internal, message),
    };
    Error::new(Kind::Internal, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path().join("state"));
        let id: TaskId = "web".parse().expect("an id");
        let (folder, lock) = state.create(&id).expect("free");
        let taken = state.create(&id).expect_err("taken");
        assert_eq!(taken.kind(), Kind::AlreadyExists);
        assert!(matches!(folder.owner(), Ok(Owner::Shim)), "the lock is held");
        drop(lock);
        // A child that another test has forked holds a copy of the lock until it executes its program.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !matches!(folder.owner(), Ok(Owner::Nobody(_))) {
            assert!(std::time::Instant::now() < deadline, "the lock went with its owner");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lock_of_what_was_removed_meanwhile_removes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path().join("state"));
        let id: TaskId = "web".parse().expect("an id");
        let (folder, old) = state.create(&id).expect("free");
        fs::rename(folder.path(), dir.path().join("elsewhere")).expect("ours");
        assert_eq!(folder.owner().expect_err("gone").kind(), Kind::NotFound);
        let (folder, new) = state.create(&id).expect("free again");
        folder.remove(old).expect("nothing to do");
        assert!(folder.exists().expect("readable"), "it is another's");
        folder.remove(new).expect("removed");
        assert!(fs::read_dir(state.path()).expect("readable").next().is_none(), "nothing is left");
    }

    #[test]
    fn what_is_removed_before_its_report_is_written_is_told_by_whoever_removes_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(dir.path().join("state"));
        let id: TaskId = "web".parse().expect("an id");
        let (folder, lock) = state.create(&id).expect("free");
        let mut reserve = folder.reserve_exit().expect("there is room");
        drop(lock);
        let report = ExitReport { exit_code: Some(5), events: 3, shim_died: false, ..died_with_shim(None) };
        folder.remove_unwritten(&report, |_| ()).expect("removable");
        assert_eq!(folder.write_exit(&mut reserve, &report), Ok(Put::Unwanted));
        let told = Reader::open(state.events()).and_then(|mut journal| journal.read()).expect("readable");
        let told: Vec<_> = told.into_iter().map(|entry| (entry.seq, entry.event)).collect();
        assert_eq!(told, [(3, Event::of_exit(&report)), (4, Event::Removed)]);
    }

    #[test]
    fn a_report_that_is_refused_is_written_once_the_disk_takes_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::at(dir.path());
        let mut reserve = folder.reserve_exit().expect("there is room");
        let report = ExitReport { exit_code: Some(5), ..died_with_shim(None) };
        fs::create_dir(folder.file(EXIT)).expect("ours");
        folder.write_exit(&mut reserve, &report).expect_err("a folder is in its place");
        fs::remove_dir(folder.file(EXIT)).expect("ours");
        assert_eq!(folder.write_exit(&mut reserve, &report), Ok(Put::Placed));
        assert_eq!(folder.exit(), Ok(Some(report)));
        assert!(!folder.file(RESERVED).exists());
    }

    #[test]
    fn what_an_earlier_shim_has_reserved_and_begun_to_write_is_taken_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::at(dir.path());
        drop(folder.reserve_exit().expect("there is room"));
        fs::write(folder.file(RESERVED), [b'x'; 3000]).expect("ours");
        let mut reserve = folder.reserve_exit_again().expect("it is there");
        let report = ExitReport { exit_code: Some(5), ..died_with_shim(None) };
        assert_eq!(folder.write_exit(&mut reserve, &report), Ok(Put::Placed));
        assert_eq!(folder.exit(), Ok(Some(report)));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::at(dir.path());
        assert!(folder.exit().expect("readable").is_none());
        fs::write(folder.file("exit.json"), "{").expect("written");
        let error = folder.exit().expect_err("damaged");
        assert!(error.kind() == Kind::Damaged && error.to_string().contains("exit.json"), "{error}");
    }
}
