//! Reads descriptions of tasks and sandboxes, and lists of pods, from files.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use bowline_executor::internal::{read_file, read_up_to};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::place::pods_alive;
use bowline_spec::{Format, Invalid, Sandbox, Task};
use serde::Serialize;

/// The most bytes of a file: far more than any description needs.
const LARGEST: u64 = 4 << 20;

/// Reads the description of a task, or of a member of a sandbox, and applies `on_top` to it; `-` is stdin.
///
/// # Errors
/// `BadSpec`, naming file, field and line, or `Usage` for a field that `on_top` has set; that of `on_top`.
pub fn read(file: &Path, is_member: bool, on_top: impl FnOnce(&mut Task) -> Result<()>) -> Result<Task> {
    laid_on(file, on_top, |text, format, on_top| match is_member {
        true => bowline_spec::parse_member_with(text, format, on_top),
        false => bowline_spec::parse_with(text, format, on_top),
    })
}

/// Reads a sandbox's description and applies `on_top` to it; `-` is stdin.
///
/// # Errors
/// See [`read`].
pub fn read_sandbox(file: &Path, on_top: impl FnOnce(&mut Sandbox) -> Result<()>) -> Result<Sandbox> {
    laid_on(file, on_top, |text, format, on_top| bowline_spec::parse_sandbox_with(text, format, on_top))
}

fn laid_on<T: Clone + Serialize>(
    file: &Path,
    on_top: impl FnOnce(&mut T) -> Result<()>,
    parse: impl FnOnce(&str, Format, &mut dyn FnMut(&mut T)) -> std::result::Result<T, Invalid>,
) -> Result<T> {
    let (text, format) = text_of(file)?;
    let (mut done, mut on_top, mut both) = (Ok(()), Some(on_top), None);
    let parsed = parse(&text, format, &mut |described| {
        let before = described.clone();
        done = on_top.take().map_or(Ok(()), |on_top| on_top(described));
        both = Some((before, described.clone()));
    });
    // An error below would only be a consequence of this one.
    done?;
    parsed.map_err(|invalid| match both.is_some_and(|(before, after)| differ(&before, &after, &invalid.field)) {
        true => of_command_line(&Invalid { line: None, column: None, ..invalid }),
        false => Error::from(invalid).within(file.display()),
    })
}

/// Whether a field, or what is around it, is not the same in both.
fn differ<T: Serialize>(before: &T, after: &T, field: &str) -> bool {
    let value = |of: &T| serde_json::to_value(of).unwrap_or_default();
    let (before, after) = (value(before), value(after));
    let parts: Vec<&str> = field.split(['.', '[', ']']).filter(|part| !part.is_empty()).collect();
    // What has no value is told by what would have it.
    (1..=parts.len()).rev().find_map(|depth| {
        let pointer = format!("/{}", parts[..depth].join("/"));
        let both = (before.pointer(&pointer), after.pointer(&pointer));
        (both != (None, None)).then(|| both.0 != both.1)
    }) == Some(true)
}

/// The error of a description that the command line alone has made, whose exit code is that of a wrong command line.
pub fn of_command_line(invalid: &Invalid) -> Error {
    let error = Error::new(Kind::Usage, invalid.to_string());
    if invalid.field.is_empty() { error } else { error.about(&invalid.field) }
}

/// Reads a list of pods that are alive; `-` is stdin.
///
/// # Errors
/// `NotFound` for a file that is not there; `Usage`, naming file and line.
pub fn read_pods(file: &Path) -> Result<BTreeSet<String>> {
    let text = text(file, Kind::Usage)?;
    let uids = pods_alive(&text).doing(Kind::Usage, || file.display().to_string());
    uids.map_err(|error| error.hint("write the uid of each pod that is alive, one a line"))
}

fn text(file: &Path, kind: Kind) -> Result<String> {
    let read = if file == Path::new("-") { read_up_to(std::io::stdin(), LARGEST) } else { read_file(file, LARGEST) };
    let what = || format!("cannot read {}", file.display());
    let is_there = !matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound);
    let kind = if is_there { kind } else { Kind::NotFound };
    let text = read.doing(kind, what).and_then(|bytes| String::from_utf8(bytes).doing(kind, what));
    text.map_err(|error| error.hint("name a file of text, or - for stdin"))
}

fn text_of(file: &Path) -> Result<(String, Format)> {
    let text = text(file, Kind::BadSpec)?;
    let json =
        file.extension().is_some_and(|e| e == "json") || file == Path::new("-") && text.trim_start().starts_with('{');
    Ok((text, if json { Format::Json } else { Format::Toml }))
}
