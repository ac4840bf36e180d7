//! What a shell offers while somebody types: commands, flags, values, files, fields of a description, users and groups, and the
//! ids of tasks and sandboxes.
//!
//! ```text
//!   the script of `bowline completions` ─ [Tab], _BOWLINE_COMPLETE=bash ─► bowline -- WORDS ─► candidates on stdout
//! ```
//!
//! Reads the names in the state folder, and those of users and groups. Must not: ask a shim, print an error.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use bowline_client::STATE;
use bowline_model::folder::StateDir;
use bowline_model::status::Shown;
use bowline_spec::capability::Capability;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use clap::{Arg, Command};
use clap_complete::engine::{PathCompleter, ValueCompleter as _};
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompleteEnv, CompletionCandidate};
use serde_json::Value;

use crate::input::args::{Cli, CompletedShell};
use crate::input::task_names::TaskRef;

/// The variable by which a script asks for candidates; its value is the shell.
const ASKS: &str = "_BOWLINE_COMPLETE";

/// The command whose positional ids are those of sandboxes.
const SANDBOX: &str = "sandbox";

/// Answers a script that asks for candidates. Returns whether one has asked.
pub fn answer() -> bool {
    // Not beyond the look at the variable if nobody asks: every start pays for it.
    if std::env::var_os(ASKS).is_none() {
        return false;
    }
    let folder = std::env::current_dir().ok();
    let env = CompleteEnv::with_factory(completed).var(ASKS).shells(Shells(&[&Bash, &Fish, &Zsh]));
    // A shell shows nothing of an error, and must not show it in the middle of a line.
    env.try_complete(std::env::args_os(), folder.as_deref()).unwrap_or(true)
}

/// zsh calls a file of its folders of functions to complete the first time, and the file only defines what completes.
const ZSH_FIRST_TIME: &str = r#"
if [ "$funcstack[1]" = "_bowline" ]; then
    _clap_dynamic_completer_bowline "$@"
fi
"#;

/// The script that a shell takes.
pub fn script(shell: CompletedShell) -> std::io::Result<Vec<u8>> {
    let completer: &dyn EnvCompleter = match shell {
        CompletedShell::Bash => &Bash,
        CompletedShell::Fish => &Fish,
        CompletedShell::Zsh => &Zsh,
    };
    let mut script = Vec::new();
    completer.write_registration(ASKS, "bowline", "bowline", "bowline", &mut script)?;
    if matches!(shell, CompletedShell::Zsh) {
        script.extend_from_slice(ZSH_FIRST_TIME.as_bytes());
    }
    Ok(script)
}

/// All commands but the hidden ones, with the candidates of their arguments.
fn completed() -> Command {
    let all = Cli::whole();
    // `help` and `--version` are made again below.
    let is_shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    let visible = all.get_subcommands().filter(is_shown).cloned();
    let visible = visible.map(|command| with_candidates(command, false));
    Command::new("bowline")
        .disable_help_flag(true)
        .version(bowline_executor::VERSION)
        .args(all.get_arguments().filter(|argument| argument.get_id() != "version").cloned())
        .subcommands(visible)
}

/// Adds the candidates of each argument that is an id, or one of some words, at all levels below `command`.
fn with_candidates(command: Command, of_sandboxes: bool) -> Command {
    let of_sandboxes = of_sandboxes || command.get_name() == SANDBOX;
    command
        .mut_args(|argument| match what_it_names(&argument, of_sandboxes) {
            Some(Named::Task) => argument.add(ArgValueCandidates::new(|| ids(false))),
            Some(Named::Sandbox) => argument.add(ArgValueCandidates::new(|| ids(true))),
            None if argument.get_id() == "set" => {
                argument.add(ArgValueCandidates::new(move || candidates(&fields(of_sandboxes))))
            }
            None if ["volume", "device"].contains(&argument.get_id().as_str()) => {
                argument.add(ArgValueCompleter::new(path_on_the_host))
            }
            None => match words(&argument) {
                words if words.is_empty() => argument,
                words => argument.add(ArgValueCandidates::new(move || candidates(&words))),
            },
        })
        .mut_subcommands(|below| with_candidates(below, of_sandboxes))
}

