//! What a sandbox is to be: as CRI describes a pod, or by an OCI configuration
//! in its bundle, as `ctr` and other clients write it.
//!
//! | | network | IPC, UTS | pid |
//! | --- | --- | --- | --- |
//! | a pod | containerd's, or the host's | its own, or the host's | its own when members share it |
//! | a configuration with namespaces | as it says | as it says | as it says |
//! | neither | containerd's, else the host's | its own | the host's |
//!
//! Nothing that is asked for is left out in silence. Must not: make anything.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_executor::{Doing, Error, Kind, Pause, PauseNet, Result};
use containerd_shim_protos::sandbox_api::CreateSandboxRequest;
use oci_spec::runtime::{Linux, LinuxNamespaceType, Spec};
use protobuf::Message as _;

#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
mod podsandbox {
    include!(concat!(env!("OUT_DIR"), "/podsandbox.rs"));
}

use podsandbox::{DNSConfig, NamespaceMode, NamespaceOption, PodSandboxConfig};

/// What CRI describes a pod by.
const POD: &str = "runtime.v1.PodSandboxConfig";

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its namespaces.
    pub pause: Pause,
    /// The cgroup that all its members are in, which somebody else makes.
    pub cgroup: Option<String>,
    /// Files that its members have: where, and what is in them. CRI leaves them
    /// to whoever makes the sandbox.
    pub files: BTreeMap<&'static str, Contents>,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// This.
    Text(String),
    /// The same as in the host's own.
    OfHost,
}

impl Wanted {
    /// As the request says, or the configuration in its bundle.
    ///
    /// # Errors
    /// `BadSpec` for what cannot be read or makes no sense; `Unsupported` for
    /// what is not done.
    pub fn of(request: &CreateSandboxRequest) -> Result<Wanted> {
        if !request.rootfs.is_empty() {
            let message = "rootfs: a sandbox without a machine of its own has no root filesystem";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let given = Some(&request.netns_path).filter(|path| !path.is_empty()).map(PathBuf::from);
        match request.options.as_ref().filter(|any| !any.type_url.is_empty()) {
            None => match configuration(Path::new(&request.bundle_path))? {
                Some(spec) => Wanted::of_configuration(&spec, given),
                None => Ok(Wanted::by_default(given)),
            },
            Some(any) if any.type_url.rsplit('/').next() == Some(POD) => {
                let pod = PodSandboxConfig::parse_from_bytes(&any.value);
                Wanted::of_pod(&pod.doing(Kind::BadSpec, || format!("the options are no {POD}"))?, given)
            }
            Some(any) => {
                let message = format!("options of type {} are unknown: {POD}, or none", any.type_url);
                Err(Error::new(Kind::BadSpec, message))
            }
        }
    }

    fn by_default(given: Option<PathBuf>) -> Wanted {
        let net = given.map_or(PauseNet::Host, PauseNet::Path);
        Wanted { pause: Pause { net, ipc: true, uts: true, ..Pause::default() }, ..Wanted::default() }
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
        if let Some(users) = options.userns_options.as_ref()
            && mode(users.mode, "userns_options")? == NamespaceMode::POD
        {
            let message = "a user namespace that a pod's members share is not supported with the sandboxer \"shim\"";
            return Err(Error::new(Kind::Unsupported, message).hint("the sandboxer \"podsandbox\" has it"));
        }
        let of_host = mode(options.network, "network")? == NamespaceMode::NODE;
        let net = match given {
            _ if of_host => PauseNet::Host,
            Some(path) => PauseNet::Path(path),
            None => PauseNet::New,
        };
        let pause = Pause {
            net,
            ipc: mode(options.ipc, "ipc")? != NamespaceMode::NODE,
            // Who is in the host's network goes by the host's name.
            uts: !of_host,
            pid: mode(options.pid, "pid")? == NamespaceMode::POD,
            hostname: Some(pod.hostname.clone()).filter(|name| !name.is_empty() && !of_host),
            sysctls: linux.map(|linux| linux.sysctls.clone().into_iter().collect()).unwrap_or_default(),
        };
        let cgroup = linux.map(|linux| linux.cgroup_parent.clone()).filter(|path| path.starts_with('/'));
        let hostname = match pod.hostname.as_str() {
            "" => Contents::OfHost,
            name => Contents::Text(format!("{name}\n")),
        };
        let resolvers = pod.dns_config.as_ref().map_or(Contents::OfHost, |dns| Contents::Text(resolvers(dns)));
        let files = [("/etc/hostname", hostname), ("/etc/hosts", Contents::OfHost), ("/etc/resolv.conf", resolvers)];
        Ok(Wanted { pause, cgroup, files: files.into() })
    }

    fn of_configuration(spec: &Spec, given: Option<PathBuf>) -> Result<Wanted> {
        let mut wanted = Wanted::by_default(given);
        wanted.pause.hostname = spec.hostname().clone().filter(|name| !name.is_empty());
        let Some(linux) = spec.linux() else { return Ok(wanted) };
        let unsupported = |what: &str| Err(Error::new(Kind::Unsupported, format!("{what} is not supported")));
        let resources = linux.resources().as_ref();
        // What every configuration has, whatever it is of, says nothing.
        let limited = resources.is_some_and(|r| r.memory().is_some() || r.cpu().is_some() || r.pids().is_some());
        if limited {
            return unsupported("linux.resources: limits of a sandbox");
        }
        let path = linux.cgroups_path().as_ref().and_then(|path| path.to_str());
        wanted.cgroup = path.filter(|path| path.starts_with('/')).map(str::to_owned);
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
                // What the request names counts.
                (LinuxNamespaceType::Network, _) if given => {}
                (LinuxNamespaceType::Network, None) => self.pause.net = PauseNet::New,
                (LinuxNamespaceType::Network, Some(path)) => self.pause.net = PauseNet::Path(path),
                (LinuxNamespaceType::Ipc, None) => self.pause.ipc = true,
                (LinuxNamespaceType::Uts, None) => self.pause.uts = true,
                (LinuxNamespaceType::Pid, None) => self.pause.pid = true,
                // Members have their own.
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

/// The configuration in a bundle, if there is one.
fn configuration(bundle: &Path) -> Result<Option<Spec>> {
    let file = bundle.join("config.json");
    let text = match std::fs::read(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.doing(Kind::BadSpec, || format!("cannot read {}", file.display()))?,
    };
    let spec = serde_json::from_slice(&text);
    spec.doing(Kind::BadSpec, || format!("{} is not an OCI configuration", file.display())).map(Some)
}

/// As resolv.conf(5) has it.
fn resolvers(dns: &DNSConfig) -> String {
    let mut text = String::new();
    let mut line = |key: &str, values: &[String]| {
        if !values.is_empty() {
            // A string takes whatever is written to it.
            let _ = writeln!(text, "{key} {}", values.join(" "));
        }
    };
    line("search", &dns.searches);
    for server in &dns.servers {
        line("nameserver", std::slice::from_ref(server));
    }
    line("options", &dns.options);
    text
}
