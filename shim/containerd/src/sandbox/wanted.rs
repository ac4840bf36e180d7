//! Determines what a sandbox should have: from CRI's description of a pod, or from an OCI configuration in its bundle,
//! as `ctr` and other clients write it.
//!
//! | | network | IPC, UTS | pid |
//! | --- | --- | --- | --- |
//! | a pod | containerd's, or the host's | its own, or the host's | its own when members share it |
//! | a configuration with namespaces | as it says | as it says | as it says |
//! | neither | containerd's, else the host's | its own | the host's |
//!
//! No request is ignored silently. Must not: create anything.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_executor::internal::{
    Idmap, LARGEST_CONFIG, PauseNet, PauseProcess, checked_cgroup_path, read_regular_file,
};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::names::resolv_conf;
use containerd_shim_protos::sandbox_api::CreateSandboxRequest;
use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespaceType, Spec};
use protobuf::Message as _;
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::invocation::Privileged;

#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
mod podsandbox {
    include!(concat!(env!("OUT_DIR"), "/podsandbox.rs"));
}

use podsandbox::{IDMapping, NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace};

/// The type of CRI's description of a pod.
const POD: &str = "runtime.v1.PodSandboxConfig";

/// What a sandbox should have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its namespaces, host name and sysctls.
    pub pause: PauseProcess,
    /// The cgroup of all its members, which the manager creates.
    pub cgroup: Option<String>,
    /// The files that its members see, by path. CRI leaves them to whoever creates the sandbox.
    pub files: BTreeMap<String, Contents>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contents {
    Text(String),
    /// The contents of the host's file.
    OfHost,
}

