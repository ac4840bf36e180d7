//! The versions of facts. A program reads and writes its own and the one before, so that one step back works.
//!
//! ```text
//!   version 1 ◄─ written for a program that reads no more ─┐
//!             ── read ───────────────────────────────────► form in memory, version 2
//! ```
//!
//! | version | what it lacks, or has in another way |
//! | --- | --- |
//! | 1 | bytes are lists of numbers; there is no logger, no output that a manager can end, no task that waits for its start, and nothing of forgotten execs |
//! | 2 | the form in memory |
//!
//! Types know the form in memory alone; JSON of another version is changed. Must not: read or write anything.

use bowline_error::{Doing as _, Error, Kind, Result};
use bowline_model::json::handover::bytes;
use serde_json::Value;

/// The version of the form in memory.
pub const IN_MEMORY: u32 = 2;

/// The version of this program.
pub fn own() -> u32 {
    #[cfg(feature = "absent")]
    if let Some(stand_in) = stand_in::of_this_program() {
        return stand_in.version;
    }
    IN_MEMORY
}

/// The first and the last version that this program reads and writes.
pub fn known() -> (u32, u32) {
    (own().saturating_sub(1), own())
}

/// The newest version that this program writes and one that reads from `first` to `last` reads.
pub fn for_reader((first, last): (u32, u32)) -> Option<u32> {
    let (oldest, newest) = known();
    Some(newest.min(last)).filter(|version| *version >= oldest.max(first))
}

/// The version of facts, in whatever version they are.
pub fn of(facts: &Value) -> Option<u32> {
    facts.get("facts")?.as_u64()?.try_into().ok()
}

/// Changes facts that were read to the form in memory.
///
/// # Errors
/// `Unsupported` for a version that this program does not read.
pub fn to_memory(facts: &mut Value) -> Result<()> {
    let (first, last) = known();
    match of(facts) {
        Some(version) if (first..=last).contains(&version) => {
            #[cfg(feature = "absent")]
            stand_in::to_memory(version, facts);
            Ok(())
        }
        version => {
            let version = version.map_or("unknown".to_owned(), |version| version.to_string());
            let message = format!("this program reads facts of version {first} to {last}, not of version {version}");
            Err(Error::new(Kind::Unsupported, message))
        }
    }
}

/// Facts in the form in memory, changed to `version`, which is one of [`known`].
///
/// # Errors
/// `Unsupported` when something is known that this version has no place for.
pub fn written(text: Vec<u8>, version: u32) -> Result<Vec<u8>> {
    if version == IN_MEMORY {
        return Ok(text);
    }
    let what = || "cannot write the facts";
    let mut facts = serde_json::from_slice(&text).doing(Kind::Internal, what)?;
    from_memory(&mut facts, version)?;
    serde_json::to_vec(&facts).doing(Kind::Internal, what)
}

fn from_memory(facts: &mut Value, version: u32) -> Result<()> {
    #[cfg(feature = "absent")]
    stand_in::from_memory(version, facts);
    if version < IN_MEMORY {
        to_first(facts)?;
    }
    facts["facts"] = version.into();
    Ok(())
}

fn to_first(facts: &mut Value) -> Result<()> {
    for (id, task) in facts["executor"]["tasks"].as_object().into_iter().flatten() {
        let refused = |what: &str| {
            let message = format!("version 1 of the facts, which the program reads, has no place for {what}");
            Err(Error::new(Kind::Unsupported, message).within(format_args!("task {id}")))
        };
        let execs = task["execs"].as_object().into_iter().flatten().map(|(_, exec)| &exec["pumps"]);
        for pumps in execs.chain([&task["pumps"]]) {
            if !pumps["logger"].is_null() {
                return refused("a logger that takes output");
            }
            if pumps["streams"].as_array().into_iter().flatten().any(|stream| stream.get("relayed").is_some()) {
                return refused("output that a manager can end");
            }
        }
        if !task["held"].is_null() {
            return refused("a task that waits for its start");
        }
        if task["lingering"].as_array().is_some_and(|all| !all.is_empty()) {
            return refused("what an exec has left running");
        }
    }
    bytes_as_lists(facts);
    // JSON within JSON: see `Facts`.
    if let Some(mut manager) =
        facts["manager"].as_str().and_then(|text| serde_json::from_slice::<Value>(text.as_bytes()).ok())
    {
        bytes_as_lists(&mut manager);
        facts["manager"] = manager.to_string().into();
    }
    Ok(())
}

