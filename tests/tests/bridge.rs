//! `--network bridge` and `--publish`, of tasks and sandboxes: what they reach, what reaches them, and that nothing of it
//! is left on the host.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Task, binary, eventually, patience, skip};
use serde_json::Value;

const BRIDGE: &str = "/sys/class/net/bowline-bridge";
const ADDRESSES: &str = "/run/bowline-networks";
const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// Whether the plugins are there, and iptables, which they run; else the test is over.
fn has_plugins(host: &Host) -> bool {
    let there =
        |program: &str| ["/usr/sbin", "/sbin", "/usr/lib/cni"].iter().any(|f| Path::new(f).join(program).exists());
    let missing =
        ["bridge", "host-local", "portmap", "firewall", "iptables-save"].into_iter().find(|name| !there(name));
    if let Some(missing) = missing {
        skip(&format!("{missing} is not installed (`make test` does)"));
        host.assert_nothing_left();
    }
    missing.is_none()
}

/// What a task has on the host.
struct Traces {
    address: String,
    link: PathBuf,
}

impl Traces {
    fn of(inspected: &Value) -> Traces {
        let result = &inspected["interfaces"][0]["result"];
        let text = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("no address in {inspected}"));
        let links = result["interfaces"].as_array().expect("interfaces").iter();
        let outside = links.filter(|one| one.get("sandbox").is_none()).filter_map(|one| one["name"].as_str());
        let mut links =
            outside.filter(|name| *name != "bowline-bridge").map(|name| Path::new("/sys/class/net").join(name));
        let link = links.next_back().expect("an end on the host");
        assert!(link.exists(), "{}", link.display());
        Traces { address: text.split('/').next().expect("an address").to_owned(), link }
    }

    /// What is there of them now.
    fn left(&self, host: &Host) -> Vec<String> {
        let mut left: Vec<String> = rules(host)
            .lines()
            .filter(|line| line.contains(&format!("{}/32", self.address)))
            .map(str::to_owned)
            .collect();
        let reserved = Path::new(ADDRESSES).join("bowline-bridge").join(&self.address);
        left.extend(
            [&self.link, &reserved].into_iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
        );
        left
    }

    /// Everything is gone, as soon as the shim has left.
    #[track_caller]
    fn assert_gone(&self, host: &Host) {
        eventually(format!("nothing of {} is left", self.address), || self.left(host).is_empty().then_some(()));
    }
}

fn rules(host: &Host) -> String {
    host.execute(Command::new("iptables-save")).assert_code(0).out()
}

/// Those of all networks, whoever has made them. Where somebody else's task has a network by plugins, they stay with it.
fn chains_of_plugins(host: &Host) -> Vec<String> {
    rules(host).lines().filter(|line| line.starts_with(":CNI-")).map(str::to_owned).collect()
}

/// A task that answers on port 80 with `word`, by TCP, and on port 7 by UDP.
fn server<'h>(host: &'h Host, word: &str, flags: &[String]) -> Task<'h> {
    let udp = "use IO::Socket; $s = IO::Socket::INET->new(LocalPort => 7, Proto => 'udp') or die; print qq(up\\n); $| = 1; \
               while (defined($s->recv($in, 99))) { $s->send(qq($in back)) }";
    let script = format!(
        "mkdir /tmp/www && echo {word} >/tmp/www/index.html && busybox httpd -p 80 -h /tmp/www && exec perl -e '$|=1; {udp}'"
    );
    let task = flags.iter().fold(host.task(&script), |task, flag| task.flag(flag)).flag("--network=bridge").start();
    task.wait_for_line("up");
    task
}

/// What is got from there by HTTP.
fn fetched(address: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address.parse().expect("an address"), patience()).expect(address);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text.lines().last().unwrap_or_default().to_owned()
}

fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").and_then(|free| free.local_addr()).expect("one is free").port()
}

fn ip(host: &Host, args: &str) {
    let mut ip = Command::new("ip");
    ip.args(args.split(' '));
    host.execute(ip).assert_code(0);
}

