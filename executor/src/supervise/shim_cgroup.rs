//! Where the shim itself is charged. Before a launch, the shim moves from its manager's cgroups to the root. Once
//! the task has run for a moment, it enters its overhead cgroup, or a chosen one. It leaves the overhead cgroup
//! before that is removed.

use std::cell::OnceCell;
use std::str::FromStr;
use std::time::Duration;

use bowline_cgroup::{self as cgroup, Cgroup, Entry, Layout, Unit, Version};
use bowline_error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::hostside::systemd::Systemd;
use crate::process::worker;

use crate::hostside::task_units::{self as units, remove_cgroup};

/// How long a task runs before the shim enters its overhead cgroup: creating one in every hierarchy, and moving
/// there and back, costs as much as a short task.
pub const SETTLED: Duration = Duration::from_millis(100);

/// The cgroup that the shim's own resource use is charged to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ShimCgroup {
    /// The cgroup of its manager.
    Inherit,
    /// The root cgroup of every hierarchy, so that nothing is charged for the shim.
    Root,
    /// A cgroup beside its tasks, without limits.
    #[default]
    Overhead,
    /// An existing cgroup, by its path.
    Path(String),
}

impl FromStr for ShimCgroup {
    type Err = Error;

    fn from_str(text: &str) -> Result<ShimCgroup> {
        match text {
            "inherit" => Ok(ShimCgroup::Inherit),
            "root" => Ok(ShimCgroup::Root),
            "overhead" => Ok(ShimCgroup::Overhead),
            path if path.starts_with('/') => cgroup::checked_path(path).map(|p| ShimCgroup::Path(p.to_owned())),
            other => Err(Error::new(
                Kind::Usage,
                format!("shim cgroup {other:?} is unknown: inherit, root, overhead, or a path that begins with /"),
            )),
        }
    }
}

impl std::fmt::Display for ShimCgroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ShimCgroup::Inherit => f.write_str("inherit"),
            ShimCgroup::Root => f.write_str("root"),
            ShimCgroup::Overhead => f.write_str("overhead"),
            ShimCgroup::Path(path) => f.write_str(path),
        }
    }
}

/// The cgroup of the shim itself, over its life.
pub struct Overhead {
    mode: ShimCgroup,
    /// The parent of the shim's own cgroup and of its tasks' cgroups.
    sandbox: String,
    /// The shim's own cgroup, where that is not in `sandbox`: a unit, if systemd makes the tasks' cgroups too, or a
    /// cgroup beside a sandbox with limits.
    own: OnceCell<Own>,
    systemd: Systemd,
    /// Locked while the shim moves, so that it enters and leaves in order.
    entered: Mutex<Option<Entered>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Own {
    Unit(Unit),
    Path(String),
}

/// What the shim has entered and must leave again.
enum Entered {
    Cgroup(Cgroup),
    Unit(Unit),
}

/// Where a shim is charged, as it hands that over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    own: Option<Own>,
    entered: bool,
}

impl Handed {
    /// Which of `names` has the shim's own cgroup in it; the first, unless only another has.
    pub fn place<'a>(&self, layout: &Layout, names: &'a [String]) -> &'a str {
        let has = |name: &&String| matches!(layout.open(&format!("{name}/overhead")), Ok(Some(_)));
        let found = names.iter().find(has).filter(|_| self.entered && self.own.is_none());
        found.unwrap_or(&names[0])
    }
}

impl Overhead {
    /// Where the shim is charged, for the program that is executed in its place. Nothing moves the shim meanwhile.
    pub fn hand_over(&self) -> Handed {
        Handed { own: self.own.get().cloned(), entered: self.charged_in().is_some() }
    }

    /// Goes on where the program before this one was.
    pub fn take(
        mode: &ShimCgroup,
        sandbox: &str,
        systemd: &Systemd,
        layout: &Layout,
        handed: Handed,
    ) -> Result<Overhead> {
        let (mode, sandbox, systemd) = (mode.clone(), sandbox.to_owned(), systemd.clone());
        let own = handed.own.map_or_else(OnceCell::new, OnceCell::from);
        let overhead = Overhead { mode, sandbox, own, systemd, entered: Mutex::default() };
        let entered = match overhead.own.get() {
            _ if !handed.entered => None,
            Some(Own::Unit(unit)) => Some(Entered::Unit(unit.clone())),
            Some(Own::Path(_)) | None => layout.open(&overhead.own_path())?.map(Entered::Cgroup),
        };
        Ok(Overhead { entered: Mutex::new(entered), ..overhead })
    }

