//! The chart of a run, as an SVG picture: some rows, and in each a bar for
//! everybody who was measured.
//!
//! Pure: takes rows, returns text. Colours and type are those of the pictures
//! in `docs/`.

use std::fmt::Write as _;

use crate::table::{BOWLINE, COLUMNS, Row, digits};

/// The rows that are drawn, by their names, and what they are called there.
const ROWS: [(&str, &str); 4] = [
    ("launch, seccomp default: removed", "launch, until all is removed"),
    ("launch, seccomp default, 60-100 ms apart: removed", "the same, 60–100 ms apart"),
    ("exec, seccomp default", "exec"),
    ("exec, seccomp default, 100 ms apart", "exec, 100 ms apart"),
];
/// What they are called in the chart, by column.
const NAMES: [&str; COLUMNS.len()] = ["the kernel alone", "with every runtime's duties", "bowline", "crun", "runc"];

/// All in pixels.
const WIDTH: usize = 760;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 200;
const LONGEST: f64 = 480.0;
const BAR: usize = 14;
const BETWEEN_BARS: usize = 4;
const BETWEEN_GROUPS: usize = 34;

/// The picture; `None` where none of its rows was measured.
pub fn svg(rows: &[Row], machine: &str) -> Option<String> {
    let drawn: Vec<(&str, &Row)> =
        ROWS.iter().filter_map(|(name, title)| Some((*title, rows.iter().find(|row| row.name == *name)?))).collect();
    let medians = |row: &Row| (0..COLUMNS.len()).filter_map(|column| Some((column, row.median(column)?))).collect();
    let groups: Vec<(&str, Vec<(usize, f64)>)> = drawn.iter().map(|(title, row)| (*title, medians(row))).collect();
    let longest = groups.iter().flat_map(|(_, bars)| bars).map(|(_, ms)| *ms).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let (mut body, mut top) = (String::new(), 40);
    for (title, bars) in &groups {
        let _ = writeln!(body, r#"<text class="title" x="16" y="{}">{title}</text>"#, top + 2);
        top += 12;
        for (column, ms) in bars {
            let (length, middle) = ((ms / longest * LONGEST).max(1.0), top + BAR - 3);
            let class = class(*column);
            let _ = writeln!(body, r#"<text class="name" x="{}" y="{middle}">{}</text>"#, LEFT - 8, NAMES[*column]);
            let _ =
                writeln!(body, r#"<rect class="{class}" x="{LEFT}" y="{top}" width="{length:.1}" height="{BAR}"/>"#);
            let end = LEFT as f64 + length + 6.0;
            let _ = writeln!(body, r#"<text class="value" x="{end:.1}" y="{middle}">{} ms</text>"#, digits(*ms));
            top += BAR + BETWEEN_BARS;
        }
        top += BETWEEN_GROUPS - BETWEEN_BARS;
    }
    let height = top + 4;
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-label=\"How long launches and execs take: bowline, crun, runc and the floor\">\n{STYLE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"name\" style=\"text-anchor:start\" x=\"16\" y=\"20\">Medians, shorter is better. {machine}</text>\n\
         {body}</svg>\n"
    ))
}

fn class(column: usize) -> &'static str {
    match column {
        BOWLINE => "ours",
        column if column < BOWLINE => "floor",
        _ => "peer",
    }
}

const STYLE: &str = "<style>text{font-family:system-ui,sans-serif;font-size:12px;fill:#24292f}.title{font-weight:600}\
.name{text-anchor:end}.paper{fill:#fff}.floor{fill:#afb8c1}.ours{fill:#1f6feb}.peer{fill:#d4a72c}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.floor{fill:#484f58}}</style>";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::table::{CRUN, FLOOR, RUNC};

    fn row(name: &str, medians: &[(usize, u64)]) -> Row {
        let mut row = Row::new(name);
        for (column, ms) in medians {
            row.samples[*column].push(Duration::from_millis(*ms));
        }
        row
    }

    #[test]
    fn everybody_who_was_measured_has_a_bar() {
        let rows = [
            row("exec, seccomp default", &[(FLOOR, 1), (BOWLINE, 2), (RUNC, 40)]),
            row("state", &[(BOWLINE, 7), (CRUN, 9)]),
        ];
        let svg = svg(&rows, "2 processors").expect("there is something to draw");
        assert_eq!(svg.matches("<rect class=\"").count(), 1 + 3, "the paper and three bars: {svg}");
        for part in ["width=\"480.0\"", "width=\"24.0\"", "40.0 ms", "2.00 ms", "the kernel alone", "2 processors"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(!svg.contains(">crun<") && !svg.contains("7.00"), "who was not measured is not drawn: {svg}");
    }

    #[test]
    fn without_its_rows_there_is_no_chart() {
        assert_eq!(svg(&[row("state", &[(BOWLINE, 7)])], ""), None);
        assert_eq!(svg(&[row("exec, seccomp default", &[])], ""), None);
    }
}
