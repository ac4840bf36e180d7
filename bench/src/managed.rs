//! What is measured through containerd, group by group: bowline's shim beside
//! containerd's own with crun and runc. `docs/bench.md` says what each row is.

use std::path::Path;
use std::time::{Duration, Instant};

use bowline_executor::Result;

use serde_json::json;

use crate::containerd::{Daemon, Runtimes, Sleeper};
use crate::contenders::{Contenders, Job};
use crate::memory::{self, Sleepers as _};
use crate::quiet;
use crate::rounds::{Gap, Rounds};
use crate::shim::Call;
use crate::table::{BOWLINE, COLUMNS, CRUN, Cells, FLOOR, Figure, RUNC, Row};

/// Tasks that a manager starts or ends at a time.
const AT_ONCE: usize = 10;
/// How many times `dd` writes 64 KiB, and what that makes.
const WRITES: &str = "count=320";
const WRITTEN: u64 = 320 * 64 * 1024;

/// A containerd for each contender, by column.
pub struct Managers {
    daemons: Cells<Option<Daemon>>,
    job: Job,
}

impl Managers {
    /// That of a column.
    pub fn at(&mut self, column: usize) -> Option<&mut Daemon> {
        self.daemons[column].as_mut()
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
            (FLOOR, _) => Runtimes::Floor,
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
    let mut held: Cells<Option<Sleeper>> = Default::default();
    for (daemon, held) in on.daemons.iter_mut().zip(&mut held) {
        *held = daemon.as_mut().map(Daemon::hold).transpose()?;
    }
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
    for (daemon, one) in on.daemons.iter_mut().flatten().zip(held.into_iter().flatten()) {
        daemon.end(one)?;
    }
    Ok(rows)
}

/// Much output, through a terminal and without.
pub fn output(rounds: &mut Rounds, on: &mut Managers, contenders: &Contenders) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, terminal) in [("containerd: 20 MB to a FIFO", false), ("containerd: 20 MB to a terminal", true)] {
        let job =
            contenders.job(&["/bin/busybox", "dd", "if=/dev/zero", "bs=64k", "status=none", WRITES], "default")?;
        let mut spec = job.spec;
        spec["process"]["terminal"] = json!(terminal);
        rows.extend(rounds.measure([name], Gap::None, on, ready, |on, column| {
            // The floor has no process that would write.
            let daemon = on.at(column).filter(|_| column != FLOOR);
            Ok([daemon.map(|daemon| daemon.output(&spec, terminal, WRITTEN)).transpose()?])
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

/// What a command in a task takes of the whole machine, in processor time, where one comes every 100 ms, as a health check
/// does: less what the machine does without. `count` of them.
pub fn probes(rounds: &Rounds, on: &mut Managers, count: usize) -> Result<Figure> {
    let mut figure = Figure {
        name: "containerd: processor time of the machine for an exec".to_owned(),
        values: Cells::default(),
        unit: "ms",
    };
    for (daemon, value) in on.daemons.iter_mut().zip(&mut figure.values) {
        let Some(daemon) = daemon else { continue };
        let one = daemon.hold()?;
        daemon.exec_in(one.id())?;
        let idle = spent(|| {
            std::thread::sleep(BETWEEN_PROBES * 20);
            Ok(())
        })?;
        let probing = spent(|| {
            for _ in 0..count {
                rounds.go_on()?;
                std::thread::sleep(BETWEEN_PROBES);
                daemon.exec_in(one.id())?;
            }
            Ok(())
        })?;
        daemon.end(one)?;
        let [busy, took, idly, idle] = [probing.0, probing.1, idle.0, idle.1].map(|time| time.as_secs_f64());
        *value = Some((busy - idly / idle * took).max(0.0) / count as f64 * 1e3);
    }
    Ok(figure)
}

const BETWEEN_PROBES: Duration = Duration::from_millis(100);

/// The processor time that the machine spends meanwhile, and how long it takes.
fn spent(act: impl FnOnce() -> Result<()>) -> Result<(Duration, Duration)> {
    let (begin, before) = (Instant::now(), quiet::busy()?);
    act()?;
    Ok((quiet::busy()?.saturating_sub(before), begin.elapsed()))
}

pub fn memory(rounds: &Rounds, on: &mut Managers, most: usize, idle: Duration) -> Result<Vec<Figure>> {
    let names = memory::names("containerd: ", most);
    let mut figures = names.map(|(name, unit)| Figure { name, values: Cells::default(), unit });
    for (column, daemon) in on.daemons.iter_mut().enumerate() {
        rounds.go_on()?;
        // Nobody asks what the floor's shim has.
        let Some(daemon) = daemon.as_mut().filter(|_| column != FLOOR) else { continue };
        let values = memory::measure(daemon, most, idle)?;
        for (figure, value) in figures.iter_mut().zip(values) {
            figure.values[column] = Some(value);
        }
    }
    Ok(figures.into())
}

fn ready(_: &mut Managers) -> Result<()> {
    Ok(())
}
