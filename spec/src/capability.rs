//! Capabilities: their names, the default set, and what a task gets.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use oci_spec::runtime::Capability as oci;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text::text_value;

/// All capabilities, in the kernel's order (include/uapi/linux/capability.h,
/// Linux 5.9 to 7.2): the index is the number.
const ALL: [(oci, &str); 41] = [
    (oci::Chown, "CHOWN"),
    (oci::DacOverride, "DAC_OVERRIDE"),
    (oci::DacReadSearch, "DAC_READ_SEARCH"),
    (oci::Fowner, "FOWNER"),
    (oci::Fsetid, "FSETID"),
    (oci::Kill, "KILL"),
    (oci::Setgid, "SETGID"),
    (oci::Setuid, "SETUID"),
    (oci::Setpcap, "SETPCAP"),
    (oci::LinuxImmutable, "LINUX_IMMUTABLE"),
    (oci::NetBindService, "NET_BIND_SERVICE"),
    (oci::NetBroadcast, "NET_BROADCAST"),
    (oci::NetAdmin, "NET_ADMIN"),
    (oci::NetRaw, "NET_RAW"),
    (oci::IpcLock, "IPC_LOCK"),
    (oci::IpcOwner, "IPC_OWNER"),
    (oci::SysModule, "SYS_MODULE"),
    (oci::SysRawio, "SYS_RAWIO"),
    (oci::SysChroot, "SYS_CHROOT"),
    (oci::SysPtrace, "SYS_PTRACE"),
    (oci::SysPacct, "SYS_PACCT"),
    (oci::SysAdmin, "SYS_ADMIN"),
    (oci::SysBoot, "SYS_BOOT"),
    (oci::SysNice, "SYS_NICE"),
    (oci::SysResource, "SYS_RESOURCE"),
    (oci::SysTime, "SYS_TIME"),
    (oci::SysTtyConfig, "SYS_TTY_CONFIG"),
    (oci::Mknod, "MKNOD"),
    (oci::Lease, "LEASE"),
    (oci::AuditWrite, "AUDIT_WRITE"),
    (oci::AuditControl, "AUDIT_CONTROL"),
    (oci::Setfcap, "SETFCAP"),
    (oci::MacOverride, "MAC_OVERRIDE"),
    (oci::MacAdmin, "MAC_ADMIN"),
    (oci::Syslog, "SYSLOG"),
    (oci::WakeAlarm, "WAKE_ALARM"),
    (oci::BlockSuspend, "BLOCK_SUSPEND"),
    (oci::AuditRead, "AUDIT_READ"),
    (oci::Perfmon, "PERFMON"),
    (oci::Bpf, "BPF"),
    (oci::CheckpointRestore, "CHECKPOINT_RESTORE"),
];

/// What a task has unless its description says otherwise: Docker's default
/// without NET_RAW, as Nomad's executor has it (mask a80405fb).
pub const DEFAULT: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// One capability of capabilities(7), parsed from `NET_ADMIN` or `cap_net_admin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability(u8);

impl Capability {
    /// Its number, as in `/proc/<pid>/status` masks.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its name without `CAP_`.
    pub fn name(self) -> &'static str {
        ALL[usize::from(self.0)].1
    }

    /// Every capability of Linux 5.9 to 7.2; the host's kernel may have fewer.
    pub fn all() -> BTreeSet<Capability> {
        (0..ALL.len() as u8).map(Capability).collect()
    }

    /// The capability in oci-spec's type.
    pub fn to_oci(self) -> oci {
        ALL[usize::from(self.0)].0
    }

    /// The capability that oci-spec's type names.
    pub fn of_oci(named: &oci) -> Capability {
        let number = ALL.iter().position(|(of, _)| of == named);
        // A test asks libcontainer, which names each of them.
        Capability(number.expect("every capability of oci-spec's is in ALL") as u8)
    }
}

impl FromStr for Capability {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Capability, Invalid> {
        let upper = text.trim().to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        match ALL.iter().position(|(_, known)| *known == name) {
            Some(index) => Ok(Capability(index as u8)),
            None => Err(Invalid::value(format!("{text} is not a capability; write a name such as NET_ADMIN, or ALL"))),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CAP_{}", self.name())
    }
}

text_value!(Capability, "Capability", string, "a capability, with or without CAP_, in any case", "NET_ADMIN");

/// An entry of `capabilities.add` or `.drop`: one capability, or `ALL`. What ALL adds are those that this host gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// `ALL`: adds every capability that the host gives, or drops every one.
    All,
    /// One capability, written by its name.
    One(Capability),
}

impl FromStr for Entry {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Entry, Invalid> {
        if text.trim().eq_ignore_ascii_case("ALL") {
            return Ok(Entry::All);
        }
        text.parse().map(Entry::One)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::All => f.write_str("ALL"),
            Entry::One(capability) => f.write_str(capability.name()),
        }
    }
}

text_value!(
    Entry,
    "CapabilityEntry",
    string,
    "a capability, with or without CAP_, in any case; or ALL",
    "NET_ADMIN",
    "ALL"
);

/// Changes to the 13 default capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Added to the default ones. ALL means all that this host gives; a launch reports the others. A named one that the
    /// host does not give is an error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<Entry>,
    /// Dropped from the default ones, before any are added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<Entry>,
    /// Those that a user other than root keeps in executed programs; by default those in `add`, none with `[]`. ALL
    /// means all that the task has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ambient: Option<Vec<Entry>>,
}

impl Capabilities {
    /// (the default ones − dropped) + added. As Docker has it, `add = ["ALL"]`
    /// starts from all of them, so that single ones can still be dropped; `drop = ["ALL"]` then drops none.
    pub fn allowed(&self) -> BTreeSet<Capability> {
        self.allowed_of(Capability::all())
    }

