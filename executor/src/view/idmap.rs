//! User namespaces without a process: idmapped mounts show owners by them.
//!
//! A child is cloned into a new namespace and ends once the namespace is open. The caller waits for
//! this child, which runs no program, for a moment only. The namespace that hides all owners is
//! part of most launches: its child maps one id by itself, in our memory, which takes a quarter of
//! the time.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Cloned};
use oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder, Spec};
use rustix::fs::{self, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, getegid, geteuid, waitid};
use serde::{Deserialize, Serialize};

/// The ids on the host of `user` and `group` inside the task.
///
/// An id that is not mapped is left as it is: becoming that user or group will fail, and say so.
pub fn host_ids(spec: &Spec, user: u32, group: u32) -> (u32, u32) {
    let linux = spec.linux().as_ref();
    let host = |mappings: Option<&Vec<LinuxIdMapping>>, id: u32| {
        mappings.into_iter().flatten().find_map(|mapping| outside(mapping, id)).unwrap_or(id)
    };
    let uid = host(linux.and_then(|l| l.uid_mappings().as_ref()), user);
    let gid = host(linux.and_then(|l| l.gid_mappings().as_ref()), group);
    (uid, gid)
}

/// The id on the host of `id` inside, if it is in this range.
pub fn outside(mapping: &LinuxIdMapping, id: u32) -> Option<u32> {
    let offset = id.checked_sub(mapping.container_id()).filter(|offset| *offset < mapping.size())?;
    mapping.host_id().checked_add(offset)
}

/// The id maps of a user namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idmap {
    /// Ranges of user ids, inside and outside.
    pub uids: Vec<LinuxIdMapping>,
    /// Ranges of group ids, inside and outside.
    pub gids: Vec<LinuxIdMapping>,
}

impl Idmap {
    /// Creates a user namespace with these maps. Call this where `/proc` is the host's, in a
    /// process with one thread that may map ids.
    ///
    /// # Errors
    /// `BadSpec` for maps that the kernel refuses.
    pub fn user_namespace(&self) -> Result<OwnedFd> {
        if self.uids.is_empty() || self.gids.is_empty() {
            return Err(Error::new(Kind::BadSpec, "an idmapped mount needs mappings of both users and groups"));
        }
        check("uidMappings", &self.uids)?;
        check("gidMappings", &self.gids)?;
        let what = || "cannot make a user namespace";
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
        match sys::clone3(libc::CLONE_NEWUSER as u64, None).doing(Kind::Unsupported, what)? {
            Cloned::Child => {
                sys::close_all_but(&mut [read.as_raw_fd()]);
                // Wait until the parent has all that it needs, or is gone.
                let _ = sys::read_fd(read.as_raw_fd(), &mut [0]);
                sys::exit_now(0)
            }
            Cloned::Parent { pid, pidfd } => {
                let opened = self.write(pid).and_then(|()| {
                    File::open(format!("/proc/{pid}/ns/user")).doing(Kind::Internal, || "cannot open a user namespace")
                });
                drop(write);
                // In the shim, the sweep will not see this child.
                let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
                Ok(opened?.into())
            }
        }
    }

    fn write(&self, pid: i32) -> Result<()> {
        for (file, mappings) in [("uid_map", &self.uids), ("gid_map", &self.gids)] {
            let text = text(mappings);
            let what = || format!("cannot map ids by {:?} ({file})", text.trim_end());
            std::fs::write(format!("/proc/{pid}/{file}"), &text).doing(Kind::BadSpec, what)?;
        }
        Ok(())
    }
}

