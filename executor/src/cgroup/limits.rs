//! Putting limits into effect: at launch, and while the task runs.
//!
//! ```text
//!   resources ─► v1 or v2: which value for which file ─► written, or all undone
//! ```
//!
//! Some files depend on each other (a v1 memory limit and the one with swap; a
//! quota and its period), and which has to be first depends on what is there:
//! what the kernel calls invalid is tried again after the others.

use std::os::fd::BorrowedFd;

use bowline_spec::units::IdSet;
use oci_spec::runtime::LinuxResources;
use rustix::io::Errno;

use super::files::Writer;
use super::systemd::{self, Property, Unit};
use super::tree::{read_at, write_at};
use super::{Cgroup, Layout, Version, devices, v1, v2};
use crate::error::{Error, Kind, Result};

/// One value for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Which hierarchy has the file; on v2 the only one.
    pub controller: &'static str,
    /// The file's name.
    pub file: String,
    /// What is written to it.
    pub value: String,
    /// File and value of a kernel without that file.
    pub otherwise: Option<(&'static str, String)>,
}

impl Limit {
    /// `value` for `file`.
    pub fn new(controller: &'static str, file: impl Into<String>, value: impl Into<String>) -> Limit {
        Limit { controller, file: file.into(), value: value.into(), otherwise: None }
    }

    /// What is written where `file` is missing.
    pub fn or(mut self, file: &'static str, value: impl Into<String>) -> Limit {
        self.otherwise = Some((file, value.into()));
        self
    }

    /// The limit in the file that older kernels have instead.
    fn instead(&self) -> Option<Limit> {
        let (file, value) = self.otherwise.clone()?;
        Some(Limit::new(self.controller, file, value))
    }

    /// Whether a kernel without the file does what it says anyway: what nobody
    /// counts has no limit, and one that counts no swap has none to give. Raw
    /// files are meant as they are.
    fn is_met_without(&self) -> bool {
        match (self.file.as_str(), self.value.as_str()) {
            ("memory.swap.max", "0") | ("memory.memsw.limit_in_bytes", "-1") => true,
            (_, value) => value == "max" && !self.controller.is_empty(),
        }
    }

    /// The device, in a file with a line for each: `8:0`.
    fn device(&self) -> Option<&str> {
        let (first, _) = self.value.split_once(' ')?;
        first.contains(':').then_some(first)
    }
}

impl Layout {
    /// Puts the limits of `resources` into effect on a new cgroup.
    ///
    /// # Errors
    /// `Unsupported` when a limit needs a controller or file that this host
    /// lacks; `BadSpec` when the kernel refuses the value. Both name file and value.
    pub fn apply(&self, cgroup: &Cgroup, resources: &LinuxResources) -> Result<()> {
        let limits = self.limits_of(cgroup, resources)?;
        if self.version() == Version::V2
            && let (Some(dir), Some(rules)) = (cgroup.dir(0), resources.devices())
        {
            devices::enforce(dir, rules).map_err(|e| e.within(format_args!("cgroup {}", cgroup.path)))?;
        }
        self.write_all(cgroup, limits, |_, _| Ok(()))
    }

    /// Changes the limits of a cgroup with processes in it: all, or none. Of a
    /// unit, `tell` says the same to systemd.
    ///
    /// To be called by a worker: memory may have to be reclaimed.
    ///
    /// # Errors
    /// As [`Layout::apply`]; `BadSpec` also when the task uses more memory than
    /// its new limit and it cannot be reclaimed; what `tell` returns.
    pub fn change(
        &self,
        cgroup: &Cgroup,
        resources: &LinuxResources,
        tell: impl FnOnce(&Unit, Vec<Property>) -> Result<()>,
    ) -> Result<()> {
        let mut undo = Vec::new();
        let changed = self.limits_of(cgroup, resources).and_then(|limits| {
            self.write_all(cgroup, limits.clone(), |dir, limit| {
                undo.extend(now(dir, limit));
                if limit.file == "memory.max" { v2::make_room(dir, &limit.value) } else { Ok(()) }
            })?;
            // It writes the same once more, and again when it is reloaded.
            cgroup.unit().map_or(Ok(()), |unit| tell(unit, systemd::of_limits(&limits)))
        });
        if changed.is_err() {
            undo.reverse();
            self.restore(cgroup, undo);
        }
        changed
    }

