//! The root, what is mounted in it, and devices.

use std::collections::BTreeMap;
use std::path::Path;

use super::rules::{absolute, no_nul, no_parent, require};
use crate::invalid::Invalid;
use crate::task::{Mount, MountKind, Task};

/// The least that an ephemeral root is good for: its own folders, and a file or two.
const LEAST_EPHEMERAL: u64 = 64 << 10;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    if let Some(rootfs) = &task.rootfs {
        absolute("rootfs", rootfs)?;
        require(rootfs.components().count() > 1, "rootfs", || {
            "is the host's own root; leave it out for a read-only view of the host".into()
        })?;
    }
    if let Some(size) = task.ephemeral {
        require(task.readonly_rootfs != Some(true), "ephemeral", || {
            "is of no use with readonly_rootfs = true: leave one of the two out".into()
        })?;
        require(size.as_u64() >= LEAST_EPHEMERAL, "ephemeral", || format!("{size} is too little; at least 64K"))?;
        let limit = task.memory.limit.filter(|limit| *limit < size);
        require(limit.is_none(), "ephemeral", || {
            format!("{size} is more than the task may use: memory.limit is {}", limit.unwrap_or(size))
        })?;
    }
    let mut taken = BTreeMap::new();
    for (index, mount) in task.mounts.iter().enumerate() {
        let field = format!("mounts[{index}]");
        destination(&format!("{field}.destination"), &mount.destination)?;
        if let Some(earlier) = taken.insert(&*mount.destination, index) {
            let reason = format!("{} has a mount already (mounts[{earlier}])", mount.destination.display());
            return Err(Invalid::new(format!("{field}.destination"), reason));
        }
        match mount.kind {
            MountKind::Bind => bind(&field, mount)?,
            MountKind::Tmpfs => tmpfs(&field, mount)?,
        }
    }
    for (index, device) in task.devices.iter().enumerate() {
        device_path(&format!("devices[{index}].path"), &device.path)?;
        absolute(&format!("devices[{index}].host_path"), device.host_path())?;
    }
    if let Some(edits) = &task.cdi_edits {
        edits.check().map_err(|error| Invalid { field: format!("cdi_edits.{}", error.field), ..error })?;
    }
    for (field, paths) in [("masked_paths", &task.masked_paths), ("readonly_paths", &task.readonly_paths)] {
        for (index, path) in paths.iter().flatten().enumerate() {
            let field = format!("{field}[{index}]");
            absolute(&field, path)?;
            no_parent(&field, path)?;
        }
    }
    Ok(())
}

/// Where a device node may be.
pub(super) fn device_path(field: &str, path: &Path) -> Result<(), Invalid> {
    require(!path.as_os_str().is_empty(), field, || "is missing; write the node inside the root".into())?;
    absolute(field, path)?;
    no_parent(field, path)?;
    let is_place = !["/proc", "/sys"].iter().any(|top| path.starts_with(top)) && path.file_name().is_some();
    require(is_place, field, || format!("{path:?} is no place for a device"))
}

/// What a mount must not cover: a task that sees another `/proc` would take
/// another process's credentials and limits for its own (CVE-2019-16884).
pub(super) fn destination(field: &str, path: &Path) -> Result<(), Invalid> {
    require(!path.as_os_str().is_empty(), field, || "is missing; write where inside the root".into())?;
    absolute(field, path)?;
    no_parent(field, path)?;
    // `components` reads `/proc/.` and `//proc` as `/proc`.
    let parts = path.components().count();
    require(parts > 1, field, || "is the root itself; write rootfs instead".into())?;
    require(!path.starts_with("/proc"), field, || format!("{path:?} would cover the task's own /proc"))?;
    require(!(parts == 2 && path.starts_with("/sys")), field, || "would cover the task's own /sys".into())
}

fn bind(field: &str, mount: &Mount) -> Result<(), Invalid> {
    let source_field = format!("{field}.source");
    match &mount.source {
        None => Err(Invalid::new(source_field, "is missing; write what of the host to bind")),
        Some(source) => absolute(&source_field, source),
    }?;
    let set = [
        ("size", mount.size.is_some()),
        ("mode", mount.mode.is_some()),
        ("inodes", mount.inodes.is_some()),
        ("uid", mount.uid.is_some()),
        ("gid", mount.gid.is_some()),
    ];
    unused(field, "tmpfs", &set)
}

fn tmpfs(field: &str, mount: &Mount) -> Result<(), Invalid> {
    if let Some(source) = &mount.source {
        no_nul(&format!("{field}.source"), &source.to_string_lossy())?;
    }
    // 0 means "no limit" to the kernel, the opposite of what is written.
    require(mount.size.is_none_or(|size| size.bytes() != Some(0)), &format!("{field}.size"), || {
        "is 0; leave it out for the kernel's default, half the memory".into()
    })?;
    require(mount.inodes != Some(0), &format!("{field}.inodes"), || {
        "is 0; leave it out for the kernel's default".into()
    })?;
    // The last id is none: the kernel takes it for "no user".
    for (name, id) in [("uid", mount.uid), ("gid", mount.gid)] {
        require(id != Some(u32::MAX), &format!("{field}.{name}"), || format!("{} is no id", u32::MAX))?;
    }
    let set = [
        ("source", mount.source.is_some()),
        ("recursive", mount.recursive.is_some()),
        ("propagation", mount.propagation.is_some()),
    ];
    unused(field, "bind", &set)
}

