//! Checks the surroundings of the kernel: the user, the state folder, terminals, and other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bowline_client::nomad_labels;
use bowline_client::spawn::Programs;
use bowline_executor::internal::housekeeping::runs_systemd;
use bowline_model::folder::StateDir;
use bowline_spec::{PLUGIN_FOLDERS, TaskId};
use rustix::fs::{Access, AtFlags, CWD};

use super::fact::Fact;
use super::setting::setting;
use crate::input::cdi::gpus;
use crate::input::cdi::known::{Known, listed};

/// With less space than this, task output soon no longer fits.
const LITTLE_ROOM: u64 = 16 << 20;

/// Filesystems by their magic number, from linux/magic.h.
const FILESYSTEMS: [(u64, &str); 9] = [
    (0x0102_1994, "tmpfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "nfs"),
    (0x6573_5546, "fuse"),
];

/// Package managers, and their install commands.
const MANAGERS: [(&str, &str); 5] = [
    ("apt-get", "apt-get install"),
    ("dnf", "dnf install"),
    ("zypper", "zypper install"),
    ("pacman", "pacman -S"),
    ("apk", "apk add"),
];

/// The plugins of a bridge, with addresses, published ports and a way through the host's firewall.
const BRIDGE_PLUGINS: [&str; 4] = ["bridge", "host-local", "portmap", "firewall"];

const JOURNAL: &str = "/run/systemd/journal/socket";

pub fn facts(root: bool, state: &StateDir, cdi: &[PathBuf]) -> Vec<Fact> {
    let always = [user(root), state_folder(state.path()), terminals(), init(), oci(), systemd(), journald()];
    always.into_iter().chain([plugins(), iptables(), criu(), devices(cdi)]).chain(nomad_driver(state)).collect()
}

fn user(root: bool) -> Fact {
    let name = "root";
    if !root {
        return Fact::blocks(name, "no", "tasks cannot be started").fix("run bowline as root, such as by sudo");
    }
    // The initial user namespace maps every id to itself.
    let map = setting("/proc/self/uid_map").unwrap_or_default();
    let first = map.split_whitespace().eq(["0", "0", "4294967295"]);
    Fact::has(name, if first { "yes" } else { "of a user namespace, not of the host" })
}

fn state_folder(path: &Path) -> Fact {
    let name = "state folder";
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let made = if there == path { "" } else { " (made when it is needed)" };
    let choose = "choose another with --state DIR, or BOWLINE_STATE";
    if !there.is_dir() {
        let found = format!("{}: {} is no folder", path.display(), there.display());
        return Fact::blocks(name, found, "no task can be recorded").fix(choose);
    }
    if let Err(error) = rustix::fs::accessat(CWD, there, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        let found = format!("{}: cannot write to {}: {error}", path.display(), there.display());
        return Fact::blocks(name, found, "no task can be recorded").fix(choose);
    }
    let Ok(stat) = rustix::fs::statfs(there) else {
        return Fact::has(name, format!("{}{made}", path.display()));
    };
    let number = stat.f_type as u64 & 0xffff_ffff;
    let kind = FILESYSTEMS.iter().find(|(magic, _)| *magic == number);
    let kind = kind.map_or_else(|| format!("filesystem {number:#x}"), |(_, kind)| (*kind).to_owned());
    let room = stat.f_bavail.saturating_mul(stat.f_bsize.unsigned_abs());
    let found = format!("{}{made}: {kind}, {} MiB left", path.display(), room >> 20);
    if room < LITTLE_ROOM {
        return Fact::lacks(name, found, "output that does not fit is dropped, and a full one takes no task")
            .fix(choose);
    }
    Fact::has(name, found)
}

fn terminals() -> Fact {
    let name = "terminals";
    let devpts = setting("/proc/filesystems").is_some_and(|text| text.lines().any(|line| line.ends_with("\tdevpts")));
    if devpts {
        return Fact::has(name, "devpts");
    }
    Fact::lacks(name, "no devpts", "tasks cannot have terminals").fix("a kernel with CONFIG_UNIX98_PTYS")
}

fn init() -> Fact {
    let name = "bowline-init";
    let Some(path) = Programs::default().init() else {
        let effect = "no init is above a task's command, unless its description asks for one: it is then refused";
        return Fact::lacks(name, "not found", effect).fix("install it beside bowline-shim");
    };
    Fact::has(name, path.display().to_string())
}

fn oci() -> Fact {
    let name = "bowline-oci";
    let beside = std::env::current_exe().map(|own| own.with_file_name(name)).unwrap_or_default();
    if !beside.is_file() {
        let effect = "nothing, unless Podman or another caller of an OCI runtime is to use bowline";
        return Fact::lacks(name, "not found", effect).fix("install it beside bowline");
    }
    Fact::has(name, beside.display().to_string())
}

fn systemd() -> Fact {
    let name = "systemd";
    if !runs_systemd() {
        let effect = "`--slice`, `--cgroup-driver systemd` and `limits` are refused; cgroups are made through cgroupfs";
        return Fact::lacks(name, "not running", effect);
    }
    let version = first_line("systemctl").unwrap_or_else(|| "running".to_owned());
    let bus = if Path::new("/run/dbus/system_bus_socket").exists() { "with D-Bus" } else { "without D-Bus" };
    Fact::has(name, format!("{version}, {bus}"))
}

fn journald() -> Fact {
    let name = "journald";
    if Path::new(JOURNAL).exists() {
        return Fact::has(name, JOURNAL);
    }
    Fact::lacks(name, "not running", "`--log journald` is refused")
}

/// The plugins that `--network bridge` runs.
fn plugins() -> Fact {
    let name = "network plugins";
    let place = |plugin: &str| PLUGIN_FOLDERS.iter().find(|folder| Path::new(folder).join(plugin).is_file());
    let missing: Vec<&str> = BRIDGE_PLUGINS.into_iter().filter(|plugin| place(plugin).is_none()).collect();
    if missing.is_empty() {
        return Fact::has(name, BRIDGE_PLUGINS.join(" "));
    }
    let fact = Fact::lacks(name, format!("no {}", missing.join(", ")), "`--network bridge` and `--publish` fail");
    fact.maybe_fix(install("containernetworking-plugins"))
}

fn iptables() -> Fact {
    let name = "iptables";
    if let Some(path) = in_path(name) {
        return Fact::has(name, path.display().to_string());
    }
    let effect = "`--network bridge` and `--publish` fail, whose plugins run it";
    Fact::lacks(name, "not found", effect).maybe_fix(install("iptables"))
}

fn criu() -> Fact {
    let name = "CRIU";
    match first_line("criu") {
        Some(version) => Fact::has(name, version),
        None => {
            let effect = "no checkpoints of containers that containerd runs";
            Fact::lacks(name, "not found", effect).maybe_fix(install("criu"))
        }
    }
}

/// The devices of vendors' files.
fn devices(folders: &[PathBuf]) -> Fact {
    let name = "CDI devices";
    let known = Known::of(folders);
    let (devices, left_out) = (known.devices(None), known.left_out());
    let effect = "`--gpus`, and `--device` of a vendor's device, are refused";
    let fix = || Path::new("/dev/nvidiactl").exists().then(|| gpus::GENERATE.to_owned());
    match (left_out, devices.is_empty()) {
        (Some(left_out), _) => Fact::lacks(name, left_out, "the devices in these files are not known"),
        (None, false) => Fact::has(name, listed(devices)),
        (None, true) => Fact::lacks(name, format!("no file in {}", known.places()), effect).maybe_fix(fix()),
    }
}

/// Nomad's driver and its tasks, where there is either.
fn nomad_driver(state: &StateDir) -> Option<Fact> {
    let name = "Nomad's driver";
    let is_nomads = |id: &TaskId| {
        let record = state.folder(id).record().ok().flatten();
        record.and_then(|record| record.task).is_some_and(|task| task.labels.contains_key(nomad_labels::ID))
    };
    let tasks = state.ids().unwrap_or_default().iter().filter(|id| is_nomads(id)).count();
    let of_nomad =
        format!("{tasks} {} of Nomad in {}", if tasks == 1 { "task" } else { "tasks" }, state.path().display());
    match Programs::default().nomad_driver() {
        Some(path) => Some(Fact::has(name, format!("{}; {of_nomad}", path.display()))),
        None if tasks == 0 => None,
        None => {
            let effect = "an agent that restarts does not find these tasks again";
            let fix = "install nomad-driver-bowline beside bowline, and link to it in the agent's plugin_dir";
            Some(Fact::lacks(name, format!("not found; {of_nomad}"), effect).fix(fix))
        }
    }
}

/// The first line that `program --version` prints; `None` where it cannot be run.
fn first_line(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The command that installs `package` on this host.
fn install(package: &str) -> Option<String> {
    let manager = MANAGERS.iter().find(|(program, _)| in_path(program).is_some());
    manager.map(|(_, command)| format!("{command} {package}"))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Package managers are often in folders that only root's PATH has.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
