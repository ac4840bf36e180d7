//! `limits apply` and `limits reset`: puts limits into effect, or lifts them.
//!
//! Changes are recorded before they are made, so that a run after a crash knows of them.

use bowline_executor::host_units::{Applied, Held};
use bowline_executor::housekeeping::Cgroups;
use bowline_executor::systemd::host::HostUnit;
use bowline_executor::{Error, Kind, Result, StateDir};
use bowline_spec::host_limits::{Change, Manifest, Service, Slice, UnitName};

use super::bus::{Bus, in_force};
use bowline_client::spawn;

/// What was done to a slice, and what undoes it.
enum Done {
    Started(UnitName),
    Changed(UnitName, Change),
}

/// Applies `manifest` in place of what was applied before.
///
/// # Errors
/// The first error that keeps a slice from being as wanted. No slice and no service then has other limits than before.
pub async fn apply(state: &StateDir, bus: &mut Bus, mut manifest: Manifest) -> Result<()> {
    let held = Held::take(state)?;
    let before = held.applied()?;
    let named = |name: &UnitName| names(&manifest).any(|one| one == name);
    let old = clear(bus, &before, |name| !named(name)).await?;
    // Slices come before the slices in them.
    manifest.slices.sort_by(|one, other| stem(&one.name).cmp(stem(&other.name)));
    let units = bus.look(manifest.slices.iter().map(|slice| &slice.name)).await?;
    let missing = manifest.slices.iter().zip(&units).filter(|(_, unit)| !unit.active);
    let mut made = old.made.clone();
    made.extend(missing.map(|(slice, _)| slice.name.clone()));
    made.sort();
    made.dedup();
    put(&held, bus, &Applied { manifest: joined(&manifest, &old.manifest), made: made.clone() })?;
    if let Err(error) = slices(bus, &manifest.slices, units, &before).await {
        put(&held, bus, &old)?;
        return Err(error);
    }
    let services = services(bus, &manifest.services, &before).await?;
    put(&held, bus, &Applied { manifest: Manifest { slices: manifest.slices, services }, made })
}

/// Lifts the limits that `manifest` names, or all that were applied.
pub async fn reset(state: &StateDir, bus: &mut Bus, manifest: Option<Manifest>) -> Result<()> {
    let held = Held::take(state)?;
    let applied = held.applied()?;
    let Some(manifest) = manifest else {
        let left = clear(bus, &applied, |_| true).await?;
        return put(&held, bus, &left);
    };
    for service in &manifest.services {
        let known = applied.manifest.services.iter().any(|one| one.name == service.name);
        if !known && let Some(unit) = theirs(bus, service).await? {
            bus.change(&service.name, service.wanted().lifted().differing(in_force(&unit)), [true; 2]).await?;
        }
    }
    for slice in &manifest.slices {
        let known = applied.manifest.slices.iter().any(|one| one.name == slice.name);
        let unit = bus.look_at(&slice.name).await?;
        if !known && unit.active {
            bus.change(&slice.name, slice.wanted().lifted().differing(in_force(&unit)), [true; 2]).await?;
        }
    }
    let left = clear(bus, &applied, |name| names(&manifest).any(|one| one == name)).await?;
    put(&held, bus, &left)
}

fn put(held: &Held, bus: &Bus, applied: &Applied) -> Result<()> {
    if bus.dry_run { Ok(()) } else { held.apply(applied) }
}

fn names(manifest: &Manifest) -> impl Iterator<Item = &UnitName> {
    let slices = manifest.slices.iter().map(|slice| &slice.name);
    slices.chain(manifest.services.iter().map(|service| &service.name))
}

/// The name of a slice for sorting: `a` comes before `a-b`, which is in it.
fn stem(name: &UnitName) -> &str {
    name.as_str().trim_end_matches(".slice")
}

/// Joins two manifests; for a unit that is in both, the entry of `first` counts.
fn joined(first: &Manifest, second: &Manifest) -> Manifest {
    let mut all = first.clone();
    let has = |name: &UnitName| names(first).any(|one| one == name);
    all.slices.extend(second.slices.iter().filter(|slice| !has(&slice.name)).cloned());
    all.services.extend(second.services.iter().filter(|service| !has(&service.name)).cloned());
    all
}

