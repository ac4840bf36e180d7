//! Where the cgroup of a systemd unit is, found without asking systemd.
//!
//! systemd keeps its units below slices: a folder for each slice, which ends with `.slice`, and in
//! it one for each unit, by the unit's name. A user's systemd has units of the same names, further
//! below a service, where nobody looks. Must not: change anything.

use bowline_cgroup::Hierarchy;
use bowline_spec::unit;

use super::Cgroups;

/// How deep slices are followed: each level is a part of a name of 255 bytes.
const LEVELS: usize = 128;

impl Cgroups {
    /// The path of `name`'s cgroup: `usual` if the unit is there, else wherever a slice has it;
    /// `None` while it does not run.
    pub fn of_unit(&self, name: &str, usual: &str) -> Option<String> {
        let hierarchies = self.layout.hierarchies();
        if usual.starts_with('/') && hierarchies.iter().any(|hierarchy| hierarchy.has(usual)) {
            return Some(usual.to_owned());
        }
        let folder = unit::folder(name);
        hierarchies.iter().find_map(|hierarchy| find(hierarchy, "/", &folder, LEVELS))
    }
}

fn find(hierarchy: &Hierarchy, at: &str, folder: &str, levels: usize) -> Option<String> {
    let children = hierarchy.children(at);
    let path = |child: &str| format!("{}/{child}", at.trim_end_matches('/'));
    if children.iter().any(|child| child == folder) {
        return Some(path(folder));
    }
    let mut slices = children.iter().filter(|child| levels > 0 && child.ends_with(".slice"));
    slices.find_map(|slice| find(hierarchy, &path(slice), folder, levels - 1))
}

/// The id of the sandbox whose shim is in the scope at `path`.
pub(super) fn of_scope(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?.strip_suffix(".scope")?;
    let id = name.strip_prefix("bowline-").unwrap_or(name);
    unit::unescaped(id.strip_suffix(":overhead").unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_a_shim_has_its_sandboxs_id() {
        let id = |name: &str| of_scope(&format!("/bowline_overhead.slice/{name}"));
        assert_eq!(id("bowline-web-1:overhead.scope").as_deref(), Some("web-1"));
        assert_eq!(id("web\\x2d1.scope").as_deref(), Some("web-1"));
        assert_eq!((id("bowline-a.slice"), id("\\x.scope")), (None, None));
    }
}