fn bytes_as_lists(value: &mut Value) {
    if let Some(bytes) = bytes::of(value) {
        *value = bytes.into();
        return;
    }
    match value {
        Value::Array(all) => all.iter_mut().for_each(bytes_as_lists),
        Value::Object(fields) => fields.values_mut().for_each(bytes_as_lists),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// For tests only, behind the feature `absent`: a program whose file ends with `facts=N;` stands in for one of version
/// N. A later version has all that this one has under another name. With `facts=N!;` it cannot go on once it was
/// executed, though it has read the facts before.
#[cfg(feature = "absent")]
pub mod stand_in {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, SeekFrom};
    use std::sync::OnceLock;

    use serde_json::{Value, json};

    use super::IN_MEMORY;

    /// What the file of a program says at its end.
    #[derive(Debug, Clone, Copy)]
    pub struct StandIn {
        pub version: u32,
        pub cannot_go_on: bool,
    }

    /// What this program stands in for; `None` where it is itself.
    pub fn of_this_program() -> Option<StandIn> {
        static READ: OnceLock<Option<StandIn>> = OnceLock::new();
        *READ.get_or_init(|| {
            let mut file = File::open("/proc/self/exe").ok()?;
            file.seek(SeekFrom::End(-16)).ok()?;
            let mut end = Vec::new();
            file.read_to_end(&mut end).ok()?;
            let end = String::from_utf8_lossy(&end);
            let (_, said) = end.rsplit_once("facts=")?;
            let said = said.strip_suffix(';')?;
            let cannot_go_on = said.ends_with('!');
            Some(StandIn { version: said.trim_end_matches('!').parse().ok()?, cannot_go_on })
        })
    }

    const MOVED: [&str; 2] = ["executor", "manager"];

    pub fn to_memory(version: u32, facts: &mut Value) {
        if version > IN_MEMORY {
            MOVED.iter().for_each(|name| facts[*name] = facts["later"][*name].take());
        }
    }

    pub fn from_memory(version: u32, facts: &mut Value) {
        if version > IN_MEMORY {
            let [executor, manager] = MOVED.map(|name| facts[name].take());
            facts["later"] = json!({ "executor": executor, "manager": manager });
            if let Some(fields) = facts.as_object_mut() {
                MOVED.iter().for_each(|name| drop(fields.remove(*name)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_version_that_both_know_is_written() {
        let (oldest, newest) = known();
        for (reader, version) in [
            ((newest, newest), Some(newest)),
            ((oldest, newest), Some(newest)),
            ((newest, newest + 1), Some(newest)),
            ((0, oldest), Some(oldest)),
            ((newest + 1, newest + 2), None),
            ((0, oldest - 1), None),
        ] {
            assert_eq!(for_reader(reader), version, "{reader:?}");
        }
    }

    fn facts(task: Value) -> Value {
        json!({ "facts": 2, "executor": { "tasks": { "t": task } }, "manager": "{\"rest\":{\"\\u0000hex\":\"07ff\"}}" })
    }

    #[test]
    fn the_first_version_has_lists_of_numbers() {
        let of = |tail: Value| json!({ "execs": {}, "pumps": { "streams": [] }, "held": null, "tail": tail });
        let mut written = facts(of(json!({ "\u{0}hex": "0010" })));
        from_memory(&mut written, 1).expect("it has a place for this");
        assert_eq!(written["executor"]["tasks"]["t"]["tail"], json!([0, 16]));
        assert_eq!(written["manager"], json!("{\"rest\":[7,255]}"));
        assert_eq!(of_written(&written), 1);
        to_memory(&mut written).expect("it is read");
    }

    fn of_written(facts: &Value) -> u32 {
        of(facts).expect("a version")
    }

    #[test]
    fn what_the_first_version_has_no_place_for_is_refused_by_name() {
        let relayed = json!({ "streams": [{ "relayed": {} }] });
        for (task, what) in [
            (json!({ "pumps": { "logger": {} } }), "a logger"),
            (json!({ "execs": { "1": { "pumps": relayed } } }), "output that a manager can end"),
            (json!({ "held": {} }), "waits for its start"),
            (json!({ "lingering": [{}] }), "left running"),
        ] {
            let error = from_memory(&mut facts(task), 1).expect_err(what);
            assert!(error.kind() == Kind::Unsupported && error.message().contains(what), "{error}");
            assert!(error.message().contains("task t"), "{error}");
        }
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        for (facts, version) in [(json!({ "facts": 0 }), "0"), (json!({ "facts": 3 }), "3"), (json!([]), "unknown")] {
            let error = to_memory(&mut facts.clone()).expect_err(version);
            assert!(error.message().ends_with(&format!("version 1 to 2, not of version {version}")), "{error}");
        }
    }
}
