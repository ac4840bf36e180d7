//! Looks at the host's own systemd units, limits them, and creates slices for them.

use std::collections::HashMap;

use bowline_executor::internal::{Unit, is_cgroup_v2};
use bowline_executor::systemd::host::{Answer, HostUnit, Question, Revert, memory_property};
use bowline_executor::systemd::{Property, Value};
use bowline_executor::{Doing as _, Error, Kind, Result};
use bowline_spec::unit::{ROOT, parent};
use zbus::{OwnedObjectPath, OwnedVariant, Variant};

use super::drop_ins::{self, CONTROL};
use super::systemd::{Job, NO_SUCH_UNIT, PROPERTIES, Refusal, SYSTEMD, Signals, Systemd, UNIT_EXISTS, values};

const UNIT: &str = "org.freedesktop.systemd1.Unit";
/// The policy of a scope whose processes the kernel kills all together.
const KILL: &str = "kill";
const CPU_QUOTA: &str = "CPUQuotaPerSecUSec";

/// Carries out one request about the host's units.
///
/// # Errors
/// `Unsupported` without a bus; `Unavailable` on a timeout; `BadSpec` for what systemd refuses.
pub async fn answer(question: Question) -> Result<Answer> {
    let systemd = Systemd::connect().await?;
    match question {
        Question::Look(names) => {
            let mut units = Vec::with_capacity(names.len());
            for name in names {
                units.push(look(&systemd, &name).await.map_err(|e| e.within(format_args!("cannot look at {name}")))?);
            }
            return Ok(Answer::Units(units));
        }
        Question::StartSlice { slice, properties } => {
            let started = start_slice(&systemd, &slice, &properties).await;
            started.map_err(|e| e.within(format_args!("cannot start {slice}")))?;
        }
        Question::Change { unit, properties } => {
            let changed = systemd.call("SetUnitProperties", &(&unit, true, values(&properties))).await;
            changed.map_err(|e| bowline_executor::Error::from(e).within(format_args!("cannot change {unit}")))?;
        }
        Question::StopSlice(slice) => {
            stop_slice(&systemd, &slice).await.map_err(|e| e.within(format_args!("cannot stop {slice}")))?;
        }
        Question::Revert(units) => revert(&systemd, &units).await?,
        Question::RemoveDropIns(files) => {
            let units = drop_ins::units_of(&files).into_iter().map(as_it_is).collect::<Result<Vec<_>>>()?;
            files.iter().try_for_each(|file| drop_ins::remove(file))?;
            revert(&systemd, &units).await?;
        }
    }
    Ok(Answer::Done)
}

/// The request that gives a unit the limits in its files as they are now, others' files included.
fn as_it_is(unit: String) -> Result<Revert> {
    let properties = vec![CPU_QUOTA.to_owned(), memory_property(is_cgroup_v2()).to_owned()];
    Ok(Revert { kept: drop_ins::set(&unit)?, unit, properties })
}

/// Has units as their own files say, in systemd and in the kernel.
async fn revert(systemd: &Systemd, units: &[Revert]) -> Result<()> {
    units.iter().try_for_each(drop_ins::revert)?;
    systemd.read_files().await?;
    // Of a unit that runs, the kernel keeps its limits until a property is set (systemd 257): set what the files say,
    // which leaves files of its own.
    for Revert { unit, properties, .. } in units {
        let now = look(systemd, unit).await?;
        let limits = [(CPU_QUOTA, now.cpu_quota), (memory_property(is_cgroup_v2()), now.memory)];
        let limits = limits.into_iter().filter(|(name, _)| properties.iter().any(|property| property == name));
        let limits: Vec<_> = limits.map(|(name, value)| (name, Variant::from(value))).collect();
        if !now.active || limits.is_empty() {
            continue;
        }
        match systemd.call("SetUnitProperties", &(unit, true, limits)).await {
            Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => {}
            set => drop(set?),
        }
    }
    units.iter().try_for_each(drop_ins::revert)?;
    systemd.read_files().await
}

type Properties = HashMap<String, OwnedVariant>;

async fn look(systemd: &Systemd, name: &str) -> Result<HostUnit> {
    let answer = systemd.call("LoadUnit", &(name,)).await?;
    let path: OwnedObjectPath =
        answer.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a unit")?;
    let mut unit = systemd.properties(&path, UNIT).await?;
    let id = text(&mut unit, "Id");
    let load_state = text(&mut unit, "LoadState");
    let transient = is_set(&mut unit, "Transient");
    let active = !matches!(text(&mut unit, "ActiveState").as_str(), "inactive" | "failed" | "maintenance");
    let ending = id.rsplit('.').next().unwrap_or_default();
    let kind = ending.get(..1).unwrap_or_default().to_uppercase() + ending.get(1..).unwrap_or_default();
    let mut more = systemd.properties(&path, &format!("{SYSTEMD}.{kind}")).await?;
    Ok(HostUnit {
        name: id,
        loaded: load_state == "loaded",
        load_state,
        active,
        slice: text(&mut more, "Slice"),
        cgroup: text(&mut more, "ControlGroup"),
        cpu_quota: number(&mut more, CPU_QUOTA),
        memory: number(&mut more, memory_property(is_cgroup_v2())),
        accounting: [flag(&mut more, "CPUAccounting"), flag(&mut more, "MemoryAccounting")],
        transient,
    })
}

