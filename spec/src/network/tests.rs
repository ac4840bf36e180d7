//! Tables: a description's interface, and the list that it stands for.

use serde_json::{Value, json};

use super::{List, NetworkAttachment};
use crate::parse::{Format, parse_sandbox};
use crate::task::{Network, NetworkMode};

fn network(toml: &str) -> Network {
    parse_sandbox(toml, Format::Toml).map(|sandbox| sandbox.network).unwrap_or_else(|error| panic!("{toml}: {error}"))
}

/// The one list that these lines of an interface stand for.
fn list(plugins: &str, interface: &str) -> Value {
    let toml = format!("network.plugins = '{plugins}'\n[[network.interfaces]]\n{interface}");
    match network(&toml).attachments("web").as_slice() {
        [NetworkAttachment { interface, list: List::Made(list) }] if interface == "eth0" => list.clone(),
        other => panic!("{toml}: {other:?}"),
    }
}

/// Each interface with the version, the name and the plugins of its list.
#[track_caller]
fn assert_lists(plugins: &str, version: &str, table: &[(&str, &str, Value)]) {
    for (interface, name, expected) in table {
        let expected = json!({"cniVersion": version, "name": name, "plugins": expected});
        assert_eq!(list(plugins, interface), expected, "{interface}");
    }
}