/// Creates a user namespace that maps no file's owner; `None` where the kernel makes none.
///
/// The kernel wants one id mapped. A namespace that maps itself can only map ours, which stands for
/// the last id that there is, which no file has.
pub fn nobodys() -> Option<OwnedFd> {
    if sys::absent("mount_setattr") {
        return None;
    }
    let ours = |id: u32| format!("{} {id} 1", u32::MAX - 1);
    let (uids, gids) = (ours(geteuid().as_raw()), ours(getegid().as_raw()));
    let write = |file: &str, text: &str| -> rustix::io::Result<()> {
        let file = fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, text.as_bytes()).map(drop)
    };
    let made = sys::in_user_namespace(|| {
        write("/proc/self/uid_map", &uids)?;
        // The kernel requires this of a process that maps a group by itself.
        write("/proc/self/setgroups", "deny")?;
        write("/proc/self/gid_map", &gids)?;
        fs::open("/proc/self/ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    });
    made.ok()?.ok()
}

/// Refuses ranges that the kernel takes in no map (user_namespaces(7)), by their number in `field`.
///
/// # Errors
/// `BadSpec` naming the range.
pub fn check(field: &str, mappings: &[LinuxIdMapping]) -> Result<()> {
    let bad = |index: usize, why: String| Err(Error::new(Kind::BadSpec, format!("{field}[{index}]: {why}")));
    let ranges = |mapping: &LinuxIdMapping| [mapping.container_id(), mapping.host_id()].map(|id| (id, mapping.size()));
    for (index, mapping) in mappings.iter().enumerate() {
        if mapping.size() == 0 {
            return bad(index, "its size is 0".to_owned());
        }
        if ranges(mapping).into_iter().any(|(first, size)| first.checked_add(size).is_none()) {
            return bad(index, format!("it goes beyond the last id, {}", u32::MAX - 1));
        }
        let overlap = |other: &LinuxIdMapping| {
            ranges(mapping)
                .into_iter()
                .zip(ranges(other))
                .any(|(one, two)| one.0 < two.0 + two.1 && two.0 < one.0 + one.1)
        };
        if let Some(other) = mappings[..index].iter().position(overlap) {
            return bad(index, format!("it has ids that {field}[{other}] has too"));
        }
    }
    Ok(())
}

/// The mappings as text, `container host size` a line (user_namespaces(7)).
pub fn text(mappings: &[LinuxIdMapping]) -> String {
    mappings.iter().map(|m| format!("{} {} {}\n", m.container_id(), m.host_id(), m.size())).collect()
}

/// Parses `container:host:size`, several of them with commas in between.
pub fn parse(text: &str) -> Option<Vec<LinuxIdMapping>> {
    let number = |part: Option<&str>| part?.parse::<u32>().ok();
    let one = |text: &str| {
        let mut parts = text.split(':');
        let mapping = LinuxIdMappingBuilder::default()
            .container_id(number(parts.next())?)
            .host_id(number(parts.next())?)
            .size(number(parts.next())?);
        if parts.next().is_some() { None } else { mapping.build().ok() }
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_no_map_can_have_are_named() {
        let check = |text: &str| check("uidMappings", &parse(text).expect("plain")).map_err(|error| error.to_string());
        for good in ["0:0:4294967295", "0:1000:10,10:1010:10", "20:5:1,0:1000:10"] {
            assert_eq!(check(good), Ok(()));
        }
        for (bad, named) in [
            ("0:1000:10,9:2000:10", "uidMappings[1]: it has ids that uidMappings[0] has too"),
            ("0:1000:10,50:1:1,10:1009:10", "uidMappings[2]: it has ids that uidMappings[0] has too"),
            ("0:1000:0", "uidMappings[0]: its size is 0"),
            ("0:1:4294967295", "uidMappings[0]: it goes beyond the last id, 4294967294"),
        ] {
            assert_eq!(check(bad), Err(named.to_owned()));
        }
    }

    #[test]
    fn mappings_are_read_and_written() {
        let mappings = parse("0:1000:65536,65536:200000:1").expect("plain");
        assert_eq!(text(&mappings), "0 1000 65536\n65536 200000 1\n");
        for bad in ["", "0:1", "0:1:2:3", "a:1:2", "0:1:2,", "0:1:4294967296"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