/// Refuses a change of a scope that systemd takes only as it starts it: it has `property` already, or not at all.
///
/// # Errors
/// `BadSpec` if the scope has another value.
pub async fn check_scope(systemd: &Systemd, scope: &Unit, property: &Property) -> Result<()> {
    let answer = systemd.call("GetUnit", &(&scope.name,)).await?;
    let path: OwnedObjectPath =
        answer.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a unit")?;
    let mut has = systemd.properties(&path, &format!("{SYSTEMD}.Scope")).await?;
    let now = text(&mut has, &property.name);
    match &property.value {
        Value::Text(wanted) if *wanted != now && now == KILL => {
            let message = format!("{} is {now}, which systemd cannot change any more", property.name);
            Err(Error::new(Kind::BadSpec, message)
                .hint("the task was started with memory.oom.group = 1: start it without"))
        }
        _ => Ok(()),
    }
}

fn text(properties: &mut Properties, name: &str) -> String {
    properties.remove(name).and_then(|value| String::try_from(value).ok()).unwrap_or_default()
}

/// A number, or `u64::MAX` (no limit) where systemd has no such property.
fn number(properties: &mut Properties, name: &str) -> u64 {
    properties.remove(name).and_then(|value| u64::try_from(value).ok()).unwrap_or(u64::MAX)
}

/// A flag, or false where systemd has no such property.
fn is_set(properties: &mut Properties, name: &str) -> bool {
    properties.remove(name).and_then(|value| bool::try_from(value).ok()).unwrap_or_default()
}

/// A flag, or true where systemd no longer has the property, because it then always counts.
fn flag(properties: &mut Properties, name: &str) -> bool {
    properties.remove(name).and_then(|value| bool::try_from(value).ok()).unwrap_or(true)
}

/// Starts a slice and its missing parents; the parents started here stop once nothing else needs them.
async fn start_slice(systemd: &Systemd, slice: &str, properties: &[Property]) -> Result<()> {
    let mut signals = systemd.subscribe().await?;
    let mut above = Vec::new();
    let mut next = parent(slice);
    while next != ROOT {
        if !systemd.knows(&next).await? {
            above.push((next.clone(), vec![("StopWhenUnneeded", Variant::from(true))]));
        }
        next = parent(&next);
    }
    let mut all = vec![("Description", Variant::from("Limits of bowline's manifest"))];
    all.extend(values(properties));
    match systemd.call("StartTransientUnit", &(slice, "replace", all, above)).await {
        // The host has a unit file for this slice: start it and set our properties on top.
        Err(Refusal::Named(name, _)) if name == UNIT_EXISTS => {
            let job = systemd.call("StartUnit", &(slice, "replace")).await?.job()?;
            started(systemd, &mut signals, slice, job).await?;
            let set = systemd.call("SetUnitProperties", &(slice, true, values(properties))).await;
            if set.is_err() {
                let _ = systemd.call("StopUnit", &(slice, "ignore-dependencies")).await;
            }
            set?;
            Ok(())
        }
        answer => started(systemd, &mut signals, slice, answer?.job()?).await,
    }
}

/// Waits for the start job of a slice.
async fn started(systemd: &Systemd, signals: &mut Signals, slice: &str, job: Job) -> Result<()> {
    let done = systemd.finished(signals, job).await;
    if done.is_err() {
        // The start may still succeed later.
        let _ = systemd.call("StopUnit", &(slice, "ignore-dependencies")).await;
    }
    done
}

/// Stops those of `unit`'s own slices that are empty and that systemd created implicitly. A slice that we create ends
/// with its last unit. If that happens after we look at the slice and before another unit starts in it, systemd creates
/// the slice again, and that one would stay forever.
pub async fn end_implicit_slices(systemd: &Systemd, signals: &mut Signals, unit: &Unit) {
    for slice in unit.own_slices() {
        // A refusal means that the slice has just ended.
        if is_left_over(systemd, &slice).await.unwrap_or(false)
            && let Ok(answer) = systemd.call("StopUnit", &(&slice, "ignore-dependencies")).await
            && let Ok(job) = answer.job()
        {
            let _ = systemd.finished(signals, job).await;
        }
    }
}

/// Whether systemd created the slice implicitly and it is empty.
async fn is_left_over(systemd: &Systemd, slice: &str) -> Result<bool> {
    let answer = systemd.call("GetUnit", &(slice,)).await?;
    let path: OwnedObjectPath =
        answer.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a unit")?;
    let mut is = systemd.properties(&path, UNIT).await?;
    if flag(&mut is, "StopWhenUnneeded") || !text(&mut is, "FragmentPath").is_empty() {
        return Ok(false);
    }
    let answer = systemd.call("GetUnitProcesses", &(slice,)).await?;
    let inside: Vec<(String, u32, String)> =
        answer.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a list")?;
    Ok(inside.is_empty())
}

/// Stops only the slice itself. Units that were started in it meanwhile keep running, and then its cgroup stays too.
async fn stop_slice(systemd: &Systemd, slice: &str) -> Result<()> {
    let mut signals = systemd.subscribe().await?;
    // The files of a transient unit outlive it and prevent a new unit of the same name.
    drop_ins::forget(CONTROL, slice)?;
    match systemd.call("StopUnit", &(slice, "ignore-dependencies")).await {
        Ok(answer) => systemd.finished(&mut signals, answer.job()?).await,
        Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

impl Systemd {
    /// Has systemd reload the files of all units.
    async fn read_files(&self) -> Result<()> {
        let read = self.call("Reload", &()).await;
        read.map(drop)
            .map_err(|e| bowline_executor::Error::from(e).within("cannot have systemd reload the files of its units"))
    }

    async fn properties(&self, path: &OwnedObjectPath, interface: &str) -> Result<Properties> {
        let answer = self.ask(path.as_str(), PROPERTIES, "GetAll", &(interface,)).await?;
        answer
            .0
            .body()
            .deserialize()
            .doing(Kind::Internal, || format!("systemd answered without properties of {interface}"))
    }
}
