//! Reports invalid command lines: clap's errors in bowline's form.
//!
//! Prints one line that says what is wrong, and a hint with clap's suggestion and where to read more. Must not: handle
//! anything but arguments.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::exit_code::USAGE;
use crate::input::args::Cli;
use crate::ui::print::complain;

/// Prints clap's answer: help if it was asked for, else an error.
pub fn tell(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help and version. Ignore errors: there is nowhere to report them.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    // `bowline` alone, or a group of commands alone, asks for help; clap calls it an error once BOWLINE_STATE is set.
    if [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingSubcommand].contains(&error.kind()) {
        let help = called(std::env::args_os().skip(1)).render_help();
        let _ = write!(anstream::stdout(), "{}", help.ansi());
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    // Use the first paragraph; the second repeats the hint, and the third is the usage.
    let first: Vec<&str> = text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
    complain(first.join(" ").trim_start_matches("error: "), Some(&hint(error, std::env::args_os().skip(1))));
    ExitCode::from(USAGE)
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
    let command = Cli::command();
    let name = args.filter_map(|arg| arg.into_string().ok()).find(|arg| command.find_subcommand(arg).is_some());
    let help = match &name {
        Some(name) => format!("see `bowline {name} --help`"),
        None => "see `bowline --help`".to_owned(),
    };
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
    }
}
