//! Reserves host ports for a task. portmap redirects a port, so no other program may listen there.
//!
//! A bound socket keeps the port reserved; it receives nothing, because the kernel redirects packets first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use bowline_error::{Error, Kind, Result};
use bowline_spec::{Port, Protocol};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

/// Takes the ports, as far as they are of TCP or UDP.
///
/// # Errors
/// `WrongState` for a port that is taken; `BadSpec` for an address that the host does not have.
pub fn take(ports: &[Port]) -> Result<Vec<OwnedFd>> {
    let kind = |port: &Port| match port.protocol {
        Protocol::Tcp => Some(SocketType::STREAM),
        Protocol::Udp => Some(SocketType::DGRAM),
        Protocol::Sctp => None,
    };
    let taken = ports.iter().filter_map(|port| Some((port, kind(port)?)));
    taken.map(|(port, kind)| take_one(port, kind)).collect()
}

fn take_one(port: &Port, kind: SocketType) -> Result<OwnedFd> {
    let at = SocketAddr::new(port.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port.host.get());
    let bound = match bound(at, kind, false) {
        // Of a connection that has just ended there may be a rest, which hinders nobody who listens.
        Err(Errno::ADDRINUSE) if kind == SocketType::STREAM => bound(at, kind, true),
        bound => bound,
    };
    bound.map_err(|errno| {
        let name = format!("port {}/{}", port.host, port.protocol.as_str());
        match errno {
            Errno::ADDRINUSE => {
                let option = if kind == SocketType::STREAM { "-ltnp" } else { "-lunp" };
                Error::new(Kind::WrongState, format!("{name} of the host is taken"))
                    .hint(format!("publish another one; `ss {option} 'sport = :{}'` shows who has it", port.host))
            }
            Errno::ADDRNOTAVAIL => {
                Error::new(Kind::BadSpec, format!("{name}: {} is not an address of the host", at.ip()))
            }
            _ => Error::new(Kind::Internal, format!("cannot take {name} of the host: {errno}")),
        }
    })
}

fn bound(at: SocketAddr, kind: SocketType, listening: bool) -> rustix::io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if listening {
        set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &at)?;
    if listening {
        listen(&socket, 0)?;
    }
    Ok(socket)
}
