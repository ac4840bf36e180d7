//! `--network` and `--publish`: docker's words, and the fields that they are.

use std::num::NonZeroU16;

use bowline_spec::{Invalid, NetworkMode, Port, Protocol};

/// Parses `--network host|private|none|bridge|cni|PATH`; `private` is docker's `none`.
pub fn network(text: &str) -> Result<NetworkMode, String> {
    let text = if text == "private" { "none" } else { text };
    text.parse().map_err(|wrong: Invalid| wrong.to_string())
}

/// The ports that one flag publishes.
#[derive(Debug, Clone)]
pub struct Ports(pub Vec<Port>);

/// Parses `--publish [ADDRESS:]HOST[:INSIDE][/PROTOCOL]`, where each of both is a port or a range.
pub fn ports(text: &str) -> Result<Ports, String> {
    let wrong =
        || format!("{text:?} is not a port; write 8080, 8080:80, 127.0.0.1:8080:80, 53:53/udp or 8000-8009:9000-9009");
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return Err(format!("{protocol:?} is no protocol with ports; write tcp, udp or sctp")),
    };
    let mut parts = ports.rsplitn(3, ':');
    let (last, before, address) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let [first, last] = [first, last].map(|port| port.parse::<NonZeroU16>().map_err(|_| wrong()));
        let (first, last) = (first?, last?);
        if first > last {
            return Err(wrong());
        }
        Ok((first.get()..=last.get()).filter_map(NonZeroU16::new).collect::<Vec<_>>())
    };
    let address = address.map(|address| address.trim_matches(['[', ']']).parse().map_err(|_| wrong())).transpose()?;
    let (host, inside) = match before {
        None => (range(last)?, None),
        Some(host) => (range(host)?, Some(range(last)?)),
    };
    if inside.as_ref().is_some_and(|inside| inside.len() != host.len()) {
        return Err(format!("{text:?}: a range leads to one of as many ports, such as 8000-8009:9000-9009"));
    }
    let to = |(at, host)| Port { host, sandbox: inside.as_ref().map(|inside| inside[at]), protocol, address };
    Ok(Ports(host.into_iter().enumerate().map(to).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_as_it_is_written_elsewhere() {
        let read = |text: &str| {
            ports(text).map(|Ports(ports)| {
                let port = ports[0];
                let inside = port.sandbox.map(u16::from);
                (port.host.get(), inside, port.protocol.as_str(), port.address.map(|ip| ip.to_string()))
            })
        };
        assert_eq!(read("8080"), Ok((8080, None, "tcp", None)));
        assert_eq!(read("8080:80"), Ok((8080, Some(80), "tcp", None)));
        assert_eq!(read("53:53/udp"), Ok((53, Some(53), "udp", None)));
        assert_eq!(read("127.0.0.1:8080:80"), Ok((8080, Some(80), "tcp", Some("127.0.0.1".into()))));
        assert_eq!(read("[::1]:8080:80"), Ok((8080, Some(80), "tcp", Some("::1".into()))));
        let range = |text: &str| {
            let pair = |port: Port| (port.host.get(), port.sandbox.map(u16::from));
            ports(text).map(|Ports(ports)| ports.into_iter().map(pair).collect::<Vec<_>>())
        };
        assert_eq!(range("8000-8002"), Ok(vec![(8000, None), (8001, None), (8002, None)]));
        assert_eq!(range("65534-65535:80-81/udp"), Ok(vec![(65534, Some(80)), (65535, Some(81))]));
        for bad in
            ["", "web", "0:80", "80:", "80:80/icmp", "70000", "x:80:80", "2-1", "1-3:1-2", "80-82:80", "1-", "-2"]
        {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_network_is_one_of_docker_words_or_a_path() {
        assert_eq!((network("private"), network("bridge")), (Ok(NetworkMode::None), Ok(NetworkMode::Bridge)));
        assert!(network("").is_err() && network("bridged").is_err());
    }
}
