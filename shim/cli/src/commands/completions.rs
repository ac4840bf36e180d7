//! `bowline completions`: prints a shell's completion script for commands and flags, made from the declared arguments.
//!
//! The scripts are static: they never run bowline while somebody types.

use bowline_executor::Result;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::input::args::{Cli, CompletedShell};
use crate::ui::reader;

pub fn run(shell: CompletedShell) -> Result<u8> {
    let shell = match shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Fish => Shell::Fish,
        CompletedShell::Zsh => Shell::Zsh,
    };
    let all = Cli::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut bowline = Command::new("bowline").args(all.get_arguments().cloned()).subcommands(visible);
    // Write into memory first: the generator panics if the reader of stdout is gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut bowline, "bowline", &mut script);
    reader::print(&script).map(|()| 0)
}
