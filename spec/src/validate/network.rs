//! The network of a sandbox or a task: which fields go together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::rules::{absolute, no_nul, require};
use crate::address::Cidr;
use crate::invalid::Invalid;
use crate::task::{AppMesh, Association, Egress, Interface, Network, NetworkMode, Plugins, Proxy, Redirect, Task};

/// The kernel's bounds of an Ethernet interface (linux/if_ether.h).
const MTU: std::ops::RangeInclusive<u16> = 68..=65535;
/// 0 means none and 4095 is reserved (IEEE 802.1Q).
const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;
/// IFNAMSIZ less its NUL (linux/if.h).
const LONGEST_NAME: usize = 15;

/// Checks the network of a task.
pub(super) fn check_task(task: &Task) -> Result<(), Invalid> {
    if task.network == Network::default() {
        return Ok(());
    }
    check(&task.network)?;
    require(task.namespaces.network.is_none(), "namespaces.network", || {
        "and network exclude each other; leave one of the two out".into()
    })
}

pub(super) fn check(network: &Network) -> Result<(), Invalid> {
    let mode = network.mode();
    if let NetworkMode::Path(path) = &mode {
        absolute("network.mode", path)?;
    }
    asked_of(network, &mode)?;
    for (index, folder) in network.plugin_folders.iter().enumerate() {
        let field = format!("network.plugin_folders[{index}]");
        absolute(&field, folder)?;
        // They become one variable, which colons part.
        require(!folder.to_string_lossy().contains(':'), &field, || format!("{folder:?} contains a colon"))?;
    }
    require(!network.plugin_timeout().is_zero(), "network.plugin_timeout", || {
        "is 0; write how long, such as 10s".into()
    })?;
    let mut names = BTreeSet::new();
    for (index, interface) in network.interfaces.iter().enumerate() {
        let field = format!("network.interfaces[{index}]");
        check_interface(&field, interface, network.plugins)?;
        let name = interface.name(index);
        require(names.insert(name.clone()), &format!("{field}.name"), || format!("{name} is an earlier one's too"))?;
    }
    ports(network)?;
    if let Some(proxy) = &network.proxy {
        check_proxy(proxy)?;
    }
    if let Some(mesh) = &network.app_mesh {
        check_app_mesh(mesh)?;
    }
    for (name, value) in &network.args {
        let field = format!("network.args.{name}");
        let sound = |text: &str| !text.contains([';', '=', '\0']);
        require(!name.is_empty() && sound(name) && sound(value), &field, || {
            "an argument of plugins contains no \";\", \"=\" or NUL".into()
        })?;
    }
    for (name, value) in &network.sysctls {
        let field = format!("network.sysctls.{name}");
        super::isolation::sysctl_name(&field, name)?;
        require(name.starts_with("net.") || name.starts_with("net/"), &field, || {
            "is not a setting of a network, which begin with net.".into()
        })?;
        no_nul(&field, value)?;
    }
    Ok(())
}

/// What only some kinds of network have.
fn asked_of(network: &Network, mode: &NetworkMode) -> Result<(), Invalid> {
    let made = [
        ("network.interfaces", !network.interfaces.is_empty()),
        ("network.plugins", network.plugins != Plugins::Standard && *mode == NetworkMode::Bridge),
    ];
    for (field, asked) in made {
        require(!asked || *mode == NetworkMode::Cni, field, || {
            format!("needs network.mode = \"cni\", which is \"{mode}\"")
        })?;
    }
    for (field, asked) in [("network.proxy", network.proxy.is_some()), ("network.app_mesh", network.app_mesh.is_some())]
    {
        require(!asked || matches!(mode, NetworkMode::Cni | NetworkMode::Path(_)), field, || {
            format!("needs network.mode = \"cni\" or the path of a network namespace; it is \"{mode}\"")
        })?;
    }
    for (field, asked, has) in [
        ("network.ports", !network.ports.is_empty(), mode.has_plugins()),
        ("network.args", !network.args.is_empty(), network.has_plugins()),
    ] {
        require(!asked || has, field, || {
            "needs network.mode = \"bridge\" or \"cni\"; on the command line --network bridge".into()
        })?;
    }
    require(*mode != NetworkMode::Cni || !network.interfaces.is_empty(), "network.interfaces", || {
        "is empty, and network.mode \"cni\"; name an interface, or write \"none\"".into()
    })?;
    require(*mode != NetworkMode::Host || network.sysctls.is_empty(), "network.sysctls", || {
        "would change the host; it needs network.mode other than \"host\"".into()
    })
}

