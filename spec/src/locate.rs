//! Maps positions in a text to fields, so that a wrong type is reported with its
//! field, and fields to positions, so that what `validate` finds is reported with
//! its line.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::format::Format;

/// serde_json's own limit on nesting; deeper fields have no place.
const DEEPEST: usize = 128;

/// A field or an array's element, in bytes of the text.
struct Place {
    path: String,
    /// Empty for an array's element.
    key: Range<usize>,
    value: Range<usize>,
}

/// Every field of a text.
pub(crate) struct Places(Vec<Place>);

impl Places {
    /// The fields of `text`; none, or those up to there, if it is malformed.
    pub(crate) fn of(text: &str, format: Format) -> Places {
        let mut places = Places(Vec::new());
        match format {
            Format::Toml => {
                if let Ok(table) = DeTable::parse(text) {
                    places.add_table(table.get_ref(), "");
                }
            }
            Format::Json => {
                let mut scanner = Scanner { text: text.as_bytes(), at: 0, places: &mut places };
                // What cannot be scanned has been reported as a syntax error.
                let _ = scanner.value("", 0);
            }
        }
        places
    }

    /// The innermost field around `offset`; empty at the top.
    pub(crate) fn path_at(&self, offset: usize) -> &str {
        let around = self.0.iter().filter_map(|place| {
            let ranges = [&place.key, &place.value];
            let range = ranges.into_iter().find(|range| range.contains(&offset))?;
            Some((range.len(), place))
        });
        around.min_by_key(|(length, _)| *length).map_or("", |(_, place)| &place.path)
    }

    /// The position of the field `path`, or of the nearest field around it.
    pub(crate) fn offset_of(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(place) = self.0.iter().find(|place| place.path == path) {
                let start = |range: &Range<usize>| (!range.is_empty()).then_some(range.start);
                return start(&place.key).or(start(&place.value));
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    fn add_table(&mut self, table: &DeTable<'_>, parent: &str) {
        for (key, value) in table.iter() {
            let path = child(parent, key.get_ref());
            self.add_value(path, key.span(), value);
        }
    }

    fn add_value(&mut self, path: String, key: Range<usize>, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.add_table(table, &path),
            DeValue::Array(array) => {
                for (index, element) in array.iter().enumerate() {
                    self.add_value(format!("{path}[{index}]"), 0..0, element);
                }
            }
            _ => {}
        }
        self.0.push(Place { path, key, value: value.span() });
    }
}

fn child(parent: &str, key: &str) -> String {
    match parent {
        "" => key.to_string(),
        _ => format!("{parent}.{key}"),
    }
}

/// The line and column of a byte of `text`, from 1, the column in characters.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// The byte that serde_json means by a line and a column: the last one read.
pub(crate) fn offset_at(text: &str, line: usize, column: usize) -> usize {
    let line_start = match line {
        0 | 1 => 0,
        _ => text.match_indices('\n').nth(line - 2).map_or(text.len(), |(newline, _)| newline + 1),
    };
    (line_start + column.saturating_sub(1)).min(text.len())
}

/// Scans JSON that serde_json has found well-formed, at least up to the error.
/// Checks only that it does not run past the end.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    places: &'a mut Places,
}

impl Scanner<'_> {
    fn value(&mut self, path: &str, depth: usize) -> Option<Range<usize>> {
        self.space();
        let start = self.at;
        match self.text.get(self.at)? {
            _ if depth > DEEPEST => return None,
            b'{' => self.members(path, depth)?,
            b'[' => self.elements(path, depth)?,
            b'"' => {
                self.string()?;
            }
            _ => {
                while self.text.get(self.at).is_some_and(|b| !b",]} \t\r\n".contains(b)) {
                    self.at += 1;
                }
            }
        }
        Some(start..self.at)
    }

    fn members(&mut self, path: &str, depth: usize) -> Option<()> {
        self.at += 1;
        loop {
            self.space();
            match self.text.get(self.at)? {
                b'}' => break,
                b',' => self.at += 1,
                b'"' => {
                    let key_start = self.at;
                    let name = self.string()?;
                    let key = key_start..self.at;
                    let member = child(path, &name);
                    // Known before its value is, which may be malformed.
                    let index = self.places.0.len();
                    self.places.0.push(Place { path: member.clone(), key, value: 0..0 });
                    self.space();
                    self.at += 1;
                    let value = self.value(&member, depth + 1)?;
                    self.places.0[index].value = value;
                }
                _ => return None,
            }
        }
        self.at += 1;
        Some(())
    }

    fn elements(&mut self, path: &str, depth: usize) -> Option<()> {
        self.at += 1;
        let mut index = 0;
        loop {
            self.space();
            match self.text.get(self.at)? {
                b']' => break,
                b',' => self.at += 1,
                _ => {
                    let element = format!("{path}[{index}]");
                    let before = self.at;
                    let value = self.value(&element, depth + 1)?;
                    if self.at == before {
                        return None;
                    }
                    self.places.0.push(Place { path: element, key: 0..0, value });
                    index += 1;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    /// The string at hand, its escapes left as they are written.
    fn string(&mut self) -> Option<String> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.text.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        self.at += 1;
        Some(text)
    }

    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_found_in_both_languages() {
        let toml = "command = 'a'\n[memory]\nlimit = '1M'\n[[mounts]]\nsource = '/x'\n";
        let json = "{\"command\": \"a\",\n\"memory\": {\n\"limit\": \"1M\"},\n\"mounts\": [{\n\"source\": \"/x\"}]}";
        for (text, format) in [(toml, Format::Toml), (json, Format::Json)] {
            let places = Places::of(text, format);
            for (path, line) in [("command", 1), ("memory.limit", 3), ("mounts[0].source", 5)] {
                let offset = places.offset_of(path).unwrap_or(usize::MAX);
                assert_eq!(line_and_column(text, offset).0, line, "{path} in {text}");
                assert_eq!(places.path_at(offset), path);
            }
        }
    }

    #[test]
    fn a_field_that_is_not_there_is_told_by_what_is_around_it() {
        let places = Places::of("[[mounts]]\nread_only = true\n", Format::Toml);
        let missing = places.offset_of("mounts[0].destination");
        assert_eq!(missing, places.offset_of("mounts[0]"));
        assert_eq!(places.offset_of("command"), None);
    }

    proptest! {
        #[test]
        fn scanning_never_panics(text in "[{}\\[\\]\",:\\\\a1 \n]*|\\PC*", line in 0usize..9, column in 0usize..99) {
            for format in [Format::Toml, Format::Json] {
                let places = Places::of(&text, format);
                let offset = offset_at(&text, line, column);
                places.path_at(offset);
                line_and_column(&text, offset);
            }
        }
    }
}
