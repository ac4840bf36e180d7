//! Addresses as people write them: of an interface, and of a network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// The hardware address of one interface, such as `0a:1b:2c:3d:4e:5f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress([u8; 6]);

impl FromStr for MacAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<MacAddress, Invalid> {
        let no_address = || Invalid::value(format!("{text:?} is not a MAC address such as 0a:1b:2c:3d:4e:5f"));
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let digits = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(digits).ok_or_else(no_address)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| no_address())?;
        }
        if parts.next().is_some() {
            return Err(no_address());
        }
        // The lowest bit of the first byte: it goes to many (IEEE 802).
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(Invalid::value(format!("{text:?} is not the MAC address of an interface")));
        }
        Ok(MacAddress(bytes))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

text_value!(
    MacAddress,
    "MacAddress",
    string,
    "a MAC address: six bytes in hexadecimal, with colons between",
    "0a:1b:2c:3d:4e:5f"
);

/// An IP address with the length of its network's prefix, such as `10.0.0.5/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The address as it was written.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Its network: the same without what is behind the prefix.
    pub fn network(&self) -> Cidr {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        };
        Cidr { address, prefix: self.prefix }
    }

    /// How many bits its network's prefix has.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the two networks have an address in common.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other.network().address) || other.contains(self.network().address)
    }

    /// Whether `address` is in its network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let other = Cidr { address, prefix: self.prefix };
        self.is_ipv4() == address.is_ipv4() && other.network() == self.network()
    }
}

impl FromStr for Cidr {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Cidr, Invalid> {
        let read = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
            let prefix: u8 = prefix.parse().ok().filter(|_| digits)?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= longest).then_some(Cidr { address, prefix })
        };
        read().ok_or_else(|| {
            Invalid::value(format!("{text:?} is not an address with a prefix, such as 10.0.0.5/24 or fd00::5/64"))
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

text_value!(Cidr, "Cidr", string, "an IP address with the length of its network's prefix", "10.0.0.5/24", "fd00::5/64");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_address_of_an_interface_is_refused() {
        assert_eq!("0A:1b:2c:3d:4e:5F".parse::<MacAddress>().unwrap().to_string(), "0a:1b:2c:3d:4e:5f");
        for text in ["", "0a:1b:2c:3d:4e", "0a:1b:2c:3d:4e:5f:60", "0a-1b-2c-3d-4e-5f", "+a:1b:2c:3d:4e:5f"] {
            assert!(text.parse::<MacAddress>().unwrap_err().reason.contains("such as"), "{text}");
        }
        for text in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            assert!(text.parse::<MacAddress>().unwrap_err().reason.contains("of an interface"), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_with_a_prefix_is_refused() {
        for text in ["", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0/8", "::/129", "::1/-1", "a/8", "10.0.0.1/+8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_has_what_shares_its_prefix() {
        for (cidr, network, inside, outside) in [
            ("10.0.0.5/24", "10.0.0.0/24", "10.0.0.255", "10.0.1.0"),
            ("10.0.0.5/32", "10.0.0.5/32", "10.0.0.5", "10.0.0.4"),
            ("10.0.0.5/0", "0.0.0.0/0", "255.0.0.1", "::"),
            ("fd00::5/64", "fd00::/64", "fd00::ffff", "fd01::"),
            ("fd00::5/0", "::/0", "fe80::1", "0.0.0.0"),
        ] {
            let cidr: Cidr = cidr.parse().unwrap();
            assert_eq!(cidr.network().to_string(), network);
            assert!(cidr.contains(inside.parse().unwrap()) && !cidr.contains(outside.parse().unwrap()), "{cidr}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(address in any::<IpAddr>(), prefix in 0..=32u8, bytes in any::<[u8; 6]>()) {
            let cidr = Cidr { address, prefix };
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            let [first, rest @ ..] = bytes;
            let mac = MacAddress([first & !1 | 2, rest[0], rest[1], rest[2], rest[3], rest[4]]);
            prop_assert_eq!(mac.to_string().parse::<MacAddress>().unwrap(), mac);
        }
    }
}
