//! Fuzz targets: every parser of untrusted bytes, as a function of bytes. `fuzz/` has a program for each, and the test
//! below runs each on its corpus there.
//!
//! Must not: be in an installed binary (feature `fuzzing`).

use std::rc::Rc;

use bowline_executor::Executor;
use bowline_executor::fuzzing as executor;
use bowline_spec::{Format, Host};
use futures::FutureExt as _;

use bowline_protocol::calls::{Connections, Facts, Services as _, Step};
use bowline_protocol::wire;
use bowline_shim::Service;

/// A function that parses arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets, by the name of their program and their corpus.
pub const TARGETS: [(&str, Target); 11] = [
    ("accounts", executor::accounts),
    ("cgroup", executor::cgroup),
    ("cni", executor::cni),
    ("config", executor::config),
    ("description", description),
    ("journal", executor::journal),
    ("mountinfo", executor::mountinfo),
    ("options", bowline_containerd::fuzzing::start),
    ("state", executor::state),
    ("ttrpc", ttrpc),
    ("update", update),
];

/// Runs the target called `name` on `data`.
///
/// # Panics
/// Panics if there is no such target, or if the target panics.
pub fn read(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(other, _)| *other == name);
    let (_, read) = target.unwrap_or_else(|| panic!("{name} is no target"));
    read(data);
}

/// Parses a task's or a sandbox's description as TOML and as JSON. Builds a parsed task for a host, and checks that the
/// description reaches a shim unchanged.
pub fn description(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for format in [Format::Toml, Format::Json] {
        let _ = bowline_spec::parse_sandbox(text, format);
        let Ok(task) = bowline_spec::parse(text, format) else { continue };
        let host = Host { kernel: (6, 12), cgroup_path: "/bowline/a/a".to_owned(), ..Host::default() };
        let _ = bowline_spec::build(&task, &host);
        let sent = serde_json::to_string(&task).expect("a description is JSON");
        let read = bowline_spec::parse(&sent, Format::Json).expect("what was written is read");
        assert_eq!(read, task, "a description changes on its way to the shim");
    }
}

/// Parses an update of a small task, as TOML and as JSON.
pub fn update(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let task = bowline_spec::parse("command = 'true'", Format::Toml).expect("a description");
    for format in [Format::Toml, Format::Json] {
        let Ok(update) = bowline_spec::parse_update(text, format) else { continue };
        let _ = bowline_spec::build_update(&task, &update, &Host::default());
    }
}

/// Parses what comes through a shim's socket: frames, each with a request, which is answered as by a shim that is about
/// to exit. Frames in pieces must give the same answers.
pub fn ttrpc(data: &[u8]) {
    let whole = answers([data]);
    let (first, rest) = data.split_at(data.len() / 2);
    assert_eq!(answers([first, rest]), whole, "frames in two pieces are others");
    assert_eq!(answers(data.chunks(7)), whole, "frames in small pieces are others");
}

/// The answers of a shim that is about to exit to these pieces.
fn answers<'d>(pieces: impl IntoIterator<Item = &'d [u8]>) -> Vec<u8> {
    let service = Rc::new(Service { executor: Executor::gone(), connections: Connections::default() });
    let mut facts = Facts::default();
    for mut piece in pieces {
        while let Some(open) = facts.next_call(&mut piece) {
            bowline_containerd::fuzzing::call(&open.method, &open.payload);
            let stream = open.stream;
            let begun = service.call(&open.service, &open.method, &open.payload);
            let step = begun.map_or_else(|status| Some(Step::Answered(Err(status))), |call| call.now_or_never());
            let Some(Step::Answered(answer)) = step else { continue };
            if let Err(status) = &answer {
                let _ = wire::from_status(&ttrpc::Error::RpcStatus(status.clone()));
            }
            facts.answered(stream, answer);
        }
    }
    facts.unwritten().to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn below(folder: PathBuf) -> Vec<PathBuf> {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("it is listed").path()).collect()
    }

    fn fuzz() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
    }

    #[test]
    fn every_corpus_is_read() {
        for (name, target) in TARGETS {
            let seeds = below(fuzz().join("corpus").join(name));
            assert!(!seeds.is_empty(), "{name} has no corpus");
            for seed in seeds {
                // A panic aborts and names no file, so print the name first.
                println!("{}", seed.display());
                target(&fs::read(seed).expect("a file"));
            }
        }
    }

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        let named = |folder: &str| -> BTreeSet<String> {
            let name = |path: PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            below(fuzz().join(folder)).into_iter().map(name).collect()
        };
        let expected: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(named("targets"), expected);
        assert_eq!(named("corpus"), expected);
        let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).expect("a manifest");
        for name in &expected {
            assert!(manifest.contains(&format!("targets/{name}.rs")), "{name} is not in fuzz/Cargo.toml");
        }
    }
}
