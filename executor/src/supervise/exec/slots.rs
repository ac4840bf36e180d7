//! What the next shim must know of a task's execs and events, should this one die: in a file of the task's folder, which
//! the launch makes and maps.
//!
//! ```text
//!   exec begins, is cloned, is executed, ends ─► a slot, by stores alone ─► [the shim dies] ─► the next shim's facts
//! ```
//!
//! A slot is the length of its text, the text, as JSON, and a pid. The length is 0 while the text is written, so that what
//! was cut off leaves an empty slot. A change goes to another slot, and frees the old one afterwards; of two with the
//! same number the later one counts. An exec that is about to be cloned is written over where it is: the kernel stores its
//! pid there as it clones it, before the shim hears of it. Must not: make a system call for an exec, unless no slot is free.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::rc::Rc;

use bowline_error::{Doing, Kind, Result};
use bowline_model::clock::{Moment, SinceBoot};
use bowline_model::events::shortened_to;
use bowline_model::folder::Folder;
use bowline_model::json::record;
use bowline_model::trust;
use bowline_sys::{MappedFile, SharedPid};
use jiff::Timestamp;
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

use crate::facts::{AskedBy, ExecFacts};
use crate::lifecycle::exec::Life;

/// The name of the file.
const FILE: &str = "execs";

/// How much the file has at first, and by how much it grows.
const STEP: usize = 4096;

/// The most that a later shim reads: as much is taken of the disk.
const MOST: usize = 4 << 20;

/// The size of a slot. In the place of the first are the numbers of execs and of events that there were, and a bit for each
/// signal that init was sent.
const SLOT: usize = 512;
const BEGUN: usize = 0;
const EVENTS: usize = 4;
const SENT: usize = 8;

/// Where in a slot its text begins, and its pid is.
const TEXT: usize = 4;
const PID: usize = SLOT - 4;

/// The numbers that an earlier shim may have given: as many as every reader of JSON keeps exactly, so that others can follow.
pub(crate) const EXEC_NUMBERS: RangeInclusive<u64> = 1..=1 << 53;

/// The most bytes of a command that are kept.
const COMMAND: usize = 256;

/// What is kept of an exec. A new field needs a default: a shim of another version reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptExec {
    /// Its number within the task.
    pub number: u64,
    /// Counts the changes of all slots.
    #[serde(default)]
    change: u32,
    /// Who has asked for it; of a command as much as there is room for.
    pub by: AskedBy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its process, once it is cloned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Between these that process has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_between: Option<[SinceBoot; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Moment>,
    /// When it was killed, with all that it has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed_at: Option<Moment>,
    /// When its process alone was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_kill: Option<Moment>,
    /// The number of its cgroup, where it is in one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// When its program was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default)]
    pub oom_kills_before: u64,
    /// When it has ended, once a shim knows how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its code, once it has ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The number of the task's event that tells its end, right before that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_as: Option<u64>,
}

impl KeptExec {
    fn of(number: u64, exec: &ExecFacts) -> KeptExec {
        KeptExec {
            number,
            change: 0,
            by: match &exec.by {
                AskedBy::Caller(command) => AskedBy::Caller(shortened_to(COMMAND, command)),
                by => by.clone(),
            },
            name: exec.name.clone(),
            pid: exec.pid,
            cloned_between: exec.cloned_between,
            deadline: exec.deadline,
            killed_at: exec.killed_at,
            sent_kill: exec.sent_kill,
            group: exec.group.filter(|_| exec.in_group),
            started_at: exec.started_at,
            oom_kills_before: exec.oom_kills_before,
            ended_at: exec.exited_at.filter(|_| exec.end.is_some()),
            code: exec.exit_code(),
            told_as: exec.told_as,
        }
    }

    /// Its text, which fits into a slot.
    fn text(&mut self) -> Option<Vec<u8>> {
        let mut most = COMMAND;
        loop {
            let text = serde_json::to_vec(self).ok()?;
            if text.len() <= PID - TEXT {
                return Some(text);
            }
            // Escapes may take six times the room.
            most /= 4;
            match &mut self.by {
                AskedBy::Caller(command) if most > 0 => *command = shortened_to(most, &*command),
                // Only who resizes its terminal or signals it needs that, and has lost its connection then.
                _ => drop(self.name.take()?),
            }
        }
    }
}

