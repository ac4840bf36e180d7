//! Reports invalid command lines: clap's errors in bowline's form.
//!
//! Prints one line that says what is wrong, and a hint: what stands for a word of another program's, or what is spelled
//! nearly so, and where to read more. Must not: handle anything but arguments.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use bowline_model::bounded_name;
use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;

use crate::exit_code::{FAILED, USAGE};
use crate::input::args::Cli;
use crate::input::foreign;
use crate::ui::print::complain;

/// Prints clap's answer: help if it was asked for, else an error.
pub fn tell(error: &clap::Error) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let answer = answer(error, &args);
    match answer {
        Answer::Refused { message, hint } => {
            complain(&message, Some(&hint));
            ExitCode::from(USAGE)
        }
        Answer::AsClapHasIt => printed(error.print()),
        Answer::HelpOf(mut command) => printed(write!(anstream::stdout(), "{}", command.render_help().ansi())),
    }
}

/// The error for detach keys on a command line whose task ends with the command. The variable for them is for all commands.
pub fn keys_that_leave_nothing(matches: &clap::ArgMatches) -> Option<clap::Error> {
    let run = matches.subcommand_matches("run")?;
    let is_typed = |id| run.value_source(id) == Some(ValueSource::CommandLine);
    let both = is_typed("die_with_parent") && is_typed("detach_keys");
    let message = "the argument '--die-with-parent' cannot be used with '--detach-keys <KEYS>'";
    both.then(|| Cli::command().error(ErrorKind::ArgumentConflict, message))
}

/// What is printed instead of running anything.
enum Answer {
    Refused {
        message: String,
        hint: String,
    },
    /// Help and version.
    AsClapHasIt,
    HelpOf(Box<clap::Command>),
}

