//! `bowline completions`: prints a script by which a shell asks bowline what may come next.

use bowline_model::{Doing as _, Kind, Result};

use crate::input::args::CompletedShell;
use crate::input::completion;
use crate::ui::reader;

pub fn run(shell: CompletedShell) -> Result<u8> {
    let script = completion::script(shell).doing(Kind::Internal, || "cannot make the script")?;
    reader::print(&script).map(|()| 0)
}
