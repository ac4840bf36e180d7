//! The CNI configuration lists that a network's description stands for: one for
//! each interface, in order, and last that of the proxy.
//!
//! ```text
//!   association   standard plugins                       those of ECS
//!   bridge        bridge with host-local or static,      ecs-bridge, ecs-ipam
//!                 portmap, firewall
//!   mode bridge   the same, its subnet chosen later      –
//!   interface     host-device, static                    vpc-eni
//!   vlan          vpc-branch-eni                         vpc-branch-eni
//!   list          the list itself                        the list itself
//!   proxy         ecs-serviceconnect                     ecs-serviceconnect
//!   app_mesh      aws-appmesh                            aws-appmesh
//! ```
//!
//! `executor::network` runs them. Must not: know whether a plugin is there.

mod ecs;
mod standard;
pub mod subnet;

pub use standard::{ADDRESSES, SHARED as SHARED_BRIDGE};

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::address::Cidr;
use crate::task::{Association, Interface, Network, NetworkMode, Plugins, Port};

/// The name of an interface that has none, and the name that the plugin of a proxy gets where nobody has made one.
const FIRST: &str = "eth0";

/// One list to run, and the interface that it makes.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkAttachment {
    /// The interface's name inside, `CNI_IFNAME`. A proxy's list makes none, and has the first interface's.
    pub interface: String,
    /// The plugins to run, as a configuration list.
    pub list: List,
}

/// Where a CNI configuration list comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum List {
    /// The list is in this file on the host.
    File(PathBuf),
    /// Bowline made this list from the description, as JSON.
    Made(Value),
}

impl Network {
    /// The lists to run for the sandbox or task `id`, in order; none but with the modes "bridge" and "cni".
    ///
    /// The description is a valid one.
    pub fn attachments(&self, id: &str) -> Vec<NetworkAttachment> {
        match self.mode() {
            NetworkMode::Bridge => {
                let list = List::Made(standard::shared_bridge(!self.ports.is_empty()));
                return vec![NetworkAttachment { interface: FIRST.to_owned(), list }];
            }
            // One that somebody else has made has its interfaces.
            NetworkMode::Cni | NetworkMode::Path(_) => {}
            NetworkMode::Host | NetworkMode::None => return Vec::new(),
        }
        let made = |(index, of): (usize, &Interface)| {
            let list = match (of.association, &of.list) {
                (Association::List, Some(path)) => List::File(path.clone()),
                _ => List::Made(self.list(of, index, id)),
            };
            NetworkAttachment { interface: of.name(index), list }
        };
        let mut all: Vec<NetworkAttachment> = self.interfaces.iter().enumerate().map(made).collect();
        let interface = all.first().map_or_else(|| FIRST.to_owned(), |first| first.interface.clone());
        // In the order of the ECS agent: see BuildCNIConfigAwsvpc.
        let proxies = self.app_mesh.iter().map(ecs::app_mesh).chain(self.proxy.iter().map(ecs::proxy));
        all.extend(proxies.map(|list| NetworkAttachment { interface: interface.clone(), list: List::Made(list) }));
        all
    }

    /// Whether plugins make its interfaces or lead its traffic through a proxy.
    pub fn has_plugins(&self) -> bool {
        let has_proxy = self.proxy.is_some() || self.app_mesh.is_some();
        self.mode().has_plugins() || matches!(self.mode(), NetworkMode::Path(_)) && has_proxy
    }

    /// What plugins get that ask for it: the values of capabilities, by name.
    pub fn capabilities(&self) -> BTreeMap<String, Value> {
        let mapping = |port: &Port| {
            let mut mapping = json!({
                "hostPort": port.host,
                "containerPort": port.sandbox.unwrap_or(port.host),
                "protocol": port.protocol.as_str(),
            });
            if let Some(address) = port.address {
                mapping["hostIP"] = json!(address);
            }
            mapping
        };
        let mappings: Vec<Value> = self.ports.iter().map(mapping).collect();
        let some = (!mappings.is_empty()).then(|| ("portMappings".to_owned(), Value::Array(mappings)));
        some.into_iter().collect()
    }

    fn list(&self, of: &Interface, index: usize, id: &str) -> Value {
        let routes = routes(of, index == 0);
        match (of.association, self.plugins) {
            (Association::Vlan, _) => ecs::vlan(of),
            (Association::Interface, Plugins::Ecs) => ecs::interface(of),
            (Association::Interface, Plugins::Standard) => standard::interface(of, &routes),
            (Association::Bridge, Plugins::Ecs) => ecs::bridge(of, &routes, id),
            // One bridge has the ports: to map them twice is an error.
            (Association::Bridge | Association::List, _) => {
                let first = self.interfaces.iter().position(Interface::takes_ports) == Some(index);
                standard::bridge(of, &routes, first && !self.ports.is_empty())
            }
        }
    }
}

/// What is reached through an interface, with its default.
fn routes(of: &Interface, first: bool) -> Vec<Cidr> {
    let everything = ["0.0.0.0/0", "::/0"].into_iter().filter_map(|text| text.parse().ok());
    match &of.routes {
        Some(routes) => routes.clone(),
        // Without a gateway a route would lead nowhere; of a subnet there is always one.
        None if first => everything
            .filter(|all: &Cidr| of.has(all.is_ipv4()))
            .filter(|all| !of.subnets.is_empty() || of.gateway(all.is_ipv4()).is_some())
            .collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
