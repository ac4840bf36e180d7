//! The commands.

mod create;
mod exec;
mod life;
mod listing;
mod spec;

use bowline_executor::VERSION;
use bowline_model::{Error, Kind, Result};

use crate::arguments::{Flag, Given, usage};
use crate::seal::seal;
use crate::state::{SPECIFICATION, print};
use create::Inherited;

/// A command: its name, what it is for, its flags, and what carries it out.
struct Command {
    name: &'static str,
    about: &'static str,
    flags: &'static [&'static [Flag]],
    run: fn(&Call<'_>) -> Result<u8>,
}

/// What a command was called with.
struct Call<'a> {
    /// The flags before the command.
    globals: &'a Given,
    /// Its own.
    flags: Given,
    /// What follows the flags.
    arguments: &'a [String],
    /// What the process gets of the caller's descriptors.
    inherited: Inherited,
}

impl Call<'_> {
    /// The id of the container, which is the only argument.
    fn id(&self) -> Result<&str> {
        match self.arguments {
            [id] => Ok(id),
            [] => Err(usage("the id of a container is missing")),
            [_, extra, ..] => Err(usage(format!("{extra:?} is one argument too many"))),
        }
    }
}

const COMMANDS: [Command; 13] = [
    Command { name: "create", about: "create a container", flags: &[create::FLAGS], run: create::create },
    Command { name: "start", about: "run the program of a created container", flags: &[], run: life::start },
    Command {
        name: "run",
        about: "create a container, start it, and wait for its end",
        flags: &[create::FLAGS, create::OF_RUN],
        run: create::run,
    },
    Command { name: "exec", about: "run another process in a container", flags: &[exec::FLAGS], run: exec::exec },
    Command { name: "kill", about: "send a signal to a container", flags: &[life::OF_KILL], run: life::kill },
    Command { name: "delete", about: "remove a container", flags: &[life::OF_DELETE], run: life::delete },
    Command { name: "state", about: "print the state of a container", flags: &[], run: listing::state },
    Command { name: "list", about: "list containers", flags: &[listing::OF_LIST], run: listing::list },
    Command { name: "ps", about: "list the processes of a container", flags: &[listing::OF_PS], run: listing::ps },
    Command { name: "pause", about: "freeze the processes of a container", flags: &[], run: life::pause },
    Command { name: "resume", about: "thaw the processes of a container", flags: &[], run: life::resume },
    Command { name: "features", about: "print what this runtime knows", flags: &[], run: listing::features },
    Command { name: "spec", about: "write a configuration to begin with", flags: &[spec::FLAGS], run: spec::spec },
];

/// Commands of other runtimes that are not there yet.
const LATER: [&str; 4] = ["update", "events", "checkpoint", "restore"];

const HELP: &[Flag] = &[crate::arguments::switch(&["help", "h"])];

/// The flags of a command, and what follows them.
fn parse(command: &Command, arguments: &[String]) -> Result<(Given, Vec<String>)> {
    let known: Vec<&[Flag]> = command.flags.iter().copied().chain([HELP]).collect();
    crate::arguments::parse(arguments, &known, !["exec", "ps"].contains(&command.name))
}

/// Closes what no command asks for, before this program opens anything: see [`create::inherit`]. What begins a process goes
/// on from where no container can write to it.
///
/// # Errors
/// As [`create::inherit`] and [`seal`].
pub fn inherit(arguments: &[String]) -> Result<Inherited> {
    let asked = arguments.split_first().and_then(|(name, rest)| {
        let command = COMMANDS.iter().find(|command| command.name == name)?;
        Some((command.name, parse(command, rest).ok()?.0))
    });
    let (name, flags) = asked.unwrap_or_default();
    if ["create", "run", "exec"].contains(&name) && !flags.is_on("help") {
        seal()?;
    }
    create::inherit(&flags)
}

/// Carries out a command.
pub fn run(name: &str, arguments: &[String], globals: &Given, inherited: Inherited) -> Result<u8> {
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        let message = match LATER.contains(&name) {
            true => format!("{name}: this runtime has no such command yet"),
            false if name == "help" => return help(),
            false => format!("No help topic for '{name}'"),
        };
        return Err(Error::new(Kind::Usage, message));
    };
    let (flags, arguments) = parse(command, arguments)?;
    if flags.is_on("help") {
        return help_for(command);
    }
    (command.run)(&Call { globals, flags, arguments: &arguments, inherited })
}

fn help_for(command: &Command) -> Result<u8> {
    let mut text = format!("bowline-oci {}: {}\n\n", command.name, command.about);
    for flag in command.flags.iter().copied().flatten() {
        let names: Vec<String> = flag
            .names
            .iter()
            .map(|name| if name.len() == 1 { format!("-{name}") } else { format!("--{name}") })
            .collect();
        text += &format!("   {}{}\n", names.join(", "), if flag.takes_value { " value" } else { "" });
    }
    print(&text).map(|()| 0)
}

/// Lists the commands.
pub fn help() -> Result<u8> {
    let mut text = "Usage: bowline-oci [flags] COMMAND [flags] CONTAINER [arguments]\n\nCommands:\n".to_owned();
    for command in &COMMANDS {
        text += &format!("   {:9} {}\n", command.name, command.about);
    }
    text += "\nFlags of all commands: --root --log --log-format --debug --systemd-cgroup --version\n";
    print(&text).map(|()| 0)
}

/// Prints the version.
pub fn version() -> Result<u8> {
    print(&format!("bowline-oci version {VERSION}\nspec: {SPECIFICATION}\n")).map(|()| 0)
}
