//! AppArmor's profiles and SELinux's labels: which of the two the kernel has in use, and how a
//! process gets its own with its program.
//!
//! ```text
//!   shim: in use, else refused ─ /proc opened ─► child: attr opened … written ─► execve
//! ```
//!
//! The profile and the label are written through the host's `/proc`, which the shim opens: the
//! task's own may be anything, and swallow the profile (CVE-2019-16884). The kernel lets a process
//! write only its own attributes, through a file that the process has opened itself
//! (`proc_pid_attr_write`, fs/proc/base.c). The mode of these files is 0666, so a process that is
//! not dumpable, or in a user namespace, can open them too. Must not: decide which profile a task
//! gets.

use std::fmt::Display;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use oci_spec::runtime::Process;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::{Errno, write};

/// The profile of tasks that name none; its source is in `package/apparmor`.
pub const DEFAULT_PROFILE: &str = "bowline-default";

/// AppArmor's name for "no profile".
const UNCONFINED: &str = "unconfined";

/// Whether AppArmor is in use.
pub fn has_apparmor() -> bool {
    fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with(b"Y"))
}

/// Whether SELinux is in use.
pub fn has_selinux() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// Whether [`DEFAULT_PROFILE`] is loaded. Without AppArmor, this is one system call.
pub fn has_default_profile() -> bool {
    // One line for each profile: bowline-default (enforce)
    let loaded = sys::read_kernel_text("/sys/kernel/security/apparmor/profiles").unwrap_or_default();
    loaded.lines().any(|line| line.rsplit_once(" (").is_some_and(|(name, _)| name == DEFAULT_PROFILE))
}

/// Refuses a profile or a label that this kernel cannot apply.
///
/// # Errors
/// `Unsupported`, naming it.
pub fn check(process: &Process) -> Result<()> {
    if let Some(profile) = profile(process).filter(|_| !has_apparmor()) {
        let message = format!("cannot apply the profile {profile}: AppArmor is not in use on this host");
        return Err(Error::new(Kind::Unsupported, message)
            .in_field("apparmor")
            .hint("boot with apparmor=1 security=apparmor, or leave the profile out"));
    }
    match label(process) {
        Some(label) => check_label("process.selinuxLabel", label),
        None => Ok(()),
    }
}

/// Refuses the SELinux label in `field` where there is no SELinux.
///
/// # Errors
/// `Unsupported`, naming both.
pub fn check_label(field: &str, label: &str) -> Result<()> {
    if has_selinux() {
        return Ok(());
    }
    let message = format!("{field}: cannot apply the label {label}: SELinux is not in use on this host");
    Err(Error::new(Kind::Unsupported, message))
}

fn profile(process: &Process) -> Option<&str> {
    process.apparmor_profile().as_deref().filter(|profile| !profile.is_empty() && *profile != UNCONFINED)
}

fn label(process: &Process) -> Option<&str> {
    process.selinux_label().as_deref().filter(|label| !label.is_empty())
}

/// The profile and the label that a process gets with its program, as the shim prepares them.
#[derive(Debug)]
pub struct Labels<'a> {
    /// The `/proc` of the host.
    proc: OwnedFd,
    profile: Option<&'a str>,
    label: Option<&'a str>,
}

