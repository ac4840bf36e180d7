//! A profile from a file: OCI's form, or Docker's with its conditions.
//!
//! Docker's form adds to OCI's: `archMap` instead of `architectures`, `name`
//! instead of `names` (old files), and by rule `includes` and `excludes` with
//! capabilities, architectures and a minimal kernel.

use std::collections::BTreeSet;

use oci_spec::runtime::{Arch, LinuxSeccomp, LinuxSeccompArg, LinuxSyscall};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::native_arch;
use crate::capability::Capability;
use crate::invalid::Invalid;

/// The profile in `json`, as it applies to a task with these capabilities on
/// this architecture and kernel (6.12 is `(6, 12)`).
///
/// # Errors
/// What is no profile, with `field` `seccomp` and the line of the profile.
pub fn parse_profile(
    json: &str,
    capabilities: &BTreeSet<Capability>,
    kernel: (u32, u32),
) -> Result<LinuxSeccomp, Invalid> {
    let facts = Facts { capabilities, kernel, arch: native_arch() };
    let profile: Profile = serde_json::from_str(json).map_err(|error| Invalid {
        line: Some(error.line()),
        column: Some(error.column()),
        ..wrong(crate::parse::json_reason(&error))
    })?;
    profile.resolve(&facts)
}

fn wrong(reason: impl std::fmt::Display) -> Invalid {
    Invalid::new("seccomp", format!("not a seccomp profile: {reason}"))
}

/// What conditions are decided by.
struct Facts<'a> {
    capabilities: &'a BTreeSet<Capability>,
    kernel: (u32, u32),
    arch: Arch,
}

/// Unknown fields are let through, as Docker and runc do: profiles in use
/// carry comments and fields of other engines.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(default)]
    arch_map: Option<Vec<ArchMap>>,
    #[serde(default)]
    syscalls: Option<Vec<Rule>>,
    /// OCI's own fields, `architectures` and the default action among them.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: Arch,
    #[serde(default)]
    sub_architectures: Option<Vec<Arch>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    names: Option<Vec<String>>,
    action: oci_spec::runtime::LinuxSeccompAction,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<LinuxSeccompArg>>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Conditions {
    caps: Option<Vec<String>>,
    arches: Option<Vec<String>>,
    min_kernel: Option<String>,
}

impl Profile {
    fn resolve(self, facts: &Facts) -> Result<LinuxSeccomp, Invalid> {
        let rest = Value::Object(self.rest);
        let mut profile = LinuxSeccomp::deserialize(&rest).map_err(wrong)?;
        let listed = profile.architectures().as_ref().is_some_and(|a| !a.is_empty());
        let arch_map = self.arch_map.unwrap_or_default();
        if listed && !arch_map.is_empty() {
            return Err(wrong("both architectures and archMap are given"));
        }
        if let Some(map) = arch_map.into_iter().find(|m| m.architecture == facts.arch) {
            let mut architectures = vec![map.architecture];
            architectures.extend(map.sub_architectures.unwrap_or_default());
            profile.set_architectures(Some(architectures));
        }
        let mut rules = Vec::new();
        for (index, rule) in self.syscalls.unwrap_or_default().into_iter().enumerate() {
            let resolved = rule.resolve(facts);
            rules.extend(resolved.map_err(|reason| wrong(format!("syscalls[{index}]: {reason}")))?);
        }
        profile.set_syscalls(Some(rules));
        Ok(profile)
    }
}

impl Rule {
    /// The rule without its conditions; nothing where they do not hold.
    fn resolve(self, facts: &Facts) -> Result<Option<LinuxSyscall>, String> {
        let names = match (self.name.filter(|n| !n.is_empty()), self.names.unwrap_or_default()) {
            (Some(_), names) if !names.is_empty() => {
                return Err("both name and names are given".into());
            }
            (Some(name), _) => vec![name],
            (None, names) if names.is_empty() => return Err("names no system call".into()),
            (None, names) => names,
        };
        let included = match &self.includes {
            Some(conditions) => conditions.all_hold(facts)?,
            None => true,
        };
        let excluded = match &self.excludes {
            Some(conditions) => conditions.any_holds(facts)?,
            None => false,
        };
        if !included || excluded {
            return Ok(None);
        }
        let mut rule = LinuxSyscall::default();
        rule.set_names(names);
        rule.set_action(self.action);
        rule.set_errno_ret(self.errno_ret);
        rule.set_args(self.args.filter(|args| !args.is_empty()));
        Ok(Some(rule))
    }
}

