//! What this executor can do with a bundle, in the form of the OCI's `features.md`: the one list of
//! it, from which all answers come.
//!
//! A claim is true of the code, not of this host: a kernel may still lack what
//! is claimed. What is refused is not on the list.

use serde_json::{Value, json};

use crate::start::hooks::Point;
use crate::view::rootfs::mount_options;

/// The OCI versions of configurations that the executor understands.
const OCI_VERSIONS: [&str; 2] = ["1.0.0", "1.3.0"];

/// Whether mounts with `uidMappings` and `gidMappings` are made.
const IDMAPPED_MOUNTS: bool = true;

/// Whether the cgroups can be systemd's.
const SYSTEMD_CGROUPS: bool = true;

/// Namespaces that are made or joined.
const NAMESPACES: [&str; 8] = ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"];

/// NUMA memory policies: set_mempolicy(2).
const MEMORY_POLICIES: [&str; 7] = [
    "MPOL_BIND",
    "MPOL_DEFAULT",
    "MPOL_INTERLEAVE",
    "MPOL_LOCAL",
    "MPOL_PREFERRED",
    "MPOL_PREFERRED_MANY",
    "MPOL_WEIGHTED_INTERLEAVE",
];
const MEMORY_POLICY_FLAGS: [&str; 3] = ["MPOL_F_NUMA_BALANCING", "MPOL_F_RELATIVE_NODES", "MPOL_F_STATIC_NODES"];

const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

const SECCOMP_ACTIONS: [&str; 9] = [
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_LOG",
    "SCMP_ACT_NOTIFY",
    "SCMP_ACT_TRACE",
    "SCMP_ACT_TRAP",
];

const SECCOMP_OPERATORS: [&str; 7] =
    ["SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE"];

const SECCOMP_ARCHITECTURES: [&str; 15] = [
    "SCMP_ARCH_AARCH64",
    "SCMP_ARCH_ARM",
    "SCMP_ARCH_MIPS",
    "SCMP_ARCH_MIPS64",
    "SCMP_ARCH_MIPS64N32",
    "SCMP_ARCH_MIPSEL",
    "SCMP_ARCH_MIPSEL64",
    "SCMP_ARCH_MIPSEL64N32",
    "SCMP_ARCH_PPC",
    "SCMP_ARCH_PPC64",
    "SCMP_ARCH_PPC64LE",
    "SCMP_ARCH_RISCV64",
    "SCMP_ARCH_X32",
    "SCMP_ARCH_X86",
    "SCMP_ARCH_X86_64",
];

const SECCOMP_FLAGS: [&str; 4] = [
    "SECCOMP_FILTER_FLAG_LOG",
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
    "SECCOMP_FILTER_FLAG_TSYNC",
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
];

/// The list, as the OCI writes it in JSON. `annotations` are those of a configuration by which the caller decides
/// something.
pub fn features(annotations: &[&str]) -> Value {
    let [oldest, newest] = OCI_VERSIONS;
    json!({
        "ociVersionMin": oldest,
        "ociVersionMax": newest,
        "hooks": Point::ALL.map(Point::name),
        "mountOptions": mount_options(),
        "linux": {
            "namespaces": NAMESPACES,
            "capabilities": CAPABILITIES,
            "cgroup": {
                "v1": true,
                "v2": true,
                "systemd": SYSTEMD_CGROUPS,
                "systemdUser": false,
                "rdma": false,
            },
            "seccomp": {
                "enabled": true,
                "actions": SECCOMP_ACTIONS,
                "operators": SECCOMP_OPERATORS,
                "archs": SECCOMP_ARCHITECTURES,
                "knownFlags": SECCOMP_FLAGS,
                "supportedFlags": SECCOMP_FLAGS,
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": true },
            "memoryPolicy": { "modes": MEMORY_POLICIES, "flags": MEMORY_POLICY_FLAGS },
            "intelRdt": { "enabled": false, "schemata": false, "monitoring": false },
            "mountExtensions": { "idmap": { "enabled": IDMAPPED_MOUNTS } },
            "netDevices": { "enabled": true },
        },
        "potentiallyUnsafeConfigAnnotations": annotations,
        "annotations": { "dev.bowline.version": env!("CARGO_PKG_VERSION") },
    })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{
        Arch, Capability, LinuxNamespaceType, LinuxSeccompAction, LinuxSeccompFilterFlag, LinuxSeccompOperator,
        MemoryPolicyFlagType, MemoryPolicyModeType, Spec,
    };
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::view::namespaces::Namespaces;

    /// Each name is one that a configuration can have.
    fn all<T: DeserializeOwned>(names: &[&str]) -> Vec<T> {
        let parsed = names.iter().map(|name| serde_json::from_value(json!(name)));
        parsed.collect::<Result<_, _>>().expect("names of the OCI's")
    }

    #[test]
    fn what_is_claimed_has_the_oci_s_names() {
        all::<LinuxNamespaceType>(&NAMESPACES);
        all::<MemoryPolicyModeType>(&MEMORY_POLICIES);
        all::<MemoryPolicyFlagType>(&MEMORY_POLICY_FLAGS);
        all::<LinuxSeccompAction>(&SECCOMP_ACTIONS);
        all::<LinuxSeccompOperator>(&SECCOMP_OPERATORS);
        all::<Arch>(&SECCOMP_ARCHITECTURES);
        all::<LinuxSeccompFilterFlag>(&SECCOMP_FLAGS);
        let mut capabilities = all::<Capability>(CAPABILITIES);
        capabilities.dedup();
        assert_eq!(capabilities.len(), 41);
    }

    #[test]
    fn the_namespaces_that_are_claimed_are_taken() {
        let of = |kind: &str| {
            let namespaces = json!([{ "type": "mount" }, { "type": kind }]);
            let spec = json!({ "ociVersion": "1.2.0", "linux": { "namespaces": namespaces } });
            Namespaces::of(&serde_json::from_value::<Spec>(spec).expect("a configuration"))
        };
        for kind in NAMESPACES {
            assert!(of(kind).is_ok(), "{kind}");
        }
    }

    #[test]
    fn containerd_finds_what_it_looks_for() {
        let features = features(&[]);
        let has = |list: &Value, name: &str| list.as_array().is_some_and(|list| list.contains(&json!(name)));
        assert!(has(&features["mountOptions"], "rro"), "recursive read-only mounts");
        assert!(has(&features["linux"]["namespaces"], "user"));
        assert_eq!(features["linux"]["mountExtensions"]["idmap"]["enabled"], json!(IDMAPPED_MOUNTS));
    }
}
