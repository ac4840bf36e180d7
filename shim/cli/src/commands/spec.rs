//! `bowline spec`: prints the OCI configuration that this host makes from a description.

use std::path::{Path, PathBuf};

use bowline_executor::internal::configure;
use bowline_model::{Error, Kind, Result};

use crate::input::cdi;
use crate::input::description::read;
use crate::ui::print::say;

/// Runs `bowline spec`; `cdi` are the folders with vendors' files of devices.
pub fn run(file: &Path, cdi: &[PathBuf]) -> Result<u8> {
    let mut task = read(file, false, |_| Ok(()))?;
    let lost = |field: &str, would: &str| {
        let message = format!("{field}: an OCI configuration has no field for it, and whoever runs it would {would}");
        Error::new(Kind::Unsupported, message)
    };
    if task.ephemeral.is_some() {
        let error = lost("ephemeral", "change the root folder");
        return Err(error.hint("leave it out, and give it to `bowline run --bundle` instead"));
    }
    if !task.command_folders.is_empty() {
        return Err(lost("command_folders", "look in PATH alone").hint("write the command's path"));
    }
    if let Some(bundle) = &task.bundle {
        let message = format!("bundle: {} has a configuration already", bundle.display());
        return Err(Error::new(Kind::Usage, message).hint("`bowline run --bundle DIR` runs it"));
    }
    cdi::resolve(&mut task, cdi)?;
    let id = task.name.as_ref().map_or("bowline", |name| name.as_str());
    let spec = configure(&task, id)?;
    say(bowline_spec::render(&spec).trim_end()).map(|()| 0)
}
