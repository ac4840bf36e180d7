//! Arguments of `bowline metrics`, and the parser of the place to listen at.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// The prefix of a socket's path.
const UNIX: &str = "unix:";

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Where to listen: unix:PATH, or an address and a port, 127.0.0.1:9464 [default: unix:DIR/.metrics.sock]
    #[arg(long, value_name = "WHERE")]
    pub listen: Option<Place>,
    /// Allow an address that other hosts can reach; everyone who reaches it may read
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// containerd's state folder, whose tasks are reported too [default: /run/containerd, where it is]
    #[arg(long, value_name = "DIR")]
    pub containerd: Option<PathBuf>,
    /// Print the metrics once instead
    #[arg(long, conflicts_with_all = ["listen", "allow_remote"])]
    pub once: bool,
}

/// A place to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address and a port.
    Address(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    /// Does not look up host names except `localhost`, whose address RFC 6761 defines.
    fn from_str(text: &str) -> Result<Place, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path {
                "" => Err("a path is missing after unix:".to_owned()),
                path => Ok(Place::Unix(PathBuf::from(path))),
            };
        }
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        address.parse().map(Place::Address).map_err(|_| {
            format!("{text:?} is no place to listen at; write unix:PATH, 127.0.0.1:9464 or [::1]:9464 (host names are not looked up)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_path_or_an_address_with_a_port() {
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        for (text, address) in
            [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:9464", "[::1]:9464"), ("localhost:1", "127.0.0.1:1")]
        {
            assert_eq!(text.parse(), Ok(Place::Address(address.parse().expect("an address"))));
        }
        for wrong in
            ["", "unix:", "9464", ":9464", "127.0.0.1", "127.0.0.1:65536", "localhost:", "example.org:80", "::1"]
        {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
