//! Network devices of the host that a task gets (`linux.netDevices`): each is moved into its network, keeps its
//! permanent addresses of global scope, and is up there.
//!
//! The kernel gives a physical device back when the network goes, and removes any other. Must not: be called in the shim,
//! as it enters the task's network.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use oci_spec::runtime::Spec;
use rustix::io::Errno;

use super::netlink::{Address, Socket};
use crate::process::worker;

/// Whether `spec` has a device to move.
pub fn are_wanted(spec: &Spec) -> bool {
    wanted(spec).next().is_some()
}

/// The devices of the host, each with the name inside.
fn wanted(spec: &Spec) -> impl Iterator<Item = (&str, &str)> {
    let devices = spec.linux().as_ref().and_then(|linux| linux.net_devices().as_ref());
    devices.into_iter().flatten().map(|(host, device)| {
        let name = device.name().as_deref().filter(|name| !name.is_empty());
        (host.as_str(), name.unwrap_or(host))
    })
}

/// Checks that there is a network to move the devices of `spec` into, and that their names can be some.
///
/// # Errors
/// `BadSpec` naming the device.
pub fn check(spec: &Spec, has_own_network: bool) -> Result<()> {
    let bad = |message: String| Err(Error::new(Kind::BadSpec, message));
    if are_wanted(spec) && !has_own_network {
        return bad("linux.netDevices: without a network namespace of its own, they would stay the host's".to_owned());
    }
    // As the kernel has it; it makes a number of `%d`.
    let is_name = |name: &str| {
        (1..libc::IFNAMSIZ).contains(&name.len())
            && ![".", ".."].contains(&name)
            && !name.contains(|letter: char| ['/', ':', '\0'].contains(&letter) || letter.is_ascii_whitespace())
    };
    match wanted(spec).find_map(|(host, inside)| [host, inside].into_iter().find(|name| !is_name(name))) {
        Some(name) => bad(format!(
            "linux.netDevices: {name:?} is not a name for a network device: 1 to {} bytes without \"/\", \":\" or blanks",
            libc::IFNAMSIZ - 1
        )),
        None => Ok(()),
    }
}

/// Moves the devices of `spec` into the network of process `pid`, which is not reaped yet.
///
/// # Errors
/// `BadSpec` naming the device.
pub async fn give(spec: &Spec, pid: i32) -> Result<()> {
    if !are_wanted(spec) {
        return Ok(());
    }
    let network = std::fs::File::open(format!("/proc/{pid}/ns/net"));
    let network: OwnedFd = network.doing(Kind::Internal, || "cannot open the task's network")?.into();
    worker::run("network devices", || {
        let host = Socket::open().doing(Kind::Internal, || "cannot ask for network devices")?;
        let mut all: Vec<(&str, &str)> = wanted(spec).collect();
        all.sort_unstable();
        let what = || "cannot enter the task's network";
        sys::setns(network.as_fd(), libc::CLONE_NEWNET).doing(Kind::Internal, what)?;
        let inside = Socket::open().doing(Kind::Internal, what)?;
        let refused = |name: &str, as_name: &str, why: std::io::Error| {
            let as_name = if as_name == name { String::new() } else { format!(" as {as_name}") };
            Error::new(Kind::BadSpec, format!("linux.netDevices.{name}: cannot move it{as_name}: {why}"))
        };
        // Before any is moved: the kernel removes one that is in the network of a launch that fails.
        let find = |(index, (name, as_name)): (usize, &(&str, &str))| {
            let is_twice = all[..index].iter().any(|(_, other)| other == as_name && !other.contains('%'));
            Device::find(&host, &inside, name, as_name, is_twice).map_err(|why| refused(name, as_name, why))
        };
        let devices = all.iter().enumerate().map(find).collect::<Result<Vec<Device>>>()?;
        devices.iter().zip(&all).try_for_each(|(device, (name, as_name))| {
            device.give(&host, &inside, &network, as_name).map_err(|why| refused(name, as_name, why))
        })
    })
    .await
}

/// A device that can be moved.
struct Device {
    index: i32,
    /// What goes with it: moving takes its addresses away.
    addresses: Vec<Address>,
}

impl Device {
    fn find(host: &Socket, inside: &Socket, name: &str, as_name: &str, is_twice: bool) -> std::io::Result<Device> {
        let (index, is_loopback) = host.find(name)?;
        if is_loopback {
            return Err(std::io::Error::other("it is a loopback interface, which stays in its network"));
        }
        if is_twice || inside.find(as_name).is_ok() {
            return Err(Errno::EXIST.into());
        }
        Ok(Device { index, addresses: host.addresses(index)?.into_iter().filter(Address::is_kept).collect() })
    }

    fn give(&self, host: &Socket, inside: &Socket, network: &OwnedFd, as_name: &str) -> std::io::Result<()> {
        // The kernel may give it another number, and the name where that is a template.
        let before = inside.indices()?;
        // Nobody sets it down first: a move that is refused leaves it as it was.
        host.move_to(self.index, network.as_fd(), as_name)?;
        let after: BTreeSet<i32> = inside.indices()?;
        let moved = after.difference(&before).next().copied();
        let index = moved.ok_or_else(|| std::io::Error::other("it is not in the task's network"))?;
        self.addresses.iter().try_for_each(|address| inside.add(index, address))?;
        inside.set_up(index)
    }
}
