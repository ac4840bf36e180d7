//! `limits track` and `limits untrack`: choose the host's units whose figures are among the metrics.

use bowline_executor::internal::host_units::{self, Held, Tracked};
use bowline_executor::systemd::host::HostUnit;
use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use bowline_spec::host_limits::UnitName;
use bowline_spec::unit::{folder, slice_path};

use super::bus::Bus;
use crate::exit_code::PARTLY;
use crate::ui::print::{complain, say};

pub fn list(state: &StateDir) -> Result<u8> {
    for one in host_units::read(state)? {
        say(one.unit.as_str())?;
    }
    Ok(0)
}

/// Tracks all of `units`, or none.
///
/// # Errors
/// `NotFound`, naming a unit that the host does not have.
pub async fn track(state: &StateDir, bus: &Bus, units: Vec<UnitName>) -> Result<u8> {
    let mut new = Vec::with_capacity(units.len());
    for (name, unit) in units.iter().zip(bus.look(&units).await?) {
        new.push(found(name, unit)?);
    }
    let held = Held::take(state)?;
    let mut all = held.tracked()?;
    all.retain(|known| !new.iter().any(|one| one.unit == known.unit));
    for one in new {
        // Two names may mean the same unit.
        if !all.iter().any(|known| known.unit == one.unit) {
            all.push(one);
        }
    }
    held.track(all).map(|()| 0)
}

fn found(name: &UnitName, unit: HostUnit) -> Result<Tracked> {
    // systemd loads a slice of any name, so a slice exists only while it is active.
    let there = unit.loaded && (unit.active || !name.as_str().ends_with(".slice"));
    if !there {
        let state = if unit.loaded { "inactive" } else { unit.load_state.as_str() };
        return Err(Error::new(Kind::NotFound, format!("cannot track {name}: this host has no such unit ({state})"))
            .hint("`systemctl list-units` names those that there are; no unit is tracked that was not before"));
    }
    let cgroup = match unit.cgroup.as_str() {
        // A unit has no cgroup until it is started.
        "" => format!("{}/{}", slice_path(&unit.slice), folder(&unit.name)),
        cgroup => cgroup.to_owned(),
    };
    // Track an alias under its unit's own name.
    Ok(Tracked { unit: unit.name.parse().unwrap_or_else(|_| name.clone()), cgroup })
}

/// Stops tracking units; reports a unit that is not tracked.
pub fn untrack(state: &StateDir, units: &[UnitName]) -> Result<u8> {
    let held = Held::take(state)?;
    let mut all = held.tracked()?;
    let mut code = 0;
    for name in units {
        let before = all.len();
        all.retain(|known| known.unit != *name);
        if all.len() == before {
            complain(&format!("skipped {name}: it is not tracked"), None);
            code = PARTLY;
        }
    }
    held.track(all).map(|()| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, loaded: bool, cgroup: &str) -> HostUnit {
        HostUnit {
            name: name.to_owned(),
            loaded,
            load_state: "not-found".to_owned(),
            slice: "a-b.slice".to_owned(),
            cgroup: cgroup.to_owned(),
            ..HostUnit::default()
        }
    }

    #[test]
    fn a_unit_is_tracked_where_it_is_or_will_be() {
        let name: UnitName = "alias.service".parse().expect("a name");
        let found = |unit| found(&name, unit).map(|one| (one.unit.to_string(), one.cgroup));
        let at = |name: &str, cgroup: &str| Ok((name.to_owned(), cgroup.to_owned()));
        assert_eq!(found(unit("x.service", true, "/y/x.service")), at("x.service", "/y/x.service"));
        assert_eq!(found(unit("x.service", true, "")), at("x.service", "/a.slice/a-b.slice/x.service"));
        let error = found(unit("x.service", false, "")).expect_err("there is none");
        assert!(error.kind() == Kind::NotFound && error.message().contains("alias.service"), "{error}");
    }
}