/// [`Labels`] in the process itself, with the files open that take them.
#[derive(Debug)]
pub struct Opened<'a> {
    profile: Option<(&'a str, OwnedFd)>,
    /// The label, and its two files: for the program, and for keys that are made before it runs.
    label: Option<(&'a str, [OwnedFd; 2])>,
}

impl<'a> Labels<'a> {
    /// The labels of `process`; `None` if it has neither a profile nor a label.
    pub fn of(process: &'a Process) -> Result<Option<Labels<'a>>> {
        let (profile, label) = (profile(process), label(process));
        if profile.is_none() && label.is_none() {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = open("/proc", flags, Mode::empty()).doing(Kind::Internal, || "cannot open /proc")?;
        Ok(Some(Labels { proc, profile, label }))
    }

    /// The fd of the shim that the child needs until it has opened its own.
    pub fn fd(&self) -> RawFd {
        self.proc.as_raw_fd()
    }

    /// Opens the files of the calling process.
    pub fn open(&self) -> Result<Opened<'a>> {
        let attribute = |name: &str| {
            let path = format!("thread-self/attr/{name}");
            openat(&self.proc, &*path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .doing(Kind::Unsupported, || format!("cannot open /proc/{path}"))
        };
        // Linux ≥ 5.8; before, all security modules shared one file.
        let of_apparmor = || attribute("apparmor/exec").or_else(|_| attribute("exec"));
        let profile = self.profile.map(|profile| Ok::<_, Error>((profile, of_apparmor()?))).transpose()?;
        let of_selinux = || Ok::<_, Error>([attribute("exec")?, attribute("keycreate")?]);
        let label = self.label.map(|label| Ok::<_, Error>((label, of_selinux()?))).transpose()?;
        Ok(Opened { profile, label })
    }
}

impl Opened<'_> {
    /// The open files.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let of_profile = self.profile.iter().map(|(_, file)| file);
        of_profile.chain(self.label.iter().flat_map(|(_, files)| files)).map(|file| file.as_raw_fd())
    }

    /// Labels the keys that `make` makes.
    pub fn with_key_label(&self, make: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some((label, [_, keys])) = &self.label else { return make() };
        set(keys, label).map_err(|errno| unlabelled(label, errno))?;
        let made = make();
        // An empty line: policy decides again.
        set(keys, "\n").doing(Kind::Internal, || "cannot take a label back from new keys")?;
        made
    }

    /// Applies the profile and the label to the next program.
    pub fn apply(&self) -> Result<()> {
        if let Some((profile, file)) = &self.profile {
            set(file, &format!("exec {profile}")).map_err(|errno| unconfined(profile, errno))?;
        }
        if let Some((label, [program, _])) = &self.label {
            set(program, label).map_err(|errno| unlabelled(label, errno))?;
        }
        Ok(())
    }
}

fn set(file: &OwnedFd, value: &str) -> rustix::io::Result<()> {
    write(file, value.as_bytes()).map(drop)
}

fn unconfined(profile: &str, errno: Errno) -> Error {
    let refused = |why: &dyn Display| {
        Error::new(Kind::Unsupported, format!("cannot apply the profile {profile}: {why}")).in_field("apparmor")
    };
    if errno == Errno::NOENT {
        return refused(&"it is not loaded")
            .hint("load it with `apparmor_parser -r FILE`; `aa-status` lists those that are loaded");
    }
    refused(&errno)
}

fn unlabelled(label: &str, errno: Errno) -> Error {
    Error::new(Kind::Unsupported, format!("selinux: cannot apply the label {label}: {errno}"))
        .hint("the policy must know the label, and let the shim's domain give it to others")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_either_needs_nothing() {
        let mut process = Process::default();
        for profile in [None, Some(String::new()), Some(UNCONFINED.to_owned())] {
            process.set_apparmor_profile(profile);
            process.set_selinux_label(Some(String::new()));
            assert!(Labels::of(&process).expect("nothing is opened").is_none());
            assert_eq!(check(&process), Ok(()));
        }
    }

    #[test]
    fn what_the_kernel_lacks_is_refused_by_name() {
        let mut process = Process::default();
        process.set_apparmor_profile(Some("web".to_owned()));
        if !has_apparmor() {
            let error = check(&process).expect_err("no AppArmor");
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains("web"), "{error}");
        }
        process.set_apparmor_profile(None);
        process.set_selinux_label(Some("u:r:t:s0".to_owned()));
        if !has_selinux() {
            let error = check(&process).expect_err("no SELinux");
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains("u:r:t:s0"), "{error}");
        }
    }

    #[test]
    fn the_hosts_files_are_found_from_wherever_the_root_is() {
        let mut process = Process::default();
        process.set_apparmor_profile(Some("web".to_owned()));
        let labels = Labels::of(&process).expect("/proc is there").expect("a profile");
        // Without a security module there may be no such files at all.
        if let Ok(opened) = labels.open() {
            assert!(opened.apply().is_err(), "there is no such profile");
        }
    }
}
