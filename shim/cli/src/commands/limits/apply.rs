//! `limits apply` and `limits reset`: puts limits into effect, or lifts them.
//!
//! Changes are recorded before they are made, so that a run after a crash knows of them.

use bowline_executor::internal::host_units::{Applied, Held};
use bowline_executor::internal::housekeeping::Cgroups;
use bowline_executor::systemd::host::{DropIn, HostUnit};
use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use bowline_spec::host_limits::{Change, Manifest, OnFailure, Service, Slice, UnitName};
use bowline_spec::unit::{folder, slice_path};

use super::bus::{Bus, Reset, in_force};
use super::found::{Found, elsewhere, found};
use super::lasting::report_overridden;
use bowline_client::spawn;
use bowline_units::drop_ins;

/// What was done to a slice, and what undoes it.
enum Done {
    Started(UnitName),
    Changed(UnitName, Change),
}

/// Applies `manifest` in place of what was applied before.
///
/// # Errors
/// The first error that keeps a slice from being as wanted. No slice and no service then has other limits than before,
/// or none has any, as the manifest asks.
pub async fn apply(state: &StateDir, bus: &mut Bus, mut manifest: Manifest) -> Result<()> {
    let held = Held::take(state)?;
    let before = held.applied()?;
    let mut services = found(bus, manifest.services.clone()).await?;
    let typed = std::mem::take(&mut manifest.services);
    // By their own names.
    manifest.services = services.iter().map(|found| found.service.clone()).collect();
    let typed = typed.iter().map(|service| &service.name);
    if remove_leftovers(bus, names(&manifest).chain(names(&before.manifest)).chain(typed)).await {
        services = found(bus, manifest.services.clone()).await?;
    }
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
    let mut kept = old.kept.clone();
    for name in manifest.services.iter().map(|service| &service.name) {
        let known = before.manifest.services.iter().any(|known| known.name == *name);
        let there = if known { Vec::new() } else { drop_ins::set(name.as_str())? };
        if !there.is_empty() {
            kept.insert(name.clone(), there);
        }
    }
    let to_be = Applied { manifest: joined(&manifest, &old.manifest), made: made.clone(), kept: kept.clone() };
    put(&held, bus, &to_be)?;
    if let Err(error) = slices(bus, &manifest.slices, units, &before).await {
        put(&held, bus, &old)?;
        return match manifest.on_failure {
            OnFailure::Keep => Err(error),
            OnFailure::Disable => Err(without_limits(&held, bus, &old, error).await),
        };
    }
    let services = limit_services(bus, services, &before).await?;
    kept.retain(|name, _| services.iter().any(|service| service.name == *name));
    let applied = Applied { manifest: Manifest { services, ..manifest }, made, kept };
    report_overridden(bus, &applied);
    put(&held, bus, &applied)
}

/// Lifts all limits that were applied after `error`. Returns it, with a hint on the result.
async fn without_limits(held: &Held, bus: &mut Bus, applied: &Applied, error: Error) -> Error {
    let lifted = async {
        let left = clear(bus, applied, |_| true).await?;
        put(held, bus, &left)
    };
    match lifted.await {
        Ok(()) => error.hint("all limits that were applied are lifted, as on_failure of the manifest asks"),
        Err(left) => error.hint(format!("on_failure of the manifest asks to lift all limits, but {left}")),
    }
}

/// Lifts all limits that were applied, where a task has no place in `slice` and the manifest that limits it asks for
/// that. Returns whether it did.
pub async fn give_up(state: &StateDir, bus: &mut Bus, slice: &str) -> Result<bool> {
    let held = Held::take(state)?;
    let applied = held.applied()?;
    let holds = |one: &Slice| slice_path(slice).split('/').any(|name| name == folder(one.name.as_str()));
    if applied.manifest.on_failure != OnFailure::Disable || !applied.manifest.slices.iter().any(holds) {
        return Ok(false);
    }
    let left = clear(bus, &applied, |_| true).await?;
    put(&held, bus, &left).map(|()| true)
}

