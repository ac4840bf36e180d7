//! The routes of the host, of all of its tables: what a new bridge's subnet must keep away from.

use std::fs;

use bowline_error::{Doing, Kind, Result};
use bowline_spec::address::Cidr;

/// Where the kernel shows each route of IPv4, of every table.
const ROUTES: &str = "/proc/self/net/fib_trie";

/// The networks that routes of IPv4 lead to.
pub fn read() -> Result<Vec<Cidr>> {
    let text = fs::read_to_string(ROUTES).doing(Kind::Internal, || format!("cannot read {ROUTES}"))?;
    Ok(routes_in(&text))
}

/// A leaf names an address, and each line below it a prefix, as `|-- 192.0.2.0` and `/24 link UNICAST`
/// (net/ipv4/fib_trie.c).
fn routes_in(text: &str) -> Vec<Cidr> {
    let (mut routes, mut address) = (Vec::new(), None);
    for line in text.lines().map(str::trim_start) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            address = Some(leaf);
        } else if let (Some(rest), Some(address)) = (line.strip_prefix('/'), address) {
            let prefix = rest.split(' ').next().unwrap_or_default();
            routes.extend(format!("{address}/{prefix}").parse::<Cidr>());
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prefix_of_a_leaf_is_a_route() {
        let text = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.1.0.0\n        \
                    /16 link UNICAST\n        /24 universe UNICAST\nId 52:\n  |-- 100.64.0.1\n     /32 link UNICAST\n";
        let routes: Vec<String> = routes_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(routes, ["0.0.0.0/0", "10.1.0.0/16", "10.1.0.0/24", "100.64.0.1/32"]);
        assert!(read().expect("this host has routes").iter().any(|route| route.to_string() == "127.0.0.0/8"));
    }
}
