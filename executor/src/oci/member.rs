//! Fits a container's bundle configuration to the sandbox that the container is a member of.
//!
//! | of each kind, the configuration says | the member gets |
//! | --- | --- |
//! | nothing | the sandbox's; as without one, where the sandbox has the host's |
//! | a new namespace | a new one; of a network the sandbox's, which all members share |
//! | a path | what is there |
//!
//! Decides only; whether a path can be joined shows when it is joined.

use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, Mount, MountBuilder, Spec};

/// Where POSIX shared memory is.
const SHM: &str = "/dev/shm";

/// What a sandbox has for its members. An absent namespace is the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// The network namespace, if members share one.
    pub net: Option<PathBuf>,
    /// The IPC namespace, if members share one.
    pub ipc: Option<PathBuf>,
    /// The UTS namespace, if members share one.
    pub uts: Option<PathBuf>,
    /// The pid namespace, if members share one.
    pub pid: Option<PathBuf>,
    /// The tmpfs that the members of the IPC namespace share at `/dev/shm`.
    pub shm: Option<PathBuf>,
    /// Files of the host, each with its path in a member, unless the member's configuration mounts
    /// something else there.
    pub files: Vec<(PathBuf, PathBuf)>,
}

impl Member {
    /// Changes a member's configuration.
    ///
    /// # Errors
    /// `BadSpec` for a configuration that cannot be changed.
    pub fn fit(&self, spec: &mut Spec) -> Result<()> {
        let Some(mut linux) = spec.linux().clone() else { return Ok(()) };
        let mut namespaces = linux.namespaces().clone().unwrap_or_default();
        let joins_ipc = namespaces.iter().any(|n| n.typ() == LinuxNamespaceType::Ipc && is_joined(n));
        let ours = [
            (LinuxNamespaceType::Network, &self.net),
            (LinuxNamespaceType::Ipc, &self.ipc),
            (LinuxNamespaceType::Uts, &self.uts),
            (LinuxNamespaceType::Pid, &self.pid),
        ];
        for (kind, path) in ours {
            let Some(path) = path else { continue };
            match namespaces.iter_mut().find(|namespace| namespace.typ() == kind) {
                None => namespaces.push(joined(kind, path)?),
                Some(new) if kind == LinuxNamespaceType::Network && !is_joined(new) => {
                    new.set_path(Some(path.clone()));
                }
                Some(_) => {}
            }
        }
        linux.set_namespaces(Some(namespaces));
        spec.set_linux(Some(linux));
        self.fit_mounts(spec, joins_ipc)
    }

    fn fit_mounts(&self, spec: &mut Spec, joins_ipc: bool) -> Result<()> {
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        let shm = self.shm.as_deref().filter(|_| joins_ipc);
        let own = |mount: &Mount| mount.destination() == Path::new(SHM) && mount.typ().as_deref() == Some("tmpfs");
        if let (Some(shm), Some(mount)) = (shm, mounts.iter_mut().find(|mount| own(mount))) {
            *mount = bound(shm, Path::new(SHM), &["nosuid", "noexec", "nodev"])?;
        }
        let read_only = spec.root().as_ref().and_then(|root| root.readonly()).unwrap_or(false);
        for (inside, file) in &self.files {
            if !mounts.iter().any(|mount| mount.destination() == inside) {
                mounts.push(bound(file, inside, if read_only { &["ro"] } else { &[] })?);
            }
        }
        spec.set_mounts(Some(mounts));
        Ok(())
    }
}

fn is_joined(namespace: &LinuxNamespace) -> bool {
    namespace.path().as_ref().is_some_and(|path| !path.as_os_str().is_empty())
}

fn joined(kind: LinuxNamespaceType, path: &Path) -> Result<LinuxNamespace> {
    let namespace = LinuxNamespaceBuilder::default().typ(kind).path(path).build();
    namespace.doing(Kind::BadSpec, || format!("cannot name the {kind} namespace {}", path.display()))
}

