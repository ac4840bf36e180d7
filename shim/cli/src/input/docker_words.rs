//! Commands and flags of docker's that bowline does not have: what to type instead.
//!
//! Without this table the name that is spelled most like them would be suggested. Must not: list what exists.

const NO_IMAGES: &str = "bowline has no images: see \"An image of Docker or a registry\" in docs/recipes.md";
const SANDBOX: &str = "tasks that belong together are a sandbox: see `bowline sandbox --help`";
const SERVICE: &str = "systemd restarts a service: see \"A service under systemd\" in docs/recipes.md";
const ADDRESS: &str = "the plugins of a network choose its addresses: see docs/network.md";

const COMMANDS: &[(&str, &str)] = &[
    ("build", NO_IMAGES),
    ("cat", "a program is run by `bowline run`, or in a task by `bowline exec`"),
    ("commit", NO_IMAGES),
    ("compose", SANDBOX),
    ("container", "leave the word out: `bowline ps`, `bowline rm`"),
    ("cp", "-v of `bowline run` shares a folder: see \"Files in and out\" in docs/recipes.md"),
    ("create", "`bowline start` makes a task and starts it"),
    ("delete", "`bowline rm` removes a task"),
    ("image", NO_IMAGES),
    ("images", NO_IMAGES),
    ("info", "`bowline doctor` prints what this host can do"),
    ("load", NO_IMAGES),
    ("network", "--network of `bowline run` or `bowline sandbox create` gives a network: see docs/network.md"),
    ("pod", SANDBOX),
    ("prune", "`bowline rm --exited` removes what has ended, `bowline gc` leftovers"),
    ("pull", NO_IMAGES),
    ("push", NO_IMAGES),
    ("remove", "`bowline rm` removes a task"),
    ("rename", "a task keeps its name; `bowline start --replace` starts another one of a name"),
    ("restart", SERVICE),
    ("rmi", NO_IMAGES),
    ("search", NO_IMAGES),
    ("system", "leave the word out: `bowline events`, `bowline gc`"),
    ("unpause", "`bowline resume` lets a paused task continue"),
    ("version", "`bowline --version` prints it"),
    ("volume", "bowline has no volumes: -v of `bowline run` shares a folder"),
];

/// Flags of `docker run`.
const FLAGS: &[(&str, &str)] = &[
    ("--add-host", "give it another /etc/hosts: -v ./hosts:/etc/hosts:ro"),
    ("--annotation", "--label keeps a name and a value with the task"),
    ("--blkio-weight", "--set io.weight=500"),
    ("--cgroup-parent", "--set cgroup=/PARENT/NAME, or --slice NAME.slice"),
    ("--cgroupns", "--set namespaces.cgroup=host or private"),
    ("--cidfile", "`bowline start` prints the id; --name chooses it"),
    ("--cpu-period", "--cpus 0.5, with --set cpu.period=50ms for another period"),
    ("--cpu-quota", "--cpus 0.5, with --set cpu.period=50ms for another period"),
    ("--cpu-shares", "--set cpu.shares=512"),
    ("--cpuset-mems", "--set cpu.mems=0"),
    ("--dns", "give it another /etc/resolv.conf: -v ./resolv.conf:/etc/resolv.conf:ro"),
    ("--gpus", "give the devices: --device /dev/nvidia0, or --device /dev/dri/renderD128"),
    ("--group-add", "--set groups[0]=GROUP"),
    ("--ip", ADDRESS),
    ("--ipc", "--set namespaces.ipc=host; members of a sandbox share theirs"),
    ("--link", SANDBOX),
    ("--log-driver", "--log says how output is kept: json, raw, journald or none"),
    ("--log-opt", "--log-size and --log-files say how much output is kept"),
    ("--mac-address", ADDRESS),
    ("--memory-reservation", "--set memory.low=64M"),
    ("--oom-score-adj", "--set oom_score_adj=500"),
    ("--pid", "--set namespaces.pid=host"),
    ("--platform", NO_IMAGES),
    ("--privileged", "there is no such mode; give what it needs: --cap-add, --device"),
    ("--pull", NO_IMAGES),
    ("--restart", SERVICE),
    ("--shm-size", "--tmpfs /dev/shm:size=128M"),
    ("--storage-opt", "--ephemeral=256M bounds changes to the root"),
    ("--sysctl", "--set sysctls.\"NAME\"=VALUE, in quotes for the shell"),
    ("--userns", "--set namespaces.user=private, with uid_mappings and gid_mappings: see docs/reference.md"),
    ("--uts", "--set namespaces.uts=host"),
    ("--volumes-from", SANDBOX),
];

/// What to type instead of a command.
pub fn command(word: &str) -> Option<&'static str> {
    find(COMMANDS, word)
}

/// What to type instead of a flag of `run` or `start`.
pub fn flag(word: &str) -> Option<&'static str> {
    find(FLAGS, word)
}

fn find(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(name, _)| *name == word).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::args::Cli;
    use crate::input::set::Setting;

    #[test]
    fn nothing_that_exists_is_listed() {
        let all = Cli::whole();
        for (word, _) in COMMANDS {
            assert!(all.find_subcommand(word).is_none(), "{word}");
        }
        let run = all.find_subcommand("run").expect("a command");
        let arguments = run.get_arguments();
        let known: Vec<&str> =
            arguments.flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default()).collect();
        for (word, _) in FLAGS {
            assert!(!known.contains(&word.trim_start_matches('-')), "{word}");
        }
    }

    #[test]
    fn every_setting_is_one() {
        for (word, instead) in FLAGS {
            for (_, rest) in instead.match_indices("--set ").map(|(at, set)| instead.split_at(at + set.len())) {
                let text = rest.split([' ', ',', ';']).next().unwrap_or_default().replace("GROUP", "5");
                let setting: Setting = text.parse().unwrap_or_else(|wrong| panic!("{word}: {wrong}"));
                let mut task = bowline_spec::Task::default();
                let set = crate::input::set::set(&mut task, &setting, bowline_spec::parse);
                set.unwrap_or_else(|wrong| panic!("{word}: {wrong}"));
            }
        }
    }
}