impl Wanted {
    /// Reads the request, or the configuration in its bundle.
    ///
    /// # Errors
    /// `BadSpec` for what cannot be read or makes no sense; `Unsupported` for what the shim does not support.
    pub fn of(request: &CreateSandboxRequest, privileged: Privileged) -> Result<Wanted> {
        if !request.rootfs.is_empty() {
            let message = "rootfs: a sandbox without a machine of its own has no root filesystem";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let given = Some(&request.netns_path).filter(|path| !path.is_empty()).map(PathBuf::from);
        let wanted = match request.options.as_ref().filter(|any| !any.type_url.is_empty()) {
            None => match configuration(Path::new(&request.bundle_path))? {
                Some(spec) => Wanted::of_configuration(&spec, given),
                None => Ok(Wanted::by_default(given)),
            },
            Some(any) if any.type_url.rsplit('/').next() == Some(POD) => {
                let pod = PodSandboxConfig::parse_from_bytes(&any.value);
                let mut wanted =
                    Wanted::of_pod(&pod.doing(Kind::BadSpec, || format!("the options are no {POD}"))?, given)?;
                wanted.pause.sysctls.extend(by_default(&wanted.pause, privileged));
                Ok(wanted)
            }
            Some(any) => {
                let message = format!("options of type {} are unknown: {POD}, or none", any.type_url);
                Err(Error::new(Kind::BadSpec, message))
            }
        }?;
        match &wanted.pause.net {
            PauseNet::Path(path) if path.is_relative() => {
                let message = format!("network namespace: {:?} is not absolute", path.display().to_string());
                Err(Error::new(Kind::BadSpec, message))
            }
            PauseNet::Path(_) | PauseNet::Host | PauseNet::New => Ok(wanted),
        }
    }

    fn by_default(given: Option<PathBuf>) -> Wanted {
        let net = given.map_or(PauseNet::Host, PauseNet::Path);
        Wanted { pause: PauseProcess { net, ipc: true, uts: true, ..PauseProcess::default() }, ..Wanted::default() }
    }

    fn of_pod(pod: &PodSandboxConfig, given: Option<PathBuf>) -> Result<Wanted> {
        let linux = pod.linux.as_ref();
        let context = linux.and_then(|linux| linux.security_context.as_ref());
        let options = context.and_then(|context| context.namespace_options.as_ref());
        let options = options.unwrap_or_else(|| NamespaceOption::default_instance());
        let mode = |mode: protobuf::EnumOrUnknown<NamespaceMode>, name: &str| {
            mode.enum_value()
                .map_err(|number| Error::new(Kind::BadSpec, format!("namespace_options.{name}: {number} is no mode")))
        };
        let users = match options.userns_options.as_ref() {
            None => None,
            Some(users) => match mode(users.mode, "userns_options")? {
                NamespaceMode::NODE => None,
                NamespaceMode::POD => Some(maps(users)?),
                NamespaceMode::CONTAINER => return Err(no_users("CONTAINER")),
                NamespaceMode::TARGET => return Err(no_users("TARGET")),
            },
        };
        let of_host = mode(options.network, "network")? == NamespaceMode::NODE;
        let net = match given {
            _ if of_host => PauseNet::Host,
            Some(path) => PauseNet::Path(path),
            None => PauseNet::New,
        };
        let pause = PauseProcess {
            net,
            ipc: mode(options.ipc, "ipc")? != NamespaceMode::NODE,
            // A pod in the host's network has the host's name.
            uts: !of_host,
            pid: mode(options.pid, "pid")? == NamespaceMode::POD,
            users,
            hostname: Some(pod.hostname.clone()).filter(|name| !name.is_empty() && !of_host),
            sysctls: linux.map(|linux| linux.sysctls.clone().into_iter().collect()).unwrap_or_default(),
        };
        let cgroup = cgroup(linux.map(|linux| linux.cgroup_parent.as_str()))?;
        let hostname = match pod.hostname.as_str() {
            "" => uname().nodename().to_string_lossy().into_owned(),
            name => name.to_owned(),
        };
        let hostname = Contents::Text(hostname + "\n");
        let resolvers = pod
            .dns_config
            .as_ref()
            .map_or(Contents::OfHost, |dns| Contents::Text(resolv_conf(&dns.servers, &dns.searches, &dns.options)));
        let files = [("/etc/hostname", hostname), ("/etc/hosts", Contents::OfHost), ("/etc/resolv.conf", resolvers)];
        let files = files.map(|(path, contents)| (path.to_owned(), contents));
        Ok(Wanted { pause, cgroup, files: files.into() })
    }

    fn of_configuration(spec: &Spec, given: Option<PathBuf>) -> Result<Wanted> {
        let mut wanted = Wanted::by_default(given);
        wanted.pause.hostname = spec.hostname().clone().filter(|name| !name.is_empty());
        let Some(linux) = spec.linux() else { return Ok(wanted) };
        let unsupported = |what: &str| Err(Error::new(Kind::Unsupported, format!("{what} is not supported")));
        let resources = linux.resources().as_ref();
        // Other resources are in every configuration and mean nothing.
        let limited = resources.is_some_and(|r| r.memory().is_some() || r.cpu().is_some() || r.pids().is_some());
        if limited {
            return unsupported("linux.resources: limits of a sandbox");
        }
        let path = linux.cgroups_path().as_ref().and_then(|path| path.to_str());
        wanted.cgroup = cgroup(path)?;
        wanted.pause.sysctls = linux.sysctl().clone().unwrap_or_default().into_iter().collect();
        wanted.set_namespaces(linux)?;
        Ok(wanted)
    }

    fn set_namespaces(&mut self, linux: &Linux) -> Result<()> {
        let Some(namespaces) = linux.namespaces() else { return Ok(()) };
        let given = matches!(self.pause.net, PauseNet::Path(_));
        (self.pause.ipc, self.pause.uts) = (false, false);
        for namespace in namespaces {
            let path = namespace.path().clone().filter(|path| !path.as_os_str().is_empty());
            match (namespace.typ(), path) {
                // The network namespace in the request takes precedence.
                (LinuxNamespaceType::Network, _) if given => {}
                (LinuxNamespaceType::Network, None) => self.pause.net = PauseNet::New,
                (LinuxNamespaceType::Network, Some(path)) => self.pause.net = PauseNet::Path(path),
                (LinuxNamespaceType::Ipc, None) => self.pause.ipc = true,
                (LinuxNamespaceType::Uts, None) => self.pause.uts = true,
                (LinuxNamespaceType::Pid, None) => self.pause.pid = true,
                // Members have their own mount and cgroup namespaces.
                (LinuxNamespaceType::Mount | LinuxNamespaceType::Cgroup, _) => {}
                (kind, _) => {
                    let what = format!("namespaces.{kind}: this of a sandbox is not supported");
                    return Err(Error::new(Kind::Unsupported, what));
                }
            }
        }
        Ok(())
    }
}

/// The sysctls that a pod gets unless it sets them, as from containerd's own controller: its users may open any port, and
/// ping. The kernel takes no group for the latter that a user namespace lacks.
fn by_default(pause: &PauseProcess, privileged: Privileged) -> Vec<(String, String)> {
    let own = pause.net != PauseNet::Host;
    let all_groups = pause.users.is_none() && maps_all_groups();
    let defaults = [
        (own && !privileged.ports, "net.ipv4.ip_unprivileged_port_start", "0"),
        (own && !privileged.icmp && all_groups, "net.ipv4.ping_group_range", "0 2147483647"),
    ];
    let wanted = defaults.into_iter().filter(|(wanted, key, _)| *wanted && !names(&pause.sysctls, key));
    wanted.map(|(_, key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether these sysctls have one, by either of its names (sysctl(8)).
fn names(sysctls: &BTreeMap<String, String>, key: &str) -> bool {
    sysctls.contains_key(key) || sysctls.contains_key(&key.replace('.', "/"))
}

/// Whether this process is in no user namespace but the host's.
fn maps_all_groups() -> bool {
    let map = std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn no_users(mode: &str) -> Error {
    let message = format!("namespace_options.userns_options: a pod has no user namespace of mode {mode}");
    Error::new(Kind::Unsupported, message).hint("the modes are POD and NODE")
}

/// The maps of a pod's user namespace. containerd, too, wants one of each that has a root user.
fn maps(users: &UserNamespace) -> Result<Idmap> {
    let map = |name: &str, given: &[IDMapping]| -> Result<Vec<LinuxIdMapping>> {
        let [map] = given else {
            let message = format!("namespace_options.userns_options.{name}: one mapping, not {}", given.len());
            return Err(Error::new(Kind::BadSpec, message));
        };
        if map.container_id != 0 || map.length == 0 {
            let message = format!("namespace_options.userns_options.{name}: the mapping leaves out the pod's root");
            return Err(Error::new(Kind::BadSpec, message).hint("set container_id to 0, and a length"));
        }
        let mapping = LinuxIdMappingBuilder::default().container_id(0u32).host_id(map.host_id).size(map.length).build();
        mapping.map(|mapping| vec![mapping]).doing(Kind::Internal, || "cannot make a mapping")
    };
    Ok(Idmap { uids: map("uids", &users.uids)?, gids: map("gids", &users.gids)? })
}

/// A cgroup that is given as a path: not the name of a unit, and not the root.
fn cgroup(path: Option<&str>) -> Result<Option<String>> {
    let path = path.filter(|path| path.starts_with('/') && *path != "/");
    path.map(|path| checked_cgroup_path(path).map(str::to_owned)).transpose()
}

/// The configuration in a bundle, if there is one.
fn configuration(bundle: &Path) -> Result<Option<Spec>> {
    let file = bundle.join("config.json");
    let text = match read_regular_file(&file, LARGEST_CONFIG) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.doing(Kind::BadSpec, || format!("cannot read {}", file.display()))?,
    };
    let spec = serde_json::from_slice(&text);
    spec.doing(Kind::BadSpec, || format!("{} is not an OCI configuration", file.display())).map(Some)
}

#[cfg(test)]
mod tests {
    use protobuf::MessageField;
    use serde_json::{Value, json};

    use super::podsandbox::{DNSConfig, LinuxPodSandboxConfig, LinuxSandboxSecurityContext};
    use super::*;

    fn pod(namespaces: NamespaceOption) -> PodSandboxConfig {
        let context = LinuxSandboxSecurityContext {
            namespace_options: MessageField::some(namespaces),
            ..LinuxSandboxSecurityContext::default()
        };
        let linux = LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/pod7".to_owned(),
            security_context: MessageField::some(context),
            ..LinuxPodSandboxConfig::default()
        };
        let hostname = "web-0".to_owned();
        PodSandboxConfig { hostname, linux: MessageField::some(linux), ..PodSandboxConfig::default() }
    }

    fn modes(network: NamespaceMode, pid: NamespaceMode, ipc: NamespaceMode) -> NamespaceOption {
        let (network, pid, ipc) = (network.into(), pid.into(), ipc.into());
        NamespaceOption { network, pid, ipc, ..NamespaceOption::default() }
    }

    #[test]
    fn a_pod_s_namespaces_are_its_own_or_the_host_s() {
        use NamespaceMode::{CONTAINER, NODE, POD};
        let given = Some(PathBuf::from("/run/netns/x"));
        let of = |modes, given| Wanted::of_pod(&pod(modes), given).expect("it makes sense").pause;
        let usual = of(modes(POD, CONTAINER, POD), given.clone());
        assert_eq!(usual.net, PauseNet::Path("/run/netns/x".into()));
        assert_eq!((usual.ipc, usual.uts, usual.pid), (true, true, false));
        assert_eq!(usual.hostname.as_deref(), Some("web-0"));
        assert_eq!(of(modes(POD, POD, POD), None).net, PauseNet::New, "isolated, as it asks for");
        assert!(of(modes(POD, POD, POD), given.clone()).pid);
        let host = of(modes(NODE, NODE, NODE), given);
        let as_the_host = PauseProcess::default();
        assert_eq!(host, as_the_host, "with its name");
    }

    #[test]
    fn what_a_pod_cannot_have_is_refused() {
        use NamespaceMode::{CONTAINER, NODE, POD, TARGET};
        let users = |mode: NamespaceMode, maps: &[IDMapping]| {
            let (uids, gids) = (maps.to_vec(), maps.to_vec());
            let users = UserNamespace { mode: mode.into(), uids, gids, ..UserNamespace::default() };
            let modes = NamespaceOption { userns_options: MessageField::some(users), ..NamespaceOption::default() };
            Wanted::of_pod(&pod(modes), None).map(|wanted| wanted.pause.users.is_some()).map_err(|e| e.kind())
        };
        let map = |container_id, length| IDMapping { host_id: 9, container_id, length, ..IDMapping::default() };
        assert_eq!(users(POD, &[map(0, 5)]), Ok(true));
        assert_eq!(users(NODE, &[]), Ok(false));
        for maps in [&[][..], &[map(0, 5), map(5, 5)], &[map(1, 5)], &[map(0, 0)]] {
            assert_eq!(users(POD, maps), Err(Kind::BadSpec), "{maps:?}");
        }
        assert_eq!(users(CONTAINER, &[]), Err(Kind::Unsupported));
        assert_eq!(users(TARGET, &[]), Err(Kind::Unsupported));
        let unknown = NamespaceOption { pid: protobuf::EnumOrUnknown::from_i32(9), ..NamespaceOption::default() };
        let refused = Wanted::of_pod(&pod(unknown), None).expect_err("no such mode");
        assert!(refused.kind() == Kind::BadSpec && refused.to_string().contains("namespace_options.pid"), "{refused}");
        let mut outside = pod(NamespaceOption::default());
        outside.linux.mut_or_insert_default().cgroup_parent = "/kubepods/../../x".to_owned();
        assert_eq!(Wanted::of_pod(&outside, None).map_err(|e| e.kind()), Err(Kind::BadSpec));
    }

    #[test]
    fn a_pod_s_files_are_what_it_says_or_the_host_s() {
        let mut pod = pod(NamespaceOption::default());
        let wanted = Wanted::of_pod(&pod, None).expect("it makes sense");
        assert_eq!(wanted.cgroup.as_deref(), Some("/kubepods/pod7"));
        assert_eq!(wanted.files["/etc/resolv.conf"], Contents::OfHost);
        assert_eq!(wanted.files["/etc/hostname"], Contents::Text("web-0\n".to_owned()));
        pod.hostname.clear();
        let wanted = Wanted::of_pod(&pod, None).expect("it makes sense");
        let of_host = format!("{}\n", uname().nodename().to_string_lossy());
        assert_eq!(wanted.files["/etc/hostname"], Contents::Text(of_host), "as for a pod in the host's network");
        pod.dns_config = MessageField::some(DNSConfig {
            servers: vec!["192.0.2.1".to_owned(), "192.0.2.2".to_owned()],
            searches: vec!["a.example".to_owned(), "b.example".to_owned()],
            options: vec!["ndots:5".to_owned()],
            ..DNSConfig::default()
        });
        let text = "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a.example b.example\noptions ndots:5\n";
        let wanted = Wanted::of_pod(&pod, None).expect("it makes sense");
        assert_eq!(wanted.files["/etc/resolv.conf"], Contents::Text(text.to_owned()));
    }

    fn configured(linux: &Value, given: Option<&str>) -> Result<Wanted> {
        let spec = json!({"ociVersion": "1.2.0", "linux": linux});
        let spec = serde_json::from_value(spec).expect("a configuration");
        Wanted::of_configuration(&spec, given.map(PathBuf::from))
    }

    #[test]
    fn a_configuration_s_namespaces_are_those_that_it_names() {
        let all = json!({"namespaces": [{"type": "network"}, {"type": "pid"}, {"type": "mount"}]});
        let pause = configured(&all, None).expect("it makes sense").pause;
        assert_eq!(pause, PauseProcess { net: PauseNet::New, pid: true, ..PauseProcess::default() });
        let pause = configured(&all, Some("/run/netns/x")).expect("it makes sense").pause;
        assert_eq!(pause.net, PauseNet::Path("/run/netns/x".into()), "what the request names counts");
        let silent = configured(&json!({}), None).expect("it makes sense").pause;
        assert_eq!((silent.net, silent.ipc, silent.uts), (PauseNet::Host, true, true));
        for namespaces in [json!([{"type": "user"}]), json!([{"type": "pid", "path": "/proc/1/ns/pid"}])] {
            let refused = configured(&json!({"namespaces": namespaces}), None).map_err(|e| e.kind());
            assert_eq!(refused, Err(Kind::Unsupported), "{namespaces}");
        }
    }
}