/// The words that an argument's value may be, where clap does not know them.
fn words(argument: &Arg) -> Vec<String> {
    if !argument.get_possible_values().is_empty() {
        return Vec::new();
    }
    let words: &[&str] = match argument.get_id().as_str() {
        "network" => &["host", "private", "none", "bridge", "cni"],
        "log" => &["json", "raw", "journald", "none"],
        "driver" | "cgroup_driver" => &["auto", "cgroupfs", "systemd"],
        "shim_cgroup" => &["inherit", "root", "overhead"],
        "ipc" | "pid" => &["host", "private"],
        "security_opt" => &["seccomp=native", "seccomp=unconfined", "apparmor=unconfined", "no-new-privileges=false"],
        "cap_add" | "cap_drop" => return capabilities().collect(),
        "user" => return names_in("/etc/passwd"),
        "group_add" => return names_in("/etc/group"),
        "signal" | "stop_signal" => return signals().collect(),
        "filter" => return filters().collect(),
        _ => &[],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn candidates<T: AsRef<str>>(words: &[T]) -> Vec<CompletionCandidate> {
    words.iter().map(|word| CompletionCandidate::new(word.as_ref())).collect()
}

/// All signals but the realtime ones.
fn signals() -> impl Iterator<Item = String> {
    (1..32).filter_map(Signal::from_number).map(Signal::name)
}

fn capabilities() -> impl Iterator<Item = String> {
    let all = Capability::all().into_iter().map(|one| one.name().trim_start_matches("CAP_").to_owned());
    all.chain(["ALL".to_owned()])
}

/// The names at the begin of each line of an account file.
fn names_in(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(':').map(|(name, _)| name.to_owned())).collect()
}

/// What stands before the first colon is a path of the host's.
fn path_on_the_host(typed: &OsStr) -> Vec<CompletionCandidate> {
    if typed.to_string_lossy().contains(':') { Vec::new() } else { PathCompleter::any().complete(typed) }
}

/// The fields of a description, as `--set` takes them: `memory.limit=`, `env.`, `args[`.
fn fields(of_sandboxes: bool) -> Vec<String> {
    let schema = if of_sandboxes { bowline_spec::sandbox_schema() } else { bowline_spec::schema() };
    let mut all = Vec::new();
    add_fields(&schema, &schema, "", &mut all);
    all
}

fn add_fields(schema: &Value, table: &Value, above: &str, all: &mut Vec<String>) {
    for (name, field) in table["properties"].as_object().into_iter().flatten() {
        let field = defined(schema, field);
        let path = format!("{above}{name}");
        let is = |kind: &str| {
            field["type"] == kind || field["type"].as_array().is_some_and(|all| all.contains(&kind.into()))
        };
        if field["properties"].is_object() {
            add_fields(schema, field, &format!("{path}."), all);
        } else if is("array") {
            all.push(format!("{path}["));
        } else if is("object") {
            all.push(format!("{path}."));
        } else {
            all.push(format!("{path}="));
        }
    }
}

/// The form of a field, where the schema has it elsewhere, or has null beside it.
fn defined<'s>(schema: &'s Value, field: &'s Value) -> &'s Value {
    let named = |field: &Value| field["$ref"].as_str().and_then(|path| schema.pointer(path.trim_start_matches('#')));
    let inner = field["anyOf"].as_array().and_then(|forms| forms.iter().find_map(named));
    named(field).or(inner).unwrap_or(field)
}

fn filters() -> impl Iterator<Item = String> {
    let keys = ["exited=", "label=", "name=", "sandbox="].map(str::to_owned);
    // A shell would take a status of two words for two arguments.
    let statuses = Shown::ALL.map(Shown::as_str).into_iter().filter(|status| !status.contains(' '));
    statuses.map(|status| format!("status={status}")).chain(keys)
}

enum Named {
    Task,
    Sandbox,
}

/// What an argument's value is the id of, if that exists already.
fn what_it_names(argument: &Arg, of_sandboxes: bool) -> Option<Named> {
    let parsed = argument.get_value_parser().type_id();
    if parsed == TypeId::of::<TaskRef>() {
        return Some(Named::Task);
    }
    match argument.get_id().as_str() {
        SANDBOX => Some(Named::Sandbox),
        // `--name` is a new one.
        _ if parsed != TypeId::of::<TaskId>() || !argument.is_positional() => None,
        _ => Some(if of_sandboxes { Named::Sandbox } else { Named::Task }),
    }
}

/// The ids of all tasks, or of all sandboxes. None where the folder cannot be read.
fn ids(of_sandboxes: bool) -> Vec<CompletionCandidate> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let folder = typed_state(&words).or_else(|| std::env::var_os("BOWLINE_STATE").map(PathBuf::from));
    let state = StateDir::new(folder.unwrap_or_else(|| Path::new(STATE).to_owned()));
    let ids = if of_sandboxes { state.sandboxes() } else { state.ids() };
    candidates(&ids.unwrap_or_default())
}