#[test]
fn two_tasks_reach_each_other_and_published_ports_lead_to_one() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let (tcp, udp) = (free_port(), free_port());
    let a = server(&host, "of-a", &[format!("-p={tcp}:80"), format!("-p=127.0.0.1:{udp}:7/udp")]);
    let b = server(&host, "of-b", &[]);
    let [to_a, to_b] = [&a, &b].map(|task| Traces::of(&task.inspect()));
    a.exec(&format!("busybox wget -qO- http://{}/", to_b.address)).assert_says("of-b");
    b.exec(&format!("busybox wget -qO- http://{}/", to_a.address)).assert_says("of-a");
    for at in [format!("{}:80", to_a.address), format!("127.0.0.1:{tcp}")] {
        assert_eq!(fetched(&at), "of-a", "{at}");
    }
    let asker = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    asker.set_read_timeout(Some(patience())).expect("set");
    asker.send_to(b"there and", ("127.0.0.1", udp)).expect("sent");
    let mut answer = [0; 99];
    let length = asker.recv(&mut answer).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer[..length]), "there and back");
    // A task reaches itself by its own port of the host.
    let gateway = a.exec("busybox ip route show default").assert_code(0).out();
    let gateway = gateway.split(' ').nth(2).expect("a gateway").to_owned();
    a.exec(&format!("busybox wget -qO- http://{gateway}:{tcp}/")).assert_says("of-a");
    a.bowline("rm", ["-f"]).assert_code(0);
    to_a.assert_gone(&host);
    assert!(Path::new(BRIDGE).exists(), "b is still in it");
    b.stop(["--signal=KILL"]);
    to_b.assert_gone(&host);
}

#[test]
fn a_task_finds_itself_and_the_host_by_name() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let build = host.task("exec sleep 1000").flag("--network=bridge");
    let task = build.flag("--add-host=gate:host-gateway").start();
    let at = Traces::of(&task.inspect());
    let gateway = task.exec("busybox ip route show default").assert_code(0).out();
    let gateway = gateway.split(' ').nth(2).expect("a gateway");
    task.exec("tail -n 2 /etc/hosts").assert_says(&format!("{gateway}\tgate\n{}\t{}", at.address, task.id()));
    task.bowline("rm", ["-f"]).assert_code(0);
    at.assert_gone(&host);
}

#[test]
fn one_name_in_two_state_folders_has_two_addresses() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let task = host.task("exec sleep 1000").flag("--network=bridge").start();
    let other = format!("--state={}", host.work().join("other").display());
    let begin = ["start", &other, "--network=bridge", "--name", task.id(), "--", "sleep", "1000"];
    host.bowline(begin).assert_code(0);
    let of_other = host.bowline(["inspect", &other, task.id()]).assert_code(0).json();
    let [one, two] = [task.inspect(), of_other].map(|inspected| Traces::of(&inspected));
    assert_ne!(one.address, two.address);
    task.bowline("rm", ["-f"]).assert_code(0);
    one.assert_gone(&host);
    assert!(!two.left(&host).is_empty(), "the other one keeps its address");
    host.bowline(["rm", &other, "-f", task.id()]).assert_code(0);
    two.assert_gone(&host);
}

#[test]
fn traffic_out_has_the_hosts_address_and_the_host_is_restored() {
    let host = Host::alone();
    if !has_plugins(&host) {
        return;
    }
    assert!(!Path::new(BRIDGE).exists(), "a task of somebody else's is in the bridge");
    let before = (chains_of_plugins(&host), fs::read_to_string(IP_FORWARD).expect("a setting"));
    let outside = Outside::new(&host);
    let port = free_port();
    let a = server(&host, "of-a", &[format!("-p={port}:80")]);
    let at = Traces::of(&a.inspect());
    outside.run(&format!("busybox wget -qO- http://198.51.100.1:{port}/")).assert_says("of-a");
    let seen = outside.run_while(
        "perl -e 'use IO::Socket; $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 1, ReuseAddr => 1) or die; $c = \
         $s->accept; print $c->peerhost'",
        || eventually("it is accepted", || a.exec("busybox nc -w 5 198.51.100.2 8000 </dev/null").code.filter(|code| *code == 0).map(drop)),
    );
    assert_eq!(seen, "198.51.100.1", "by the host's address");
    a.bowline("rm", ["-f"]).assert_code(0);
    at.assert_gone(&host);
    drop(outside);
    eventually("the bridge is gone", || (!Path::new(BRIDGE).exists()).then_some(()));
    eventually("the rules are gone", || {
        let chains = chains_of_plugins(&host);
        assert!(before.0.iter().all(|chain| chains.contains(chain)), "of {:?} are left {chains:?}", before.0);
        let gone = !before.0.is_empty() || chains.is_empty();
        (gone && !rules(&host).contains("bowline")).then_some(())
    });
    assert_eq!(fs::read_to_string(IP_FORWARD).expect("a setting"), before.1);
    assert!(!Path::new(ADDRESSES).exists());
}

/// Another machine, beside a host that forwards nothing by itself, as Docker has it.
struct Outside<'h> {
    host: &'h Host,
    /// What the host did before with what it forwards.
    policy: &'static str,
}

