//! Words of bubblewrap. Must not: list what exists.

use super::{Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "bwrap",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] = &[
    ("`bwrap --ro-bind /usr /usr --proc /proc --dev /dev --unshare-all CMD`", "`bowline run --rm --network none CMD`"),
    ("`--die-with-parent`", "[the same](command-line.md#the-end-of-a-caller); the task has its grace"),
];

const STANDARD: &str = "leave it out: a task has `/proc`, `/dev`, `/sys` and an empty `/tmp` of its own";
const OWN: &str = "leave it out: these namespaces are the task's own";
const READ_ONLY: &str = "`-v SRC:DST:ro`";
const WRITABLE: &str = "`-v SRC:DST`";
const OVERLAY: &str = "`--rootfs DIR --ephemeral` keeps changes to a root in memory";
const FDS: &str = "no descriptor is passed on: `-v FILE:DST:ro`, or `-i` for stdin";
const USERNS: &str = "`--set namespaces.user=private`, with uid_mappings and gid_mappings: see docs/reference.md";

const WORDS: Words = &[
    (&["--ro-bind", "--ro-bind-try"], READ_ONLY),
    (&["--bind", "--bind-try", "--dev-bind", "--dev-bind-try"], WRITABLE),
    (&["--proc", "--dev", "--mqueue"], STANDARD),
    (&["--unshare-all"], "`--network none`; all other namespaces but the user's are the task's own"),
    (&["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-cgroup-try"], OWN),
    (&["--setenv"], "`-e K=V`"),
    (&["--clearenv", "--unsetenv"], "leave it out: no variable is inherited"),
    (&["--chdir"], "`-w DIR`"),
    (&["--uid", "--gid"], "`-u UID:GID`"),
    (&["--overlay-src", "--tmp-overlay", "--overlay", "--ro-overlay"], OVERLAY),
];

const RARE: Words = &[
    (&["start --die-with-parent"], "`bowline run --die-with-parent`: what `start` starts is to run on after it"),
    (&["exec --die-with-parent"], "leave it out: what an exec has started ends with it"),
    (&["sandbox create --die-with-parent"], "`bowline run --sandbox SANDBOX --die-with-parent`, for a member"),
    (&["--unshare-net"], "`--network none`"),
    (&["--unshare-user", "--unshare-user-try", "--disable-userns", "--assert-userns-disabled"], USERNS),
    (&["--share-net"], "leave it out: the network is the host's"),
    (&["--seccomp", "--add-seccomp-fd"], "`--security-opt seccomp=FILE`; there is a profile without it"),
    (&["--new-session"], "leave it out: a task has a session of its own"),
    (&["--as-pid-1"], "`--init=false`"),
    (&["--remount-ro"], "`--read-only`, or `-v SRC:DST:ro`"),
    (&["--dir", "--perms", "--size", "--chmod"], "`--tmpfs DST:size=64M,mode=0755`, or a folder by `-v`"),
    (&["--symlink"], "`-v FILE:DST:ro` gives it a file"),
    (&["--bind-data", "--ro-bind-data", "--bind-fd", "--ro-bind-fd", "--args", "--sync-fd", "--block-fd"], FDS),
    (
        &["--info-fd", "--json-status-fd"],
        "`bowline start --json` prints id and pid, `bowline wait --json` the exit report",
    ),
    (&["--lock-file", "--argv0", "--level-prefix"], "leave it out: bowline has nothing like it"),
    (&["--exec-label", "--file-label"], "bowline has no labels of SELinux; `--security-opt apparmor=PROFILE`"),
    (&["--userns", "--userns2", "--userns-block-fd"], USERNS),
    (&["--pidns"], "`--set namespaces.pid=/proc/1/ns/pid`, or another path"),
];
