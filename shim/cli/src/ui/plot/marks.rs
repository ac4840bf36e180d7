//! Events on the axis of time: a line across all panels each, and its name above
//! where there is room.
//!
//! ```text
//!   started               row 2      The name of a later event is lower, so that
//!   │     exec ×3         row 1      no line goes through a name. Of the same that
//!   │     │     exited    row 0      are near each other there is one name.
//!   ┼─────┼─────┼──────
//! ```
//!
//! An event of a later version is shown by its name.

use jiff::Timestamp;
use serde_json::Value;

use super::svg::{Svg, number};
use super::{Axis, GAP, LEFT, cut};
use crate::ui::record::file::Recording;

/// How many names there are one above the other.
const ROWS: usize = 6;
const ROW: f64 = 14.0;

/// So many that are drawn as one are no lines across what they may hide.
const MANY: usize = 5;

/// How wide a character is taken to be, and the room behind a name.
const CHARACTER: f64 = 6.4;
const ROOM: f64 = 10.0;

/// The longest name, in characters.
const LONGEST: usize = 18;

/// Of the same name, within so many pixels of the one before.
const NEAR: f64 = 30.0;

/// Some events that are drawn as one.
struct Mark {
    xs: Vec<f64>,
    name: String,
    is_bad: bool,
    titles: Vec<String>,
    /// Counted from the lowest; none where there was no room.
    row: Option<usize>,
}

/// All of them.
pub struct Marks {
    marks: Vec<Mark>,
    rows: usize,
}

/// When an event happened.
pub fn time(event: &Value) -> Option<Timestamp> {
    event["time"].as_str()?.parse().ok()
}

/// What an event is called, and whether it is a bad one.
fn named(event: &Value) -> (String, bool) {
    let name = event["event"].as_str().unwrap_or("?");
    let word = |field: &str| event[field].as_str().map(str::to_owned);
    let number = |field: &str| event[field].as_i64();
    match name {
        "exec" => match number("exit_code") {
            Some(0) => ("exec".to_owned(), false),
            Some(code) => (format!("exec: {code}"), false),
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

/// All that an event tells, on one line.
fn told(event: &Value, seconds: f64) -> String {
    let fields = event.as_object().into_iter().flatten();
    let fields = fields.filter(|(key, _)| !["time", "id", "seq", "event"].contains(&key.as_str()));
    let fields = fields.map(|(key, value)| format!(" {key}={value}")).collect::<String>();
    let name = event["event"].as_str().unwrap_or("?");
    cut(&format!("{name} after {seconds:.3} s{fields}"), 400)
}

/// Those of a recording.
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

/// Gives each a row, the last first; tells how many there are.
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

    /// Where its name ends.
    fn end(&self) -> f64 {
        self.xs[0] + CHARACTER * self.label().chars().count() as f64 + ROOM
    }
}

impl Marks {
    /// How high the names are together.
    pub fn height(&self) -> f64 {
        self.rows as f64 * ROW + 6.0
    }

    /// Draws them: the names end at `top`, the lines at `bottom`.
    pub fn draw(&self, svg: &mut Svg, top: f64, bottom: f64) {
        for mark in &self.marks {
            let class = if mark.is_bad { "mark bad" } else { "mark" };
            let base = mark.row.map(|row| top - row as f64 * ROW);
            for (x, title) in mark.xs.iter().zip(&mark.titles) {
                // Only the first has the name.
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
