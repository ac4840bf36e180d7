//! Words of firejail. Must not: list what exists.

use super::{ADDRESS, NICE, Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "firejail",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] =
    &[("`firejail --private --net=none --caps.drop=all --seccomp CMD`", "`bowline run --rm --untrusted CMD`")];

const PRIVATE: &str = "leave it out: a task sees no home, and `/tmp` and `/dev` are its own";
const NAMED: &str = "`bowline exec -it ID sh`";
const HIDDEN: &str = "what is not mounted by `-v` is not seen";
const NO_PROFILE: &str = "bowline has no profiles of programs: flags, or a description by `--file`";
const DESKTOP: &str = "bowline runs no programs of a desktop: `-v` shares a socket, `--device` a node";

const WORDS: Words = &[
    (&["--private", "--private-tmp", "--private-dev", "--private-cache"], PRIVATE),
    (&["--whitelist", "--allow", "--noblacklist"], "`-v PATH:PATH`"),
    (&["--overlay-tmpfs", "--overlay", "--overlay-named"], "`--rootfs DIR --ephemeral`"),
    (&["--caps.drop"], "`--cap-drop ALL`"),
    (&["--caps.keep"], "`--cap-drop ALL --cap-add CAP`"),
    (&["--noprofile", "--profile", "--include"], NO_PROFILE),
];

const RARE: Words = &[
    (&["--private-bin", "--private-etc", "--private-lib", "--private-opt", "--private-srv", "--private-home"], HIDDEN),
    (&["--blacklist", "--deny"], HIDDEN),
    (&["--mkdir", "--mkfile"], "leave it out, and make it before: `-v PATH:PATH` shows what is there"),
    (&["--read-write"], "`-v PATH:PATH`"),
    (&["--chroot"], "`--rootfs DIR`"),
    (&["--caps"], "leave it out: a task has 13 capabilities"),
    (
        &["--rlimit-nofile", "--rlimit-nproc", "--rlimit-fsize", "--rlimit-sigpending"],
        "`--ulimit nofile=1024`, and others",
    ),
    (&["--rlimit-as", "--rlimit-cpu"], "`-m 64M` limits memory, `--cpus` CPU time"),
    (&["--cpu"], "`--cpuset-cpus 0-1`"),
    (&["--join"], NAMED),
    (&["--shell"], "leave it out: no shell runs the command"),
    (
        &["--noroot", "--nonewprivs", "--nogroups"],
        "leave it out: a program gains no rights; `--untrusted` is a user of its own",
    ),
    (
        &["--seccomp", "--seccomp.drop", "--seccomp.keep"],
        "`--security-opt seccomp=FILE`; there is a profile without it",
    ),
    (&["--seccomp.32", "--memory-deny-write-execute", "--protocol"], "`--security-opt seccomp=FILE`"),
    (&["--apparmor"], "`--security-opt apparmor=PROFILE`"),
    (&["--bind"], "`-v SRC:DST`"),
    (&["--ipc-namespace", "--disable-mnt", "--noexec", "--machine-id"], PRIVATE),
    (&["--rmenv", "--keep-fd", "--keep-var-tmp"], "leave it out: no variable and no descriptor is inherited"),
    (&["--nice"], NICE),
    (&["--cgroup"], "`--set cgroup=/PARENT/NAME`"),
    (&["--hosts-file"], "`-v ./hosts:/etc/hosts:ro` gives it another /etc/hosts"),
    (&["--ip", "--ip6", "--mac", "--mtu", "--defaultgw", "--netmask", "--veth-name", "--iprange"], ADDRESS),
    (&["--netfilter", "--netfilter6", "--bandwidth"], "the plugins of a network filter it: see docs/network.md"),
    (&["--list", "--tree"], "`bowline ps`, `bowline top`"),
    (&["--netstats"], "`bowline stats`"),
    (&["--shutdown"], "`bowline stop ID`"),
    (&["--ls", "--get", "--put", "--cat"], "`bowline exec ID ls /PATH`; `-v` shares a folder"),
    (&["--x11", "--nosound", "--novideo", "--no3d", "--nodvd", "--notv", "--nou2f", "--noinput"], DESKTOP),
    (&["--dbus-user", "--dbus-system", "--nodbus", "--appimage", "--allusers"], DESKTOP),
    (&["--quiet", "--debug", "--trace", "--tracelog", "--deterministic-exit-code"], "leave it out"),
    (&["--output", "--output-stderr"], "`--set output.stdout=/FILE`, or the shell's `>FILE`"),
];