fn check_interface(field: &str, of: &Interface, plugins: Plugins) -> Result<(), Invalid> {
    use Association::{Bridge, Interface as Whole, List, Vlan};
    let standard = plugins == Plugins::Standard;
    let at = |name: &str| format!("{field}.{name}");
    // Each with whether it is there, and whose it is.
    let fields: [(&str, bool, &[Association]); 12] = [
        ("bridge", of.bridge.is_some(), &[Bridge]),
        ("mac", of.mac.is_some(), &[Whole, Vlan]),
        ("trunk_mac", of.trunk_mac.is_some(), &[Vlan]),
        ("vlan", of.vlan.is_some(), &[Vlan]),
        ("list", of.list.is_some(), &[List]),
        ("mtu", of.mtu.is_some(), &[Bridge]),
        ("subnets", !of.subnets.is_empty(), &[Bridge]),
        ("addresses", !of.addresses.is_empty(), &[Bridge, Whole, Vlan]),
        ("gateways", !of.gateways.is_empty(), &[Bridge, Whole, Vlan]),
        ("routes", of.routes.is_some(), if standard { &[Bridge, Whole] } else { &[Bridge] }),
        ("masquerade", of.masquerade.is_some(), if standard { &[Bridge] } else { &[] }),
        ("block_metadata", of.block_metadata, if standard { &[Vlan] } else { &[Whole, Vlan] }),
    ];
    for (name, there, whose) in fields {
        require(!there || whose.contains(&of.association), &at(name), || {
            let plugins = if standard { "the standard plugins" } else { "ECS's plugins" };
            format!("is not a field of the association \"{}\" with {plugins}", of.association)
        })?;
    }
    let needed: &[(&str, bool)] = match of.association {
        Bridge => &[],
        Whole => &[("mac", of.mac.is_some()), ("addresses", standard || !of.addresses.is_empty())],
        Vlan => &[("vlan", of.vlan.is_some()), ("trunk_mac", of.trunk_mac.is_some()), ("mac", of.mac.is_some())],
        List => &[("list", of.list.is_some())],
    };
    for (name, there) in needed {
        require(*there, &at(name), || format!("is missing; the association \"{}\" needs it", of.association))?;
    }
    if let Some(name) = &of.name {
        interface_name(&at("name"), name)?;
    }
    if let Some(bridge) = &of.bridge {
        interface_name(&at("bridge"), bridge)?;
    }
    if let Some(list) = &of.list {
        absolute(&at("list"), list)?;
    }
    for (name, value, bounds) in [("vlan", of.vlan, VLANS), ("mtu", of.mtu, MTU)] {
        let fine = value.is_none_or(|value| bounds.contains(&value));
        require(fine, &at(name), || format!("is not between {} and {}", bounds.start(), bounds.end()))?;
    }
    check_addresses(field, of, plugins)
}

fn check_addresses(field: &str, of: &Interface, plugins: Plugins) -> Result<(), Invalid> {
    let at = |name: &str| format!("{field}.{name}");
    require(of.subnets.is_empty() || of.addresses.is_empty(), &at("subnets"), || {
        "and addresses exclude each other: an address is given by the host, or here".into()
    })?;
    let from = if of.subnets.is_empty() { &of.addresses } else { &of.subnets };
    let of_family = |ipv4| from.iter().filter(move |cidr| cidr.is_ipv4() == ipv4).count();
    if of.association == Association::Bridge && plugins == Plugins::Ecs {
        let name = if of.subnets.is_empty() { "addresses" } else { "subnets" };
        require([true, false].into_iter().all(|ipv4| of_family(ipv4) <= 1), &at(name), || {
            "has more than one of IPv4 or of IPv6, which ECS's plugins do not take".into()
        })?;
    }
    for (index, subnet) in of.subnets.iter().enumerate() {
        require(subnet.network() == *subnet, &at(&format!("subnets[{index}]")), || {
            format!("{subnet} is an address; the network is {}", subnet.network())
        })?;
    }
    let mut families = BTreeSet::new();
    for (index, gateway) in of.gateways.iter().enumerate() {
        let field = at(&format!("gateways[{index}]"));
        require(of_family(gateway.is_ipv4()) > 0, &field, || format!("{gateway} is of no address or subnet here"))?;
        require(families.insert(gateway.is_ipv4()), &field, || format!("{gateway} is the second of its kind"))?;
    }
    for (index, route) in of.routes.iter().flatten().enumerate() {
        let field = at(&format!("routes[{index}]"));
        require(of_family(route.is_ipv4()) > 0, &field, || format!("{route} is not reached by any address here"))?;
    }
    Ok(())
}

/// What the kernel and CNI take for an interface's name; `lo` is there already.
fn interface_name(field: &str, name: &str) -> Result<(), Invalid> {
    let length = 1..=LONGEST_NAME;
    let fine =
        length.contains(&name.len()) && !name.contains(['/', ':', '%', '\0']) && !name.contains(char::is_whitespace);
    require(fine && !["lo", ".", ".."].contains(&name), field, || {
        format!(
            "{name:?} is not a name for an interface: 1 to {LONGEST_NAME} bytes without \"/\", \":\", \"%\" or blanks"
        )
    })
}

