//! What is measured: one function for each group of rows that are measured
//! together. `docs/bench.md` says what each row is.

use std::time::Duration;

use bowline_model::Result;

use crate::contenders::{Bundles, Contenders, Job};
use crate::floor::Filter;
use crate::peers::{Bundle, Peer};
use crate::rounds::{Gap, Rounds};
use crate::shim::{Call, Up};
use crate::table::{BOWLINE, CRUN, Cells, DUTY, FLOOR, RUNC, Row};

/// Shims that are started together, ahead: few enough that none waits so long
/// that it leaves.
const AHEAD: usize = 8;

/// From nothing to nothing, until the exit is known and until all is removed.
pub fn launch(rounds: &mut Rounds, on: &mut Contenders, seccomp: &str, gap: Gap) -> Result<Vec<Row>> {
    let job = on.job(&["/bin/true"], seccomp)?;
    let bundles = on.bundles("launch", &job)?;
    let filter = if seccomp == "default" { Filter::Loaded } else { Filter::Absent };
    let what = match gap {
        Gap::None => format!("launch, seccomp {seccomp}"),
        Gap::Random | Gap::Fixed => format!("launch, seccomp {seccomp}, 60-100 ms apart"),
    };
    let names = [format!("{what}: exit known"), format!("{what}: removed")];
    let rows = rounds.measure(names.each_ref().map(String::as_str), gap, on, ahead, |on, column| {
        Ok(match column {
            FLOOR => on.floor.launch(filter, false)?.map(Some),
            DUTY => on.duty.launch(filter, false)?.map(Some),
            BOWLINE => on.shims.launch(&job.description)?.map(Some),
            _ => [None, peer(on, &bundles, column, |peer, bundle| peer.run(bundle))?],
        })
    })?;
    on.shims.dismiss();
    Ok(rows.into())
}

/// What managers have to do of crun and runc, beside what they ask of bowline.
pub fn commands(rounds: &mut Rounds, on: &mut Contenders) -> Result<Vec<Row>> {
    let job = on.job(&["/bin/true"], "default")?;
    let bundles = on.bundles("commands", &job)?;
    let names = ["launch, seccomp default: by create, start, delete"];
    let rows = rounds.measure(names, Gap::None, on, ahead, |on, column| {
        Ok(match column {
            FLOOR => [Some(on.floor.launch(Filter::Loaded, false)?[1])],
            DUTY => [Some(on.duty.launch(Filter::Loaded, false)?[1])],
            BOWLINE => [Some(on.shims.launch(&job.description)?[1])],
            _ => [peer(on, &bundles, column, |peer, bundle| peer.create_start_delete(bundle))?],
        })
    })?;
    on.shims.dismiss();
    Ok(rows.into())
}

/// What an init of its own adds to a launch: with it, and by turns without.
pub fn init(rounds: &mut Rounds, on: &mut Contenders) -> Result<Vec<Row>> {
    let (without, with) = (on.job(&["/bin/true"], "default")?, on.job_with_init(&["/bin/true"], "default")?);
    let names = ["launch, no init: exit known", "launch, init: exit known", "launch, init: removed"];
    let prepare = |on: &mut Contenders| if on.shims.waiting() < 2 { on.shims.prepare(AHEAD) } else { Ok(()) };
    let rows = rounds.measure(names, Gap::None, on, prepare, |on, column| {
        let mut launch = |init: bool| match column {
            FLOOR => on.floor.launch(Filter::Loaded, init).map(Some),
            DUTY => on.duty.launch(Filter::Loaded, init).map(Some),
            BOWLINE => on.shims.launch(if init { &with } else { &without.description }).map(Some),
            _ => Ok(None),
        };
        let (bare, below) = (launch(false)?, launch(true)?);
        Ok([bare.map(|[known, _]| known), below.map(|[known, _]| known), below.map(|[_, removed]| removed)])
    })?;
    on.shims.dismiss();
    Ok(rows.into())
}

/// Several at once, for each of them.
pub fn together(rounds: &mut Rounds, on: &mut Contenders, count: usize) -> Result<Vec<Row>> {
    let job = on.job(&["/bin/true"], "default")?;
    let mut sets: Cells<Vec<Bundle>> = Default::default();
    for column in [CRUN, RUNC] {
        for number in 0..count {
            let bundles = on.bundles(&format!("together-{number}"), &job)?;
            sets[column].extend(bundles.into_column(column));
        }
    }
    let name = format!("launch, seccomp default, {count} at once: each");
    let prepare = |on: &mut Contenders| on.shims.prepare(count);
    let each = |all: Duration| all / u32::try_from(count).unwrap_or(1);
    let rows = rounds.measure([name.as_str()], Gap::None, on, prepare, |on, column| {
        Ok([match column {
            FLOOR | DUTY => None,
            BOWLINE => Some(each(on.shims.launch_together(&job.description, count)?)),
            _ => on.peer(column).map(|peer| peer.run_together(&sets[column])).transpose()?.map(each),
        }])
    })?;
    on.shims.dismiss();
    Ok(rows.into())
}