/// Lifts the applied limits of units for which `over` returns true, and stops slices that were started for them and are
/// empty. Returns what is still applied.
async fn clear(bus: &mut Bus, applied: &Applied, over: impl Fn(&UnitName) -> bool) -> Result<Applied> {
    let mut left = applied.clone();
    left.manifest.services.retain(|service| !over(&service.name));
    left.manifest.slices.retain(|slice| !over(&slice.name));
    for service in applied.manifest.services.iter().filter(|service| over(&service.name)) {
        let lifted = async {
            let unit = bus.look_at(&service.name).await?;
            // A unit that is gone has no limits.
            match unit.loaded {
                true => {
                    bus.change(&service.name, service.wanted().lifted().differing(in_force(&unit)), [true; 2]).await
                }
                false => Ok(()),
            }
        };
        if let Some(error) = unanswered(lifted.await)? {
            bus.skip(&format!("{}: {error}; its limits stay", service.name));
            left.manifest.services.push(service.clone());
        }
    }
    // Slices come after the slices in them.
    let mut slices: Vec<&Slice> = applied.manifest.slices.iter().filter(|slice| over(&slice.name)).collect();
    slices.sort_by(|one, other| stem(&other.name).cmp(stem(&one.name)));
    for slice in slices {
        let unit = bus.look_at(&slice.name).await?;
        if unit.active {
            bus.change(&slice.name, slice.wanted().lifted().differing(in_force(&unit)), [true; 2]).await?;
        }
    }
    let mut made: Vec<UnitName> = left.made.iter().filter(|name| over(name)).cloned().collect();
    made.sort_by(|one, other| stem(other).cmp(stem(one)));
    for name in made {
        let unit = bus.look_at(&name).await?;
        if unit.active && !is_empty(&unit)? {
            bus.skip(&format!("{name}: it is without limits now, and stays, as there are processes in it"));
            continue;
        }
        if unit.active {
            bus.stop_slice(&name).await?;
        }
        left.made.retain(|one| *one != name);
    }
    Ok(left)
}

/// Returns the error if systemd gave no answer about a unit; passes on any other error.
fn unanswered(done: Result<()>) -> Result<Option<Error>> {
    match done {
        Err(error) if error.kind() == Kind::Unavailable => Ok(Some(error)),
        done => done.map(|()| None),
    }
}

fn is_empty(slice: &HostUnit) -> Result<bool> {
    Ok(Cgroups::of_host(spawn::systemd()?)?.is_empty(&slice.cgroup))
}

/// Brings all slices into the wanted state, or none.
async fn slices(bus: &Bus, slices: &[Slice], units: Vec<HostUnit>, before: &Applied) -> Result<()> {
    let mut done = Vec::new();
    for (slice, unit) in slices.iter().zip(units) {
        match one_slice(bus, slice, &unit, before).await {
            Ok(one) => done.extend(one),
            Err(error) => return Err(roll_back(bus, done, error).await),
        }
    }
    Ok(())
}

/// Starts or changes a slice; `None` if its limits are already as wanted.
async fn one_slice(bus: &Bus, slice: &Slice, unit: &HostUnit, before: &Applied) -> Result<Option<Done>> {
    let name = &slice.name;
    if !unit.active {
        bus.start_slice(name, slice.wanted()).await?;
        return Ok(Some(Done::Started(name.clone())));
    }
    let earlier = before.manifest.slices.iter().find(|one| one.name == *name).map(Slice::wanted).unwrap_or_default();
    let now = in_force(unit);
    let change = slice.wanted().after(earlier).differing(now);
    bus.change(name, change, unit.accounting).await?;
    Ok((!change.is_nothing()).then(|| Done::Changed(name.clone(), change.undone(now))))
}

/// Undoes what was done to slices, the last one first. Returns `error`, with a hint on the result.
async fn roll_back(bus: &Bus, done: Vec<Done>, error: Error) -> Error {
    let mut left = Vec::new();
    for one in done.into_iter().rev() {
        let undone = match one {
            Done::Started(name) => bus.stop_slice(&name).await,
            Done::Changed(name, back) => bus.change(&name, back, [true; 2]).await,
        };
        left.extend(undone.err());
    }
    match left.into_iter().next() {
        None => error.hint("no slice and no service has other limits than before"),
        Some(left) => error.hint(format!("besides, {left}")),
    }
}

/// Brings services into the wanted state, each independently. Returns those that have limits now.
async fn services(bus: &mut Bus, services: &[Service], before: &Applied) -> Result<Vec<Service>> {
    let mut applied = Vec::new();
    for service in services {
        let earlier = before.manifest.services.iter().find(|one| one.name == service.name);
        let unit = match theirs(bus, service).await {
            Err(error) if error.kind() == Kind::Unavailable => {
                bus.skip(&error.to_string());
                None
            }
            unit => unit?,
        };
        let Some(unit) = unit else {
            // Limits that were set before remain.
            applied.extend(earlier.cloned());
            continue;
        };
        let wanted = service.wanted().after(earlier.map(Service::wanted).unwrap_or_default());
        match bus.change(&service.name, wanted.differing(in_force(&unit)), [true; 2]).await {
            Ok(()) => applied.push(service.clone()),
            Err(error) => {
                bus.skip(&error.to_string());
                applied.extend(earlier.cloned());
            }
        }
    }
    Ok(applied)
}

/// Looks up a service. Reports and skips one that the host does not have, or that is in another slice than wanted.
async fn theirs(bus: &mut Bus, service: &Service) -> Result<Option<HostUnit>> {
    let name = &service.name;
    let unit = bus.look_at(name).await?;
    if !unit.loaded {
        bus.skip(&format!("{name}: this host has no such unit ({})", unit.load_state));
        return Ok(None);
    }
    match &service.slice {
        Some(slice) if slice.as_str() != unit.slice => {
            bus.skip(&format!("{name}: it is in {}, and should be in {slice}; it is left alone", unit.slice));
            Ok(None)
        }
        _ => Ok(Some(unit)),
    }
}
