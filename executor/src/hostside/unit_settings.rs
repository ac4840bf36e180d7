//! What a systemd unit takes away from its own processes that a launch needs: found by what the kernel shows, not by errors.
//!
//! For a command that has failed: nothing here is tried before. Must not: change this process.

use std::fs::{File, read_link, read_to_string};
use std::os::fd::AsFd as _;
use std::path::Path;

use bowline_sys::mountinfo::{self, Mount};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

/// A setting of a unit (systemd.exec(5)) that holds for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitSetting {
    /// It has not the host's device nodes, and may make none.
    PrivateDevices,
    /// Hierarchies of cgroups are read-only.
    ProtectControlGroups,
    /// Some kinds of namespaces are refused.
    RestrictNamespaces,
    /// The state folder is read-only, which the host can write.
    ProtectSystem,
    /// It is root of a user namespace alone.
    PrivateUsers,
    /// It lacks capabilities of root.
    CapabilityBoundingSet,
}

/// The capabilities that root has and each launch needs.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::MKNOD);

/// The kinds of namespaces that the setting may name.
const KINDS: [LinkNameSpaceType; 7] = [
    LinkNameSpaceType::ControlGroup,
    LinkNameSpaceType::HostNameAndNISDomainName,
    LinkNameSpaceType::InterProcessCommunication,
    LinkNameSpaceType::Mount,
    LinkNameSpaceType::Network,
    LinkNameSpaceType::ProcessID,
    LinkNameSpaceType::User,
];

/// The settings that hold for this process, a root whose state is in `folders`; none outside of a unit.
pub fn unit_settings(folders: &[&Path]) -> Vec<UnitSetting> {
    if std::env::var_os("INVOCATION_ID").is_none() || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let mounts = mountinfo::read("/proc/self/mountinfo").unwrap_or_default();
    let has_private_devices = at(&mounts, Path::new("/dev")).is_some_and(|dev| dev.kind == "tmpfs");
    let lacking = capabilities(None).map_or(CapabilitySet::empty(), |sets| NEEDED.difference(sets.effective));
    let lacks_nodes_alone = lacking == CapabilitySet::MKNOD && has_private_devices;
    let is_read_only = |folder: &&Path| at(&mounts, folder).is_some_and(made_read_only);
    let is_cgroups = |mount: &&Mount| matches!(mount.kind.as_str(), "cgroup" | "cgroup2");
    let found = [
        (UnitSetting::PrivateDevices, lacks_nodes_alone),
        (UnitSetting::ProtectControlGroups, mounts.iter().filter(is_cgroups).any(made_read_only)),
        (UnitSetting::RestrictNamespaces, refuses_namespaces()),
        (UnitSetting::ProtectSystem, folders.iter().any(is_read_only)),
        (UnitSetting::PrivateUsers, has_users_of_its_own()),
        (UnitSetting::CapabilityBoundingSet, !lacking.is_empty() && !lacks_nodes_alone),
    ];
    found.into_iter().filter(|(_, holds)| *holds).map(|(setting, _)| setting).collect()
}

/// The mount that `path`, or what is there of it, is on: the last at the longest place.
fn at<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.target));
    above.max_by_key(|mount| mount.target.components().count())
}

/// Whether a mount is read-only, and its filesystem is not.
fn made_read_only(mount: &Mount) -> bool {
    let has = |list: &[String], option: &str| list.iter().any(|one| one == option);
    has(&mount.flags, "ro") && !has(&mount.options, "ro")
}

/// Whether a filter refuses what joins a namespace: what is no namespace is refused by the kernel for that.
fn refuses_namespaces() -> bool {
    let Ok(no_namespace) = File::open("/proc/self/status") else { return false };
    KINDS.into_iter().any(|kind| move_into_link_name_space(no_namespace.as_fd(), Some(kind)) == Err(Errno::PERM))
}

fn has_users_of_its_own() -> bool {
    let maps_all = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    if read_to_string("/proc/self/uid_map").is_ok_and(maps_all) {
        return false;
    }
    // The host itself may be a container.
    let of = |process: &str| read_link(format!("/proc/{process}/ns/user")).ok();
    of("1") != of("self")
}