impl<'h> Outside<'h> {
    fn new(host: &'h Host) -> Outside<'h> {
        let policy = if rules(host).contains(":FORWARD DROP") { "DROP" } else { "ACCEPT" };
        let outside = Outside { host, policy };
        let name = host.prefix();
        ip(host, &format!("netns add {name}"));
        ip(host, &format!("link add {name} type veth peer name eth0 netns {name}"));
        ip(host, &format!("addr add 198.51.100.1/24 dev {name}"));
        ip(host, &format!("link set {name} up"));
        ip(host, &format!("-n {name} addr add 198.51.100.2/24 dev eth0"));
        ip(host, &format!("-n {name} link set eth0 up"));
        outside.set_policy("DROP");
        outside
    }

    fn set_policy(&self, policy: &str) {
        let mut iptables = Command::new("iptables");
        iptables.args(["-P", "FORWARD", policy]);
        self.host.execute(iptables).assert_code(0);
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host.prefix(), "sh", "-c", script]);
        command
    }

    fn run(&self, script: &str) -> bowline_tests::harness::Ran {
        self.host.execute(self.command(script))
    }

    /// What `script` says, which ends because of `then`.
    fn run_while(&self, script: &str, then: impl FnOnce()) -> String {
        let child = self.command(script).stdout(std::process::Stdio::piped()).spawn().expect("it starts");
        then();
        let output = child.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.set_policy(self.policy);
        for args in [["netns", "del"], ["link", "del"]] {
            let _ = Command::new("ip").args(args).arg(self.host.prefix()).output();
        }
    }
}

#[test]
fn nothing_is_left_after_a_shim_was_killed() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let port = free_port();
    let start = || host.task("echo up; exec sleep 1000").flag("--network=bridge").flag(format!("-p={port}:80")).start();
    let task = start();
    let at = Traces::of(&task.inspect());
    task.crash_shim();
    assert!(!at.left(&host).is_empty(), "that is what it left");
    task.bowline("rm", ["-f"]).assert_code(0);
    at.assert_gone(&host);
    // Another shim takes a task over, with its network.
    let task = start();
    let at = Traces::of(&task.inspect());
    task.crash_shim();
    let waiter = host.spawn(["wait", task.id()]);
    eventually("there is a new shim", || task.exec("true").code.filter(|code| *code == 0).map(drop));
    let shown = task.exec("busybox ip -o -4 addr show eth0").assert_code(0).out();
    assert!(shown.contains(&at.address), "{shown}");
    host.task("true").flag("--network=bridge").flag(format!("-p={port}:80")).assert_refused(125, &["is taken"]);
    task.stop(["--signal=KILL"]);
    drop(waiter.finish());
    at.assert_gone(&host);
}

/// Whoever can open a file can lock it, and anybody can open a namespace of his own.
#[test]
fn nobody_but_root_can_hold_a_network_up() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let mut hold = host.command("setpriv");
    hold.args(["--reuid=65534", "--clear-groups", "flock", "--no-fork", "/proc/self/ns/net"]);
    hold.args(["sh", "-c", "echo locked; exec sleep 1000"]);
    let stranger = host.spawn_command(hold);
    stranger.wait_for_out("locked");
    host.spawn(["run", "--rm", "--name", &host.new_id(), "--network=bridge", "true"]).finish().assert_code(0);
    drop(stranger);
}

#[test]
fn an_upgraded_shim_keeps_the_port_and_removes_the_network() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let port = free_port();
    let task = server(&host, "of-a", &[format!("-p={port}:80")]);
    let at = Traces::of(&task.inspect());
    task.bowline("upgrade", []).assert_code(0);
    assert_eq!(fetched(&format!("127.0.0.1:{port}")), "of-a");
    let taken = TcpListener::bind(("0.0.0.0", port)).map(drop).map_err(|error| error.kind());
    assert_eq!(taken, Err(std::io::ErrorKind::AddrInUse));
    task.stop(["--signal=KILL"]);
    at.assert_gone(&host);
}

#[test]
fn a_sandbox_has_the_same_network() {
    let host = Host::new();
    if !has_plugins(&host) {
        return;
    }
    let port = free_port();
    let sandbox = host.sandbox().flag("--network=bridge").flag(format!("-p={port}:80")).create();
    let at = Traces::of(&sandbox.inspect());
    let script =
        "mkdir /tmp/www; echo of-s >/tmp/www/index.html; busybox httpd -p 80 -h /tmp/www; echo up; exec sleep 1000";
    let member = sandbox.task(script).start();
    member.wait_for_line("up");
    assert_eq!(fetched(&format!("127.0.0.1:{port}")), "of-s");
    host.task("true").flag("--network=bridge").flag(format!("-p={port}")).assert_refused(125, &["is taken"]);
    sandbox.rm(["-f"]);
    at.assert_gone(&host);
}

