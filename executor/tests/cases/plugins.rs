//! What the CNI project's plugins make in a sandbox's network, and that it goes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bowline_executor::Kind;
use bowline_executor::internal::network::{self, LONGEST};
use bowline_model::record::Connected;
use bowline_spec::{Format, NetworkMode, parse_sandbox};

use super::inside::{inside, setting};
use super::sandbox::{Net, Sandbox, addresses, assert_nothing_kept, host_links, ip, link, prepared, rules};
use crate::{Case, PATIENCE, block_on, namespace};

pub(crate) const ALL: [Case; 12] = [
    ("plugins_two_sandboxes_on_a_bridge_reach_each_other", on_a_bridge),
    ("plugins_a_port_of_the_host_leads_to_a_sandbox", published),
    ("plugins_all_is_undone_after_a_crash", crashed),
    ("plugins_a_bridge_of_others_stays", bridge_of_others),
    ("plugins_an_address_is_given_by_the_description", given_address),
    ("plugins_an_interface_of_the_host_moves_in_and_back", moved),
    ("plugins_a_bridge_without_addresses_connects_all_the_same", no_addresses),
    ("plugins_interfaces_are_made_in_order", several),
    ("plugins_a_host_that_forwards_nothing_by_itself_forwards_what_is_ours", unforwarded),
    ("plugins_check_finds_what_is_missing", checked),
    ("plugins_what_they_refuse_leaves_nothing", refused),
    ("plugins_settings_of_the_description_are_in_effect", settings),
];

/// Not a case: a shim that has connected a sandbox and waits to be killed.
pub(crate) const SHIM: Case = ("helper_shim", shim);

/// Nor this: in a network of its own in the host's place.
pub(crate) const UNFORWARDED: Case = ("helper_unforwarded", without_forwarding);

const HELPERS_FOLDER: &str = "BOWLINE_NETWORKS_FOLDER";

/// Whoever connects to `address` from `netns`, or from the host, gets an answer of
/// who listens.
fn assert_reached(netns: Option<&Path>, address: SocketAddr, listener: &TcpListener) {
    let connect = || TcpStream::connect_timeout(&address, PATIENCE);
    let stream = netns.map_or_else(connect, |netns| inside(netns, connect));
    let mut stream = stream.unwrap_or_else(|error| panic!("{address} from {netns:?}: {error}"));
    let (mut accepted, _) = listener.accept().expect("it was connected to");
    accepted.write_all(b"hello").expect("written");
    drop(accepted);
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("readable");
    assert_eq!(said, "hello");
}

fn on_a_bridge() {
    let net = Net::new();
    let [a, b] = ["a", "b"].map(|id| Sandbox::new(id, &net.toml()));
    let made = [&a, &b].map(|sandbox| sandbox.add().remove(0));
    let Connected { interface, network, .. } = &made[0];
    assert_eq!((interface.as_str(), network), ("eth0", &format!("bowline-{}", net.bridge)));
    let [to_a, to_b] = made.each_ref().map(addresses);
    assert!(to_a.len() == 2 && to_b.len() == 2, "{to_a:?} {to_b:?}");
    for ((from, netns), to) in [(&b, a.netns()), (&a, b.netns())].into_iter().zip([&to_a, &to_b]) {
        for address in to {
            let listener = inside(&netns, || TcpListener::bind((*address, 80)).expect("it is its address"));
            assert_reached(Some(&from.netns()), (*address, 80).into(), &listener);
            assert_reached(None, (*address, 80).into(), &listener);
        }
    }
    let links = made.each_ref().map(host_links).concat();
    assert!(links.len() == 4 && links.iter().all(|link| link.exists()), "{links:?}");
    a.del();
    assert!(net.is_there() && links.iter().filter(|link| link.exists()).count() == 3, "b is still there");
    let listener = inside(b.netns(), || TcpListener::bind((to_b[0], 80)).expect("it is its address"));
    assert_reached(None, (to_b[0], 80).into(), &listener);
    drop(listener);
    b.del();
    assert!(links.iter().all(|link| !link.exists()), "{links:?}");
    net.assert_gone();
    b.del();
}