fn ports(network: &Network) -> Result<(), Invalid> {
    // Who has one made here finds it mapped; what a list does is the list's to say.
    let takes = |of: &Interface| match of.association {
        Association::List => true,
        _ => network.plugins == Plugins::Standard && of.takes_ports(),
    };
    let is_bridge = network.mode() == NetworkMode::Bridge;
    let taken = is_bridge || network.interfaces.iter().any(takes);
    require(network.ports.is_empty() || taken, "network.ports", || {
        "needs an interface with an address in a bridge of the standard plugins, or a list that maps ports".into()
    })?;
    let mut open = BTreeSet::new();
    for (index, port) in network.ports.iter().enumerate() {
        let reached = !(is_bridge && port.address.is_some_and(|address| address.is_ipv6()));
        require(reached, &format!("network.ports[{index}].address"), || {
            "the bridge has no IPv6: publish on an IPv4 address".into()
        })?;
        let fresh = open.insert((port.host, port.protocol.as_str(), port.address));
        require(fresh, &format!("network.ports[{index}].host"), || {
            format!("{} is taken by an earlier one", port.host)
        })?;
    }
    Ok(())
}

fn check_proxy(proxy: &Proxy) -> Result<(), Invalid> {
    let field = "network.proxy";
    require(!proxy.ingress.is_empty() || proxy.egress.is_some(), field, || "needs ingress or egress".into())?;
    require(proxy.ipv4() || proxy.ipv6(), field, || "is of neither IPv4 nor IPv6".into())?;
    let (mut listeners, mut intercepted) = (BTreeSet::new(), BTreeSet::new());
    for (index, ingress) in proxy.ingress.iter().enumerate() {
        let at = |name: &str| format!("{field}.ingress[{index}].{name}");
        require(listeners.insert(ingress.listener), &at("listener"), || "is an earlier one's too".into())?;
        let fresh = ingress.intercept.is_none_or(|port| intercepted.insert(port));
        require(fresh, &at("intercept"), || "is an earlier one's too".into())?;
    }
    proxy.egress.as_ref().map_or(Ok(()), |egress| check_egress(proxy, egress))
}

/// Checks what the plugin `aws-appmesh` demands of its configuration.
fn check_app_mesh(mesh: &AppMesh) -> Result<(), Invalid> {
    let at = |name: &str| format!("network.app_mesh.{name}");
    require(mesh.ignored_uid.is_some() || mesh.ignored_gid.is_some(), &at("ignored_uid"), || {
        "is missing, and so is ignored_gid: what the proxy itself sends would come back to it".into()
    })?;
    require(mesh.ingress.is_some() || mesh.app_ports.is_empty(), &at("ingress"), || {
        "is missing: the proxy's port for what comes in to app_ports".into()
    })?;
    require(mesh.ingress.is_none() || !mesh.app_ports.is_empty(), &at("app_ports"), || {
        "is missing: the ports whose traffic goes to the port of ingress".into()
    })?;
    for (index, ip) in mesh.ignored_ips.iter().enumerate() {
        let fine = ip.parse::<IpAddr>().is_ok() || ip.parse::<Cidr>().is_ok();
        require(fine, &at(&format!("ignored_ips[{index}]")), || format!("{ip:?} is neither an address nor a network"))?;
    }
    Ok(())
}

fn check_egress(proxy: &Proxy, egress: &Egress) -> Result<(), Invalid> {
    let at = |name: &str| format!("network.proxy.egress.{name}");
    let networks = [("ipv4", proxy.ipv4(), egress.ipv4), ("ipv6", proxy.ipv6(), egress.ipv6)];
    for (name, wanted, network) in networks {
        let ipv4 = name == "ipv4";
        require(network.is_none_or(|cidr: Cidr| cidr.is_ipv4() == ipv4), &at(name), || format!("is not of {name}"))?;
        require(!wanted || network.is_some(), &at(name), || "is missing: the network whose traffic it gets".into())?;
    }
    let via =
        [("via_ipv4", proxy.ipv4(), egress.via_ipv4.is_some()), ("via_ipv6", proxy.ipv6(), egress.via_ipv6.is_some())];
    let elsewhere = via.iter().any(|(_, _, given)| *given);
    for (name, wanted, given) in via {
        require(!given || egress.redirect == Redirect::Tproxy, &at(name), || "needs redirect = \"tproxy\"".into())?;
        require(!elsewhere || given == wanted, &at(name), || "does not fit what is led through the proxy".into())?;
    }
    require(elsewhere != egress.listener.is_some(), &at("listener"), || {
        "the proxy is either here, and has a listener, or elsewhere, by via_ipv4 and via_ipv6".into()
    })
}

#[cfg(test)]
mod tests;
