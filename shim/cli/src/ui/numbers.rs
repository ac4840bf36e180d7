//! Formats sizes, percentages and durations for people; an unknown value is a dash.

use std::time::Duration;

/// Returns the value, or a dash if it is unknown.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// Formats a percentage with one decimal.
pub fn percent(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}%")))
}

/// Formats bytes with the largest binary suffix that gives at least 1: `64MiB`, `1.5GiB`.
pub fn size(bytes: Option<u64>) -> String {
    or_dash(bytes.map(|bytes| {
        const SUFFIXES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if bytes < 1024 {
            return format!("{bytes}B");
        }
        let mut value = bytes as f64 / 1024.0;
        let mut suffix = 0;
        // A value that would round to 1024 moves to the next suffix.
        while value >= 1023.95 && suffix + 1 < SUFFIXES.len() {
            value /= 1024.0;
            suffix += 1;
        }
        let text = format!("{value:.1}");
        format!("{}{}", text.strip_suffix(".0").unwrap_or(&text), SUFFIXES[suffix])
    }))
}

/// Formats a count; a dash if it is unknown.
pub fn count(n: Option<u64>) -> String {
    or_dash(n.map(|n| n.to_string()))
}

/// Formats a duration with its largest suffix, rounded down: `8s`, `3m`, `2h`, `41d`.
pub fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats CPU time in µs as top(1) does: minutes, seconds, hundredths.
pub fn cpu_time(usec: u64) -> String {
    let hundredths = usec / 10_000;
    format!("{}:{:02}.{:02}", hundredths / 6_000, hundredths / 100 % 60, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_of_which_there_is_one() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            ((1 << 20) - 1, "1MiB"),
            (64 << 20, "64MiB"),
            (u64::MAX, "16EiB"),
        ] {
            assert_eq!(size(Some(bytes)), text);
        }
        assert_eq!(size(None), "-");
    }

    #[test]
    fn spans_are_cut_to_their_largest_unit() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (86_400, "1d")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(cpu_time(83_456_789), "1:23.45");
    }
}
