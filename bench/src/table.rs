//! What was measured: samples, their median and p99, one table, JSON.
//!
//! Pure: takes values, returns text.

use std::time::Duration;

use serde_json::{Map, Value, json};

pub const COLUMNS: [&str; 5] = ["floor", "duty", "bowline", "crun", "runc"];
/// Something for each of them.
pub type Cells<T> = [T; COLUMNS.len()];
/// The index of the floor in [`COLUMNS`]; the others follow.
pub const FLOOR: usize = 0;
pub const DUTY: usize = 1;
pub const BOWLINE: usize = 2;
pub const CRUN: usize = 3;
pub const RUNC: usize = 4;
/// What is compared: the median of the first over that of the second.
const RATIOS: [(usize, usize); 4] = [(BOWLINE, FLOOR), (BOWLINE, DUTY), (CRUN, BOWLINE), (RUNC, BOWLINE)];

/// One row: what was measured, and for which runtime.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// What it says on the left, and in JSON.
    pub name: String,
    /// The measured times of each column.
    pub samples: Cells<Vec<Duration>>,
    /// Whether something else kept the machine busy meanwhile.
    pub busy: bool,
}

/// A figure that is no time, with its unit.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What it says on the left, and in JSON.
    pub name: String,
    /// The value of each column; `None` where it was not measured.
    pub values: Cells<Option<f64>>,
    pub unit: &'static str,
    /// Whether something else kept the machine busy meanwhile.
    pub busy: bool,
}

impl Figure {
    /// A figure that no column has yet.
    pub fn new(name: impl Into<String>, unit: &'static str) -> Figure {
        Figure { name: name.into(), values: Cells::default(), unit, busy: false }
    }

    /// A figure that bowline alone has.
    pub fn of_bowline(name: impl Into<String>, unit: &'static str, value: f64, busy: bool) -> Figure {
        let mut figure = Figure { busy, ..Figure::new(name, unit) };
        figure.values[BOWLINE] = Some(value);
        figure
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("name".to_owned(), json!(self.name));
        object.insert("unit".to_owned(), json!(self.unit));
        object.insert("busy".to_owned(), json!(self.busy));
        object.insert("value".to_owned(), json!(self.values[BOWLINE]));
        for column in [FLOOR, CRUN, RUNC] {
            object.insert(COLUMNS[column].to_owned(), json!(self.values[column]));
        }
        Value::Object(object)
    }
}

impl Row {
    pub fn new(name: impl Into<String>) -> Row {
        Row { name: name.into(), ..Row::default() }
    }

    /// The median in milliseconds, if that column was measured.
    pub fn median(&self, column: usize) -> Option<f64> {
        self.at(column, 50)
    }

    /// In milliseconds; `None` where nobody was measured.
    fn at(&self, column: usize, per_cent: usize) -> Option<f64> {
        let mut sorted = self.samples[column].clone();
        sorted.sort_unstable();
        nearest_rank(&sorted, per_cent).map(|duration| duration.as_secs_f64() * 1e3)
    }

    /// The median of `above` over that of `below`.
    fn ratio(&self, above: usize, below: usize) -> Option<f64> {
        Some(self.at(above, 50)? / self.at(below, 50)?)
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("name".to_owned(), json!(self.name));
        object.insert("busy".to_owned(), json!(self.busy));
        for (column, name) in COLUMNS.iter().enumerate() {
            let times = self.at(column, 50).zip(self.at(column, 99));
            let n = self.samples[column].len();
            let cell = times.map(|(median, p99)| json!({"median_ms": median, "p99_ms": p99, "n": n}));
            object.insert((*name).to_owned(), json!(cell));
        }
        for (above, below) in RATIOS {
            let name = format!("{}_to_{}", COLUMNS[above], COLUMNS[below]);
            object.insert(name, json!(self.ratio(above, below)));
        }
        Value::Object(object)
    }
}

