//! Tests of the picture that is drawn for a recording.

use super::{Axis, LEFT, RIGHT, WIDTH, curves::Curves, svg_of};
use crate::ui::record::file::{Header, Recording, Sample};
use serde_json::{Value, json};

const BEGIN: &str = "2026-05-01T12:00:00Z";

fn recording(samples: Value, events: Value) -> Recording {
    let header = json!({"format": 1, "id": "web", "begun_at": BEGIN, "interval_usec": 1_000_000});
    let samples: Vec<Sample> = serde_json::from_value(samples).expect("samples");
    let header: Header = serde_json::from_value(header).expect("a header");
    Recording { header, samples, events: events.as_array().cloned().unwrap_or_default(), ..Recording::default() }
}

fn at(seconds: u64, usage: u64, limit: Option<u64>) -> Value {
    json!({"read_at": format!("2026-05-01T12:{:02}:{:02}Z", seconds / 60, seconds % 60),
           "cpu": {"usage_usec": seconds * 500_000, "periods": seconds * 10, "throttled_periods": seconds * 5,
                   "limit_usec": limit.map(|_| 50_000), "period_usec": 100_000},
           "memory": {"usage_bytes": usage, "anon_bytes": usage / 2, "limit_bytes": limit},
           "pids": {"current": 3, "limit": 9}})
}

fn event(seconds: f64, name: &str) -> Value {
    let time = format!("2026-05-01T12:00:{seconds:06.3}Z");
    json!({"time": time, "id": "web", "seq": 1, "event": name})
}

/// The texts between each `begin` and the next `end`.
fn all<'t>(text: &'t str, begin: &str, end: &str) -> Vec<&'t str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

#[test]
fn an_event_is_where_its_time_is() {
    let samples = json!([at(0, 1 << 20, None), at(10, 2 << 20, None)]);
    let svg = svg_of(&recording(samples, json!([event(2.5, "paused"), event(7.5, "resumed")])));
    let width = WIDTH - LEFT - RIGHT;
    for (seconds, name) in [(2.5, "paused"), (7.5, "resumed")] {
        let line = all(&svg, "<line class=\"mark\"", ">").into_iter().find(|line| line.contains(name)).expect("a mark");
        let x: f64 = all(line, "x1=\"", "\"")[0].parse().expect("a number");
        assert!((x - (LEFT + width * seconds / 10.0)).abs() < 0.01, "{name} at {x}");
    }
}

#[test]
fn names_are_above_their_lines_and_not_upon_each_other() {
    let samples = json!([at(0, 1, None), at(10, 1, None)]);
    let names = ["started", "exec", "paused", "resumed", "updated", "health", "tomorrow", "exited"];
    let events: Vec<Value> = names.iter().zip(0..).map(|(name, n)| event(f64::from(n) * 0.3, name)).collect();
    let svg = svg_of(&recording(samples, json!(events)));
    let mut texts: Vec<(f64, f64, &str)> = Vec::new();
    for text in all(&svg, "<text class=\"mark", "</text>") {
        let number = |name: &str| all(text, &format!("{name}=\""), "\"")[0].parse::<f64>().expect("a number");
        texts.push((number("x"), number("y"), text.rsplit('>').next().unwrap_or_default()));
    }
    assert!(texts.iter().any(|(.., name)| *name == "tomorrow"), "what a later version says is shown: {texts:?}");
    for (x, y, name) in &texts {
        let end = x + 6.0 * name.chars().count() as f64;
        let upon = texts.iter().find(|(other, height, _)| height == y && other > x && *other < end);
        assert_eq!(upon, None, "upon {name}");
        // The line of a mark begins at its name and goes down.
        let through = texts.iter().find(|(other, height, _)| height < y && other - 3.0 > *x && other - 3.0 < end);
        assert_eq!(through, None, "through {name}");
    }
}

#[test]
fn the_same_that_are_near_have_one_name() {
    let events: Vec<Value> = (0..30).map(|n| event(f64::from(n) * 0.01, "exec")).collect();
    let svg = svg_of(&recording(json!([at(0, 1, None), at(10, 1, None)]), json!(events)));
    // An exec event without an exit code was killed at its deadline.
    assert_eq!(all(&svg, "<text class=\"mark bad\"", "</text>").len(), 1);
    assert!(svg.contains("exec: timed out ×30"), "{svg}");
    assert_eq!(all(&svg, "<line class=\"mark bad\"", ">").len(), 30);
}

#[test]
fn a_limit_that_changes_is_a_line_that_does() {
    let samples = json!([at(0, 40 << 20, Some(64 << 20)), at(5, 40 << 20, Some(128 << 20)), at(10, 40 << 20, None)]);
    let recording = recording(samples, json!([]));
    let curves = Curves::of(&recording, &Axis::of(&recording));
    let limits: Vec<Option<f64>> = curves.memory_limit.iter().map(|(_, limit)| *limit).collect();
    assert_eq!(limits, [Some(67_108_864.0), Some(134_217_728.0), None]);
    assert_eq!(curves.cpu.iter().map(|stretch| stretch.figure).collect::<Vec<_>>(), [50.0, 50.0]);
    assert_eq!(curves.throttled[0].figure, 0.5);
    let svg = svg_of(&recording);
    assert!(svg.contains("limit 128 MiB") && svg.contains("limit 50 %"), "{svg}");
}

#[test]
fn little_and_nothing_are_pictures_too() {
    let svg = svg_of(&recording(json!([]), json!([])));
    assert!(svg.contains("no reading was recorded"));
    let svg = svg_of(&recording(json!([at(1, 1 << 20, Some(2 << 20))]), json!([])));
    assert!(svg.contains("<circle") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let odd = json!([{"read_at": "2026-05-01T12:00:01Z"}, {"read_at": "2026-05-01T12:00:01Z", "memory": {"usage_bytes": u64::MAX}}]);
    let svg = svg_of(&recording(odd, json!([{}, {"time": "x"}, {"time": "9999-12-30T00:00:00Z", "event": 7}])));
    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
}

#[test]
fn a_long_recording_has_no_more_points_than_pixels() {
    let samples: Vec<Value> = (0..3_000).map(|n| at(n, u64::from(n == 1_500) << 30, None)).collect();
    let recording = recording(json!(samples), json!([]));
    let curves = Curves::of(&recording, &Axis::of(&recording));
    assert!(curves.usage.len() <= 770, "{}", curves.usage.len());
    let most = curves.usage.iter().filter_map(|(_, usage)| *usage).fold(0.0, f64::max);
    assert_eq!(most, f64::from(1 << 30), "what was there for a moment is not lost");
    let used: f64 = curves.cpu.iter().map(|stretch| stretch.figure * (stretch.to - stretch.from) / 100.0).sum();
    assert!((used - 2_999.0 / 2.0).abs() < 0.01, "nor is CPU time: {used}");
}

#[test]
fn foreign_text_is_text() {
    let mut recording = recording(json!([]), json!([{"time": BEGIN, "event": "<script>\u{1}&\"'", "x": "</title>"}]));
    recording.header.id = "<b>&".to_owned();
    recording.header.command = vec!["]]>\u{1b}[2J\u{0}one\n\ttwo".to_owned()];
    let svg = svg_of(&recording);
    assert!(svg.contains("]]&gt;\u{fffd}[2J\u{fffd}one  two"), "{svg}");
    assert!(!svg.contains("<script") && !svg.contains("<b>") && svg.contains("&lt;script&gt;"), "{svg}");
    assert!(!svg.chars().any(|c| c.is_control() && c != '\n'), "{svg:?}");
}
