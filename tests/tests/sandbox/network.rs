//! Networks of sandboxes: what the CNI project's plugins make of them, what
//! members share, and that nothing is left of it, whatever happens.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Sandbox, Task, namespace_of, patience, skip};
use serde_json::Value;

/// A bridge with a subnet of its own, by the host's prefix.
struct Bridge<'h> {
    host: &'h Host,
    name: String,
    subnet: String,
}

impl<'h> Bridge<'h> {
    /// None where the plugins are not installed, or iptables, which they run.
    fn new(host: &'h Host) -> Option<Bridge<'h>> {
        let there =
            |program: &str| ["/usr/sbin", "/sbin", "/usr/lib/cni"].iter().any(|f| Path::new(f).join(program).exists());
        if let Some(missing) =
            ["bridge", "host-local", "portmap", "iptables-save"].into_iter().find(|name| !there(name))
        {
            skip(&format!("{missing} is not installed (`make test` does)"));
            host.assert_nothing_left();
            return None;
        }
        let mix = |sum: usize, byte: u8| sum * 31 + usize::from(byte);
        let number = host.prefix().bytes().fold(7, mix) % (90 * 256);
        let subnet = format!("10.{}.{}", number / 256 + 100, number % 256);
        Some(Bridge { host, name: host.prefix().to_owned(), subnet })
    }

    fn toml(&self) -> String {
        format!(
            "[[network.interfaces]]\nassociation = 'bridge'\nbridge = '{}'\nsubnets = ['{}.0/24']",
            self.name, self.subnet
        )
    }

    fn sandbox(&self) -> Sandbox<'h> {
        self.host.sandbox().toml(&self.toml()).create()
    }

    fn is_there(&self) -> bool {
        link(&self.name).exists()
    }

    /// What plugins have put down of it: rules, and addresses that are taken.
    fn traces(&self) -> Vec<String> {
        let rules = self.host.execute(Command::new("iptables-save"));
        let ours = |line: &&str| line.contains(self.host.prefix()) || line.contains(&format!("{}.", self.subnet));
        let mut found: Vec<String> = rules.assert_code(0).out().lines().filter(ours).map(str::to_owned).collect();
        let taken = fs::read_dir(self.reservations()).into_iter().flatten().flatten();
        let taken = taken.map(|entry| entry.file_name().to_string_lossy().into_owned());
        found.extend(taken.filter(|name| name.starts_with(&self.subnet)));
        found
    }

    fn reservations(&self) -> PathBuf {
        Path::new("/var/lib/cni/networks").join(format!("bowline-{}", self.name))
    }

    /// Everything of all sandboxes on it is gone, and it itself.
    #[track_caller]
    fn assert_gone(&self, links: &[PathBuf]) {
        assert!(!self.is_there(), "the bridge is left");
        let left: Vec<_> = links.iter().filter(|link| link.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
        let traces = self.traces();
        assert!(traces.is_empty(), "{traces:#?}");
        // Which address it gave last; for those to come, and nobody else's.
        let _ = fs::remove_dir_all(self.reservations());
    }
}

impl Drop for Bridge<'_> {
    /// What plugins have made is nothing that the harness knows to remove.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for id in self.host.bowline(["sandbox", "ls", "-q"]).out().lines() {
                self.host.bowline(["sandbox", "rm", "-f", id]);
            }
            let _ = fs::remove_dir_all(self.reservations());
        }
    }
}

fn link(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

fn interface(of: &Sandbox<'_>) -> Value {
    of.inspect()["interfaces"][0]["result"].clone()
}

fn address(of: &Sandbox<'_>) -> String {
    let result = interface(of);
    let text = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("no address in {result}"));
    text.split('/').next().expect("an address").to_owned()
}

/// The ends on the host of its interface: the bridge, and one in it.
fn links(of: &Sandbox<'_>) -> Vec<PathBuf> {
    let result = interface(of);
    let all = result["interfaces"].as_array().expect("interfaces");
    let outside = all.iter().filter(|one| one.get("sandbox").is_none());
    let links: Vec<PathBuf> = outside.filter_map(|one| one["name"].as_str().map(link)).collect();
    assert!(links.len() == 2 && links.iter().all(|link| link.exists()), "{result}");
    links
}

/// A member that answers on port 80 with a word, `word`.
fn server<'h>(of: &Sandbox<'h>, word: &str) -> Task<'h> {
    let script = format!(
        "mkdir /tmp/www && echo {word} >/tmp/www/index.html && busybox httpd -p 80 -h /tmp/www && echo up; exec sleep 1000"
    );
    let task = of.task(&script).start();
    task.wait_for_line("up");
    task
}

/// What a member of `from` gets at that address.
fn fetched(from: &Sandbox<'_>, address: &str) -> String {
    let ran = from.task(&format!("busybox wget -qO- http://{address}/")).run();
    ran.assert_code(0).out()
}

