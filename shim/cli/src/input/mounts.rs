//! `--volume`, `--mount`, `--tmpfs` and `--device`: what a task sees of the host's files, in docker's words.
//!
//! Unlike docker, a source that does not exist is refused instead of made. Must not: check what a description's own check
//! finds.

use std::path::{Component, Path, PathBuf};

use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::values::Mode;
use bowline_spec::{CdiDevice, Device, Mount, MountKind, Propagation};

/// Parses `--volume SRC:DST[:OPTIONS]`.
pub fn volume(text: &str) -> std::result::Result<Mount, String> {
    let mut parts = text.splitn(3, ':');
    let (source, destination) = match (parts.next(), parts.next()) {
        (Some(source), Some(destination)) if !source.is_empty() && !destination.is_empty() => (source, destination),
        _ => return Err(format!("{text:?} is not SRC:DST; an empty folder is --tmpfs DST")),
    };
    if !source.contains('/') && ![".", ".."].contains(&source) {
        return Err(format!("{source} is the name of a volume, and bowline has none; write the folder: ./{source}"));
    }
    let mut mount = bind(source, destination)?;
    let mut writable = None;
    for option in parts.next().into_iter().flat_map(|options| options.split(',')) {
        if set_flag(&mut mount, option) {
            continue;
        }
        let access = match option {
            "ro" | "readonly" => false,
            "rw" => true,
            "z" | "Z" if Path::new("/sys/fs/selinux/enforce").exists() => {
                return Err(format!("{option} gives files another label of SELinux, which bowline does not do"));
            }
            // As with docker, nothing to do without SELinux.
            "z" | "Z" => continue,
            option => {
                mount.propagation = Some(propagation(option)?);
                continue;
            }
        };
        if writable.replace(access).is_some_and(|earlier| earlier != access) {
            return Err(format!("{text:?} is both ro and rw"));
        }
    }
    mount.read_only = writable == Some(false);
    Ok(mount)
}

/// Parses `--mount type=bind,source=SRC,target=DST,…`, and the same with `type=tmpfs`.
pub fn mount(text: &str) -> std::result::Result<Mount, String> {
    let fields: Vec<(&str, Option<&str>)> = text.split(',').map(pair).collect();
    for (index, (key, _)) in fields.iter().enumerate() {
        if let Some((earlier, _)) = fields[..index].iter().find(|(earlier, _)| same_field(earlier) == same_field(key)) {
            return Err(match earlier == key {
                true => format!("{key} is there twice"),
                false => format!("{earlier} and {key} are two names of one field"),
            });
        }
    }
    let named = |names: &[&str]| fields.iter().find(|(key, _)| names.contains(key)).and_then(|(_, value)| *value);
    let destination = named(&["target", "destination", "dst"]);
    let destination = destination.ok_or_else(|| "target=DST is missing, the place in the task".to_owned())?;
    let source = named(&["source", "src"]);
    let mut mount = match (named(&["type"]), source) {
        (Some("bind"), Some(source)) => bind(source, destination)?,
        (Some("bind"), None) => return Err("source=SRC is missing, what of the host is mounted".to_owned()),
        (Some("tmpfs"), None) => empty(destination)?,
        (Some("tmpfs"), Some(_)) => return Err("a tmpfs has no source".to_owned()),
        (kind, _) => {
            return Err(match kind {
                Some(kind) => format!("type={kind} is not supported; write type=bind or type=tmpfs"),
                None => "type is missing; write type=bind or type=tmpfs".to_owned(),
            });
        }
    };
    for (key, value) in &fields {
        set(&mut mount, key, *value)?;
    }
    Ok(mount)
}

/// The name of a field that has several.
fn same_field(key: &str) -> &str {
    match key {
        "destination" | "dst" => "target",
        "src" => "source",
        "ro" => "readonly",
        key => key,
    }
}

/// Sets one field of `--mount`. Those that say what is mounted where have been read.
fn set(mount: &mut Mount, key: &str, value: Option<&str>) -> std::result::Result<(), String> {
    let is_bind = mount.kind == MountKind::Bind;
    let given = || value.ok_or_else(|| format!("{key} needs a value"));
    match key {
        "type" | "target" | "destination" | "dst" | "source" | "src" => {}
        "readonly" | "ro" => mount.read_only = switch(key, value)?,
        "bind-propagation" if is_bind => mount.propagation = Some(propagation(given()?)?),
        "bind-nonrecursive" if is_bind => mount.recursive = Some(!switch(key, value)?),
        "tmpfs-size" if !is_bind => mount.size = Some(given()?.parse().map_err(|wrong| format!("{key}: {wrong}"))?),
        "tmpfs-mode" if !is_bind => mount.mode = Some(mode(given()?)?),
        _ => return Err(format!("{key:?} is no field of a {}", if is_bind { "bind" } else { "tmpfs" })),
    }
    Ok(())
}

