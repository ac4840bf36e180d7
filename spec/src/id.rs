//! The name of a task.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// A host name's label: the id may become one, and a part of a cgroup's path.
const LONGEST: usize = 63;

/// What containerd takes for an id (its package `identifiers`).
const LONGEST_OF_A_MANAGER: usize = 76;

/// The longest name of a folder.
const LONGEST_ON_HOST: usize = 255;

/// The longest id of a container: what is made of it on the way to its folder is a name too.
const LONGEST_OF_A_CONTAINER: usize = 230;

/// The id of a task: 1 to 63 of `A-Z a-z 0-9 _ . -`, beginning with a letter
/// or digit. So it can be a folder's name, a cgroup's name and an argument
/// without becoming a path or a flag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(String);

impl TaskId {
    /// The id, exactly as it was parsed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// An id that a manager has made: up to 76 characters, as nobody needs to
    /// type it, and the host's name is said by its configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_manager(text: &str) -> Result<TaskId, Invalid> {
        checked(text, LONGEST_OF_A_MANAGER)
    }

    /// The id of a container of an OCI runtime's command, as runc takes it: letters, digits and `_ + . -`, as many as a
    /// folder's name has. It does not begin with a dot or a dash.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_container(text: &str) -> Result<TaskId, Invalid> {
        // What else is allowed is as in every id.
        let plain: String = text.chars().map(|c| if c == '+' { '-' } else { c }).collect();
        let first = plain.strip_prefix('_').map_or(plain.clone(), |rest| format!("0{rest}"));
        checked(&first, LONGEST_OF_A_CONTAINER)
            .map_err(|_| Invalid::value(format!("invalid container ID format: {text:?}")))?;
        Ok(TaskId(text.into()))
    }
}

/// Checks the name of a task's cgroup: the id, and after it what tells its state folder from others.
pub(crate) fn name_on_host(text: &str) -> Result<TaskId, Invalid> {
    checked(text, LONGEST_ON_HOST)
}

impl FromStr for TaskId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<TaskId, Invalid> {
        checked(text, LONGEST)
    }
}

fn checked(text: &str, longest: usize) -> Result<TaskId, Invalid> {
    if text.is_empty() {
        return Err(Invalid::value("an id cannot be empty"));
    }
    if text.len() > longest {
        return Err(Invalid::value(format!(
            "an id has at most {longest} characters, this has {}",
            text.chars().count()
        )));
    }
    if let Some(bad) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"_.-".contains(*c)) {
        return Err(Invalid::value(format!("{text:?} is not an id: {bad:?} is not a letter, digit, '_', '.' or '-'")));
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(Invalid::value(format!("{text:?} is not an id: it must begin with a letter or digit")));
    }
    Ok(TaskId(text.into()))
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for TaskId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for TaskId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<std::path::Path> for TaskId {
    fn as_ref(&self) -> &std::path::Path {
        self.0.as_ref()
    }
}

text_value!(
    TaskId,
    "TaskId",
    string,
    "1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit",
    "web-1"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_ids_are_refused() {
        let long = "a".repeat(64);
        for text in ["", "-a", ".a", "_a", "..", "a/b", "a b", "a\n", "ä", "a\0", &long] {
            assert!(text.parse::<TaskId>().is_err(), "{text:?}");
        }
        assert!("a".repeat(63).parse::<TaskId>().is_ok());
    }

    proptest! {
        #[test]
        fn well_formed_ids_are_kept_as_they_are(text in "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}") {
            let id = text.parse::<TaskId>().unwrap();
            prop_assert_eq!(id.as_str(), text);
        }

        #[test]
        fn whatever_is_accepted_is_one_path_component(text in "\\PC*") {
            if let Ok(id) = text.parse::<TaskId>() {
                prop_assert!(!id.contains('/') && id.as_str() != ".." && !id.starts_with('-'));
            }
        }
    }
}
