//! `--network` and `--publish`: docker's words, and the fields that they are.

use bowline_spec::{Invalid, NetworkMode, Port, Protocol};

/// Parses `--network host|private|none|bridge|cni|PATH`; `private` is docker's `none`.
pub fn network(text: &str) -> Result<NetworkMode, String> {
    let text = if text == "private" { "none" } else { text };
    text.parse().map_err(|wrong: Invalid| wrong.to_string())
}

/// Parses `--publish [ADDRESS:]HOST[:INSIDE][/PROTOCOL]`.
pub fn port(text: &str) -> Result<Port, String> {
    let wrong = || format!("{text:?} is not a port; write 8080, 8080:80, 127.0.0.1:8080:80 or 53:53/udp");
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return Err(format!("{protocol:?} is no protocol with ports; write tcp, udp or sctp")),
    };
    let mut parts = ports.rsplitn(3, ':');
    let (last, before, address) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let number = |text: &str| text.parse().map_err(|_| wrong());
    let address = address.map(|address| address.trim_matches(['[', ']']).parse().map_err(|_| wrong())).transpose()?;
    Ok(match before {
        None => Port { host: number(last)?, sandbox: None, protocol, address },
        Some(host) => Port { host: number(host)?, sandbox: Some(number(last)?), protocol, address },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_as_it_is_written_elsewhere() {
        let read = |text: &str| {
            port(text).map(|port| {
                let inside = port.sandbox.map(u16::from);
                (port.host.get(), inside, port.protocol.as_str(), port.address.map(|ip| ip.to_string()))
            })
        };
        assert_eq!(read("8080"), Ok((8080, None, "tcp", None)));
        assert_eq!(read("8080:80"), Ok((8080, Some(80), "tcp", None)));
        assert_eq!(read("53:53/udp"), Ok((53, Some(53), "udp", None)));
        assert_eq!(read("127.0.0.1:8080:80"), Ok((8080, Some(80), "tcp", Some("127.0.0.1".into()))));
        assert_eq!(read("[::1]:8080:80"), Ok((8080, Some(80), "tcp", Some("::1".into()))));
        for bad in ["", "web", "0:80", "80:", "80:80/icmp", "70000", "x:80:80"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_network_is_one_of_docker_words_or_a_path() {
        assert_eq!((network("private"), network("bridge")), (Ok(NetworkMode::None), Ok(NetworkMode::Bridge)));
        assert!(network("").is_err() && network("bridged").is_err());
    }
}
