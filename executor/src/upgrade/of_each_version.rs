//! Facts and records that earlier versions wrote can still be read. `scripts/keep-facts` made these files with the programs
//! of that version. Before you change the facts, run it once more, into a folder with the next number.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bowline_model::folder::{Folder, Record};
use bowline_model::json::record;
use bowline_model::sandbox::SandboxRecord;
use serde::Serialize;
use serde_json::Value;

use crate::supervise::exec::slots::ExecSlots;

/// The files of this name, of every version.
fn kept(name: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).expect("a folder of the repository").map(|entry| entry.expect("readable").path()).collect()
    };
    let versions = entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/facts"));
    let files = versions.iter().flat_map(|version| entries(version)).map(|of| of.join(name));
    files.filter(|file| file.exists()).collect()
}

/// Fails where `now`, which was read from `then`, has lost or changed anything of it.
#[track_caller]
fn assert_whole(then: &Value, now: &Value, at: &str) {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            for (key, then) in then {
                // What is as by default may be left out.
                let now = now.get(key).unwrap_or(&Value::Null);
                let is_nothing = [Value::Null, Value::Bool(false)].contains(then);
                assert!(is_nothing || !now.is_null(), "{at}.{key} is lost");
                if !is_nothing {
                    assert_whole(then, now, &format!("{at}.{key}"));
                }
            }
        }
        // A set of capabilities has no order.
        (Value::Array(then), Value::Array(now)) if then.iter().all(Value::is_string) => {
            let names = |all: &[Value]| all.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
            assert_eq!(names(then), names(now), "{at}");
        }
        (Value::Array(then), Value::Array(now)) if then.len() == now.len() => {
            then.iter().zip(now).enumerate().for_each(|(index, (then, now))| {
                assert_whole(then, now, &format!("{at}[{index}]"));
            });
        }
        (then, now) => assert_eq!(then, now, "{at}"),
    }
}

fn assert_read(file: &Path, text: &[u8], read: &impl Serialize) {
    let mut then: Value = serde_json::from_slice(text).expect("JSON");
    // Each file says of which form it is.
    then.as_object_mut().and_then(|fields| fields.remove("version")).expect("a version");
    assert_whole(&then, &serde_json::to_value(read).expect("JSON"), &file.display().to_string());
}

#[test]
fn facts_for_the_program_that_takes_over() {
    let files = kept("facts.json");
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        let text = fs::read(&file).expect("readable");
        let facts = super::parse_facts(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_read(&file, &text, &facts);
    }
}

#[test]
fn records_for_the_shim_that_comes_after_a_death() {
    for file in kept("task.json") {
        let text = fs::read(&file).expect("readable");
        let record: Record = record::parse(&text, &file).unwrap_or_else(|error| panic!("{error}"));
        // It has all that a shim needs, but is of another boot than this one.
        let adoptable = record.adoptable();
        assert!(
            adoptable.is_ok() || adoptable == Err("it is of an earlier boot of this host, by `identity` in its record"),
            "{adoptable:?}"
        );
        assert_read(&file, &text, &record);
    }
    for file in kept("sandbox.json") {
        let text = fs::read(&file).expect("readable");
        let record: SandboxRecord = record::parse(&text, &file).unwrap_or_else(|error| panic!("{error}"));
        assert_read(&file, &text, &record);
    }
    assert!(kept("task.json").len() >= 7 && !kept("sandbox.json").is_empty());
}

#[test]
fn slots_of_execs_for_the_shim_that_comes_after_a_death() {
    let files = kept("execs");
    assert!(files.len() >= 7, "{files:?}");
    for file in files {
        // Whoever takes them over clears those that are torn, or were stored again.
        let folder = tempfile::tempdir().expect("a folder");
        fs::copy(&file, folder.path().join("execs")).expect("readable");
        let left = ExecSlots::of(&Folder::at(folder.path())).take_over();
        if file.ends_with("exec/execs") {
            // The second has ended, and that was told: its slot is free.
            let [runs] = &left.execs[..] else { panic!("{}: {left:?}", file.display()) };
            assert!((runs.number, left.begun) == (1, 2) && left.events > 0, "{left:?}");
            assert!(runs.pid.is_some() && runs.deadline.is_some() && runs.group == Some(1), "{runs:?}");
        }
    }
}