fn published() {
    let net = Net::new();
    // A port of the host's that is free now.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("one is free").port();
    let ports = format!("network.ports = [{{host = {port}, sandbox = 80}}]\n");
    let [a, b] = [("a", ports + &net.toml()), ("b", net.toml())].map(|(id, toml)| Sandbox::new(id, &toml));
    let to_a = addresses(&a.add()[0])[0];
    b.add();
    let listener = inside(a.netns(), || TcpListener::bind((to_a, 80)).expect("it is its address"));
    let gateway: IpAddr = format!("{}.1", net.ipv4).parse().expect("an address");
    assert_reached(None, ([127, 0, 0, 1], port).into(), &listener);
    assert_reached(None, (gateway, port).into(), &listener);
    assert_reached(Some(&b.netns()), (gateway, port).into(), &listener);
    assert_reached(Some(&a.netns()), (gateway, port).into(), &listener);
    assert!(rules().contains(&format!("--dport {port} ")));
    a.del();
    let refused = TcpStream::connect_timeout(&(gateway, port).into(), PATIENCE).map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionRefused));
    assert!(!rules().contains(&format!("--dport {port} ")));
    b.del();
    net.assert_gone();
}

fn shim() {
    let folder = PathBuf::from(std::env::var_os(HELPERS_FOLDER).expect("a folder"));
    let toml = fs::read_to_string(folder.join("toml")).expect("readable");
    let description = parse_sandbox(&toml, Format::Toml).expect("a description").network;
    let (shared, who) = prepared("crash", &description);
    let folder = folder.join("state");
    let added = block_on(network::worker::add(&folder, &who, &description.attachments(&who.id)));
    println!(
        "{}",
        added.map_or_else(|error| error.to_string(), |added| host_links(&added[0])[1].display().to_string())
    );
    let _ = std::io::stdin().read(&mut [0]);
    drop(shared);
}