fn answer(error: &clap::Error, args: &[OsString]) -> Answer {
    if let Some((word, hint)) = word_after_help(error.kind(), args) {
        return Answer::Refused { message: format!("-h prints the help of a command, and {word} follows it"), hint };
    }
    if !error.use_stderr() {
        return Answer::AsClapHasIt;
    }
    // `bowline` alone, or a group of commands alone, asks for help; clap calls it an error once BOWLINE_STATE is set.
    if [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingSubcommand].contains(&error.kind()) {
        return Answer::HelpOf(Box::new(Called::of(args).command));
    }
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(word) = not_utf8(args.iter().cloned())
    {
        return Answer::Refused { message: format!("the argument {word} is not UTF-8"), hint: NOT_UTF8.to_owned() };
    }
    let text = with_short_words(error.render().to_string(), args.iter().cloned());
    // Use the first paragraph; the second repeats the hint, and the third is the usage.
    let first: Vec<&str> = text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    Answer::Refused { message: first.join(" ").trim_start_matches("error: ").to_owned(), hint: hint(error, args) }
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

/// The hint for a command line of these words, or that help is printed.
#[cfg(test)]
pub fn hinted(error: &clap::Error, words: &[String]) -> String {
    match answer(error, &words.iter().map(OsString::from).collect::<Vec<_>>()) {
        Answer::Refused { hint, .. } => hint,
        Answer::AsClapHasIt | Answer::HelpOf(_) => "help".to_owned(),
    }
}

/// The word that follows `-h`, and what to type: the flag for a host name where docker and podman take it for one.
/// Nothing runs, which must not look like success.
fn word_after_help(kind: ErrorKind, args: &[OsString]) -> Option<(String, String)> {
    // To build all commands takes longer than anything else that `--version` does.
    if kind != ErrorKind::DisplayHelp {
        return None;
    }
    let called = Called::of(args);
    let has_name = ["bowline run", "bowline start", "bowline sandbox create"].contains(&called.name());
    let (word, is_name) = called.word_after_help(has_name)?;
    if is_name && has_name {
        // Whatever else a name has might mean something to a shell.
        let is_plain = word.chars().all(|char| char.is_ascii_alphanumeric() || ".-".contains(char));
        let hint = format!("--hostname {} sets the host name", if is_plain { &word } else { "NAME" });
        return Some((word, hint));
    }
    let hint = format!("leave -h out, or what follows: `{} -h` prints the help alone", called.name());
    Some((word, hint))
}

/// The command that is called, and the words after its name.
pub struct Called {
    command: clap::Command,
    rest: Vec<String>,
}

impl Called {
    /// Goes on from command to command, up to the first word that is none.
    pub fn of(args: &[OsString]) -> Called {
        // It also gives each command its full name.
        let mut called = Called { command: Cli::whole(), rest: Vec::new() };
        let mut words = args.iter().map(|word| word.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            let below = called.command.find_subcommand(&word).cloned();
            match below {
                // The flags of the command above are not its own, but nothing runs after its -h either.
                Some(below) => {
                    called.rest.retain(|word| word == "-h");
                    called = Called { command: below, rest: called.rest };
                }
                None if called.command.has_subcommands() && called.has(&word) => {
                    let value = called.takes_next(&word).then(|| words.next()).flatten();
                    called.rest.extend([Some(word), value].into_iter().flatten());
                }
                None => {
                    called.rest.push(word);
                    called.rest.extend(words);
                    break;
                }
            }
        }
        called
    }

    /// The word after `-h`, and whether it follows at once; also in the same word where it `may_be_joined`. A word is no
    /// flag, and no flag's value.
    fn word_after_help(&self, may_be_joined: bool) -> Option<(String, bool)> {
        let mut words = self.rest.iter();
        let mut begins = loop {
            let word = words.next()?;
            let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.starts_with('-')) else {
                if self.takes_next(word) {
                    words.next();
                }
                continue;
            };
            // What follows a flag with a value in one word is its value.
            let ours = flags.chars().take_while(|flag| *flag != 'h').all(|flag| !self.takes_value(flag));
            match flags.split_once('h') {
                Some((_, "")) if ours => break true,
                Some((_, name)) if ours && may_be_joined => {
                    return Some((name.trim_start_matches('=').to_owned(), true));
                }
                Some(_) if ours => break false,
                _ if self.takes_next(word) => drop(words.next()),
                _ => {}
            }
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--" => return words.next().map(|word| (word.clone(), false)),
                flag if flag.starts_with('-') && self.takes_next(flag) => drop(words.next()),
                flag if flag.starts_with('-') => {}
                word => return Some((word.to_owned(), begins)),
            }
            begins = false;
        }
        None
    }

    fn name(&self) -> &str {
        self.command.get_bin_name().unwrap_or(self.command.get_name())
    }

    /// Whether `word` is a flag of the command, perhaps with its value.
    fn has(&self, word: &str) -> bool {
        let name = word.split('=').next().unwrap_or_default();
        match (name.strip_prefix("--"), name.strip_prefix('-')) {
            (Some(long), _) => self.long(long).is_some(),
            (None, Some(short)) => short.chars().next().is_some_and(|flag| self.short(flag).is_some()),
            (None, None) => false,
        }
    }

    fn long(&self, name: &str) -> Option<&clap::Arg> {
        let has =
            |argument: &&clap::Arg| argument.get_long_and_visible_aliases().is_some_and(|all| all.contains(&name));
        self.command.get_arguments().find(has)
    }

    fn short(&self, flag: char) -> Option<&clap::Arg> {
        let has =
            |argument: &&clap::Arg| argument.get_short_and_visible_aliases().is_some_and(|all| all.contains(&flag));
        self.command.get_arguments().find(has)
    }

    /// Whether the letter is a flag without a value.
    pub fn is_switch(&self, flag: char) -> bool {
        self.short(flag).is_some_and(|argument| !argument.get_action().takes_values())
    }

    /// The id of the flag that `--name`, or `-n`, is.
    pub fn id_of(&self, flag: &str) -> Option<String> {
        let argument = match flag.strip_prefix("--") {
            Some(long) => self.long(long),
            None => flag.chars().nth(1).and_then(|letter| self.short(letter)),
        };
        argument.map(|argument| argument.get_id().to_string())
    }

    /// Whether the word after the flag `word` is its value.
    fn takes_next(&self, word: &str) -> bool {
        let takes = |argument: &clap::Arg| argument.get_action().takes_values() && !argument.is_require_equals_set();
        match word.strip_prefix("--") {
            Some(long) => self.long(long).is_some_and(takes),
            None => word.chars().nth(1).is_some_and(|flag| word.chars().count() == 2 && self.takes_value(flag)),
        }
    }

    fn takes_value(&self, flag: char) -> bool {
        self.short(flag).is_some_and(|argument| argument.get_action().takes_values())
    }
}

fn hint(error: &clap::Error, args: &[OsString]) -> String {
    let called = Called::of(args);
    if let Some(instead) = instead(error, &called) {
        return instead;
    }
    let help = format!("see `{} --help`", called.name());
    match meant(error) {
        Some(meant) => format!("perhaps {meant} is meant; {help}"),
        None => help,
    }
}

