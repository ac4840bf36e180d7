//! Where a path stands among the fields of a configuration.
//!
//! A position is a range of [`FIELDS`], which are sorted: each key narrows it, and nothing is allocated. Every launch looks
//! hundreds of keys up.

use super::fields::FIELDS;

/// Where a value is among [`FIELDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPosition {
    /// These fields are inside it: a range of [`FIELDS`], and how many bytes of each its own path is.
    Above { from: usize, to: usize, length: usize },
    /// It is a field, by its index.
    Field(usize),
    /// It is inside a field, or inside something unknown.
    Inside,
    /// No version of the specification has it.
    Unknown,
}

impl FieldPosition {
    /// The whole configuration.
    pub const TOP: FieldPosition = FieldPosition::Above { from: 0, to: FIELDS.len(), length: 0 };

    /// The position of a section: `linux.resources`. Empty for the whole.
    pub fn of(section: &str) -> FieldPosition {
        section
            .split('.')
            .filter(|key| !key.is_empty())
            .fold(FieldPosition::TOP, |position, key| position.key(key.as_bytes()))
    }

    /// The position of what is at `key` of an object here.
    pub fn key(self, key: &[u8]) -> FieldPosition {
        let FieldPosition::Above { from, to, length } = self else { return FieldPosition::Inside };
        let start = if length == 0 { 0 } else { length + 1 };
        let all = &FIELDS[from..to];
        if name(all[0], start) == b"*" {
            return position(from, to, start + 1);
        }
        let first = all.partition_point(|field| name(field, start) < key);
        let count = all[first..].partition_point(|field| name(field, start) == key);
        if count == 0 {
            FieldPosition::Unknown
        } else {
            position(from + first, from + first + count, start + key.len())
        }
    }

    /// The position of an item of a list here.
    pub fn item(self) -> FieldPosition {
        match self {
            FieldPosition::Above { from, to, length } if FIELDS[from].as_bytes().get(length) == Some(&b'[') => {
                FieldPosition::Above { from, to, length: length + "[]".len() }
            }
            _ => FieldPosition::Inside,
        }
    }

    /// Whether an object has to be here.
    pub fn is_object(self) -> bool {
        match self {
            FieldPosition::Above { from, length, .. } => {
                length == 0 || FIELDS[from].as_bytes().get(length) == Some(&b'.')
            }
            _ => false,
        }
    }

    /// The field that this is.
    pub fn field(self) -> Option<&'static str> {
        match self {
            FieldPosition::Field(index) => Some(FIELDS[index]),
            _ => None,
        }
    }
}

/// The part of a field's path that begins at `start`.
fn name(field: &str, start: usize) -> &[u8] {
    let rest = &field.as_bytes()[start..];
    let end = rest.iter().position(|byte| matches!(byte, b'.' | b'['));
    &rest[..end.unwrap_or(rest.len())]
}

fn position(from: usize, to: usize, length: usize) -> FieldPosition {
    if FIELDS[from].len() == length { FieldPosition::Field(from) } else { FieldPosition::Above { from, to, length } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_path() {
        for field in FIELDS {
            let position = field.split('.').fold(FieldPosition::TOP, |position, part| {
                assert!(position.is_object(), "{part} of {field}");
                let position = position.key(part.trim_end_matches("[]").as_bytes());
                if part.ends_with("[]") { position.item() } else { position }
            });
            assert_eq!(position.field(), Some(*field));
        }
    }

    #[test]
    fn what_is_no_field_is_told_from_what_is_inside_one() {
        assert_eq!(FieldPosition::of("linux.namespace"), FieldPosition::Unknown);
        assert_eq!(FieldPosition::of("linux.namespacesx"), FieldPosition::Unknown);
        assert_eq!(FieldPosition::of("linux.namespace.x"), FieldPosition::Inside);
        assert_eq!(FieldPosition::of("linux.sysctl.x").field(), Some("linux.sysctl.*"));
        assert_eq!(FieldPosition::of("windows.x.y"), FieldPosition::Inside);
        assert!(!FieldPosition::of("mounts").is_object());
        assert!(FieldPosition::of("mounts").item().is_object());
        assert!(!FieldPosition::of("linux.maskedPaths").is_object());
    }
}
