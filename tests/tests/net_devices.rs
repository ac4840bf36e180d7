//! Network devices of the host that a bundle's configuration moves into the container's network.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd};
use bowline_tests::harness::skip;
use serde_json::{Value, json};

use crate::containerd::mounts::{assert_says, refusal};
use crate::fields::refused::reference_fails;

/// netdevice(7).
const IFF_UP: u32 = 1;

/// A device of the host and its peer, until the end.
struct Veth<'h> {
    host: &'h Host,
    name: String,
}

impl Veth<'_> {
    /// `None`, said aloud, where the kernel makes no such devices.
    fn new<'h>(host: &'h Host, letter: char) -> Option<Veth<'h>> {
        // A name has at most 15 letters.
        let id = host.new_id();
        let name = format!("{letter}{}", &id[id.len().saturating_sub(11)..]).replace('-', "_");
        let made = ip(host, &["link", "add", &name, "type", "veth", "peer", "name", &format!("{name}p")]);
        if made.0 {
            return Some(Veth { host, name });
        }
        skip(&format!("this kernel has no veth devices: {}", made.1));
        None
    }
}

impl Drop for Veth<'_> {
    fn drop(&mut self) {
        // It went with the network that it was in, unless nobody has moved it.
        ip(self.host, &["link", "del", &self.name]);
    }
}

/// Runs ip(8): whether it succeeded, and what it says.
fn ip(host: &Host, args: &[&str]) -> (bool, String) {
    let mut command = host.command("ip");
    command.args(args);
    let output = command.output().expect("iproute2");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn with_devices(containerd: &Containerd<'_>, devices: &Value) -> Bundle {
    containerd.bundle().edit(|config| config["linux"]["netDevices"] = devices.clone())
}

#[test]
fn a_device_of_the_host_moves_with_its_addresses() {
    if reference_fails("runc moves them since 1.4") {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    for users in [false, true] {
        let Some(veth) = Veth::new(&host, 'd') else { return };
        for words in [
            &["addr", "add", "192.0.2.77/24", "dev", &veth.name][..],
            &["addr", "add", "198.51.100.7/32", "dev", &veth.name, "scope", "link"],
            &["link", "set", "mtu", "1789", "address", "00:11:22:33:44:55", "dev", &veth.name],
        ] {
            let (done, said) = ip(&host, words);
            assert!(done, "{words:?}: {said}");
        }
        let script = "ip -o -4 addr show dev eth7 | awk '{print $4}'; cd /sys/class/net/eth7; cat mtu address; \
                      busybox ip -o link show dev eth7 | grep -o '[<,]UP[,>]' | tr -d '<,>'; \
                      cat /proc/sys/net/ipv4/conf/eth7/forwarding";
        let bundle = with_devices(&containerd, &json!({ veth.name.clone(): { "name": "eth7" } })).script(script);
        let bundle = bundle.edit(|config| config["linux"]["sysctl"] = json!({ "net.ipv4.conf.eth7.forwarding": "1" }));
        let bundle = if users { bundle.with_users() } else { bundle };
        assert_says(&containerd, &bundle, "192.0.2.77/24\n1789\n00:11:22:33:44:55\nUP\n1");
        assert!(!ip(&host, &["link", "show", &veth.name]).0, "it is there no more");
    }
}

#[test]
fn a_device_keeps_its_name_or_gets_one_of_a_template() {
    if reference_fails("runc moves them since 1.4") {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let (Some(one), Some(other)) = (Veth::new(&host, 'a'), Veth::new(&host, 'b')) else { return };
    let devices = json!({ one.name.clone(): {}, other.name.clone(): { "name": "data%d" } });
    let bundle = with_devices(&containerd, &devices).script("ls /sys/class/net");
    assert_says(&containerd, &bundle, &format!("{}\ndata0\nlo", one.name));
}

#[test]
fn what_cannot_be_moved_is_named() {
    if reference_fails("runc moves them since 1.4") {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let Some(veth) = Veth::new(&host, 'e') else { return };
    assert!(ip(&host, &["link", "set", &veth.name, "up"]).0);
    let long = "sixteen-letters-";
    for (device, name, why) in [
        ("bl-nowhere", "", ".bl-nowhere: cannot move it: No such device"),
        (&*veth.name, "lo", " as lo: File exists"),
        ("lo", "eth7", ".lo: cannot move it as eth7: it is a loopback interface"),
        (&*veth.name, "a/b", ": \"a/b\" is not a name for a network device"),
        (&*veth.name, long, &format!(": \"{long}\" is not a name for a network device: 1 to 15 bytes")),
    ] {
        let message = refusal(&containerd, &with_devices(&containerd, &json!({ device: { "name": name } })));
        assert!(message.contains("linux.netDevices") && message.contains(why), "{message}");
    }
    // None of several is moved if one of them cannot be.
    let Some(other) = Veth::new(&host, 'f') else { return };
    for devices in [
        json!({ veth.name.clone(): { "name": "eth7" }, "zz-nowhere": {} }),
        json!({ veth.name.clone(): { "name": "eth7" }, other.name.clone(): { "name": "eth7" } }),
    ] {
        let message = refusal(&containerd, &with_devices(&containerd, &devices));
        assert!(message.contains("linux.netDevices"), "{message}");
        assert!(ip(&host, &["link", "show", &veth.name]).0 && ip(&host, &["link", "show", &other.name]).0, "{devices}");
    }
    let hosts = with_devices(&containerd, &json!({ veth.name.clone(): {} })).without_namespace("network");
    let message = refusal(&containerd, &hosts);
    assert!(message.contains("linux.netDevices: without a network namespace"), "{message}");
    // Each is where and as it was.
    for name in ["lo", &veth.name] {
        let flags = fs::read_to_string(format!("/sys/class/net/{name}/flags")).expect("it is there");
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).expect("a number");
        assert_eq!(flags & IFF_UP, IFF_UP, "{name}");
    }
}