fn bound(source: &Path, inside: &Path, options: &[&str]) -> Result<Mount> {
    let options: Vec<String> = ["rbind", "rprivate"].iter().chain(options).map(|option| (*option).to_owned()).collect();
    let mount = MountBuilder::default().destination(inside).typ("bind").source(source).options(options).build();
    mount.doing(Kind::BadSpec, || format!("cannot bind {} to {}", source.display(), inside.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fitted(namespaces: &Value, mounts: &Value) -> Value {
        let member = Member {
            net: Some("/proc/7/ns/net".into()),
            ipc: Some("/proc/7/ns/ipc".into()),
            shm: Some("/b/shm".into()),
            files: vec![("/etc/hostname".into(), "/b/hostname".into())],
            ..Member::default()
        };
        let spec = json!({"ociVersion": "1.2.0", "linux": {"namespaces": namespaces}, "mounts": mounts});
        let mut spec: Spec = serde_json::from_value(spec).expect("a configuration");
        member.fit(&mut spec).expect("it can be fitted");
        serde_json::to_value(spec).expect("JSON")
    }

    fn path(fitted: &Value, kind: &str) -> Option<String> {
        let all = fitted["linux"]["namespaces"].as_array().expect("a list");
        let one = all.iter().find(|namespace| namespace["type"] == kind)?;
        Some(one["path"].as_str().unwrap_or("new").to_owned())
    }

    #[test]
    fn what_is_not_said_is_as_in_the_sandbox() {
        let fitted = fitted(&json!([{"type": "mount"}]), &json!([]));
        assert_eq!(path(&fitted, "network").as_deref(), Some("/proc/7/ns/net"));
        assert_eq!(path(&fitted, "ipc").as_deref(), Some("/proc/7/ns/ipc"));
        assert_eq!(path(&fitted, "uts"), None, "the sandbox has the host's");
        assert_eq!(path(&fitted, "mount").as_deref(), Some("new"));
    }

    #[test]
    fn a_new_network_is_the_sandbox_s_and_any_other_new_namespace_new() {
        let fitted = fitted(&json!([{"type": "network"}, {"type": "ipc"}, {"type": "pid", "path": ""}]), &json!([]));
        assert_eq!(path(&fitted, "network").as_deref(), Some("/proc/7/ns/net"));
        assert_eq!(path(&fitted, "ipc").as_deref(), Some("new"));
    }

    #[test]
    fn a_path_is_what_it_is() {
        let fitted = fitted(&json!([{"type": "network", "path": "/run/netns/x"}]), &json!([]));
        assert_eq!(path(&fitted, "network").as_deref(), Some("/run/netns/x"));
    }

    #[test]
    fn shared_memory_is_shared_by_those_who_join_an_ipc_namespace() {
        let shm = json!([{"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["size=65536k"]}]);
        let joined = json!([{"type": "ipc", "path": "/proc/7/ns/ipc"}]);
        assert_eq!(fitted(&joined, &shm)["mounts"][0]["source"], "/b/shm");
        for alone in [json!([{"type": "ipc"}]), json!([])] {
            assert_eq!(fitted(&alone, &shm)["mounts"][0]["source"], "shm", "{alone}");
        }
        let bound = json!([{"destination": "/dev/shm", "type": "bind", "source": "/mine", "options": ["bind"]}]);
        assert_eq!(fitted(&joined, &bound)["mounts"][0]["source"], "/mine", "its manager's own");
    }

    #[test]
    fn a_file_is_there_unless_something_else_is() {
        let mounts = &fitted(&json!([]), &json!([]))["mounts"];
        assert_eq!((&mounts[0]["destination"], &mounts[0]["source"]), (&json!("/etc/hostname"), &json!("/b/hostname")));
        let own = json!([{"destination": "/etc/hostname", "type": "bind", "source": "/mine", "options": ["bind"]}]);
        let mounts = &fitted(&json!([]), &own)["mounts"];
        assert_eq!(mounts.as_array().map(Vec::len), Some(1));
        assert_eq!(mounts[0]["source"], "/mine");
    }
}
