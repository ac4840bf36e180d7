//! Charts as SVG pictures: groups of bars, such as some rows of a run, and in each a
//! bar for everybody who was measured.
//!
//! Pure: takes values, returns text. Colours and type are those of the pictures
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

/// The chart's width; this and all lengths below are in pixels.
const WIDTH: usize = 760;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 200;
const LONGEST: f64 = 480.0;
const BAR: usize = 14;
const BETWEEN_BARS: usize = 4;
const BETWEEN_GROUPS: usize = 34;

/// A measure, and a bar for each who has it.
pub struct Group {
    pub title: String,
    pub bars: Vec<Bar>,
    /// What a bar of full length is, where not the group's own longest.
    pub longest: Option<f64>,
}

pub struct Bar {
    pub name: String,
    /// Of the picture's style: whose it is.
    pub class: &'static str,
    pub value: f64,
    /// The value as it is written behind the bar.
    pub text: String,
}

/// The picture of a run; `None` where none of its rows was measured.
pub fn svg(rows: &[Row], machine: &str) -> Option<String> {
    let drawn = ROWS.iter().filter_map(|(name, title)| Some((*title, rows.iter().find(|row| row.name == *name)?)));
    let bar = |column: usize, ms: f64| Bar {
        name: NAMES[column].to_owned(),
        class: class(column),
        value: ms,
        text: format!("{} ms", digits(ms)),
    };
    let bars = |row: &Row| (0..COLUMNS.len()).filter_map(|column| Some(bar(column, row.median(column)?))).collect();
    let mut groups: Vec<Group> =
        drawn.map(|(title, row)| Group { title: title.to_owned(), bars: bars(row), longest: None }).collect();
    // All are times, on one scale.
    let longest = groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value).fold(0.0, f64::max);
    groups.iter_mut().for_each(|group| group.longest = Some(longest));
    let label = "How long launches and execs take: bowline, crun, runc and the floor";
    picture(label, &format!("Medians, shorter is better. {machine}"), &groups)
}

/// A picture of these groups, one below the other; `None` where there is no bar.
pub fn picture(label: &str, heading: &str, groups: &[Group]) -> Option<String> {
    let (mut body, mut top) = (String::new(), 40);
    for Group { title, bars, longest } in groups {
        let longest = longest.unwrap_or_else(|| bars.iter().map(|bar| bar.value).fold(0.0, f64::max));
        let _ = writeln!(body, r#"<text class="title" x="16" y="{}">{title}</text>"#, top + 2);
        top += 12;
        for Bar { name, class, value, text } in bars {
            let (length, middle) = ((value / longest * LONGEST).clamp(1.0, LONGEST), top + BAR - 3);
            let _ = writeln!(body, r#"<text class="name" x="{}" y="{middle}">{name}</text>"#, LEFT - 8);
            let _ =
                writeln!(body, r#"<rect class="{class}" x="{LEFT}" y="{top}" width="{length:.1}" height="{BAR}"/>"#);
            let end = LEFT as f64 + length + 6.0;
            let _ = writeln!(body, r#"<text class="value" x="{end:.1}" y="{middle}">{text}</text>"#);
            top += BAR + BETWEEN_BARS;
        }
        top += BETWEEN_GROUPS - BETWEEN_BARS;
    }
    if groups.iter().all(|group| group.bars.is_empty()) {
        return None;
    }
    let height = top + 4;
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-label=\"{label}\">\n{STYLE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"name\" style=\"text-anchor:start\" x=\"16\" y=\"20\">{heading}</text>\n\
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