#[test]
fn standard_bridges() {
    assert_lists(
        "standard",
        "1.0.0",
        &[
            ("association = 'bridge'", "bowline-bowline0", json!([{"type": "bridge", "bridge": "bowline0"}])),
            (
                "association = 'bridge'\nbridge = 'br1'\nmtu = 9000\nsubnets = ['10.88.0.0/16']",
                "bowline-br1",
                json!([{
                    "type": "bridge", "bridge": "br1", "mtu": 9000,
                    "isGateway": true, "ipMasq": true, "hairpinMode": false,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.88.0.0/16"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }, {"type": "firewall"}]),
            ),
            (
                "association = 'bridge'\nmasquerade = false\nroutes = ['10.0.0.0/8', 'fd00::/8']\n\
                 subnets = ['10.1.0.0/16', 'fd00:1::/64', '10.2.0.0/16']\ngateways = ['fd00:1::9']",
                "bowline-bowline0",
                json!([{
                    "type": "bridge", "bridge": "bowline0",
                    "isGateway": true, "ipMasq": false, "hairpinMode": false,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [
                            [{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16"}],
                            [{"subnet": "fd00:1::/64", "gateway": "fd00:1::9"}],
                        ],
                        "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/8", "gw": "fd00:1::9"}],
                    },
                }, {"type": "firewall"}]),
            ),
            (
                "association = 'bridge'\naddresses = ['10.1.0.5/16', 'fd00:1::5/64']\ngateways = ['10.1.0.1']",
                "bowline-bowline0",
                json!([{
                    "type": "bridge", "bridge": "bowline0",
                    "isGateway": true, "ipMasq": true, "hairpinMode": false,
                    "ipam": {
                        "type": "static",
                        "addresses": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64"}],
                        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
                    },
                }, {"type": "firewall"}]),
            ),
        ],
    );
}

#[test]
fn standard_interfaces() {
    assert_lists(
        "standard",
        "1.0.0",
        &[
            (
                "association = 'interface'\nmac = '0A:1b:2c:3d:4e:5f'",
                "bowline-0a-1b-2c-3d-4e-5f",
                json!([{"type": "host-device", "hwaddr": "0a:1b:2c:3d:4e:5f"}]),
            ),
            (
                "association = 'default'\nmac = '0a:1b:2c:3d:4e:5f'\naddresses = ['10.0.0.5/24']\nroutes = []",
                "bowline-0a-1b-2c-3d-4e-5f",
                json!([{
                    "type": "host-device", "hwaddr": "0a:1b:2c:3d:4e:5f",
                    "ipam": {"type": "static", "addresses": [{"address": "10.0.0.5/24"}]},
                }]),
            ),
        ],
    );
}

#[test]
fn ecs_bridges() {
    assert_lists(
        "ecs",
        "0.3.0",
        &[
            ("association = 'bridge'", "ecs-bridge", json!([{"type": "ecs-bridge", "bridge": "ecs-bridge"}])),
            (
                "association = 'bridge'\nsubnets = ['169.254.172.0/22']\nroutes = ['169.254.170.2/32']",
                "ecs-bridge",
                json!([{
                    "type": "ecs-bridge", "bridge": "ecs-bridge",
                    "ipam": {
                        "type": "ecs-ipam", "cniVersion": "0.3.0", "id": "web", "ipv4-subnet": "169.254.172.0/22",
                        "ipv4-routes": [{"dst": "169.254.170.2/32"}],
                    },
                }]),
            ),
            (
                "association = 'bridge'\nbridge = 'br1'\naddresses = ['10.0.0.5/24', 'fd00::5/64']\n\
                 gateways = ['10.0.0.9']",
                "br1",
                json!([{
                    "type": "ecs-bridge", "bridge": "br1",
                    "ipam": {
                        "type": "ecs-ipam", "cniVersion": "0.3.0", "id": "web",
                        "ipv4-subnet": "10.0.0.0/24", "ipv4-address": "10.0.0.5/24", "ipv4-gateway": "10.0.0.9",
                        "ipv4-routes": [{"dst": "0.0.0.0/0"}],
                        "ipv6-subnet": "fd00::/64", "ipv6-address": "fd00::5/64",
                    },
                }]),
            ),
        ],
    );
}

#[test]
fn ecs_interfaces_and_branches() {
    let whole = (
        "association = 'interface'\nmac = '0a:1b:2c:3d:4e:5f'\nblock_metadata = true\n\
         addresses = ['10.0.0.5/24', 'fd00::5/64']\ngateways = ['10.0.0.1']",
        "bowline-0a-1b-2c-3d-4e-5f",
        json!([{
            "type": "vpc-eni", "eniMACAddress": "0a:1b:2c:3d:4e:5f",
            "eniIPAddresses": ["10.0.0.5/24", "fd00::5/64"], "gatewayIPAddresses": ["10.0.0.1"],
            "useExistingNetwork": false, "blockInstanceMetadata": true,
        }]),
    );
    let branch = (
        "association = 'vlan'\nvlan = 7\nmac = '0a:1b:2c:3d:4e:5f'\ntrunk_mac = '0a:1b:2c:3d:4e:60'\n\
         addresses = ['10.0.0.5/24']\ngateways = ['10.0.0.1']",
        "bowline-0a-1b-2c-3d-4e-5f",
        json!([{
            "type": "vpc-branch-eni", "trunkMACAddress": "0a:1b:2c:3d:4e:60", "branchVlanID": "7",
            "branchMACAddress": "0a:1b:2c:3d:4e:5f", "ipAddresses": ["10.0.0.5/24"],
            "gatewayIPAddresses": ["10.0.0.1"], "blockInstanceMetadata": false, "interfaceType": "vlan",
        }]),
    );
    assert_lists("ecs", "0.3.1", &[whole, branch.clone()]);
    assert_lists("standard", "0.3.1", &[branch]);
}

#[test]
fn the_proxy_is_the_last_list() {
    for (proxy, expected) in [
        (
            "ingress = [{listener = 15000, intercept = 80}, {listener = 15001}]",
            json!({
                "enableIPv4": true, "enableIPv6": false,
                "ingressConfig": [{"listenerPort": 15000, "interceptPort": 80}, {"listenerPort": 15001}],
            }),
        ),
        (
            "ipv6 = true\negress = {listener = 15002, ipv4 = '127.255.0.0/16', ipv6 = 'fd01::/64'}",
            json!({
                "enableIPv4": true, "enableIPv6": true,
                "egressConfig": {
                    "listenerPort": 15002, "redirectMode": "nat",
                    "vip": {"ipv4Cidr": "127.255.0.0/16", "ipv6Cidr": "fd01::/64"},
                },
            }),
        ),
        (
            "egress = {redirect = 'tproxy', listener = 15002, ipv4 = '127.255.0.0/16'}",
            json!({
                "enableIPv4": true, "enableIPv6": false,
                "egressConfig": {
                    "listenerPort": 15002, "redirectMode": "tproxy", "vip": {"ipv4Cidr": "127.255.0.0/16"},
                },
            }),
        ),
        (
            "ipv4 = false\nipv6 = true\negress = {redirect = 'tproxy', via_ipv6 = 'fd00::2', ipv6 = 'fd01::/64'}",
            json!({
                "enableIPv4": false, "enableIPv6": true,
                "egressConfig": {
                    "redirectMode": "tproxy", "redirectIP": {"ipv6": "fd00::2"}, "vip": {"ipv6Cidr": "fd01::/64"},
                },
            }),
        ),
    ] {
        let toml = format!(
            "[network]\ninterfaces = [{{association = 'bridge', name = 'net0'}}, {{association = 'bridge'}}]\n\
             [network.proxy]\n{proxy}"
        );
        let all = network(&toml).attachments("web");
        let interfaces: Vec<&str> = all.iter().map(|one| one.interface.as_str()).collect();
        assert_eq!(interfaces, ["net0", "eth1", "net0"]);
        let mut plugin = expected;
        plugin["type"] = json!("ecs-serviceconnect");
        let list = json!({"cniVersion": "0.3.0", "name": "ecs-serviceconnect", "plugins": [plugin]});
        assert_eq!(all[2].list, List::Made(list), "{proxy}");
    }
}

/// As NewAppMeshConfig has it, for what amazon-vpc-cni-plugins reads.
#[test]
fn app_mesh_is_set_up_last_by_its_plugin() {
    for (mesh, expected) in [
        ("egress = 15001\nignored_uid = 1337", json!({"ignoredUID": "1337", "proxyEgressPort": "15001"})),
        (
            "egress = 15001\ningress = 15000\napp_ports = [80, 8080]\nignored_gid = 0\nignored_ports = [22]\n\
             ignored_ips = ['169.254.170.2', '10.0.0.0/8', 'fd00::1']\nipv6 = true",
            json!({
                "ignoredGID": "0", "proxyIngressPort": "15000", "proxyEgressPort": "15001",
                "appPorts": ["80", "8080"], "egressIgnoredPorts": ["22"],
                "egressIgnoredIPs": ["169.254.170.2", "10.0.0.0/8", "fd00::1"], "enableIPv6": true,
            }),
        ),
    ] {
        let toml =
            format!("[network]\ninterfaces = [{{association = 'bridge', name = 'net0'}}]\n[network.app_mesh]\n{mesh}");
        let all = network(&toml).attachments("web");
        let mut plugin = expected;
        plugin["type"] = json!("aws-appmesh");
        let list = json!({"cniVersion": "0.3.0", "name": "aws-appmesh", "plugins": [plugin]});
        assert_eq!(all[1], NetworkAttachment { interface: "net0".into(), list: List::Made(list) }, "{mesh}");
    }
}

/// As BuildCNIConfigAwsvpc has them, and BuildCNIConfigBridgeMode, where the interfaces are there already.
#[test]
fn both_proxies_are_set_up_and_alone_where_somebody_else_has_made_the_network() {
    let both = "app_mesh = {egress = 1, ignored_uid = 1}\nproxy = {ingress = [{listener = 1}]}";
    let names = |toml: &str| {
        let all = network(&format!("[network]\n{toml}\n{both}")).attachments("web");
        let name = |of: NetworkAttachment| match of.list {
            List::Made(list) => (of.interface, list["plugins"][0]["type"].as_str().map(str::to_owned)),
            List::File(_) => (of.interface, None),
        };
        all.into_iter().map(name).collect::<Vec<_>>()
    };
    let of =
        |name: &str| ["aws-appmesh", "ecs-serviceconnect"].map(|plugin| (name.to_owned(), Some(plugin.to_owned())));
    assert_eq!(names("interfaces = [{association = 'bridge', name = 'net0'}]")[1..], of("net0"));
    assert_eq!(names("mode = '/run/netns/web'"), of("eth0"));
}

#[test]
fn ports_are_mapped_once_by_the_first_bridge() {
    let network = network(
        "[network]\nports = [{host = 80}, {host = 53, sandbox = 5353, protocol = 'udp', address = '10.0.0.1'}]\n\
         interfaces = [\n\
             {association = 'list', list = '/etc/cni/a.conflist'},\n\
             {association = 'bridge', bridge = 'br0'},\n\
             {association = 'bridge', subnets = ['10.0.0.0/8']},\n\
             {association = 'bridge', bridge = 'br1', subnets = ['11.0.0.0/8']},\n\
         ]",
    );
    let all = network.attachments("web");
    assert_eq!(all[0], NetworkAttachment { interface: "eth0".into(), list: List::File("/etc/cni/a.conflist".into()) });
    let plugins = |at: usize| match &all[at].list {
        List::Made(list) => list["plugins"].as_array().cloned().unwrap_or_default(),
        List::File(_) => panic!("{all:?}"),
    };
    let map = json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true});
    let firewall = json!({"type": "firewall"});
    assert_eq!(plugins(1), [json!({"type": "bridge", "bridge": "br0"})], "it has no address");
    let (first, second) = (plugins(2), plugins(3));
    assert_eq!((first.len(), &first[1], &first[0]["hairpinMode"]), (3, &map, &json!(true)));
    assert_eq!((second.len(), &second[0]["hairpinMode"]), (2, &json!(false)));
    assert_eq!((&first[2], &second[1]), (&firewall, &firewall));
    // Neither is the first interface: what is everywhere else is reached by that.
    assert_eq!((&first[0]["ipam"]["routes"], &second[0]["ipam"]["routes"]), (&Value::Null, &Value::Null));
    let mappings = json!([
        {"hostPort": 80, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "10.0.0.1"},
    ]);
    assert_eq!(network.capabilities().into_iter().collect::<Vec<_>>(), [("portMappings".to_owned(), mappings)]);
}

#[test]
fn other_networks_have_no_lists() {
    for (toml, mode) in [
        ("", NetworkMode::Host),
        ("network.mode = 'host'", NetworkMode::Host),
        ("network.mode = 'none'", NetworkMode::None),
        ("network.mode = '/run/netns/blue'", NetworkMode::Path("/run/netns/blue".into())),
    ] {
        let network = network(toml);
        assert_eq!((network.mode(), network.attachments("web"), network.capabilities().len()), (mode, vec![], 0));
    }
    let folders = network("network.plugin_folders = ['/a']").plugin_folders();
    assert_eq!(folders, [std::path::PathBuf::from("/a")]);
    assert_eq!(Network::default().plugin_folders().len(), 3);
}
