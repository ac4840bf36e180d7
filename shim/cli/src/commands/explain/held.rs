//! What CPU limits have held back, each for itself: a task's counters go on when its limit changes.

use std::fmt;

use bowline_model::events::{Entry, Event};

use crate::ui::words::{count, cpus, share, span};

/// Counters of throttling.
pub struct Held {
    pub periods: Option<u64>,
    pub throttled: u64,
    pub usec: Option<u64>,
}

impl Held {
    /// The part that the limit in effect has held back, and in words what earlier limits have.
    pub fn by_limit(self, events: &[Entry]) -> (Held, Option<String>) {
        let mut changes = events.iter().rev().filter_map(|entry| match &entry.event {
            Event::Updated { throttled, .. } => throttled.as_ref(),
            _ => None,
        });
        let Some(last) = changes.next() else { return (self, None) };
        let earlier =
            Held { periods: Some(last.periods), throttled: last.throttled_periods, usec: Some(last.throttled_usec) };
        let by = match (last.limit, changes.next()) {
            (Some(limit), None) => format!("an earlier limit of {}", cpus(limit.as_f64())),
            _ => "earlier limits".to_owned(),
        };
        let since = |all: Option<u64>, before: Option<u64>| all.map(|all| all.saturating_sub(before.unwrap_or(0)));
        let now = Held {
            periods: since(self.periods, earlier.periods),
            throttled: self.throttled.saturating_sub(earlier.throttled),
            usec: since(self.usec, earlier.usec),
        };
        (now, Some(format!("in {earlier}, by {by}")))
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.periods.and_then(|periods| Some((share(self.throttled, periods)?, periods)));
        match of {
            Some((share, periods)) => write!(f, "{share} of periods ({} of {periods})", self.throttled)?,
            None => f.write_str(&count(self.throttled, "period"))?,
        }
        self.usec.map_or(Ok(()), |usec| write!(f, ", {} in all", span(usec)))
    }
}
