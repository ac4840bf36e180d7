//! Words of docker and podman. Must not: list what exists.

use super::{ADDRESS, NO_IMAGES, PID, SANDBOX, SERVICE, Tool, Words};

pub const TOOL: Tool = Tool {
    #[cfg(test)]
    name: "docker",
    #[cfg(test)]
    lines: LINES,
    words: WORDS,
    rare: RARE,
};

#[cfg(test)]
const LINES: &[(&str, &str)] = &[
    (
        "`docker run --rm -m 64M --cpus 0.5 IMAGE CMD`",
        "`bowline run --rm -m 64M --cpus 0.5 CMD`, perhaps with `--rootfs DIR`",
    ),
    ("`docker run -d --name web -e K=V -v /srv/www:/www:ro IMAGE CMD`", "the same, without `IMAGE`"),
    (
        "`docker run --network none --cap-drop ALL --read-only`",
        "`--network none --cap-drop ALL`, or [`--untrusted`](command-line.md#untrusted-code)",
    ),
    (
        "`docker run --entrypoint CMD`, `--rm IMAGE`, where changes are lost",
        "[`--bundle DIR --entrypoint CMD`](command-line.md#bundles), [`--ephemeral`](command-line.md#a-root-that-forgets)",
    ),
    (
        "`docker run --gpus all`, `--device vendor.com/class=name`",
        "the same, by [the vendor's file](command-line.md#devices-of-vendors)",
    ),
    ("`docker service create --secret NAME`", "[`--secret FILE`](command-line.md#secrets), also at `/run/secrets`"),
    (
        "`docker exec`, `ps -a`, `logs -f`, `stop -t 5`, `rm -f`, `update -m`, `wait`",
        "the same words; `wait --json` prints the whole [exit report](exit-report.md)",
    ),
    ("`docker stats`, `events`", "`bowline stats --watch`, `events -f`"),
    (
        "`docker inspect -f '{{.State.ExitCode}}' web`",
        "`bowline inspect -f '{{ exit.exit_code }}' web`, or [`bowline explain web`](explain.md)",
    ),
];

const NO_LOGIN: &str = "bowline has no images and no registry: nothing asks for a login";
const ROOT_FILES: &str = "the task has the files of its root: `-v FILE:/etc/FILE:ro` replaces one";
const NO_NAMES: &str =
    "`--set names.files=false` leaves /etc/hosts, /etc/hostname and /etc/resolv.conf as the root has them";
const LOGS: &str = "`--log` says how output is kept: json, raw, journald or none; `--log-size`, `--log-files` how much";
const IO: &str = "`--io weight=500`, or `--io /dev/sda,read_bps=1M` for one device";
const CPU: &str = "`--cpus 0.5`, with `--set cpu.period=50ms` for another period";
const CGROUP: &str = "`--slice NAME.slice`, or `--set cgroup=/PARENT/NAME`";
const USERNS: &str = "`--set namespaces.user=private`, with uid_mappings and gid_mappings: see docs/reference.md";
const PRIVILEGED: &str = "there is no such mode; give what it needs: `--cap-add`, `--device`, `--security-opt`";
const REMOVED: &str = "`bowline rm --exited` removes what has ended, `bowline gc` leftovers";
const FILES: &str = "`-v` of `bowline run` shares a folder: see \"Files in and out\" in docs/recipes.md";
const ID: &str = "`bowline start` prints the id; `--name` chooses it";
const NO_SERVICE: &str = "bowline is on one machine: a cluster is Nomad's or Kubernetes's, see docs/README.md";

const WORDS: Words = &[
    (
        &["build", "commit", "image", "images", "import", "load", "pull", "push", "rmi", "save", "search", "tag"],
        NO_IMAGES,
    ),
    (&["compose", "pod", "kube", "--pod", "--link", "--volumes-from"], SANDBOX),
    (&["cp"], FILES),
    (&["prune", "container prune", "system prune"], REMOVED),
    (&["restart", "--restart"], SERVICE),
    (&["--privileged"], PRIVILEGED),
    (&["--log-driver", "--log-opt"], LOGS),
    (&["--publish-all", "-P", "--expose"], "`-p HOST:TASK` for each port, with `--network bridge`"),
];

