//! `limits show`: compares the wanted limits with those in force.

use bowline_executor::internal::host_units;
use bowline_executor::systemd::host::HostUnit;
use bowline_model::Result;
use bowline_model::folder::StateDir;
use bowline_spec::host_limits::{Change, INFINITY, Manifest, UnitName};
use serde::Serialize;

use super::bus::{Bus, cpu_text, in_force, memory_text};
use super::found::{elsewhere, found};
use crate::ui::json;
use crate::ui::numbers::or_dash;
use crate::ui::print::show;
use crate::ui::screen;
use crate::ui::table::{Cell, Column, render};

/// One unit, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row {
    unit: String,
    /// Whether the host has the unit.
    loaded: bool,
    active: bool,
    /// The slice and the cgroup of the unit; null if the host does not have it.
    slice: Option<String>,
    cgroup: Option<String>,
    /// In percent of one CPU; null for no limit, or if none is wanted.
    cpu_percent_wanted: Option<f64>,
    cpu_percent: Option<f64>,
    /// In bytes; null for no limit, or if none is wanted.
    memory_bytes_wanted: Option<u64>,
    memory_bytes: Option<u64>,
    /// Whether the unit is as wanted.
    as_wanted: bool,
    /// What differs from the wanted state.
    note: Option<String>,
    #[serde(skip)]
    cells: [String; 4],
}

/// Prints the limits that `manifest` wants, or those that were applied, beside those in force.
pub async fn run(state: &StateDir, bus: &mut Bus, manifest: Option<Manifest>, json: bool) -> Result<()> {
    let manifest = match manifest {
        Some(manifest) => manifest,
        None => host_units::applied(state)?.manifest,
    };
    let slices = bus.look(manifest.slices.iter().map(|slice| &slice.name)).await?;
    let mut rows: Vec<Row> =
        manifest.slices.iter().zip(slices).map(|(slice, unit)| row(&slice.name, slice.wanted(), None, unit)).collect();
    let services = found(bus, manifest.services).await?.into_iter();
    rows.extend(services.filter_map(|one| {
        let wanted = one.service.wanted();
        Some(row(&one.service.name, wanted, one.service.slice.as_ref(), one.unit?))
    }));
    if json {
        return json::print_list(&rows);
    }
    let columns = ["UNIT", "STATE", "CPU", "WANTED", "MEMORY", "WANTED", "NOTE"].map(Column::Left);
    let cells = |row: &Row| {
        let state = match row {
            Row { loaded: false, .. } => "missing",
            Row { active: false, .. } => "inactive",
            _ => "active",
        };
        let mut cells = vec![Cell::from(&row.unit), Cell::from(state)];
        cells.extend(row.cells.iter().map(Cell::from));
        cells.push(Cell::from(row.note.as_deref().unwrap_or_default()));
        cells
    };
    show(&render(&columns, &rows.iter().map(cells).collect::<Vec<_>>(), screen::width()))
}

fn row(name: &UnitName, wanted: Change, slice: Option<&UnitName>, unit: HostUnit) -> Row {
    let now = in_force(&unit);
    let there = unit.loaded.then_some(now);
    let elsewhere = slice.and_then(|slice| elsewhere(&unit, slice));
    let note = match elsewhere {
        _ if !unit.loaded => Some(format!("this host has no such unit ({})", unit.load_state)),
        Some(elsewhere) => Some(elsewhere),
        // A slice has limits only while it is active.
        _ if !unit.active && name.as_str().ends_with(".slice") => Some("is not started".to_owned()),
        _ if !wanted.differing(now).is_nothing() => Some("differs".to_owned()),
        _ => None,
    };
    let known = |text: String| Some(text).filter(|text| unit.loaded && !text.is_empty());
    Row {
        unit: name.to_string(),
        loaded: unit.loaded,
        active: unit.active,
        slice: known(unit.slice.clone()),
        cgroup: known(unit.cgroup.clone()),
        cpu_percent_wanted: wanted.cpu.and_then(|cpu| cpu.percent()),
        cpu_percent: there.and_then(|now| now.cpu.percent()),
        memory_bytes_wanted: wanted.memory.filter(|most| *most != INFINITY),
        memory_bytes: there.map(|now| now.memory).filter(|most| *most != INFINITY),
        as_wanted: note.is_none(),
        note,
        cells: [
            or_dash(there.map(|now| cpu_text(now.cpu))),
            or_dash(wanted.cpu.map(cpu_text)),
            or_dash(there.map(|now| memory_text(now.memory))),
            or_dash(wanted.memory.map(memory_text)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(wanted: Change, slice: Option<&str>, unit: HostUnit) -> Option<String> {
        let slice = slice.map(|slice| slice.parse().expect("a slice"));
        let row = row(&"cron.service".parse().expect("a unit"), wanted, slice.as_ref(), unit);
        assert_eq!(row.as_wanted, row.note.is_none());
        row.note
    }

    #[test]
    fn what_is_not_as_it_should_be_is_noted() {
        let there = HostUnit {
            loaded: true,
            active: true,
            slice: "system.slice".to_owned(),
            cpu_quota: 250_000,
            memory: u64::MAX,
            ..HostUnit::default()
        };
        let wanted = |percent: &str| Change::to(percent.parse().ok(), None);
        assert_eq!(noted(wanted("25"), None, there.clone()), None);
        assert_eq!(noted(wanted("25"), Some("system.slice"), there.clone()), None);
        assert_eq!(noted(wanted("26"), None, there.clone()).as_deref(), Some("differs"));
        let elsewhere = noted(wanted("25"), Some("a.slice"), there);
        assert_eq!(elsewhere.as_deref(), Some("is in system.slice, should be in a.slice"));
        let missing = HostUnit { load_state: "not-found".to_owned(), ..HostUnit::default() };
        assert_eq!(noted(wanted("25"), None, missing).as_deref(), Some("this host has no such unit (not-found)"));
    }
}
