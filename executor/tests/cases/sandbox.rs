//! A sandbox's network as a shim makes it, and what is seen of it from outside.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_executor::Error;
use bowline_executor::internal::network::{self, LONGEST};
use bowline_executor::internal::sandbox_namespaces::{Shared, Wanted, make};
use bowline_model::record::Connected;
use bowline_spec::{Format, parse_sandbox};

use crate::block_on;

/// A sandbox's network, and where its folder is.
pub(crate) struct Sandbox {
    pub(crate) dir: tempfile::TempDir,
    shared: Shared,
    pub(crate) who: network::Sandbox,
    pub(crate) description: bowline_spec::Network,
}

impl Sandbox {
    pub(crate) fn new(id: &str, toml: &str) -> Sandbox {
        let dir = tempfile::tempdir().expect("a folder");
        let description = parse_sandbox(toml, Format::Toml).unwrap_or_else(|error| panic!("{toml}: {error}")).network;
        let (shared, who) = prepared(id, &description);
        Sandbox { dir, shared, who, description }
    }

    pub(crate) fn try_add(&self) -> Result<Vec<Connected>, Error> {
        let attachments = self.description.attachments(&self.who.id);
        block_on(async {
            let added = network::worker::add(self.dir.path(), &self.who, &attachments).await?;
            self.shared.settle().await.map(|()| added)
        })
    }

    pub(crate) fn add(&self) -> Vec<Connected> {
        self.try_add().unwrap_or_else(|error| panic!("{}: {error}", self.who.id))
    }

    pub(crate) fn del(&self) {
        let deleted = block_on(network::worker::del(self.dir.path(), LONGEST));
        deleted.unwrap_or_else(|error| panic!("{}: {error}", self.who.id));
        assert_nothing_kept(self.dir.path());
    }

    pub(crate) fn netns(&self) -> PathBuf {
        self.shared.network().expect("it has one")
    }
}

impl Drop for Sandbox {
    /// What a case that fails has not come to.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = network::del(self.dir.path(), LONGEST);
        }
    }
}

/// Plugins may need an id that nobody else on this host has.
pub(crate) fn unique(id: &str) -> String {
    format!("{id}-{}", std::process::id())
}

pub(crate) fn prepared(id: &str, description: &bowline_spec::Network) -> (Shared, network::Sandbox) {
    let wanted = Wanted {
        network: description.mode(),
        ipc: false,
        uts: false,
        hostname: None,
        sysctls: description.sysctls.clone(),
    };
    let shared = block_on(make(&wanted)).expect("it is made");
    let who = network::Sandbox {
        id: unique(id),
        netns: shared.network().expect("it is new"),
        folders: description.plugin_folders(),
        args: BTreeMap::new(),
        capabilities: description.capabilities(),
        timeout: LONGEST,
    };
    (shared, who)
}

/// A bridge and a subnet that no other run has.
pub(crate) struct Net {
    pub(crate) bridge: String,
    pub(crate) ipv4: String,
    pub(crate) ipv6: String,
}

impl Net {
    pub(crate) fn new() -> Net {
        Net::beside(200, "bwl")
    }

    /// A second network, whose bridge and subnets differ from those of [`Net::new`].
    pub(crate) fn another() -> Net {
        Net::beside(150, "bwm")
    }

    fn beside(first: u32, name: &str) -> Net {
        let number = std::process::id();
        let (high, low) = (number / 256 % 50 + first, number % 256);
        Net {
            bridge: format!("{name}{number}"),
            ipv4: format!("10.{high}.{low}"),
            ipv6: format!("fd00:b0:{high:x}:{low:x}"),
        }
    }

    pub(crate) fn toml(&self) -> String {
        format!("{}subnets = ['{}.0/24', '{}::/64']\n", self.without_addresses(), self.ipv4, self.ipv6)
    }

    pub(crate) fn without_addresses(&self) -> String {
        format!("[[network.interfaces]]\nassociation = 'bridge'\nbridge = '{}'\n", self.bridge)
    }

    pub(crate) fn is_there(&self) -> bool {
        link(&self.bridge).exists()
    }

    /// No interface, rule or reservation of it.
    pub(crate) fn assert_gone(&self) {
        assert!(!self.is_there(), "the bridge is left");
        self.assert_no_rules();
        let kept = Path::new("/var/lib/cni/networks").join(format!("bowline-{}", self.bridge));
        let addresses: Vec<String> = fs::read_dir(&kept)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        let addresses: Vec<&String> = addresses.iter().filter(|name| name.parse::<IpAddr>().is_ok()).collect();
        assert!(addresses.is_empty(), "reserved: {addresses:?}");
        // What it remembers of a network that nobody else has.
        let _ = fs::remove_dir_all(kept);
    }

    pub(crate) fn assert_no_rules(&self) {
        let rules = rules();
        let ours = |line: &&str| {
            [&self.bridge, &format!("{}.", self.ipv4), &self.ipv6].iter().any(|of| line.contains(of.as_str()))
        };
        let left: Vec<&str> = rules.lines().filter(ours).collect();
        assert!(left.is_empty(), "rules: {left:#?}");
    }
}

pub(crate) fn rules() -> String {
    let saved =
        |program: &str| Command::new(program).output().unwrap_or_else(|error| panic!("{program}: {error}")).stdout;
    String::from_utf8([saved("iptables-save"), saved("ip6tables-save")].concat()).expect("text")
}

pub(crate) fn link(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

pub(crate) fn ip(args: &[&str]) {
    assert!(Command::new("ip").args(args).status().expect("it runs").success(), "ip {args:?}");
}

pub(crate) fn assert_nothing_kept(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    assert!(!mounts.contains(&*folder.to_string_lossy()), "{mounts}");
}

/// The addresses that an interface was given, IPv4 first.
pub(crate) fn addresses(of: &Connected) -> Vec<IpAddr> {
    let all = of.result["ips"].as_array().into_iter().flatten();
    let mut all: Vec<IpAddr> = all.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect();
    all.sort();
    all
}

/// The host's ends of the interfaces that were made.
pub(crate) fn host_links(of: &Connected) -> Vec<PathBuf> {
    let all = of.result["interfaces"].as_array().into_iter().flatten();
    all.filter(|one| one["sandbox"].as_str().unwrap_or_default().is_empty())
        .filter_map(|one| one["name"].as_str().map(link))
        .collect()
}
