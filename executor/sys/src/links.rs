//! Network interfaces of the current network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

use super::{check, own};

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up() -> io::Result<()> {
    set_link_flags(&link_socket()?, link_name("lo")?, libc::IFF_UP | libc::IFF_RUNNING)
}

/// Removes the bridge `name` of the current network namespace, even if it still has members.
pub fn remove_bridge(name: &str) -> io::Result<()> {
    /// linux/sockios.h
    const SIOCBRDELBR: u32 = 0x89a1;
    let name = link_name(name)?;
    let socket = link_socket()?;
    // A bridge that is up is busy.
    set_link_flags(&socket, name, 0)?;
    // SAFETY: SIOCBRDELBR reads IFNAMSIZ bytes, which `name` has.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCBRDELBR as _, name.as_ptr()) };
    check(c_long::from(rc)).map(drop)
}

/// Opens the socket through which requests about interfaces are made.
fn link_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let rc = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    Ok(own(check(c_long::from(rc))? as RawFd))
}

fn link_name(text: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte stays NUL.
    if text.len() >= name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    name.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    Ok(name)
}

fn set_link_flags(socket: &OwnedFd, name: [libc::c_char; libc::IFNAMSIZ], flags: c_int) -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = name;
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) };
    check(c_long::from(rc)).map(drop)
}
