//! A bridge that was made for one of our own lists: it is removed with the last interface in it.
//!
//! ```text
//!   alias of the bridge   bowline [SUBNET] [ip_forward=0]
//! ```
//!
//! The plugin leaves the bridge behind. Its alias marks it as ours, so that a bridge that existed before, or that
//! somebody else has taken over, is left alone; it also says which subnet was chosen for it, and that the host forwarded
//! nothing before. A process that joins holds a shared lock on the host's bridges; one that makes or removes a bridge
//! holds an exclusive one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::address::Cidr;
use bowline_spec::network::{ADDRESSES, SHARED_BRIDGE, subnet};
use bowline_sys as sys;
use rustix::fs::{FlockOperation, flock};

use super::bounded_run::Bounds;
use super::{routes, rules};
use crate::process::host_lock;

/// The alias of bridges that are ours begins with it.
const ALIAS: &str = "bowline";

/// In the alias of a bridge that was made on a host that forwarded nothing.
const FORWARDED_NOTHING: &str = "ip_forward=0";

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

const LINKS: &str = "/sys/class/net";

/// What the alias of a bridge of ours says.
#[derive(Debug, Clone, Default, PartialEq)]
struct Mark {
    /// The subnet that was chosen for it.
    subnet: Option<Cidr>,
    /// Whether the host forwarded nothing when it was made.
    forwarded_nothing: bool,
}

impl Mark {
    /// The mark of the bridge, if it is ours.
    fn of(bridge: &str) -> Option<Mark> {
        Mark::parse(&fs::read_to_string(alias(bridge)).ok()?)
    }

    fn parse(alias: &str) -> Option<Mark> {
        let mut words = alias.split_whitespace();
        if words.next() != Some(ALIAS) {
            return None;
        }
        let mut mark = Mark::default();
        for word in words {
            match word.parse() {
                Ok(subnet) => mark.subnet = Some(subnet),
                Err(_) => mark.forwarded_nothing |= word == FORWARDED_NOTHING,
            }
        }
        Some(mark)
    }

    fn write(&self, bridge: &str) -> std::io::Result<()> {
        let subnet = self.subnet.map(|subnet| format!(" {subnet}")).unwrap_or_default();
        let forwarding = if self.forwarded_nothing { format!(" {FORWARDED_NOTHING}") } else { String::new() };
        fs::write(alias(bridge), format!("{ALIAS}{subnet}{forwarding}"))
    }
}

/// Held while a plugin makes a bridge, or puts an interface into it.
pub struct Joining<'a> {
    bridge: &'a str,
    /// The mark that the bridge gets, if it is made now.
    mark: Option<Mark>,
    subnet: Option<Cidr>,
    _lock: File,
}

