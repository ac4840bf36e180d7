//! Hints for errors that come without one: which flag an error is about, and what to type instead of a first mistake.
//!
//! Must not: change what an error says.

use std::path::{Path, PathBuf};

use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind};
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::flags::{SANDBOX_FIELDS, TASK_FIELDS};
use super::set::Setting;

/// The commands whose errors name fields.
const DESCRIBE: [&str; 7] = ["run", "start", "exec", "update", "spec", "sandbox create", "sandbox update"];

/// The flags that set a field, or one below it, by their ids. The first entry that fits counts.
pub const FLAGS: &[(&str, &[&str])] = &[
    ("name", &["name"]),
    ("bundle", &["bundle"]),
    ("command", &["entrypoint"]),
    ("env", &["env", "env_file"]),
    ("workdir", &["workdir"]),
    ("labels", &["label"]),
    ("init", &["init"]),
    ("terminal", &["tty"]),
    ("timeout", &["timeout"]),
    ("stop.signal", &["stop_signal"]),
    ("stop.grace", &["stop_timeout"]),
    ("memory.limit", &["memory"]),
    ("memory.swap", &["memory_swap", "swap"]),
    ("memory.high", &["memory_high"]),
    ("memory.low", &["memory_low"]),
    ("cpu.limit", &["cpus"]),
    ("cpu.shares", &["cpu_shares"]),
    ("cpu.cpuset", &["cpuset_cpus", "cpuset"]),
    ("cpu.mems", &["mems"]),
    ("cpu.realtime_period", &["realtime_period"]),
    ("cpu.realtime", &["realtime"]),
    ("pids", &["pids"]),
    ("io", &["io"]),
    ("hugepages", &["hugepages"]),
    ("unified", &["unified"]),
    ("oom_score_adj", &["oom_score_adj"]),
    ("rlimits", &["ulimit"]),
    ("rootfs", &["rootfs"]),
    ("readonly_rootfs", &["read_only"]),
    ("ephemeral", &["ephemeral"]),
    ("mounts", &["volume", "mount", "tmpfs", "shm_size"]),
    ("devices", &["device"]),
    ("cdi_devices", &["device", "gpus"]),
    ("user", &["user"]),
    ("group", &["user"]),
    ("groups", &["group_add"]),
    ("sysctls", &["sysctl"]),
    ("profile", &["untrusted"]),
    ("hostname", &["hostname"]),
    ("names.hosts", &["add_host"]),
    ("names.servers", &["dns"]),
    ("names.search", &["dns_search"]),
    ("names.options", &["dns_option"]),
    ("names", &["add_host", "dns", "dns_search", "dns_option"]),
    ("namespaces.network", &["network"]),
    ("namespaces.ipc", &["ipc"]),
    ("namespaces.pid", &["pid"]),
    ("network.mode", &["network"]),
    ("network.ports", &["publish"]),
    ("network", &["network", "publish"]),
    ("capabilities.add", &["cap_add"]),
    ("capabilities.drop", &["cap_drop"]),
    ("capabilities", &["cap_add", "cap_drop"]),
    ("seccomp", &["security_opt"]),
    ("apparmor", &["security_opt"]),
    ("no_new_privs", &["security_opt"]),
    ("healthcheck.exec", &["health_cmd"]),
    ("healthcheck.interval", &["health_interval"]),
    ("healthcheck.timeout", &["health_timeout"]),
    ("healthcheck.retries", &["health_retries"]),
    ("healthcheck.start_period", &["health_start_period"]),
    ("healthcheck.start_interval", &["health_start_interval"]),
    ("healthcheck.on_unhealthy", &["health_on_failure"]),
    ("log.format", &["log"]),
    ("log.max_size", &["log_size"]),
    ("log.max_files", &["log_files"]),
    ("place", &["place"]),
    ("qos", &["qos"]),
    ("cgroup", &["cgroup"]),
    ("share_pid", &["share_pid"]),
];

/// The command line as typed: the command's full name, and its arguments.
struct Typed<'m> {
    command: String,
    args: &'m ArgMatches,
}