impl Conditions {
    /// As Docker reads `includes`: every capability, one of the architectures,
    /// and the kernel.
    fn all_hold(&self, facts: &Facts) -> Result<bool, String> {
        let arches = self.arches();
        let capabilities = self.capabilities(facts);
        Ok(capabilities.into_iter().all(|held| held)
            && (arches.is_empty() || arches.contains(&go_arch(facts.arch)))
            && self.kernel_reached(facts)?.unwrap_or(true))
    }

    /// As Docker reads `excludes`: any of it is enough.
    fn any_holds(&self, facts: &Facts) -> Result<bool, String> {
        Ok(self.capabilities(facts).into_iter().any(|held| held)
            || self.arches().contains(&go_arch(facts.arch))
            || self.kernel_reached(facts)?.unwrap_or(false))
    }

    fn arches(&self) -> Vec<&str> {
        let arches = self.arches.as_deref().unwrap_or_default();
        arches.iter().map(String::as_str).collect()
    }

    /// For each capability named, whether the task has it. One that this crate
    /// does not know is one that the task does not have.
    fn capabilities(&self, facts: &Facts) -> Vec<bool> {
        let names = self.caps.as_deref().unwrap_or_default();
        let held = |name: &String| {
            let capability = name.parse::<Capability>();
            capability.is_ok_and(|c| facts.capabilities.contains(&c))
        };
        names.iter().map(held).collect()
    }

    fn kernel_reached(&self, facts: &Facts) -> Result<Option<bool>, String> {
        let Some(text) = self.min_kernel.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let version = text
            .split_once('.')
            .and_then(|(kernel, major)| Some((kernel.parse::<u32>().ok()?, major.parse::<u32>().ok()?)));
        match version {
            Some(version) => Ok(Some(facts.kernel >= version)),
            None => Err(format!("minKernel {text:?} is not a version such as 4.8")),
        }
    }
}

/// The name that Docker's profiles use: Go's, where libseccomp's differs.
fn go_arch(arch: Arch) -> &'static str {
    match arch {
        Arch::ScmpArchX86_64 => "amd64",
        Arch::ScmpArchX86 => "x86",
        Arch::ScmpArchAarch64 => "arm64",
        Arch::ScmpArchArm => "arm",
        Arch::ScmpArchRiscv64 => "riscv64",
        Arch::ScmpArchS390x => "s390x",
        _ => "",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::capability::default_set;
    use crate::seccomp::{Abis, default_profile};
    use proptest::prelude::*;

    const NOW: (u32, u32) = (6, 12);

    fn allowed(profile: &LinuxSeccomp) -> BTreeSet<String> {
        let rules = profile.syscalls().as_ref().unwrap();
        rules.iter().flat_map(|rule| rule.names().clone()).collect()
    }

    #[test]
    fn ocis_form_comes_back_as_it_is() {
        let profile = default_profile(&default_set(), native_arch(), NOW, Abis::All);
        let json = serde_json::to_string(&profile).unwrap();
        assert_eq!(parse_profile(&json, &default_set(), NOW).unwrap(), profile);
    }

    #[test]
    fn dockers_conditions_are_decided() {
        let json = r#"{
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
            "archMap": [
                {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
                {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": null}
            ],
            "syscalls": [
                {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "x",
                 "includes": {}, "excludes": {}},
                {"name": "write", "action": "SCMP_ACT_ALLOW"},
                {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
                {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                {"names": ["reboot"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_CHOWN"]}},
                {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
                {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "9.1"}},
                {"names": ["swapcontext"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["ppc64le"]}}
            ]
        }"#;
        let profile = parse_profile(json, &default_set(), NOW).unwrap();
        let names: Vec<_> = allowed(&profile).into_iter().collect();
        assert_eq!(names, ["chroot", "ptrace", "read", "write"]);
        assert!(profile.architectures().as_ref().unwrap().contains(&native_arch()));
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for json in [
            "",
            "[]",
            "{}",
            r#"{"defaultAction": "SCMP_ACT_PERHAPS"}"#,
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW"}]}"#,
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
                {"name": "a", "names": ["b"], "action": "SCMP_ACT_ALLOW"}]}"#,
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86"],
                "archMap": [{"architecture": "SCMP_ARCH_X86_64"}]}"#,
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
                {"names": ["a"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "new"}}]}"#,
        ] {
            let error = parse_profile(json, &default_set(), NOW).unwrap_err();
            assert_eq!(error.field, "seccomp", "{json}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(json in "\\PC*") {
            let _ = parse_profile(&json, &default_set(), NOW);
        }
    }
}
