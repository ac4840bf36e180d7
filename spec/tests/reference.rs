//! `docs/reference.md` is what the schema of the task description says, field
//! by field, and `docs/sandbox-reference.md` what that of a sandbox's does. After
//! a change that is meant: `UPDATE_DOCS=1 cargo test -p bowline-spec --test
//! reference`, then read the difference.
//!
//! What is said there stands in the doc comments of `spec/src/task.rs`, of
//! `spec/src/task/sandbox.rs`, and of the types that they lead to.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

const TASK: &str = "# Every field of a task description

`bowline schema` prints this for editors; [task-description.md](task-description.md) is the guide. A dot leads into a
table: `cpu.limit = 2` is `limit` in the table `cpu`. A field without a default has no effect until it is set.
";

const SANDBOX: &str = "# Every field of a sandbox's description

`bowline schema --sandbox` prints this for editors; [sandboxes.md](sandboxes.md) is the guide. A dot leads into a
table: `cpu.limit = 2` is `limit` in the table `cpu`. A field without a default has no effect until it is set.
";

/// Definitions that another page describes, each with its link there.
type Elsewhere = [(&'static str, &'static str)];

const OF_TASKS: &Elsewhere = &[
    ("Task", "[task](reference.md)"),
    ("Cpu", "[table](reference.md#cpu)"),
    ("Memory", "[table](reference.md#memory)"),
    ("Network", "[table](reference.md#network)"),
];

/// Behind the path of what there may be many of.
const EACH: &str = "[]";

/// More values than this are listed under Forms instead of in a row.
const FEW: usize = 4;

/// Cells that lead elsewhere, and the heading of that place.
struct Reference<'a> {
    definitions: &'a Map<String, Value>,
    elsewhere: &'static Elsewhere,
    /// Tables in the order in which they are met, with every path to each.
    tables: Vec<(&'a str, Vec<String>)>,
    /// Names of forms that were met.
    forms: Vec<&'a str>,
}

impl<'a> Reference<'a> {
    fn definition(&self, reference: &'a Value) -> (&'a str, &'a Value) {
        let name = reference.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
        (name, &self.definitions[name])
    }

    /// How a value is written. `path` is the field's.
    fn form(&mut self, schema: &'a Value, path: &str) -> String {
        if let Some(reference) = schema.get("$ref") {
            return self.referred(reference, path);
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(all) = schema.get(choice).and_then(Value::as_array) {
                let some = all.iter().filter(|one| one["type"] != "null");
                return some.map(|one| self.form(one, path)).collect::<Vec<_>>().join(" or ");
            }
        }
        if let Some(value) = schema.get("const") {
            return quoted(value);
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return values.iter().map(quoted).collect::<Vec<_>>().join(" or ");
        }
        let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
        let names = types.iter().filter_map(Value::as_str).filter(|name| *name != "null");
        names.map(|name| self.plain(name, schema, path)).collect::<Vec<_>>().join(" or ")
    }

    fn plain(&mut self, kind: &str, schema: &'a Value, path: &str) -> String {
        match kind {
            "string" => "text".to_owned(),
            "boolean" | "integer" | "number" => kind.to_owned(),
            "array" => format!("list: {}", self.form(&schema["items"], &format!("{path}{EACH}"))),
            "object" => {
                format!("table: name = {}", self.form(&schema["additionalProperties"], &format!("{path}{EACH}")))
            }
            other => panic!("{path} has the type {other}, of which nobody knows how it is written"),
        }
    }

    fn referred(&mut self, reference: &'a Value, path: &str) -> String {
        let (name, definition) = self.definition(reference);
        if let Some((_, page)) = self.elsewhere.iter().find(|(elsewhere, _)| *elsewhere == name) {
            return (*page).to_owned();
        }
        if definition.get("properties").is_some() {
            match self.tables.iter_mut().find(|(known, _)| *known == name) {
                Some((_, paths)) => paths.push(path.to_owned()),
                None => self.tables.push((name, vec![path.to_owned()])),
            }
            return "table".to_owned();
        }
        let values = definition.get("enum").or(definition.get("oneOf")).and_then(Value::as_array).map(Vec::len);
        // What is made of other forms is told by those.
        if values.is_some_and(|values| values <= FEW) || definition.get("anyOf").is_some() {
            return self.form(definition, path);
        }
        if !self.forms.contains(&name) {
            self.forms.push(name);
        }
        format!("[{}](#forms)", words(name))
    }

