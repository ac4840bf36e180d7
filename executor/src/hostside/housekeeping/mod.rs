//! Housekeeping among cgroups: any path, over all mounted hierarchies, and orphans.
//!
//! ```text
//!   path ─► Cgroups: exists, ensure, usage, configuration, change, kill, destroy, place
//!   state folder, hierarchies, living shims ─► orphans ─► removed, or listed
//! ```
//!
//! On a host that systemd runs, a path that is a systemd unit's by its name is started, changed and
//! stopped by systemd. Everything blocks: these calls are for workers, and for programs that may
//! wait. A failure here harms no task.

mod configuration;
mod left;
mod orphans;
mod other_folders;
mod remains;
mod unit_cgroup;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bowline_cgroup::{self as cgroup, Cgroup, Hierarchy, Layout, Membership, Permit, Unit, checked_path};
use bowline_error::{Error, Kind, Result, together};
use bowline_model::report::SliceEnforcement;
use bowline_model::stats;
use bowline_model::stats::Stats;
use bowline_model::stats::enforcement;
use bowline_model::stats::figures;
use oci_spec::runtime::LinuxResources;
use serde::Serialize;

pub use self::configuration::Configuration;
pub use self::left::{Left, Outcome, What};
pub use self::orphans::Pods;
use crate::hostside::systemd::Systemd;
use crate::oci::host;
pub use bowline_cgroup::{Destroyed, Difference};

/// The folder that exists if systemd runs this host: sd_booted(3).
const BOOTED: &str = "/run/systemd/system";

/// All cgroups of this host.
#[derive(Debug)]
pub struct Cgroups {
    layout: Layout,
    systemd: Systemd,
}

/// What a cgroup and those below it use now. A figure that this host does not measure is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Memory in use, page cache included, in bytes.
    pub memory_bytes: Option<u64>,
    /// CPU time used since the cgroup was made, in µs.
    pub cpu_usec: Option<u64>,
    /// The number of processes and threads.
    pub pids: Option<u64>,
    /// Huge pages in use, in bytes, by the size of a page.
    pub hugepages: BTreeMap<String, u64>,
}

/// The result of placing threads.
#[derive(Debug, Default)]
pub struct Placed {
    /// The threads that are there now.
    pub placed: Vec<i32>,
    /// The threads that were skipped, and why.
    pub skipped: Vec<(i32, Error)>,
}

/// The hierarchies in which a cgroup has to be that tasks are limited in. Source: the kubelet's `Validate`
/// (cgroup_v1_manager_linux.go).
const NEEDED: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "name=systemd"];

/// Where a cgroup is: the mounts of hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing<'a> {
    /// Those that have it.
    pub at: Vec<&'a Path>,
    /// Those that lack it, although they limit or count tasks.
    pub missing: Vec<&'a Path>,
}

impl Cgroups {
    /// Finds this host's hierarchies; `systemd` stops units.
    ///
    /// # Errors
    /// `Unsupported` on a host without hierarchies.
    pub fn of_host(systemd: Systemd) -> Result<Cgroups> {
        Ok(Cgroups { layout: cgroup::detect()?, systemd })
    }

    /// No cgroups, for a host where they are switched off: every request counts as done, and
    /// nothing is found, used or changed.
    pub fn off(systemd: Systemd) -> Cgroups {
        Cgroups { layout: Layout::none(), systemd }
    }

    fn is_off(&self) -> bool {
        self.layout.hierarchies().is_empty()
    }

