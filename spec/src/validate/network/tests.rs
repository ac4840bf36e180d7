//! Descriptions that are refused, by field and reason.

use crate::parse::{Format, parse_sandbox};

#[track_caller]
fn accepted(toml: &str) {
    if let Err(error) = parse_sandbox(toml, Format::Toml) {
        panic!("{toml}: {error}");
    }
}

#[track_caller]
fn refused(toml: &str, field: &str, reason: &str) {
    let error = parse_sandbox(toml, Format::Toml).expect_err(toml);
    assert_eq!(error.field, format!("network{field}"), "{toml}: {error}");
    assert!(error.reason.contains(reason), "{toml}: {error}");
    assert!(error.line.is_some(), "{toml}: {error}");
}

/// An interface, and what is wrong with it.
#[track_caller]
fn interface(toml: &str, field: &str, reason: &str) {
    refused(&format!("[[network.interfaces]]\n{toml}"), &format!(".interfaces[0]{field}"), reason);
}

/// An interface, and the field that it lacks.
#[track_caller]
fn missing(toml: &str, field: &str) {
    let error = parse_sandbox(&format!("[[network.interfaces]]\n{toml}"), Format::Toml).expect_err(toml);
    assert_eq!(error.field, format!("network.interfaces[0].{field}"), "{toml}: {error}");
    assert!(error.reason.contains("is missing"), "{toml}: {error}");
}

#[track_caller]
fn of_ecs(toml: &str, field: &str, reason: &str) {
    let toml = format!("network.plugins = 'ecs'\n[[network.interfaces]]\n{toml}");
    refused(&toml, &format!(".interfaces[0]{field}"), reason);
}

#[test]
fn a_kind_of_network_has_what_is_its_own() {
    accepted("network.mode = 'host'");
    accepted("network.mode = 'none'\nnetwork.sysctls = {'net.ipv6.conf.all.disable_ipv6' = '1'}");
    accepted("network.mode = '/run/netns/blue'");
    accepted("[[network.interfaces]]\nassociation = 'bridge'");
    refused("network.mode = 'mesh'", ".mode", "neither");
    refused("network.mode = 'cni'", ".interfaces", "is empty");
    refused("network = {mode = 'none', interfaces = [{association = 'bridge'}]}", ".interfaces", "which is \"none\"");
    refused("network.ports = [{host = 80}]", ".ports", "needs network.mode = \"bridge\"");
    refused("network.proxy = {ingress = [{listener = 1}]}", ".proxy", "it is \"host\"");
    refused("network.args = {A = 'b'}", ".args", "needs network.mode = \"bridge\"");
    refused("network.sysctls = {'net.ipv4.ip_forward' = '1'}", ".sysctls", "would change the host");
    refused("network = {mode = 'none', sysctls = {'kernel.sem' = '1'}}", ".sysctls.kernel.sem", "not a setting");
    refused("network = {mode = 'none', sysctls = {'net. ' = '1'}}", ".sysctls.net. ", "not the name");
    refused("network.plugin_folders = ['bin']", ".plugin_folders[0]", "absolute");
    refused("network.plugin_folders = ['/a:b']", ".plugin_folders[0]", "colon");
    refused("network.plugin_timeout = '0s'", ".plugin_timeout", "is 0");
}

#[test]
fn an_unknown_association_is_named() {
    interface("association = 'veth'", ".association", "unknown variant `veth`, expected one of `bridge`");
    refused("network.interfaces = [{name = 'eth0'}]", ".interfaces[0]", "missing field `association`");
    accepted("[[network.interfaces]]\nassociation = 'default'\nmac = '0a:1b:2c:3d:4e:5f'");
}

