//! `bowline spec`: prints the OCI configuration that this host makes from a description.

use std::path::Path;

use bowline_executor::{Result, configure};

use crate::input::description::read;
use crate::say;

pub fn run(file: &Path) -> Result<u8> {
    let task = read(file, false, |_| Ok(()))?;
    let id = task.name.as_ref().map_or("bowline", |name| name.as_str());
    let spec = configure(&task, id)?;
    say(bowline_spec::render(&spec).trim_end()).map(|()| 0)
}
