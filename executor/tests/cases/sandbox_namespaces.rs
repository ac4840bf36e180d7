//! Namespaces that members share.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_executor::Kind;
use bowline_executor::internal::sandbox_namespaces::{Shared, Wanted, make};
use bowline_spec::NetworkMode;

use super::inside::{inside, setting};
use crate::{Case, block_on, namespace};

pub(crate) const ALL: [Case; 7] = [
    ("shared_namespaces_are_new_and_the_shims_stay", new_ones),
    ("shared_settings_are_those_of_the_namespaces", settings),
    ("shared_only_what_is_wanted", only_what_is_wanted),
    ("shared_a_network_by_its_path", by_path),
    ("shared_what_is_no_network_is_refused", no_network),
    ("shared_settings_of_interfaces_are_set_once_they_are_there", settings_of_interfaces),
    ("shared_namespaces_go_with_who_holds_them", let_go),
];

pub(crate) fn wanted(network: NetworkMode) -> Wanted {
    Wanted { network, ipc: false, uts: false, hostname: None, sysctls: BTreeMap::new() }
}

fn made(wanted: &Wanted) -> Shared {
    block_on(make(wanted)).unwrap_or_else(|error| panic!("{error}"))
}

fn sysctls<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
    all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn own(kind: &str) -> PathBuf {
    format!("/proc/self/ns/{kind}").into()
}

fn new_ones() {
    let before = ["net", "ipc", "uts"].map(|kind| namespace(own(kind)));
    let hostname = setting("kernel.hostname");
    let shared = made(&Wanted { ipc: true, uts: true, hostname: Some("web".to_owned()), ..wanted(NetworkMode::None) });
    let paths = [shared.network(), shared.ipc(), shared.uts()].map(|path| path.expect("it is shared"));
    for ((path, before), kind) in paths.iter().zip(before).zip(["net", "ipc", "uts"]) {
        assert_ne!(namespace(path), before, "{kind} is another's");
        assert_eq!(namespace(own(kind)), before, "the shim stays in {kind}");
        let link = fs::read_link(path).expect("a link").display().to_string();
        assert!(link.starts_with(kind), "{link}");
    }
    assert_eq!(inside(&paths[2], || setting("kernel.hostname")), "web");
    assert_eq!(setting("kernel.hostname"), hostname);
    // Loopback is up, so that one can be listened at and reached; nothing else is there.
    let listening = inside(&paths[0], || TcpListener::bind("127.0.0.1:0").expect("loopback"));
    let address = listening.local_addr().expect("bound");
    inside(&paths[0], || std::net::TcpStream::connect(address).expect("reached"));
    let links = inside(&paths[0], || fs::read_to_string("/proc/thread-self/net/dev").expect("readable"));
    assert_eq!(links.lines().filter(|line| line.contains(':') && !line.contains("lo:")).count(), 0, "{links}");
    // A program that is started holds none of them.
    let fds = Command::new("/bin/sh").args(["-c", "ls -l /proc/self/fd"]).output().expect("it runs");
    let fds = String::from_utf8_lossy(&fds.stdout).into_owned();
    assert!(!fds.contains("net:["), "{fds}");
}

fn settings() {
    let keys = ["net.ipv4.ip_unprivileged_port_start", "kernel.shmmax", "kernel.sem", "fs.mqueue.msg_max"];
    let before = keys.map(setting);
    let wanted = Wanted {
        ipc: true,
        uts: true,
        sysctls: sysctls([
            (keys[0], "77"),
            (keys[1], "123456"),
            (keys[2], "250\t32000\t32\t7"),
            (keys[3], "9"),
            ("kernel.domainname", "example.org"),
            ("net.ipv6.conf.all.disable_ipv6", "1"),
        ]),
        ..wanted(NetworkMode::None)
    };
    let shared = made(&wanted);
    let network = shared.network().expect("it is shared");
    assert_eq!(inside(&network, || setting(keys[0])), "77");
    assert_eq!(inside(&network, || setting("net.ipv6.conf.lo.disable_ipv6")), "1");
    let ipc = inside(shared.ipc().expect("it is shared"), || [keys[1], keys[2], keys[3]].map(setting));
    assert_eq!(ipc, ["123456", "250\t32000\t32\t7", "9"]);
    assert_eq!(inside(shared.uts().expect("it is shared"), || setting("kernel.domainname")), "example.org");
    assert_eq!(keys.map(setting), before, "the host's are as they were");
    for (key, value) in [("net.ipv4.ip_unprivileged_port_start", "many"), ("net.ipv4.no_such", "1")] {
        let bad = Wanted { sysctls: sysctls([(key, value)]), ..wanted.clone() };
        let error = block_on(make(&bad)).expect_err("the kernel has it not");
        assert_eq!(error.kind(), Kind::BadSpec);
        assert!(error.message().starts_with(&format!("sysctls: cannot set {key} to {value}: ")), "{error}");
    }
    let long = Wanted { hostname: Some("w".repeat(65)), ..wanted };
    assert_eq!(block_on(make(&long)).map(drop).map_err(|error| error.kind()), Err(Kind::BadSpec));
}

