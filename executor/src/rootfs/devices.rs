//! Device nodes and the usual links in the task's own `/dev`.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType, Spec};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;

use super::inside::{self, Make};
use super::trees::Trees;
use crate::error::{Doing, Error, Kind, Result};

/// Devices that every container has (OCI runtime spec, "Default Devices").
const DEFAULT: [(&str, i64, i64); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// Links that every container has (OCI runtime spec, "Dev symbolic links").
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Makes the devices of the spec and the default ones.
///
/// A user namespace may not make device nodes: the host's are bound instead.
pub fn create(trees: &Trees, root: BorrowedFd<'_>, spec: &Spec, in_user_namespace: bool) -> Result<()> {
    for (path, major, minor) in DEFAULT {
        let device = LinuxDeviceBuilder::default()
            .path(path)
            .typ(LinuxDeviceType::C)
            .major(major)
            .minor(minor)
            .file_mode(0o666u32)
            .build()
            .doing(Kind::Internal, || format!("cannot describe device {path}"))?;
        make(trees, root, &device, in_user_namespace)?;
    }
    let linux = spec.linux().as_ref();
    for device in linux.and_then(|l| l.devices().as_ref()).into_iter().flatten() {
        make(trees, root, device, in_user_namespace)?;
    }
    let dev = inside::open(root, Path::new("/dev"), Make::Nothing)?;
    for (target, name) in LINKS {
        match fs::symlinkat(target, &dev, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::new(Kind::Internal, format!("cannot link /dev/{name}: {errno}"))),
        }
    }
    Ok(())
}

fn make(trees: &Trees, root: BorrowedFd<'_>, device: &LinuxDevice, in_user_namespace: bool) -> Result<()> {
    let path = device.path();
    let what = || format!("cannot create device {}", path.display());
    if in_user_namespace {
        let host = host_path(device);
        let tree =
            trees.copy(&host, false).doing(Kind::BadSpec, || format!("cannot open the host's {}", host.display()))?;
        let target = inside::open(root, path, Make::File)?;
        return trees.attach(&tree, &target).doing(Kind::Internal, what);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::new(Kind::BadSpec, format!("devices: {} names no file", path.display())));
    };
    let parent = inside::open(root, parent, Make::Folder)?;
    let kind = match device.typ() {
        LinuxDeviceType::B => FileType::BlockDevice,
        LinuxDeviceType::P => FileType::Fifo,
        LinuxDeviceType::C | LinuxDeviceType::U | LinuxDeviceType::A => FileType::CharacterDevice,
    };
    let mode = Mode::from_raw_mode(device.file_mode().unwrap_or(0o666));
    let number =
        |n: i64| u32::try_from(n).doing(Kind::BadSpec, || format!("devices: {} has a bad number", path.display()));
    let dev = fs::makedev(number(device.major())?, number(device.minor())?);
    match fs::mknodat(&parent, name, kind, mode, dev) {
        Ok(()) => {}
        // Given by the description and by default: the first one stands.
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(Error::new(Kind::Internal, format!("{}: {errno}", what()))),
    }
    let (uid, gid) = (device.uid().map(Uid::from_raw), device.gid().map(Gid::from_raw));
    if uid.is_some() || gid.is_some() {
        fs::chownat(parent.as_fd(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Where the host has the device: by number, as the path inside may differ.
fn host_path(device: &LinuxDevice) -> PathBuf {
    let kind = if device.typ() == LinuxDeviceType::B { "block" } else { "char" };
    let by_number = PathBuf::from(format!("/dev/{kind}/{}:{}", device.major(), device.minor()));
    if by_number.exists() { by_number } else { device.path().clone() }
}
