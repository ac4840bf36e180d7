//! Every option of a task's `config` block.

use crate::schema::{Field, Form};

/// The options of a task.
pub const TASK: &[Field] = &[
    Field::new(
        "command",
        Form::Text,
        "command",
        "The program, looked up in the task's `local/`, its folder, then its `PATH`; with a slash in its volumes too. \
         A file in the task's folder is made executable.",
    )
    .required(),
    Field::new("args", Form::List, "args", "Arguments. Nomad fills in variables such as `${NOMAD_PORT_http}`."),
    Field::new("work_dir", Form::Text, "workdir", "The working directory inside the root filesystem; `/` by default."),
    Field::new(
        "image",
        Form::Text,
        "",
        "The root filesystem: `host`, a read-only view of the host's `/usr`, `/etc` and the like, or a host folder's \
         path, which needs `allow_host_paths`.",
    )
    .or("\"host\""),
    Field::new(
        "readonly_rootfs",
        Form::Flag,
        "readonly_rootfs",
        "Whether only mounts can be written; by default true for `host`, false for a folder.",
    ),
    Field::new("hostname", Form::Text, "hostname", "The host name inside; by default the network's or the host's."),
    Field::new("groups", Form::List, "groups", "Supplementary groups, besides those of `user`."),
    Field::new(
        "cap_add",
        Form::List,
        "capabilities.add",
        "Capabilities added to the 13 default ones; only those in `allow_caps`.",
    ),
    Field::new("cap_drop", Form::List, "capabilities.drop", "Capabilities dropped from the 13 default ones, or `all`."),
    Field::new(
        "cap_ambient",
        Form::List,
        "capabilities.ambient",
        "Capabilities that users other than root keep in executed programs; by default those in `cap_add`.",
    ),
    Field::new(
        "no_new_privs",
        Form::Flag,
        "no_new_privs",
        "Whether set-user-ID bits have no effect; true by default. False needs `allow_privileged`.",
    ),
    Field::new("pid_mode", Form::Text, "namespaces.pid", "`private`, or `host`, which needs `allow_privileged`."),
    Field::new("ipc_mode", Form::Text, "namespaces.ipc", "`private`, or `host`, which needs `allow_privileged`."),
    Field::new(
        "seccomp",
        Form::Text,
        "seccomp",
        "The system call filter: `default`; `native`, which also kills 32-bit programs; `unconfined`, which needs \
         `allow_privileged`; or a profile's path on the host, which needs `allow_host_paths`.",
    ),
    Field::new(
        "apparmor",
        Form::Text,
        "apparmor",
        "A loaded AppArmor profile; by default `bowline-default` if it is loaded. `unconfined` needs \
         `allow_privileged`.",
    ),
    Field::new("sysctl", Form::Table, "sysctls", "Kernel settings of the task's own namespaces."),
    Field::new(
        "ulimit",
        Form::Table,
        "rlimits",
        "Resource limits, such as `nofile = \"1024:4096\"` for soft and hard.",
    ),
    Field::new(
        "oom_score_adj",
        Form::Number,
        "oom_score_adj",
        "How readily the OOM killer picks the task, 0 to 1000; 0 by default. Less than 0 needs `allow_privileged`.",
    ),
    Field::new(
        "cpu_hard_limit",
        Form::Flag,
        "",
        "Whether CPU time is limited to the task's `resources` even while the host is idle; false by default.",
    ),
    Field::new(
        "cpu_period",
        Form::Text,
        "cpu.period",
        "How often that limit is renewed, `1ms` to `1s`; `100ms` by default.",
    ),
    Field::new(
        "memory_high",
        Form::Text,
        "memory.high",
        "Above this the task is slowed down and memory is reclaimed; cgroup v2 only.",
    ),
    Field::new(
        "memory_swap",
        Form::Text,
        "memory.swap",
        "Swap beyond the memory limit, or `unlimited`; none by default.",
    ),
    Field::new(
        "pids_limit",
        Form::Number,
        "pids",
        "The most processes and threads; the agent's `pids_limit` by default.",
    ),
    Field::new("mount", Form::Blocks(MOUNT), "mounts", "A mount, besides those that Nomad makes."),
    Field::new("devices", Form::Blocks(DEVICE), "devices", "A host device; needs `allow_privileged`."),
    Field::new(
        "init",
        Form::Flag,
        "init",
        "Whether `bowline-init` runs above the command: it reaps orphans, and keeps output and exit code while a shim \
         is replaced.",
    )
    .or("true"),
    Field::new("timeout", Form::Text, "timeout", "How long the task may run; no limit by default."),
    Field::new("healthcheck", Form::Block(HEALTHCHECK), "healthcheck", "How the shim checks the task's health."),
    Field::new(
        "watch",
        Form::Block(WATCH),
        "watch",
        "What the shim [watches for](watch.md); each finding is a task event.",
    ),
    Field::new("labels", Form::Table, "labels", "Names and values that `bowline ps` shows, besides those of the job."),
];

