//! The network of a sandbox, which its members share, or of a task that is in none.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AppMesh;
use super::left_out::is_default;
use crate::address::{Cidr, MacAddress};
use crate::invalid::Invalid;
use crate::text::text_value;
use crate::values::Duration;

/// Where plugins are looked for unless the description says.
pub const PLUGIN_FOLDERS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// The network of a sandbox, or of a task outside one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// "host", "none" (only loopback), "bridge" (an address in a bridge that all share), "cni" (what `interfaces`
    /// says), or the absolute path of a network namespace; by default "cni" with interfaces, else "host".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// Whose plugins make bridges and move interfaces; "standard" by default. VLAN branches and proxies always use
    /// ECS's.
    #[serde(skip_serializing_if = "is_default")]
    pub plugins: Plugins,
    /// Folders with CNI plugins; by default `/opt/cni/bin`, `/usr/lib/cni` and `/usr/libexec/cni`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugin_folders: Vec<PathBuf>,
    /// How long a plugin may take before it is killed; 1m by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_timeout: Option<Duration>,
    /// Interfaces besides loopback, made in this order and removed in reverse.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// Host ports that lead to ports inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// A proxy in the sandbox for its traffic, set up last; also in a network namespace that somebody else made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    /// App Mesh's proxy in the sandbox, set up by ECS's plugin `aws-appmesh` after the interfaces, before `proxy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_mesh: Option<AppMesh>,
    /// Arguments for every plugin, as `CNI_ARGS`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Kernel settings of the network, such as `"net.ipv6.conf.all.disable_ipv6" = "1"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
}

impl Network {
    /// What kind of network it is, with its default.
    pub fn mode(&self) -> NetworkMode {
        let default = if self.interfaces.is_empty() { NetworkMode::Host } else { NetworkMode::Cni };
        self.mode.clone().unwrap_or(default)
    }

    /// Where plugins are looked for, with its default.
    pub fn plugin_folders(&self) -> Vec<PathBuf> {
        match self.plugin_folders.is_empty() {
            true => PLUGIN_FOLDERS.iter().map(PathBuf::from).collect(),
            false => self.plugin_folders.clone(),
        }
    }

    /// How long each plugin may take, with its default.
    pub fn plugin_timeout(&self) -> std::time::Duration {
        self.plugin_timeout.unwrap_or(Duration::from_secs(60)).as_std()
    }
}

impl NetworkMode {
    /// Whether plugins make its interfaces.
    pub fn has_plugins(&self) -> bool {
        matches!(self, NetworkMode::Bridge | NetworkMode::Cni)
    }
}

/// What kind of network a sandbox or a task has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkMode {
    /// The network of the host.
    Host,
    /// Its own, with loopback and nothing else.
    None,
    /// Its own, with an interface in the bridge that all networks of this mode share, and a way out by the host's
    /// address.
    Bridge,
    /// Its own, with interfaces that CNI plugins make.
    Cni,
    /// The namespace at this path.
    Path(PathBuf),
}

impl FromStr for NetworkMode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NetworkMode, Invalid> {
        match text {
            "host" => Ok(NetworkMode::Host),
            "none" => Ok(NetworkMode::None),
            "bridge" => Ok(NetworkMode::Bridge),
            "cni" => Ok(NetworkMode::Cni),
            path if path.starts_with('/') => Ok(NetworkMode::Path(path.into())),
            _ => Err(Invalid::value(format!(
                "{text:?} is neither \"host\", \"none\", \"bridge\", \"cni\" nor the absolute path of a namespace"
            ))),
        }
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkMode::Host => f.write_str("host"),
            NetworkMode::None => f.write_str("none"),
            NetworkMode::Bridge => f.write_str("bridge"),
            NetworkMode::Cni => f.write_str("cni"),
            NetworkMode::Path(path) => path.display().fmt(f),
        }
    }
}

text_value!(
    NetworkMode,
    "NetworkMode",
    string,
    "\"host\", \"none\", \"bridge\", \"cni\", or the absolute path of a namespace",
    "host",
    "none",
    "bridge",
    "cni",
    "/run/netns/blue"
);

/// Whose plugins make bridges and move interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Plugins {
    /// The plugins of the CNI project: bridge, firewall, host-device, host-local, static, portmap.
    #[default]
    Standard,
    /// The plugins of Amazon ECS: ecs-bridge, ecs-ipam, vpc-eni.
    Ecs,
}

