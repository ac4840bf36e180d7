//! Requests to the kernel about network devices: rtnetlink(7), as far as moving one needs it.
//!
//! Must not: know what for.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// The length of a message's header (netlink(7)).
const HEADER: usize = 16;
/// Messages of interfaces and addresses begin with as much of their own (rtnetlink(7): ifinfomsg, ifaddrmsg).
const LINK: usize = 16;
const ADDRESS: usize = 8;

/// An address of a device, as the kernel tells it.
#[derive(Debug, PartialEq, Eq)]
pub struct Address {
    family: u8,
    prefix: u8,
    scope: u8,
    flags: u32,
    /// IFA_LOCAL, IFA_ADDRESS and IFA_BROADCAST.
    parts: Vec<(u16, Vec<u8>)>,
}

impl Address {
    /// Whether it is permanent and of global scope, and so goes with its device.
    pub fn is_kept(&self) -> bool {
        self.flags & libc::IFA_F_PERMANENT != 0 && self.scope == libc::RT_SCOPE_UNIVERSE
    }

    fn read(body: &[u8]) -> Option<(i32, Address)> {
        let [family, prefix, flags, scope, ..] = *body.get(..ADDRESS)? else { return None };
        let mut address = Address { family, prefix, scope, flags: flags.into(), parts: Vec::new() };
        for (kind, value) in attributes(&body[ADDRESS..]) {
            match kind {
                libc::IFA_FLAGS => address.flags = number(value, 0)?,
                libc::IFA_LOCAL | libc::IFA_ADDRESS | libc::IFA_BROADCAST => address.parts.push((kind, value.to_vec())),
                _ => {}
            }
        }
        Some((number(body, 4)? as i32, address))
    }
}

/// A socket for requests about the network that the calling process is in when it opens this.
pub struct Socket(OwnedFd);

impl Socket {
    pub fn open() -> io::Result<Socket> {
        // No protocol is NETLINK_ROUTE.
        Ok(Socket(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?))
    }

    /// The number of the device `name`, and whether it is a loopback interface.
    pub fn find(&self, name: &str) -> io::Result<(i32, bool)> {
        let answers =
            self.ask(libc::RTM_GETLINK, libc::NLM_F_ACK, &link(0, 0, 0), &[(libc::IFLA_IFNAME, text(name))])?;
        let found = answers.iter().find_map(|body| Some((number(body, 4)? as i32, number(body, 8)?)));
        let (index, flags) = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        Ok((index, flags & libc::IFF_LOOPBACK as u32 != 0))
    }

    /// The numbers of all devices.
    pub fn indices(&self) -> io::Result<BTreeSet<i32>> {
        let answers = self.ask(libc::RTM_GETLINK, libc::NLM_F_DUMP, &link(0, 0, 0), &[])?;
        Ok(answers.iter().filter_map(|body| number(body, 4)).map(|index| index as i32).collect())
    }

    /// The addresses of a device.
    pub fn addresses(&self, index: i32) -> io::Result<Vec<Address>> {
        let answers = self.ask(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; ADDRESS], &[])?;
        let all = answers.iter().filter_map(|body| Address::read(body));
        Ok(all.filter(|(of, _)| *of == index).map(|(_, address)| address).collect())
    }

    /// Sets a device up.
    pub fn set_up(&self, index: i32) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        self.ask(libc::RTM_NEWLINK, libc::NLM_F_ACK, &link(index, up, up), &[]).map(drop)
    }

    /// Moves a device into `network`, where it has this name and is down. If the kernel refuses, nothing has changed.
    pub fn move_to(&self, index: i32, network: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let network = network.as_raw_fd().to_ne_bytes().to_vec();
        let attributes = [(libc::IFLA_IFNAME, text(name)), (libc::IFLA_NET_NS_FD, network)];
        self.ask(libc::RTM_NEWLINK, libc::NLM_F_ACK, &link(index, 0, 0), &attributes).map(drop)
    }

    /// Gives a device this address.
    pub fn add(&self, index: i32, address: &Address) -> io::Result<()> {
        let mut body = vec![address.family, address.prefix, 0, address.scope];
        body.extend(index.to_ne_bytes());
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.ask(libc::RTM_NEWADDR, flags, &body, &address.parts).map(drop)
    }

    /// Sends a request; the bodies of the answers.
    fn ask(&self, kind: u16, flags: i32, body: &[u8], attributes: &[(u16, Vec<u8>)]) -> io::Result<Vec<Vec<u8>>> {
        let mut message = vec![0; HEADER];
        message.extend(body);
        for (kind, value) in attributes {
            message.extend((value.len() as u16 + 4).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        send(&self.0, &message, SendFlags::empty())?;
        let mut bodies = Vec::new();
        // As large as the kernel makes them (netlink(7)).
        let mut buffer = vec![0; 32 << 10];
        loop {
            let (received, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..received];
            while let Some(length) = number(rest, 0).map(|length| length as usize).filter(|length| *length >= HEADER) {
                let (Some(body), Some(kind)) = (rest.get(HEADER..length), rest.get(4..6)) else { break };
                match i32::from(u16::from_ne_bytes([kind[0], kind[1]])) {
                    libc::NLMSG_DONE => return Ok(bodies),
                    libc::NLMSG_ERROR => {
                        return match number(body, 0).unwrap_or_default() as i32 {
                            0 => Ok(bodies),
                            errno => Err(io::Error::from_raw_os_error(-errno)),
                        };
                    }
                    _ => bodies.push(body.to_vec()),
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// The body of a request about an interface.
fn link(index: i32, flags: u32, change: u32) -> [u8; LINK] {
    let mut body = [0; LINK];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..].copy_from_slice(&change.to_ne_bytes());
    body
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
}

/// The attributes in a message, by kind.
fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = rest.get(4..length) else { break };
        all.push((u16::from_ne_bytes([c, d]), value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_addresses_that_do_not_go_with_it() {
        let socket = Socket::open().expect("a socket");
        let (index, is_loopback) = socket.find("lo").expect("each network has one");
        assert!(is_loopback);
        assert!(socket.indices().expect("devices").contains(&index));
        assert!(!socket.addresses(index).expect("addresses").iter().any(Address::is_kept));
        let missing = socket.find("bl-nowhere").expect_err("there is none");
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn what_is_cut_off_is_no_attribute() {
        let of = |bytes: &[u8]| attributes(bytes).len();
        assert_eq!(of(&[8, 0, 1, 0, 9, 9, 9, 9, 6, 0, 2, 0, 7, 7, 0, 0]), 2);
        for bad in [&[][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 1], &[0, 0, 0, 0, 0, 0, 0, 0], &[8, 0]] {
            assert_eq!(of(bad), 0, "{bad:?}");
        }
    }
}
