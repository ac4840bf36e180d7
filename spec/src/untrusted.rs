//! The profile `untrusted`: what a task gets that nobody vouches for.
//!
//!   a description ─ validate: nothing contradicts it ─ settled: its defaults ─► build
//!
//! Its user is a number of its own, which the executor finds: see [`UIDS`].
//! Must not: decide what contradicts it, which `validate` does.

use std::borrow::Cow;
use std::ops::Range;

use crate::capability::Entry;
use crate::task::{Namespace, Seccomp, Task, TaskProfile};
use crate::values::{ByteSize, Ceiling};

/// The users, and groups of the same number, that tasks get: each one to
/// itself for as long as it lives.
///
/// Above what user databases assign by default, systemd's containers, SSSD and
/// FreeIPA among them, and below 2³¹, where numbers may be taken for negative
/// ones (systemd's UIDS-GIDS.md).
pub const UIDS: Range<u32> = 0x7F00_0000..0x7F01_0000;

/// Its home: empty, its own, and where it begins.
pub const HOME: &str = "/home";

/// The most processes and threads, unless the description says otherwise.
pub const PIDS: u64 = 64;

/// The most terminals that it can open at a time.
pub const PTYS: u32 = 16;

/// The most memory, unless the description says otherwise.
pub const MEMORY: u64 = 256 << 20;

impl Task {
    /// The description with its profile's values in all fields that it leaves out.
    pub fn settled(&self) -> Cow<'_, Task> {
        if self.profile != Some(TaskProfile::Untrusted) {
            return Cow::Borrowed(self);
        }
        let mut task = self.clone();
        task.namespaces.network.get_or_insert(Namespace::Private);
        task.no_new_privs.get_or_insert(true);
        task.seccomp = Some(Seccomp::Native);
        if task.ephemeral.is_none() {
            task.readonly_rootfs.get_or_insert(true);
        }
        task.workdir.get_or_insert_with(|| HOME.into());
        task.capabilities.drop = vec![Entry::All];
        task.pids.get_or_insert(Ceiling::At(PIDS));
        task.memory.limit.get_or_insert(ByteSize::bytes(MEMORY));
        Cow::Owned(task)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_stays_as_it_is() {
        let plain = Task { command: "true".into(), ..Task::default() };
        assert_eq!(*plain.settled(), plain);
        let task = Task { profile: Some(TaskProfile::Untrusted), ..plain };
        let settled = task.settled().into_owned();
        assert_eq!(settled.validate(), Ok(()));
        assert_eq!(*settled.settled(), settled);
        assert_eq!(settled.capabilities.allowed(), [].into());
    }

    #[test]
    fn limits_that_are_written_stay() {
        let mut task = Task { command: "true".into(), profile: Some(TaskProfile::Untrusted), ..Task::default() };
        task.pids = Some(Ceiling::At(7));
        task.memory.limit = Some(ByteSize::mib(8));
        let settled = task.settled();
        assert_eq!((settled.pids, settled.memory.limit), (task.pids, task.memory.limit));
    }

    #[test]
    fn users_are_those_that_the_documentation_names() {
        assert_eq!((UIDS.start, UIDS.end - 1), (2_130_706_432, 2_130_771_967));
    }
}
