//! Reports invalid command lines: clap's errors in bowline's form.
//!
//! Prints one line that says what is wrong, and a hint: what stands for a word of docker's, or clap's suggestion and where
//! to read more. Must not: handle anything but arguments.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use bowline_model::bounded_name;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit_code::{FAILED, USAGE};
use crate::input::args::Cli;
use crate::input::docker_words;
use crate::ui::print::complain;

/// Prints clap's answer: help if it was asked for, else an error.
pub fn tell(error: &clap::Error) -> ExitCode {
    if let Some(name) = host_name(error.kind(), &std::env::args_os().skip(1).collect::<Vec<_>>()) {
        let hint = format!("--hostname {name} sets the host name");
        complain(&format!("-h prints the help of a command, and {name} follows it"), Some(&hint));
        return ExitCode::from(USAGE);
    }
    if !error.use_stderr() {
        // Help and version.
        return printed(error.print());
    }
    // `bowline` alone, or a group of commands alone, asks for help; clap calls it an error once BOWLINE_STATE is set.
    if [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingSubcommand].contains(&error.kind()) {
        let help = called(std::env::args_os().skip(1)).render_help();
        return printed(write!(anstream::stdout(), "{}", help.ansi()));
    }
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(word) = not_utf8(std::env::args_os())
    {
        complain(&format!("the argument {word} is not UTF-8"), Some(NOT_UTF8));
        return ExitCode::from(USAGE);
    }
    let text = with_short_words(error.render().to_string(), std::env::args_os());
    // Use the first paragraph; the second repeats the hint, and the third is the usage.
    let first: Vec<&str> = text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    complain(first.join(" ").trim_start_matches("error: "), Some(&hint(error, std::env::args_os().skip(1))));
    ExitCode::from(USAGE)
}

/// What to do with bytes that are not UTF-8.
pub const NOT_UTF8: &str = "arguments, names, paths and variables of a task are UTF-8; a script that it runs may have any bytes, \
                            as in sh -c 'exec CMD \"$(printf \"\\377\")\"'";

/// The first argument that is not UTF-8, in quotes and escaped.
pub fn not_utf8(args: impl Iterator<Item = OsString>) -> Option<String> {
    let word = args.filter_map(|word| word.into_string().err()).next()?;
    Some(bounded_name(&format!("{word:?}")).into_owned())
}

/// Shortens what a message repeats of long arguments, so that it still says what is wrong with which of them.
fn with_short_words(mut text: String, args: impl Iterator<Item = OsString>) -> String {
    for word in args.filter_map(|word| word.into_string().ok()) {
        let value = word.split_once('=').map(|(_, value)| value.to_owned());
        for long in [Some(word), value].into_iter().flatten() {
            if let Cow::Owned(short) = bounded_name(&long) {
                text = text.replace(&long, &short);
            }
        }
    }
    text
}

/// Says that a help could not be printed. A reader that is gone is no error.
fn printed(outcome: io::Result<()>) -> ExitCode {
    match outcome.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("cannot write to stdout: {error}"), None);
            ExitCode::from(FAILED)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

/// The word after `-h` of a command that starts something: docker and podman take it for the host name.
fn host_name(kind: ErrorKind, args: &[OsString]) -> Option<String> {
    // To build all commands takes longer than anything else that `--version` does.
    if kind != ErrorKind::DisplayHelp || !args.iter().any(|arg| arg == "-h") {
        return None;
    }
    let command = called(args.iter().cloned());
    let starts = matches!(command.get_bin_name(), Some("bowline run" | "bowline start" | "bowline sandbox create"));
    let words = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    let mut words = words.skip_while(|word| word != command.get_name()).skip_while(|word| word != "-h");
    let name = words.nth(1).filter(|word| !word.starts_with('-'))?;
    starts.then_some(name)
}

/// The command that is called, as far as its words are those of commands.
fn called(args: impl Iterator<Item = OsString>) -> clap::Command {
    // It also gives each command its full name.
    let mut command = Cli::whole();
    for word in args.filter_map(|arg| arg.into_string().ok()) {
        if let Some(below) = command.find_subcommand(&word) {
            command = below.clone();
        }
    }
    command
}

fn hint(error: &clap::Error, args: impl Iterator<Item = OsString>) -> String {
    let command = called(args);
    let name = command.get_bin_name().unwrap_or(command.get_name());
    if let Some(instead) = instead(error, name) {
        return instead.to_owned();
    }
    let help = format!("see `{name} --help`");
    let suggested = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let meant = suggested.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The best suggestion comes last.
        ContextValue::Strings(all) => all.last().cloned(),
        _ => None,
    });
    match meant {
        Some(meant) => format!("perhaps {meant} is meant; {help}"),
        None => help,
    }
}

