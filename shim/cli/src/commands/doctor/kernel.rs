//! Checks kernel features that came late, each with what is done without it.

use std::path::{Path, PathBuf};

use bowline_executor::internal::probe;

use super::fact::Fact;
use super::setting::setting;

/// The oldest kernel that bowline is tested on. Its close_range, of 5.9, keeps the shim's files from tasks.
const OLDEST: (u32, u32) = (5, 10);

pub fn facts(root: bool) -> Vec<Fact> {
    let mut facts = vec![version(), openat2(), close_range(), pressure()];
    if root {
        facts.extend([mounts(), clone_into_cgroup(), overlay(), idmapped_mounts()]);
    } else {
        let names = ["mounts through files", "cloning into a cgroup", "overlayfs", "idmapped mounts"];
        facts.extend(names.map(Fact::unknown));
    }
    #[cfg(feature = "absent")]
    facts.push(Fact::new(
        "taken for absent",
        super::fact::State::Lacks,
        bowline_executor::internal::all_absent().join(" "),
    ));
    facts
}

fn version() -> Fact {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let found = format!("Linux {release}, {}", name.machine().to_string_lossy());
    if numbers(&release) >= OLDEST {
        return Fact::has("kernel", found);
    }
    let (major, minor) = OLDEST;
    Fact::blocks("kernel", found, format!("tasks run from Linux {major}.{minor} on"))
}

/// The major and minor version of a kernel release.
fn numbers(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn openat2() -> Fact {
    let name = "openat2";
    if probe::openat2() {
        return Fact::has(name, "yes");
    }
    Fact::lacks(name, "no", "paths of an image are resolved step by step instead").fix("a kernel from Linux 5.6 on")
}

fn close_range() -> Fact {
    let name = "close_range";
    if probe::marks_many_fds() {
        return Fact::has(name, "with CLOSE_RANGE_CLOEXEC");
    }
    let effect = "the shim's files are kept from a program one by one: a process starts a little later";
    Fact::lacks(name, "without CLOSE_RANGE_CLOEXEC", effect)
        .fix("a kernel from Linux 5.11 on, or an outer seccomp filter that allows it")
}

fn mounts() -> Fact {
    let name = "mounts through files";
    if probe::mounts_through_fds() {
        return Fact::has(name, "fsopen, open_tree, mount_setattr");
    }
    let effect = "mounts are made by mount(2) instead; sharing them with the host is refused, and read-only binds \
                where a mount below is covered by another";
    Fact::lacks(name, "no", effect).fix("a kernel from Linux 5.12 on, or an outer seccomp filter that allows them")
}

fn clone_into_cgroup() -> Fact {
    let name = "cloning into a cgroup";
    if probe::clones_into_cgroups() {
        return Fact::has(name, "yes");
    }
    Fact::lacks(name, "no", "a process joins its cgroup as its first step instead").fix("a kernel from Linux 5.7 on")
}

fn overlay() -> Fact {
    let name = "overlayfs";
    let binary = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/env"));
    match probe::overlay(&binary) {
        Ok(()) => Fact::has(name, "read-only, attached nowhere"),
        Err(error) => {
            let effect = "each shim runs from a copy of its binary in memory, which shims do not share";
            let fact = Fact::lacks(name, error.to_string(), effect);
            // If the kernel knows overlayfs, the mount API is missing and not the module.
            let known = setting("/proc/filesystems").is_some_and(|text| text.contains("\toverlay"));
            if known { fact } else { fact.fix("modprobe overlay") }
        }
    }
}

fn idmapped_mounts() -> Fact {
    let name = "idmapped mounts";
    match probe::idmapped_mount() {
        Ok(()) => Fact::has(name, "yes"),
        Err(error) => {
            let effect =
                "mounts that map owners are refused; of the host's /etc a task gets a copy of what programs need";
            Fact::lacks(name, error.to_string(), effect).fix("a kernel from Linux 5.12 on")
        }
    }
}

fn pressure() -> Fact {
    let name = "pressure stall information";
    // Read the file: with PSI switched off it exists, but reading it fails.
    if Path::new("/proc/pressure").exists() && setting("/proc/pressure/cpu").is_some() {
        return Fact::has(name, "yes");
    }
    Fact::lacks(name, "no", "`bowline stats` shows no pressure").fix("the kernel parameter psi=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_up_to_its_suffix() {
        assert_eq!(numbers("6.12.38+deb13-amd64"), (6, 12));
        assert_eq!(numbers("5.10-rc1"), (5, 10));
        assert!(numbers("5.9.16") < OLDEST && numbers("5.10.0-30-amd64") >= OLDEST);
    }
}
