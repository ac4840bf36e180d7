//! Words of nsjail. Must not: list what exists.

use super::{ADDRESS, NICE, Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "nsjail",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] = &[(
    "`nsjail -Mo --chroot / --time_limit 10 --rlimit_as 64 -- CMD`",
    "`bowline run --rm --network none --timeout 10s -m 64M CMD`",
)];

const WORDS: Words = &[
    (&["--bindmount", "-B", "--bindmount_ro", "-R"], "`-v SRC:DST`, `-v SRC:DST:ro`"),
    (&["--time_limit"], "`--timeout 10s`"),
    (&["--cgroup_mem_max", "--rlimit_as"], "`-m 64M`"),
    (&["--config", "-C"], "a description by `--file`: see docs/task-description.md"),
];

const RARE: Words = &[
    (&["-M", "--mode"], "leave it out: `bowline run` runs one command, once"),
    (&["--chroot", "-c"], "`--rootfs DIR`; without it the host's files are there, read-only"),
    (&["--tmpfsmount", "-T"], "`--tmpfs DST`"),
    (&["--cgroup_pids_max", "--rlimit_nproc"], "`--pids 64`"),
    (&["--cgroup_cpu_ms_per_sec", "--rlimit_cpu"], "`--cpus 0.5`, or `--ulimit cpu=10`"),
    (&["--rlimit_nofile", "--rlimit_fsize", "--rlimit_core", "--rlimit_stack"], "`--ulimit nofile=1024`, and others"),
    (&["--cwd", "-D"], "`-w DIR`"),
    (&["--group", "-g"], "`-u USER:GROUP`"),
    (&["--disable_clone_newnet", "-N"], "leave it out: the network is the host's"),
    (&["--disable_no_new_privs"], "`--security-opt no-new-privileges=false`"),
    (&["--seccomp_string", "--seccomp_policy", "-P"], "`--security-opt seccomp=FILE`"),
    (&["-H"], "`--hostname NAME`"),
    (&["-E"], "`-e K=V`"),
    (&["--keep_env"], "`-e NAME` for each variable: none is inherited"),
    (&["--keep_caps", "--cap"], "`--cap-add CAP`, or ALL"),
    (&["--proc_path", "--proc_rw", "--disable_proc"], "leave it out: a task has `/proc`"),
    (&["--rw"], "leave it out: a root of `--rootfs` is writable"),
    (&["--disable_clone_newpid"], "`--pid host`"),
    (&["--disable_clone_newipc"], "`--ipc host`"),
    (&["--disable_clone_newuts"], "`--set namespaces.uts=host`"),
    (&["--disable_clone_newcgroup"], "`--set namespaces.cgroup=host`"),
    (&["--disable_clone_newuser", "--disable_clone_newns"], "leave it out"),
    (&["--uid_mapping", "--gid_mapping", "-U", "-G"], "uid_mappings and gid_mappings: see docs/reference.md"),
    (
        &["--port", "--max_conns", "--max_conns_per_ip", "--bindhost"],
        "a socket of systemd starts a task for each connection",
    ),
    (&["--daemon"], "`-d` runs it in the background"),
    (&["--log_fd", "--verbose", "--quiet", "-q", "--really_quiet", "-Q", "--skip_setsid"], "leave it out"),
    (&["--pass_fd", "--stderr_to_null", "--silent"], "no descriptor is passed on: `-i` passes stdin on"),
    (&["--max_cpus"], "`--cpuset-cpus 0-1`"),
    (&["--nice_level"], NICE),
    (&["--macvlan_iface", "--macvlan_vs_ip", "-I", "--iface_own", "--iface_no_lo"], ADDRESS),
    (&["--exec_file", "-x"], "type the program as the command"),
    (&["--cgroup_mem_swap_max"], "`--memory-swap`"),
    (&["--use_cgroupv2", "--cgroupv2_mount"], "leave it out: `bowline doctor` prints what this host has"),
    (&["--symlink"], "`-v SRC:DST`"),
];