    /// A table of the fields of `schema`, whose own are at `prefix`.
    fn fields(&mut self, schema: &'a Value, prefix: &str) -> String {
        let mut text = "| field | form | meaning |\n| --- | --- | --- |\n".to_owned();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, field) in schema["properties"].as_object().unwrap() {
            let path = format!("{prefix}{name}");
            let form = self.form(field, &path);
            let must = if required.iter().any(|r| r == name) { "**Required.** " } else { "" };
            let meaning = cell(field.get("description").and_then(Value::as_str).unwrap_or_default());
            assert!(!meaning.is_empty(), "{path} has no doc comment");
            writeln!(text, "| `{path}` | {} | {must}{meaning} |", cell(&form)).unwrap();
        }
        text
    }
}

/// `ByteSize` as `byte size`.
fn words(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn quoted(value: &Value) -> String {
    format!("`{value}`")
}

/// Text as a cell of a table: one line, and no bar of its own.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn reference(head: &str, elsewhere: &'static Elsewhere, schema: &Value) -> String {
    let definitions = schema["$defs"].as_object().unwrap();
    let mut reference = Reference { definitions, elsewhere, tables: Vec::new(), forms: Vec::new() };
    let mut text = format!("{head}\n{}", reference.fields(schema, ""));
    let mut next = 0;
    // Each may lead to more.
    while let Some((name, paths)) = reference.tables.get(next).cloned() {
        let definition = &definitions[name];
        let many = paths[0].ends_with(EACH);
        let prefix = if many { String::new() } else { format!("{}.", paths[0]) };
        let fields = reference.fields(definition, &prefix);
        let places: Vec<String> = paths.iter().map(|path| format!("`{}`", path.trim_end_matches(EACH))).collect();
        let (places, each) = (places.join(", "), if many { ": each" } else { "" });
        let about = cell(definition.get("description").and_then(Value::as_str).unwrap_or_default());
        write!(text, "\n## {places}{each}\n\n").unwrap();
        if !about.is_empty() {
            writeln!(text, "{about}\n").unwrap();
        }
        text += &fields;
        next += 1;
    }
    text += "\n## Forms\n\n| form | meaning | such as |\n| --- | --- | --- |\n";
    let mut forms = reference.forms.clone();
    forms.sort_unstable();
    for name in forms {
        let definition = &definitions[name];
        let examples = definition.get("examples").or(definition.get("enum")).and_then(Value::as_array);
        let examples: Vec<String> = examples.into_iter().flatten().map(quoted).collect();
        let meaning = cell(definition["description"].as_str().unwrap());
        writeln!(text, "| {} | {meaning} | {} |", words(name), examples.join(", ")).unwrap();
    }
    text
}

#[test]
fn the_reference_is_what_the_schema_says() {
    is_what_the_schema_says("reference.md", TASK, &[], &bowline_spec::schema());
}

#[test]
fn the_reference_of_sandboxes_is_what_their_schema_says() {
    is_what_the_schema_says("sandbox-reference.md", SANDBOX, OF_TASKS, &bowline_spec::sandbox_schema());
}

#[track_caller]
fn is_what_the_schema_says(page: &str, head: &str, elsewhere: &'static Elsewhere, schema: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = reference(head, elsewhere, schema);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let different = committed.lines().zip(text.lines()).find(|(is, should)| is != should);
    assert!(
        committed == text,
        "docs/{page} is not what the schema says; UPDATE_DOCS=1 writes it again. First difference: {different:#?}"
    );
}

#[test]
fn a_name_of_a_type_becomes_words() {
    assert_eq!(words("ByteSize"), "byte size");
}