/// How an interface of a sandbox is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Association {
    /// One end of a pair whose other end is in a bridge of the host.
    Bridge,
    /// A whole interface of the host, found by its MAC address, is moved in. ECS's word for it, "default", means the
    /// same.
    #[serde(alias = "default")]
    Interface,
    /// A VLAN on a trunk interface of the host, with a MAC address of its own.
    Vlan,
    /// Whatever a CNI configuration list makes.
    List,
}

/// An interface of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// How it is made; decides which other fields apply.
    pub association: Association,
    /// Its name inside; by default `eth0`, `eth1` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The bridge's name on the host, made if needed; `bowline0` by default, `ecs-bridge` with ECS's plugins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// The MAC address that identifies the interface, or that the VLAN branch gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// The MAC address that identifies a VLAN branch's trunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk_mac: Option<MacAddress>,
    /// The VLAN's number, 1 to 4094.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The absolute path of a CNI configuration list on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<PathBuf>,
    /// The largest packet of a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Networks from which the host gives each sandbox in a bridge an address. Without `subnets` and `addresses` it has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Cidr>,
    /// Its addresses, each with its network's prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Cidr>,
    /// Its gateways, IPv4 and IPv6; by default a subnet's first address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// What its gateways reach; by default everything for the first interface, nothing for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<Cidr>>,
    /// Whether traffic that leaves a bridge has the host's address; true by default if the bridge has subnets or
    /// addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
    /// Whether the cloud's service at 169.254.169.254 is out of reach; false by default. Only with ECS's plugins.
    #[serde(default, skip_serializing_if = "is_default")]
    pub block_metadata: bool,
}

impl fmt::Display for Association {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Association::Bridge => "bridge",
            Association::Interface => "interface",
            Association::Vlan => "vlan",
            Association::List => "list",
        })
    }
}

impl Interface {
    /// Its name inside, where it is the one with this number from 0.
    pub fn name(&self, index: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("eth{index}"))
    }

    /// Whether it is of this family at all.
    pub(crate) fn has(&self, ipv4: bool) -> bool {
        self.addresses.iter().chain(&self.subnets).any(|cidr| cidr.is_ipv4() == ipv4)
    }

    /// Whether ports of the host can lead to it, with the standard plugins: they need an address to lead to.
    pub(crate) fn takes_ports(&self) -> bool {
        self.association == Association::Bridge && (self.has(true) || self.has(false))
    }

    /// The gateway of a family, where one is given.
    pub(crate) fn gateway(&self, ipv4: bool) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ipv4)
    }
}

/// A host port that leads to one of a sandbox or task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// The port on the host.
    pub host: NonZeroU16,
    /// The port inside; the same by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<NonZeroU16>,
    /// "tcp" by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: Protocol,
    /// The host address where it is open, IPv4 in mode "bridge"; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// What speaks over a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The name that commands and descriptions use.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// A proxy for a sandbox's traffic, set up by ECS's plugin `ecs-serviceconnect`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Proxy {
    /// Whether the proxy gets IPv4; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<bool>,
    /// Whether the proxy gets IPv6; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<bool>,
    /// Where it listens for incoming traffic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Ingress>,
    /// Where it listens for outgoing traffic, and for which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

impl Proxy {
    /// Whether IPv4 is led through it, with its default.
    pub fn ipv4(&self) -> bool {
        self.ipv4.unwrap_or(true)
    }

    /// Whether IPv6 is, with its default.
    pub fn ipv6(&self) -> bool {
        self.ipv6.unwrap_or(false)
    }
}

/// Where a proxy listens for incoming traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ingress {
    /// The proxy's port.
    pub listener: NonZeroU16,
    /// The port whose traffic it gets; by default clients connect to the proxy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intercept: Option<NonZeroU16>,
}

/// Outgoing traffic through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// "nat" by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub redirect: Redirect,
    /// The proxy's port, if the proxy is in this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<NonZeroU16>,
    /// The IPv4 network whose traffic it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Cidr>,
    /// The IPv6 network whose traffic it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Cidr>,
    /// With "tproxy", the IPv4 address of another sandbox that has the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via_ipv4: Option<Ipv4Addr>,
    /// With "tproxy", the IPv6 address of another sandbox that has the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via_ipv6: Option<Ipv6Addr>,
}

/// How outgoing traffic reaches a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Redirect {
    /// By rewriting the destination address.
    #[default]
    Nat,
    /// With the addresses that it has, by the kernel's transparent proxying.
    Tproxy,
}
