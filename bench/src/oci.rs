//! The commands of an OCI runtime: `bowline-oci` beside crun and runc, each with the same configuration.

use std::path::Path;
use std::time::Duration;

use bowline_executor::Result;

use crate::contenders::{Bundles, Contenders};
use crate::floor::Filter;
use crate::groups;
use crate::peers::{Bundle, Peer};
use crate::rounds::{Gap, Rounds};
use crate::shim::Call;
use crate::table::{BOWLINE, COLUMNS, DUTY, FLOOR, Row};

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
pub fn run(rounds: &mut Rounds, on: &mut Contenders, bin: &Path) -> Result<Vec<Row>> {
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
    rows.extend(held(rounds, on, &mut ours)?);
    Ok(rows)
}

fn held(rounds: &mut Rounds, on: &mut Contenders, ours: &mut Peer) -> Result<Vec<Row>> {
    let job = groups::sleeper(on)?;
    let theirs = on.bundles("oci-held", &job)?;
    let own = ours.bundle("oci-held", &job.spec, &job.command)?;
    let mut runtimes = Runtimes { on, ours };
    let mut ids: [Option<String>; COLUMNS.len()] = Default::default();
    for (column, id) in ids.iter_mut().enumerate() {
        let bundle = if column == BOWLINE { Some(&own) } else { theirs.of(column) };
        *id = runtimes.of(column).zip(bundle).map(|(runtime, bundle)| runtime.hold(bundle)).transpose()?;
    }
    let mut rows = Vec::new();
    for gap in [Gap::None, Gap::Fixed] {
        let apart = if gap == Gap::None { "" } else { ", 100 ms apart" };
        let names = ["exec", "state"].map(|what| format!("oci: {what}{apart}"));
        rows.extend(rounds.measure(
            names.each_ref().map(String::as_str),
            gap,
            &mut runtimes,
            |_| Ok(()),
            |runtimes, column| {
                Ok(match (column, &ids[column]) {
                    (FLOOR, _) => [Some(runtimes.on.floor.exec()?), None],
                    (DUTY, _) => [Some(runtimes.on.duty.exec()?), None],
                    (_, Some(id)) => match runtimes.of(column) {
                        Some(runtime) => [Some(runtime.exec(id)?), runtime.call(id, Call::State)?],
                        None => [None; 2],
                    },
                    (_, None) => [None; 2],
                })
            },
        )?);
    }
    for (column, id) in ids.iter().enumerate() {
        if let (Some(runtime), Some(id)) = (runtimes.of(column), id) {
            runtime.remove(id)?;
        }
    }
    Ok(rows)
}