/// The folder that `--state` names in the line that is being typed.
fn typed_state(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    let mut state = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--state") {
            Some("") => state = words.next().map(|folder| folder.into_owned().into()),
            Some(rest) if rest.starts_with('=') => state = Some(rest[1..].into()),
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_state_folder_of_the_line_is_found() {
        let of = |line: &str| typed_state(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("bowline --state /a stop w"), Some("/a".into()));
        assert_eq!(of("bowline --state=/b stop w"), Some("/b".into()));
        assert_eq!(of("bowline stop --state"), None);
        assert_eq!(of("bowline stop w"), None);
    }

    #[test]
    fn every_word_is_one_that_is_taken() {
        let all = Cli::whole();
        let mut known = 0;
        for name in ["run", "start", "stop", "kill"] {
            for argument in all.find_subcommand(name).expect("a command").get_arguments() {
                let flag = argument.get_long().unwrap_or_default();
                for word in words(argument) {
                    let line = ["bowline", name, &format!("--{flag}={word}"), "x"];
                    assert!(Cli::command().try_get_matches_from(line).is_ok(), "{line:?}");
                    known += 1;
                }
            }
        }
        assert!(known > 50, "{known}");
    }

    #[test]
    fn every_field_that_is_offered_can_be_set() {
        for (of_sandboxes, some) in [
            (false, ["memory.limit=", "env.", "args[", "stop.grace="]),
            (true, ["name=", "memory.limit=", "pids=", "hugepages."]),
        ] {
            let all = fields(of_sandboxes);
            assert!(some.iter().all(|field| all.iter().any(|one| one == field)) && all.len() > 30, "{all:?}");
            for field in all {
                let typed = match field.strip_suffix('[') {
                    Some(list) => format!("{list}[0]=x"),
                    None => format!("{field}{}", if field.ends_with('.') { "x=y" } else { "y" }),
                };
                assert!(typed.parse::<crate::input::set::Setting>().is_ok(), "{typed}");
            }
        }
    }

    #[test]
    fn each_id_is_known_by_its_kind() {
        let all = completed();
        let kinds = |command: &str, below: Option<&str>| {
            let command = all.find_subcommand(command).expect("a command");
            let command = below.map_or(command, |name| command.find_subcommand(name).expect("one below"));
            let of_sandboxes = below.is_some();
            let named = command.get_arguments().filter_map(|argument| what_it_names(argument, of_sandboxes));
            named.map(|named| matches!(named, Named::Sandbox)).collect::<Vec<_>>()
        };
        for command in ["attach", "exec", "stop", "kill", "wait", "inspect", "logs", "stats", "top", "update", "events"]
        {
            assert_eq!(kinds(command, None), [false], "{command}");
        }
        assert_eq!(kinds("run", None), [true]);
        assert_eq!(kinds("sandbox", Some("rm")), [true]);
        assert_eq!(kinds("sandbox", Some("create")), [] as [bool; 0]);
    }
}