const MOUNT: &[Field] = &[
    Field::new("type", Form::Text, "type", "`bind`, or `tmpfs` for an empty filesystem in memory.").or("\"bind\""),
    Field::new("target", Form::Text, "destination", "Where inside the root filesystem; absolute.").required(),
    Field::new(
        "source",
        Form::Text,
        "source",
        "bind: a path within the task's folder, such as `local/data`, or an absolute host path, which needs \
         `allow_host_paths`.",
    ),
    Field::new("readonly", Form::Flag, "read_only", "False by default."),
    Field::new("propagation", Form::Text, "propagation", "bind: as in mount_namespaces(7); `rprivate` by default."),
    Field::new("size", Form::Text, "size", "tmpfs: the most it holds; half the memory by default."),
    Field::new("mode", Form::Text, "mode", "tmpfs: octal permissions of its top folder; `1777` by default."),
    Field::new("noexec", Form::Flag, "noexec", "As in mount(8); false by default."),
    Field::new("nosuid", Form::Flag, "nosuid", "As in mount(8); by default only for tmpfs."),
    Field::new("nodev", Form::Flag, "nodev", "As in mount(8); by default only for tmpfs."),
];

const DEVICE: &[Field] = &[
    Field::new("host_path", Form::Text, "host_path", "The node on the host.").required(),
    Field::new("container_path", Form::Text, "path", "The node inside; the same path by default."),
    Field::new("cgroup_permissions", Form::Text, "access", "Some of `rwm`: read, write, mknod; all by default."),
];

const HEALTHCHECK: &[Field] = &[
    Field::new("exec", Form::List, "exec", "The command and its arguments; exit code 0 is healthy.").required(),
    Field::new("interval", Form::Text, "interval", "The time between two checks; `30s` by default."),
    Field::new("timeout", Form::Text, "timeout", "How long one may take; `30s` by default."),
    Field::new("retries", Form::Number, "retries", "How many failures in a row make it unhealthy; 3 by default."),
    Field::new("start_period", Form::Text, "start_period", "How long failures do not count at first; 0 by default."),
    Field::new("start_interval", Form::Text, "start_interval", "The interval in that time; `5s` by default."),
    Field::new("on_unhealthy", Form::Text, "on_unhealthy", "`none` (the default) or `stop`."),
];

const ACTION: &str = "`report` (the default), `stop` or `lift`.";
const EVERY: &str = "How often: at least `100ms`, `10s` by default.";

const WATCH: &[Field] = &[
    Field::new("oom", Form::Block(OOM), "oom", "A process was killed by the OOM killer."),
    Field::new(
        "memory_high",
        Form::Block(COUNT),
        "memory_high",
        "The task was slowed down above `memory_high`; cgroup v2 only.",
    ),
    Field::new("memory", Form::Block(MEMORY), "memory", "It uses much memory."),
    Field::new("throttled", Form::Block(THROTTLED), "throttled", "Its CPU limit holds it back."),
    Field::new("cpu_pressure", Form::Block(PRESSURE), "cpu_pressure", "It waits for a CPU."),
    Field::new("memory_pressure", Form::Block(PRESSURE), "memory_pressure", "It waits for memory."),
    Field::new("io_pressure", Form::Block(PRESSURE), "io_pressure", "It waits for block devices."),
];

const OOM: &[Field] = &[Field::new("action", Form::Text, "action", ACTION)];

const COUNT: &[Field] = &[
    Field::new("above", Form::Number, "above", "How often it may happen.").required(),
    Field::new("action", Form::Text, "action", ACTION),
];

const MEMORY: &[Field] = &[
    Field::new("above", Form::Text, "above", "The most memory, with page cache and swap."),
    Field::new("anon_above", Form::Text, "anon_above", "The most memory of the processes' own."),
    Field::new("cache_above", Form::Text, "cache_above", "The most page cache."),
    Field::new("every", Form::Text, "every", EVERY),
    Field::new("action", Form::Text, "action", ACTION),
];

const THROTTLED: &[Field] = &[
    Field::new("above", Form::Text, "above", "How long it may be held back between two looks.").required(),
    Field::new("every", Form::Text, "every", EVERY),
    Field::new("action", Form::Text, "action", ACTION),
];

const PRESSURE: &[Field] = &[
    Field::new("above", Form::Text, "above", "How much of the window processes may wait.").required(),
    Field::new("window", Form::Text, "window", "`500ms` to `10s`; `2s` by default."),
    Field::new("who", Form::Text, "who", "`some` (the default): at least one process; `full`: all."),
    Field::new("action", Form::Text, "action", ACTION),
];