/// Removes what older versions have left among the drop-ins of these units. Returns whether that changes what is in
/// force.
async fn remove_leftovers(bus: &mut Bus, units: impl Iterator<Item = &UnitName>) -> bool {
    let mut files: Vec<_> = units.flat_map(|unit| drop_ins::of_older_versions(unit.as_str())).collect();
    files.sort();
    files.dedup();
    let some = !files.is_empty() && !bus.dry_run;
    // What cannot be removed keeps nobody from limiting the unit.
    if let Err(error) = bus.remove(files).await {
        bus.skip(&format!("leftovers of an older version: {error}"));
    }
    some
}

/// Gives back the limits that `manifest` names, or all that were applied.
pub async fn reset(state: &StateDir, bus: &mut Bus, manifest: Option<Manifest>) -> Result<()> {
    let held = Held::take(state)?;
    let applied = held.applied()?;
    let Some(mut manifest) = manifest else {
        let left = clear(bus, &applied, |_| true).await?;
        return put(&held, bus, &left);
    };
    let services = found(bus, std::mem::take(&mut manifest.services)).await?;
    manifest.services = services.iter().map(|found| found.service.clone()).collect();
    let mut resets = Vec::new();
    for Found { service, unit } in services {
        let known = applied.manifest.services.iter().any(|one| one.name == service.name);
        let there = unit.is_some_and(|unit| !known && is_theirs(bus, &service, &unit));
        if there && is_set(&service.name)? {
            let (limits, kept) = (service.wanted().lifted(), Vec::new());
            resets.push(Reset { unit: service.name, limits, accounting: true, kept });
        }
    }
    for slice in &manifest.slices {
        let known = applied.manifest.slices.iter().any(|one| one.name == slice.name);
        let unit = bus.look_at(&slice.name).await?;
        if !known && unit.active && (unit.transient || is_set(&slice.name)?) {
            resets.extend(lift(bus, slice, &unit).await?);
        }
    }
    bus.reset(&resets).await?;
    let left = clear(bus, &applied, |name| names(&manifest).any(|one| one == name)).await?;
    put(&held, bus, &left)
}