/// Instead of `--rm` for a task in the background.
const REMOVES_LATER: &str = "`bowline rm --exited` removes all that have ended, `bowline rm ID` one of them";

/// What to type instead of flags that do not go together, or of a word of docker's that the command `name` does not have.
fn instead(error: &clap::Error, name: &str) -> Option<&'static str> {
    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.as_str()],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let of = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg, ContextKind::PriorArg];
    let words: Vec<&str> = of.into_iter().flat_map(words).collect();
    match (error.kind(), name, &words[..]) {
        (ErrorKind::InvalidSubcommand, "bowline", [word]) => docker_words::command(word),
        (ErrorKind::UnknownArgument, "bowline start", ["--rm"]) => Some(REMOVES_LATER),
        (ErrorKind::UnknownArgument, "bowline run" | "bowline start", [flag]) => docker_words::flag(flag),
        (ErrorKind::ArgumentConflict, _, ["--detach", "--rm"] | ["--rm", "--detach"]) => Some(REMOVES_LATER),
        (ErrorKind::MissingRequiredArgument, _, ["--bundle <DIR>"]) => {
            Some("without a bundle, type the command itself instead of --entrypoint")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn hinted(args: &[&str]) -> String {
        let error = Cli::try_parse_from(std::iter::once(&"bowline").chain(args)).expect_err("no command line");
        hint(&error, args.iter().map(OsString::from))
    }

    #[test]
    fn what_is_probably_meant_is_told() {
        assert_eq!(hinted(&["wait", "--jsn", "x"]), "perhaps --json is meant; see `bowline wait --help`");
        assert_eq!(hinted(&["statz"]), "perhaps stats is meant; see `bowline --help`");
        assert_eq!(hinted(&["ps", "--sort=create"]), "perhaps created is meant; see `bowline ps --help`");
        assert_eq!(hinted(&["exec"]), "see `bowline exec --help`");
        assert_eq!(hinted(&["run", "--mem", "5", "ls"]), "perhaps --memory is meant; see `bowline run --help`");
        assert_eq!(hinted(&["sandbox", "create", "--bad"]), "see `bowline sandbox create --help`");
    }

    #[test]
    fn what_is_long_leaves_room_for_what_is_wrong() {
        let long = "a".repeat(100_000);
        let args = || ["bowline", "run", "--memory", &long, "x"].map(OsString::from).into_iter();
        let error = Cli::try_parse_from(args()).expect_err("no size");
        let text = with_short_words(error.render().to_string(), args());
        assert!(
            text.len() < 2000 && text.contains("for '--memory <SIZE>'") && text.contains("is not a size"),
            "{text}"
        );
        let flag = format!("--x={long}");
        assert!(with_short_words(format!("no {long}"), [OsString::from(flag)].into_iter()).len() < 300);
    }

    #[test]
    fn flags_that_need_others_have_answers_of_their_own() {
        for args in [&["run", "-d", "--rm", "true"][..], &["run", "--rm", "-d", "true"], &["start", "--rm", "true"]] {
            assert_eq!(hinted(args), REMOVES_LATER, "{args:?}");
        }
        let instead = "without a bundle, type the command itself instead of --entrypoint";
        assert_eq!(hinted(&["run", "--entrypoint", "sh", "x"]), instead);
    }

    #[test]
    fn words_of_docker_s_have_answers_of_their_own() {
        assert_eq!(hinted(&["unpause", "web"]), "`bowline resume` lets a paused task continue");
        assert_eq!(hinted(&["sandbox", "delete", "web"]), "see `bowline sandbox --help`");
        for flag in ["--privileged", "--privileged=true"] {
            let instead = "there is no such mode; give what it needs: --cap-add, --device";
            assert_eq!(hinted(&["run", flag, "true"]), instead);
        }
        assert_eq!(hinted(&["start", "--cpu-shares", "512", "true"]), "--set cpu.shares=512");
        assert_eq!(hinted(&["exec", "--privileged", "web", "id"]), "see `bowline exec --help`");
    }

    #[test]
    fn h_is_no_host_name() {
        let of = |args: &[&str]| {
            let error = Cli::try_parse_from(std::iter::once(&"bowline").chain(args)).expect_err("help");
            host_name(error.kind(), &args.iter().map(OsString::from).collect::<Vec<_>>())
        };
        for args in
            [&["run", "-h", "box", "true"][..], &["start", "-t", "-h", "box"], &["sandbox", "create", "-h", "box"]]
        {
            assert_eq!(of(args).as_deref(), Some("box"), "{args:?}");
        }
        for args in [
            &["run", "-h"][..],
            &["run", "-h", "--json"],
            &["-h", "run"],
            &["ps", "-h", "web"],
            &["run", "--help", "true"],
        ] {
            assert_eq!(of(args), None, "{args:?}");
        }
    }
}