/// What clap suggests, if that is spelled nearly as what was typed.
fn meant(error: &clap::Error) -> Option<String> {
    let kinds = [
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    kinds.into_iter().find_map(|(typed, suggested)| {
        let typed = words(error, typed).first().copied()?;
        // The best suggestion comes last.
        words(error, suggested).into_iter().rev().find(|meant| is_close(typed, meant)).map(str::to_owned)
    })
}

/// Whether `typed` begins `meant`, or is a typo of it: one error in three letters, two in six. Three make another word
/// of one: `--no-network` is not `--network`.
fn is_close(typed: &str, meant: &str) -> bool {
    let (typed, meant) = (typed.trim_start_matches('-'), meant.trim_start_matches('-'));
    let most = (typed.chars().count() / 3).min(2);
    typed.len() > 2 && meant.starts_with(typed) || strsim::damerau_levenshtein(typed, meant) <= most
}

fn words(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.as_str()],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// What to type instead of flags that do not go together, or of another program's word that the command does not have.
fn instead(error: &clap::Error, called: &Called) -> Option<String> {
    let of = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg, ContextKind::PriorArg];
    let words: Vec<&str> = of.into_iter().flat_map(|kind| words(error, kind)).collect();
    let name = called.name();
    let instead = match (error.kind(), name, &words[..]) {
        (ErrorKind::InvalidSubcommand, "bowline", [word]) => return instead_of_command(word, called),
        (ErrorKind::UnknownArgument, "bowline", [flag]) => return instead_above(flag, called),
        (ErrorKind::UnknownArgument, "bowline update", [flag]) if Called::of(&["run".into()]).has(flag) => {
            return Some(fixed(flag));
        }
        (ErrorKind::UnknownArgument, _, [flag]) => {
            let command = name.trim_start_matches("bowline ");
            let starts = ["run", "start", "sandbox create"].contains(&command);
            let of_task = || setting(flag, &called.rest).or_else(|| foreign::find(flag, &called.rest));
            let own = foreign::find(&format!("{command} {flag}"), &called.rest);
            own.or_else(|| of_task().filter(|_| starts))?
        }
        // systemd-run's -p has a setting where docker's has a port.
        (ErrorKind::ValueValidation, _, ["--publish <HOST:TASK>"]) => setting("-p", &called.rest)?,
        (ErrorKind::MissingRequiredArgument, _, ["--bundle <DIR>"]) => {
            "without a bundle, type the command itself instead of --entrypoint"
        }
        _ => return None,
    };
    Some(instead.to_owned())
}

/// Why `update` does not take a flag of `run`.
fn fixed(flag: &str) -> String {
    let why = match flag {
        "--ulimit" | "--oom-score-adj" => "each process has this from its start, and keeps it",
        _ => "a task keeps what it was launched with",
    };
    format!("{why}: `bowline run --replace {flag}` starts another one of its name")
}

/// What to type instead of a flag before the command: one of another program's, or a task's.
fn instead_above(flag: &str, called: &Called) -> Option<String> {
    if let Some(instead) = foreign::find(&format!("bowline {flag}"), &called.rest) {
        return Some(instead.to_owned());
    }
    let run = Called::of(&["run".into()]);
    if run.has(flag) {
        return Some(format!("flags of a task follow `bowline run`: `bowline run {flag}`"));
    }
    let instead = foreign::find(flag, &called.rest)?;
    Some(format!("flags of a task follow `bowline run`; there, {instead}"))
}

/// What to type instead of the command `word`, with the command after it if it is the name of a group.
fn instead_of_command(word: &str, called: &Called) -> Option<String> {
    let second = called.rest.iter().skip_while(|typed| *typed != word).nth(1);
    if let Some(second) = second {
        if let Some(instead) = foreign::find(&format!("{word} {second}"), &called.rest) {
            return Some(instead.to_owned());
        }
        if foreign::GROUPS.contains(&word) && called.command.find_subcommand(second).is_some() {
            return Some(format!("leave the word out: `bowline {second}`"));
        }
        if let Some(instead) = foreign::find(second, &called.rest).filter(|_| foreign::GROUPS.contains(&word)) {
            return Some(instead.to_owned());
        }
    }
    foreign::find(word, &called.rest).map(str::to_owned)
}

