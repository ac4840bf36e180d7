//! How a task resolves names: what `/etc/hosts` and `/etc/resolv.conf` say in it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::names::{is_loopback, names_loopback_alone, resolv_conf};
use crate::text::text_value;

/// What the task's own `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf` say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Names {
    /// Whether it has these files, read-only, whatever its root has; by default true with `rootfs` or a network of its
    /// own. A mount in `mounts` takes the place of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<bool>,
    /// More names of hosts, such as `"db:10.0.0.7"`; a name may have several addresses, and `host-gateway` is the
    /// host's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostName>,
    /// The addresses of name servers; by default the host's, without those that a network of its own does not reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<IpAddr>,
    /// The domains in which a short name is looked up, or `"."` for none; by default the host's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver, such as `"ndots:2"`; by default the host's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Names {
    /// The resolv.conf(5) of a task, from the text of the host's: what is named here takes the place of what the host says.
    /// In a network of its own the host's loopback servers are left out, unless there are no others.
    pub fn resolv_conf(&self, host: &str, own_network: bool) -> String {
        let keeps_loopback = !own_network || names_loopback_alone(host);
        let is_kept = |line: &&str| {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    self.servers.is_empty() && (keeps_loopback || words.next().is_none_or(|word| !is_loopback(word)))
                }
                Some("search" | "domain") => self.search.is_empty(),
                Some("options") => self.options.is_empty(),
                Some(word) => !word.starts_with(['#', ';']),
                None => false,
            }
        };
        let kept: String = host.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        let search: Vec<String> = self.search.iter().filter(|domain| *domain != ".").cloned().collect();
        kept + &resolv_conf(&self.servers, &search, &self.options)
    }

    /// Whether a field is set that is about `/etc/resolv.conf`.
    pub fn has_resolver(&self) -> bool {
        !self.servers.is_empty() || !self.search.is_empty() || !self.options.is_empty()
    }
}

/// A name of a host, and where it leads to: `db:10.0.0.7`, `db=10.0.0.7`, `db:[fd00::7]`, `api:host-gateway`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName {
    /// The name, which has nothing that ends a word in hosts(5).
    pub name: String,
    /// The address; `None` for that of the host.
    pub address: Option<IpAddr>,
}

/// What stands for the host's address, as with Docker.
const GATEWAY: &str = "host-gateway";

/// Whether `name` can be one of a host or a domain: in a file, it is one word.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 253 && name.bytes().all(is_plain)
}

impl FromStr for HostName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<HostName, Invalid> {
        let no_pair = || Invalid::value(format!("{text:?} is not a name and an address, such as db:10.0.0.7"));
        let (name, address) = text.split_once(['=', ':']).ok_or_else(no_pair)?;
        if !is_name(name) {
            return Err(Invalid::value(format!("{name:?} is not a host name")));
        }
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address = match bare {
            GATEWAY => None,
            _ => Some(bare.parse().map_err(|_| Invalid::value(format!("{address:?} is no IP address")))?),
        };
        Ok(HostName { name: name.to_owned(), address })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => write!(f, "{}:{GATEWAY}", self.name),
            Some(IpAddr::V4(address)) => write!(f, "{}:{address}", self.name),
            Some(IpAddr::V6(address)) => write!(f, "{}:[{address}]", self.name),
        }
    }
}

text_value!(
    HostName,
    "HostName",
    string,
    "a name and the address that it leads to",
    "db:10.0.0.7",
    "db:[fd00::7]",
    "api:host-gateway"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_says_takes_the_place_of_what_the_host_says() {
        let host = "# by somebody\nnameserver 127.0.0.1\nnameserver 192.0.2.1\n\nsearch a.example\noptions edns0\n";
        let of = |names: &Names, own| names.resolv_conf(host, own);
        let none = Names::default();
        let rest = "nameserver 192.0.2.1\nsearch a.example\noptions edns0\n";
        assert_eq!(of(&none, true), rest);
        assert_eq!(of(&none, false), format!("nameserver 127.0.0.1\n{rest}"));
        assert_eq!(none.resolv_conf("nameserver 127.0.0.53", true), "nameserver 127.0.0.53\n", "as it is");
        let servers = Names { servers: vec!["::1".parse().expect("an address")], ..none.clone() };
        assert_eq!(of(&servers, true), "search a.example\noptions edns0\nnameserver ::1\n");
        let bare = Names { search: vec![".".to_owned()], options: vec!["ndots:2".to_owned()], ..none };
        assert_eq!(of(&bare, true), "nameserver 192.0.2.1\noptions ndots:2\n");
    }

    #[test]
    fn a_name_and_its_address_are_read_as_docker_does() {
        for (text, reads) in [
            ("db:10.0.0.7", "db:10.0.0.7"),
            ("db=10.0.0.7", "db:10.0.0.7"),
            ("db:fd00::7", "db:[fd00::7]"),
            ("db:[fd00::7]", "db:[fd00::7]"),
            ("host.docker.internal:host-gateway", "host.docker.internal:host-gateway"),
        ] {
            let read: HostName = text.parse().expect(text);
            assert_eq!(read.to_string(), reads);
            assert_eq!(reads.parse(), Ok(read));
        }
        for wrong in ["", "db", ":1.2.3.4", "a b:1.2.3.4", "a\nb:1.2.3.4", "a#:1.2.3.4", "db:", "db:1.2.3", "db:x\n"] {
            assert!(wrong.parse::<HostName>().is_err(), "{wrong:?}");
        }
    }
}
