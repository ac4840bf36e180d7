//! The NUMA memory policy of a container's processes: set_mempolicy(2).

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::values::IdSet;
use bowline_sys as sys;
use oci_spec::runtime::{LinuxMemoryPolicy, MemoryPolicyFlagType, MemoryPolicyModeType, Spec};

/// The nodes of a policy, a bit each: 1,024, more than any kernel has (`MAX_NUMNODES`).
type Nodes = [u64; 16];

/// Checks the policy, if the configuration has one.
///
/// # Errors
/// `BadSpec` for nodes that are none, or that the mode does not take.
pub fn check(spec: &Spec) -> Result<()> {
    of(spec).map_or(Ok(()), |policy| nodes(policy).map(drop))
}

/// Sets the policy of the calling process, and of what it executes. Comes before its rights are given up.
pub fn apply(spec: &Spec) -> Result<()> {
    let Some(policy) = of(spec) else { return Ok(()) };
    let what = || format!("linux.memoryPolicy: cannot set {} of the nodes {:?}", policy.mode(), text(policy));
    sys::set_memory_policy(mode(policy), &nodes(policy)?).doing(Kind::BadSpec, what)
}

fn of(spec: &Spec) -> Option<&LinuxMemoryPolicy> {
    spec.linux().as_ref()?.memory_policy().as_ref()
}

fn text(policy: &LinuxMemoryPolicy) -> &str {
    policy.nodes().as_deref().unwrap_or_default()
}

/// The mode with its flags (linux/mempolicy.h).
fn mode(policy: &LinuxMemoryPolicy) -> i32 {
    let mode = match policy.mode() {
        MemoryPolicyModeType::MpolDefault => 0,
        MemoryPolicyModeType::MpolPreferred => 1,
        MemoryPolicyModeType::MpolBind => 2,
        MemoryPolicyModeType::MpolInterleave => 3,
        MemoryPolicyModeType::MpolLocal => 4,
        MemoryPolicyModeType::MpolPreferredMany => 5,
        MemoryPolicyModeType::MpolWeightedInterleave => 6,
    };
    let flag = |flag: &MemoryPolicyFlagType| match flag {
        MemoryPolicyFlagType::MpolFNumaBalancing => 1 << 13,
        MemoryPolicyFlagType::MpolFRelativeNodes => 1 << 14,
        MemoryPolicyFlagType::MpolFStaticNodes => 1 << 15,
    };
    policy.flags().iter().flatten().map(flag).fold(mode, |mode, flag| mode | flag)
}

/// The nodes, which are written as `0-3,7`.
fn nodes(policy: &LinuxMemoryPolicy) -> Result<Nodes> {
    let mut nodes = Nodes::default();
    let text = text(policy);
    let bad = || {
        let message = format!("linux.memoryPolicy.nodes: invalid memory policy node in {text:?}");
        Error::new(Kind::BadSpec, message).hint("list nodes and ranges of them, such as 0-3,7")
    };
    let listed = if text.is_empty() { None } else { Some(text.parse::<IdSet>().map_err(|_| bad())?) };
    for id in listed.iter().flat_map(IdSet::ids) {
        *nodes.get_mut(*id as usize / 64).ok_or_else(bad)? |= 1 << (id % 64);
    }
    let count = listed.as_ref().map_or(0, |listed| listed.ids().len());
    let takes_none = matches!(policy.mode(), MemoryPolicyModeType::MpolDefault | MemoryPolicyModeType::MpolLocal);
    if takes_none && count > 0 {
        let message = format!("linux.memoryPolicy.nodes: {} mode requires 0 nodes but got {count}", policy.mode());
        return Err(Error::new(Kind::BadSpec, message).hint("leave the nodes out, or choose another mode"));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(mode: &str, nodes: &str) -> LinuxMemoryPolicy {
        serde_json::from_value(json!({ "mode": mode, "nodes": nodes })).expect("a policy")
    }

    #[test]
    fn nodes_are_bits() {
        let mut expected = [0; 16];
        (expected[0], expected[1]) = (0b1000_1111, 1);
        assert_eq!(nodes(&policy("MPOL_BIND", "0-3,7,64")), Ok(expected));
        assert_eq!(nodes(&policy("MPOL_DEFAULT", "")), Ok([0; 16]));
        for bad in ["a", "3-1", "0-9876543210", "1024", "-1", "1-"] {
            assert!(nodes(&policy("MPOL_BIND", bad)).is_err(), "{bad}");
        }
        for mode in ["MPOL_DEFAULT", "MPOL_LOCAL"] {
            let error = nodes(&policy(mode, "0-7")).expect_err("it takes none").to_string();
            assert!(error.contains("requires 0 nodes but got 8"), "{error}");
        }
    }

    #[test]
    fn flags_are_part_of_the_mode() {
        let flags = json!({ "mode": "MPOL_PREFERRED", "nodes": "0", "flags": ["MPOL_F_RELATIVE_NODES"] });
        assert_eq!(mode(&serde_json::from_value(flags).expect("a policy")), 1 | 1 << 14);
    }
}
