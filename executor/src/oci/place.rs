//! Where a path stands among the fields of a configuration.
//!
//! A place is a range of [`FIELDS`], which are sorted: each key narrows it, and nothing is allocated. Every launch looks
//! hundreds of keys up.

use super::fields::FIELDS;

/// Where a value is among [`FIELDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// These fields are inside it: a range of [`FIELDS`], and how many bytes of each its own path is.
    Above { from: usize, to: usize, length: usize },
    /// It is a field, by its index.
    Field(usize),
    /// It is inside a field, or inside something unknown.
    Inside,
    /// No version of the specification has it.
    Unknown,
}

impl Place {
    /// The whole configuration.
    pub const TOP: Place = Place::Above { from: 0, to: FIELDS.len(), length: 0 };

    /// The place of a section: `linux.resources`. Empty for the whole.
    pub fn of(section: &str) -> Place {
        section.split('.').filter(|key| !key.is_empty()).fold(Place::TOP, |place, key| place.key(key.as_bytes()))
    }

    /// The place of what is at `key` of an object here.
    pub fn key(self, key: &[u8]) -> Place {
        let Place::Above { from, to, length } = self else { return Place::Inside };
        let start = if length == 0 { 0 } else { length + 1 };
        let all = &FIELDS[from..to];
        if name(all[0], start) == b"*" {
            return place(from, to, start + 1);
        }
        let first = all.partition_point(|field| name(field, start) < key);
        let count = all[first..].partition_point(|field| name(field, start) == key);
        if count == 0 { Place::Unknown } else { place(from + first, from + first + count, start + key.len()) }
    }

    /// The place of an item of a list here.
    pub fn item(self) -> Place {
        match self {
            Place::Above { from, to, length } if FIELDS[from].as_bytes().get(length) == Some(&b'[') => {
                Place::Above { from, to, length: length + "[]".len() }
            }
            _ => Place::Inside,
        }
    }

    /// Whether an object has to be here.
    pub fn is_object(self) -> bool {
        match self {
            Place::Above { from, length, .. } => length == 0 || FIELDS[from].as_bytes().get(length) == Some(&b'.'),
            _ => false,
        }
    }

    /// The field that this is.
    pub fn field(self) -> Option<&'static str> {
        match self {
            Place::Field(index) => Some(FIELDS[index]),
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

fn place(from: usize, to: usize, length: usize) -> Place {
    if FIELDS[from].len() == length { Place::Field(from) } else { Place::Above { from, to, length } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_path() {
        for field in FIELDS {
            let place = field.split('.').fold(Place::TOP, |place, part| {
                assert!(place.is_object(), "{part} of {field}");
                let place = place.key(part.trim_end_matches("[]").as_bytes());
                if part.ends_with("[]") { place.item() } else { place }
            });
            assert_eq!(place.field(), Some(*field));
        }
    }

    #[test]
    fn what_is_no_field_is_told_from_what_is_inside_one() {
        assert_eq!(Place::of("linux.namespace"), Place::Unknown);
        assert_eq!(Place::of("linux.namespacesx"), Place::Unknown);
        assert_eq!(Place::of("linux.namespace.x"), Place::Inside);
        assert_eq!(Place::of("linux.sysctl.x").field(), Some("linux.sysctl.*"));
        assert_eq!(Place::of("windows.x.y"), Place::Inside);
        assert!(!Place::of("mounts").is_object());
        assert!(Place::of("mounts").item().is_object());
        assert!(!Place::of("linux.maskedPaths").is_object());
    }
}