/// What stands for the setting of systemd's that follows `flag`.
fn setting(flag: &str, words: &[String]) -> Option<&'static str> {
    let begun = match flag {
        "-p" | "--property" => ["-p", "--property"],
        _ => return None,
    };
    let given = words.iter().enumerate().filter_map(|(at, word)| {
        let after = begun.iter().find_map(|flag| word.strip_prefix(flag))?;
        if after.is_empty() { words.get(at + 1).map(String::as_str) } else { Some(after.trim_start_matches('=')) }
    });
    let mut names = given.filter_map(|setting| setting.split_once('=').map(|(name, _)| format!("{name}=")));
    names.find_map(|name| foreign::find(&name, words))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn hinted(args: &[&str]) -> String {
        let error = Cli::try_parse_from(std::iter::once(&"bowline").chain(args)).expect_err("no command line");
        hint(&error, &args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_probably_meant_is_told() {
        assert_eq!(hinted(&["wait", "--jsn", "x"]), "perhaps --json is meant; see `bowline wait --help`");
        assert_eq!(hinted(&["statz"]), "perhaps stats is meant; see `bowline --help`");
        assert_eq!(hinted(&["ps", "--sort=create"]), "perhaps created is meant; see `bowline ps --help`");
        assert_eq!(hinted(&["exec"]), "see `bowline exec --help`");
        assert_eq!(hinted(&["run", "--memor", "5", "ls"]), "perhaps --memory is meant; see `bowline run --help`");
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
        let instead = "without a bundle, type the command itself instead of --entrypoint";
        assert_eq!(hinted(&["run", "--entrypoint", "sh", "x"]), instead);
    }

    #[test]
    fn words_of_docker_s_have_answers_of_their_own() {
        assert_eq!(hinted(&["unpause", "web"]), "`bowline resume` lets a paused task continue");
        assert_eq!(hinted(&["sandbox", "delete", "web"]), "see `bowline sandbox --help`");
        for flag in ["--privileged", "--privileged=true"] {
            let instead = "there is no such mode; give what it needs: `--cap-add`, `--device`, `--security-opt`";
            assert_eq!(hinted(&["run", flag, "true"]), instead);
        }
        assert_eq!(hinted(&["start", "-c", "512", "true"]), "`--cpu-shares`");
        let exec = "an exec has the task's capabilities, no more: `--cap-add` of `bowline run` gives them";
        assert_eq!(hinted(&["exec", "--privileged", "web", "id"]), exec);
    }

    #[test]
    fn h_is_no_host_name() {
        let of = |args: &[&str]| {
            let error = Cli::try_parse_from(std::iter::once(&"bowline").chain(args)).expect_err("help");
            word_after_help(error.kind(), &args.iter().map(OsString::from).collect::<Vec<_>>())
        };
        for args in [
            &["run", "-h", "box", "true"][..],
            &["start", "-t", "-h", "box"],
            &["sandbox", "create", "-h", "box"],
            &["run", "-hbox", "true"],
            &["run", "-h=box", "true"],
            &["run", "-ith", "box", "true"],
            &["run", "-v", "/h:/h", "--name", "x", "-h", "box"],
            &["--state", "/run", "run", "-h", "box"],
        ] {
            let (word, hint) = of(args).expect("a word");
            assert_eq!((&*word, &*hint), ("box", "--hostname box sets the host name"), "{args:?}");
        }
        for args in [
            &["run", "-h"][..],
            &["run", "-h", "--json"],
            &["run", "-h", "--name", "x"],
            &["-h", "run"],
            &["sandbox", "-h", "create"],
            &["ps", "-ha"],
            &["logs", "web", "-h"],
            &["run", "--help", "true"],
            &["run", "-v", "/h:/h", "--help"],
            &["run", "-vh:/h", "-h"],
        ] {
            assert_eq!(of(args), None, "{args:?}");
        }
    }

    #[test]
    fn words_after_h_are_refused_by_every_command() {
        let whole = Cli::whole();
        let groups =
            whole.get_subcommands().flat_map(|command| command.get_subcommands().map(move |below| (command, below)));
        let groups = groups.map(|(command, below)| vec![command.get_name(), below.get_name()]);
        let commands = whole.get_subcommands().map(|command| vec![command.get_name()]);
        let all: Vec<Vec<&str>> = commands.chain(groups).collect();
        assert!(all.len() > 40, "{}", all.len());
        // What follows `help` is a command.
        for command in all.into_iter().filter(|command| !command.contains(&"help")) {
            let name = command[0];
            for after in [&["-h", "box", "ls"][..], &["-h", "--", "ls"], &["-h", name, "box"]] {
                // The last one has -h before all commands.
                let command = if after[1] == name { &[][..] } else { &command[..] };
                let line = [&["bowline"], command, after].concat();
                let error = Cli::try_parse_from(&line).expect_err("help");
                let args: Vec<OsString> = line[1..].iter().map(OsString::from).collect();
                let (word, hint) = word_after_help(error.kind(), &args).unwrap_or_else(|| panic!("{line:?}"));
                assert!(after.contains(&&*word) && !hint.is_empty(), "{line:?}: {word}");
            }
        }
    }
}