    /// Leaves the manager's cgroups, as the mode says. `sandbox` is the parent of the cgroups of the shim and its
    /// tasks.
    pub async fn begin(mode: &ShimCgroup, sandbox: &str, systemd: &Systemd, layout: &Layout) -> Result<Overhead> {
        match mode {
            ShimCgroup::Inherit => {}
            ShimCgroup::Root | ShimCgroup::Overhead => move_to(layout, "/").await?,
            ShimCgroup::Path(path) => {
                // Only the kernel knows whether the cgroup can be entered.
                let there = move_to(layout, path).await;
                there.map_err(|e| e.hint("the cgroup must exist in every hierarchy"))?;
                move_to(layout, "/").await?;
            }
        }
        let (mode, sandbox, systemd) = (mode.clone(), sandbox.to_owned(), systemd.clone());
        Ok(Overhead { mode, sandbox, own: OnceCell::new(), systemd, entered: Mutex::default() })
    }

    /// Makes the shim's own cgroup `unit` from now on, a scope beside the task's.
    pub fn be_unit(&self, layout: &Layout, unit: Unit) {
        if self.own.set(Own::Unit(unit)).is_ok() {
            layout.remove_empty(&self.sandbox);
        }
    }

    /// Puts the shim's own cgroup beside a sandbox's from now on, at `path` or as `unit`; the sandbox's may be there.
    pub fn be_sandboxs(&self, layout: &Layout, path: &str, unit: Option<Unit>, there: Option<&str>) {
        let own = unit.map_or_else(|| Own::Path(path.to_owned()), Own::Unit);
        // A new sandbox's own cgroup is created again, with its limits.
        if self.own.set(own).is_ok() && there != Some(&self.sandbox) {
            layout.remove_empty(&self.sandbox);
        }
    }

    fn own_path(&self) -> String {
        match self.own.get() {
            Some(Own::Unit(unit)) => unit.path(),
            Some(Own::Path(path)) => path.clone(),
            None => format!("{}/overhead", self.sandbox),
        }
    }

    /// The path of the shim's own cgroup, in the mode that has one.
    pub fn path(&self) -> Option<String> {
        (self.mode == ShimCgroup::Overhead).then(|| self.own_path())
    }

    /// The path of the shim's own cgroup, once the shim is in it; `None` while the shim enters or leaves.
    pub fn charged_in(&self) -> Option<String> {
        let entered = self.entered.try_lock().ok()?;
        entered.as_ref().map(|_| self.own_path())
    }

    /// The entry for helpers of the sandbox into the shim's own cgroup, once the shim is there; `None` for a unit.
    pub async fn entry(&self) -> Option<Entry> {
        match self.entered.lock().await.as_ref() {
            Some(Entered::Cgroup(cgroup)) => Some(cgroup.entry()),
            Some(Entered::Unit(_)) | None => None,
        }
    }

    /// Enters the overhead cgroup, if a task still runs by then, or the chosen cgroup.
    pub async fn enter(&self, layout: &Layout, runs: impl Fn() -> bool) -> Result<()> {
        let mut entered = self.entered.lock().await;
        match &self.mode {
            ShimCgroup::Inherit | ShimCgroup::Root => Ok(()),
            ShimCgroup::Path(path) => move_to(layout, path).await,
            ShimCgroup::Overhead if entered.is_some() || !runs() => Ok(()),
            ShimCgroup::Overhead => {
                if let Some(Own::Unit(unit)) = self.own.get() {
                    units::enter(&self.systemd, unit).await?;
                    *entered = Some(Entered::Unit(unit.clone()));
                    return Ok(());
                }
                let path = self.own_path();
                *entered = Some(Entered::Cgroup(layout.create(&path)?));
                charge(layout, &path).await
            }
        }
    }

    /// Like [`Self::enter`], where a shim that died may have left the cgroup. Failing to charge the shim is only logged.
    ///
    /// # Errors
    /// As [`Self::take_over`].
    pub async fn enter_again(&self, layout: &Layout) -> Result<()> {
        if !self.take_over(layout).await?
            && let Err(error) = self.enter(layout, || true).await
        {
            tracing::error!(%error, "the shim is charged to the root cgroup");
        }
        Ok(())
    }

