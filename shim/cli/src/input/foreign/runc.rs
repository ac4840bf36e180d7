//! Words of runc and crun. Must not: list what exists.

use super::{PID, Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "runc",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] = &[
    ("`runc spec`", "a [description](task-description.md); `bowline spec FILE` prints its `config.json`"),
    ("`runc run -b DIR ID`, with `-d`", "[`bowline run --name ID --bundle DIR`](command-line.md#bundles), with `-d`"),
    ("`runc create ID`, `start ID`", "`bowline start --name ID` does both"),
    ("`runc list`, `state ID`, `ps ID`", "`bowline ps`, `inspect ID`, `top --once ID`"),
    ("`runc kill ID TERM`, `delete -f ID`", "`bowline kill --signal TERM ID`, `rm -f ID`"),
    ("`runc exec -t`, `pause`, `resume`, `update --memory N ID`", "the same words; `exec -it`"),
];

const SOCKET: &str = "`-it` gives a terminal; `bowline-oci` has this flag: see docs/oci-runtime.md";

const WORDS: Words = &[
    (&["events --stats", "events --interval"], "`bowline stats --json ID`, with `--watch` again and again"),
    (&["-b"], "`--bundle DIR`"),
    (&["--console-socket"], SOCKET),
];

const RARE: Words = &[
    (&["state"], "`bowline inspect ID`"),
    (&["delete"], "`bowline rm` removes a task"),
    (&["features"], "`bowline doctor` prints what this host can do"),
    (&["--pid-file"], PID),
    (&["exec --console-socket"], SOCKET),
    (&["exec --pid-file"], "`bowline stats --json ID` has the pid of each exec, under processes"),
    (&["--no-pivot", "--no-new-keyring", "--no-subreaper", "--keep"], "leave it out"),
    (&["exec --process", "exec -p"], "`bowline exec` takes the command itself"),
    (&["exec --cap", "exec -c", "exec --additional-gids", "exec -g"], "an exec has the task's rights"),
    (&["exec --cwd"], "`-w DIR`"),
    (&["bowline --root"], "`--state DIR`"),
    (&["--systemd-cgroup", "bowline --systemd-cgroup"], "`--cgroup-driver systemd` of `bowline run`"),
    (
        &["bowline --debug", "bowline --log", "bowline --log-format", "--debug", "--log-format"],
        "leave it out: `bowline logs` and the journal have what is kept",
    ),
    (&["bowline --rootless", "--rootless"], "leave it out: bowline is run by root"),
    (&["--criu"], "containerd's runtime has checkpoints: see docs/containerd.md"),
    (&["update -r", "update --resources", "update --cpu-share"], "`bowline update --help` lists the limits"),
];
