//! The tables of docs/coming-from.md.

use std::path::Path;

use super::{TOOLS, Tool};

/// An answer with its pages as links, seen from their folder.
fn linked(answer: &str) -> String {
    let mut parts = answer.split("docs/");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (page, rest) = part.split_once(".md").expect("a page");
        text += &format!("[{page}.md]({page}.md){rest}");
    }
    text.replace('|', "\\|")
}

fn table(tool: &Tool) -> String {
    let mut text = format!("| {} | bowline |\n| --- | --- |\n", tool.name);
    for (line, ours) in tool.lines {
        text += &format!("| {line} | {ours} |\n");
    }
    for (words, instead) in tool.words {
        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        text += &format!("| {} | {} |\n", words.join(", "), linked(instead));
    }
    text
}

#[test]
fn the_page_has_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coming-from.md");
    let there = std::fs::read_to_string(&path).expect("the page");
    let mut page = there.clone();
    for tool in TOOLS {
        let (begin, end) = (format!("<!-- {} -->\n", tool.name), format!("<!-- /{} -->", tool.name));
        let (before, rest) = page.split_once(&begin).expect("the table begins");
        let (_, after) = rest.split_once(&end).expect("the table ends");
        page = [before, &begin, &table(tool), &end, after].concat();
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("ours");
        return;
    }
    assert!(there == page, "UPDATE_DOCS=1 cargo test -p bowline --lib foreign writes docs/coming-from.md again");
}