/// What a shim has left of a task.
#[derive(Debug, Default)]
pub struct Left {
    /// How many execs the task has had.
    pub begun: u64,
    /// How many events of it were written.
    pub events: u64,
    /// The execs that have a slot, by number.
    pub execs: Vec<KeptExec>,
}

/// The slots of a task.
#[derive(Debug)]
pub struct ExecSlots {
    path: PathBuf,
    map: Option<(Rc<MappedFile>, usize)>,
    /// Whether it could not be mapped, which is not tried again.
    failed: bool,
    /// The slot of each exec, by its number.
    used: BTreeMap<u64, usize>,
    changes: u32,
}

impl ExecSlots {
    /// Those of the task in `folder`, before anything is known of them.
    pub fn of(folder: &Folder) -> ExecSlots {
        ExecSlots { path: folder.file(FILE), map: None, failed: false, used: BTreeMap::new(), changes: 0 }
    }

    /// Those of a new task in `folder`: their room is taken now, as the disk may be full later.
    ///
    /// # Errors
    /// `Internal` where there is none.
    pub fn begin(folder: &Folder) -> Result<ExecSlots> {
        let slots = ExecSlots::of(folder);
        let map = slots.mapped(STEP, File::options().truncate(true));
        let map = map.doing(Kind::Internal, || format!("cannot write {}", slots.path.display()))?;
        Ok(ExecSlots { map: Some(map), ..slots })
    }

    /// Reads what a shim before has kept.
    pub fn take_over(&mut self) -> Left {
        let size = self.path.symlink_metadata().map_or(0, |file| (file.len() as usize / STEP * STEP).min(MOST));
        if size == 0 {
            tracing::warn!(path = %self.path.display(), "missing or empty: no exec is known any more");
            return Left::default();
        }
        match self.mapped(size, &mut File::options()) {
            Ok(map) => self.map = Some(map),
            Err(error) => {
                tracing::warn!(%error, "no exec is known any more");
                self.failed = true;
            }
        }
        let Some((map, size)) = &self.map else { return Left::default() };
        let mut kept: BTreeMap<u64, (KeptExec, usize)> = BTreeMap::new();
        for at in (SLOT..*size).step_by(SLOT) {
            let Some(exec) = read(map, at) else {
                if map.load(at) != 0 {
                    tracing::warn!(at, "an exec is not known any more: its slot is torn");
                }
                map.store(at, 0);
                continue;
            };
            self.changes = self.changes.max(exec.change);
            let older = match kept.get(&exec.number) {
                Some((other, _)) if other.change > exec.change => Some(at),
                _ => kept.insert(exec.number, (exec, at)).map(|(_, at)| at),
            };
            older.into_iter().for_each(|at| map.store(at, 0));
        }
        let begun = u64::from(map.load(BEGUN)).max(kept.keys().next_back().copied().unwrap_or_default());
        self.used = kept.iter().map(|(number, (_, at))| (*number, *at)).collect();
        let events = map.load(EVENTS).into();
        Left { begun, events, execs: kept.into_values().map(|(exec, _)| exec).collect() }
    }

    /// Keeps how many events the task has had, once the last of them is written.
    pub fn keep_events(&self, events: u64) {
        if let Some((map, _)) = &self.map {
            map.store(EVENTS, events as u32);
        }
    }

    /// Keeps whether init was sent a signal: no more right before that, and again right after.
    pub fn keep_sent(&self, signal: i32, was_sent: bool) {
        let (at, bit) = sent_bit(signal);
        if let Some((map, _)) = &self.map {
            map.store(at, if was_sent { map.load(at) | bit } else { map.load(at) & !bit });
        }
    }

    /// Whether init was sent a signal.
    pub fn was_sent(&self, signal: i32) -> bool {
        let (at, bit) = sent_bit(signal);
        self.map.as_ref().is_some_and(|(map, _)| map.load(at) & bit != 0)
    }

