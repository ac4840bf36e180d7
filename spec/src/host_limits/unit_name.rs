//! The name of a unit of the host's, as somebody typed it.
//!
//! Source of the rules: systemd.unit(5), systemd.slice(5). One rule is stricter: `..` is refused, as the name becomes
//! part of a path.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::text::text_value;
use crate::unit::{LONGEST, ROOT};

/// What kinds of units have a cgroup that can be limited, or looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// Processes that systemd starts.
    Service,
    /// Processes that somebody else has started.
    Scope,
    /// A group of units, limited together.
    Slice,
}

const KINDS: [(&str, UnitKind); 3] =
    [(".service", UnitKind::Service), (".scope", UnitKind::Scope), (".slice", UnitKind::Slice)];

/// The name of a service, a scope or a slice: `cron.service`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName(String);

impl UnitName {
    /// The whole name with its ending, such as `cron.service`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it is, by its ending.
    pub fn kind(&self) -> UnitKind {
        // Checked when it was read.
        KINDS.iter().find(|(ending, _)| self.0.ends_with(ending)).map_or(UnitKind::Service, |(_, kind)| *kind)
    }
}

impl FromStr for UnitName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<UnitName, Invalid> {
        let wrong = |why: String| Err(Invalid::value(format!("{text:?} is no unit's name: {why}")));
        if text.len() > LONGEST {
            let start: String = text.chars().take(20).collect();
            let long = format!("{start:?}… is no unit's name: it has {} bytes, and may have {LONGEST}", text.len());
            return Err(Invalid::value(long));
        }
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !":_.-\\@".contains(*c)) {
            return wrong(format!("it has {odd:?}; see systemd-escape(1)"));
        }
        if text.contains("..") {
            return wrong("it has two dots in a row".to_owned());
        }
        let Some((ending, kind)) = KINDS.iter().find(|(ending, _)| text.ends_with(ending)) else {
            return wrong("it ends with none of .service, .scope, .slice".to_owned());
        };
        let stem = &text[..text.len() - ending.len()];
        match kind {
            _ if stem.is_empty() => wrong(format!("there is nothing before {ending}")),
            _ if stem.ends_with('@') => wrong("a template is no unit; name an instance of it".to_owned()),
            _ if stem.starts_with(['@', '.']) => wrong("it begins with a dot or an @".to_owned()),
            UnitKind::Slice if text == ROOT => wrong("it is the root of all slices, which has no limits".to_owned()),
            UnitKind::Slice if stem.starts_with('-') || stem.ends_with('-') || stem.contains("--") => {
                wrong("it has an empty part before or after a -".to_owned())
            }
            UnitKind::Slice if stem.contains('@') => wrong("a slice has no @".to_owned()),
            _ => Ok(UnitName(text.to_owned())),
        }
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(UnitName, "UnitName", string, "the name of a unit: cron.service, jobs.slice", "cron.service");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_unit_is_what_its_name_ends_with() {
        for (name, kind) in [
            ("cron.service", UnitKind::Service),
            ("getty@tty1.service", UnitKind::Service),
            ("a\\x2db.service", UnitKind::Service),
            ("session-1.scope", UnitKind::Scope),
            ("bowline-agents.slice", UnitKind::Slice),
        ] {
            assert_eq!(name.parse::<UnitName>().unwrap().kind(), kind, "{name}");
        }
    }

    #[test]
    fn what_is_no_unit_is_refused_and_why() {
        let long = format!("{}.service", "a".repeat(250));
        for (name, why) in [
            ("", "none of"),
            ("cron", "none of"),
            ("cron.timer", "none of"),
            ("../etc/cron.service", "'/'"),
            ("a/b.service", "'/'"),
            ("a..service", "two dots"),
            ("..service", "two dots"),
            ("a b.service", "' '"),
            ("a\n.service", "\\n"),
            ("ä.service", "'ä'"),
            (".service", "nothing before"),
            (".slice", "nothing before"),
            ("getty@.service", "template"),
            (".a.service", "begins with"),
            ("-.slice", "root"),
            ("a--b.slice", "empty part"),
            ("-a.slice", "empty part"),
            ("a@b.slice", "no @"),
            (long.as_str(), "255"),
        ] {
            let error = name.parse::<UnitName>().unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_one_part_of_a_path(text in "\\PC{0,40}|[a-z./@\\\\-]{0,20}\\.(service|slice)") {
            if let Ok(name) = text.parse::<UnitName>() {
                prop_assert_eq!(name.as_str(), &text);
                prop_assert!(!text.contains('/') && !text.contains("..") && !text.starts_with('.'));
            }
        }
    }
}