fn crashed() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a folder");
    let ports = "network.ports = [{host = 49151, sandbox = 80}]\n";
    fs::write(dir.path().join("toml"), format!("{ports}{}", net.toml())).expect("written");
    let state = dir.path().join("state");
    fs::create_dir(&state).expect("made");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(crate::CASE, SHIM.0).env(HELPERS_FOLDER, dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shim = command.spawn().expect("it runs");
    let mut said = std::io::BufReader::new(shim.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("readable");
    let veth = PathBuf::from(line.trim());
    assert!(veth.exists(), "{line}");
    shim.kill().expect("it runs");
    shim.wait().expect("it was ours");
    assert!(veth.exists() && net.is_there() && rules().contains(&net.ipv4), "it has left all");
    assert_ne!(namespace(state.join("netns")), namespace("/proc/self/ns/net"));
    network::del(&state, LONGEST).expect("it is undone");
    assert!(!veth.exists());
    assert_nothing_kept(&state);
    net.assert_gone();
}

fn bridge_of_others() {
    let net = Net::new();
    ip(&["link", "add", &net.bridge, "type", "bridge"]);
    let a = Sandbox::new("a", &net.toml());
    a.add();
    a.del();
    assert!(net.is_there(), "it was there before");
    ip(&["link", "del", &net.bridge]);
    net.assert_gone();
    // Nor one of ours that somebody else still uses.
    let peer = format!("bwp{}", std::process::id());
    a.add();
    ip(&["link", "add", &peer, "type", "veth"]);
    ip(&["link", "set", &peer, "master", &net.bridge]);
    a.del();
    assert!(net.is_there(), "it is in use");
    a.add();
    ip(&["link", "del", &peer]);
    a.del();
    net.assert_gone();
}

fn given_address() {
    let net = Net::new();
    let (first, second) = (format!("{}.77", net.ipv4), format!("{}.78", net.ipv4));
    let toml =
        |address: &str| format!("{}addresses = ['{address}/24', '{}::77/64']\n", net.without_addresses(), net.ipv6);
    let [a, b] = [("a", toml(&first)), ("b", toml(&second))].map(|(id, toml)| Sandbox::new(id, &toml));
    let expected: Vec<IpAddr> =
        [first.clone(), format!("{}::77", net.ipv6)].iter().map(|a| a.parse().expect("one")).collect();
    assert_eq!(addresses(&a.add()[0]), expected);
    b.try_add().map(drop).unwrap_or_else(|error| panic!("{error}"));
    let listener = inside(a.netns(), || TcpListener::bind((&*first, 80)).expect("it is its address"));
    assert_reached(Some(&b.netns()), (expected[0], 80).into(), &listener);
    [a, b].iter().for_each(Sandbox::del);
    net.assert_gone();
}

fn moved() {
    let number = std::process::id();
    let [device, peer] = ["bwd", "bwe"].map(|name| format!("{name}{number}"));
    ip(&["link", "add", &device, "type", "veth", "peer", "name", &peer]);
    let mac = fs::read_to_string(link(&device).join("address")).expect("readable").trim().to_owned();
    let toml =
        format!("[[network.interfaces]]\nassociation = 'interface'\nmac = '{mac}'\naddresses = ['192.0.2.7/24']\n");
    let a = Sandbox::new("a", &toml);
    assert_eq!(addresses(&a.add()[0]), ["192.0.2.7".parse::<IpAddr>().expect("an address")]);
    assert!(!link(&device).exists() && link(&peer).exists());
    let address = inside(a.netns(), || {
        Command::new("ip").args(["-br", "link", "show", "eth0"]).output().expect("it runs").stdout
    });
    let address = String::from_utf8(address).expect("text");
    assert!(address.contains(&mac), "{address}");
    inside(a.netns(), || TcpListener::bind("192.0.2.7:80").expect("it is its address"));
    a.del();
    assert!(link(&device).exists(), "it is back, by its name");
    ip(&["link", "del", &device]);
    // One that is not there.
    let error = Sandbox::new("b", &toml).try_add().expect_err("it is not there");
    assert!(error.message().starts_with("cannot add eth0 to network bowline-"), "{error}");
}

fn no_addresses() {
    let net = Net::new();
    let [a, b] = ["a", "b"].map(|id| Sandbox::new(id, &net.without_addresses()));
    for (sandbox, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        assert!(addresses(&sandbox.add()[0]).is_empty());
        // Whoever is in there gives it what it wants.
        inside(sandbox.netns(), || ip(&["addr", "add", address, "dev", "eth0"]));
    }
    let listener = inside(a.netns(), || TcpListener::bind("192.0.2.1:80").expect("it is its address"));
    assert_reached(Some(&b.netns()), ([192, 0, 2, 1], 80).into(), &listener);
    net.assert_no_rules();
    [a, b].iter().for_each(Sandbox::del);
    net.assert_gone();
}

fn several() {
    let [net, other] = [Net::new(), Net::another()];
    let a = Sandbox::new("a", &format!("{}{}name = 'back0'\nroutes = []\n", net.toml(), other.toml()));
    let b = Sandbox::new("b", &other.toml());
    let [of_a, of_b] = [&a, &b].map(Sandbox::add);
    let names: Vec<&str> = of_a.iter().map(|of| of.interface.as_str()).collect();
    assert_eq!(names, ["eth0", "back0"]);
    // Whoever shares but the second network is reached by it; all else goes by the first.
    let listener = inside(b.netns(), || TcpListener::bind((addresses(&of_b[0])[0], 80)).expect("it is its address"));
    assert_reached(Some(&a.netns()), listener.local_addr().expect("bound"), &listener);
    let routes = inside(a.netns(), || Command::new("ip").args(["route"]).output().expect("it runs").stdout);
    let routes = String::from_utf8(routes).expect("text");
    assert!(routes.contains(&format!("default via {}.1 dev eth0", net.ipv4)), "{routes}");
    assert_eq!(routes.matches("default").count(), 1, "{routes}");
    a.del();
    assert!(!net.is_there() && other.is_there());
    b.del();
    net.assert_gone();
    other.assert_gone();
}

fn unforwarded() {
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().expect("this program")).env(crate::CASE, UNFORWARDED.0);
    assert!(command.status().expect("it runs").success());
}

