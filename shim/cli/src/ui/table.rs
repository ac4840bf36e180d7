//! Tables for people: each column is as wide as its widest cell, and the last one is cut to the width of the terminal.
//!
//! A cell is one line without control characters, whatever name a task gives itself. Must not: know what the tables
//! contain.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The number of spaces between two columns.
const GAP: usize = 2;

/// A column's head, and how its cells are aligned: words left, figures right.
#[derive(Debug, Clone, Copy)]
pub enum Column<'a> {
    Left(&'a str),
    Right(&'a str),
}

impl<'a> Column<'a> {
    fn head(self) -> &'a str {
        match self {
            Column::Left(head) | Column::Right(head) => head,
        }
    }
}

/// A cell's text, and its style on a terminal.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn styled(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: clean(text.as_ref()), style: Style::new() }
    }
}

/// Returns the lines of the table, head first, none wider than `width`.
pub fn render(columns: &[Column<'_>], rows: &[Vec<Cell>], width: Option<usize>) -> Vec<String> {
    let head: Vec<Cell> = columns.iter().map(|column| Cell::from(column.head())).collect();
    let mut widths = vec![0; columns.len()];
    for row in std::iter::once(&head).chain(rows) {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = cell.text.width().max(*widest);
        }
    }
    std::iter::once(&head).chain(rows).map(|row| line(columns, row, &widths, width.unwrap_or(usize::MAX))).collect()
}

/// Cuts a table to `height` lines: the head and the last line stay, and one line says how many rows are missing.
pub fn fit(mut lines: Vec<String>, height: usize) -> Vec<String> {
    const FRAME: usize = 3;
    if lines.len() <= height || height < FRAME {
        lines.truncate(height);
        return lines;
    }
    let rows = height - FRAME;
    let last = lines.pop();
    let missing = lines.len() - 1 - rows;
    lines.truncate(1 + rows);
    lines.push(format!("+{missing} more"));
    lines.extend(last);
    lines
}

fn line(columns: &[Column<'_>], row: &[Cell], widths: &[usize], width: usize) -> String {
    let mut line = String::new();
    let mut left = width;
    // Spaces are written only before more text, so that no line ends in spaces.
    let mut blanks = 0;
    for ((column, cell), widest) in columns.iter().zip(row).zip(widths) {
        let missing = widest.saturating_sub(cell.text.width());
        let before = if matches!(column, Column::Right(_)) { missing } else { 0 };
        let text = cut(&cell.text, left.saturating_sub(blanks + before));
        if text.is_empty() {
            blanks += widest + GAP;
            continue;
        }
        line.extend(std::iter::repeat_n(' ', blanks + before));
        left = left.saturating_sub(blanks + before + text.width());
        let style = cell.style;
        line += &format!("{style}{text}{style:#}");
        blanks = missing - before + GAP;
    }
    line
}

/// Cuts `text` to at most `width` columns, with an ellipsis for the rest.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut short = String::new();
    for c in text.chars() {
        let Some(rest) = left.checked_sub(c.width().unwrap_or(0)) else { break };
        left = rest;
        short.push(c);
    }
    if width > 0 {
        short.push('…');
    }
    short
}

/// Returns `text` as one line without control characters.
pub fn clean(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<'_>; 3] = [Column::Left("ID"), Column::Right("PID"), Column::Left("COMMAND")];

    fn table(rows: &[[&str; 3]], width: Option<usize>) -> Vec<String> {
        let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().map(Cell::from).collect()).collect();
        render(&COLUMNS, &rows, width)
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_nothing_trails() {
        assert_eq!(
            table(&[["web", "7", "sleep 1"], ["a-longer-one", "12345", ""]], None),
            ["ID              PID  COMMAND", "web               7  sleep 1", "a-longer-one  12345"]
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 0..40 {
            for line in table(&[["web", "7", "sleep 1000 and more"], ["日本語", "12345", "日本語日本語"]], Some(width))
            {
                assert!(line.width() <= width, "{line:?} in {width}");
            }
        }
        assert_eq!(table(&[["web", "7", "日本語"]], Some(15))[1], "web    7  日本…");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let lines = |rows: usize| (0..rows).map(|row| row.to_string()).collect::<Vec<_>>();
        assert_eq!(fit(lines(5), 5), lines(5));
        assert_eq!(fit(lines(30), 5), ["0", "1", "2", "+26 more", "29"]);
        assert_eq!(fit(lines(5), 3), ["0", "+3 more", "4"]);
        assert_eq!(fit(lines(5), 2), ["0", "1"]);
    }

    #[test]
    fn a_cell_is_one_line_without_control_characters() {
        assert_eq!(clean("a\n  b\u{1b}[31m\tc\u{7}\u{9b}"), "a b[31m c");
    }

    #[test]
    fn a_style_takes_no_room() {
        let cell = Cell::from("web").styled(Style::new().bold());
        let lines = render(&COLUMNS, &[vec![cell, Cell::from("1"), Cell::from("x")]], Some(20));
        assert_eq!(lines[1], "\u{1b}[1mweb\u{1b}[0m    1  x");
    }
}
