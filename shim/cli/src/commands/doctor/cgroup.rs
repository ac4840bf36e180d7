//! Checks cgroups: the version, the controllers, and whether bowline can use them where it makes its own cgroups.

use std::path::Path;

use bowline_executor::internal::housekeeping::runs_systemd;
use bowline_executor::internal::probe::{self, Cgroups, Hierarchy};

use super::fact::{Fact, State};
use super::setting::setting;

/// A controller: its names on v2 and v1, what is refused without it, and whether that is every task by default.
struct Controller {
    v2: &'static str,
    v1: &'static str,
    effect: &'static str,
    needed: bool,
}

const CONTROLLERS: [Controller; 6] = [
    Controller { v2: "cpu", v1: "cpu", effect: "`cpu.limit` and `cpu.shares` are refused", needed: false },
    Controller {
        v2: "memory",
        v1: "memory",
        effect: "memory limits are refused, memory is not measured",
        needed: false,
    },
    Controller {
        v2: "pids",
        v1: "pids",
        effect: "tasks are refused but for those with `pids = \"unlimited\"`",
        needed: true,
    },
    Controller { v2: "cpuset", v1: "cpuset", effect: "`cpu.cpuset` and `cpu.mems` are refused", needed: false },
    Controller {
        v2: "io",
        v1: "blkio",
        effect: "limits of block devices are refused, block I/O is not measured",
        needed: false,
    },
    Controller { v2: "hugetlb", v1: "hugetlb", effect: "limits of huge pages are refused", needed: false },
];

pub fn facts() -> Vec<Fact> {
    let cgroups = match probe::cgroups() {
        Ok(cgroups) => cgroups,
        Err(error) => {
            let fact = Fact::blocks("cgroups", error.message(), "tasks cannot be limited, found or killed");
            return vec![fact.fix("mount -t cgroup2 cgroup2 /sys/fs/cgroup")];
        }
    };
    if cgroups.hierarchies.is_empty() {
        let effect = "tasks need `pids = \"unlimited\"`; limits and pausing are refused, and nothing is measured";
        let fact = Fact::blocks("cgroups", "none that was left to this user namespace", effect);
        return vec![fact.fix("have one of cgroup v2 delegated to its user: of a systemd unit, by Delegate=yes")];
    }
    let mut facts = vec![version(&cgroups), writable(&cgroups)];
    facts.extend(CONTROLLERS.iter().map(|controller| available(&cgroups, controller)));
    if cgroups.v2 {
        facts.push(handed_down(&cgroups));
        facts.extend([kill(&cgroups), peak(&cgroups)]);
        facts.push(Fact::has("freezing", "by cgroup.freeze"));
        facts.push(Fact::has("device rules", "by eBPF, as there is no controller on v2"));
    } else {
        // Without a freezer hierarchy, detection would have failed.
        facts.push(Fact::has("cgroup controller freezer", place(&cgroups, "freezer").unwrap_or_default()));
        facts.push(devices(&cgroups));
    }
    facts.extend([swap(&cgroups), cpu_burst(&cgroups), cpu_idle(&cgroups)]);
    facts
}

fn version(cgroups: &Cgroups) -> Fact {
    let unified = cgroups.hierarchies.iter().any(|hierarchy| hierarchy.unified);
    let name = "cgroup version";
    match (cgroups.v2, unified) {
        (true, _) => Fact::has(name, "2"),
        (false, true) => newer(Fact::lacks(name, "1, with v2 beside it (hybrid)", COST_OF_V1)),
        (false, false) => newer(Fact::lacks(name, "1", COST_OF_V1)),
    }
}

const COST_OF_V1: &str = "`memory.high` and `unified` are refused, and there are figures that v1 does not have";

fn newer(fact: Fact) -> Fact {
    fact.fix(match runs_systemd() {
        true => "the kernel parameter systemd.unified_cgroup_hierarchy=1",
        false => "the kernel parameter cgroup_no_v1=all, and cgroup2 mounted at /sys/fs/cgroup",
    })
}

/// Whether bowline may create cgroups.
fn writable(cgroups: &Cgroups) -> Fact {
    let name = "making cgroups";
    let closed: Vec<String> =
        cgroups.hierarchies.iter().filter(|h| !h.writable).map(|h| h.mount.display().to_string()).collect();
    if closed.is_empty() {
        let own = cgroups.own.as_deref().unwrap_or(Path::new("/")).display();
        return Fact::has(name, format!("at the top of each hierarchy; this process is in {own}"));
    }
    let fact = Fact::blocks(name, format!("cannot write to {}", closed.join(", ")), "no task has a cgroup of its own");
    match &closed[..] {
        [one] if rustix::process::geteuid().is_root() => fact.fix(format!("mount -o remount,rw {one}")),
        _ => fact,
    }
}

/// The hierarchy that a controller is in.
fn hierarchy_of<'a>(cgroups: &'a Cgroups, name: &str) -> Option<&'a Hierarchy> {
    cgroups.hierarchies.iter().find(|hierarchy| hierarchy.controllers.iter().any(|c| c == name))
}

fn place(cgroups: &Cgroups, name: &str) -> Option<String> {
    hierarchy_of(cgroups, name).map(|hierarchy| hierarchy.mount.display().to_string())
}

fn available(cgroups: &Cgroups, controller: &Controller) -> Fact {
    // On a hybrid host a controller may be in either version.
    let names = if cgroups.v2 { [controller.v2, controller.v2] } else { [controller.v1, controller.v2] };
    let title = format!("cgroup controller {}", names[0]);
    if let Some(place) = names.iter().find_map(|name| place(cgroups, name)) {
        return Fact::has(title, place);
    }
    let make = if controller.needed { Fact::blocks } else { Fact::lacks };
    let fact = make(title, "not there".to_owned(), controller.effect.to_owned());
    fact.maybe_fix(fix(cgroups, controller.v1))
}

