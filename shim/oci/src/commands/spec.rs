//! `spec`: a configuration to begin with, as runc writes it.

use std::path::Path;

use bowline_cgroup::is_v2;
use bowline_model::{Doing, Error, Kind, Result};
use serde_json::{Value, json};

use super::Call;
use crate::arguments::{Flag, switch, value};

pub const FLAGS: &[Flag] = &[value(&["bundle", "b"]), switch(&["rootless"])];

/// Writes `config.json` into the bundle.
pub fn spec(call: &Call<'_>) -> Result<u8> {
    if call.flags.is_on("rootless") {
        return Err(Error::new(Kind::Unsupported, "--rootless: containers without root come later"));
    }
    let path = Path::new(call.flags.value("bundle").unwrap_or(".")).join("config.json");
    let what = || format!("cannot write {}", path.display());
    let file = std::fs::File::options().write(true).create_new(true).open(&path).doing(Kind::AlreadyExists, what)?;
    serde_json::to_writer_pretty(file, &configuration()).doing(Kind::Internal, what)?;
    Ok(0)
}

fn configuration() -> Value {
    let capabilities = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"];
    let mut namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind })).to_vec();
    // As runc: v1 shows its hierarchies with their paths on the host.
    namespaces.extend(is_v2().then(|| json!({ "type": "cgroup" })));
    let mount = |destination: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": source, "options": options });
    let plain = ["nosuid", "noexec", "nodev"];
    let dev = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    let pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    let read_only = ["nosuid", "noexec", "nodev", "ro"];
    let cgroup = ["nosuid", "noexec", "nodev", "relatime", "ro"];
    json!({
        "ociVersion": crate::state::SPECIFICATION,
        "process": {
            "terminal": true,
            "user": { "uid": 0, "gid": 0 },
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bowline",
        "mounts": [
            mount("/proc", "proc", "proc", &[]),
            mount("/dev", "tmpfs", "tmpfs", &dev),
            mount("/dev/pts", "devpts", "devpts", &pts),
            mount("/dev/shm", "tmpfs", "shm", &[&plain[..], &["mode=1777", "size=65536k"]].concat()),
            mount("/dev/mqueue", "mqueue", "mqueue", &plain),
            mount("/sys", "sysfs", "sysfs", &read_only),
            mount("/sys/fs/cgroup", "cgroup", "cgroup", &cgroup),
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": namespaces,
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}
