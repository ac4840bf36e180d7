//! Reads descriptions of tasks and sandboxes, and lists of pods, from files.

use std::collections::BTreeSet;
use std::path::Path;

use bowline_executor::internal::{read_file, read_up_to};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::place::pods_alive;
use bowline_spec::{Format, Sandbox, Task};

/// The most bytes of a file: far more than any description needs.
const LARGEST: u64 = 4 << 20;

/// Reads the description of a task, or of a member of a sandbox, and applies `on_top` to it; `-` is stdin.
///
/// # Errors
/// `BadSpec`, naming file, field and line; that of `on_top`.
pub fn read(file: &Path, is_member: bool, on_top: impl FnOnce(&mut Task) -> Result<()>) -> Result<Task> {
    let (text, format) = text_of(file)?;
    let mut laid_on = Ok(());
    let on_top = |task: &mut Task| laid_on = on_top(task);
    let task = match is_member {
        true => bowline_spec::parse_member_with(&text, format, on_top),
        false => bowline_spec::parse_with(&text, format, on_top),
    };
    // An error below would only be a consequence of this one.
    laid_on?;
    task.map_err(|invalid| Error::from(invalid).within(file.display()))
}

/// Reads a sandbox's description and applies `on_top` to it; `-` is stdin.
///
/// # Errors
/// See [`read`].
pub fn read_sandbox(file: &Path, on_top: impl FnOnce(&mut Sandbox) -> Result<()>) -> Result<Sandbox> {
    let (text, format) = text_of(file)?;
    let mut laid_on = Ok(());
    let parsed = bowline_spec::parse_sandbox_with(&text, format, |sandbox| laid_on = on_top(sandbox));
    // An error below would only be a consequence of this one.
    laid_on?;
    parsed.map_err(|invalid| Error::from(invalid).within(file.display()))
}

/// Reads a list of pods that are alive; `-` is stdin.
///
/// # Errors
/// `Usage`, naming file and line.
pub fn read_pods(file: &Path) -> Result<BTreeSet<String>> {
    let text = text(file, Kind::Usage)?;
    let uids = pods_alive(&text).doing(Kind::Usage, || file.display().to_string());
    uids.map_err(|error| error.hint("write the uid of each pod that is alive, one a line"))
}

fn text(file: &Path, kind: Kind) -> Result<String> {
    let read = if file == Path::new("-") { read_up_to(std::io::stdin(), LARGEST) } else { read_file(file, LARGEST) };
    let what = || format!("cannot read {}", file.display());
    let text = read.doing(kind, what).and_then(|bytes| String::from_utf8(bytes).doing(kind, what));
    text.map_err(|error| error.hint("name a file of text, or - for stdin"))
}

fn text_of(file: &Path) -> Result<(String, Format)> {
    let text = text(file, Kind::BadSpec)?;
    let json =
        file.extension().is_some_and(|e| e == "json") || file == Path::new("-") && text.trim_start().starts_with('{');
    Ok((text, if json { Format::Json } else { Format::Toml }))
}
