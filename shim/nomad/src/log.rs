//! The log on stderr, in the form that the agent puts into its own: a JSON object a line.
//!
//! Source: hashicorp/go-plugin, `log_entry.go`. Every value is a string: the agent takes a number for a fault of ours.
//! Must not: fail, as an agent that was killed reads no more.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The most bytes of one value: with its escapes a line stays below the 64 KiB that the agent reads.
const LONGEST: usize = 8 * 1024;

/// Logs from now on; `BOWLINE_LOG` sets the level, `info` by default.
pub fn begin() {
    let level = std::env::var("BOWLINE_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(Level::INFO))
        .log_internal_errors(false)
        .event_format(Hclog)
        .with_writer(std::io::stderr)
        .init();
}

/// hclog's form.
struct Hclog;

impl<S, N> FormatEvent<S, N> for Hclog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        writeln!(writer, "{}", Value::Object(fields.line(&level, &Timestamp::now())))
    }
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
        self.0.entry("@message").or_insert_with(|| "".into());
        self.add("@level", level.to_owned());
        self.add("@timestamp", now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
        self.0
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.add(field.name(), text);
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

    #[test]
    fn what_says_nothing_has_a_message_all_the_same() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().expect("a time");
        assert_eq!(Fields::default().line("warn", &now)["@message"], "");
    }
}