/// The nearest-rank percentile: of fewer than 100 samples the 99th is the largest.
fn nearest_rank(sorted: &[Duration], per_cent: usize) -> Option<Duration> {
    let rank = (sorted.len() * per_cent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Everything as JSON. `about` says of which machine and which versions.
pub fn json(about: &Value, rows: &[Row], figures: &[Figure]) -> Value {
    json!({
        "about": about,
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
    })
}

/// The table, as Markdown; with `ratios`, those alone.
pub fn text(rows: &[Row], figures: &[Figure], ratios: bool) -> String {
    let mut lines = vec![heading(ratios)];
    let width = lines[0].len();
    lines.push(rule(width));
    for row in rows {
        let mut line = vec![format!("{}{}", row.name, mark(row.busy))];
        if !ratios {
            line.extend((0..COLUMNS.len()).map(|column| times(row, column)));
            line.push(samples(row));
        }
        for (above, below) in RATIOS {
            line.push(row.ratio(above, below).map_or_else(|| "-".to_owned(), |ratio| digits(ratio) + "x"));
        }
        lines.push(line);
    }
    for figure in figures {
        let mut line = vec!["-".to_owned(); width];
        line[0] = format!("{}, {}{}", figure.name, figure.unit, mark(figure.busy));
        // Ratios have no column of bowline's own.
        for (column, value) in figure.values.iter().enumerate().filter(|(column, _)| !ratios || *column == BOWLINE) {
            if let Some(value) = value {
                line[if ratios { 1 } else { 1 + column }] = digits(*value);
            }
        }
        if !ratios || !rows.is_empty() {
            lines.push(line);
        }
    }
    aligned(&lines)
}

/// What follows the name of what was measured on a busy machine.
pub fn mark(busy: bool) -> &'static str {
    if busy { " *" } else { "" }
}

fn heading(ratios: bool) -> Vec<String> {
    let mut names = vec!["median (p99), ms"];
    if ratios {
        names[0] = "ratio of medians";
    } else {
        names.extend(COLUMNS);
        names.push("n");
    }
    let ratios = RATIOS.map(|(above, below)| format!("{} / {}", COLUMNS[above], COLUMNS[below]));
    names.into_iter().map(str::to_owned).chain(ratios).collect()
}

fn times(row: &Row, column: usize) -> String {
    match (row.at(column, 50), row.at(column, 99)) {
        (Some(median), Some(p99)) => format!("{} ({})", digits(median), digits(p99)),
        _ => "-".to_owned(),
    }
}

fn samples(row: &Row) -> String {
    row.samples.iter().map(Vec::len).max().unwrap_or(0).to_string()
}

/// Two to three digits that count.
pub fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.0995 || v <= 0.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// The line below the heading of a Markdown table: the first column to the left, all others to the right.
pub fn rule(columns: usize) -> Vec<String> {
    std::iter::once("---").chain(std::iter::repeat_n("---:", columns - 1)).map(str::to_owned).collect()
}

/// Lines of cells as a Markdown table: the first column to the left.
pub fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            text += &if column == 0 { format!("| {cell:<width$} ") } else { format!("| {cell:>width$} ") };
        }
        text += "|\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(samples: Cells<&[u64]>) -> Row {
        let samples = samples.map(|all| all.iter().copied().map(Duration::from_micros).collect());
        Row { name: "a".to_owned(), samples, busy: false }
    }

    #[test]
    fn percentiles_are_samples() {
        let hundred: Vec<u64> = (1..=100).map(|n| n * 1000).collect();
        let row = row([&hundred, &[], &[3000, 1000, 2000], &[5000], &[]]);
        assert_eq!((row.at(FLOOR, 50), row.at(FLOOR, 99)), (Some(50.0), Some(99.0)));
        assert_eq!((row.at(BOWLINE, 50), row.at(BOWLINE, 99)), (Some(2.0), Some(3.0)));
        assert_eq!((row.at(CRUN, 50), row.at(CRUN, 99)), (Some(5.0), Some(5.0)));
        assert_eq!(row.at(RUNC, 50), None);
    }

    #[test]
    fn who_was_not_measured_has_a_dash_and_no_ratio() {
        let rows = [row([&[2000], &[2500], &[3000], &[], &[30_000]])];
        let mut figure = Figure::of_bowline("threads", "number", 1.0, false);
        figure.values[RUNC] = Some(11.0);
        let written = figure.json();
        assert_eq!((&written["value"], &written["crun"], &written["runc"]), (&json!(1.0), &Value::Null, &json!(11.0)));
        let table = text(&rows, &[figure], false);
        let cells = |line: usize| -> Vec<String> {
            let line = table.lines().nth(line).unwrap_or_default();
            line.split('|').map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(
            cells(2),
            ["a", "2.00 (2.00)", "2.50 (2.50)", "3.00 (3.00)", "-", "30.0 (30.0)", "1", "1.50x", "1.20x", "-", "10.0x"],
            "{table}"
        );
        assert_eq!(cells(3)[..6], ["threads, number", "-", "-", "1.00", "-", "11.0"]);
        assert_eq!(json(&Value::Null, &rows, &[])["rows"][0]["crun"], Value::Null);
    }

    #[test]
    fn what_was_measured_on_a_busy_machine_is_marked() {
        let busy = Row { busy: true, ..row([&[2000], &[], &[3000], &[], &[]]) };
        let figure = Figure::of_bowline("b", "KiB", 1.0, true);
        let table = text(std::slice::from_ref(&busy), std::slice::from_ref(&figure), true);
        assert!(table.contains("| a *") && table.contains("| b, KiB *"), "{table}");
        let written = json(&Value::Null, &[busy], &[figure]);
        assert_eq!([&written["rows"][0]["busy"], &written["figures"][0]["busy"]], [&json!(true); 2]);
    }

    #[test]
    fn numbers_have_two_or_three_digits_that_count() {
        let cases =
            [(0.0631, "0.063"), (0.634, "0.63"), (2.345, "2.35"), (23.45, "23.4"), (234.5, "234"), (0.0, "0.00")];
        for (value, expected) in cases {
            assert_eq!(digits(value), expected);
        }
    }
}
