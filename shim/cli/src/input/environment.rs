//! `--env` and `--env-file`: a task's variables, in docker's words.

use std::env::VarError;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bowline_model::{Doing as _, Error, Kind, Result};

/// The most bytes of a file: more than any environment may have.
const LARGEST: u64 = 1 << 20;

/// A variable as typed: `KEY=value`, or `KEY` for its value in our own environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    key: String,
    value: Option<String>,
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Variable, String> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
        if key.is_empty() {
            return Err(format!("{text:?} is not KEY=value, and not the KEY of a variable that is set"));
        }
        Ok(Variable { key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

/// All variables of files and flags, where a later one of the same name wins, and a flag over a file. One that is not set
/// here is left out, as docker does.
///
/// # Errors
/// `NotFound` for a file that cannot be opened; `Usage`, naming file and line.
pub fn variables(files: &[PathBuf], flags: Vec<Variable>) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for file in files {
        all.extend(read(file)?);
    }
    all.extend(flags);
    let set = |Variable { key, value }| {
        let here = || match std::env::var(&key) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(Error::new(Kind::Usage, format!("the value of {key} is not UTF-8"))),
        };
        let value = value.map_or_else(here, |value| Ok(Some(value))).transpose()?;
        Some(value.map(|value| (key, value)))
    };
    all.into_iter().filter_map(set).collect()
}

/// The variables in a file: a line each, but for empty ones and those that begin with `#`.
fn read(file: &Path) -> Result<Vec<Variable>> {
    let what = || format!("cannot read {}", file.display());
    let hinted = |error: Error| error.hint("--env-file takes a file with one KEY=value a line");
    let mut bytes = Vec::new();
    let opened = File::open(file).doing(Kind::NotFound, what).map_err(hinted)?;
    opened.take(LARGEST + 1).read_to_end(&mut bytes).doing(Kind::Usage, what).map_err(hinted)?;
    if bytes.len() as u64 > LARGEST {
        return Err(hinted(Error::new(Kind::Usage, format!("{} is larger than {LARGEST} bytes", file.display()))));
    }
    let text = std::str::from_utf8(&bytes).map_err(|wrong| {
        let before = &bytes[..wrong.valid_up_to()];
        in_line(file, before.split(|byte| *byte == b'\n').count(), "is not UTF-8")
    })?;
    // Editors of Windows begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim_start()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| parse(line).map_err(|why| in_line(file, number, &why))).collect()
}

fn parse(line: &str) -> std::result::Result<Variable, String> {
    let variable: Variable = line.parse()?;
    if variable.key.contains(char::is_whitespace) || variable.key.contains('\0') {
        return Err(format!("{:?} is not the name of a variable", variable.key));
    }
    if line.contains('\0') {
        return Err(format!("the value of {} contains a NUL byte", variable.key));
    }
    Ok(variable)
}

fn in_line(file: &Path, number: usize, why: &str) -> Error {
    Error::new(Kind::Usage, format!("{}:{number}: {why}", file.display()))
        .hint("write one KEY=value a line, without quotes; a line that begins with # is a comment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_value_or_is_our_own() {
        let read = |text: &str| text.parse::<Variable>().map(|variable| (variable.key, variable.value));
        assert_eq!(read("A=b=c"), Ok(("A".into(), Some("b=c".into()))));
        assert_eq!(read("A="), Ok(("A".into(), Some(String::new()))));
        assert_eq!(read("A"), Ok(("A".into(), None)));
        assert!(read("").is_err() && read("=a").is_err());
    }

    #[test]
    fn a_line_of_a_file_has_a_name_without_spaces() {
        assert!(parse("A=b c # d").is_ok_and(|variable| variable.value.as_deref() == Some("b c # d")));
        for bad in ["export A=b", "A B", "=b", "A\tB=c", "A=\0"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