/// As on a host with Docker.
fn without_forwarding() {
    ip(&["link", "set", "lo", "up"]);
    let policy = Command::new("iptables").args(["-P", "FORWARD", "DROP"]).status();
    assert!(policy.expect("it runs").success());
    let [net, other] = [Net::new(), Net::another()];
    let [a, b] = [("a", net.toml()), ("b", other.toml())].map(|(id, toml)| Sandbox::new(id, &toml));
    a.add();
    let to_b = addresses(&b.add()[0])[0];
    let listener = inside(b.netns(), || TcpListener::bind((to_b, 80)).expect("it is its address"));
    assert_reached(Some(&a.netns()), (to_b, 80).into(), &listener);
    [a, b].iter().for_each(Sandbox::del);
    [net, other].iter().for_each(Net::assert_gone);
}

fn checked() {
    let net = Net::new();
    let a = Sandbox::new("a", &net.toml());
    a.add();
    let check = || block_on(network::worker::check(a.dir.path(), LONGEST));
    assert_eq!(check().unwrap_or_else(|error| panic!("{error}")), Vec::<String>::new());
    inside(a.netns(), || ip(&["route", "del", "default"]));
    let error = check().expect_err("a route of its is gone");
    let expected = format!("eth0 in network bowline-{}: network plugin bridge failed at CHECK: ", net.bridge);
    assert!(error.message().starts_with(&expected), "{error}");
    a.del();
    net.assert_gone();
}

fn refused() {
    let net = Net::new();
    // The second interface cannot be made: what the first has is undone.
    let toml = format!(
        "{}[[network.interfaces]]\nassociation = 'interface'\nmac = '02:00:00:ff:ff:01'\naddresses = ['192.0.2.7/24']\n",
        net.toml()
    );
    let a = Sandbox::new("a", &toml);
    let error = a.try_add().expect_err("there is none");
    assert!(error.message().contains("eth1") && !error.message().contains("undoing"), "{error}");
    assert_nothing_kept(a.dir.path());
    net.assert_gone();
    // So it is with a subnet that has no address for all.
    let toml = format!("{}subnets = ['{}.0/30']\n", net.without_addresses(), net.ipv4);
    let [b, c] = ["b", "c"].map(|id| Sandbox::new(id, &toml));
    b.add();
    let error = c.try_add().expect_err("there is one address");
    assert_eq!(error.kind(), Kind::Internal);
    assert!(error.message().contains("network plugin bridge failed at ADD: code "), "{error}");
    assert_nothing_kept(c.dir.path());
    b.del();
    net.assert_gone();
    let folders = "network.plugin_folders = ['/nowhere']\n".to_owned() + &net.toml();
    let error = Sandbox::new("d", &folders).try_add().expect_err("there is none");
    let [bridge, firewall] =
        ["bridge", "firewall"].map(|name| format!("cannot find the network plugin {name} in /nowhere"));
    assert_eq!((error.kind(), error.message()), (Kind::Unsupported, &*format!("{bridge}; {firewall}")));
}

fn settings() {
    let net = Net::new();
    let toml = format!(
        "[network.sysctls]\n'net.ipv6.conf.all.disable_ipv6' = '1'\n'net.ipv4.conf.eth0.rp_filter' = '2'\n{}subnets = ['{}.0/24']\n",
        net.without_addresses(),
        net.ipv4
    );
    let a = Sandbox::new("a", &toml);
    assert_eq!(a.description.mode(), NetworkMode::Cni);
    a.add();
    let inside = inside(a.netns(), || ["net.ipv6.conf.all.disable_ipv6", "net.ipv4.conf.eth0.rp_filter"].map(setting));
    assert_eq!(inside, ["1", "2"]);
    a.del();
    net.assert_gone();
}
