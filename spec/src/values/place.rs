//! Where a sandbox's cgroup is, as a description says it.
//!
//! ```text
//!   /ecs/web             /ecs/web by the cgroupfs driver, ecs-web.slice by systemd; of the sandbox web, if it has no name
//!   /ecs/                the same, of whatever sandbox: its id comes last
//!   ecstasks-web.slice   that slice, by systemd alone
//! ```

use std::fmt;
use std::str::FromStr;

use crate::id::TaskId;
use crate::invalid::Invalid;
use crate::place::{OURS, OVERHEAD, SandboxPlace};
use crate::text::text_value;
use crate::unit;

/// Where a sandbox's cgroup is, with or without the sandbox's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    text: String,
    prefix: String,
    id: Option<TaskId>,
}

impl Place {
    /// The id of the sandbox that this is the place of, where it says which.
    pub fn id(&self) -> Option<&TaskId> {
        self.id.as_ref()
    }

    /// Whether it is the name of a slice, which only systemd makes.
    pub fn is_slice(&self) -> bool {
        !self.text.starts_with('/')
    }

    /// The place of the sandbox `id`: under this name, or under the sandbox's own where this names none.
    ///
    /// # Errors
    /// It is another sandbox's, among those that have no place.
    pub fn of(&self, id: &TaskId) -> Result<SandboxPlace, Invalid> {
        match &self.id {
            Some(own) if own != id && self.prefix == OURS => Err(Invalid::new(
                "place",
                format!("{self} is of a sandbox {own}, and this one is {id}; give both the same id"),
            )),
            own => SandboxPlace::new(&self.prefix, own.as_ref().unwrap_or(id).as_str()),
        }
    }
}

impl FromStr for Place {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Place, Invalid> {
        let wrong = |why: &str| Invalid::value(format!("{text:?} is not a place for a sandbox: {why}"));
        let (prefix, id) = if let Some((above, last)) = text.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
            (above.to_owned(), (!last.is_empty()).then(|| last.to_owned()))
        } else if !text.contains('/') && text.ends_with(".slice") {
            let place = SandboxPlace::of_path(&unit::slice_path(text));
            let place = place.ok_or_else(|| wrong("a slice is named as ecs-web.slice"))?;
            (place.prefix(), Some(place.id().to_owned()))
        } else {
            return Err(wrong(
                "write a path with a cgroup above it, as /ecs/web or /ecs/, or a slice, as ecs-web.slice",
            ));
        };
        let first = prefix.split('/').next().unwrap_or_default();
        if first == OVERHEAD || first == OURS && prefix != OURS {
            return Err(wrong(&format!("what is below /{first} is bowline's own to name")));
        }
        let id = id.map(|id| id.parse::<TaskId>().map_err(|error| wrong(&error.reason))).transpose()?;
        prefix
            .split('/')
            .try_for_each(|part| TaskId::of_manager(part).map(drop))
            .map_err(|error| wrong(&error.reason))?;
        // Whatever the id, the prefix has to be one.
        SandboxPlace::new(&prefix, id.as_deref().unwrap_or("any")).map_err(|error| wrong(&error.reason))?;
        Ok(Place { text: text.to_owned(), prefix, id })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_value!(
    Place,
    "Place",
    string,
    "a cgroup's path whose last part may be left out: it is then the sandbox's id; or the name of a slice of systemd's",
    "/ecs/web",
    "/ecs/",
    "ecstasks-web.slice"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        text.parse().unwrap()
    }

    #[test]
    fn a_place_is_a_path_or_a_slice() {
        for (text, of, cgroupfs, slice) in [
            ("/ecs/web", "web", "/ecs/web", "ecs-web.slice"),
            ("/ecs/", "web-1", "/ecs/web-1", "ecs-web\\x2d1.slice"),
            ("/ecs/tasks/web", "web", "/ecs/tasks/web", "ecs-tasks-web.slice"),
            ("ecstasks-web.slice", "web", "/ecstasks/web", "ecstasks-web.slice"),
            ("ecs-web\\x2d1.slice", "web-1", "/ecs/web-1", "ecs-web\\x2d1.slice"),
            ("/bowline/web", "web", "/bowline/web", "bowline-web.slice"),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
            let found = place.of(&id(of)).unwrap();
            assert_eq!((found.cgroupfs().as_str(), found.slice().unwrap().as_str()), (cgroupfs, slice));
        }
        let renamed: Place = "/ecs/kata_web".parse().unwrap();
        assert_eq!(renamed.of(&id("web")).unwrap().cgroupfs(), "/ecs/kata_web");
        let error = "/bowline/web".parse::<Place>().unwrap().of(&id("shop")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "place: /bowline/web is of a sandbox web, and this one is shop; give both the same id"
        );
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for (text, why) in [
            ("", "as /ecs/web"),
            ("web", "as /ecs/web"),
            ("/web", "with a cgroup above it"),
            ("ecs/web", "as /ecs/web"),
            ("/", "with a cgroup above it"),
            ("//web", "not a place"),
            ("/ecs/../web", ".."),
            ("/../web", ".."),
            ("/ecs/..", ".."),
            ("/ecs//web", "cannot be empty"),
            ("/ecs.slice/web", "named without its suffix"),
            ("web.slice", "ecs-web.slice"),
            ("-.slice", "ecs-web.slice"),
            ("ecs--web.slice", "ecs-web.slice"),
            ("/bowline/web/inner", "bowline's own"),
            ("/bowline-overhead/web", "bowline's own"),
            ("bowline\\x2doverhead-web.slice", "bowline's own"),
            ("/ecs/a b", "not a place"),
        ] {
            let error = text.parse::<Place>().expect_err(text);
            assert!(error.reason.contains(why), "{text}: {error}");
        }
    }
}
