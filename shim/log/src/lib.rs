//! The log of a shim, or of a plugin: each event of `tracing` becomes one line, written by one call.
//!
//! There are no spans, and so nothing is kept between two events: the registry that `tracing-subscriber` keeps them in
//! takes 32 KiB of every shim. Must not: know where lines go, or what they look like.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LogEvent {
    pub message: String,
    /// The names of its fields, and their values as text.
    pub fields: Vec<(&'static str, String)>,
}

/// Has `say` called for each event of `level` and above, in this process from now on; in the thread that it comes from.
pub fn begin(level: Level, say: impl Fn(&Metadata<'_>, LogEvent) + Send + Sync + 'static) {
    // Only a second call could fail.
    let _ = tracing::subscriber::set_global_default(subscriber(level, say));
}

/// The level that the environment asks for by `BOWLINE_LOG`, or else `usual`.
pub fn level(usual: Level) -> Level {
    std::env::var("BOWLINE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(usual)
}

/// A value of a line of `name=value`: quoted only where it has to be.
pub fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+:".contains(c);
    if !value.is_empty() && value.chars().all(plain) { value.to_owned() } else { format!("{value:?}") }
}

pub fn subscriber(level: Level, say: impl Fn(&Metadata<'_>, LogEvent) + Send + Sync + 'static) -> impl Subscriber {
    Events { level, say }
}

struct Events<F> {
    level: Level,
    say: F,
}

impl<F: Fn(&Metadata<'_>, LogEvent) + Send + Sync + 'static> Subscriber for Events<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level))
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = LogEvent::default();
        event.record(&mut said);
        (self.say)(event.metadata(), said);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl LogEvent {
    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for LogEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn events_of_the_level_are_said_with_their_fields() {
        let all = Arc::new(Mutex::new(Vec::new()));
        let heard = all.clone();
        let subscriber = subscriber(Level::WARN, move |metadata, said| {
            heard.lock().expect("nobody panics").push((*metadata.level(), said));
        });
        tracing::subscriber::with_default(subscriber, || {
            let path = std::path::Path::new("/a b");
            tracing::error!(id = "web", path = %path.display(), left = 3, "cannot {}", "start");
            tracing::info!("not of interest");
            tracing::warn_span!("a span").in_scope(|| tracing::warn!(error = ?"it", "within"));
        });
        let fields =
            |fields: &[(&'static str, &str)]| fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let said =
            |message: &str, of: &[(&'static str, &str)]| LogEvent { message: message.to_owned(), fields: fields(of) };
        let expected = [
            (Level::ERROR, said("cannot start", &[("id", "web"), ("path", "/a b"), ("left", "3")])),
            (Level::WARN, said("within", &[("error", "\"it\"")])),
        ];
        assert_eq!(*all.lock().expect("nobody panics"), expected);
    }

    #[test]
    fn values_are_quoted_where_they_have_to_be() {
        for (value, expected) in
            [("web", "web"), ("/a/b:c", "/a/b:c"), ("", "\"\""), ("a b", "\"a b\""), ("\n", "\"\\n\"")]
        {
            assert_eq!(quoted(value), expected);
        }
    }
}
