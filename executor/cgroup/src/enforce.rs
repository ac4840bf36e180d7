//! Putting limits into effect: at launch, and while the task runs.
//!
//! ```text
//!   resources ─► limits ─► v1 or v2: which value for which file ─► written, or all undone
//! ```
//!
//! Some files depend on each other (a v1 memory limit and the one with swap; a quota and its
//! period), and which must be written first depends on their current values: a write that the
//! kernel calls invalid is tried again after the others.

use std::os::fd::BorrowedFd;

use bowline_error::{Error, Kind, Result};
use bowline_spec::values::IdSet;
use bowline_sys as sys;
use oci_spec::runtime::LinuxResources;
use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::difference::is_met;
use crate::files::Writer;
use crate::layout::Layout;
use crate::limit::{self, Limit};
use crate::old_values::OldValues;
use crate::systemd::{self, Overwritten, Property, Unit};
use crate::tree::{read_at, write_at};
use crate::values::{Amount, Ids};
use crate::version::Version;
use crate::version_support;
use crate::write::Write;
use crate::{device_list, devices, huge_pages, v1, v2};

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
            // The kernel takes no such filter from another; there, only what the task's root shows can be opened.
            && sys::in_first_user_namespace()
        {
            devices::enforce(dir, rules).map_err(|e| e.within(format_args!("cgroup {}", cgroup.path)))?;
        }
        self.write_all(cgroup, &limits, |_, _, _| Ok(()))
    }

    /// Refuses limits where tasks have no cgroups.
    fn refuse_any(&self, limits: &[Limit]) -> Result<()> {
        let what = |limit: &Limit| match (limit.field(), v2::write(limit)) {
            (Some(field), _) => Some(format!("linux.resources.{field}")),
            (None, Some(write)) => (!write.met_without).then(|| format!("{} = {}", write.file, write.value)),
            (None, None) => None,
        };
        let Some(limit) = limits.iter().find_map(what) else { return Ok(()) };
        let message = format!("{limit}: tasks have no cgroups here, and so no limits");
        Err(Error::new(Kind::Unsupported, message)
            .hint("without root, limits need cgroup v2, and a cgroup that was delegated to this user (cgroups(7))"))
    }

    /// Takes away a cgroup's time for realtime scheduling. OCI cannot say that: its 0 changes nothing.
    ///
    /// # Errors
    /// `Internal` while a cgroup below still has such time, or a process here needs it.
    pub fn release_realtime(&self, cgroup: &Cgroup) -> Result<()> {
        const FILE: &str = "cpu.rt_runtime_us";
        let Some(dir) = self.index("cpu").and_then(|index| cgroup.dir(index)) else { return Ok(()) };
        match write_at(dir, FILE, "0") {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(errno) => {
                Err(Error::new(Kind::Internal, format!("cannot write 0 to {FILE} of cgroup {}: {errno}", cgroup.path)))
            }
        }
    }

    /// The properties to start a unit with these limits.
    pub fn properties(&self, unit: &Unit, resources: Option<&LinuxResources>) -> Result<Vec<Property>> {
        let limits = systemd::kept(resources.map_or(Ok(Vec::new()), |resources| self.limits(resources))?)?;
        let mut properties = systemd::of_limits(&limits, self.version());
        // A slice has no such property.
        properties.extend(systemd::oom_policy(&limits).filter(|_| !unit.is_slice()));
        Ok(properties)
    }

    /// Changes the limits of a cgroup with processes in it: all, or none. For a unit, `tell`
    /// reports the same change to systemd, and returns once systemd has written its files. Of the limits that were asked
    /// for `before`, those come into effect again that systemd may have written over since.
    ///
    /// Call this from a worker: memory may have to be reclaimed.
    ///
    /// # Errors
    /// As [`Layout::apply`]; also `BadSpec` when the task uses more memory than its new limit and
    /// the excess cannot be reclaimed; what `tell` returns.
    pub fn change(
        &self,
        cgroup: &Cgroup,
        resources: &LinuxResources,
        before: &LinuxResources,
        tell: impl Fn(&Unit, Vec<Property>) -> Result<()>,
    ) -> Result<()> {
        let mut limits = self.limits_of(cgroup, resources)?;
        if limits.contains(&Limit::CpuIdle(0)) && !limits.iter().any(Limit::weighs) {
            // The kernel has forgotten it as the task began to idle.
            limits.extend(limit::oci::of(before)?.into_iter().rfind(Limit::weighs));
        }
        let before = if cgroup.unit().is_some() { self.limits(before)? } else { Vec::new() };
        self.change_to(cgroup, &limits, before, tell)
    }

    /// As [`Layout::change`], to limits that this version has, in the form in which systemd keeps them.
    pub(crate) fn change_to(
        &self,
        cgroup: &Cgroup,
        limits: &[Limit],
        before: Vec<Limit>,
        tell: impl Fn(&Unit, Vec<Property>) -> Result<()>,
    ) -> Result<()> {
        self.check_weight(cgroup, limits)?;
        if let (Version::V2, Some(unit), Some(dir)) = (self.version(), cgroup.unit(), cgroup.dir(0)) {
            let again = self.overwritten(dir, before, limits);
            return self
                .change_unit(cgroup, dir, [again.as_slice(), limits].concat(), |properties| tell(unit, properties));
        }
        let mut old = OldValues::default();
        let mut change = || {
            self.write_all(cgroup, limits, |dir, limit, write| self.before(dir, limit, write, &mut old))?;
            // On v1 systemd writes a file only where it has a property for it.
            cgroup.unit().map_or(Ok(()), |unit| tell(unit, systemd::of_limits(limits, self.version())))
        };
        change().inspect_err(|_| self.put_back(cgroup, old))
    }

    /// Refuses a share of CPU time for a cgroup that idles and goes on with that: the kernel does too, without a word, and
    /// systemd would end the idling.
    fn check_weight(&self, cgroup: &Cgroup, limits: &[Limit]) -> Result<()> {
        let stays_idle = || {
            let dir = self.index("cpu").and_then(|index| cgroup.dir(index));
            dir.is_some_and(is_idle) && !limits.iter().any(|limit| matches!(limit, Limit::CpuIdle(_)))
        };
        match limits.iter().filter(|limit| limit.weighs()).flat_map(|limit| self.writes(limit)).next() {
            Some(write) if stays_idle() => {
                Err(refused(cgroup, &write, Kind::BadSpec, "it is idle: set cpu.idle to 0 too"))
            }
            _ => Ok(()),
        }
    }

    /// Changes the limits of a unit on v2. systemd is told first: it then writes all files of the unit's controllers,
    /// and hands controllers down that the unit has not had yet.
    fn change_unit(
        &self,
        cgroup: &Cgroup,
        dir: BorrowedFd<'_>,
        limits: Vec<Limit>,
        tell: impl Fn(Vec<Property>) -> Result<()>,
    ) -> Result<()> {
        let limits = limits.as_slice();
        let writes: Vec<(&Limit, Write)> =
            limits.iter().flat_map(|limit| self.writes(limit).into_iter().map(move |write| (limit, write))).collect();
        let mut old = OldValues::default();
        let is_idle = is_idle(dir);
        // All that can be refused before anybody writes: a limit by systemd would kill where ours makes room.
        for (limit, write) in &writes {
            old.remember_or_default(dir, write);
            self.before(dir, limit, write, &mut old)?;
            if let Limit::Cpus(ids) | Limit::MemoryNodes(ids) = limit {
                check_cpuset(cgroup, dir, ids, write)?;
            }
        }
        if limits.iter().any(|limit| matches!(limit, Limit::CpuIdle(_))) {
            // systemd has one property for both.
            v2::write(&Limit::CpuWeight(v2::DEFAULT_WEIGHT)).iter().for_each(|write| old.remember(dir, write));
        }
        let kept = Overwritten::read(dir, |file| writes.iter().any(|(_, write)| write.file == file));
        let properties = systemd::of_change(limits, is_idle);
        let has_any = !properties.is_empty();
        let told = tell(properties);
        // An answer that came too late says nothing of the change.
        let may_be_told = has_any && told.as_ref().map_or_else(|error| error.kind() == Kind::Unavailable, |()| true);
        let change = told.and_then(|()| {
            kept.put_back(dir);
            self.write_all(cgroup, limits, |dir, limit, write| self.before(dir, limit, write, &mut old))
        });
        change.inspect_err(|_| {
            if may_be_told && let Err(error) = tell(systemd::of_limits(&old.limits(), Version::V2)) {
                tracing::error!(%error, "systemd may put limits into effect that were refused");
            }
            self.put_back(cgroup, old);
            kept.put_back(dir);
        })
    }

    /// The limits asked for `before` that systemd has written over, and that the `limits` of now leave as they are.
    fn overwritten(&self, dir: BorrowedFd<'_>, before: Vec<Limit>, limits: &[Limit]) -> Vec<Limit> {
        let weighs = limits.iter().any(|limit| v2::cpu_weight(limit).is_some());
        let is_now = |write: &Write| limits.iter().flat_map(|limit| self.writes(limit)).any(|now| now.is_where(write));
        let is_lost = |limit: &Limit| {
            self.writes(limit).iter().any(|write| {
                systemd::is_overwritten(&write.file)
                    && !(weighs && write.file == CPU_IDLE)
                    && !is_now(write)
                    && read_at(dir, &write.file).is_ok_and(|text| !is_met(&write.file, &write.value, text.trim()))
            })
        };
        before.into_iter().filter(is_lost).collect()
    }

    /// Remembers the value before the first write to a file, and makes room for a lower limit of memory.
    fn before(&self, dir: BorrowedFd<'_>, limit: &Limit, write: &Write, old: &mut OldValues) -> Result<()> {
        old.remember(dir, write);
        match (self.version(), limit) {
            (Version::V2, Limit::MemoryMax(Amount(Some(most)))) => v2::make_room(dir, *most),
            _ => Ok(()),
        }
    }

    /// The limits of `resources`, in the form in which systemd keeps them if the cgroup is a unit's.
    fn limits_of(&self, cgroup: &Cgroup, resources: &LinuxResources) -> Result<Vec<Limit>> {
        if self.goes_without() {
            return self.refuse_any(&limit::oci::of(resources)?).map(|()| Vec::new());
        }
        let mut limits = self.limits(resources)?;
        version_support::log(resources, self.version());
        let unset = resources.memory().is_none_or(|memory| memory.limit().is_none_or(|limit| limit == 0));
        if self.version() == Version::V2 && unset {
            limits.iter_mut().try_for_each(|limit| self.with_memory(cgroup, limit))?;
        }
        if cgroup.unit().is_some() { systemd::kept(limits) } else { Ok(limits) }
    }

    pub(crate) fn limits(&self, resources: &LinuxResources) -> Result<Vec<Limit>> {
        let mut limits = limit::oci::of(resources)?;
        version_support::check(resources, &limits, self.version())?;
        if limits.contains(&Limit::CpuIdle(1)) {
            limits.retain(|limit| !limit.weighs());
        }
        let rules = resources.devices().as_deref().unwrap_or_default();
        match self.version() {
            Version::V1 => Ok(device_list::of(rules)?.into_iter().map(Limit::Device).chain(limits).collect()),
            Version::V2 => Ok(limits),
        }
    }

    /// Completes a limit of memory and swap together with the memory limit in effect: v2 limits swap alone.
    fn with_memory(&self, cgroup: &Cgroup, limit: &mut Limit) -> Result<()> {
        let Limit::MemoryAndSwapMax { both: Amount(Some(both)), memory } = limit else { return Ok(()) };
        let most = cgroup.dir(0).and_then(|dir| v2::memory_max(dir)).ok_or_else(|| {
            let message = format!("linux.resources.memory.swap: {both} bytes are for memory and swap together");
            Error::new(Kind::BadSpec, message).hint("cgroup v2 limits swap alone: set memory.limit too")
        })?;
        limit::check_swap(*both, most)?;
        *memory = Some(most);
        Ok(())
    }

    /// The writes that put a limit into this host's files.
    pub(crate) fn writes(&self, limit: &Limit) -> Vec<Write> {
        match (self.version(), limit) {
            // On a hybrid host, hugetlb is the one controller for tasks that may be on v2.
            (Version::V1, Limit::Hugepages { .. }) if self.is_unified("hugetlb") => {
                v2::write(limit).into_iter().collect()
            }
            (Version::V1, _) => v1::writes(limit),
            (Version::V2, _) => v2::write(limit).into_iter().collect(),
        }
    }

    /// Writes `limits`; calls `before` ahead of each file.
    fn write_all(
        &self,
        cgroup: &Cgroup,
        limits: &[Limit],
        mut before: impl FnMut(BorrowedFd<'_>, &Limit, &Write) -> Result<()>,
    ) -> Result<()> {
        let mut again = Vec::new();
        let mut writer = Writer::default();
        for limit in limits {
            let named = |error| in_field(error, limit);
            for write in self.writes(limit) {
                let dir = self.dir_for(cgroup, &write).map_err(named)?;
                let before = |dir: BorrowedFd<'_>, write: &Write| before(dir, limit, write);
                if let (Version::V2, Limit::Cpus(ids) | Limit::MemoryNodes(ids)) = (self.version(), limit) {
                    check_cpuset(cgroup, dir, ids, &write)?;
                }
                let (write, written) = self.write(cgroup, dir, write, &mut writer, before)?;
                match written {
                    Err(Errno::INVAL) => again.push((limit, write)),
                    written => judge(cgroup, dir, limit, &write, written).map_err(named)?,
                }
            }
        }
        for (limit, write) in again {
            let dir = self.dir_for(cgroup, &write)?;
            let judged = judge(cgroup, dir, limit, &write, write_at(dir, &write.file, &write.value));
            judged.map_err(|error| in_field(error, limit))?;
        }
        Ok(())
    }

    /// Writes to the file that this kernel has.
    fn write(
        &self,
        cgroup: &Cgroup,
        dir: BorrowedFd<'_>,
        write: Write,
        writer: &mut Writer,
        mut before: impl FnMut(BorrowedFd<'_>, &Write) -> Result<()>,
    ) -> Result<(Write, rustix::io::Result<()>)> {
        before(dir, &write)?;
        let mut written = writer.write(dir, &write.file, &write.value);
        if written != Err(Errno::NOENT) {
            return Ok((write, written));
        }
        if self.hand_down(cgroup, write.controller) {
            before(dir, &write)?;
            written = writer.write(dir, &write.file, &write.value);
        }
        match (written, write.instead()) {
            (Err(Errno::NOENT), Some(instead)) => {
                before(dir, &instead)?;
                let written = writer.write(dir, &instead.file, &instead.value);
                // An error names the usual file.
                if written == Err(Errno::NOENT) { Ok((write, written)) } else { Ok((instead, written)) }
            }
            (written, _) => Ok((write, written)),
        }
    }

    pub(crate) fn dir_for<'a>(&self, cgroup: &'a Cgroup, write: &Write) -> Result<BorrowedFd<'a>> {
        let Write { controller, file, value, .. } = write;
        let index = self.index(controller).ok_or_else(|| {
            let why =
                format!("cannot set {file} to {value}: the cgroup controller {controller} is not mounted on this host");
            Error::new(Kind::Unsupported, why).hint("`bowline doctor` shows what this host can limit")
        })?;
        cgroup.dir(index).ok_or_else(|| {
            let why = format!("cannot set {file} to {value}: the cgroup is missing in the hierarchy of {controller}");
            Error::new(Kind::NotFound, why).hint("`bowline cgroup ensure` makes it in every hierarchy")
        })
    }
}

