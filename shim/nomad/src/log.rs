//! The log on stderr, in the form that the agent puts into its own: a JSON object a line.
//!
//! Source: hashicorp/go-plugin, `log_entry.go`. Every value is a string: the agent takes a number for a fault of ours.
//! Must not: fail, as an agent that was killed reads no more.

use std::io::Write as _;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::Level;

/// The most bytes of one value: with its escapes a line stays below the 64 KiB that the agent reads.
const LONGEST: usize = 8 * 1024;

/// Logs from now on; `BOWLINE_LOG` sets the level, `info` by default.
pub fn begin() {
    bowline_log::begin(bowline_log::level(Level::INFO), |metadata, event| {
        let mut fields = Fields::default();
        fields.add("message", event.message);
        event.fields.into_iter().for_each(|(name, value)| fields.add(name, value));
        let level = metadata.level().as_str().to_ascii_lowercase();
        let line = format!("{}\n", Value::Object(fields.line(&level, &Timestamp::now())));
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    });
}

/// The fields of one event, as text.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, name: &str, mut text: String) {
        if text.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        let name = if name == "message" { "@message" } else { name };
        self.0.insert(name.to_owned(), text.into());
    }

    fn line(mut self, level: &str, now: &Timestamp) -> Map<String, Value> {
        self.add("@level", level.to_owned());
        self.add("@timestamp", now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_strings_alone_and_stays_short() {
        let mut fields = Fields::default();
        fields.add("message", "é".repeat(LONGEST));
        fields.add("pid", 4711.to_string());
        let now: Timestamp = "2026-05-01T12:00:00.25Z".parse().expect("a time");
        let line = fields.line("info", &now);
        assert!(line.values().all(Value::is_string), "{line:?}");
        assert_eq!((&line["@level"], &line["@timestamp"]), (&"info".into(), &"2026-05-01T12:00:00.250000Z".into()));
        assert!(Value::Object(line).to_string().len() < 64 * 1024);
    }
}