#[test]
fn an_association_has_its_own_fields() {
    let whole = "association = 'interface'\nmac = '0a:1b:2c:3d:4e:5f'\n";
    let vlan = "association = 'vlan'\nmac = '0a:1b:2c:3d:4e:5f'\ntrunk_mac = '0a:1b:2c:3d:4e:60'\n";
    accepted(&format!("[[network.interfaces]]\n{vlan}vlan = 7\nblock_metadata = true"));
    missing("association = 'interface'", "mac");
    missing(vlan, "vlan");
    missing("association = 'vlan'\nvlan = 7", "trunk_mac");
    missing("association = 'list'", "list");
    interface(&format!("{vlan}vlan = 0"), ".vlan", "between 1 and 4094");
    interface(&format!("{vlan}vlan = 4095"), ".vlan", "between 1 and 4094");
    interface("association = 'vlan'\nmac = '01:1b:2c:3d:4e:5f'", ".mac", "of an interface");
    interface("association = 'bridge'\nmac = '0a:1b:2c:3d:4e:5f'", ".mac", "of the association \"bridge\"");
    interface("association = 'bridge'\nlist = '/a'", ".list", "not a field");
    interface("association = 'bridge'\nmtu = 60", ".mtu", "between 68");
    interface("association = 'list'\nlist = 'a.conflist'", ".list", "absolute");
    interface(&format!("{whole}bridge = 'a'"), ".bridge", "not a field");
    interface(&format!("{whole}block_metadata = true"), ".block_metadata", "with the standard plugins");
    missing(&format!("{whole}[network]\nplugins = 'ecs'"), "addresses");
    of_ecs("association = 'bridge'\nmasquerade = false", ".masquerade", "with ECS's plugins");
    of_ecs(&format!("{whole}routes = []"), ".routes", "with ECS's plugins");
}

#[test]
fn interfaces_have_names_of_their_own() {
    for name in ["", "lo", "..", "a b", "a/b", "a:b", "eth0123456789012"] {
        interface(&format!("association = 'bridge'\nname = '{name}'"), ".name", "not a name");
    }
    interface("association = 'bridge'\nbridge = 'a b'", ".bridge", "not a name");
    let two = "network.interfaces = [{association = 'bridge', name = 'eth1'}, {association = 'bridge'}]";
    refused(two, ".interfaces[1].name", "eth1 is an earlier one's too");
}

#[test]
fn addresses_fit_their_gateways_and_routes() {
    let bridge = |rest: &str| format!("association = 'bridge'\n{rest}");
    interface(&bridge("subnets = ['10.0.0.1/24']"), ".subnets[0]", "the network is 10.0.0.0/24");
    interface(&bridge("subnets = ['10.0.0.0/33']"), ".subnets[0]", "not an address");
    interface(&bridge("subnets = ['10.0.0.0/8']\naddresses = ['10.0.0.2/8']"), ".subnets", "exclude");
    interface(&bridge("gateways = ['10.0.0.1']"), ".gateways[0]", "no address or subnet");
    interface(&bridge("subnets = ['10.0.0.0/8']\ngateways = ['fd00::1']"), ".gateways[0]", "no address or subnet");
    interface(&bridge("subnets = ['10.0.0.0/8']\ngateways = ['10.0.0.1', '10.0.0.2']"), ".gateways[1]", "second");
    interface(&bridge("subnets = ['10.0.0.0/8']\nroutes = ['::/0']"), ".routes[0]", "not reached");
    of_ecs(&bridge("subnets = ['10.0.0.0/8', '11.0.0.0/8']"), ".subnets", "more than one");
}

#[test]
fn ports_are_open_once_and_lead_somewhere() {
    let bridge = "interfaces = [{association = 'bridge', subnets = ['10.0.0.0/8']}]";
    let ports = |ports: &str| format!("[network]\n{bridge}\nports = [{ports}]");
    accepted(&ports("{host = 80, sandbox = 8080}, {host = 80, protocol = 'udp'}, {host = 80, address = '::1'}"));
    refused(&ports("{host = 80}, {host = 80, sandbox = 81}"), ".ports[1].host", "80 is taken");
    refused(&ports("{host = 0}"), ".ports[0].host", "nonzero");
    refused(&ports("{host = 80, protocol = 'icmp'}"), ".ports[0].protocol", "unknown variant `icmp`");
    refused("[network]\ninterfaces = [{association = 'bridge'}]\nports = [{host = 80}]", ".ports", "with an address");
    let at = |address| format!("network = {{mode = 'bridge', ports = [{{host = 80, address = '{address}'}}]}}");
    for address in ["0.0.0.0", "127.0.0.1"] {
        accepted(&at(address));
    }
    for address in ["::1", "::", "fe80::1"] {
        refused(&at(address), ".ports[0].address", "the bridge has no IPv6: publish on an IPv4 address");
    }
    let whole = "{association = 'interface', mac = '0a:1b:2c:3d:4e:5f'}";
    refused(&format!("[network]\ninterfaces = [{whole}]\nports = [{{host = 80}}]"), ".ports", "needs an interface");
    refused(&format!("[network]\nplugins = 'ecs'\n{bridge}\nports = [{{host = 80}}]"), ".ports", "needs an interface");
    refused(&format!("[network]\n{bridge}\nargs = {{A = 'b;C=d'}}"), ".args.A", "no \";\"");
}

