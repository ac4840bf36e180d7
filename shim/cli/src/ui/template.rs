//! `--format`: fills a template with the fields of a task.
//!
//! Uses Jinja syntax (minijinja), and accepts Docker's leading dot and `json`: `{{ exit.exit_code }}`, `{{.pid}}`,
//! `{{json .labels}}`, `{{json .}}`. Null prints nothing; a list or an object prints as JSON. A field that no task has is
//! an error: each path in the template is checked against the task's data and the schema of the description.

use std::io::IsTerminal as _;

use bowline_model::{Doing, Error, Kind, Result};
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;

/// The name by which a template has all fields.
const ALL: &str = "_all";

/// A template that was parsed without an error.
pub struct Template {
    environment: Environment<'static>,
    text: String,
}

impl Template {
    /// Parses the text of `--format`.
    ///
    /// # Errors
    /// `Usage` if the template is invalid.
    pub fn parse(text: &str) -> Result<Template> {
        let mut environment = Environment::new();
        environment.add_filter("json", |value: Value| Ok::<_, minijinja::Error>(json(&value)));
        // Chainable lets a template go below a null; `is_known` rejects unknown fields.
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        environment.set_formatter(|out, _, value| {
            match value.kind() {
                ValueKind::None | ValueKind::Undefined => {}
                ValueKind::Map | ValueKind::Seq => out.write_str(&json(value))?,
                _ => write!(out, "{value}")?,
            }
            Ok(())
        });
        // As docker has it: a shell leaves these as they are.
        let text = as_jinja(&text.replace("\\t", "\t").replace("\\n", "\n"));
        let template = Template { environment, text };
        template.environment.template_from_str(&template.text).map_err(|error| wrong(&error))?;
        Ok(template)
    }

    /// Fills the template with the fields of `subject`.
    ///
    /// # Errors
    /// `Usage`, naming a field that does not exist.
    pub fn fill<T: Serialize>(&self, subject: &T) -> Result<String> {
        let subject = serde_json::to_value(subject).doing(Kind::Internal, || "cannot write JSON")?;
        let template = self.environment.template_from_str(&self.text).map_err(|error| wrong(&error))?;
        let mut named: Vec<String> = template.undeclared_variables(true).into_iter().collect();
        named.sort();
        let global = |path: &str| {
            path == ALL || self.environment.globals().any(|(name, _)| path.split('.').next() == Some(name))
        };
        if let Some(path) = named.iter().find(|path| !global(path) && !is_known(&subject, path)) {
            let hint = match subject.as_object() {
                Some(fields) => format!("the fields are {}", fields.keys().cloned().collect::<Vec<_>>().join(", ")),
                None => "`bowline inspect ID` prints all fields".to_owned(),
            };
            return Err(Error::new(Kind::Usage, format!("--format: there is no field {path}")).hint(hint));
        }
        let subject = Value::from(Serde(&subject));
        let fields = minijinja::context! { _all => subject.clone(), ..subject };
        let text = template.render(fields).map_err(|error| wrong(&error))?;
        // Text from a task must not control a terminal; a script gets it unchanged.
        let harmless = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
        Ok(if std::io::stdout().is_terminal() { text.chars().filter(harmless).collect() } else { text })
    }
}

fn json(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn wrong(error: &minijinja::Error) -> Error {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    Error::new(Kind::Usage, format!("--format: {detail}"))
        .hint("write fields as {{ status }} or {{ exit.exit_code }}; `bowline inspect ID` prints all")
}

/// Rewrites `{{.pid}}` as `{{pid}}`, and `{{json .pid}}` as `{{pid|json}}`.
fn as_jinja(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start + 2);
        out += before;
        let word = after.trim_start();
        out += &after[..after.len() - word.len()];
        if let Some(path) = word.strip_prefix("json ").and_then(|of| of.trim_start().strip_prefix('.')) {
            let length = path.find(|c: char| c.is_whitespace() || "}|-".contains(c)).unwrap_or(path.len());
            out += if length == 0 { ALL } else { &path[..length] };
            out += "|json";
            rest = &path[length..];
            continue;
        }
        let dotted = word.strip_prefix('.').filter(|field| field.starts_with(|c: char| c.is_alphabetic() || c == '_'));
        rest = dotted.unwrap_or(word);
    }
    out + rest
}