/// Whether somebody has set properties of the unit until the next boot.
fn is_set(unit: &UnitName) -> Result<bool> {
    Ok(!drop_ins::set(unit.as_str())?.is_empty())
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

/// Takes back the applied limits of units for which `over` returns true, and stops slices that were started for them
/// and are empty. Returns what is still applied.
async fn clear(bus: &mut Bus, applied: &Applied, over: impl Fn(&UnitName) -> bool) -> Result<Applied> {
    let mut left = applied.clone();
    left.manifest.services.retain(|service| !over(&service.name));
    left.manifest.slices.retain(|slice| !over(&slice.name));
    let mut resets = Vec::new();
    for service in applied.manifest.services.iter().filter(|service| over(&service.name)) {
        match unanswered(bus.look_at(&service.name).await)? {
            // A unit that is gone has no limits.
            Ok(unit) if !unit.loaded => {}
            Ok(_) => {
                let kept = applied.kept.get(&service.name).cloned().unwrap_or_default();
                let limits = service.wanted().lifted();
                resets.push(Reset { unit: service.name.clone(), limits, accounting: true, kept });
            }
            Err(error) => {
                bus.skip(&format!("{}: {error}; its limits stay", service.name));
                left.manifest.services.push(service.clone());
            }
        }
    }
    // Slices come after the slices in them.
    let mut slices: Vec<&Slice> = applied.manifest.slices.iter().filter(|slice| over(&slice.name)).collect();
    slices.sort_by(|one, other| stem(&other.name).cmp(stem(&one.name)));
    for slice in slices {
        let unit = bus.look_at(&slice.name).await?;
        if unit.active {
            resets.extend(lift(bus, slice, &unit).await?);
        }
    }
    if let Err(error) = unanswered(bus.reset(&resets).await)? {
        let of_resets = |name: &UnitName| resets.iter().any(|reset| reset.unit == *name);
        let units: Vec<_> = resets.iter().map(|reset| reset.unit.as_str()).collect();
        bus.skip(&format!("{}: {error}; their limits stay", units.join(", ")));
        left.manifest.services.extend(applied.manifest.services.iter().filter(|one| of_resets(&one.name)).cloned());
        left.manifest.slices.extend(applied.manifest.slices.iter().filter(|one| of_resets(&one.name)).cloned());
    }
    left.kept.retain(|name, _| left.manifest.services.iter().any(|service| service.name == *name));
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

/// Lifts the limits of a slice that has no file of its own, as its limits are what it was started with. Of a slice that
/// has one, returns what must be reset.
async fn lift(bus: &Bus, slice: &Slice, unit: &HostUnit) -> Result<Option<Reset>> {
    let limits = slice.wanted().lifted();
    if unit.transient {
        bus.change(&slice.name, limits.differing(in_force(unit)), [true; 2]).await?;
        return Ok(None);
    }
    Ok(Some(Reset { unit: slice.name.clone(), limits, accounting: true, kept: Vec::new() }))
}

/// Separates systemd's giving no answer about a unit, which keeps nobody from the next one, from any other error.
fn unanswered<T>(done: Result<T>) -> Result<Result<T>> {
    match done {
        Err(error) if error.kind() != Kind::Unavailable => Err(error),
        done => Ok(done),
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
    match bus.change(name, change, unit.accounting).await {
        // It has ended since we looked.
        Err(error) if error.kind() == Kind::NotFound => {
            bus.start_slice(name, slice.wanted()).await?;
            return Ok(Some(Done::Started(name.clone())));
        }
        changed => changed?,
    }
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
async fn limit_services(bus: &mut Bus, services: Vec<Found>, before: &Applied) -> Result<Vec<Service>> {
    let mut applied = Vec::new();
    for Found { service, unit } in services {
        let earlier = before.manifest.services.iter().find(|one| one.name == service.name);
        let Some(unit) = unit.filter(|unit| is_theirs(bus, &service, unit)) else {
            // Limits that were set before remain.
            applied.extend(earlier.cloned());
            continue;
        };
        let kept = before.kept.get(&service.name).cloned().unwrap_or_default();
        match limit(bus, &service, &unit, earlier, kept).await {
            Ok(()) => applied.push(service),
            // A unit that is gone has no limits.
            Err(error) if error.kind() == Kind::NotFound => {
                bus.skip(&format!("{}: it has gone since it was looked at", service.name));
            }
            Err(error) => {
                bus.skip(&error.to_string());
                applied.extend(earlier.cloned());
            }
        }
    }
    Ok(applied)
}

/// Gives back the limits of a service that only the earlier manifest names, and sets those that differ.
async fn limit(
    bus: &Bus,
    service: &Service,
    unit: &HostUnit,
    earlier: Option<&Service>,
    kept: Vec<DropIn>,
) -> Result<()> {
    let wanted = service.wanted();
    let over = earlier.map(Service::wanted).unwrap_or_default().without(wanted);
    if !over.is_nothing() {
        bus.reset(&[Reset { unit: service.name.clone(), limits: over.lifted(), accounting: false, kept }]).await?;
    }
    bus.change(&service.name, wanted.differing(in_force(unit)), unit.accounting).await
}

/// Whether a service is where it should be. Reports and skips one that the host does not have, or that is in another
/// slice than wanted.
fn is_theirs(bus: &mut Bus, service: &Service, unit: &HostUnit) -> bool {
    let name = &service.name;
    if !unit.loaded {
        bus.skip(&format!("{name}: this host has no such unit ({})", unit.load_state));
    } else if let Some(place) = service.slice.as_ref().and_then(|slice| elsewhere(unit, slice)) {
        bus.skip(&format!("{name}: it {place}; it is left alone"));
    } else {
        return true;
    }
    false
}
