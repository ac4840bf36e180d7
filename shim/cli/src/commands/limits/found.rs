//! Services of a manifest with what systemd knows of them, each unit once.

use bowline_executor::systemd::host::HostUnit;
use bowline_model::{Kind, Result};
use bowline_spec::host_limits::{Service, UnitName};
use bowline_spec::unit::{folder, slice_path};

use super::bus::Bus;

/// A service, under the unit's own name.
pub struct Found {
    pub service: Service,
    /// `None` if systemd gave no answer, which is reported.
    pub unit: Option<HostUnit>,
}

/// Looks up services. Several names of one unit are one service: the first entry counts, and another one that wants
/// something else is skipped.
pub async fn found(bus: &mut Bus, services: Vec<Service>) -> Result<Vec<Found>> {
    let mut all: Vec<Found> = Vec::with_capacity(services.len());
    for mut service in services {
        let unit = match bus.look_at(&service.name).await {
            Err(error) if error.kind() == Kind::Unavailable => {
                bus.skip(&error.to_string());
                None
            }
            unit => Some(unit?),
        };
        let typed = service.name.clone();
        if let Some(own) = unit.as_ref().filter(|unit| unit.loaded).and_then(|unit| unit.name.parse().ok()) {
            service.name = own;
        }
        match all.iter().find(|known| known.service.name == service.name) {
            None => all.push(Found { service, unit }),
            Some(known) if known.service == service => {}
            Some(_) => {
                bus.skip(&format!("{typed}: it is another name of {}, whose entry before it counts", service.name));
            }
        }
    }
    Ok(all)
}

/// Where a unit is instead of in `slice`; `None` if it is there.
pub fn elsewhere(unit: &HostUnit, slice: &UnitName) -> Option<String> {
    if slice.as_str() != unit.slice {
        return Some(format!("is in {}, should be in {slice}", unit.slice));
    }
    // systemd moves a unit only when that starts again. In a container, its paths begin above its own slices.
    let there = format!("{}/{}", slice_path(slice.as_str()), folder(&unit.name));
    let still = !unit.cgroup.is_empty() && !unit.cgroup.ends_with(&there);
    still.then(|| format!("is still at {}, and in {slice} once it has started again", unit.cgroup))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_where_its_cgroup_is() {
        let unit = |slice: &str, cgroup: &str| HostUnit {
            name: "x.service".to_owned(),
            slice: slice.to_owned(),
            cgroup: cgroup.to_owned(),
            ..HostUnit::default()
        };
        let wanted: UnitName = "a-b.slice".parse().expect("a slice");
        for (slice, cgroup, expected) in [
            ("a-b.slice", "/a.slice/a-b.slice/x.service", None),
            ("a-b.slice", "/machine/a.slice/a-b.slice/x.service", None),
            ("a-b.slice", "", None),
            ("system.slice", "/system.slice/x.service", Some("is in system.slice, should be in a-b.slice")),
            (
                "a-b.slice",
                "/system.slice/x.service",
                Some("is still at /system.slice/x.service, and in a-b.slice once it has started again"),
            ),
        ] {
            assert_eq!(elsewhere(&unit(slice, cgroup), &wanted).as_deref(), expected);
        }
    }
}
