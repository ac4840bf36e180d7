//! `--flag=true` and `--flag=false`, as docker takes them, for flags that have no value.
//!
//! clap refuses such a value, and names both. Only then the line is read again: without the value, or without the flag if
//! that is false. Must not: look at what follows the command to run.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _};

use super::args::Cli;
use super::misuse::Called;

/// Parses a command line, whose first word is the program's name.
///
/// # Errors
/// clap's; one for a value that is neither true nor false, and one for a flag that is given and taken back.
pub fn parse(mut words: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    let refused = |message: String| Err(Cli::command().error(ErrorKind::InvalidValue, message));
    let mut taken_back = Vec::new();
    let matches = loop {
        let error = match Cli::command().try_get_matches_from(&words) {
            Ok(matches) => break matches,
            Err(error) => error,
        };
        let Some(Switch { at, before, name, value }) = Switch::of(&error, &words) else { return Err(error) };
        match truth(&value) {
            Some(true) => words[at] = [before, name].concat().into(),
            Some(false) => {
                words.splice(at..=at, (!before.is_empty()).then(|| before.into()));
                taken_back.push(name);
            }
            None => return refused(format!("{} is true or false, not '{value}'", dashed(&name))),
        }
    };
    match taken_back.iter().find(|name| is_given(&matches, &words, name)) {
        Some(name) => refused(format!("{} is given, and taken back", dashed(name))),
        None => Ok(matches),
    }
}

/// A flag with a value that it does not take.
struct Switch {
    /// Which word it is.
    at: usize,
    /// The other letters of the word: `-i` in `-it=true`.
    before: String,
    /// `--rm`, or in such a word the letter alone.
    name: String,
    value: String,
}

impl Switch {
    fn of(error: &clap::Error, words: &[OsString]) -> Option<Switch> {
        let word = |kind| match error.get(kind) {
            Some(ContextValue::String(word)) => Some(word.as_str()),
            _ => None,
        };
        let mut typed = words.iter().enumerate().filter_map(|(at, word)| Some((at, word.to_str()?.split_once('=')?)));
        match (error.kind(), word(ContextKind::InvalidArg)?) {
            // A flag with a value in its help takes one.
            (ErrorKind::TooManyValues, flag) if flag.starts_with("--") && !flag.contains('<') => {
                let wrong = word(ContextKind::InvalidValue)?;
                let (at, _) = typed.find(|(_, (name, value))| (*name, *value) == (flag, wrong))?;
                Some(Switch { at, before: String::new(), name: flag.to_owned(), value: wrong.to_owned() })
            }
            (ErrorKind::UnknownArgument, "-=") => {
                let called = Called::of(&words[1..]);
                let (at, (letters, value)) = typed.find(|(_, (name, _))| {
                    let letters = name.strip_prefix('-').filter(|letters| !letters.is_empty());
                    letters.is_some_and(|letters| letters.chars().all(|letter| called.is_switch(letter)))
                })?;
                let (before, name) = letters.split_at(letters.char_indices().last()?.0);
                let before = if before == "-" { "" } else { before };
                let name = if before.is_empty() { format!("-{name}") } else { name.to_owned() };
                Some(Switch { at, before: before.to_owned(), name, value: value.to_owned() })
            }
            _ => None,
        }
    }
}

/// Reads a truth value as Go does, which docker is written in.
fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn dashed(name: &str) -> String {
    if name.starts_with('-') { name.to_owned() } else { format!("-{name}") }
}

/// Whether the flag is on the line, perhaps by its other name.
fn is_given(matches: &ArgMatches, words: &[OsString], name: &str) -> bool {
    let mut matches = matches;
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    let id = Called::of(&words[1..]).id_of(&dashed(name));
    id.is_some_and(|id| matches.value_source(&id) == Some(ValueSource::CommandLine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(flags: &[&str]) -> Result<[bool; 3], String> {
        let words = ["bowline", "run"].iter().chain(flags).chain(&["true", "--rm=x"]).map(OsString::from).collect();
        let matches = parse(words).map_err(|error| error.to_string())?;
        let run = matches.subcommand_matches("run").expect("run");
        Ok(["rm", "interactive", "tty"].map(|flag| run.get_flag(flag)))
    }

    #[test]
    fn a_switch_may_say_whether_it_is_on() {
        assert_eq!(run(&["--rm=true", "-it"]), Ok([true, true, true]));
        assert_eq!(run(&["--rm=false", "-it=false"]), Ok([false, true, false]));
        assert_eq!(run(&["-e=A=b", "-i=1", "-t=F", "--rm=T"]), Ok([true, true, false]));
        assert_eq!(run(&["--label", "x=true", "--tty=0"]), Ok([false, false, false]));
    }

    #[test]
    fn what_is_neither_or_both_is_refused() {
        for (flags, why) in [
            (&["--rm=maybe"][..], "--rm is true or false, not 'maybe'"),
            (&["--rm="], "--rm is true or false, not ''"),
            (&["-it=yes"], "-t is true or false, not 'yes'"),
            (&["--rm", "--rm=false"], "--rm is given, and taken back"),
            (&["-t", "--tty=false"], "--tty is given, and taken back"),
            (&["-it=false", "-t"], "-t is given, and taken back"),
            (&["--rm=true", "--rm"], "cannot be used multiple times"),
            (&["--rum=true"], "unexpected argument '--rum'"),
        ] {
            let error = run(flags).expect_err(why);
            assert!(error.contains(why), "{flags:?}: {error}");
        }
    }
}
