//! `--set`: sets single fields of a description, such as `memory.high=48M`.
//!
//!   path=value ─► Setting ─► the description as JSON, changed there ─► the description
//!
//! Whatever the schema has can be set, as no field is named here. Must not: know what a field means.

use std::str::FromStr;

use bowline_spec::{Format, Invalid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A field and what it becomes: `memory.high=48M`, `mounts[0].read_only=true`, `unified."memory.oom.group"=1`.
///
/// The value is read as JSON, and as text where it is none or where the field wants text. `null` removes the field, which
/// then has its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    path: Vec<Step>,
    value: String,
}

/// One step of a path into a description.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Selects the field of a table by its name.
    Key(String),
    /// Selects an element of a list; the number after the last one appends.
    Index(usize),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let wrong = || format!("{text:?} sets nothing; write memory.high=48M, args[0]=x or env.\"A.B\"=x");
        let mut path = Vec::new();
        let mut rest = text;
        loop {
            let (key, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or_else(wrong)?,
                None => rest.split_at(rest.find(['.', '[', '=', '"']).ok_or_else(wrong)?),
            };
            if key.is_empty() {
                return Err(wrong());
            }
            path.push(Step::Key(key.to_owned()));
            rest = after;
            while let Some(index) = rest.strip_prefix('[') {
                let (number, after) = index.split_once(']').ok_or_else(wrong)?;
                path.push(Step::Index(number.parse().map_err(|_| wrong())?));
                rest = after;
            }
            match rest.strip_prefix('.') {
                Some(more) => rest = more,
                None => break,
            }
        }
        let value = rest.strip_prefix('=').ok_or_else(wrong)?;
        Ok(Setting { path, value: value.to_owned() })
    }
}

impl Setting {
    /// What the value may mean, the likelier first.
    fn readings(&self) -> Vec<Value> {
        let text = Value::String(self.value.clone());
        serde_json::from_str(&self.value).ok().into_iter().chain([text]).collect()
    }

    /// The field as it is typed.
    pub fn field(&self) -> String {
        self.path_to(self.path.len() - 1)
    }