impl<'a> Joining<'a> {
    /// Keeps the bridge from being removed until this is dropped. With `chooses`, its subnet is the one that was chosen
    /// when it was made, or is chosen now.
    ///
    /// # Errors
    /// `WrongState` for a bridge of somebody else's with the name of ours, or where no subnet is free.
    pub fn begin(bridge: &'a str, chooses: bool) -> Result<Joining<'a>> {
        let lock = lock(FlockOperation::LockShared)?;
        if is_whole(bridge, chooses) {
            let subnet = if chooses { Mark::of(bridge).and_then(|mark| mark.subnet) } else { None };
            return Ok(Joining { bridge, mark: None, subnet, _lock: lock });
        }
        drop(lock);
        let lock = self::lock(FlockOperation::LockExclusive)?;
        if is_whole(bridge, chooses) {
            // Another process has made it meanwhile.
            drop(lock);
            return Joining::begin(bridge, chooses);
        }
        if folder(bridge).exists() {
            give_up_half_made(bridge)?;
        }
        let forwarded_nothing = fs::read_to_string(IP_FORWARD).is_ok_and(|value| value.trim_end() == "0");
        let chosen = if chooses { Some(choose()?) } else { None };
        let mark = Mark { subnet: chosen, forwarded_nothing };
        Ok(Joining { bridge, mark: Some(mark), subnet: chosen, _lock: lock })
    }

    /// The subnet that was chosen for the bridge.
    pub fn subnet(&self) -> Option<Cidr> {
        self.subnet
    }

    /// Marks the bridge as ours if it exists now and did not before.
    pub fn end(&self) {
        let Some(mark) = self.mark.as_ref().filter(|_| folder(self.bridge).exists()) else { return };
        let marked = mark.write(self.bridge);
        let _ = marked.inspect_err(|error| tracing::warn!(%error, self.bridge, "it will be left"));
    }
}

/// Whether the bridge exists. One whose subnet we choose also has its mark, unless whoever made it was killed first.
fn is_whole(bridge: &str, chooses: bool) -> bool {
    if chooses { Mark::of(bridge).is_some_and(|mark| mark.subnet.is_some()) } else { folder(bridge).exists() }
}

/// Removes a bridge of our name that has no mark, as its maker was killed.
fn give_up_half_made(bridge: &str) -> Result<()> {
    let is_empty = fs::read_dir(folder(bridge).join("brif")).is_ok_and(|mut inside| inside.next().is_none());
    if !is_empty {
        let message = format!("interface {bridge} exists, and was not made by bowline");
        return Err(Error::new(Kind::WrongState, message).hint("rename or remove it: bowline needs this name"));
    }
    sys::remove_bridge(bridge).doing(Kind::Internal, || format!("cannot remove bridge {bridge}"))
}

/// Chooses a subnet that no route leads to.
fn choose() -> Result<Cidr> {
    subnet::free(&routes::read()?).ok_or_else(|| {
        Error::new(Kind::WrongState, "every private network of IPv4 has a route of this host already")
            .hint("describe the network: network.mode = \"cni\", with an interface and its subnets")
    })
}

/// Removes the bridge that an interface has left, if that was the last one and the bridge is ours; and with the last of
/// our bridges what they have changed on the host.
pub fn left(bridge: &str, bounds: Bounds<'_>) {
    if !is_done(bridge) {
        return;
    }
    let removed = lock(FlockOperation::LockExclusive).and_then(|_lock| {
        // Another process may have joined the bridge, or removed it.
        let Some(mark) = Mark::of(bridge).filter(|_| is_done(bridge)) else { return Ok(()) };
        sys::remove_bridge(bridge).doing(Kind::Internal, || "cannot remove it")?;
        if bridge == SHARED_BRIDGE {
            // Nobody has an address in it, and a later one may have another subnet.
            let _ = fs::remove_dir_all(Path::new(ADDRESSES).join(bridge));
            let _ = fs::remove_dir(ADDRESSES);
        }
        if mark.forwarded_nothing {
            stop_forwarding()?;
        }
        rules::clear(bridge, bounds)
    });
    let _ = removed.inspect_err(|error| tracing::warn!(%error, bridge, "something of the bridge is left"));
}

/// Stops the host's forwarding, as it was before our first bridge, unless another bridge may need it. Another one of
/// ours then gets to stop it.
fn stop_forwarding() -> Result<()> {
    let what = || format!("cannot write {IP_FORWARD}");
    let links = fs::read_dir(LINKS).doing(Kind::Internal, what)?.flatten();
    let bridges = links.filter(|link| link.path().join("bridge").exists());
    let bridges: Vec<String> = bridges.map(|link| link.file_name().to_string_lossy().into_owned()).collect();
    if bridges.is_empty() {
        return fs::write(IP_FORWARD, "0").doing(Kind::Internal, what);
    }
    let other = bridges.iter().find_map(|bridge| Some((bridge, Mark::of(bridge)?)));
    other.map_or(Ok(()), |(bridge, mark)| {
        Mark { forwarded_nothing: true, ..mark }.write(bridge).doing(Kind::Internal, || "cannot mark another bridge")
    })
}

/// Whether the bridge is ours and empty.
fn is_done(bridge: &str) -> bool {
    let is_empty = || fs::read_dir(folder(bridge).join("brif")).is_ok_and(|mut inside| inside.next().is_none());
    Mark::of(bridge).is_some() && is_empty()
}

fn folder(bridge: &str) -> PathBuf {
    Path::new(LINKS).join(bridge)
}

fn alias(bridge: &str) -> PathBuf {
    folder(bridge).join("ifalias")
}

/// What is locked: anybody could lock a namespace, and hold all up.
const LOCK: &str = "/run/bowline-bridges";

fn lock(how: FlockOperation) -> Result<File> {
    let what = || "cannot lock the host's bridges";
    let bridges = host_lock::open(Path::new(LOCK))?;
    flock(&bridges, how).doing(Kind::Internal, what)?;
    Ok(bridges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_says_whose_a_bridge_is_and_what_was_before() {
        let subnet = "10.90.0.0/16".parse().ok();
        assert_eq!(Mark::parse("bowline\n"), Some(Mark::default()));
        let both = Mark { subnet, forwarded_nothing: true };
        assert_eq!(Mark::parse("bowline 10.90.0.0/16 ip_forward=0\n"), Some(both));
        assert_eq!(Mark::parse("bowline 10.90.0.0/16"), Some(Mark { subnet, forwarded_nothing: false }));
        for other in ["", "uplink", "bowlines", "docker bowline"] {
            assert_eq!(Mark::parse(other), None, "{other}");
        }
    }
}