#[test]
fn a_proxy_listens_and_knows_for_what() {
    let of = |proxy: &str| format!("[network]\ninterfaces = [{{association = 'bridge'}}]\n[network.proxy]\n{proxy}");
    accepted(&of("ingress = [{listener = 15000, intercept = 80}, {listener = 15001}]"));
    accepted(&of("egress = {listener = 15002, ipv4 = '127.255.0.0/16'}"));
    accepted(&of(
        "ipv4 = false\nipv6 = true\negress = {redirect = 'tproxy', via_ipv6 = 'fd00::2', ipv6 = 'fd01::/64'}",
    ));
    for (proxy, field, reason) in [
        ("", "", "needs ingress or egress"),
        ("ipv4 = false\ningress = [{listener = 1}]", "", "neither IPv4 nor IPv6"),
        ("ingress = [{listener = 1}, {listener = 1}]", ".ingress[1].listener", "earlier"),
        (
            "ingress = [{listener = 1, intercept = 3}, {listener = 2, intercept = 3}]",
            ".ingress[1].intercept",
            "earlier",
        ),
        ("ingress = [{listener = 0}]", ".ingress[0].listener", "nonzero"),
        (
            "egress = {ipv4 = '127.255.0.0/16', listener = 1, redirect = 'dns'}",
            ".egress.redirect",
            "unknown variant `dns`",
        ),
        ("egress = {ipv4 = 'fd00::/8', listener = 1}", ".egress.ipv4", "not of ipv4"),
        ("egress = {ipv4 = '127.255.0.0/16', listener = 1, via_ipv4 = '10.0.0.2'}", ".egress.via_ipv4", "tproxy"),
    ] {
        refused(&of(proxy), &format!(".proxy{field}"), reason);
    }
    // What is missing has no place but that of what is around it.
    for (proxy, field, reason) in [
        ("egress = {listener = 1}", "ipv4", "is missing"),
        ("ipv6 = true\negress = {listener = 1, ipv4 = '127.255.0.0/16'}", "ipv6", "is missing"),
        ("egress = {ipv4 = '127.255.0.0/16'}", "listener", "either here"),
        (
            "ipv6 = true\negress = {redirect = 'tproxy', via_ipv4 = '10.0.0.2', ipv4 = '127.0.0.0/8', ipv6 = '::/8'}",
            "via_ipv6",
            "does not fit",
        ),
    ] {
        let error = parse_sandbox(&of(proxy), Format::Toml).expect_err(proxy);
        assert_eq!(error.field, format!("network.proxy.egress.{field}"), "{proxy}: {error}");
        assert!(error.reason.contains(reason), "{proxy}: {error}");
    }
}

#[test]
fn app_mesh_has_what_its_plugin_demands() {
    let mesh =
        |fields: &str| format!("network = {{interfaces = [{{association = 'bridge'}}], app_mesh = {{{fields}}}}}");
    accepted(&mesh("egress = 15001, ignored_uid = 1337"));
    accepted(&mesh(
        "egress = 15001, ignored_gid = 0, ingress = 15000, app_ports = [80], ignored_ips = ['::1', '10.0.0.0/8']",
    ));
    for (fields, field, reason) in [
        ("egress = 15001", "ignored_uid", "come back to it"),
        ("egress = 1, ignored_uid = 1, app_ports = [80]", "ingress", "is missing"),
        ("egress = 1, ignored_uid = 1, ingress = 2", "app_ports", "is missing"),
        ("egress = 1, ignored_uid = 1, ignored_ips = ['web']", "ignored_ips[0]", "neither an address nor a network"),
    ] {
        refused(&mesh(fields), &format!(".app_mesh.{field}"), reason);
    }
    refused("network.app_mesh = {egress = 1, ignored_uid = 1}", ".app_mesh", "needs network.mode = \"cni\"");
    refused("network.app_mesh = {ignored_uid = 1}", ".app_mesh", "missing field `egress`");
    let both = "proxy = {ingress = [{listener = 1}]}, app_mesh = {egress = 1, ignored_uid = 1}";
    accepted(&format!("network = {{interfaces = [{{association = 'bridge'}}], {both}}}"));
    accepted(&format!("network = {{mode = '/run/netns/web', {both}}}"));
    refused(&format!("network = {{mode = 'none', {both}}}"), ".proxy", "the path of a network namespace");
}