/// The file that says whether a cgroup has only the CPU time that nobody else wants.
const CPU_IDLE: &str = "cpu.idle";

fn is_idle(dir: BorrowedFd<'_>) -> bool {
    read_at(dir, CPU_IDLE).is_ok_and(|text| text.trim() == "1")
}

/// Names the field of a limit that has nothing else to be known by.
fn in_field(error: Error, limit: &Limit) -> Error {
    match limit.field() {
        Some(field) => error.within(format_args!("linux.resources.{field}")),
        None => error,
    }
}

/// Whether the kernel's answer means that the limit is in effect.
fn judge(
    cgroup: &Cgroup,
    dir: BorrowedFd<'_>,
    limit: &Limit,
    write: &Write,
    written: rustix::io::Result<()>,
) -> Result<()> {
    let refused = |kind, why: &dyn std::fmt::Display| refused(cgroup, write, kind, why);
    match (written, limit) {
        (Ok(()), _) => Ok(()),
        (Err(Errno::NOENT), _) if write.met_without => Ok(()),
        (Err(Errno::NOENT), Limit::Hugepages { size, .. }) if huge_pages::lacks(size) => {
            let has = huge_pages::sizes().into_iter().collect::<Vec<_>>().join(", ");
            let error = refused(Kind::Unsupported, &"this host has no pages of that size");
            Err(error.hint(format!("it has pages of {has}")))
        }
        (Err(Errno::NOENT), _) => Err(refused(Kind::Unsupported, &"this host has no such file")
            .hint("its controller is missing, or not handed down by a parent cgroup; see `bowline doctor`")),
        // v1 answers this to a limit that is too low; v2 would kill.
        (Err(Errno::BUSY), Limit::MemoryMax(_)) => Err(v1::no_room(dir, &write.value)),
        (Err(Errno::ACCESS), Limit::Cpus(_) | Limit::MemoryNodes(_)) => Err(outside_parent(cgroup, write)),
        (Err(Errno::ACCESS), Limit::Raw { .. }) => Err(refused(Kind::BadSpec, &"it cannot be written")),
        (Err(Errno::INVAL), Limit::RealtimeRuntime(_)) => {
            let why = "the cgroup above has less of it left, or those below have more";
            Err(refused(Kind::BadSpec, &why).hint(
                "a new cgroup has none: write as much to cpu.rt_runtime_us of every cgroup above, from the top down",
            ))
        }
        (Err(errno @ (Errno::INVAL | Errno::RANGE | Errno::NODEV | Errno::BUSY | Errno::NOSPC)), _) => {
            // Files of v1: there is no such conflict on v2.
            let conflict = Some(errno).filter(|errno| *errno == Errno::INVAL).and_then(|_| v1::conflict(dir, limit));
            Err(conflict.map_or_else(|| refused(Kind::BadSpec, &errno), |why| refused(Kind::BadSpec, &why)))
        }
        // Such as a disk whose scheduler has no weights.
        (Err(errno @ Errno::OPNOTSUPP), _) => Err(refused(Kind::Unsupported, &errno)),
        (Err(errno), _) => Err(refused(Kind::Internal, &errno)),
    }
}

/// v2 takes any set, and silently reduces it to what the parent has; and the set of a cgroup with
/// processes cannot be emptied again.
fn check_cpuset(cgroup: &Cgroup, dir: BorrowedFd<'_>, asked: &Ids, write: &Write) -> Result<()> {
    let Some(asked) = &asked.ids else { return Ok(()) };
    let parents = read_at(dir, &format!("../{}.effective", write.file)).unwrap_or_default();
    // A parent without the file has the root's set.
    let has = parents.parse::<IdSet>();
    if parents.trim().is_empty() || has.is_ok_and(|has| asked.ids().is_subset(has.ids())) {
        return Ok(());
    }
    Err(outside_parent(cgroup, write))
}

fn outside_parent(cgroup: &Cgroup, write: &Write) -> Error {
    refused(cgroup, write, Kind::BadSpec, "the parent cgroup does not have all of it")
        .hint("choose from the cpuset of the parent cgroup, or widen that")
}

fn refused(cgroup: &Cgroup, write: &Write, kind: Kind, why: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("cannot write {} to {} of cgroup {}: {why}", write.value, write.file, cgroup.path))
}
