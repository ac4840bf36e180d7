//! Parses a point in time: `10m` ago, or an RFC 3339 time.
//!
//! A duration counts back from when the command line is parsed. Must not: know what the time is used for.

use std::str::FromStr;

use bowline_spec::values::Duration;
use jiff::{SignedDuration, Timestamp};

/// A point in time: `10m`, `1h30m` (that long ago), `2026-05-01T12:00:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Timestamp);

impl Moment {
    pub fn timestamp(self) -> Timestamp {
        self.0
    }

    /// Parses `text`; a duration counts back from `now`.
    fn read(text: &str, now: Timestamp) -> Result<Moment, String> {
        if let Ok(back) = text.parse::<Duration>() {
            // A duration longer than all of time means the earliest time.
            let back = SignedDuration::try_from(back.as_std()).unwrap_or(SignedDuration::MAX);
            return Ok(Moment(now.checked_sub(back).unwrap_or(Timestamp::MIN)));
        }
        let wrong =
            |_| format!("{text:?} is not a time; write 10m or 1h30m for that long ago, or 2026-05-01T12:00:00Z");
        text.parse().map(Moment).map_err(wrong)
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        Moment::read(text, Timestamp::now())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        Moment::read(text, now).map(|moment| moment.timestamp().to_string())
    }

    #[test]
    fn a_duration_counts_back_from_now() {
        for (text, time) in [
            ("0", "2026-05-01T12:00:00Z"),
            ("30", "2026-05-01T11:59:30Z"),
            ("10m", "2026-05-01T11:50:00Z"),
            ("1h30m", "2026-05-01T10:30:00Z"),
            ("200ms", "2026-05-01T11:59:59.8Z"),
        ] {
            assert_eq!(read(text).unwrap(), time, "{text}");
        }
    }

    #[test]
    fn a_time_is_read_with_its_offset() {
        assert_eq!(read("2026-05-01T14:00:00+02:00").unwrap(), "2026-05-01T12:00:00Z");
        assert_eq!(read("2026-05-01T12:00:00.123456789Z").unwrap(), "2026-05-01T12:00:00.123456789Z");
    }

    #[test]
    fn what_is_no_time_says_what_to_write() {
        for text in ["", "yesterday", "10x", "-5m", "2026-13-01T00:00:00Z", "2026-05-01T12:00:00", "12:00"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("write 10m"), "{text}: {error}");
        }
    }
}