    /// Asks each hierarchy for a cgroup at `path`.
    ///
    /// # Errors
    /// `BadSpec` for a `path` that is no cgroup path, as everywhere here.
    pub fn exists(&self, path: &str) -> Result<Existing<'_>> {
        let path = checked_path(path)?;
        let (having, without): (Vec<_>, Vec<_>) = self.layout.hierarchies().iter().partition(|h| h.has(path));
        let is_needed = |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|it| NEEDED.contains(&it.as_str()));
        Ok(Existing {
            at: having.into_iter().map(Hierarchy::mount).collect(),
            missing: without.into_iter().filter(is_needed).map(Hierarchy::mount).collect(),
        })
    }

    /// Whether no process is in the cgroup at `path` or below it; also true if there is no cgroup.
    pub fn is_empty(&self, path: &str) -> bool {
        path.is_empty() || self.layout.processes_at(path).is_empty()
    }

    /// Makes the cgroup at `path`, with its parents, wherever it is missing. With `threaded`, makes
    /// it for threads of a process that is in its parent.
    ///
    /// # Errors
    /// `Unsupported` for a scope on a host with systemd, because a scope begins with a process;
    /// what the kernel or systemd refuses.
    pub fn ensure(&self, path: &str, threaded: bool) -> Result<()> {
        let path = checked_path(path)?;
        match unit_of(path).filter(|_| !self.is_off()) {
            None if self.is_off() => Ok(()),
            Some(unit) if !unit.is_slice() => {
                Err(Error::new(Kind::Unsupported, format!("cannot make {}: a scope begins with a process", unit.name))
                    .hint("name a slice, or what is no unit of systemd"))
            }
            Some(unit) => {
                match self.systemd.start(&unit, std::process::id(), Vec::new()) {
                    Err(error) if error.kind() == Kind::AlreadyExists => {}
                    started => started?,
                }
                self.layout.adopt(&unit).map(drop)
            }
            None if threaded => self.layout.prepare_threaded(path),
            None => self.layout.prepare(path),
        }
    }

    /// What the cgroup at `path` uses now.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn usage(&self, path: &str) -> Result<Usage> {
        if self.is_off() {
            return Ok(Usage::default());
        }
        let cgroup = self.open(path)?;
        let page_sizes: Vec<String> = host::hugepage_sizes().into_iter().collect();
        let read = stats::read(&self.layout, &cgroup, &page_sizes);
        let hugepages = read.hugepages.into_iter().filter_map(|(size, pages)| Some((size, pages.usage_bytes?)));
        Ok(Usage {
            memory_bytes: read.memory.usage_bytes,
            cpu_usec: read.cpu.usage_usec,
            pids: read.pids.current,
            hugepages: hugepages.collect(),
        })
    }

    /// Everything that is measured of the cgroup at `path`, and how its CPU time is limited.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn figures(&self, path: &str) -> Result<Stats> {
        let page_sizes: Vec<String> = host::hugepage_sizes().into_iter().collect();
        Ok(figures::usage(&self.layout, &self.open(path)?, &page_sizes))
    }

    /// The configuration of the cgroup at `path`.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn configuration(&self, path: &str) -> Result<Configuration> {
        if self.is_off() {
            return Ok(Configuration::default());
        }
        Ok(configuration::read(&self.layout, &self.open(path)?))
    }

    /// Whether the slice that the task in `cgroup` was launched for limits it now.
    pub fn enforcement(&self, recorded: &SliceEnforcement, cgroup: &str) -> SliceEnforcement {
        enforcement::now(&self.layout, recorded, cgroup)
    }

    /// The limits of `resources` that the cgroup at `path` does not have.
    ///
    /// # Errors
    /// `BadSpec` for limits that no cgroup can have.
    pub fn differences(&self, path: &str, resources: &LinuxResources) -> Result<Vec<Difference>> {
        self.layout.differences(path, unit_of(path).as_ref(), resources)
    }

    /// Changes the limits that `resources` names: all, or none. On v1, a change of the memory limit
    /// moves the limit of memory and swap with it, if there is one.
    ///
    /// # Errors
    /// `NotFound` when there is no such cgroup; `Unsupported` for a limit that
    /// this host does not have; `BadSpec` for a value that the kernel refuses.
    pub fn change(&self, path: &str, mut resources: LinuxResources) -> Result<()> {
        if self.is_off() {
            return Ok(());
        }
        let opened = self.open(path)?;
        let cgroup = match unit_of(path) {
            Some(unit) => self.layout.adopt(&unit)?,
            None => opened,
        };
        configuration::keep_swap(&self.layout, &cgroup, &mut resources);
        let before = LinuxResources::default();
        self.layout.change(&cgroup, &resources, &before, |unit, properties| self.systemd.change(unit, properties))
    }

    /// Gives the cgroup at `path` the smallest share of CPU time when CPU time is short: 2 shares, a weight of 1.
    ///
    /// # Errors
    /// As for [`Cgroups::change`].
    pub fn reduce_cpu(&self, path: &str) -> Result<()> {
        self.change(path, configuration::least_cpu())
    }

    /// Kills every process in the cgroup at `path` and below it. A missing cgroup is fine.
    ///
    /// # Errors
    /// `WrongState` when the caller is in it; `Internal` naming the processes that live on.
    pub fn kill(&self, path: &str) -> Result<()> {
        let path = checked_path(path)?;
        self.check_not_in(path)?;
        match self.layout.open(path)? {
            Some(cgroup) => self.layout.kill_all(&cgroup, None),
            None => Ok(()),
        }
    }

    /// Kills what is in the cgroup at `path` and removes it with everything below it; processes
    /// that cannot be killed are moved to a parent.
    ///
    /// # Errors
    /// `WrongState` when the caller is in it; else all that kept it from being removed, in one.
    pub fn destroy(&self, path: &str) -> Result<Destroyed> {
        self.destroy_if(path, None)
    }

    fn destroy_if(&self, path: &str, permit: Option<Permit<'_>>) -> Result<Destroyed> {
        let path = checked_path(path)?;
        self.check_not_in(path)?;
        let Some(unit) = unit_of(path) else {
            return self.layout.destroy(path, permit);
        };
        let Some(cgroup) = self.layout.open(path)? else {
            return Ok(Destroyed::default());
        };
        let killed = self.layout.kill_all(&cgroup, permit);
        if killed.as_ref().is_err_and(|error| error.kind() == Kind::WrongState) {
            return killed.map(|()| Destroyed::default());
        }
        // systemd removes what it has made; the rest is ours.
        let stopped = self.systemd.stop(&unit);
        let destroyed = self.layout.destroy(path, permit);
        match destroyed {
            Ok(destroyed) => stopped.map(|()| Destroyed { was_there: true, ..destroyed }),
            Err(error) => together(stopped.err().into_iter().chain([error])).map(|()| Destroyed::default()),
        }
    }

    /// Moves single threads to the cgroup at `path`. An id that is no thread is skipped.
    ///
    /// # Errors
    /// `NotFound` when there is no such cgroup.
    pub fn place(&self, path: &str, threads: &[i32]) -> Result<Placed> {
        if !self.is_off() && self.exists(path)?.at.is_empty() {
            return Err(missing(path));
        }
        let mut placed = Placed::default();
        for &thread in threads {
            match self.layout.place_thread(path, thread) {
                Ok(()) => placed.placed.push(thread),
                Err(error) => placed.skipped.push((thread, error)),
            }
        }
        Ok(placed)
    }

    fn open(&self, path: &str) -> Result<Cgroup> {
        self.layout.open(path)?.ok_or_else(|| missing(path))
    }

    /// A caller that kills the cgroup it is in does not live to remove it.
    fn check_not_in(&self, path: &str) -> Result<()> {
        let own = Membership::own().unwrap_or_default();
        if own.all().any(|(_, own)| own.starts_with(path)) {
            return Err(Error::new(Kind::WrongState, format!("cgroup {path} has this very process in it"))
                .hint("run it from elsewhere: from a shell in another cgroup"));
        }
        Ok(())
    }
}

