//! Users and groups, by name or number.
//!
//! Names are those of the task's own root: whoever launches resolves them
//! there, never on the host.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;

/// A user or group: `nobody`, `65534`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NameOrId {
    /// To be looked up in the root's `/etc/passwd` or `/etc/group`.
    Name(String),
    /// A uid or gid, inside the user namespace.
    Id(u32),
}

impl FromStr for NameOrId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NameOrId, Invalid> {
        if text.is_empty() {
            return Err(Invalid::value("a user or group cannot be empty"));
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            // 2^32 - 1 is -1 to the kernel: "leave unchanged".
            return match text.parse() {
                Ok(id) if id != u32::MAX => Ok(NameOrId::Id(id)),
                _ => Err(Invalid::value(format!("{text} is too large for a user or group id"))),
            };
        }
        // passwd(5) and group(5) separate their fields by colons.
        if text.starts_with('-') || text.contains([':', ',', '/']) || text.chars().any(char::is_control) {
            return Err(Invalid::value(format!("{text:?} is not the name or number of a user or group")));
        }
        Ok(NameOrId::Name(text.into()))
    }
}

impl fmt::Display for NameOrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameOrId::Name(name) => f.write_str(name),
            NameOrId::Id(id) => id.fmt(f),
        }
    }
}

text_value!(NameOrId, "NameOrId", string_or_number, "a name or a number", "nogroup", 1000);

/// A user, perhaps with a group: `nobody`, `1000`, `1000:1000`, `nobody:nogroup`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user; a name is looked up in the root's `/etc/passwd`.
    pub user: NameOrId,
    /// The primary group, where it is not the user's own.
    pub group: Option<NameOrId>,
}

impl FromStr for User {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<User, Invalid> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.parse()?)),
            None => (text, None),
        };
        Ok(User { user: user.parse()?, group })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}:{group}", self.user),
            None => self.user.fmt(f),
        }
    }
}

text_value!(
    User,
    "User",
    string_or_number,
    "a user, by name or number, perhaps with a group: \"nobody\", 1000, \"1000:1000\"",
    "nobody",
    1000,
    "1000:1000"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn users_are_read_by_name_and_number() {
        let user = "nobody:4".parse::<User>().unwrap();
        assert_eq!(user.user, NameOrId::Name("nobody".into()));
        assert_eq!(user.group, Some(NameOrId::Id(4)));
        assert_eq!("1000".parse::<User>().unwrap().user, NameOrId::Id(1000));
    }

    #[test]
    fn what_is_no_user_is_refused() {
        for text in ["", ":", "a:", ":b", "a:b:c", "-1", "4294967295", "99999999999", "a\0", "a/b"] {
            assert!(text.parse::<User>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(text in "[a-z0-9_][a-z0-9_-]{0,30}(:[0-9]{1,9})?") {
            if let Ok(user) = text.parse::<User>() {
                prop_assert_eq!(user.to_string().parse::<User>().unwrap(), user);
            }
        }
    }
}
