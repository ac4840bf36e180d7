//! Lists for the plugins that the ECS agent runs: amazon-ecs-cni-plugins, whose
//! names begin with `ecs-`, and amazon-vpc-cni-plugins.

use std::num::NonZeroU16;

use serde_json::{Map, Value, json};

use crate::address::Cidr;
use crate::task::{AppMesh, Interface, Proxy, Redirect};

/// The versions of CNI that the agent runs either with.
const OF_ECS: &str = "0.3.0";
const OF_VPC: &str = "0.3.1";

const BRIDGE: &str = "ecs-bridge";

/// An interface in a bridge. `id` is what its addresses are kept by.
pub fn bridge(of: &Interface, routes: &[Cidr], id: &str) -> Value {
    let bridge = of.bridge.as_deref().unwrap_or(BRIDGE);
    let mut plugin = json!({"type": "ecs-bridge", "bridge": bridge});
    if let Some(mtu) = of.mtu {
        plugin["mtu"] = json!(mtu);
    }
    if of.has(true) || of.has(false) {
        plugin["ipam"] = ipam(of, routes, id);
    }
    list(OF_ECS, bridge, plugin)
}

fn ipam(of: &Interface, routes: &[Cidr], id: &str) -> Value {
    let mut all = Map::from_iter([
        ("type".to_owned(), json!("ecs-ipam")),
        ("cniVersion".to_owned(), json!(OF_ECS)),
        ("id".to_owned(), json!(id)),
    ]);
    for (family, ipv4) in [("ipv4", true), ("ipv6", false)] {
        let mut set = |name: &str, value: Option<Value>| {
            all.extend(value.map(|value| (format!("{family}-{name}"), value)));
        };
        let of_family = |cidr: &&Cidr| cidr.is_ipv4() == ipv4;
        let address = of.addresses.iter().find(of_family);
        let subnet = of.subnets.iter().find(of_family).copied();
        set("subnet", subnet.or(address.map(Cidr::network)).map(|subnet| json!(subnet)));
        set("address", address.map(|address| json!(address)));
        set("gateway", of.gateway(ipv4).map(|gateway| json!(gateway)));
        let routes: Vec<_> = routes.iter().filter(of_family).map(|route| json!({"dst": route})).collect();
        set("routes", (!routes.is_empty()).then_some(Value::Array(routes)));
    }
    Value::Object(all)
}

/// An interface of the host, moved in.
pub fn interface(of: &Interface) -> Value {
    let mac = of.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let name = format!("bowline-{}", mac.replace(':', "-"));
    let plugin = json!({
        "type": "vpc-eni",
        "eniMACAddress": mac,
        "eniIPAddresses": of.addresses,
        "gatewayIPAddresses": of.gateways,
        "useExistingNetwork": false,
        "blockInstanceMetadata": of.block_metadata,
    });
    list(OF_VPC, &name, plugin)
}

/// A branch of a trunk interface of the host. The plugin reads numbers as text.
pub fn vlan(of: &Interface) -> Value {
    let mac = of.mac.map(|mac| mac.to_string()).unwrap_or_default();
    let name = format!("bowline-{}", mac.replace(':', "-"));
    let plugin = json!({
        "type": "vpc-branch-eni",
        "trunkMACAddress": of.trunk_mac,
        "branchVlanID": of.vlan.unwrap_or_default().to_string(),
        "branchMACAddress": mac,
        "ipAddresses": of.addresses,
        "gatewayIPAddresses": of.gateways,
        "blockInstanceMetadata": of.block_metadata,
        "interfaceType": "vlan",
    });
    list(OF_VPC, &name, plugin)
}

/// What leads traffic through a proxy.
pub fn proxy(proxy: &Proxy) -> Value {
    let mut plugin = json!({
        "type": "ecs-serviceconnect",
        "enableIPv4": proxy.ipv4(),
        "enableIPv6": proxy.ipv6(),
    });
    if !proxy.ingress.is_empty() {
        let ingress = proxy.ingress.iter().map(|ingress| {
            some([
                ("listenerPort", Some(json!(ingress.listener))),
                ("interceptPort", ingress.intercept.map(|p| json!(p))),
            ])
        });
        plugin["ingressConfig"] = ingress.collect();
    }
    if let Some(egress) = &proxy.egress {
        let (ipv4, ipv6) = (egress.via_ipv4.map(|a| json!(a)), egress.via_ipv6.map(|a| json!(a)));
        let via = (ipv4.is_some() || ipv6.is_some()).then(|| some([("ipv4", ipv4), ("ipv6", ipv6)]));
        let networks = [("ipv4Cidr", egress.ipv4.map(|n| json!(n))), ("ipv6Cidr", egress.ipv6.map(|n| json!(n)))];
        plugin["egressConfig"] = some([
            ("listenerPort", egress.listener.map(|port| json!(port))),
            ("redirectIP", via),
            ("redirectMode", Some(json!(mode(egress.redirect)))),
            ("vip", Some(some(networks))),
        ]);
    }
    list(OF_ECS, "ecs-serviceconnect", plugin)
}

/// What leads traffic through App Mesh's proxy. The plugin reads numbers as text.
pub fn app_mesh(of: &AppMesh) -> Value {
    let text = |number: &dyn std::fmt::Display| json!(number.to_string());
    let ports = |ports: &[NonZeroU16]| {
        let ports: Vec<Value> = ports.iter().map(|port| text(port)).collect();
        (!ports.is_empty()).then_some(Value::Array(ports))
    };
    let plugin = some([
        ("type", Some(json!("aws-appmesh"))),
        ("ignoredUID", of.ignored_uid.map(|uid| text(&uid))),
        ("ignoredGID", of.ignored_gid.map(|gid| text(&gid))),
        ("proxyIngressPort", of.ingress.map(|port| text(&port))),
        ("proxyEgressPort", Some(text(&of.egress))),
        ("appPorts", ports(&of.app_ports)),
        ("egressIgnoredPorts", ports(&of.ignored_ports)),
        ("egressIgnoredIPs", (!of.ignored_ips.is_empty()).then(|| json!(of.ignored_ips))),
        ("enableIPv6", of.ipv6.then_some(json!(true))),
    ]);
    list(OF_ECS, "aws-appmesh", plugin)
}

fn mode(redirect: Redirect) -> &'static str {
    match redirect {
        Redirect::Nat => "nat",
        Redirect::Tproxy => "tproxy",
    }
}

fn list(version: &str, name: &str, plugin: Value) -> Value {
    json!({"cniVersion": version, "name": name, "plugins": [plugin]})
}

/// The fields that there are.
fn some<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(present.collect())
}
