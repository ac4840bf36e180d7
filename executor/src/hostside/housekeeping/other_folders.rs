//! Cgroups that are of another state folder, which are for a `gc` of that one; and those of nobody that bowline knows.
//!
//! ```text
//!   cgroup ─► a folder is stored with it ─► is there? ─┐
//!         └─► name ─► with a mark ─────────────────────┼─► of another state folder
//!                 └─► without ─► in the default one? ──┘
//! ```
//!
//! A mark does not tell where its state folder is, so nobody knows whether that is gone. Must not: change anything.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bowline_cgroup::Layout;
use bowline_model::folder::StateDir;
use bowline_model::host_name;
use bowline_spec::place::{OURS, OVERHEAD, SandboxPlace};

use super::{Cgroups, Left, What};
use crate::hostside::owners::is_same;
use crate::hostside::records::Recorded;

/// The other state folders, as one of them sees them.
pub(super) struct Others<'a> {
    state: &'a StateDir,
    /// The cgroups of what is in the default state folder, where that is another one.
    of_default: Vec<String>,
}

impl Others<'_> {
    pub(super) fn of(state: &StateDir) -> Others<'_> {
        let default = StateDir::new(host_name::DEFAULT);
        let ids = if state.mark().is_empty() { Vec::new() } else { default.all_ids().unwrap_or_default() };
        Others {
            state,
            of_default: ids
                .iter()
                .filter_map(|id| Recorded::of(&default.folder(id)))
                .flat_map(Recorded::cgroups)
                .collect(),
        }
    }

    /// The other state folder that the cgroup at `path` is of, by its `name` on the host or by what is stored with it.
    pub(super) fn owner(&self, layout: &Layout, name: &str, path: &str) -> Option<String> {
        let named = |folder: &Path| format!("the state folder {}", folder.display());
        let stored = layout.owners_around(path).into_iter().filter(|(of, _)| Path::new(of).starts_with(path));
        let others =
            stored.filter_map(|(_, owner)| owner.exists().then(|| owner.parent().map(Path::to_owned)).flatten());
        if let Some(other) = others.into_iter().find(|state| !is_same(state, self.state.path())) {
            return Some(named(&other));
        }
        // An id in the default state folder may look like one with a mark.
        let is_own = || self.state.mark().is_empty() && self.state.path().join(name).exists();
        let in_default = || self.of_default.iter().any(|its| Path::new(its).starts_with(path));
        let by_name = self.state.other_owner_of(name).filter(|_| !is_own());
        by_name.or_else(|| in_default().then(|| named(Path::new(host_name::DEFAULT))))
    }
}

impl Cgroups {
    /// The cgroups beside bowline's whose names bowline gives to none.
    pub(super) fn unnamed(&self) -> Vec<Left> {
        let mut found = BTreeMap::new();
        for (above, what) in [(OURS, What::Cgroup), (OVERHEAD, What::Overhead)] {
            for hierarchy in self.layout.hierarchies() {
                for name in hierarchy.names_below(&format!("/{above}")) {
                    let is_named = |name: &str| SandboxPlace::of_path(&format!("/{above}/{name}")).is_some();
                    if !name.to_str().is_some_and(is_named) {
                        let folder = hierarchy.mount().join(above).join(&name);
                        found.entry((above, name)).or_insert((what, folder));
                    }
                }
            }
        }
        let left = |((_, name), (what, folder)): ((_, std::ffi::OsString), (What, std::path::PathBuf))| {
            let id = name.as_bytes().escape_ascii().to_string();
            let folder = folder.as_os_str().as_bytes().escape_ascii();
            let why = format!("bowline gives no such name to {folder}: it is for whoever has made it");
            let name = id.clone();
            Left { what, id, name, why, cgroups: Vec::new(), processes: 0, folder: None, owned: true, elsewhere: false }
        };
        found.into_iter().map(left).collect()
    }
}
