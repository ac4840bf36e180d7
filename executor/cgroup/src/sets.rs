//! Changes the CPUs and memory nodes of a cgroup that has child cgroups.
//!
//! On v2 the children have what their parent has, unless they are given less. On v1 each has a set of its own, which
//! must be within its parent's at all times: children without a set of their own are changed after a parent grows and
//! before it shrinks.

use std::os::fd::BorrowedFd;

use bowline_error::{Error, Kind, Result};
use bowline_spec::values::IdSet;
use oci_spec::runtime::LinuxResources;
use rustix::io::Errno;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::systemd::Property;
use crate::systemd::Unit;
use crate::tree::{names_below, read_at, write_at};

const FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

impl Layout {
    /// The CPUs and the memory nodes that the parent of the cgroup has.
    pub fn parents_sets(&self, cgroup: &Cgroup) -> (Option<String>, Option<String>) {
        let end = if self.is_unified("cpuset") { ".effective" } else { "" };
        let dir = self.index("cpuset").and_then(|index| cgroup.dir(index));
        let of = |file: &str| read_at(dir?, &format!("../{file}{end}")).ok().map(|sets| sets.trim().to_owned());
        let [cpus, mems] = FILES.map(of);
        (cpus, mems)
    }

    /// Like [`Layout::change`], for a cgroup with others below it: those that `follows` names get the same sets.
    ///
    /// # Errors
    /// As [`Layout::change`]; `BadSpec` when a cgroup below has what this one would lose.
    pub fn change_whole(
        &self,
        cgroup: &Cgroup,
        resources: &LinuxResources,
        follows: impl Fn(&str, &str) -> bool,
        tell: impl Fn(&Unit, Vec<Property>) -> Result<()>,
    ) -> Result<()> {
        let dir = self.index("cpuset").and_then(|index| cgroup.dir(index));
        let (Some(dir), Some(cpu), false) = (dir, resources.cpu(), self.is_unified("cpuset")) else {
            return self.change(cgroup, resources, &LinuxResources::default(), tell);
        };
        let [cpus, mems] = FILES;
        let sets = [(cpus, cpu.cpus().as_deref()), (mems, cpu.mems().as_deref())];
        let sets: Vec<(&str, &str)> = sets.into_iter().filter_map(|(file, value)| Some((file, value?))).collect();
        let before: Vec<(&str, String)> =
            sets.iter().filter_map(|(file, _)| Some((*file, read_at(dir, file).ok()?.trim().to_owned()))).collect();
        let lead = || {
            for (file, value) in &sets {
                let led = lead(dir, file, value, |child| follows(file, child));
                led.map_err(|errno| {
                    let message = format!("cannot write {value} to {file} of cgroup {}: {errno}", cgroup.path);
                    Error::new(Kind::BadSpec, message)
                        .hint("choose what its parent cgroup has, and the cgroups below it need")
                })?;
            }
            self.change(cgroup, resources, &LinuxResources::default(), tell)
        };
        lead().inspect_err(|_| {
            for (file, value) in &before {
                // What could not be put back is reported by whoever runs into it.
                let _ = lead_back(dir, file, value, |child| follows(file, child));
            }
        })
    }
}

/// Adds to `file` of `dir` what it lacks of `value`, and gives `value` to those below.
fn lead(dir: BorrowedFd<'_>, file: &str, value: &str, follows: impl Fn(&str) -> bool) -> rustix::io::Result<()> {
    let now = read_at(dir, file)?;
    let ids = |text: &str| text.trim().parse::<IdSet>().map_err(|_| Errno::INVAL);
    let wanted = ids(value)?;
    if let Ok(now) = ids(&now)
        && let Some(both) = IdSet::new(now.ids() | wanted.ids()).filter(|both| *both != now)
    {
        write_at(dir, file, &both.to_string())?;
    }
    let named = names_below(dir).into_iter().filter_map(|name| name.into_string().ok());
    for child in named.filter(|child| follows(child)) {
        match write_at(dir, &format!("{child}/{file}"), value) {
            // The cgroup has been removed meanwhile.
            Err(Errno::NOENT | Errno::NODEV) => {}
            done => done?,
        }
    }
    Ok(())
}

fn lead_back(dir: BorrowedFd<'_>, file: &str, value: &str, follows: impl Fn(&str) -> bool) -> rustix::io::Result<()> {
    lead(dir, file, value, follows)?;
    write_at(dir, file, value)
}