    /// Puts back what was there, in as many rounds as pairs of files may need.
    fn restore(&self, cgroup: &Cgroup, limits: Vec<Limit>) {
        let is = |limit: &Limit| self.dir_for(cgroup, limit).is_ok_and(|dir| now(dir, limit).as_ref() == Some(limit));
        for _ in 0..2 {
            for limit in limits.iter().filter(|limit| !is(limit)) {
                if let Ok(dir) = self.dir_for(cgroup, limit) {
                    // Whether it is in effect is asked below.
                    let _ = write_at(dir, &limit.file, &limit.value);
                }
            }
        }
        for limit in limits.iter().filter(|limit| !is(limit)) {
            tracing::error!(limit.file, limit.value, "a limit could not be put back");
        }
    }

    /// The limits of `resources`, as whoever has made the cgroup can keep them.
    fn limits_of(&self, cgroup: &Cgroup, resources: &LinuxResources) -> Result<Vec<Limit>> {
        let limits = self.limits(resources)?;
        Ok(if cgroup.unit().is_some() { systemd::kept(limits) } else { limits })
    }

    pub(super) fn limits(&self, resources: &LinuxResources) -> Result<Vec<Limit>> {
        let mut limits = match self.version() {
            Version::V1 => v1::limits(resources)?,
            Version::V2 => v2::limits(resources),
        };
        for hugepages in resources.hugepage_limits().iter().flatten() {
            // The one controller of tasks that a hybrid host may have on v2.
            let name = if self.is_unified("hugetlb") { "max" } else { "limit_in_bytes" };
            let file = format!("hugetlb.{}.{name}", hugepages.page_size());
            let lifted = self.is_unified("hugetlb") && hugepages.limit() < 0;
            let value = if lifted { "max".to_owned() } else { hugepages.limit().to_string() };
            limits.push(Limit::new("hugetlb", file, value));
        }
        Ok(limits)
    }

    /// Writes `limits`, after `before` of each.
    fn write_all(
        &self,
        cgroup: &Cgroup,
        limits: Vec<Limit>,
        mut before: impl FnMut(BorrowedFd<'_>, &Limit) -> Result<()>,
    ) -> Result<()> {
        let mut again = Vec::new();
        let mut writer = Writer::default();
        for limit in limits {
            let dir = self.dir_for(cgroup, &limit)?;
            let (limit, written) = self.write(cgroup, dir, limit, &mut writer, &mut before)?;
            match written {
                Err(Errno::INVAL) => again.push(limit),
                written => self.judge(cgroup, dir, &limit, written)?,
            }
        }
        for limit in again {
            let dir = self.dir_for(cgroup, &limit)?;
            self.judge(cgroup, dir, &limit, write_at(dir, &limit.file, &limit.value))?;
        }
        Ok(())
    }

    /// Writes a limit to the file that this kernel has for it.
    fn write(
        &self,
        cgroup: &Cgroup,
        dir: BorrowedFd<'_>,
        limit: Limit,
        writer: &mut Writer,
        before: &mut impl FnMut(BorrowedFd<'_>, &Limit) -> Result<()>,
    ) -> Result<(Limit, rustix::io::Result<()>)> {
        if self.version() == Version::V2 {
            check_cpuset(cgroup, dir, &limit)?;
        }
        before(dir, &limit)?;
        let mut written = writer.write(dir, &limit.file, &limit.value);
        if written != Err(Errno::NOENT) {
            return Ok((limit, written));
        }
        if self.hand_down(cgroup, limit.controller) {
            before(dir, &limit)?;
            written = writer.write(dir, &limit.file, &limit.value);
        }
        match (written, limit.instead()) {
            (Err(Errno::NOENT), Some(instead)) => {
                before(dir, &instead)?;
                let written = writer.write(dir, &instead.file, &instead.value);
                // Told of the file that everybody knows.
                if written == Err(Errno::NOENT) { Ok((limit, written)) } else { Ok((instead, written)) }
            }
            (written, _) => Ok((limit, written)),
        }
    }

    fn dir_for<'a>(&self, cgroup: &'a Cgroup, limit: &Limit) -> Result<BorrowedFd<'a>> {
        self.index(limit.controller).and_then(|i| cgroup.dir(i)).ok_or_else(|| {
            Error::new(
                Kind::Unsupported,
                format!(
                    "cannot set {} to {}: the cgroup controller {} is not mounted on this host",
                    limit.file, limit.value, limit.controller
                ),
            )
            .hint("`bowline doctor` shows what this host can limit")
        })
    }