    /// Enters the cgroup that a shim that died has left, if it is there, so that this shim removes it; it may have
    /// processes, the sandbox's helpers. Returns whether it was there. Failing to charge the shim is only logged.
    ///
    /// # Errors
    /// When it cannot be told whether that cgroup exists: nobody would remove it then.
    pub async fn take_over(&self, layout: &Layout) -> Result<bool> {
        let path = self.own_path();
        let there = if self.mode == ShimCgroup::Overhead { layout.open(&path)? } else { None };
        let Some(cgroup) = there else { return Ok(false) };
        *self.entered.lock().await = Some(match self.own.get() {
            Some(Own::Unit(unit)) => Entered::Unit(unit.clone()),
            Some(Own::Path(_)) | None => Entered::Cgroup(cgroup),
        });
        if let Err(error) = charge(layout, &path).await {
            tracing::error!(%error, "the shim is charged to the root cgroup");
        }
        Ok(true)
    }

    /// Removes the cgroup that was prepared ahead, if no launch came whose end would have removed it.
    pub fn end(&self, layout: &Layout) {
        layout.remove_empty(&self.sandbox);
    }

    /// Moves the shim from its own cgroup to the root, and removes that cgroup. Returns the helpers that were moved
    /// along.
    pub async fn leave(&self, layout: &Layout) -> Vec<i32> {
        let mut turn = self.entered.lock().await;
        let Some(entered) = turn.take() else { return Vec::new() };
        if let Err(error) = charge(layout, "/").await {
            tracing::error!(%error, "the overhead cgroup stays behind");
            return Vec::new();
        }
        let path = self.own_path();
        let helpers = layout.open(&path).map(|found| found.map(|cgroup| layout.freezable(&cgroup)).unwrap_or_default());
        let mut moved = let_go(layout, helpers).await;
        match entered {
            Entered::Cgroup(mut cgroup) => {
                if layout.remove(&mut cgroup).is_err() {
                    // A helper may have been moved out of the hierarchy by which it is found.
                    moved.extend(let_go(layout, Ok(layout.processes_at(&path))).await);
                    remove_cgroup(layout, &self.systemd, cgroup).await;
                }
            }
            Entered::Unit(unit) => units::stop(&self.systemd, &unit).await,
        }
        moved
    }
}

/// Moves helpers that still live in the shim's own cgroup to the root. Returns those that were moved.
async fn let_go(layout: &Layout, helpers: Result<Vec<i32>>) -> Vec<i32> {
    let moved = async {
        let mut helpers = helpers?;
        if !helpers.is_empty() {
            let gone = worker::run("helpers", || layout.place("/", &helpers)).await?;
            helpers.retain(|pid| !gone.contains(pid));
        }
        Ok(helpers)
    };
    moved.await.unwrap_or_else(|error: Error| {
        tracing::error!(%error, "helpers are left where they were charged");
        Vec::new()
    })
}

/// Moves the shim to `path` in the hierarchies that charge it: the unified hierarchy of a hybrid host has no
/// controllers, and the shim stays at its root.
async fn charge(layout: &Layout, path: &str) -> Result<()> {
    match layout.version() {
        Version::V1 => layout.enter(path),
        Version::V2 => move_to(layout, path).await,
    }
}

/// Moves the shim to `path` in every hierarchy. A worker writes the pid where that write waits for the kernel.
async fn move_to(layout: &Layout, path: &str) -> Result<()> {
    layout.enter(path)?;
    if !layout.is_elsewhere_unified(path) {
        return Ok(());
    }
    let pid = std::process::id();
    worker::run("the shim's cgroup", || layout.move_unified(path, pid)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_prints_as_it_is_written() {
        for text in ["inherit", "root", "overhead", "/system/shims"] {
            let mode: ShimCgroup = text.parse().expect("a mode");
            assert_eq!(mode.to_string(), text);
        }
        for bad in ["", "Root", "a/b", "/a/../b", "/"] {
            assert!(bad.parse::<ShimCgroup>().is_err(), "{bad:?}");
        }
    }
}
