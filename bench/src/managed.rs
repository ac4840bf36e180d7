//! What is measured through containerd, group by group: bowline's shim beside
//! containerd's own with crun and runc. `docs/bench.md` says what each row is.

use std::path::Path;
use std::time::{Duration, Instant};

use bowline_model::{Kind, Result};

use serde_json::json;

use crate::containerd::{Daemon, Runtimes, Sleeper};
use crate::contenders::{Contenders, Job};
use crate::memory::{self, Sleepers as _};
use crate::mounts;
use crate::quiet;
use crate::rounds::{Gap, Rounds};
use crate::say::say;
use crate::shim::Call;
use crate::table::{BOWLINE, COLUMNS, CRUN, Cells, FLOOR, Figure, RUNC, Row};

/// Tasks that a manager starts or ends at a time.
const AT_ONCE: usize = 10;
/// How much a task writes: its name, how many times `dd` writes 64 KiB, and what that makes.
pub struct Written(&'static str, &'static str, u64);

impl Written {
    pub const SOME: Written = Written("20 MB", "count=320", 320 << 16);
    pub const MUCH: Written = Written("1 GB", "count=16384", 16384 << 16);
}

/// A containerd for each contender, by column.
pub struct Managers {
    daemons: Cells<Option<Daemon>>,
    job: Job,
}

impl Managers {
    /// The containerd of this column, if it is measured.
    pub fn at(&mut self, column: usize) -> Option<&mut Daemon> {
        self.daemons[column].as_mut()
    }

    /// A task of each, which sleeps.
    fn hold(&mut self) -> Result<Cells<Option<Sleeper>>> {
        let mut held: Cells<Option<Sleeper>> = Default::default();
        for (daemon, held) in self.daemons.iter_mut().zip(&mut held) {
            *held = daemon.as_mut().map(Daemon::hold).transpose()?;
        }
        Ok(held)
    }

    /// Ends what [`Self::hold`] has started, of those who are still measured.
    fn end(&mut self, held: Cells<Option<Sleeper>>) -> Result<()> {
        for (daemon, one) in self.daemons.iter_mut().zip(held) {
            if let Some((daemon, one)) = daemon.as_mut().zip(one) {
                daemon.end(one)?;
            }
        }
        Ok(())
    }
}

/// Starts them; `None` where containerd is not installed. bowline's shim is in `bin`.
pub fn start(on: &mut Contenders, bin: &Path) -> Result<Option<Managers>> {
    let job = on.job(&["/bin/true"], "default")?;
    let sleeper = on.job(&["/bin/sleep", "1000000"], "default")?.spec;
    let mut daemons = Cells::default();
    for column in [FLOOR, BOWLINE, CRUN, RUNC] {
        let name = on.name().to_owned();
        let runtimes = match (column, on.peer(column)) {
            (FLOOR, _) => Runtimes::Floor(bin),
            (BOWLINE, _) => Runtimes::Bowline(bin),
            (_, Some(peer)) => Runtimes::Runc(peer.program(), peer.is_kept_from_v2()),
            (_, None) => continue,
        };
        daemons[column] = Daemon::start(&name, COLUMNS[column], &runtimes, sleeper.clone())?;
    }
    Ok(daemons[BOWLINE].is_some().then_some(Managers { daemons, job }))
}

/// From a task's creation, through its exit, until it is deleted.
pub fn launch(rounds: &mut Rounds, on: &mut Managers, gap: Gap) -> Result<Vec<Row>> {
    let name = match gap {
        Gap::None => "containerd: launch",
        Gap::Random | Gap::Fixed => "containerd: launch, 60-100 ms apart",
    };
    let rows = rounds.measure([name], gap, on, ready, |on, column| {
        let Managers { daemons, job } = on;
        Ok([daemons[column].as_mut().map(|daemon| daemon.launch(&job.spec)).transpose()?])
    })?;
    Ok(rows.into())
}

/// In a task that runs: a command, and questions.
pub fn within(rounds: &mut Rounds, on: &mut Managers) -> Result<Vec<Row>> {
    let held = on.hold()?;
    let mut rows = Vec::new();
    for (name, gap) in [("containerd: exec", Gap::None), ("containerd: exec, 100 ms apart", Gap::Fixed)] {
        rows.extend(rounds.measure([name], gap, on, ready, |on, column| {
            Ok([on.at(column).zip(held[column].as_ref()).map(|(daemon, one)| daemon.exec_in(one.id())).transpose()?])
        })?);
    }
    for call in [Call::Nothing, Call::State, Call::Processes, Call::Stats] {
        let name = format!("containerd: {}", call.name());
        rows.extend(rounds.measure([name.as_str()], Gap::None, on, ready, |on, column| {
            Ok([on
                .at(column)
                .zip(held[column].as_ref())
                .map(|(daemon, one)| daemon.call(one.id(), call))
                .transpose()?])
        })?);
    }
    on.end(held)?;
    Ok(rows)
}