/// What the host itself gets there.
fn fetched_by_host(address: &str) -> String {
    let stream = TcpStream::connect_timeout(&address.parse().expect("an address"), patience());
    let mut stream = stream.unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text.lines().last().unwrap_or_default().to_owned()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("one is free").port()
}

#[test]
fn two_sandboxes_on_one_bridge_reach_each_other() {
    let host = Host::new();
    let Some(bridge) = Bridge::new(&host) else { return };
    let [a, b] = [bridge.sandbox(), bridge.sandbox()];
    let _servers = [server(&a, "of-a"), server(&b, "of-b")];
    let (to_a, to_b) = (address(&a), address(&b));
    assert_eq!([fetched(&b, &to_a), fetched(&a, &to_b)], ["of-a", "of-b"]);
    assert_eq!(fetched_by_host(&format!("{to_a}:80")), "of-a");
    let links = [links(&a), links(&b)].concat();
    assert_eq!(bridge.traces().iter().filter(|trace| **trace == to_a || **trace == to_b).count(), 2);
    a.rm(["-f"]);
    assert!(bridge.is_there(), "the other is still in it");
    assert_eq!(fetched_by_host(&format!("{to_b}:80")), "of-b");
    b.rm(["-f"]);
    bridge.assert_gone(&links);
}

#[test]
fn a_published_port_leads_to_a_sandbox() {
    let host = Host::new();
    let Some(bridge) = Bridge::new(&host) else { return };
    let port = free_port();
    let a = host.sandbox().toml(&bridge.toml()).flag(format!("--publish={port}:80")).create();
    let b = bridge.sandbox();
    server(&a, "of-a");
    assert_eq!(fetched_by_host(&format!("127.0.0.1:{port}")), "of-a");
    assert_eq!(fetched_by_host(&format!("{}.1:{port}", bridge.subnet)), "of-a");
    assert_eq!(fetched(&b, &format!("{}.1:{port}", bridge.subnet)), "of-a");
    let links = [links(&a), links(&b)].concat();
    a.rm(["-f"]);
    let closed = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), patience()).map(drop);
    assert_eq!(closed.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionRefused));
    b.rm([]);
    bridge.assert_gone(&links);
}

#[test]
fn a_new_shim_goes_on_with_the_network() {
    let host = Host::new();
    let Some(bridge) = Bridge::new(&host) else { return };
    let port = free_port();
    let a = host.sandbox().toml(&bridge.toml()).flag(format!("--publish={port}:80")).create();
    let links = links(&a);
    for members in [0, 1] {
        let server = (members == 1).then(|| server(&a, "of-a"));
        let before = address(&a);
        a.kill_shim();
        let ran = a.task("busybox ip -o -4 addr show eth0").run();
        assert!(ran.assert_code(0).out().contains(&before), "{ran}");
        assert_eq!(address(&a), before);
        if server.is_some() {
            assert_eq!(fetched_by_host(&format!("127.0.0.1:{port}")), "of-a");
        }
    }
    let taken = host.sandbox().toml(&bridge.toml()).flag(format!("--publish={port}:80"));
    taken.assert_refused(125, &[&port.to_string()]);
    a.rm(["-f"]);
    bridge.assert_gone(&links);
}

#[test]
fn nothing_is_left_after_a_crash() {
    for member in [false, true] {
        let host = Host::new();
        let Some(bridge) = Bridge::new(&host) else { return };
        let port = free_port();
        let a = host.sandbox().toml(&bridge.toml()).flag(format!("--publish={port}:80")).create();
        if member {
            server(&a, "of-a");
        }
        let links = links(&a);
        a.kill_shim();
        assert!(bridge.is_there() && links[1].exists() && !bridge.traces().is_empty(), "that is what it left");
        a.rm(["-f"]);
        bridge.assert_gone(&links);
        host.assert_nothing_left();
    }
}

#[test]
fn check_finds_what_somebody_has_changed() {
    let host = Host::new();
    let Some(bridge) = Bridge::new(&host) else { return };
    let a = bridge.sandbox();
    a.bowline("check", []).assert_code(0);
    let member = a.described("command = 'sleep'\nargs = ['1000']\ncapabilities.add = ['NET_ADMIN']").start();
    member.exec("busybox ip route del default").assert_code(0);
    a.bowline("check", []).assert_refused(125, &["eth0 in network bowline-", "plugin bridge failed at CHECK"]);
    let links = links(&a);
    a.rm(["-f"]);
    bridge.assert_gone(&links);
}

