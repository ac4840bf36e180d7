//! The id maps of a user namespace that a task joins.
//!
//! A configuration that names a namespace need not say how it maps ids, and must not say anything else than it does: runc
//! refuses that since 1.2. The task's own maps are put into the configuration, for whoever asks which id of the host is
//! meant.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Cloned};
use oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespaceType, Spec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::view::idmap::{self, Idmap};

/// Puts the maps of the user namespace that `spec` joins into it, if it joins one. Call this where `/proc` is the host's,
/// in a process with one thread.
///
/// # Errors
/// `BadSpec` for mappings that are others, and for a namespace that cannot be joined.
pub fn complete(spec: &mut Spec) -> Result<()> {
    let Some(path) = path(spec).map(Path::to_owned) else { return Ok(()) };
    let Some(linux) = spec.linux_mut() else { return Ok(()) };
    let maps = maps(&path)?;
    let said = |mappings: &Option<Vec<LinuxIdMapping>>| mappings.clone().unwrap_or_default();
    let (uids, gids) = (said(linux.uid_mappings()), said(linux.gid_mappings()));
    if !uids.is_empty() || !gids.is_empty() {
        same("uidMappings", &uids, &maps.uids, &path)?;
        same("gidMappings", &gids, &maps.gids, &path)?;
    }
    let some = |mappings: Vec<LinuxIdMapping>| Some(mappings).filter(|mappings| !mappings.is_empty());
    linux.set_uid_mappings(some(maps.uids)).set_gid_mappings(some(maps.gids));
    Ok(())
}

fn same(name: &str, said: &[LinuxIdMapping], real: &[LinuxIdMapping], path: &Path) -> Result<()> {
    if said == real {
        return Ok(());
    }
    let one_line = |mappings| idmap::text(mappings).trim_end().replace('\n', ", ");
    let (said, real, path) = (one_line(said), one_line(real), path.display());
    let message = format!("linux.{name}: {said:?} is not how the user namespace {path} maps ids, by {real:?}");
    Err(Error::new(Kind::BadSpec, message).hint("leave the mappings out where a namespace is joined"))
}

/// The path of the user namespace that the task joins.
pub fn path(spec: &Spec) -> Option<&Path> {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let user = namespaces.into_iter().flatten().find(|namespace| namespace.typ() == LinuxNamespaceType::User)?;
    user.path().as_deref().filter(|path| !path.as_os_str().is_empty())
}

/// How the namespace at `path` maps ids.
fn maps(path: &Path) -> Result<Idmap> {
    let maps = match process(path) {
        Some(process) => read(&process, path),
        None => of_member(path),
    };
    maps.map_err(|error| error.in_field("namespaces.user"))
}

/// The folder in `/proc` of the process whose namespace `path` is.
fn process(path: &Path) -> Option<PathBuf> {
    let process = path.strip_prefix("/proc").ok()?.parent()?.parent()?;
    path.ends_with("ns/user").then(|| Path::new("/proc").join(process))
}

fn read(process: &Path, namespace: &Path) -> Result<Idmap> {
    let map = |file: &str| -> Result<Vec<LinuxIdMapping>> {
        let what = || format!("cannot read how {} maps ids", namespace.display());
        let text = fs::read_to_string(process.join(file)).doing(Kind::BadSpec, what)?;
        parse(&text).ok_or_else(|| Error::new(Kind::Internal, what()))
    };
    Ok(Idmap { uids: map("uid_map")?, gids: map("gid_map")? })
}

/// Reads a map as the kernel writes it (user_namespaces(7)).
fn parse(text: &str) -> Option<Vec<LinuxIdMapping>> {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        let mut next = || numbers.next().flatten();
        let mapping = LinuxIdMappingBuilder::default().container_id(next()?).host_id(next()?).size(next()?);
        mapping.build().ok()
    };
    text.lines().map(line).collect()
}

/// The maps of a namespace that need not have a process: a child joins it for as long as they are read.
fn of_member(path: &Path) -> Result<Idmap> {
    let what = || format!("cannot join {}", path.display());
    let namespace = File::open(path).doing(Kind::BadSpec, || format!("cannot open {}", path.display()))?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, what);
    let ((joined, tell), (wait, go)): ((OwnedFd, OwnedFd), (OwnedFd, OwnedFd)) = (pipe()?, pipe()?);
    match sys::clone3(0, None).doing(Kind::Internal, what)? {
        Cloned::Child => {
            sys::close_all_but(&mut [namespace.as_raw_fd(), tell.as_raw_fd(), wait.as_raw_fd()]);
            let told =
                sys::setns(namespace.as_fd(), libc::CLONE_NEWUSER).is_ok() && rustix::io::write(&tell, &[0]).is_ok();
            if told {
                let _ = rustix::io::read(&wait, &mut [0; 1]);
            }
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => {
            drop((tell, wait));
            let is_in = rustix::io::read(&joined, &mut [0; 1]) == Ok(1);
            let maps = if is_in {
                read(&Path::new("/proc").join(pid.to_string()), path)
            } else {
                Err(Error::new(Kind::BadSpec, what()).hint("name a user namespace below bowline's own"))
            };
            drop(go);
            // In the shim, the sweep will not see this child.
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            maps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_as_the_kernel_writes_it() {
        let map = parse("         0     100000      65536\n     65536          7          1\n").expect("a map");
        assert_eq!(idmap::text(&map), "0 100000 65536\n65536 7 1\n");
        assert_eq!(parse(""), Some(Vec::new()));
        assert_eq!(parse("0 1"), None);
    }

    #[test]
    fn the_process_of_a_namespace_is_found() {
        for (path, found) in [
            ("/proc/12/ns/user", Some("/proc/12")),
            ("/proc/12/task/13/ns/user", Some("/proc/12/task/13")),
            ("/run/ns/user", None),
            ("/proc/12/ns/net", None),
        ] {
            assert_eq!(process(Path::new(path)).as_deref(), found.map(Path::new), "{path}");
        }
    }
}
