//! Arguments in Go's syntax, as runc reads them: one or two dashes, a value behind `=` or in the next argument.
//!
//! ```text
//!   [flags of all commands] COMMAND [flags of the command] ARGUMENT…
//! ```
//!
//! Of `exec` and `ps`, what follows the first argument is the command's or ps's. Must not: know what a flag is for.

use bowline_model::{Error, Kind, Result};

/// A flag that a command knows.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The names of the flag, the first of which is how it is asked for.
    pub names: &'static [&'static str],
    /// Whether a value follows.
    pub takes_value: bool,
}

/// A flag with a value.
pub const fn value(names: &'static [&'static str]) -> Flag {
    Flag { names, takes_value: true }
}

/// A flag that is there or not.
pub const fn switch(names: &'static [&'static str]) -> Flag {
    Flag { names, takes_value: false }
}

/// The flags that were given, in their order.
#[derive(Debug, Default, Clone)]
pub struct Given(Vec<(&'static str, String)>);

impl Given {
    /// The value of a flag: the last, if it was given twice.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// All values of a flag.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == Some("true")
    }

    /// A value that is a number.
    ///
    /// # Errors
    /// `Usage` naming the flag.
    pub fn number(&self, name: &str) -> Result<Option<u32>> {
        let parse = |text: &str| text.parse().map_err(|_| usage(format!("--{name}: {text:?} is not a number")));
        self.value(name).map(parse).transpose()
    }
}

/// The error for arguments that are wrong.
pub fn usage(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

/// Reads the flags of `arguments`, up to the first that is none, or `anywhere` before `--`; returns the rest too.
///
/// # Errors
/// `Usage` for a flag that is not `known`, or lacks its value.
pub fn parse(arguments: &[String], known: &[&[Flag]], anywhere: bool) -> Result<(Given, Vec<String>)> {
    let mut given = Given::default();
    let mut plain = Vec::new();
    let mut rest = arguments;
    while let Some((first, others)) = rest.split_first() {
        if first == "--" {
            rest = others;
            break;
        }
        let Some(text) = first.strip_prefix("--").or_else(|| first.strip_prefix('-')).filter(|text| !text.is_empty())
        else {
            if !anywhere {
                break;
            }
            plain.push(first.clone());
            rest = others;
            continue;
        };
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
        let flag = known.iter().copied().flatten().find(|flag| flag.names.contains(&name));
        let flag = flag.ok_or_else(|| usage(format!("flag provided but not defined: -{name}")))?;
        rest = others;
        let value = match (flag.takes_value, value) {
            (_, Some(value)) => value,
            (false, None) => "true".to_owned(),
            (true, None) => {
                let (value, others) =
                    rest.split_first().ok_or_else(|| usage(format!("flag needs an argument: -{name}")))?;
                rest = others;
                value.clone()
            }
        };
        if !flag.takes_value && !["true", "false"].contains(&value.as_str()) {
            return Err(usage(format!("-{name}: {value:?} is neither true nor false")));
        }
        given.0.push((flag.names[0], value));
    }
    plain.extend_from_slice(rest);
    Ok((given, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Flag] = &[value(&["bundle", "b"]), switch(&["force", "f"]), value(&["env", "e"])];

    fn read(arguments: &[&str]) -> Result<(Given, Vec<String>)> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        parse(&arguments, &[KNOWN], false)
    }

    #[test]
    fn one_dash_or_two_and_values_behind_or_beside() {
        for arguments in [&["-b", "/x", "--force"][..], &["--bundle=/x", "-f"], &["-bundle", "/x", "-force=true"]] {
            let (given, rest) = read(arguments).expect("they are known");
            assert_eq!((given.value("bundle"), given.is_on("force"), rest), (Some("/x"), true, vec![]));
        }
        let (given, _) = read(&["-f", "--force=false", "-e", "A=1", "--env=B=2"]).expect("they are known");
        assert!(!given.is_on("force"));
        assert_eq!(given.values("env").collect::<Vec<_>>(), ["A=1", "B=2"]);
    }

    #[test]
    fn what_follows_the_first_argument_is_no_flag() {
        let (given, rest) = read(&["id", "-f", "-x"]).expect("they are no flags");
        assert_eq!((given.is_on("force"), rest.as_slice()), (false, &["id", "-f", "-x"].map(str::to_owned)[..]));
        let (_, rest) = read(&["-f", "--", "-x"]).expect("they are no flags");
        assert_eq!(rest, ["-x"]);
        assert_eq!(read(&["-"]).expect("it is no flag").1, ["-"]);
        let arguments = ["id", "-f", "--", "-x"].map(str::to_owned);
        let (given, rest) = parse(&arguments, &[KNOWN], true).expect("it is known");
        assert_eq!((given.is_on("force"), rest.as_slice()), (true, &["id", "-x"].map(str::to_owned)[..]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, part) in [
            (&["--colour"][..], "flag provided but not defined: -colour"),
            (&["--bundle"], "flag needs an argument: -bundle"),
            (&["--force=maybe"], "neither true nor false"),
        ] {
            let error = read(arguments).expect_err("it is wrong");
            assert!(error.kind() == Kind::Usage && error.message().contains(part), "{error}");
        }
    }
}
