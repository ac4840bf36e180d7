//! `docs/nomad-reference.md` is what the tables of options say. After a change that is meant: `UPDATE_DOCS=1 cargo test -p
//! bowline-nomad --lib`, then read the difference.

use std::fmt::Write as _;
use std::path::Path;

use crate::options::TASK;
use crate::schema::{Field, Form};
use crate::settings::AGENT;

const INTRODUCTION: &str = "# Every option of the Nomad driver

Made from the tables that the driver gives Nomad as its schema; [nomad.md](nomad.md) tells how it all goes together. Sizes
are written as `64M`, times as `10s`, both as text. What is not named here, such as `user`, `resources`, `volume_mount` or
`kill_timeout`, Nomad has for each driver.
";

fn form(field: &Field) -> &'static str {
    match field.form {
        Form::Text => "text",
        Form::Flag => "`true` or `false`",
        Form::Number => "number",
        Form::List => "list of text",
        Form::Table => "block: name = text",
        Form::Block(_) => "block, below",
        Form::Blocks(_) => "blocks, below",
    }
}

fn table(heading: &str, fields: &[Field], path: &str) -> String {
    let mut text = format!("\n## {heading}\n\n| option | form | meaning |\n| --- | --- | --- |\n");
    for field in fields {
        let must = if field.required { "**Must be there.** " } else { "" };
        let default = field.default.map(|value| format!(" By default `{value}`.")).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {} | {must}{}{default} |", field.name, form(field), field.doc);
    }
    for field in fields {
        if let Form::Block(inner) | Form::Blocks(inner) = field.form {
            let path = format!("{path}{}", field.name);
            text += &table(&format!("The block `{path}`"), inner, &format!("{path}."));
        }
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