fn missing(path: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no cgroup {path}")).hint("`bowline cgroup ensure` makes one")
}

/// The unit whose cgroup is at `path`, where systemd runs this host.
fn unit_of(path: &str) -> Option<Unit> {
    Unit::of_path(path).filter(|_| runs_systemd())
}

/// Whether systemd runs this host.
pub fn runs_systemd() -> bool {
    Path::new(BOOTED).is_dir()
}

/// Where `path` is in these hierarchies, for messages: the folder if it is in one hierarchy, the
/// path if it is in several.
fn place_of(path: &str, mounts: &[PathBuf]) -> String {
    match mounts {
        [one] => one.join(path.trim_start_matches('/')).display().to_string(),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_model::folder::StateDir;

    #[test]
    fn where_cgroups_are_off_everything_is_done_and_nothing_found() {
        let cgroups = Cgroups::off(Systemd::by("/nowhere/bowline"));
        let dir = tempfile::tempdir().expect("a folder");
        for path in ["/a/b", "/a.slice/a-b.slice"] {
            assert_eq!(cgroups.ensure(path, false), Ok(()));
            let nowhere = Existing { at: Vec::new(), missing: Vec::new() };
            assert_eq!(cgroups.exists(path), Ok(nowhere));
            assert_eq!(
                (cgroups.usage(path), cgroups.configuration(path)),
                (Ok(Usage::default()), Ok(Configuration::default()))
            );
            assert_eq!((cgroups.reduce_cpu(path), cgroups.kill(path)), (Ok(()), Ok(())));
            assert_eq!(cgroups.destroy(path), Ok(Destroyed::default()));
            assert!(cgroups.place(path, &[1]).is_ok_and(|placed| placed.skipped.is_empty()));
        }
        let pods = Pods { root: "kubepods", alive: None };
        assert_eq!(cgroups.left_behind(&StateDir::new(dir.path()), Some(pods)), Ok(Vec::new()));
        assert_eq!(cgroups.ensure("a", false).expect_err("no path").kind(), Kind::BadSpec);
    }

    #[test]
    fn one_place_is_told_as_a_folder() {
        let mounts = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"].map(PathBuf::from);
        assert_eq!(place_of("/a/b", &mounts[..1]), "/sys/fs/cgroup/pids/a/b");
        assert_eq!(place_of("/a/b", &mounts), "/a/b");
    }
}
