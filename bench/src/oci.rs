//! The commands of an OCI runtime: `bowline-oci` beside crun and runc, each with the same configuration.

use std::path::Path;
use std::time::Duration;

use bowline_model::Result;

use crate::contenders::{Bundles, Contenders};
use crate::floor::Filter;
use crate::groups::{self, Held};
use crate::peers::{Bundle, Peer};
use crate::rounds::{Gap, Rounds};
use crate::shim::Call;
use crate::table::{BOWLINE, DUTY, FLOOR, Row};

/// The runtime of this column, ours among them, and its bundle.
struct Runtimes<'a> {
    on: &'a mut Contenders,
    ours: &'a mut Peer,
}

impl Runtimes<'_> {
    fn of(&mut self, column: usize) -> Option<&mut Peer> {
        if column == BOWLINE { Some(self.ours) } else { self.on.peer(column) }
    }

    fn measure(
        &mut self,
        column: usize,
        bundles: (&Bundle, &Bundles),
        measure: impl Fn(&mut Peer, &Bundle) -> Result<Duration>,
    ) -> Result<Option<Duration>> {
        let bundle = if column == BOWLINE { Some(bundles.0) } else { bundles.1.of(column) };
        self.of(column).zip(bundle).map(|(runtime, bundle)| measure(runtime, bundle)).transpose()
    }
}

/// From nothing to nothing, by one command and by three; then commands about a container that runs.
pub fn run(rounds: &mut Rounds, on: &mut Contenders, held: &Held, bin: &Path) -> Result<Vec<Row>> {
    let mut ours = Peer::at("bowline-oci", bin.join("bowline-oci"), on.state(), on.name())?;
    let mut rows = Vec::new();
    for seccomp in ["unconfined", "default"] {
        let job = on.job(&["/bin/true"], seccomp)?;
        let theirs = on.bundles("oci", &job)?;
        let own = ours.bundle("oci", &job.spec, &job.command)?;
        let filter = if seccomp == "default" { Filter::Loaded } else { Filter::Absent };
        for gap in [Gap::None, Gap::Random] {
            let apart = if gap == Gap::None { "" } else { ", 60-100 ms apart" };
            let names = ["run", "create, start, delete"].map(|what| format!("oci: {what}, seccomp {seccomp}{apart}"));
            let mut runtimes = Runtimes { on, ours: &mut ours };
            rows.extend(rounds.measure(
                names.each_ref().map(String::as_str),
                gap,
                &mut runtimes,
                |_| Ok(()),
                |runtimes, column| {
                    Ok(match column {
                        FLOOR => [Some(runtimes.on.floor.launch(filter, false)?[1]), None],
                        DUTY => [Some(runtimes.on.duty.launch(filter, false)?[1]), None],
                        _ => [
                            runtimes.measure(column, (&own, &theirs), Peer::run)?,
                            runtimes.measure(column, (&own, &theirs), Peer::create_start_delete)?,
                        ],
                    })
                },
            )?);
        }
    }
    rows.extend(commands_of_one(rounds, on, &mut ours, held)?);
    Ok(rows)
}

fn commands_of_one(rounds: &mut Rounds, on: &mut Contenders, ours: &mut Peer, held: &Held) -> Result<Vec<Row>> {
    let job = groups::sleeper(on)?;
    let bundle = ours.bundle("oci-held", &job.spec, &job.command)?;
    let id = ours.hold(&bundle)?;
    let mut rows = Vec::new();
    for gap in [Gap::None, Gap::Fixed] {
        let apart = if gap == Gap::None { "" } else { ", 100 ms apart" };
        let names = ["exec", "state"].map(|what| format!("oci: {what}{apart}"));
        rows.extend(rounds.measure(
            names.each_ref().map(String::as_str),
            gap,
            &mut Runtimes { on, ours },
            |_| Ok(()),
            |Runtimes { on, ours }, column| {
                Ok(match column {
                    FLOOR => [Some(on.floor.exec()?), None],
                    DUTY => [Some(on.duty.exec()?), None],
                    BOWLINE => [Some(ours.exec(&id)?), ours.call(&id, Call::State)?],
                    _ => [held.exec(on, column)?, held.call(on, column, Call::State)?],
                })
            },
        )?);
    }
    ours.remove(&id)?;
    Ok(rows)
}
