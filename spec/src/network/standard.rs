//! Lists for the plugins of the CNI project (containernetworking/plugins).

use serde_json::{Map, Value, json};

use crate::address::Cidr;
use crate::task::Interface;

/// The version of CNI that plugins from 1.0 on have.
const VERSION: &str = "1.0.0";

const BRIDGE: &str = "bowline0";

/// An interface in a bridge, with ports of the host that lead to it.
pub fn bridge(of: &Interface, routes: &[Cidr], ports: bool) -> Value {
    let bridge = of.bridge.as_deref().unwrap_or(BRIDGE);
    let mut plugin = json!({"type": "bridge", "bridge": bridge});
    if let Some(mtu) = of.mtu {
        plugin["mtu"] = json!(mtu);
    }
    let ipam = ipam(of, routes);
    // Where the host forwards nothing by itself, as with Docker, a bridge would lead nowhere.
    let firewall = ipam.is_some().then(|| json!({"type": "firewall"}));
    if let Some(ipam) = ipam {
        plugin["isGateway"] = json!(true);
        plugin["ipMasq"] = json!(of.masquerade.unwrap_or(true));
        // So that a sandbox reaches itself by a port of the host.
        plugin["hairpinMode"] = json!(ports);
        plugin["ipam"] = ipam;
    }
    let map = ports.then(portmap);
    // By the network's name host-local knows which addresses are taken: that of the bridge.
    list(&format!("bowline-{bridge}"), [Some(plugin), map, firewall].into_iter().flatten())
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})
}

/// The bridge of all networks of the mode "bridge".
pub const SHARED: &str = "bowline-bridge";

/// Where host-local keeps which addresses of that bridge are taken: not with those of other networks, which outlive a
/// boot.
pub const ADDRESSES: &str = "/run/bowline-networks";

/// An interface in the bridge that all networks of the mode "bridge" share. Its list names no subnet: whoever makes
/// the bridge chooses one that is free.
pub fn shared_bridge(ports: bool) -> Value {
    let ipam = json!({"type": "host-local", "dataDir": ADDRESSES, "routes": [{"dst": "0.0.0.0/0"}]});
    let plugin = json!({
        "type": "bridge", "bridge": SHARED, "isGateway": true, "ipMasq": true, "hairpinMode": ports, "ipam": ipam,
    });
    let plugins = [Some(plugin), ports.then(portmap), Some(json!({"type": "firewall"}))];
    list(SHARED, plugins.into_iter().flatten())
}

/// An interface of the host, moved in.
pub fn interface(of: &Interface, routes: &[Cidr]) -> Value {
    let mac = of.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let mut plugin = json!({"type": "host-device", "hwaddr": mac});
    if let Some(ipam) = ipam(of, routes) {
        plugin["ipam"] = ipam;
    }
    list(&format!("bowline-{}", mac.replace(':', "-")), [plugin])
}

fn list(name: &str, plugins: impl IntoIterator<Item = Value>) -> Value {
    let plugins: Vec<Value> = plugins.into_iter().collect();
    json!({"cniVersion": VERSION, "name": name, "plugins": plugins})
}

/// Who gives it addresses; nobody, if it has none.
fn ipam(of: &Interface, routes: &[Cidr]) -> Option<Value> {
    let gateway = |of_what: &Cidr| of.gateway(of_what.is_ipv4()).map(|gateway| ("gateway".to_owned(), json!(gateway)));
    let with_gateway = |name: &str, cidr: &Cidr| {
        let mut all = Map::from_iter([(name.to_owned(), json!(cidr))]);
        all.extend(gateway(cidr));
        Value::Object(all)
    };
    let mut ipam = if !of.subnets.is_empty() {
        // One address out of each set: one of IPv4, one of IPv6.
        let set = |ipv4| of.subnets.iter().filter(move |subnet| subnet.is_ipv4() == ipv4);
        let ranges = |ipv4| set(ipv4).map(|subnet| with_gateway("subnet", subnet)).collect::<Vec<_>>();
        let sets: Vec<_> = [true, false].into_iter().map(ranges).filter(|set| !set.is_empty()).collect();
        json!({"type": "host-local", "ranges": sets})
    } else if !of.addresses.is_empty() {
        let addresses: Vec<_> = of.addresses.iter().map(|address| with_gateway("address", address)).collect();
        json!({"type": "static", "addresses": addresses})
    } else {
        return None;
    };
    if !routes.is_empty() {
        let route = |route: &Cidr| {
            let mut all = Map::from_iter([("dst".to_owned(), json!(route))]);
            all.extend(gateway(route).map(|(_, gateway)| ("gw".to_owned(), gateway)));
            Value::Object(all)
        };
        ipam["routes"] = routes.iter().map(route).collect();
    }
    Some(ipam)
}
