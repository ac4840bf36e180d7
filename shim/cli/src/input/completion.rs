//! What a shell offers while somebody types: commands, flags, values, and the ids of tasks and sandboxes.
//!
//! ```text
//!   the script of `bowline completions` ─ [Tab], _BOWLINE_COMPLETE=bash ─► bowline -- WORDS ─► candidates on stdout
//! ```
//!
//! Reads the names in the state folder alone. Must not: ask a shim, print an error.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bowline_client::STATE;
use bowline_model::folder::StateDir;
use bowline_spec::id::TaskId;
use bowline_spec::signal::Signal;
use clap::{Arg, Command};
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate};

use crate::input::args::{Cli, CompletedShell};
use crate::input::filter::STATUSES;
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

fn filters() -> impl Iterator<Item = String> {
    let keys = ["exited=", "label=", "name=", "sandbox="].map(str::to_owned);
    // A shell would take a status of two words for two arguments.
    let statuses = STATUSES.iter().filter(|status| !status.contains(' '));
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
