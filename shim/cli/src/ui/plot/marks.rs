//! Marks of events on the axis of time: a line across all panels for each event, with its name above if there is room.
//!
//! ```text
//!   started               row 2      The name of a later event is lower, so that
//!   │     exec ×3         row 1      no line crosses a name. Near events of the
//!   │     │     exited    row 0      same name share one name.
//!   ┼─────┼─────┼──────
//! ```
//!
//! An event type that this version does not know is shown by its name.

use jiff::Timestamp;
use serde_json::Value;

use super::svg::{Svg, number};
use super::{Axis, GAP, LEFT, cut};
use crate::ui::record::file::Recording;

/// The most names above each other.
const ROWS: usize = 6;
const ROW: f64 = 14.0;

/// From this many events in one mark on, their lines stay short and do not cross the panels.
const MANY: usize = 5;

/// The assumed width of a character, and the space after a name, in pixels.
const CHARACTER: f64 = 6.4;
const ROOM: f64 = 10.0;

/// The longest name, in characters.
const LONGEST: usize = 18;

/// An event joins a mark of the same name if it is at most this many pixels from the last one.
const NEAR: f64 = 30.0;

/// One or more events that share a name in the picture.
struct Mark {
    xs: Vec<f64>,
    name: String,
    is_bad: bool,
    titles: Vec<String>,
    /// The row of the name, counted from the lowest; `None` if there was no room.
    row: Option<usize>,
}

/// All marks of a picture.
pub struct Marks {
    marks: Vec<Mark>,
    rows: usize,
}

/// The time of an event; `None` if there is none that can be parsed.
pub fn time(event: &Value) -> Option<Timestamp> {
    event["time"].as_str()?.parse().ok()
}

/// The name of an event in the picture, and whether it is bad.
fn named(event: &Value) -> (String, bool) {
    let name = event["event"].as_str().unwrap_or("?");
    let word = |field: &str| event[field].as_str().map(str::to_owned);
    let number = |field: &str| event[field].as_i64();
    match name {
        "exec" => match number("exit_code") {
            Some(0) => ("exec".to_owned(), false),
            Some(code) => (format!("exec: {code}"), false),
            None if event["shim_died"] == true => ("exec: code not known".to_owned(), true),
            None => ("exec: timed out".to_owned(), true),
        },
        "health" => {
            let status = word("status").unwrap_or_else(|| name.to_owned());
            let is_bad = status == "unhealthy";
            (status, is_bad)
        }
        "oom" => (
            number("kills")
                .filter(|kills| *kills > 1)
                .map_or_else(|| "OOM".to_owned(), |kills| format!("OOM ({kills})")),
            true,
        ),
        "exited" => {
            let how = word("signal").or_else(|| number("exit_code").map(|code| code.to_string()));
            let is_bad = number("exit_code") != Some(0);
            (how.map_or_else(|| "exited".to_owned(), |how| format!("exited: {how}")), is_bad)
        }
        "watch" => (word("policy").map_or_else(|| "watch".to_owned(), |policy| format!("watch: {policy}")), true),
        other => (other.to_owned(), false),
    }
}

/// All fields of an event, on one line.
fn told(event: &Value, seconds: f64) -> String {
    let fields = event.as_object().into_iter().flatten();
    let fields = fields.filter(|(key, _)| !["time", "id", "seq", "event"].contains(&key.as_str()));
    let fields = fields.map(|(key, value)| format!(" {key}={value}")).collect::<String>();
    let name = event["event"].as_str().unwrap_or("?");
    cut(&format!("{name} after {seconds:.3} s{fields}"), 400)
}

/// Makes the marks of a recording's events.
pub fn of(recording: &Recording, axis: &Axis) -> Marks {
    let mut events: Vec<(f64, &Value)> =
        recording.events.iter().filter_map(|event| Some((axis.seconds(time(event)?), event))).collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut marks: Vec<Mark> = Vec::new();
    for (seconds, event) in events {
        let (x, (name, is_bad)) = (axis.x(seconds), named(event));
        let name = cut(&name, LONGEST);
        let near = |mark: &&mut Mark| mark.name == name && mark.xs.last().is_some_and(|last| x - last <= NEAR);
        let title = told(event, seconds);
        match marks.iter_mut().rev().find(near) {
            Some(mark) => {
                mark.xs.push(x);
                mark.titles.push(title);
            }
            None => marks.push(Mark { xs: vec![x], name, is_bad, titles: vec![title], row: None }),
        }
    }
    let rows = place(&mut marks);
    Marks { marks, rows }
}

/// Gives each mark a row, from the last to the first, and returns the number of rows.
fn place(marks: &mut [Mark]) -> usize {
    let mut rows = 0;
    for index in (0..marks.len()).rev() {
        let (from, to) = (marks[index].xs[0], marks[index].end());
        let below = marks[index + 1..].iter().filter(|later| later.xs.iter().any(|x| (from..to).contains(x)));
        let row = below.map(|later| later.row.map_or(0, |row| row + 1)).max().unwrap_or(0);
        marks[index].row = (row < ROWS).then_some(row);
        rows = rows.max(row + 1).min(ROWS);
    }
    rows
}

impl Mark {
    fn label(&self) -> String {
        if self.xs.len() > 1 { format!("{} ×{}", self.name, self.xs.len()) } else { self.name.clone() }
    }

    /// The right end of the name, in pixels.
    fn end(&self) -> f64 {
        self.xs[0] + CHARACTER * self.label().chars().count() as f64 + ROOM
    }
}

impl Marks {
    /// The height of all names together, in pixels.
    pub fn height(&self) -> f64 {
        self.rows as f64 * ROW + 6.0
    }

    /// Draws the marks: names end at `top`, lines at `bottom`.
    pub fn draw(&self, svg: &mut Svg, top: f64, bottom: f64) {
        for mark in &self.marks {
            let class = if mark.is_bad { "mark bad" } else { "mark" };
            let base = mark.row.map(|row| top - row as f64 * ROW);
            for (x, title) in mark.xs.iter().zip(&mark.titles) {
                // Only the line of the first event starts at the name.
                let from = base.filter(|_| *x == mark.xs[0]).map_or(top + 4.0, |base| base - 10.0);
                let to = if mark.xs.len() < MANY { bottom } else { top + GAP / 2.0 };
                svg.told_line(class, (*x, from), (*x, to), &[("data-event", &mark.name)], title);
            }
            if let Some(base) = base {
                svg.text((mark.xs[0] + 3.0, base), class, &mark.label());
            }
        }
        let unnamed = self.marks.iter().filter(|mark| mark.row.is_none()).count();
        if unnamed > 0 {
            let text = format!("{} more", number(unnamed as f64));
            svg.text((LEFT - 6.0, top + GAP / 2.0), "small right", &text);
        }
    }
}
