//! Everything that is known about a launch before it begins.

use std::path::Path;

use bowline_error::Error;
use bowline_model::folder::{Folder, Lock, Record};
use bowline_model::reserve::Reserve;
use oci_spec::runtime::Spec;

use crate::facts::Particulars;
use crate::rights::claimed_uid::ClaimedUid;
use crate::rights::seccomp::Filter;
use crate::supervise::exec::slots::ExecSlots;
use crate::view::mount_points;
use crate::view::namespaces::Namespaces;
use crate::view::rootfs::Additions;
use crate::view::sandbox_namespaces::Shared;

/// A launch that has nothing on the host yet but its folder.
pub struct LaunchPlan {
    pub spec: Box<Spec>,
    pub namespaces: Namespaces,
    pub filter: Option<Filter>,
    pub record: Box<Record>,
    pub particulars: Particulars,
    /// The folder of the record.
    pub folder: Folder,
    /// Whether the task is started outside of its slice where systemd refuses that.
    pub slice_optional: bool,
    /// Space reserved in `folder` for the exit report.
    pub reserve: Option<Reserve>,
    /// What a later shim must know of the task's execs, in `folder` too.
    pub exec_slots: Option<ExecSlots>,
    /// Whether the executor has made `folder`, and removes it with the task.
    pub owns_folder: bool,
    /// The lock of `folder`, where that is not the executor's own.
    pub lock: Option<Lock>,
    /// The user that was claimed for the task.
    pub claimed: Option<ClaimedUid>,
    /// What the root has beyond `spec`; needed until init is set up.
    pub additions: Additions,
    /// The network that was made for the task.
    pub shared: Shared,
    /// What was asked for and has no effect.
    pub notes: Vec<String>,
}

impl LaunchPlan {
    /// Whether the configuration is bowline's own, from a description, and no bundle's.
    pub fn is_described(&self) -> bool {
        self.record.task.as_ref().is_some_and(|task| task.bundle.is_none())
    }

    /// The base of relative paths in the spec.
    pub fn bundle(&self) -> &Path {
        self.record.bundle().unwrap_or(self.folder.path())
    }

    /// Makes the mount points that the root lacks. The task does without those that cannot be made.
    pub fn make_mount_points(&mut self) {
        let root = self.record.task.as_ref().and_then(|task| task.rootfs.as_deref());
        let Some(root) = root.filter(|_| !self.record.mount_points.is_empty()) else { return };
        for (path, why) in mount_points::make(&self.folder, root, &self.record.mount_points) {
            self.notes.push(format!("the root takes no mount point at {}: {why}", path.display()));
            self.spec.mounts_mut().get_or_insert_default().retain(|mount| *mount.destination() != path);
        }
    }

    /// Whether the launch fails where systemd refuses its slice.
    pub fn insists_on_slice(&self) -> bool {
        self.record.enforcement.is_some() && !self.slice_optional
    }

    /// The error of such a launch. One about a field has another reason.
    pub fn refused_in_slice(error: Error) -> Error {
        match error.field() {
            None => error.hint("`--slice SLICE,optional` starts it outside of the slice then"),
            Some(_) => error,
        }
    }

    /// Falls back to the default cgroup and records why.
    pub fn do_without_slice(&mut self, why: &Error) {
        let path = self.spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_ref());
        self.record.cgroup = path.and_then(|path| path.to_str()).unwrap_or_default().to_owned();
        self.record.unit = None;
        self.is_not_held(why.message().to_owned());
    }

    /// Records why no limits of the slice hold for the task.
    pub fn is_not_held(&mut self, why: String) {
        if let Some(enforcement) = &mut self.record.enforcement {
            enforcement.enforced = false;
            enforcement.reason = Some(why);
        }
    }
}