/// Parses `--tmpfs DST[:OPTIONS]`.
pub fn tmpfs(text: &str) -> std::result::Result<Mount, String> {
    let (destination, options) = text.split_once(':').map_or((text, None), |(path, options)| (path, Some(options)));
    let mut mount = empty(destination)?;
    for option in options.into_iter().flat_map(|options| options.split(',')) {
        if set_flag(&mut mount, option) {
            continue;
        }
        match pair(option) {
            ("size", Some(size)) => mount.size = Some(size.parse().map_err(|wrong| format!("size: {wrong}"))?),
            ("mode", Some(bits)) => mount.mode = Some(mode(bits)?),
            ("nr_inodes", Some(most)) => mount.inodes = Some(whole(option, most)?),
            ("uid", Some(id)) => mount.uid = Some(whole(option, id)?),
            ("gid", Some(id)) => mount.gid = Some(whole(option, id)?),
            ("ro", None) => mount.read_only = true,
            ("rw", None) => mount.read_only = false,
            _ => {
                let known = "size=64M, size=50%, mode=1777, uid=1000, gid=1000, nr_inodes=1000, ro, exec, noexec, suid, nosuid, dev, nodev";
                return Err(format!("{option:?} is no option of a tmpfs; write some of {known}"));
            }
        }
    }
    Ok(mount)
}

/// Sets the flag that `option` names, if it names one that any mount has.
fn set_flag(mount: &mut Mount, option: &str) -> bool {
    match option {
        "exec" | "noexec" => mount.noexec = Some(option == "noexec"),
        "suid" | "nosuid" => mount.nosuid = Some(option == "nosuid"),
        "dev" | "nodev" => mount.nodev = Some(option == "nodev"),
        _ => return false,
    }
    true
}

/// A device as typed.
#[derive(Debug, Clone)]
pub enum AskedDevice {
    /// A node of the host's.
    Node(Device),
    /// What a vendor's file describes.
    Cdi(CdiDevice),
}

/// Parses `--device HOST[:PATH][:ACCESS]`, or `--device vendor.com/class=name`.
pub fn asked_device(text: &str) -> std::result::Result<AskedDevice, String> {
    match !text.starts_with('/') && text.contains('=') {
        true => text.parse().map(AskedDevice::Cdi).map_err(|wrong: bowline_spec::Invalid| wrong.to_string()),
        false => device(text).map(AskedDevice::Node),
    }
}

fn device(text: &str) -> std::result::Result<Device, String> {
    let wrong = || {
        format!(
            "{text:?} is no device; write /dev/kvm, /dev/sda:/dev/disk, /dev/sda:/dev/disk:r or vendor.com/class=name"
        )
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (host, inside, access) = match parts[..] {
        [host] => (host, host, None),
        [host, inside] if inside.starts_with('/') => (host, inside, None),
        [host, access] => (host, host, Some(access)),
        [host, inside, access] => (host, inside, Some(access)),
        _ => return Err(wrong()),
    };
    if !host.starts_with('/') || !inside.starts_with('/') {
        return Err(wrong());
    }
    Ok(Device {
        path: inside.into(),
        host_path: (host != inside).then(|| host.into()),
        access: access.map(str::parse).transpose().map_err(|wrong: bowline_spec::Invalid| wrong.to_string())?,
    })
}

/// Makes the sources of binds absolute, from the working directory on.
///
/// # Errors
/// `NotFound` for a source that does not exist.
pub fn with_sources(mut mounts: Vec<Mount>) -> Result<Vec<Mount>> {
    for source in mounts.iter_mut().filter_map(|mount| mount.source.as_mut()) {
        *source = std::path::absolute(&*source).doing(Kind::Usage, || format!("{}: not a path", source.display()))?;
        // A link that leads nowhere is none either.
        if let Err(error) = std::fs::metadata(&*source) {
            let error = Error::new(Kind::NotFound, format!("cannot mount {}: {error}", source.display()));
            return Err(error.hint("unlike docker, bowline makes no folder in its place"));
        }
    }
    Ok(mounts)
}

fn bind(source: &str, destination: &str) -> std::result::Result<Mount, String> {
    let destination = inside(destination)?;
    Ok(Mount { source: Some(source.into()), destination, ..Mount::default() })
}

fn empty(destination: &str) -> std::result::Result<Mount, String> {
    Ok(Mount { kind: MountKind::Tmpfs, destination: inside(destination)?, ..Mount::default() })
}

/// A place in the task.
fn inside(path: &str) -> std::result::Result<PathBuf, String> {
    let leaves = Path::new(path).components().any(|part| part == Component::ParentDir);
    if !path.starts_with('/') || leaves {
        return Err(format!("{path:?}, the place in the task, must be an absolute path without \"..\""));
    }
    Ok(path.into())
}

/// `key=value`, or a key alone.
fn pair(text: &str) -> (&str, Option<&str>) {
    text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)))
}