#[test]
fn a_port_that_is_taken_is_refused_and_nothing_is_left() {
    let host = Host::new();
    let tcp = TcpListener::bind("0.0.0.0:0").expect("a port");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let of = |address: std::io::Result<std::net::SocketAddr>| address.expect("bound").port();
    let (tcp_port, udp_port) = (of(tcp.local_addr()), of(udp.local_addr()));
    for (publish, why, hint) in [
        (format!("{tcp_port}:80"), format!("port {tcp_port}/tcp of the host is taken"), "ss -ltnp"),
        (format!("{udp_port}:53/udp"), format!("port {udp_port}/udp of the host is taken"), "ss -lunp"),
        ("192.0.2.77:80:80".to_owned(), "port 80/tcp: 192.0.2.77 is not an address of the host".to_owned(), ""),
    ] {
        let flag = format!("--publish={publish}");
        let task = || host.task("true").flag("--network=bridge").flag(&flag);
        task().assert_refused(125, &[&why]);
        let said = task().try_start().err();
        assert!(said.contains(hint), "{said}");
        host.sandbox().flag("--network=bridge").flag(&flag).assert_refused(125, &[&why]);
    }
    drop((tcp, udp));
}

#[test]
fn wrong_forms_and_ports_without_a_bridge_are_refused() {
    let host = Host::new();
    for wrong in ["", "web", "0:80", "80:", ":80", "80:80/icmp", "70000", "x:80:80", "80-90:80-91"] {
        let refused = host.task("true").flag("--network=bridge").flag(format!("--publish={wrong}"));
        refused.assert_refused(2, &["--publish"]);
    }
    for mode in ["host", "none"] {
        let task = host.task("true").flag(format!("--network={mode}")).flag("-p=8080:80");
        task.assert_refused(2, &["network.ports", "--network bridge"]);
    }
    host.task("true").flag("-p=8080:80").assert_refused(2, &["network.ports", "--network bridge"]);
    let twice = host.task("true").flag("--network=bridge").flag("-p=8080:80").flag("-p=8080:81");
    twice.assert_refused(2, &["network.ports[1]", "8080 is taken by an earlier one"]);
    for address in ["[::1]", "[::]", "[fe80::1]"] {
        let task = host.task("true").flag("--network=bridge").flag(format!("-p={address}:8099:80"));
        task.assert_refused(2, &["network.ports[0].address", "the bridge has no IPv6: publish on an IPv4 address"]);
    }
    let untrusted = host.task("true").flag("--network=bridge").flag("--untrusted");
    untrusted.assert_refused(2, &["network", "untrusted"]);
}

#[test]
fn missing_or_failing_plugins_are_named_and_nothing_is_left() {
    let host = Host::new();
    let missing = "network.plugin_folders = ['/nowhere']";
    let parts = ["cannot find the network plugin", "/nowhere"];
    host.task("true").toml(missing).flag("--network=bridge").assert_refused(125, &parts);
    let said = host.task("true").toml(missing).flag("--network=bridge").try_start().err();
    assert!(said.contains("hint: install containernetworking-plugins"), "{said}");
    let folder = host.work().join("bin");
    fs::create_dir(&folder).expect("made");
    for plugin in ["bridge", "firewall"] {
        let text = "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\necho '{\"code\": 11, \"msg\": \"no room\"}'; exit 1\n";
        bowline_tests::harness::write_program(&folder.join(plugin), text);
    }
    let failing = format!("network.plugin_folders = ['{}']", folder.display());
    host.task("true")
        .toml(&failing)
        .flag("--network=bridge")
        .assert_refused(125, &["plugin bridge failed at ADD", "no room"]);
    let mut without_iptables = host.command("unshare");
    without_iptables.args(["--mount", "sh", "-c", "mount -t tmpfs none /usr/sbin && exec \"$@\"", "sh"]);
    without_iptables.arg(binary("bowline")).args(["run", "--rm", "--network=bridge", "--name", &host.new_id()]);
    without_iptables.arg("--file").arg(host.file("failing.toml", &failing)).arg("/bin/true");
    let said = host.execute(without_iptables).assert_code(125).err();
    assert!(said.contains("hint: install iptables"), "{said}");
}