/// Adds a hint to `error` if it has none.
pub fn hinted(error: Error, matches: &ArgMatches) -> Error {
    let typed = Typed::of(matches);
    if error.hint_text().is_some() || !DESCRIBE.contains(&typed.command.as_str()) {
        return error;
    }
    let by_flag = error.field().and_then(|field| typed.set_by(field));
    let hint = match error.kind() {
        Kind::CommandNotFound => typed.not_found(),
        Kind::BadSpec => by_flag.or_else(|| Some(typed.schema().unwrap_or_else(|| typed.help()))),
        Kind::Usage => by_flag.or_else(|| Some(typed.help())),
        Kind::NotFound | Kind::Unsupported => by_flag,
        _ => None,
    };
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Whether `field` is `above`, or part of it.
fn is_within(field: &str, above: &str) -> bool {
    field.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The element of a list that `field` is part of, else the field itself: `mounts[0]` for `mounts[0].type`.
fn element(field: &str) -> &str {
    field.rfind(']').map_or(field, |end| &field[..=end])
}

impl<'m> Typed<'m> {
    fn of(matches: &'m ArgMatches) -> Typed<'m> {
        let mut typed = Typed { command: String::new(), args: matches };
        while let Some((name, below)) = typed.args.subcommand() {
            typed.command = format!("{} {name}", typed.command).trim_start().to_owned();
            typed.args = below;
        }
        typed
    }

    fn help(&self) -> String {
        format!("see `bowline {} --help`", self.command)
    }

    fn is_of_sandbox(&self) -> bool {
        self.command == "sandbox create"
    }

    /// What says how a description is written, if one was given.
    fn schema(&self) -> Option<String> {
        self.args.try_get_raw("file").ok().flatten()?;
        let sandbox = if self.is_of_sandbox() { " --sandbox" } else { "" };
        Some(format!("`bowline schema{sandbox}` prints every field and its form"))
    }

    /// Whether a flag is on the command line. Its default, or a variable of the environment, is not.
    fn has(&self, flag: &str) -> bool {
        let given = self.args.ids().any(|id| id.as_str() == flag);
        given && self.args.value_source(flag) == Some(ValueSource::CommandLine)
    }

    /// Names the flags that have set `field`.
    fn set_by(&self, field: &str) -> Option<String> {
        let entry = FLAGS.iter().find(|(above, _)| is_within(field, above));
        let flags = entry.map_or(&[][..], |(_, flags)| flags);
        let flags: Vec<String> =
            flags.iter().filter(|flag| self.has(flag)).map(|flag| format!("--{}", flag.replace('_', "-"))).collect();
        if !flags.is_empty() {
            return Some(format!("this comes from {}; {}", flags.join(" or "), self.help()));
        }
        let mut settings = self.args.try_get_many::<Setting>("set").ok().flatten().into_iter().flatten();
        let is_set =
            settings.any(|setting| is_within(field, element(&setting.field())) || is_within(&setting.field(), field));
        let reference = if self.is_of_sandbox() { SANDBOX_FIELDS } else { TASK_FIELDS };
        is_set.then(|| format!("this comes from --set; {reference}"))
    }

    /// What to type where the command is the name of a task, as docker's `start` has it.
    fn names_a_task(&self, name: &str) -> Option<String> {
        let state = self.args.try_get_one::<PathBuf>("state").ok().flatten()?;
        let folder = StateDir::new(std::path::absolute(state).ok()?).folder(&name.parse().ok()?);
        if !matches!(folder.exists(), Ok(true)) || folder.is_sandbox() {
            return None;
        }
        let (is, force) = match folder.exit() {
            Ok(Some(_)) => ("exists, and has ended", ""),
            _ => ("exists already", "-f "),
        };
        let command = &self.command;
        Some(format!(
            "a task named {name} {is}: `bowline {command} --replace --name {name}` with a command or -f FILE starts another in its \
             place, `bowline rm {force}{name}` removes it"
        ))
    }

    /// What to type instead of a command that is not there.
    fn not_found(&self) -> Option<String> {
        let words: Vec<&str> = self.args.try_get_many::<String>("command").ok()??.map(String::as_str).collect();
        let name = *words.first()?;
        let is_exec = self.command == "exec";
        let is_here = Path::new(name).exists();
        if name.contains(char::is_whitespace) && !is_here {
            let id = self.args.try_get_raw("id").ok().flatten().and_then(|mut ids| ids.next()?.to_str());
            let task = id.filter(|_| is_exec).map(|id| format!("{id} ")).unwrap_or_default();
            let words = words.join(" ");
            let is_plain = words.chars().all(|char| char.is_alphanumeric() || " /._-+=:,@%".contains(char));
            return Some(match is_plain {
                true => format!("without the quotes: bowline {} {task}{words}", self.command),
                false => format!("a shell reads such a line: bowline {} {task}sh -c '…'", self.command),
            });
        }
        if is_exec {
            return None;
        }
        if let Some(hint) = self.names_a_task(name) {
            return Some(hint);
        }
        if self.has("rootfs") || self.has("bundle") {
            return None;
        }
        if name.contains('/') && is_here {
            return Some(unseen(name));
        }
        let tagged = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let bare = !name.contains('/') && !is_in_path(name);
        let hint = "bowline has no images: leave the name out, or give a root with --rootfs; see docs/recipes.md";
        (bare || tagged).then(|| hint.to_owned())
    }
}

/// Folders of the host's own: what the task sees of them is chosen, and their sockets and nodes may command the host.
const OF_THE_HOST: [&str; 12] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"];

/// How a program in a folder of the host's becomes visible: its folder, read-only, unless that has more than programs.
fn unseen(program: &str) -> String {
    let path = Path::new(program);
    let (folder, flags) = match path.parent() {
        Some(folder) if path.is_absolute() => (folder.to_owned(), format!("-v \"{0}:{0}:ro\"", folder.display())),
        _ => (std::env::current_dir().unwrap_or_default(), "-v \"$PWD:/work:ro\" -w /work".to_owned()),
    };
    let shows_it = folder.canonicalize().is_ok_and(|real| {
        let there = path.canonicalize().is_ok_and(|program| program.is_file() && program.starts_with(&real));
        there && [&folder, &real].into_iter().all(|folder| may_be_shown(folder))
    });
    let hint = if shows_it { &flags } else { "see \"Files in and out\" in docs/recipes.md" };
    format!("the task does not see this folder{} {hint}", if shows_it { ":" } else { ";" })
}

/// Whether a hint may show the task all of `folder`: it is neither the host's own nor a home, and no letter of its name
/// means anything to a shell, or to `-v`.
fn may_be_shown(folder: &Path) -> bool {
    let is_above_homes = |above: &Path| ["/", "/home"].iter().any(|homes| above == Path::new(homes));
    let is_hosts =
        OF_THE_HOST.iter().any(|hosts| folder.starts_with(hosts)) || folder.parent().is_none_or(is_above_homes);
    let is_home = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).starts_with(folder));
    let is_plain = |name: &str| name.chars().all(|char| char.is_alphanumeric() || "/._-+".contains(char));
    !is_hosts && !is_home && folder.to_str().is_some_and(is_plain)
}

/// Whether the host has such a program, whose interpreter is missing then.
fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).exists())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::input::args::Cli;

    fn hint(args: &[&str], error: Error) -> Option<String> {
        let line = std::iter::once(&"bowline").chain(args);
        let matches = Cli::command().try_get_matches_from(line).expect("a command line");
        hinted(error, &matches).hint_text().map(str::to_owned)
    }

    #[track_caller]
    fn says(args: &[&str], field: &str, expected: &str) {
        let error = Error::new(Kind::BadSpec, "no").in_field(field);
        assert_eq!(hint(args, error).as_deref(), Some(expected), "{args:?}");
    }

    #[test]
    fn the_flags_of_a_field_are_named_if_they_were_typed() {
        let run = "see `bowline run --help`";
        says(&["run", "-v", "/a:/b", "x"], "mounts[0].destination", &format!("this comes from --volume; {run}"));
        let both = ["run", "-v", "/a:/b", "--tmpfs=/c", "x"];
        says(&both, "mounts[0]", &format!("this comes from --volume or --tmpfs; {run}"));
        says(&["run", "-m=1G", "x"], "memory.limit", &format!("this comes from --memory; {run}"));
        says(&["run", "--log-size=1M", "x"], "log.max_size", &format!("this comes from --log-size; {run}"));
        let exec = "this comes from --user; see `bowline exec --help`";
        says(&["exec", "-u", "x", "web", "id"], "user", exec);
        let sandbox = "this comes from --cpuset; see `bowline sandbox create --help`";
        says(&["sandbox", "create", "--cpuset-cpus=9"], "cpu.cpuset", sandbox);
        let set = "this comes from --set; docs/reference.md and `bowline schema` have every field and its form";
        says(&["run", "--set=mounts[0].type=tmpfs", "x"], "mounts[0].destination", set);
        says(&["run", "-f", "a.toml", "-u=x"], "user", &format!("this comes from --user; {run}"));
        // What nobody typed.
        says(&["run", "--untrusted", "x"], "memory.limit", run);
        says(&["run", "-f", "a.toml"], "user", "`bowline schema` prints every field and its form");
        let sandbox = "`bowline schema --sandbox` prints every field and its form";
        says(&["sandbox", "create", "-f", "a.toml"], "pids", sandbox);
    }

    #[test]
    fn other_errors_and_other_hints_stay() {
        let of_user = |kind| Error::new(kind, "no").in_field("user");
        assert_eq!(hint(&["run", "-u=x", "x"], of_user(Kind::Internal)), None);
        assert_eq!(hint(&["ps"], Error::new(Kind::Usage, "no")), None);
        let unnamed = Error::new(Kind::BadSpec, "user: no");
        assert_eq!(hint(&["run", "-u=x", "x"], unnamed).as_deref(), Some("see `bowline run --help`"));
        let told = of_user(Kind::BadSpec).hint("do that");
        assert_eq!(hint(&["run", "-u=x", "x"], told).as_deref(), Some("do that"));
    }

    #[test]
    fn every_flag_that_is_named_exists() {
        let all = Cli::whole();
        let mut known: Vec<&str> = Vec::new();
        for name in DESCRIBE {
            let command = name.split(' ').try_fold(&all, |command, name| command.find_subcommand(name));
            known.extend(command.expect("a command").get_arguments().map(|argument| argument.get_id().as_str()));
        }
        for flag in FLAGS.iter().flat_map(|(_, flags)| *flags) {
            assert!(known.contains(flag), "{flag}");
        }
    }

    #[test]
    fn a_command_that_is_not_there_is_perhaps_an_image_a_line_or_a_file_of_the_host() {
        let of = |args: &[&str]| hint(args, Error::new(Kind::CommandNotFound, "cannot run it"));
        let images = "bowline has no images: leave the name out, or give a root with --rootfs; see docs/recipes.md";
        for image in ["no-such-image", "ubuntu:22.04", "quay.io/x/y:1"] {
            assert_eq!(of(&["run", image, "echo"]).as_deref(), Some(images), "{image}");
        }
        assert_eq!(of(&["run", "--rootfs=/r", "no-such-command"]), None);
        assert_eq!(of(&["run", "/no/such/command"]), None);
        assert_eq!(of(&["run", "sh"]), None);
        assert_eq!(of(&["exec", "web", "no-such-command"]), None);
        assert_eq!(of(&["run", "echo hi"]).as_deref(), Some("without the quotes: bowline run echo hi"));
        assert_eq!(of(&["exec", "web", "echo hi"]).as_deref(), Some("without the quotes: bowline exec web echo hi"));
        let shell = "a shell reads such a line: bowline start sh -c '…'";
        assert_eq!(of(&["start", "echo hi | cat"]).as_deref(), Some(shell));
        // Unit tests run in the folder of the package.
        let here = "the task does not see this folder: -v \"$PWD:/work:ro\" -w /work";
        assert_eq!(of(&["run", "./Cargo.toml"]).as_deref(), Some(here));
        let folder = tempfile::Builder::new().prefix("a b$(id):\"").tempdir().expect("a folder");
        let program = folder.path().join("x");
        std::fs::write(&program, "").expect("ours");
        let none = "the task does not see this folder; see \"Files in and out\" in docs/recipes.md";
        assert_eq!(of(&["run", program.to_str().expect("UTF-8")]).as_deref(), Some(none));
    }

    #[test]
    fn no_hint_shows_the_task_more_than_a_program_of_the_callers() {
        let of = |args: &[&str]| hint(args, Error::new(Kind::CommandNotFound, "cannot run it")).unwrap_or_default();
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("docker.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("ours");
        let escape = folder.path().join("escape");
        std::os::unix::fs::symlink("/etc/passwd", &escape).expect("ours");
        let mut names = ["x;id", "x$(id)", "x`id`", "x\"", "x:rw", "x'", "--privileged", "ünicode"].map(|name| {
            let program = folder.path().join(name);
            std::fs::write(&program, "").expect("ours");
            program.display().to_string()
        });
        let shown = format!("-v \"{0}:{0}:ro\"", folder.path().display());
        for program in &names {
            let hint = of(&["run", program]);
            assert_eq!(hint, format!("the task does not see this folder: {shown}"), "{program}");
        }
        names.iter_mut().for_each(|program| *program = format!("{program} x\n(rm)"));
        let others = [&socket, &escape].map(|path| path.display().to_string());
        let hosts = ["/", "/etc/passwd", "/proc/self/status", "/dev/null", "/proc/1/root", "/etc", "/usr", "/tmp"];
        for program in names.iter().map(String::as_str).chain(others.iter().map(String::as_str)).chain(hosts) {
            for line in [&["run", program][..], &["start", program], &["exec", "web", program]] {
                let hint = of(line);
                assert!(!["-v", "rm", "\n", "(", "`", "$"].iter().any(|part| hint.contains(part)), "{hint}");
            }
        }
    }
}