    /// Whether what the kernel answered means that the limit is in effect.
    fn judge(
        &self,
        cgroup: &Cgroup,
        dir: BorrowedFd<'_>,
        limit: &Limit,
        written: rustix::io::Result<()>,
    ) -> Result<()> {
        let refused = |kind, why: &dyn std::fmt::Display| refused(cgroup, limit, kind, why);
        match written {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) if limit.is_met_without() => Ok(()),
            Err(Errno::NOENT) => Err(refused(Kind::Unsupported, &"this host has no such file")
                .hint("its controller is missing, or not handed down by a parent cgroup; see `bowline doctor`")),
            Err(Errno::BUSY) if limit.file == "memory.limit_in_bytes" => Err(v1::no_room(dir, &limit.value)),
            Err(Errno::ACCESS) if limit.file.starts_with("cpuset.") => Err(outside_parent(cgroup, limit)),
            Err(errno @ (Errno::INVAL | Errno::RANGE | Errno::NODEV | Errno::BUSY | Errno::NOSPC)) => {
                Err(refused(Kind::BadSpec, &errno))
            }
            Err(errno) => Err(refused(Kind::Internal, &errno)),
        }
    }
}

/// v2 takes any set, and silently makes less of it where the parent has less;
/// and one with processes in it cannot be emptied again.
fn check_cpuset(cgroup: &Cgroup, dir: BorrowedFd<'_>, limit: &Limit) -> Result<()> {
    let (Some("cpus" | "mems"), Ok(asked)) = (limit.file.strip_prefix("cpuset."), limit.value.parse::<IdSet>()) else {
        return Ok(());
    };
    let parents = read_at(dir, &format!("../{}.effective", limit.file)).unwrap_or_default();
    let has = |parents: IdSet| asked.ids().is_subset(parents.ids());
    // A parent without the file has the root's.
    if parents.trim().is_empty() || parents.parse::<IdSet>().is_ok_and(has) {
        return Ok(());
    }
    Err(outside_parent(cgroup, limit))
}

fn outside_parent(cgroup: &Cgroup, limit: &Limit) -> Error {
    refused(cgroup, limit, Kind::BadSpec, "the parent cgroup does not have all of it")
        .hint("choose from the cpuset of the parent cgroup, or widen that")
}

fn refused(cgroup: &Cgroup, limit: &Limit, kind: Kind, why: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("cannot write {} to {} of cgroup {}: {why}", limit.value, limit.file, cgroup.path))
}

/// What undoes a write of `limit`: the file as it is now.
fn now(dir: BorrowedFd<'_>, limit: &Limit) -> Option<Limit> {
    let text = read_at(dir, &limit.file).ok()?;
    let Some(device) = limit.device() else {
        // io.weight has a line for all devices and then some for single ones.
        let value = text.lines().next().unwrap_or_default().trim();
        if value.is_empty() {
            // A v2 cpuset that says nothing has the parent's. It cannot be
            // emptied again, but be given the same.
            let effective = read_at(dir, &format!("{}.effective", limit.file)).ok()?;
            return Some(Limit::new(limit.controller, &limit.file, effective.trim()));
        }
        return Some(Limit::new(limit.controller, &limit.file, value));
    };
    let of_device = text.lines().find(|line| line.split(' ').next() == Some(device));
    let value = of_device.map(str::to_owned).unwrap_or_else(|| match limit.file.as_str() {
        "io.max" => format!("{device} rbps=max wbps=max riops=max wiops=max"),
        "io.weight" => format!("{device} default"),
        _ => format!("{device} 0"),
    });
    Some(Limit::new(limit.controller, &limit.file, value))
}

/// What is wrong with a memory limit below what is in use.
pub fn no_room(file: &str, limit: &str, used: &str) -> Error {
    let message = format!("cannot write {limit} to {file}: {used} bytes are in use and cannot be reclaimed");
    Error::new(Kind::BadSpec, message).hint("have the task use less first, or choose a higher limit")
}