    /// Like [`Self::allowed`], where `all` is what ALL stands for.
    pub fn allowed_of(&self, all: BTreeSet<Capability>) -> BTreeSet<Capability> {
        let adds_all = self.add.contains(&Entry::All);
        let start = if adds_all { all } else { default_set() };
        let drops_all = !adds_all && self.drop.contains(&Entry::All);
        let dropped = |capability: &Capability| drops_all || self.drop.contains(&Entry::One(*capability));
        let mut allowed: BTreeSet<Capability> = start.into_iter().filter(|c| !dropped(c)).collect();
        allowed.extend(self.add.iter().filter_map(|entry| match entry {
            Entry::One(capability) => Some(*capability),
            Entry::All => None,
        }));
        allowed
    }

    /// The ambient ones of a task that has `allowed`: those named, else, for a user other than root, what is added.
    ///
    /// Source: nomad, `configureCapabilities` in drivers/shared/executor; there it is all that the task has.
    pub fn ambient_of(&self, allowed: &BTreeSet<Capability>, is_root: bool) -> BTreeSet<Capability> {
        let added: &[Entry] = if is_root { &[] } else { &self.add };
        let entries = self.ambient.as_deref().unwrap_or(added);
        let named = entries.iter().filter_map(|entry| match entry {
            Entry::One(capability) => Some(*capability),
            Entry::All => None,
        });
        let all = entries.contains(&Entry::All).then_some(allowed);
        named.chain(all.into_iter().flatten().copied()).collect()
    }
}

/// [`DEFAULT`] as a set.
pub fn default_set() -> BTreeSet<Capability> {
    DEFAULT.iter().filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libcontainer::capabilities::CapabilityExt as _;

    use super::*;

    fn capabilities(add: &[&str], drop: &[&str]) -> Capabilities {
        let entries = |names: &[&str]| names.iter().map(|n| n.parse().unwrap()).collect();
        Capabilities { add: entries(add), drop: entries(drop), ambient: None }
    }

    fn mask(set: &BTreeSet<Capability>) -> u64 {
        set.iter().map(|c| 1u64 << c.number()).sum()
    }

    #[test]
    fn the_default_is_nomads_mask() {
        assert_eq!(mask(&capabilities(&[], &[]).allowed()), 0xa80405fb);
    }

    #[test]
    fn they_are_those_of_oci_spec_and_have_libcontainers_numbers() {
        for capability in Capability::all() {
            assert_eq!(capability.to_oci().to_string(), capability.name());
            assert_eq!(Capability::of_oci(&capability.to_oci()), capability);
            let theirs = capability.to_oci().to_cap();
            assert_eq!((theirs.index(), theirs.to_string()), (capability.number(), capability.to_string()));
        }
        assert_eq!(mask(&Capability::all()), (1 << 41) - 1);
    }

    #[test]
    fn names_are_read_in_any_case_with_or_without_prefix() {
        for text in ["NET_ADMIN", "cap_net_admin", "Cap_Net_Admin", "net_admin"] {
            assert_eq!(text.parse::<Capability>().unwrap().to_string(), "CAP_NET_ADMIN");
        }
        for text in ["", "CAP_", "NET-ADMIN", "SUPERUSER", "CAP_CAP_CHOWN"] {
            assert!(text.parse::<Capability>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_is_what_the_host_has_and_a_name_is_meant() {
        let has = || ["CHOWN", "KILL"].map(|name| name.parse().unwrap()).into();
        assert_eq!(mask(&capabilities(&["ALL"], &["KILL"]).allowed_of(has())), 1);
        assert_eq!(mask(&capabilities(&["ALL", "FOWNER"], &[]).allowed_of(has())), 0b10_1001);
        assert_eq!(mask(&capabilities(&[], &[]).allowed_of(has())), 0xa80405fb);
    }

    #[test]
    fn drop_comes_before_add() {
        let only = capabilities(&["CHOWN"], &["ALL"]).allowed();
        assert_eq!(mask(&only), 1);
        assert!(capabilities(&["KILL"], &["KILL"]).allowed().contains(&"KILL".parse().unwrap()));
        let most = capabilities(&["ALL"], &["SYS_ADMIN"]).allowed();
        assert_eq!(most.len(), 40);
        assert_eq!(capabilities(&["ALL"], &["ALL"]).allowed(), Capability::all());
        assert_eq!(capabilities(&["ALL"], &["ALL", "SYS_ADMIN"]).allowed().len(), 40);
    }

    #[test]
    fn what_is_added_is_ambient_for_a_user_other_than_root() {
        let of = |capabilities: &Capabilities, is_root| {
            let allowed = capabilities.allowed();
            mask(&capabilities.ambient_of(&allowed, is_root))
        };
        let added = capabilities(&["KILL", "NET_RAW"], &[]);
        assert_eq!((of(&added, false), of(&added, true)), (1 << 5 | 1 << 13, 0));
        assert_eq!(of(&capabilities(&["ALL"], &["SYS_ADMIN"]), false), (1 << 41) - 1 - (1 << 21));
        assert_eq!(of(&capabilities(&[], &[]), false), 0);
        let ambient = |names: &[&str]| Capabilities {
            ambient: Some(names.iter().map(|name| name.parse().unwrap()).collect()),
            ..added.clone()
        };
        assert_eq!((of(&ambient(&[]), false), of(&ambient(&["CHOWN"]), false)), (0, 1));
        assert_eq!((of(&ambient(&["CHOWN"]), true), of(&ambient(&["ALL"]), false)), (1, 0xa80405fb | 1 << 13));
    }
}
