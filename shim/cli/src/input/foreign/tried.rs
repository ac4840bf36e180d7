//! Lines of other programs, typed as bowline's, and what is answered: `tried.txt` has all, and is written again by
//! `UPDATE_DOCS=1 cargo test -p bowline --lib foreign`. Read what changes: a hint has to be true.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use crate::input::misuse;
use crate::input::switches;

/// Splits a line as a shell does, as far as these lines need it.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut begun) = (String::new(), None, false);
    for letter in line.chars() {
        match (letter, quoted) {
            ('\'' | '"', None) => (quoted, begun) = (Some(letter), true),
            (letter, Some(quote)) if letter == quote => quoted = None,
            (' ', None) if !begun => {}
            (' ', None) => {
                words.push(std::mem::take(&mut word));
                begun = false;
            }
            (letter, _) => {
                word.push(letter);
                begun = true;
            }
        }
    }
    words.extend(begun.then_some(word));
    words
}

fn answered(line: &str) -> String {
    let words = words(line);
    match switches::parse(words.iter().map(OsString::from).collect()) {
        Ok(_) => "taken".to_owned(),
        Err(error) => misuse::hinted(&error, &words[1..]),
    }
}

#[test]
fn each_line_of_other_programs_is_answered() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/input/foreign/tried.txt");
    let there = std::fs::read_to_string(&path).expect("the lines");
    let mut wanted = String::new();
    let mut tried = 0;
    for line in there.lines().filter(|line| !line.starts_with("  ")) {
        writeln!(wanted, "{line}").expect("memory");
        if line.starts_with("bowline ") {
            writeln!(wanted, "  {}", answered(line)).expect("memory");
            tried += 1;
        }
    }
    assert!(tried >= 200, "{tried}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("ours");
        return;
    }
    let different = there.lines().zip(wanted.lines()).find(|(is, should)| is != should);
    assert!(there == wanted, "UPDATE_DOCS=1 writes it again: {different:#?}");
}
