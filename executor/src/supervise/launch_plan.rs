//! What is known of a launch before it begins.

use bowline_error::Error;
use oci_spec::runtime::Spec;

use crate::claimed_uid::ClaimedUid;
use crate::facts::Particulars;
use crate::folder::{Folder, Lock, Record};
use crate::namespaces::Namespaces;
use crate::reserve::Reserve;
use crate::seccomp::Filter;

/// A launch before anything of it is on the host but its folder.
pub struct LaunchPlan {
    pub spec: Box<Spec>,
    pub namespaces: Namespaces,
    pub filter: Option<Filter>,
    pub record: Box<Record>,
    pub particulars: Particulars,
    /// Where the record is, and what relative paths of the spec are below.
    pub folder: Folder,
    /// Room there for the exit report.
    pub reserve: Option<Reserve>,
    /// That folder's, of a member of a sandbox.
    pub lock: Option<Lock>,
    /// The user that was claimed for it.
    pub claimed: Option<ClaimedUid>,
}

impl LaunchPlan {
    /// Has its cgroup made where it is by default, for this reason.
    pub fn do_without_slice(&mut self, why: &Error) {
        let path = self.spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_ref());
        self.record.cgroup = path.and_then(|path| path.to_str()).unwrap_or_default().to_owned();
        self.record.unit = None;
        if let Some(enforcement) = &mut self.record.enforcement {
            enforcement.enforced = false;
            enforcement.reason = Some(why.message().to_owned());
        }
    }
}
