//! `bowline limits`: limits the host's own slices and services through systemd.
//!
//! ```text
//!   manifest ─► parsed ─► leftovers lifted ─► slices, all or none ─► services ─► recorded
//! ```
//!
//! `apply` makes changes, `bus` talks to systemd and notes what was skipped, `found` knows a unit by all its names,
//! `show` compares, and `track` chooses units for the metrics. Must not: stop or kill anything that runs.

mod apply;
mod bus;
mod found;
mod lasting;
mod show;
mod track;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bowline_executor::internal::housekeeping::runs_systemd;
use bowline_executor::internal::{host_units, probe};
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::host_limits::{self, Manifest, OnFailure, Parsed};

use self::bus::Bus;
use crate::input::args::host_limits::LimitsCommand;
use crate::ui::json;
use crate::ui::print::complain;

/// The largest manifest that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The folder below which systemd mounts the controllers.
const CGROUPS: &str = "/sys/fs/cgroup";

pub async fn run(state: &StateDir, command: LimitsCommand) -> Result<u8> {
    match command {
        LimitsCommand::Apply { file, dry_run } => {
            let mut bus = Bus::new(dry_run);
            let manifest = manifest(&file, &mut bus)?;
            supported()?;
            apply::apply(state, &mut bus, manifest).await?;
            Ok(bus.code())
        }
        LimitsCommand::Reset { file, dry_run } => {
            let mut bus = Bus::new(dry_run);
            let manifest = file.map(|file| manifest(&file, &mut bus)).transpose()?;
            supported()?;
            apply::reset(state, &mut bus, manifest).await?;
            Ok(bus.code())
        }
        LimitsCommand::Show { file, json } => {
            let mut bus = Bus::new(false);
            let manifest = file.map(|file| manifest(&file, &mut bus)).transpose()?;
            supported()?;
            show::run(state, &mut bus, manifest, json).await?;
            Ok(bus.code())
        }
        LimitsCommand::Track { units } if units.is_empty() => track::list(state),
        LimitsCommand::Track { units } => {
            supported()?;
            track::track(state, &Bus::new(false), units).await
        }
        LimitsCommand::Untrack { units } => track::untrack(state, &units),
    }
}

/// Lifts the limits of the host's units after a task found no place in `slice`, if their manifest asks for that. Tells
/// what it does on stderr, and never fails the task.
pub async fn give_up(state: &StateDir, slice: &str) {
    if host_units::applied(state).is_ok_and(|applied| applied.manifest.on_failure == OnFailure::Keep) {
        return;
    }
    match apply::give_up(state, &mut Bus::beside_a_task(), slice).await {
        Ok(true) => complain("all limits that were applied are lifted, as on_failure of their manifest asks", None),
        Ok(false) => {}
        Err(error) => complain(&format!("on_failure of the manifest asks to lift all limits, but {error}"), None),
    }
}

/// Prints the JSON schema of a manifest.
pub fn schema() -> Result<u8> {
    json::print_plain(&host_limits::schema()).map(|()| 0)
}

/// Reads a manifest; reports and skips entries that make no sense.
fn manifest(file: &Path, bus: &mut Bus) -> Result<Manifest> {
    let parsed =
        parsed(file).map_err(|error| error.hint("`bowline schema --limits` prints every field and its form"))?;
    for wrong in parsed.skipped {
        bus.skip(&wrong.to_string());
    }
    Ok(parsed.manifest)
}

fn parsed(file: &Path) -> Result<Parsed> {
    let what = || format!("cannot read {}", file.display());
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(LARGEST + 1).read_to_end(&mut bytes),
        false => File::open(file).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)),
    };
    read.doing(Kind::BadSpec, what)?;
    if bytes.len() as u64 > LARGEST {
        let message = format!("{}: it is larger than a manifest can be ({} KiB)", file.display(), LARGEST >> 10);
        return Err(Error::new(Kind::BadSpec, message));
    }
    let text = String::from_utf8(bytes).doing(Kind::BadSpec, what)?;
    host_limits::parse(&text).map_err(|invalid| Error::from(invalid).within(file.display()))
}

/// Checks that this host supports limits of its units.
///
/// # Errors
/// `Unsupported` if controllers are mounted elsewhere than usual, or systemd does not run this host.
fn supported() -> Result<()> {
    let found = probe::cgroups()?;
    let hierarchies = found.hierarchies.iter().map(|one| (one.mount.as_path(), one.controllers.as_slice()));
    if let Some(why) = misplaced(&hierarchies.collect::<Vec<_>>()) {
        return Err(Error::new(Kind::Unsupported, format!("limits of the host's units are not supported here: {why}"))
            .hint("`bowline cgroup set` changes any cgroup by its path"));
    }
    if !runs_systemd() {
        let message = "limits of the host's units are systemd's, and it does not run this host";
        return Err(Error::new(Kind::Unsupported, message)
            .hint("`bowline cgroup set` changes any cgroup by its path; limits of tasks need no systemd"));
    }
    Ok(())
}

/// Returns why the cpu or memory controller is not where it should be.
fn misplaced(hierarchies: &[(&Path, &[String])]) -> Option<String> {
    ["cpu", "memory"].into_iter().find_map(|controller| {
        let has = |(_, controllers): &&(&Path, &[String])| controllers.iter().any(|one| one == controller);
        match hierarchies.iter().find(has) {
            None => Some(format!("the cgroup controller {controller} is not mounted")),
            Some((mount, _)) if !mount.starts_with(CGROUPS) => Some(format!(
                "the cgroup controller {controller} is mounted at {}, not below {CGROUPS}",
                mount.display()
            )),
            Some(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount point and its controllers.
    type Mounted<'a> = (&'a str, &'a [&'a str]);

    #[test]
    fn controllers_are_where_everybody_expects_them() {
        let cases: [(&[Mounted<'_>], Option<&str>); 5] = [
            (&[("/sys/fs/cgroup", &["cpu", "memory", "io"])], None),
            (&[("/sys/fs/cgroup/cpu,cpuacct", &["cpu", "cpuacct"]), ("/sys/fs/cgroup/memory", &["memory"])], None),
            (&[("/dev/cgroup", &["cpu", "memory"])], Some("cpu is mounted at /dev/cgroup")),
            (&[("/sys/fs/cgroup/cpu", &["cpu"]), ("/dev/mem", &["memory"])], Some("memory is mounted at /dev/mem")),
            (&[("/sys/fs/cgroup", &["cpu"])], Some("memory is not mounted")),
        ];
        for (mounts, expected) in cases {
            let owned: Vec<(&Path, Vec<String>)> = mounts
                .iter()
                .map(|(mount, names)| (Path::new(*mount), names.iter().map(|name| (*name).to_owned()).collect()))
                .collect();
            let found = misplaced(&owned.iter().map(|(mount, names)| (*mount, names.as_slice())).collect::<Vec<_>>());
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.as_ref().is_some_and(|why| why.contains(part)), "{found:?}"),
            }
        }
    }
}