/// Sandboxes, and a member beside a task with a shim of its own, whose start
/// counts. The peers have none.
pub fn sandbox(rounds: &mut Rounds, on: &mut Contenders) -> Result<Vec<Row>> {
    const MEMBERS: usize = 3;
    let (sleeps, ends) = (on.member(&["/bin/sleep", "1000000"])?, on.member(&["/bin/true"])?);
    let alone = on.job(&["/bin/true"], "default")?.description;
    let names = ["created", "removed"].map(|part| format!("sandbox of {MEMBERS}: {part}"));
    let names = names.each_ref().map(String::as_str);
    let made = rounds.measure(
        names,
        Gap::None,
        on,
        |_| Ok(()),
        |on, column| match column {
            BOWLINE => Ok(on.shims.sandbox_of(&sleeps, MEMBERS)?.map(Some)),
            _ => Ok([None; 2]),
        },
    )?;
    // By turns in the sandbox and in none.
    let held = on.shims.sandbox()?;
    let names = [
        "sandbox: a member's launch: exit known",
        "sandbox: a member's launch: done",
        "sandbox: joint limit changed",
        "no sandbox: a launch, its shim started: exit known",
        "no sandbox: a launch, its shim started: removed",
    ];
    let joined = rounds.measure(
        names,
        Gap::None,
        &mut (on, held),
        |_| Ok(()),
        |(on, held), column| {
            if column != BOWLINE {
                return Ok([None; 5]);
            }
            let [known, done] = on.shims.member(held, &ends)?;
            let changed = on.shims.change(held)?;
            let [own_known, removed] = on.shims.launch_from_nothing(&alone)?;
            Ok([known, done, changed, own_known, removed].map(Some))
        },
    )?;
    Ok(made.into_iter().chain(joined).collect())
}

/// A running task of each, for what is asked of one.
pub struct Held {
    up: Up,
    ids: Cells<Option<String>>,
}

impl Held {
    /// Starts them, with the default filter.
    pub fn start(on: &mut Contenders) -> Result<Held> {
        let job = sleeper(on)?;
        on.floor.hold()?;
        on.duty.hold()?;
        Held::of(on, "held", &job)
    }

    /// Starts those of a job, which the floors do not have.
    pub fn of(on: &mut Contenders, name: &str, job: &Job) -> Result<Held> {
        let bundles = on.bundles(name, job)?;
        let up = on.shims.hold(&job.description)?;
        let mut ids = Cells::default();
        for column in [CRUN, RUNC] {
            if let (Some(peer), Some(bundle)) = (on.peer(column), bundles.of(column)) {
                ids[column] = Some(peer.hold(bundle)?);
            }
        }
        Ok(Held { up, ids })
    }

    /// The shim of bowline's task.
    pub fn up(&self) -> &Up {
        &self.up
    }

    /// How many tasks there are, those of the floors apart.
    pub fn count(&self) -> usize {
        1 + self.ids.iter().flatten().count()
    }

    /// A question about the task of a column, if that is there.
    pub fn call(&self, on: &mut Contenders, column: usize, call: Call) -> Result<Option<Duration>> {
        match (column, &self.ids[column]) {
            (BOWLINE, _) => on.shims.call(&self.up, call).map(Some),
            (_, Some(id)) => on.peer(column).map_or(Ok(None), |peer| peer.call(id, call)),
            (_, None) => Ok(None),
        }
    }

    /// A command in the task of a peer, if that is there.
    pub fn exec(&self, on: &mut Contenders, column: usize) -> Result<Option<Duration>> {
        on.peer(column).zip(self.ids[column].as_ref()).map(|(peer, id)| peer.exec(id)).transpose()
    }

    pub fn end(self, on: &mut Contenders) -> Result<()> {
        for (column, id) in self.ids.iter().enumerate() {
            if let (Some(peer), Some(id)) = (on.peer(column), id) {
                peer.remove(id)?;
            }
        }
        Ok(())
    }
}

/// A command in a running task.
pub fn exec(rounds: &mut Rounds, on: &mut Contenders, held: &Held, gap: Gap) -> Result<Vec<Row>> {
    let name = match gap {
        Gap::None => "exec, seccomp default",
        Gap::Random | Gap::Fixed => "exec, seccomp default, 100 ms apart",
    };
    let rows = rounds.measure(
        [name],
        gap,
        on,
        |_| Ok(()),
        |on, column| {
            Ok([match column {
                FLOOR => Some(on.floor.exec()?),
                DUTY => Some(on.duty.exec()?),
                BOWLINE => Some(on.shims.exec(&held.up)?),
                _ => held.exec(on, column)?,
            }])
        },
    )?;
    Ok(rows.into())
}

/// Questions. Their floor is a call that does nothing, on the same socket.
pub fn calls(rounds: &mut Rounds, on: &mut Contenders, held: &Held) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for call in [Call::Nothing, Call::State, Call::Processes, Call::Stats] {
        let rows = rounds.measure(
            [call.name()],
            Gap::None,
            on,
            |_| Ok(()),
            |on, column| {
                Ok([match column {
                    FLOOR => Some(on.shims.call(&held.up, Call::Nothing)?),
                    _ => held.call(on, column, call)?,
                }])
            },
        )?;
        all.extend(rows);
    }
    Ok(all)
}

fn ahead(on: &mut Contenders) -> Result<()> {
    // All together: the gap is then as quiet as it can be for most of them.
    if on.shims.waiting() == 0 { on.shims.prepare(AHEAD) } else { Ok(()) }
}

fn peer(
    on: &mut Contenders,
    bundles: &Bundles,
    column: usize,
    measure: impl Fn(&mut Peer, &Bundle) -> Result<Duration>,
) -> Result<Option<Duration>> {
    on.peer(column).zip(bundles.of(column)).map(|(peer, bundle)| measure(peer, bundle)).transpose()
}

/// What an idle shim keeps is measured with this job.
pub fn sleeper(on: &Contenders) -> Result<Job> {
    on.job(&["/bin/sleep", "1000000"], "default")
}