/// Whether `path` leads to a value in `subject`, or to a field that may exist but is not set now.
fn is_known(subject: &serde_json::Value, path: &str) -> bool {
    let mut value = subject;
    let mut parts = path.split('.');
    for (depth, part) in parts.by_ref().enumerate() {
        match value {
            serde_json::Value::Object(fields) => match fields.get(part) {
                Some(field) => value = field,
                None if depth == 0 => return false,
                // The description contains only the fields that were set.
                None => return in_schema(path) || path.starts_with("labels."),
            },
            serde_json::Value::Null => return true,
            _ => return false,
        }
    }
    true
}

/// Whether `path` is a field of the description: `task.memory.limit`.
fn in_schema(path: &str) -> bool {
    let Some(path) = path.strip_prefix("task.") else { return false };
    let Ok(schema) = serde_json::to_value(bowline_spec::schema()) else { return false };
    let parts: Vec<&str> = path.split('.').collect();
    leads(&schema, &schema, &parts)
}

fn leads(schema: &serde_json::Value, place: &serde_json::Value, parts: &[&str]) -> bool {
    let Some((first, rest)) = parts.split_first() else { return true };
    let referred = place["$ref"].as_str().and_then(|to| schema.pointer(to.strip_prefix('#')?));
    let choices = ["anyOf", "oneOf", "allOf"].iter().flat_map(|name| place[*name].as_array().into_iter().flatten());
    let property = place.pointer("/properties").and_then(|all| all.get(*first));
    let free = Some(&place["additionalProperties"]).filter(|any| any.is_object());
    property.or(free).is_some_and(|next| leads(schema, next, rest))
        || referred.into_iter().chain(choices).any(|next| leads(schema, next, parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(template: &str) -> Result<String> {
        let subject = json!({
            "id": "web", "pid": 7, "exit": null, "labels": {"a": "b"},
            "task": {"command": "sleep", "args": ["1"]},
        });
        Template::parse(template)?.fill(&subject)
    }

    #[test]
    fn fields_are_filled_in_with_or_without_a_dot() {
        for (template, text) in [
            ("{{ id }}", "web"),
            ("{{id}}: {{.pid}}", "web: 7"),
            ("{{ .pid }} {{.task.command}}", "7 sleep"),
            ("{{ task.args }}", "[\"1\"]"),
            ("{{ task.args | json }}", "[\"1\"]"),
            ("{{json .id}} {{ json .task.args }}", "\"web\" [\"1\"]"),
            ("{{json .labels -}} x", "{\"a\":\"b\"}x"),
            ("{{json .exit}}", "null"),
            ("{% if pid %}up{% endif %}", "up"),
            ("{% for a in task.args %}<{{ a }}>{% endfor %}", "<1>"),
            ("a.b", "a.b"),
        ] {
            assert_eq!(filled(template).expect(template), text, "{template}");
        }
    }

    #[test]
    fn all_fields_are_one_value() {
        let all: serde_json::Value = serde_json::from_str(&filled("{{json .}}").expect("all")).expect("JSON");
        assert_eq!((&all["id"], &all["exit"], all.get(ALL)), (&json!("web"), &serde_json::Value::Null, None));
    }

    #[test]
    fn what_is_not_there_now_is_empty() {
        for template in ["{{ exit.exit_code }}", "{{ task.memory.limit }}", "{{ labels.x }}", "{{ task.env.X }}"] {
            assert_eq!(filled(template).expect(template), "", "{template}");
        }
    }

    #[test]
    fn a_field_that_no_task_has_is_named() {
        for (template, name) in [
            ("{{ pidd }}", "pidd"),
            ("{{.id}} {{.task.comand}}", "task.comand"),
            ("{{ task.memory.limits }}", "task.memory.limits"),
            ("{{ id.x }}", "id.x"),
            ("{{json .idd}}", "idd"),
        ] {
            let error = filled(template).expect_err(template);
            assert_eq!(error.kind(), Kind::Usage);
            assert_eq!(error.message(), format!("--format: there is no field {name}"));
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for template in ["{{", "{{ id", "{{ id | nonsense }}", "{% if %}"] {
            assert_eq!(filled(template).expect_err(template).kind(), Kind::Usage, "{template}");
        }
    }
}