/// Much output, through a terminal and without.
pub fn output(
    rounds: &mut Rounds,
    on: &mut Managers,
    contenders: &Contenders,
    Written(much, count, bytes): Written,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (place, terminal) in [("a FIFO", false), ("a terminal", true)] {
        let name = format!("containerd: {much} to {place}");
        let job = contenders.job(&["/bin/busybox", "dd", "if=/dev/zero", "bs=64k", "status=none", count], "default")?;
        let mut spec = job.spec;
        spec["process"]["terminal"] = json!(terminal);
        rows.extend(rounds.measure([name.as_str()], Gap::None, on, ready, |on, column| {
            // The floor has no process that would write.
            let daemon = on.at(column).filter(|_| column != FLOOR);
            Ok([daemon.map(|daemon| daemon.output(&spec, terminal, bytes)).transpose()?])
        })?);
    }
    Ok(rows)
}

/// The end of a task that sleeps.
pub fn kill(rounds: &mut Rounds, on: &mut Managers) -> Result<Vec<Row>> {
    let names = ["containerd: kill to exit event", "containerd: delete after kill"];
    let rows = rounds.measure(names, Gap::None, on, ready, |on, column| {
        let Some(daemon) = on.at(column) else { return Ok([None; 2]) };
        let (ids, _) = daemon.start_all(1, 1)?;
        Ok(daemon.end_all(&ids, 1)?.map(Some))
    })?;
    Ok(rows.into())
}

/// Many, some at a time, for each of them.
pub fn together(rounds: &mut Rounds, on: &mut Managers, count: usize) -> Result<Vec<Row>> {
    let what = format!("containerd: {count} tasks, {} at a time", AT_ONCE.min(count));
    let names = ["start", "kill to exit event", "delete"].map(|part| format!("{what}: {part}, each"));
    let each = |all: Duration| Some(all / u32::try_from(count).unwrap_or(1));
    let rows = rounds.measure(names.each_ref().map(String::as_str), Gap::None, on, ready, |on, column| {
        let Some(daemon) = on.at(column) else { return Ok([None; 3]) };
        let (ids, started) = daemon.start_all(count, AT_ONCE)?;
        let [killed, deleted] = daemon.end_all(&ids, AT_ONCE)?;
        Ok([started, killed, deleted].map(each))
    })?;
    Ok(rows.into())
}

/// What a command in a task takes of the whole machine, in processor time, where ten come each second, as health checks do:
/// less what the machine does without. `count` of them.
pub fn probes(rounds: &Rounds, on: &mut Managers, count: u32) -> Result<Figure> {
    let mut figure = Figure::new("containerd: processor time of the machine for an exec", "ms");
    for (daemon, value) in on.daemons.iter_mut().zip(&mut figure.values) {
        let Some(daemon) = daemon else { continue };
        let one = daemon.hold()?;
        daemon.exec_in(one.id())?;
        let ((idle, probing), busy) = quiet::watched(|| {
            let idle = spent(|| {
                std::thread::sleep(BETWEEN_PROBES * (count / 5).max(20));
                Ok(())
            })?;
            let begin = Instant::now();
            let probing = spent(|| {
                for number in 0..count {
                    rounds.go_on()?;
                    std::thread::sleep((BETWEEN_PROBES * number).saturating_sub(begin.elapsed()));
                    daemon.exec_in(one.id())?;
                }
                Ok(())
            })?;
            Ok((idle, probing))
        })?;
        daemon.end(one)?;
        figure.busy |= busy;
        let [busy, took, idly, idle] = [probing.0, probing.1, idle.0, idle.1].map(|time| time.as_secs_f64());
        *value = Some((busy - idly / idle * took).max(0.0) / f64::from(count) * 1e3);
    }
    Ok(figure)
}

/// Execs in one task, all at once. A peer that takes longer for them than a call may has a dash here, and must not be
/// measured afterwards: it still has to do what it was asked for.
pub fn execs_at_once(rounds: &mut Rounds, on: &mut Managers, count: usize) -> Result<Vec<Row>> {
    let held = on.hold()?;
    let names = ["half have ended", "all have ended"].map(|part| format!("containerd: {count} execs at once: {part}"));
    let mut rows = rounds.measure(names.each_ref().map(String::as_str), Gap::None, on, ready, |on, column| {
        let Some((daemon, one)) = on.at(column).zip(held[column].as_ref()) else { return Ok([None; 2]) };
        match daemon.execs_at_once(&vec![one.id(); count]) {
            // A slow peer is no reason to measure nobody.
            Err(error) if column > BOWLINE && error.kind() == Kind::Timeout => {
                say(&format!("{} has no figure for {count} execs at once: {error}", COLUMNS[column]));
                on.daemons[column] = None;
                Ok([None; 2])
            }
            took => Ok(took?.map(Some)),
        }
    })?;
    // The rounds that it did in time would flatter it.
    for (column, _) in on.daemons.iter().enumerate().filter(|(_, daemon)| daemon.is_none()) {
        rows.iter_mut().for_each(|row| row.samples[column].clear());
    }
    on.end(held)?;
    Ok(rows.into())
}

