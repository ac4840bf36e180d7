//! `--filter`: which tasks are listed, and the words for where a task can be in its life.

use std::str::FromStr;

/// The status of a task whose shim lives, and gives no answer.
pub const NOT_ANSWERING: &str = "not answering";

/// The words for where a task can be in its life.
pub const STATUSES: [&str; 8] =
    ["created", "running", "paused", "stopping", NOT_ANSWERING, "exited", "dead", "damaged"];

/// Which tasks are listed: what one `--filter` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Those of this status.
    Status(String),
    /// Those with this label, perhaps of this value.
    Label(String, Option<String>),
    /// The members of this sandbox.
    Sandbox(String),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Filter, String> {
        match text.split_once('=') {
            Some(("status", status)) if STATUSES.contains(&status) => Ok(Filter::Status(status.to_owned())),
            Some(("status", status)) => Err(format!("{status:?} is no status; write one of {}", STATUSES.join(", "))),
            Some(("sandbox", id)) if !id.is_empty() => Ok(Filter::Sandbox(id.to_owned())),
            Some(("label", label)) if !label.is_empty() => Ok(match label.split_once('=') {
                Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
                None => Filter::Label(label.to_owned(), None),
            }),
            _ => Err(format!("{text:?} filters nothing; write status=running, label=KEY=VALUE or sandbox=ID")),
        }
    }
}