    /// Keeps what is known of an exec now.
    pub fn keep(&mut self, number: u64, exec: &ExecFacts) {
        self.changes = self.changes.wrapping_add(1);
        let mut kept = KeptExec { change: self.changes, ..KeptExec::of(number, exec) };
        let free = self.free();
        let Some((map, _)) = &self.map else { return };
        if map.load(BEGUN) < number as u32 {
            map.store(BEGUN, number as u32);
        }
        let before = self.used.get(&number).copied();
        // The kernel stores the pid of what is being cloned where that was begun.
        let stays = before.filter(|_| exec.life == Life::Starting && exec.pid.is_none());
        // Where no other one is free it is written over: a crash meanwhile loses it.
        let Some((text, at)) = kept.text().zip(stays.or(free).or(before)) else { return };
        map.store(at, 0);
        if stays.is_none() {
            map.store(at + PID, 0);
        }
        map.write(at + TEXT, &text);
        map.store(at, text.len() as u32);
        self.used.insert(number, at);
        if let Some(before) = before.filter(|before| *before != at) {
            map.store(before, 0);
        }
    }

    /// Where the kernel stores the pid of an exec that is cloned next.
    pub fn pid_of(&self, number: u64) -> io::Result<SharedPid> {
        match self.map.as_ref().zip(self.used.get(&number)) {
            Some(((map, _), at)) => Ok(SharedPid::within(map, at + PID)),
            None => SharedPid::new(),
        }
    }

    /// Forgets an exec whose end is told.
    pub fn forget(&mut self, number: u64) {
        if let (Some(at), Some((map, _))) = (self.used.remove(&number), &self.map) {
            map.store(at, 0);
        }
    }

    /// A slot that nobody has, where there is room for one.
    fn free(&mut self) -> Option<usize> {
        let size = self.map.as_ref().map_or(0, |(_, size)| *size);
        let used = |at: &usize| self.used.values().any(|used| used == at);
        let free = (SLOT..size).step_by(SLOT).find(|at| !used(at));
        if free.is_some() || self.failed {
            return free;
        }
        match self.mapped(size + STEP, &mut File::options()) {
            Ok(map) => self.map = Some(map),
            Err(error) => {
                tracing::warn!(%error, "execs are not known any more if this shim dies");
                self.failed = true;
                return None;
            }
        }
        Some(size.max(SLOT))
    }

    /// Maps as many bytes of the file, and takes the room for them.
    fn mapped(&self, size: usize, how: &mut OpenOptions) -> io::Result<(Rc<MappedFile>, usize)> {
        let file = trust::open(how.read(true).write(true).create(true), &self.path)?;
        // Where the disk is full, a store into memory that it has no room for would end the shim.
        fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
        Ok((Rc::new(MappedFile::of(&file, size)?), size))
    }
}

/// Where a signal's bit is, and that bit.
fn sent_bit(signal: i32) -> (usize, u32) {
    let number = signal.unsigned_abs() as usize;
    (SENT + number / 32 * 4, 1 << (number % 32))
}