/// What is left of the machine while each of many tasks has a command in it every second, as Kubernetes' probes are, and
/// how many of them there were in time.
pub fn probes_of_many(rounds: &Rounds, on: &mut Managers, tasks: usize, time: Duration) -> Result<Vec<Figure>> {
    let what = format!("containerd: {tasks} tasks, an exec in each every second");
    let figure = |part: &str| Figure::new(format!("{what}: {part}"), "%");
    let mut figures = vec![figure("the machine is idle"), figure("execs of those asked for")];
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    for (column, daemon) in on.daemons.iter_mut().enumerate() {
        let Some(daemon) = daemon else { continue };
        let (ids, _) = daemon.start_all(tasks, AT_ONCE)?;
        // What the starts and the last execs leave to be done is nobody else's.
        let settle = || std::thread::sleep(memory::SETTLE);
        settle();
        let mut done = 0;
        let ((busy, took), others) = quiet::watched(|| {
            let spent = spent(|| {
                done = daemon.probe_all(&ids, time, AT_ONCE, rounds)?;
                Ok(())
            })?;
            settle();
            Ok(spent)
        })?;
        daemon.end_all(&ids, AT_ONCE)?;
        let idle = 1.0 - busy.as_secs_f64() / took.as_secs_f64() / processors;
        let asked = tasks as f64 * took.as_secs_f64();
        for (figure, share) in figures.iter_mut().zip([idle, done as f64 / asked]) {
            figure.values[column] = Some(share.clamp(0.0, 1.0) * 100.0);
            figure.busy |= others;
        }
    }
    Ok(figures)
}

/// How often process 1, such as systemd, is told that mounts have changed: for a launch and for an exec.
pub fn mount_events(rounds: &Rounds, on: &mut Managers, count: usize) -> Result<Vec<Figure>> {
    let figure = |what: &str| Figure::new(format!("containerd: mount changes reported to process 1: {what}"), "number");
    let mut figures = vec![figure("a launch"), figure("an exec")];
    let Managers { daemons, job } = on;
    for (column, daemon) in daemons.iter_mut().enumerate() {
        let Some(daemon) = daemon else { continue };
        let one = daemon.hold()?;
        let (changes, busy) = quiet::watched(|| {
            let launches = mounts::changes(|| each(rounds, count, || daemon.launch(&job.spec)))?;
            Ok([launches, mounts::changes(|| each(rounds, count, || daemon.exec_in(one.id())))?])
        })?;
        daemon.end(one)?;
        for (figure, changes) in figures.iter_mut().zip(changes) {
            figure.values[column] = Some(changes as f64 / count as f64);
            figure.busy |= busy;
        }
    }
    Ok(figures)
}

fn each(rounds: &Rounds, count: usize, mut act: impl FnMut() -> Result<Duration>) -> Result<()> {
    for _ in 0..count {
        rounds.go_on()?;
        act()?;
    }
    Ok(())
}

const BETWEEN_PROBES: Duration = Duration::from_millis(100);

/// The processor time that the machine spends meanwhile, and how long it takes.
fn spent(act: impl FnOnce() -> Result<()>) -> Result<(Duration, Duration)> {
    let watch = quiet::Watch::start()?;
    act()?;
    watch.busy()
}

pub fn memory(rounds: &Rounds, on: &mut Managers, most: usize, idle: Duration) -> Result<Vec<Figure>> {
    let names = memory::names("containerd: ", most);
    let mut figures = names.map(|(name, unit)| Figure::new(name, unit));
    for (column, daemon) in on.daemons.iter_mut().enumerate() {
        rounds.go_on()?;
        // Nobody asks what the floor's shim has.
        let Some(daemon) = daemon.as_mut().filter(|_| column != FLOOR) else { continue };
        let (values, busy) = memory::measure(rounds, daemon, most, idle)?;
        for (figure, value) in figures.iter_mut().zip(values) {
            figure.values[column] = Some(value);
            figure.busy |= busy;
        }
    }
    Ok(figures.into())
}

fn ready(_: &mut Managers) -> Result<()> {
    Ok(())
}
