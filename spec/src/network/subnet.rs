//! A subnet that no route of the host leads to.
//!
//! Must not: look at the host, whose routes the caller brings.

use crate::address::Cidr;

/// Routes that are wider than this lead out of the host, such as the default route, or the two halves by which a VPN
/// replaces it.
const WIDEST: u8 = 7;

/// The first of our subnets that overlaps none of `routes`; they are of IPv4.
///
/// Subnets that other programs take are tried late: Docker takes 172.17.0.0/16 and up, then 192.168.0.0/16, podman
/// 10.88.0.0/16.
pub fn free(routes: &[Cidr]) -> Option<Cidr> {
    let taken = |subnet: &Cidr| routes.iter().any(|route| route.prefix() > WIDEST && route.overlaps(subnet));
    let large = (90..=254).map(|second| format!("10.{second}.0.0/16"));
    let small = (0..=255).rev().map(|third| format!("192.168.{third}.0/24"));
    let late = (16..=31).rev().map(|second| format!("172.{second}.0.0/16"));
    large.chain(small).chain(late).filter_map(|text| text.parse().ok()).find(|subnet| !taken(subnet))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(routes: &[&str]) -> Option<String> {
        let routes: Vec<Cidr> = routes.iter().map(|text| text.parse().expect("a network")).collect();
        free(&routes).map(|subnet| subnet.to_string())
    }

    #[test]
    fn the_first_that_overlaps_no_route_is_chosen() {
        for (routes, expected) in [
            (&["0.0.0.0/0", "127.0.0.0/8", "192.0.2.0/24"][..], "10.90.0.0/16"),
            (&["10.90.0.0/16"], "10.91.0.0/16"),
            (&["10.90.7.1/32"], "10.91.0.0/16"),
            (&["10.88.0.0/14"], "10.92.0.0/16"),
            (&["10.0.0.0/8"], "192.168.255.0/24"),
            (&["10.0.0.0/8", "192.168.0.0/16"], "172.31.0.0/16"),
            (&["0.0.0.0/1", "128.0.0.0/1"], "10.90.0.0/16"),
        ] {
            assert_eq!(chosen(routes).as_deref(), Some(expected), "{routes:?}");
        }
        assert_eq!(chosen(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]), None);
    }
}
