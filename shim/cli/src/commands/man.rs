//! `bowline man`: the man pages, made from the declared arguments and the texts below: exit codes, environment, files.
//!
//! For `make install` and packages; hidden, as nobody else needs it.

use std::collections::BTreeMap;
use std::path::Path;

use bowline_model::{Doing as _, Kind, Result};
use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::input::args::Cli;
use crate::ui::reader;

/// The meaning of exit codes, for the page of every command.
const EXIT_STATUS: [(&str, &str); 7] = [
    ("0", "It was done; run, exec: the command exited with 0."),
    ("1-255", "run, exec: the command exited with it, or with 128 + the number of the signal that ended it."),
    ("2", "The command line makes no sense."),
    ("124", "exec: the deadline came first; run: the task was stopped as its timeout was over."),
    ("125", "bowline itself failed, what was asked for cannot be done, or output is lost."),
    ("126", "run, start, exec: the command cannot be executed."),
    ("127", "run, start, exec: the command was not found."),
];

const FILES: [(&str, &str); 9] = [
    (
        "/etc/cdi, /var/run/cdi",
        "Vendors' files of devices, unless --cdi-spec-dir or BOWLINE_CDI_SPEC_DIRS says otherwise.",
    ),
    ("/run/bowline", "The folder of all tasks, unless --state or BOWLINE_STATE says otherwise."),
    ("/run/bowline/.seccomp", "Compiled system call filters."),
    ("/run/bowline/ID/task.json", "The description of a task, and what is needed to undo it."),
    ("/run/bowline/ID/exit.json", "The exit report, once the task has ended."),
    ("/run/bowline/ID/log.json", "The log of a task that start has started; older parts of it have a number."),
    ("/run/bowline/ID/shim.log", "What the shim had to say, which is seldom anything."),
    ("/run/bowline/ID/shim.sock", "Where the shim answers, while it lives."),
    ("/run/bowline/ID/lock", "Held by the shim for as long as it lives."),
];

const DESCRIPTION: [&str; 3] = [
    "Each task is a command with a shim of its own, a small process that starts it, watches it and answers for it. There \
     is no daemon. A task has its own pid, ipc, uts, mount and cgroup namespaces, 13 capabilities, a system call filter, \
     and, without an image, a read-only view of the host's files.",
    "What a task is can be said by flags, or by a description in TOML or JSON, of which bowline schema prints the schema.",
    "Results go to standard output. An error is one line on standard error, perhaps with a hint in a second one.",
];

/// Runs `bowline man`: writes all pages to `dir`, or prints the page of bowline itself.
pub fn run(dir: Option<&Path>) -> Result<u8> {
    let mut bowline = Cli::command().disable_help_subcommand(true);
    // `build` adds the global flags to each command and gives each its full name.
    bowline.build();
    let Some(dir) = dir else {
        let page = page(&bowline, true).doing(Kind::Internal, || "cannot make a man page")?;
        return reader::print(&page).map(|()| 0);
    };
    write(dir, &bowline, true)?;
    write_below(dir, &bowline)?;
    Ok(0)
}

/// Writes a page for each command below this one, at all levels.
fn write_below(dir: &Path, command: &clap::Command) -> Result<()> {
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| {
        write(dir, command, false)?;
        write_below(dir, command)
    })
}

fn write(dir: &Path, command: &clap::Command, top: bool) -> Result<()> {
    let path = dir.join(Man::new(command.clone()).get_filename());
    let text = page(command, top).doing(Kind::Internal, || "cannot make a man page")?;
    bowline_model::trust::write_named(&path, &text).doing(Kind::Internal, || format!("cannot write {}", path.display()))
}

/// Makes a page. The page of bowline itself (`top`) also has what is true of every command.
fn page(command: &clap::Command, top: bool) -> std::io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let man = Man::new(command.clone().override_usage(usage))
        .source(format!("bowline {}", bowline_executor::VERSION))
        .manual("bowline");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    let mut roff = Roff::new();
    if top {
        for paragraph in DESCRIPTION {
            roff.control("PP", []).text([roman(paragraph)]);
        }
        roff.to_writer(&mut out)?;
    }
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut roff = Roff::new();
    examples(&mut roff, command);
    list(&mut roff, "EXIT STATUS", &EXIT_STATUS);
    let variables = environment(command);
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, help)| (name.as_str(), help.as_str())).collect();
    list(&mut roff, "ENVIRONMENT", &variables);
    if top {
        list(&mut roff, "FILES", &FILES);
    } else {
        roff.control("SH", ["SEE ALSO"]).text([bold("bowline"), roman("(1)")]);
    }
    roff.to_writer(&mut out)?;
    Ok(out)
}

/// The environment variables of a command's flags and of the commands below it, by name.
fn environment(command: &clap::Command) -> BTreeMap<String, String> {
    let below = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let variables = command.get_arguments().chain(below).filter_map(|argument| {
        let name = argument.get_env()?.to_string_lossy().into_owned();
        let flag = argument.get_long().unwrap_or_default();
        Some((name, format!("{}; --{flag} comes first.", argument.get_help()?)))
    });
    variables.collect()
}

/// The lines of the command's help below their heading, each as it is typed.
fn examples(roff: &mut Roff, command: &clap::Command) {
    let Some(text) = command.get_after_help() else { return };
    roff.control("SH", ["EXAMPLES"]);
    for line in text.to_string().lines().skip(1) {
        roff.control("PP", []).text([bold(line.trim())]);
    }
}

fn list(roff: &mut Roff, heading: &str, items: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (term, meaning) in items {
        roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
}
