//! Looks at the host's own systemd units, limits them, and creates slices for them.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use bowline_executor::systemd::Property;
use bowline_executor::systemd::host::{Answer, HostUnit, Question, memory_property};
use bowline_executor::{Doing as _, Kind, Result, Unit, is_cgroup_v2};
use bowline_spec::unit::{ROOT, parent};
use zbus::{OwnedObjectPath, OwnedVariant, Variant};

use super::{Job, NO_SUCH_UNIT, Refusal, SYSTEMD, Signals, Systemd, UNIT_EXISTS, values};

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// Where systemd stores properties that apply until the next boot.
const CONTROL: &str = "/run/systemd/system.control";

/// The files below [`CONTROL`] for the properties that we set.
const FILES: [&str; 5] = [
    "50-CPUQuota.conf",
    "50-MemoryMax.conf",
    "50-MemoryLimit.conf",
    "50-CPUAccounting.conf",
    "50-MemoryAccounting.conf",
];

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
    }
    Ok(Answer::Done)
}

type Properties = HashMap<String, OwnedVariant>;

async fn look(systemd: &Systemd, name: &str) -> Result<HostUnit> {
    let answer = systemd.call("LoadUnit", &(name,)).await?;
    let path: OwnedObjectPath =
        answer.0.body().deserialize().doing(Kind::Internal, || "systemd answered without a unit")?;
    let mut unit = systemd.properties(&path, UNIT).await?;
    let id = text(&mut unit, "Id");
    let load_state = text(&mut unit, "LoadState");
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
        cpu_quota: number(&mut more, "CPUQuotaPerSecUSec"),
        memory: number(&mut more, memory_property(is_cgroup_v2())),
        accounting: [flag(&mut more, "CPUAccounting"), flag(&mut more, "MemoryAccounting")],
    })
}

fn text(properties: &mut Properties, name: &str) -> String {
    properties.remove(name).and_then(|value| String::try_from(value).ok()).unwrap_or_default()
}

/// A number, or `u64::MAX` (no limit) where systemd has no such property.
fn number(properties: &mut Properties, name: &str) -> u64 {
    properties.remove(name).and_then(|value| u64::try_from(value).ok()).unwrap_or(u64::MAX)
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
    forget_files(Path::new(CONTROL), slice)?;
    match systemd.call("StopUnit", &(slice, "ignore-dependencies")).await {
        Ok(answer) => systemd.finished(&mut signals, answer.job()?).await,
        Err(Refusal::Named(name, _)) if name == NO_SUCH_UNIT => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Removes the files below `control` for the properties that we set.
fn forget_files(control: &Path, unit: &str) -> Result<()> {
    let folder = control.join(format!("{unit}.d"));
    for file in FILES.map(|name| folder.join(name)) {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).doing(Kind::Internal, || format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    // The folder may hold files of others.
    let _ = fs::remove_dir(folder);
    Ok(())
}

impl Systemd {
    async fn properties(&self, path: &OwnedObjectPath, interface: &str) -> Result<Properties> {
        let answer = self.ask(path.as_str(), PROPERTIES, "GetAll", &(interface,)).await?;
        answer
            .0
            .body()
            .deserialize()
            .doing(Kind::Internal, || format!("systemd answered without properties of {interface}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_have_set_is_forgotten() {
        let control = std::env::temp_dir().join(format!("bowline-units-{}", std::process::id()));
        let folder = control.join("a.slice.d");
        fs::create_dir_all(&folder).expect("writable");
        for name in [FILES[0], FILES[1], "50-TasksMax.conf"] {
            fs::write(folder.join(name), "").expect("writable");
        }
        forget_files(&control, "a.slice").expect("ours");
        forget_files(&control, "b.slice").expect("there is none");
        let left: Vec<_> = fs::read_dir(&folder).expect("somebody's").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["50-TasksMax.conf"]);
        fs::remove_file(folder.join("50-TasksMax.conf")).expect("ours");
        forget_files(&control, "a.slice").expect("empty");
        assert!(!folder.exists());
        fs::remove_dir(control).expect("empty");
    }
}
