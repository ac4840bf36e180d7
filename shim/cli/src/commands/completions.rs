//! `bowline completions`: what a shell completes commands and flags by, made
//! from the arguments as they are declared.
//!
//! The scripts are static: they ask bowline for nothing while somebody types.

use bowline_executor::Result;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::input::args::{Cli, CompletedShell};
use crate::ui::reader;

/// `bowline completions`.
pub fn run(shell: CompletedShell) -> Result<u8> {
    let shell = match shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Fish => Shell::Fish,
        CompletedShell::Zsh => Shell::Zsh,
    };
    let all = Cli::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut bowline = Command::new("bowline").args(all.get_arguments().cloned()).subcommands(visible);
    // Into memory first: the generator takes a reader that went away for a bug.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut bowline, "bowline", &mut script);
    reader::print(&script).map(|()| 0)
}
