//! `--filter`: selects the tasks that are listed.

use std::collections::BTreeMap;
use std::str::FromStr;

use bowline_model::status::Shown;
use regex_lite::Regex;

/// One `--filter`: selects the tasks that are listed.
#[derive(Debug, Clone)]
pub enum Filter {
    /// Tasks whose id matches.
    Name(Regex),
    /// Tasks that have ended with this code.
    Exited(i32),
    Status(Shown),
    Label(Labelled),
    Sandbox(String),
}

/// Tasks with a label, and with a value of it if one is given.
#[derive(Debug, Clone)]
pub struct Labelled {
    key: String,
    value: Option<String>,
}

impl Labelled {
    /// Whether such a label is among `labels`.
    pub fn is_among(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.key).is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }
}

impl FromStr for Labelled {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Labelled, String> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
        if key.is_empty() {
            return Err(format!("{text:?} is no label; write KEY or KEY=VALUE"));
        }
        Ok(Labelled { key: key.to_owned(), value })
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Filter, String> {
        match text.split_once('=') {
            Some(("status", status)) => status.parse().map(Filter::Status),
            Some(("name", name)) if !name.is_empty() => {
                Regex::new(name).map(Filter::Name).map_err(|wrong| format!("{name:?} is no name or pattern: {wrong}"))
            }
            Some(("exited", code)) => {
                code.parse().map(Filter::Exited).map_err(|_| format!("{code:?} is no exit code; write exited=0"))
            }
            Some(("sandbox", id)) if !id.is_empty() => Ok(Filter::Sandbox(id.to_owned())),
            Some(("label", label)) if !label.is_empty() => label.parse().map(Filter::Label),
            _ => Err(format!(
                "{text:?} filters nothing; write name=web, status=running, exited=0, label=KEY=VALUE or sandbox=ID"
            )),
        }
    }
}