/// The exec in the slot at this offset, if there is one and it is whole.
fn read(map: &MappedFile, at: usize) -> Option<KeptExec> {
    let length = map.load(at) as usize;
    let text = map.bytes()[at + TEXT..at + SLOT].get(..length).filter(|text| !text.is_empty())?;
    let exec: KeptExec = record::from_value(serde_json::from_slice(text).ok()?).ok()?;
    EXEC_NUMBERS.contains(&exec.number).then_some(())?;
    // The texts of an earlier version may be longer.
    let stored = if length <= PID - TEXT { map.load(at + PID) as i32 } else { 0 };
    let pid = exec.pid.or(Some(stored).filter(|pid| *pid > 0 && exec.started_at.is_none()));
    Some(KeptExec { pid, ..exec })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(command: &str) -> ExecFacts {
        ExecFacts { by: AskedBy::Caller(vec![command.to_owned()]), pid: Some(7), ..ExecFacts::default() }
    }

    fn slots(folder: &tempfile::TempDir) -> ExecSlots {
        ExecSlots::of(&Folder::at(folder.path()))
    }

    fn read_again(folder: &tempfile::TempDir) -> (u64, Vec<u64>) {
        let Left { begun, execs: kept, .. } = slots(folder).take_over();
        (begun, kept.iter().map(|exec| exec.number).collect())
    }

    #[test]
    fn what_runs_is_known_to_the_next_shim_and_what_has_ended_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read_again(&folder), (0, vec![]));
        let mut all = ExecSlots::begin(&Folder::at(folder.path())).expect("there is room");
        all.keep_events(7);
        (libc::SIGTERM..64).for_each(|signal| all.keep_sent(signal, true));
        all.keep_sent(libc::SIGTERM, false);
        assert!(!all.was_sent(libc::SIGTERM) && !all.was_sent(64) && all.was_sent(63) && all.was_sent(31));
        assert_eq!(slots(&folder).take_over().events, 7);
        for number in 1..=40 {
            all.keep(number, &exec("true"));
        }
        (1..=40).filter(|number| number % 10 != 0).for_each(|number| all.forget(number));
        assert_eq!(read_again(&folder), (40, vec![10, 20, 30, 40]));
        all.forget(40);
        all.keep(41, &exec(&"\u{1}é".repeat(1000)));
        let Left { begun, execs: kept, .. } = slots(&folder).take_over();
        assert_eq!((begun, kept.len()), (41, 4));
        assert!(matches!(&kept[3].by, AskedBy::Caller(words) if words[0].starts_with('\u{1}')), "{:?}", kept[3]);
        let mut next = slots(&folder);
        next.take_over();
        [10, 20, 30, 41].into_iter().for_each(|number| next.forget(number));
        assert_eq!(read_again(&folder), (41, vec![]), "no number comes twice");
    }

    #[test]
    fn where_there_is_no_room_numbers_go_on_and_what_is_known_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut all = slots(&folder);
        let long = ExecFacts { name: Some("\u{1}".repeat(1000)), ..exec("true") };
        (1..=7).for_each(|number| all.keep(number, &long));
        // As on a full disk.
        all.failed = true;
        all.keep(8, &exec("true"));
        all.keep(3, &ExecFacts { pid: Some(8), ..exec("true") });
        let Left { begun, execs: kept, .. } = slots(&folder).take_over();
        assert_eq!((begun, kept.len(), kept[2].pid), (8, 7, Some(8)));
    }

    #[test]
    fn what_the_kernel_has_cloned_is_known_before_the_shim_has_heard_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut all = ExecSlots::begin(&Folder::at(folder.path())).expect("there is room");
        let begun = ExecFacts { pid: None, ..exec("true") };
        all.keep(1, &begun);
        let pid = all.pid_of(1).expect("memory");
        let known = || slots(&folder).take_over().execs.iter().map(|exec| exec.pid).collect::<Vec<_>>();
        assert_eq!((known(), pid.get()), (vec![None], None));
        // As the kernel does.
        all.map.as_ref().expect("mapped").0.store(all.used[&1] + PID, 77);
        (2..=20).for_each(|number| all.keep(number, &exec("true")));
        all.keep(1, &begun);
        assert_eq!((known()[0], pid.get()), (Some(77), Some(77)), "also where the file has grown meanwhile");
        all.keep(1, &exec("true"));
        assert_eq!(known()[0], Some(7));
        all.forget(1);
        all.keep(21, &begun);
        assert_eq!(known().last(), Some(&None), "one of before is not another's");
    }

    #[test]
    fn a_torn_slot_is_left_out_and_of_two_the_later_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut all = slots(&folder);
        all.keep(1, &exec("one"));
        all.keep(2, &exec("two"));
        let before = all.used[&1];
        all.keep(1, &ExecFacts { pid: Some(8), ..exec("one") });
        let (map, _) = all.map.as_ref().expect("mapped");
        // Cut off before the old one was freed, and in the middle of a text.
        let text = serde_json::to_vec(&KeptExec::of(1, &exec("one"))).expect("JSON");
        map.store(before, text.len() as u32);
        map.write(all.used[&2] + TEXT, b"x");
        let kept = slots(&folder).take_over().execs;
        assert_eq!(kept.iter().map(|exec| (exec.number, exec.pid)).collect::<Vec<_>>(), [(1, Some(8))]);
        map.store(all.used[&1], u32::MAX);
        assert_eq!(read_again(&folder), (2, vec![]), "the older one was freed, as the later one counted");
    }
}
