//! Formats figures and untrusted text as words of a sentence.

use bowline_spec::signal::Signal;

use crate::ui::numbers;

/// The most characters of an output line that are shown.
const LONGEST_LINE: usize = 160;

/// Formats bytes: `64 MiB`.
pub fn bytes(bytes: u64) -> String {
    let text = numbers::size(Some(bytes));
    let suffix = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..suffix], &text[suffix..])
}

/// Formats a part of a whole in whole percent; `None` if the whole is 0.
pub fn share(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| percent(part as f64 / whole as f64 * 100.0))
}

/// Formats a percentage. A value between 0 and 1 becomes "under 1 %", not 0.
pub fn percent(value: f64) -> String {
    if value > 0.0 && value < 1.0 { "under 1 %".to_owned() } else { format!("{value:.0} %") }
}

/// Formats a duration in µs: `450 ms`, `12.3 s`, `3 min 5 s`, `2 h 4 min`, `5 d 3 h`.
pub fn span(usec: u64) -> String {
    let seconds = usec / 1_000_000;
    let two = |large: u64, a: &str, small: u64, b: &str| match small {
        0 => format!("{large} {a}"),
        _ => format!("{large} {a} {small} {b}"),
    };
    match usec {
        0..1_000 => format!("{usec} µs"),
        1_000..999_500 => format!("{} ms", (usec + 500) / 1_000),
        999_500..59_950_000 => format!("{:.1} s", usec as f64 / 1e6).replace(".0 s", " s"),
        _ => match seconds {
            0..60 => "1 min".to_owned(),
            60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
            3_600..86_400 => two(seconds / 3_600, "h", seconds / 60 % 60, "min"),
            _ => two(seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
        },
    }
}

/// Formats a number of things: `1 fork`, `2 forks`.
pub fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Formats a number of processes: `1 process`, `2 processes`.
pub fn processes(number: u64) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{number} processes") }
}

/// Formats CPUs: `0.5 CPUs`, `1 CPU`.
pub fn cpus(cpus: f64) -> String {
    if (cpus - 1.0).abs() < 1e-9 { "1 CPU".to_owned() } else { format!("{} CPUs", (cpus * 1000.0).round() / 1000.0) }
}

/// The last non-empty line of `text`, made safe by [`shown`].
pub fn last_line(text: &str) -> Option<String> {
    text.lines().rev().map(shown).find(|line| !line.is_empty())
}

/// The last `most` non-empty lines of `text`, oldest first, made safe by [`shown`].
pub fn last_lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().rev().map(shown).filter(|line| !line.is_empty()).take(most).collect();
    lines.reverse();
    lines
}

/// Makes a line of untrusted text safe to show: trims it, escapes control characters and invisible marks, and cuts it
/// to [`LONGEST_LINE`].
pub fn shown(line: &str) -> String {
    let mut out = String::new();
    for (index, c) in line.trim().chars().enumerate() {
        if index == LONGEST_LINE {
            out.push('…');
            break;
        }
        match c {
            '\t' => out.push(' '),
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Whether `c` changes the writing direction or has no width.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// What a signal from the kernel means for the program; `None` for other signals.
pub fn meaning(signal: &str) -> Option<&'static str> {
    Some(match signal.strip_prefix("SIG").unwrap_or(signal) {
        "SEGV" => "it used memory that it does not have",
        "BUS" => "it used memory in a way that cannot be done, or a file's that has become shorter",
        "ILL" => "it executed what is no instruction of this CPU, or gave itself up",
        "FPE" => "it calculated what cannot be, such as a division by zero",
        "ABRT" => "it gave itself up, as after a failed assertion",
        "SYS" => "it made a system call that its seccomp filter ends a program for",
        "PIPE" => "nobody read any more what it wrote",
        "XCPU" => "its rlimit of CPU time was used up",
        "XFSZ" => "a file became larger than its rlimit lets it",
        "ALRM" => "a timer of its own went off",
        _ => return None,
    })
}

/// The signal that a shell's exit code stands for: `SIGKILL` for 137.
pub fn signal_of(code: i32) -> Option<String> {
    let number = code.checked_sub(128).filter(|number| (1..=31).contains(number))?;
    Signal::from_number(number).map(|signal| format!("SIG{}", signal.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_words() {
        assert_eq!((bytes(64 << 20), bytes(1536), bytes(7)), ("64 MiB".into(), "1.5 KiB".into(), "7 B".into()));
        assert_eq!(
            (share(123, 300), share(1, 300), share(0, 0)),
            (Some("41 %".into()), Some("under 1 %".into()), None)
        );
        for (usec, words) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (450_000, "450 ms"),
            (999_700, "1 s"),
            (12_340_000, "12.3 s"),
            (59_960_000, "1 min"),
            (185_000_000, "3 min 5 s"),
            (7_440_000_000, "2 h 4 min"),
            (u64::MAX, "213503982 d 8 h"),
        ] {
            assert_eq!(span(usec), words);
        }
        assert_eq!((cpus(0.5), cpus(1.0), count(1, "fork")), ("0.5 CPUs".into(), "1 CPU".into(), "1 fork".into()));
        assert_eq!((signal_of(137).as_deref(), signal_of(128), signal_of(255)), (Some("SIGKILL"), None, None));
    }

    #[test]
    fn what_others_wrote_changes_nothing_on_a_terminal() {
        assert_eq!(last_line("a\n\u{1b}[2Jb\u{202e}\u{7}\r\n  \n").as_deref(), Some("\\u{1b}[2Jb\\u{202e}\\u{7}"));
        assert_eq!(last_line(" \n\n"), None);
        assert_eq!(last_lines("1\n2\n\n3\n4", 2), ["3", "4"]);
        assert!(shown(&"x".repeat(10_000)).chars().count() == LONGEST_LINE + 1);
    }
}