/// The fix for a controller that the kernel has. `name` is its name on v1, which `/proc/cgroups` uses.
fn fix(cgroups: &Cgroups, name: &str) -> Option<String> {
    if cgroups.v2 && !has_real_top(cgroups) {
        return Some("have the cgroup above hand it down; of a systemd unit, by Delegate=yes".to_owned());
    }
    let known = setting("/proc/cgroups").unwrap_or_default();
    let line = known.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    let enabled = line.split_whitespace().nth(3) == Some("1");
    Some(match (enabled, cgroups.v2) {
        (false, _) => format!("the kernel parameter cgroup_enable={name}"),
        (true, false) => {
            format!("mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} {name} /sys/fs/cgroup/{name}")
        }
        // A controller that v1 has is not available on v2.
        (true, true) => format!("umount -a -t cgroup -O {name}"),
    })
}

/// Whether the root of the v2 hierarchy is the real one, not that of a container or a unit. Only the real root has no
/// cgroup.type.
fn has_real_top(cgroups: &Cgroups) -> bool {
    cgroups.hierarchies.iter().any(|h| h.unified && !h.mount.join("cgroup.type").exists())
}

/// On v2: whether the controllers of the root are handed down, or can be.
fn handed_down(cgroups: &Cgroups) -> Fact {
    let name = "controllers handed down";
    let Some(top) = cgroups.hierarchies.iter().find(|h| h.unified) else {
        return Fact::unknown(name);
    };
    let read = |file: &str| std::fs::read_to_string(top.mount.join(file)).unwrap_or_default();
    let handed = read("cgroup.subtree_control");
    let missing: Vec<&str> = CONTROLLERS
        .iter()
        .map(|controller| controller.v2)
        .filter(|name| top.controllers.iter().any(|c| c == name) && !handed.split_whitespace().any(|c| c == *name))
        .collect();
    // Except at the real root, processes in a cgroup forbid handing controllers down.
    let busy = !has_real_top(cgroups) && !read("cgroup.procs").trim().is_empty();
    match (missing.is_empty(), busy || !top.writable) {
        (true, _) => Fact::has(name, handed.trim()),
        (false, false) => Fact::has(name, format!("{} when a task needs them", missing.join(" "))),
        (false, true) => {
            let effect = format!("limits of {} are refused", missing.join(", "));
            let first = missing.first().copied().unwrap_or_default();
            let file = top.mount.join("cgroup.subtree_control");
            Fact::lacks(name, format!("not {}", missing.join(" ")), effect).fix(format!(
                "move the processes of {} below it, then: echo +{first} >{}",
                top.mount.display(),
                file.display()
            ))
        }
    }
}

fn kill(cgroups: &Cgroups) -> Fact {
    let effect = "processes are frozen and killed one by one instead";
    since("5.14", "cgroup.kill", cgroups.hierarchies.iter().find_map(|h| h.has_kill), effect)
}

fn peak(cgroups: &Cgroups) -> Fact {
    let effect = "the most memory that a task had at a time is not measured, and a memory limit below what is in use is \
                  refused";
    since("5.19", "memory.peak", hierarchy_of(cgroups, "memory").and_then(|h| h.has_peak), effect)
}

fn cpu_burst(cgroups: &Cgroups) -> Fact {
    let found = hierarchy_of(cgroups, "cpu").and_then(|h| h.has_cpu_burst);
    since("5.14", "CPU burst", found, "`linux.resources.cpu.burst` of a bundle is refused")
}

fn cpu_idle(cgroups: &Cgroups) -> Fact {
    let found = hierarchy_of(cgroups, "cpu").and_then(|h| h.has_cpu_idle);
    since("5.15", "idle CPU class", found, "`linux.resources.cpu.idle` of a bundle is refused")
}

/// A fact about what the kernel's cgroups have from `version` of Linux on, with the `effect` of its absence.
fn since(version: &str, name: &str, found: Option<bool>, effect: &str) -> Fact {
    match found {
        Some(true) => Fact::has(name, "yes"),
        Some(false) => Fact::lacks(name, "no", effect).fix(format!("a kernel from Linux {version} on")),
        None => Fact::new(name, State::Unknown, "there is no cgroup that would show it"),
    }
}

fn devices(cgroups: &Cgroups) -> Fact {
    let name = "cgroup controller devices";
    match place(cgroups, "devices") {
        Some(place) => Fact::has(name, place),
        None => {
            let fact = Fact::blocks(name, "not there", "no task can be kept from the host's devices");
            fact.maybe_fix(fix(cgroups, "devices"))
        }
    }
}

fn swap(cgroups: &Cgroups) -> Fact {
    let name = "swap limits";
    let has = hierarchy_of(cgroups, "memory").and_then(|h| h.has_swap_limit);
    // The first line holds the column names.
    let areas = setting("/proc/swaps").map_or(0, |text| text.lines().skip(1).count());
    let there = match areas {
        0 => "no swap".to_owned(),
        1 => "one swap area".to_owned(),
        more => format!("{more} swap areas"),
    };
    match has {
        Some(true) => Fact::has(name, there),
        Some(false) => Fact::lacks(name, there, "`memory.swap` is refused").fix("the kernel parameter swapaccount=1"),
        None => Fact::new(name, State::Unknown, "there is no cgroup with memory that would show it"),
    }
}
