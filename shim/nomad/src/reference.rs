//! `docs/nomad-reference.md` is what the tables of options say. After a change that is meant: `UPDATE_DOCS=1 cargo test -p
//! bowline-nomad --lib`, then read the difference.

use std::fmt::Write as _;
use std::path::Path;

use crate::options::TASK;
use crate::schema::{Field, Form};
use crate::settings::AGENT;

const INTRODUCTION: &str = "# Every option of the Nomad driver

[nomad.md](nomad.md) is the guide. Write sizes as `64M` and times as `10s`, both as text. Other options, such as `user`,
`resources`, `volume_mount` or `kill_timeout`, are Nomad's own, for every driver.
";

fn form(field: &Field) -> &'static str {
    match field.form {
        Form::Text => "text",
        Form::Flag => "boolean",
        Form::Number => "number",
        Form::List => "list",
        Form::Table => "block: name = text",
        Form::Block(_) => "block",
        Form::Blocks(_) => "blocks",
    }
}

/// The tables of `fields` and of the blocks among them. Blocks with the same options share one.
fn table(heading: &str, fields: &[Field], path: &str) -> String {
    let mut text = format!("\n## {heading}\n\n| option | form | meaning |\n| --- | --- | --- |\n{}", rows(fields));
    let mut blocks: Vec<(Vec<String>, &[Field])> = Vec::new();
    for field in fields {
        let (Form::Block(inner) | Form::Blocks(inner)) = field.form else { continue };
        let name = format!("{path}{}", field.name);
        match blocks.iter_mut().find(|(_, known)| rows(known) == rows(inner)) {
            Some((names, _)) => names.push(name),
            None => blocks.push((vec![name], inner)),
        }
    }
    for (names, inner) in blocks {
        let heading: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        text += &table(&heading.join(", "), inner, &format!("{}.", names[0]));
    }
    text
}

fn rows(fields: &[Field]) -> String {
    let mut text = String::new();
    for field in fields {
        let must = if field.required { "**Required.** " } else { "" };
        let default = field.default.map(|value| format!(" By default `{value}`.")).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {} | {must}{}{default} |", field.name, form(field), field.doc);
    }
    text
}

#[test]
fn the_page_has_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nomad-reference.md");
    let agent = table("In the agent's configuration", AGENT, "");
    let wanted = [INTRODUCTION, &agent, &table("In a task's `config`", TASK, "")].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(path, wanted).expect("the page is ours");
    }
    let there = std::fs::read_to_string(&path).expect("the page");
    assert_eq!(there, wanted, "UPDATE_DOCS=1 cargo test -p bowline-nomad --lib writes it again");
}
