//! Words of systemd-run, and settings of units. Must not: list what exists.

use super::{NICE, SERVICE, Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "systemd-run",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] = &[
    ("`systemd-run --scope -p MemoryMax=64M -p CPUQuota=50% CMD`", "`bowline run --rm -m 64M --cpus 0.5 CMD`"),
    ("`--slice batch.slice`", "the same, or [limits of the slice](host-limits.md)"),
    ("`systemctl status web`, `journalctl -u web`", "`bowline inspect web`, `bowline logs web`"),
];

const DEFAULT: &str = "leave it out: this is the default";
const OWN_TMP: &str = "leave it out: `/tmp` is the task's own, and the host's files are read-only";
const CAPS: &str = "`--cap-drop ALL --cap-add CAP`";
const IO: &str = "`--io weight=500`, or `--io /dev/sda,read_bps=1M` for one device";
const LIMITS: &str = "`--ulimit nofile=1024`, and others";
const TIMER: &str = "a timer of systemd starts a task later: its service runs `bowline run`";

const WORDS: Words = &[
    (
        &["--scope", "--wait", "--collect", "-G"],
        "leave it out: `bowline run --rm` stays until the end, then removes the task",
    ),
    (&["--unit"], "`--name ID`"),
    (&["--pipe", "-P"], "`-i`"),
    (&["--pty"], "`-it`"),
    (&["--setenv", "-E"], "`-e K=V`"),
    (&["MemoryMax=", "MemoryLimit="], "`-m 64M`"),
    (&["CPUQuota="], "`--cpus 0.5`"),
    (&["RuntimeMaxSec="], "`--timeout 10s`"),
    (&["TasksMax="], "`--pids-limit 64`"),
    (&["TimeoutStopSec=", "KillSignal="], "`--stop-timeout 5`, `--stop-signal INT`"),
    (&["ProtectSystem=", "ProtectHome=", "PrivateTmp=", "PrivateDevices="], DEFAULT),
    (&["BindReadOnlyPaths=", "BindPaths="], "`-v SRC:DST:ro`, `-v SRC:DST`"),
    (&["LoadCredential=", "SetCredential="], "`--secret FILE`"),
    (&["DynamicUser="], "`--untrusted`, which has no network and no capabilities either"),
    (&["Restart=", "--remain-after-exit"], SERVICE),
];

const RARE: Words = &[
    (&["--working-directory"], "`-w DIR`"),
    (&["--uid", "--gid"], "`-u USER:GROUP`"),
    (&["PrivateNetwork="], "`--network none`"),
    (&["--on-calendar", "--on-active", "--on-boot", "--on-startup", "--timer-property", "OnCalendar="], TIMER),
    (
        &["--property"],
        "`-m` limits memory, `--cpus` CPU time, `--pids` processes: docs/coming-from.md has settings of systemd",
    ),
    (&["--user-unit", "--machine", "-M", "--host"], "bowline is on one machine, and run by root"),
    (&["--shell", "-S"], "`bowline run -it bash`"),
    (&["--same-dir"], "`-v \"$PWD:/work\" -w /work` shares this folder"),
    (&["--nice", "Nice="], NICE),
    (&["--slice-inherit"], "`--slice NAME.slice`"),
    (&["--description"], "`--label description=TEXT`"),
    (&["--quiet", "-q"], "leave it out: `bowline run` prints only what the task writes"),
    (&["--no-block"], "`bowline start` returns once it runs"),
    (&["--no-ask-password", "--expand-environment", "--send-sighup", "--service-type"], "leave it out"),
    (&["--path-property", "--socket-property"], SERVICE),
    (&["MemoryHigh="], "`--memory-high 48M`"),
    (&["MemoryLow=", "MemoryMin="], "`--memory-low 64M`"),
    (&["MemorySwapMax="], "`--swap 64M`"),
    (&["CPUWeight=", "CPUShares="], "`--cpu-shares 512`"),
    (&["AllowedCPUs=", "CPUAffinity="], "`--cpuset-cpus 0-1`"),
    (&["IOWeight=", "IOReadBandwidthMax=", "IOWriteBandwidthMax="], IO),
    (&["LimitNOFILE=", "LimitCORE=", "LimitNPROC=", "LimitAS="], LIMITS),
    (&["User=", "Group="], "`-u USER:GROUP`"),
    (&["WorkingDirectory="], "`-w DIR`"),
    (&["Environment=", "EnvironmentFile="], "`-e K=V`, `--env-file FILE`"),
    (&["RootDirectory="], "`--rootfs DIR`"),
    (&["NoNewPrivileges="], DEFAULT),
    (&["CapabilityBoundingSet=", "AmbientCapabilities="], CAPS),
    (&["SystemCallFilter="], "`--security-opt seccomp=FILE`; there is a profile without it"),
    (&["ReadOnlyPaths=", "ReadWritePaths=", "InaccessiblePaths="], OWN_TMP),
    (&["TemporaryFileSystem="], "`--tmpfs DST`"),
    (&["DeviceAllow="], "`--device /dev/NODE`"),
    (&["OOMScoreAdjust="], "`--oom-score-adj 500`"),
    (&["Slice="], "`--slice NAME.slice`"),
    (&["Delegate="], "leave it out: a task sees its own cgroup, read-only"),
];