fn switch(key: &str, value: Option<&str>) -> std::result::Result<bool, String> {
    match value {
        None | Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        Some(other) => Err(format!("{key} is true or false, not {other:?}")),
    }
}

fn whole<T: std::str::FromStr>(option: &str, number: &str) -> std::result::Result<T, String> {
    number.parse().map_err(|_| format!("{option:?} is not a whole number"))
}

fn mode(text: &str) -> std::result::Result<Mode, String> {
    text.parse().map_err(|wrong: bowline_spec::Invalid| format!("mode: {wrong}"))
}

fn propagation(text: &str) -> std::result::Result<Propagation, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        format!("{text:?} is no option: ro, rw, noexec, nosuid, nodev, z, Z or a propagation such as rslave")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_read_as_docker_reads_it() {
        let read = |text: &str| {
            volume(text).map(|mount| {
                let source = mount.source.map(|source| source.display().to_string()).unwrap_or_default();
                (source, mount.destination.display().to_string(), mount.read_only, mount.propagation)
            })
        };
        assert_eq!(read("/a:/b"), Ok(("/a".into(), "/b".into(), false, None)));
        assert_eq!(read("./a:/b:ro"), Ok(("./a".into(), "/b".into(), true, None)));
        assert_eq!(read(".:/b:rw,rslave"), Ok((".".into(), "/b".into(), false, Some(Propagation::Rslave))));
        for bad in ["", "/a", ":/b", "/a:", "data:/b", "/a:b", "/a:/b/../c", "/a:/b:rx", "/a:/b:ro:rw", "/a:/b:"] {
            assert!(volume(bad).is_err(), "{bad:?}");
        }
        assert_eq!(volume("/a:/b:ro,rw"), Err("\"/a:/b:ro,rw\" is both ro and rw".to_owned()));
    }

    #[test]
    fn a_mount_is_read_as_docker_reads_it() {
        let bind = mount("type=bind,src=/a,dst=/b,readonly,bind-propagation=shared").expect("a bind");
        assert!(bind.read_only && bind.propagation == Some(Propagation::Shared) && bind.source.is_some());
        let tmpfs = mount("type=tmpfs,target=/t,tmpfs-size=1M,tmpfs-mode=0700").expect("a tmpfs");
        assert_eq!((tmpfs.kind, tmpfs.size.and_then(|size| size.bytes())), (MountKind::Tmpfs, Some(1 << 20)));
        for bad in [
            "",
            "/a:/b",
            "src=/a,dst=/b",
            "type=volume,src=a,dst=/b",
            "type=bind,dst=/b",
            "type=bind,src=/a",
            "type=bind,src=/a,dst=b",
            "type=bind,src=/a,dst=/b,readonly=maybe",
            "type=bind,src=/a,dst=/b,tmpfs-size=1M",
            "type=bind,src=/a,dst=/b,x=y",
            "type=tmpfs,src=/a,dst=/b",
            "type=tmpfs,dst=/b,tmpfs-size=1Q",
            "type=tmpfs,dst=/b,tmpfs-mode=9",
            "type=bind,src=/a,src=/c,dst=/b",
            "type=bind,src=/a,target=/b,dst=/c",
            "type=bind,src=/a,dst=/b,readonly,ro=false",
        ] {
            assert!(mount(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_tmpfs_is_read_with_its_options() {
        let mount = tmpfs("/t:size=1M,mode=0700,noexec,ro").expect("a tmpfs");
        assert_eq!((mount.noexec, mount.read_only, mount.nodev), (Some(true), true, None));
        for bad in ["", "t", "/../t", "/t:size=x", "/t:size", "/t:mode=9", "/t:noatime", "/t:"] {
            assert!(tmpfs(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_device_is_read_as_docker_reads_it() {
        let read = |text: &str| {
            device(text).map(|device| {
                let host = device.host_path().display().to_string();
                (host, device.path.display().to_string(), device.access.map(|access| access.to_string()))
            })
        };
        assert_eq!(read("/dev/kvm"), Ok(("/dev/kvm".into(), "/dev/kvm".into(), None)));
        assert_eq!(read("/dev/a:/dev/b"), Ok(("/dev/a".into(), "/dev/b".into(), None)));
        assert_eq!(read("/dev/a:rw"), Ok(("/dev/a".into(), "/dev/a".into(), Some("rw".into()))));
        assert_eq!(read("/dev/a:/dev/b:r"), Ok(("/dev/a".into(), "/dev/b".into(), Some("r".into()))));
        for bad in ["", "kvm", "/dev/a:x", "/dev/a:b:r", "/dev/a:/dev/b:rx", "/dev/a:/dev/b:r:w", "/dev/a:"] {
            assert!(device(bad).is_err(), "{bad:?}");
        }
    }
}