    /// The path as it is typed, up to this step.
    fn path_to(&self, last: usize) -> String {
        let mut text = String::new();
        for step in &self.path[..=last] {
            match step {
                Step::Key(key) if text.is_empty() => text.push_str(key),
                Step::Key(key) => text.extend([".", key]),
                Step::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        text
    }

    /// Puts `value` into a description, with the tables and lists on the way.
    fn put(&self, description: &mut Value, value: Value) -> Result<(), Invalid> {
        let mut at = description;
        let last = self.path.len() - 1;
        for (number, step) in self.path.iter().enumerate() {
            let wrong = |reason: String| Invalid::new(self.path_to(number), reason);
            if at.is_null() {
                *at = match step {
                    Step::Key(_) => Value::Object(Map::new()),
                    Step::Index(_) => Value::Array(Vec::new()),
                };
            }
            let remove = number == last && value.is_null();
            at = match (at, step) {
                (Value::Object(table), Step::Key(key)) if remove => {
                    table.remove(key);
                    return Ok(());
                }
                (Value::Object(table), Step::Key(key)) => table.entry(key.as_str()).or_insert(Value::Null),
                (Value::Array(list), Step::Index(index)) => {
                    let length = list.len();
                    if *index > length || remove && *index == length {
                        return Err(wrong(format!("there are {length} of them so far, counted from 0")));
                    }
                    if remove {
                        list.remove(*index);
                        return Ok(());
                    }
                    if *index == length {
                        list.push(Value::Null);
                    }
                    &mut list[*index]
                }
                (_, Step::Key(_)) => return Err(wrong("there is a value without fields of its own".to_owned())),
                (_, Step::Index(_)) => return Err(wrong("there is no list".to_owned())),
            };
        }
        *at = value;
        Ok(())
    }
}

pub type Parse<T> = fn(&str, Format) -> Result<T, Invalid>;

/// Sets one field of a description, whatever it was before. Does not validate it; `parse` says what is wrong with a value.
///
/// # Errors
/// A field that there is not, or a value that it does not take; the field is named as in the description.
pub fn set<T: Serialize + DeserializeOwned>(
    described: &mut T,
    setting: &Setting,
    parse: Parse<T>,
) -> Result<(), Invalid> {
    let unwritable = |error: serde_json::Error| Invalid::new("", format!("cannot be written as JSON: {error}"));
    let before = serde_json::to_value(&*described).map_err(unwritable)?;
    let mut refused = None;
    for value in setting.readings() {
        let mut description = before.clone();
        setting.put(&mut description, value)?;
        let text = description.to_string();
        match serde_json::from_str(&text) {
            Ok(changed) => {
                *described = changed;
                return Ok(());
            }
            Err(error) => refused = refused.or(Some(why(&text, &error, parse))),
        }
    }
    refused.map_or(Ok(()), Err)
}

/// What is wrong with a description, with its field; nobody has seen the text that line and column would be of.
fn why<T>(text: &str, error: &serde_json::Error, parse: Parse<T>) -> Invalid {
    match parse(text, Format::Json) {
        Err(invalid) => Invalid { line: None, column: None, ..invalid },
        Ok(_) => Invalid::new("", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use bowline_spec::Task;
    use proptest::prelude::*;

    use super::*;

    fn read(toml: &str) -> Task {
        bowline_spec::parse(toml, Format::Toml).expect("a description")
    }

    fn apply(task: &mut Task, text: &str) -> Result<(), Invalid> {
        set(task, &text.parse().expect("a setting"), bowline_spec::parse)
    }

    #[track_caller]
    fn refused(text: &str, field: &str, reason: &str) {
        let mut task = read("command = 'a'\nargs = ['x']\npids = 7");
        let before = task.clone();
        let error = apply(&mut task, text).expect_err(text);
        assert_eq!((error.field.as_str(), error.line), (field, None), "{text}: {error}");
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert_eq!(task, before);
    }

    #[test]
    fn fields_of_every_kind_are_set() {
        let mut task = Task::default();
        for text in [
            "command=sleep",
            "args=[\"1\", \"2\"]",
            "args[1]=3",
            "args[2]=true",
            "name=10",
            "memory.limit=64M",
            "cpu.limit=0.5",
            "pids=64",
            "init=true",
            "timeout=5",
            "env.X=1",
            "env.\"A.B\"=a=b",
            "healthcheck.exec=[\"true\"]",
            "mounts[0].type=tmpfs",
            "mounts[0].destination=/scratch",
            "rlimits.nofile=1024:2048",
            "capabilities.drop[0]=KILL",
            "watch.oom.action=stop",
        ] {
            apply(&mut task, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        let expected =
            "command = 'sleep'\nargs = ['1', '3', 'true']\nname = '10'\npids = 64\ninit = true\ntimeout = '5s'
            env = { X = '1', 'A.B' = 'a=b' }\nmemory.limit = '64M'\ncpu.limit = 0.5\nhealthcheck.exec = ['true']
            mounts = [{ type = 'tmpfs', destination = '/scratch' }]\nrlimits.nofile = '1024:2048'
            capabilities.drop = ['KILL']\nwatch.oom.action = 'stop'";
        assert_eq!(task, read(expected));
    }

    #[test]
    fn null_removes_a_field_or_an_element() {
        let mut task = read("command = 'a'\nargs = ['x', 'y']\nmemory.limit = '64M'");
        for text in ["args[0]=null", "memory=null", "pids=null"] {
            apply(&mut task, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        assert_eq!(task, read("command = 'a'\nargs = ['y']"));
    }

    #[test]
    fn what_no_field_takes_is_refused_by_the_field_s_name() {
        refused("memory.limt=64M", "memory.limt", "unknown field `limt`");
        refused("memory.limit=64Q", "memory.limit", "\"64Q\" is not a size");
        refused("memory=64M", "memory", "invalid type");
        refused("init=maybe", "init", "invalid type");
        refused("args[2]=x", "args[2]", "there are 1 of them");
        refused("args[1]=null", "args[1]", "there are 1 of them");
        refused("pids.most=1", "pids.most", "without fields");
        refused("command[0]=1", "command[0]", "no list");
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in ["", "=", "memory", "=x", ".a=1", "a.=1", "a..b=1", "a[=1", "a[x]=1", "a[0]b=1", "a\"b=1", "\"a=1"]
        {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC*|[a-c.\\[\\]0-9=\"]*") {
            if let Ok(setting) = text.parse::<Setting>() {
                let _ = set(&mut Task::default(), &setting, bowline_spec::parse);
            }
        }
    }
}