const RARE: Words = &[
    (&["container"], "leave the word out: `bowline ps`, `bowline rm`"),
    (&["system"], "leave the word out: `bowline events`, `bowline gc`"),
    (&["create"], "`bowline start` makes a task and starts it"),
    (&["rename"], "a task keeps its name; `bowline start --replace` starts another one of a name"),
    (&["unpause"], "`bowline resume` lets a paused task continue"),
    (&["volume"], "bowline has no volumes: `-v` of `bowline run` shares a folder"),
    (&["network"], "`--network` of `bowline run` or `bowline sandbox create` gives a network: see docs/network.md"),
    (&["--uts"], "`--set namespaces.uts=host`"),
    (&["--cgroupns"], "`--set namespaces.cgroup=host`, or private"),
    (&["--userns", "--uidmap", "--gidmap", "--subuidname", "--subgidname"], USERNS),
    (&["-c"], "`--cpu-shares`"),
    (&["--cpu-period", "--cpu-quota"], CPU),
    (&["--memory-reservation"], "`--memory-low`"),
    (
        &[
            "--blkio-weight",
            "--blkio-weight-device",
            "--device-read-bps",
            "--device-read-iops",
            "--device-write-bps",
            "--device-write-iops",
        ],
        IO,
    ),
    (&["--cgroup-parent"], CGROUP),
    (&["login", "logout"], NO_LOGIN),
    (&["cat"], "a program is run by `bowline run`, or in a task by `bowline exec`"),
    (&["container ls", "container list", "container ps"], "leave the word out: `bowline ps`"),
    (&["diff", "export", "mount", "unmount", "umount", "container diff"], FILES),
    (&["history", "manifest", "buildx", "builder", "artifact", "buildah", "farm", "trust", "untag"], NO_IMAGES),
    (&["info", "system info", "context", "machine"], "`bowline doctor` prints what this host can do"),
    (&["port"], "`bowline inspect` prints the ports of a task, under task.network"),
    (&["system df"], "`bowline stats` prints what tasks use; there are no images and no volumes"),
    (&["system events"], "leave the word out: `bowline events`"),
    (&["remove", "delete", "container remove"], "`bowline rm` removes a task"),
    (&["init"], "`bowline run` makes the state folder itself"),
    (
        &[
            "--health-startup-cmd",
            "--health-startup-interval",
            "--health-startup-retries",
            "--health-startup-success",
            "--health-startup-timeout",
        ],
        "`--health-start-period` is a time in which failures do not count",
    ),
    (&["healthcheck", "health"], "`bowline inspect` prints what checks have found: see docs/health.md"),
    (&["generate", "quadlet", "autoupdate", "auto-update"], SERVICE),
    (&["checkpoint", "restore"], "containerd's runtime has checkpoints: see docs/containerd.md"),
    (&["secret", "config"], "`--secret FILE` gives a task a file that nobody else reads"),
    (&["plugin"], "bowline has no plugins but those of networks: see docs/network.md"),
    (&["service", "stack", "swarm", "node"], NO_SERVICE),
    (
        &["bowline --host", "bowline -H", "bowline --context", "bowline --url", "bowline --connection"],
        "bowline is on one machine: leave it out",
    ),
    (&["version"], "`bowline --version` prints it"),
    (&["shell", "ssh", "enter"], "`bowline exec -it ID sh` gives a shell in a task"),
    (&["status", "show"], "`bowline ps` lists tasks, `bowline inspect ID` prints all about one"),
    (&["--annotation"], "`--label` keeps a name and a value with the task"),
    (&["--label-file"], "`--label` for each line"),
    (&["--attach", "-a"], "`-i` passes stdin on; stdout and stderr come in any case"),
    (&["--cidfile", "--pod-id-file"], ID),
    (&["--pidfile"], PID),
    (&["--conmon-pidfile"], "`bowline start --pid-file FILE`"),
    (&["--cpu-rt-period", "--cpu-rt-runtime"], "`--realtime 10ms`, with `--realtime-period 1s`"),
    (
        &["--cpu-count", "--cpu-percent", "--isolation", "--io-maxbandwidth", "--io-maxiops"],
        "this is a flag for Windows",
    ),
    (&["--device-cgroup-rule"], "`--device` for each node"),
    (
        &["--disable-content-trust", "--platform", "--pull", "--arch", "--os", "--variant", "--authfile", "--creds"],
        NO_IMAGES,
    ),
    (&["--tls-verify", "--cert-dir", "--decryption-key", "--image-volume", "--retry", "--retry-delay"], NO_IMAGES),
    (&["--domainname"], "`--hostname` sets the host name; the domain's stays"),
    (&["--ip", "--ip6", "--mac-address", "--link-local-ip", "--network-alias"], ADDRESS),
    (&["--kernel-memory"], "leave it out: `-m` counts the kernel's memory too"),
    (&["--mem"], "`-m 64M` limits memory"),
    (&["--memory-swappiness"], "`--swap 0` allows no swap"),
    (
        &["--oom-kill-disable"],
        "`--memory-high 48M` slows a task down before its limit kills it (cgroup v2); `--oom-score-adj -500` has the kernel kill others first",
    ),
    (&["--rmi"], "there are no images to remove: `--rm` removes the task"),
    (&["--quiet", "-q"], "leave it out: nothing is pulled, and `bowline run` prints only what the task writes"),
    (&["--runtime"], "bowline is the runtime: leave it out"),
    (&["--sig-proxy"], "a signal to `bowline run` stops the task as `--stop-signal` says"),
    (&["--storage-opt"], "`--ephemeral=256M` bounds changes to the root"),
    (&["--volume-driver"], "bowline has no volumes: `-v` of `bowline run` shares a folder"),
    (&["--systemd"], "`--rootfs DIR` with the command /sbin/init runs systemd of that root"),
    (&["--umask"], "a shell sets it: `sh -c 'umask 077; exec CMD'`"),
    (&["--tz"], "`-e TZ=UTC`"),
    (&["--env-host"], "`-e NAME` for each variable: none is inherited"),
    (&["--env-merge", "--unsetenv", "--unsetenv-all", "--http-proxy"], "no variable is inherited: `-e K=V` sets one"),
    (&["--no-hosts", "--no-hostname"], NO_NAMES),
    (&["--hosts-file", "--passwd", "--passwd-entry", "--group-entry", "--hostuser"], ROOT_FILES),
    (
        &[
            "sandbox create --add-host",
            "sandbox create --dns",
            "sandbox create --dns-search",
            "sandbox create --dns-option",
        ],
        "each member has its own: `bowline run --sandbox ID` has this flag",
    ),
    (&["--preserve-fds", "--preserve-fd"], "no descriptor is passed on: `-i` passes stdin on"),
    (&["--sdnotify"], SERVICE),
    (&["--read-only-tmpfs"], "`--tmpfs /tmp`, for each folder that it writes to"),
    (&["--cgroup-conf"], "`--unified FILE=VALUE` writes a file of cgroup v2"),
    (&["--rdt-class"], "bowline gives no task a class of Intel RDT: leave it out"),
    (&["--cgroups"], "each task has a cgroup: leave it out"),
    (
        &["--chrootdirs", "--init-path", "--personality", "--seccomp-policy"],
        "leave it out: bowline has nothing like it",
    ),
    (&["--requires"], SANDBOX),
    (&["exec --privileged"], "an exec has the task's capabilities, no more: `--cap-add` of `bowline run` gives them"),
    (&["exec --preserve-fds"], "no descriptor is passed on: `-i` passes stdin on"),
    (&["exec --latest", "logs --latest", "stop --latest", "rm --latest"], "name the task: `bowline ps` lists all"),
    (&["ps -l", "ps --latest", "ps -n", "ps --last"], "`bowline ps --sort created` has the newest last"),
    (&["ps -s", "ps --size", "ps --ns", "ps --pod"], "`bowline inspect ID` prints all about a task"),
    (&["logs --details", "logs --names"], "`bowline logs --json` has stream and time of each line"),
    (&["stats --no-stream", "stats --no-reset"], "leave it out: without `--watch` the figures are printed once"),
    (&["stats -a", "stats --all", "stats --no-trunc"], "leave it out: all tasks that run are printed"),
    (&["stats --format"], "`--json` prints fields for programs"),
    (&["stop -a", "stop --all"], "name the tasks: `bowline stop $(bowline ps -q -f status=running)`"),
    (&["kill -a", "kill --all"], "name the tasks: `bowline kill $(bowline ps -q -f status=running)`"),
    (&["rm -a", "rm --all"], "`bowline rm --exited` removes all that have ended"),
    (&["rm -v", "rm --volumes", "rm -l", "rm --link"], "leave it out: there are no volumes and no links"),
    (&["rm -t", "rm --time"], "`bowline stop -t 5 ID` comes first"),
    (&["wait --condition", "wait --interval"], "leave it out: `bowline wait` waits for the end"),
    (&["inspect -s", "inspect --size", "inspect --type"], "leave it out: only tasks are inspected"),
    (&["events --filter", "events --format"], "name the tasks; `--json` prints fields for programs"),
    (&["update --restart"], SERVICE),
    (&["update --memory-reservation"], "`--memory-low`"),
    (&["update --cpu-quota", "update --cpu-period"], "`--cpus`"),
    (&["update --blkio-weight"], "`--io`"),
    (&["start -a", "start --attach"], "`bowline run` stays in the foreground; `bowline attach ID` connects to a task"),
];