fn unused(field: &str, kind: &str, set: &[(&str, bool)]) -> Result<(), Invalid> {
    match set.iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((name, _)) => Err(Invalid::new(format!("{field}.{name}"), format!("is for type = \"{kind}\" only"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    fn mount(fields: &str) -> String {
        format!("[[mounts]]\n{fields}")
    }

    #[track_caller]
    fn refused_destination(destination: &str, reason: &str) {
        let toml = mount(&format!("source = '/a'\ndestination = '{destination}'"));
        refused(&toml, "mounts[0].destination", reason);
    }

    #[test]
    fn roots_are_absolute_and_not_the_hosts() {
        refused("rootfs = 'root'", "rootfs", "not an absolute path");
        refused("rootfs = '/'", "rootfs", "host's own root");
        refused("rootfs = '//.'", "rootfs", "host's own root");
    }

    #[test]
    fn an_ephemeral_root_can_be_written_and_fits_the_memory() {
        accepted("ephemeral = '64M'\nmemory.limit = '64M'");
        accepted("ephemeral = '1G'\nprofile = 'untrusted'");
        refused("ephemeral = '64M'\nreadonly_rootfs = true", "ephemeral", "of no use");
        refused("ephemeral = '65M'\nmemory.limit = '64M'", "ephemeral", "more than the task may use");
        refused("ephemeral = 0", "ephemeral", "too little");
        refused("ephemeral = true", "ephemeral", "invalid type");
    }

    #[test]
    fn destinations_are_checked() {
        refused_destination("", "missing");
        refused_destination("data", "not an absolute path");
        refused_destination("/data/../etc", "\"..\"");
        refused_destination("/", "root itself");
        refused_destination("//.", "root itself");
        for covered in ["/proc", "/proc/", "//proc", "/./proc", "/proc/sys", "/proc/self/attr"] {
            refused_destination(covered, "/proc");
        }
        refused_destination("/sys", "/sys");
        refused_destination("/sys/", "/sys");
        for fine in ["/sys/fs/bpf", "/process", "/system", "/data", "/etc/proc"] {
            accepted(&mount(&format!("source = '/a'\ndestination = '{fine}'")));
        }
        refused("[[mounts]]\nsource = '/a'", "mounts[0].destination", "missing");
    }

    #[test]
    fn a_place_has_one_mount() {
        let after_tmpfs = |place: &str| {
            mount(&format!("type = 'tmpfs'\ndestination = '/a'\n[[mounts]]\nsource = '/b'\ndestination = '{place}'"))
        };
        accepted(&after_tmpfs("/a/b"));
        for place in ["/a", "/a/", "//a/."] {
            refused(&after_tmpfs(place), "mounts[1].destination", "has a mount already (mounts[0])");
        }
    }

    #[test]
    fn binds_need_an_absolute_source() {
        refused(&mount("destination = '/a'"), "mounts[0].source", "missing");
        refused(&mount("destination = '/a'\nsource = 'b'"), "mounts[0].source", "absolute");
        let sized = "destination = '/a'\nsource = '/b'\nsize = '1M'";
        refused(&mount(sized), "mounts[0].size", "tmpfs");
        let unknown = "destination = '/a'\ntype = 'nfs'";
        refused(&mount(unknown), "mounts[0].type", "unknown variant");
        let propagation = "destination = '/a'\nsource = '/b'\npropagation = 'both'";
        refused(&mount(propagation), "mounts[0].propagation", "unknown variant");
    }

    #[test]
    fn a_tmpfs_has_no_source() {
        let with = |line: &str| mount(&format!("type = 'tmpfs'\ndestination = '/a'\n{line}"));
        accepted(&with("size = '1M'\nmode = '0700'"));
        refused(&with("source = '/b'"), "mounts[0].source", "bind");
        refused(&with("recursive = true"), "mounts[0].recursive", "bind");
        refused(&with("propagation = 'shared'"), "mounts[0].propagation", "bind");
        refused(&with("size = 0"), "mounts[0].size", "is 0");
        refused(&with("size = '0%'"), "mounts[0].size", "1% to 100%");
        refused(&with("inodes = 0"), "mounts[0].inodes", "is 0");
        refused(&with("uid = 4294967295"), "mounts[0].uid", "is no id");
        accepted(&with("size = '50%'\ninodes = 10\nuid = 1000\ngid = 1000"));
        refused(&with("mode = 777"), "mounts[0].mode", "octal");
        refused(&with("mode = '999'"), "mounts[0].mode", "octal");
    }

    #[test]
    fn devices_are_checked() {
        accepted("[[devices]]\npath = '/dev/kvm'\naccess = 'rw'");
        refused("[[devices]]\nhost_path = '/dev/kvm'", "devices[0].path", "missing");
        refused("[[devices]]\npath = 'kvm'", "devices[0].path", "absolute");
        refused("[[devices]]\npath = '/dev/../kvm'", "devices[0].path", "..");
        refused("[[devices]]\npath = '/proc/kvm'", "devices[0].path", "no place");
        refused("[[devices]]\npath = '/'", "devices[0].path", "no place");
        refused("[[devices]]\npath = '/a'\nhost_path = 'b'", "devices[0].host_path", "absolute");
        for access in ["", "x", "rr", "rwx"] {
            let toml = format!("[[devices]]\npath = '/a'\naccess = '{access}'");
            refused(&toml, "devices[0].access", "rwm");
        }
    }

    #[test]
    fn masked_and_readonly_paths_are_absolute() {
        accepted("masked_paths = []\nreadonly_paths = ['/etc']");
        refused("masked_paths = ['etc']", "masked_paths[0]", "absolute");
        refused("readonly_paths = ['/a/../b']", "readonly_paths[0]", "..");
    }
}