#[test]
fn members_share_network_ipc_and_names_and_nothing_else() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").flag("--hostname=web").create();
    let members = ["a", "b"].map(|_| sandbox.task("hostname; exec sleep 1000").start());
    members.iter().for_each(|member| member.wait_for_line("web"));
    let of = |kind: &str| {
        let [a, b] = members.each_ref().map(|member| namespace_of(member.pid(), kind));
        let own = namespace_of(std::process::id().cast_signed(), kind);
        assert!(a != own && b != own, "{kind}: {a} {b} {own}");
        assert_eq!(namespace_of(sandbox.shim_pid(), kind), own, "the shim is in none of them");
        a == b
    };
    assert_eq!(["net", "ipc", "uts"].map(of), [true; 3]);
    assert_eq!(["pid", "mnt", "cgroup"].map(of), [false; 3]);
    // An exec is where its member is.
    let seen = members[0].exec("readlink /proc/self/ns/net").assert_code(0).out();
    assert_eq!(seen, namespace_of(members[1].pid(), "net"));
    // One that listens is reached by the other, on loopback.
    members[0]
        .exec("mkdir /tmp/www && echo of-a >/tmp/www/index.html && busybox httpd -p 127.0.0.1:8080 -h /tmp/www")
        .assert_code(0);
    members[1].exec("busybox wget -qO- http://127.0.0.1:8080/").assert_says("of-a");
    sandbox.rm(["-f"]);
}

#[test]
fn a_namespace_lives_as_long_as_its_sandbox() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--network=none").create();
    let first =
        sandbox.task("readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts").run().assert_code(0).out();
    let second =
        sandbox.task("readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts").run().assert_code(0).out();
    assert_eq!((first.lines().count(), &first), (3, &second), "nobody was in them meanwhile");
    sandbox.rm([]);
}

#[test]
fn the_network_is_the_hosts_none_or_one_by_its_path() {
    let host = Host::new();
    let own = |kind: &str| namespace_of(std::process::id().cast_signed(), kind);
    let of_member = |sandbox: &Sandbox<'_>| sandbox.task("readlink /proc/self/ns/net").run().assert_code(0).out();
    let shared = host.sandbox().flag("--network=host").create();
    assert_eq!(of_member(&shared), own("net"));
    assert_eq!(of_member(&host.sandbox().create()), own("net"), "by default too");
    let none = host.sandbox().flag("--network=none").create();
    assert_ne!(of_member(&none), own("net"));
    let links = none.task("cat /proc/net/dev").run().assert_code(0).out();
    let links: Vec<&str> = links.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    assert_eq!(links, ["lo"]);

    let mut ip = Command::new("ip");
    ip.args(["netns", "add", host.prefix()]);
    host.execute(ip).assert_code(0);
    let path = Path::new("/run/netns").join(host.prefix());
    let toml = format!(
        "network.mode = '{}'\nnetwork.sysctls = {{'net.ipv4.ip_unprivileged_port_start' = '7'}}",
        path.display()
    );
    let by_path = host.sandbox().toml(&toml).create();
    let there = fs::metadata(&path).expect("it is there").ino();
    assert_eq!(of_member(&by_path), format!("net:[{there}]"));
    by_path.task("cat /proc/sys/net/ipv4/ip_unprivileged_port_start").run().assert_says("7");
    by_path.rm([]);
    assert_eq!(fs::metadata(&path).expect("it is somebody else's").ino(), there);
    let mut ip = Command::new("ip");
    ip.args(["netns", "del", host.prefix()]);
    host.execute(ip).assert_code(0);
    for (network, parts) in [
        (path.display().to_string(), ["network.mode: cannot open", host.prefix()]),
        ("/etc/passwd".to_owned(), ["network.mode: cannot join /etc/passwd", "no network namespace"]),
        ("/proc/self/ns/uts".to_owned(), ["network.mode: cannot join", "no network namespace"]),
    ] {
        host.sandbox().flag(format!("--network={network}")).assert_refused(125, &parts);
    }
}

#[test]
fn settings_are_in_effect_before_a_member_runs() {
    let host = Host::new();
    let Some(bridge) = Bridge::new(&host) else { return };
    let settings = "[network.sysctls]\n'net.ipv6.conf.all.disable_ipv6' = '1'\n'net.ipv4.conf.eth0.rp_filter' = '2'";
    let a = host.sandbox().toml(settings).toml(&bridge.toml()).create();
    let script = "cd /proc/sys/net; cat ipv6/conf/all/disable_ipv6 ipv4/conf/eth0/rp_filter";
    a.task(script).run().assert_says("1\n2");
    let links = links(&a);
    a.rm([]);
    let settings = "[network.sysctls]\n'net.ipv4.conf.eth7.rp_filter' = '2'";
    let refused = host.sandbox().toml(settings).toml(&bridge.toml());
    refused.assert_refused(125, &["sysctls: cannot set net.ipv4.conf.eth7.rp_filter to 2"]);
    bridge.assert_gone(&links);
}