fn only_what_is_wanted() {
    let is = |shared: &Shared| [shared.network(), shared.ipc(), shared.uts()].map(|path| path.is_some());
    assert_eq!(is(&made(&wanted(NetworkMode::Host))), [false; 3]);
    assert_eq!(is(&made(&wanted(NetworkMode::Cni))), [true, false, false]);
    let ipc = made(&Wanted { ipc: true, ..wanted(NetworkMode::Host) });
    assert_eq!(is(&ipc), [false, true, false]);
    let link = fs::read_link(ipc.ipc().expect("shared")).expect("a link");
    assert!(link.to_string_lossy().starts_with("ipc:"), "{link:?}");
    assert_eq!(is(&made(&Wanted { uts: true, ..wanted(NetworkMode::Host) })), [false, false, true]);
}

fn by_path() {
    let name = format!("bowline-{}", std::process::id());
    let ip = |args: &[&str]| assert!(Command::new("ip").args(args).status().expect("it runs").success());
    ip(&["netns", "add", &name]);
    let path = Path::new("/run/netns").join(&name);
    let there = namespace(&path);
    let mode = || NetworkMode::Path(path.clone());
    let key = "net.ipv4.ip_unprivileged_port_start";
    let shared = made(&Wanted { uts: true, sysctls: sysctls([(key, "78")]), ..wanted(mode()) });
    let network = shared.network().expect("it is shared");
    assert_eq!(namespace(&network), there);
    assert_eq!(inside(&network, || setting(key)), "78");
    // What is mounted there is not kept busy, and the namespace outlives it.
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).expect("nobody holds it");
    fs::remove_file(&path).expect("it is a plain file again");
    assert_eq!(namespace(&network), there);
}

fn no_network() {
    let dir = tempfile::tempdir().expect("a folder");
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("it runs").success());
    let plain = dir.path().join("file");
    fs::write(&plain, "").expect("written");
    for path in [fifo, plain, dir.path().join("nothing"), own("ipc"), dir.path().to_owned(), "/dev/ptmx".into()] {
        let error = block_on(make(&wanted(NetworkMode::Path(path.clone())))).expect_err("it is none");
        assert_eq!(error.kind(), Kind::BadSpec, "{error}");
        assert!(error.message().contains(&path.display().to_string()), "{error}");
    }
    // To join the host's network is one thing, to change it another.
    let host = NetworkMode::Path(own("net"));
    let shared = made(&wanted(host.clone()));
    assert_eq!(namespace(shared.network().expect("it is shared")), namespace(own("net")));
    let key = "net.ipv4.ip_unprivileged_port_start";
    let before = setting(key);
    let error =
        block_on(make(&Wanted { sysctls: sysctls([(key, "79")]), ..wanted(host) })).expect_err("it is the host's");
    assert_eq!((error.kind(), setting(key)), (Kind::BadSpec, before));
}

fn settings_of_interfaces() {
    let key = "net.ipv4.conf.eth0.rp_filter";
    let shared = made(&Wanted { sysctls: sysctls([(key, "2")]), ..wanted(NetworkMode::Cni) });
    let network = shared.network().expect("it is shared");
    let error = block_on(shared.settle()).expect_err("it is not there");
    assert!(error.message().starts_with(&format!("sysctls: cannot set {key} to 2: ")), "{error}");
    let added = inside(&network, || Command::new("ip").args(["link", "add", "eth0", "type", "veth"]).status());
    assert!(added.expect("it runs").success());
    block_on(shared.settle()).expect("it is there");
    assert_eq!(inside(&network, || setting(key)), "2");
    block_on(made(&wanted(NetworkMode::None)).settle()).expect("nothing is to be set");
}

fn let_go() {
    let shared = made(&wanted(NetworkMode::None));
    let network = shared.network().expect("it is shared");
    // An interface whose peer tells whether its namespace is there.
    let peer = format!("bwl{}", std::process::id());
    let add = inside(&network, || {
        let here = std::process::id().to_string();
        Command::new("ip").args(["link", "add", "eth0", "type", "veth", "peer", "name", &peer, "netns", &here]).status()
    });
    assert!(add.expect("it runs").success());
    let is_there = || Path::new("/sys/class/net").join(&peer).exists();
    assert!(is_there());
    let member = fs::File::open(&network).expect("a member joins by the path");
    drop(shared);
    assert!(is_there() && !network.exists(), "a member is still in there");
    drop(member);
    let begun = std::time::Instant::now();
    while is_there() {
        assert!(begun.elapsed() < crate::PATIENCE, "the namespace is still there");
        std::thread::yield_now();
    }
}
