//! What reads others' bytes, as functions of bytes: `fuzz/` has a program for
//! each, and the test below calls each with the corpus that is kept there.
//!
//! Must not: be in what is installed (feature `fuzzing`).

use std::collections::HashMap;

use bowline_executor::fuzzing as executor;
use bowline_spec::{Format, Host};
use futures::FutureExt as _;
use ttrpc::r#async::{Service, TtrpcContext};
use ttrpc::proto::{Codec as _, GenMessage};

use crate::{containerd, service, wire};

/// Reads bytes that may be any.
pub type Target = fn(&[u8]);

/// All of them, by the names of their programs and of their corpora.
pub const TARGETS: [(&str, Target); 11] = [
    ("accounts", executor::accounts),
    ("cgroup", executor::cgroup),
    ("cni", executor::cni),
    ("config", executor::config),
    ("description", description),
    ("journal", executor::journal),
    ("mountinfo", executor::mountinfo),
    ("options", containerd::fuzzing::start),
    ("state", executor::state),
    ("ttrpc", ttrpc),
    ("update", update),
];

/// Has the target of this name read `data`.
///
/// # Panics
/// Where there is none, or when it does.
pub fn read(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(other, _)| *other == name);
    let (_, read) = target.unwrap_or_else(|| panic!("{name} is no target"));
    read(data);
}

/// A task's or a sandbox's description, as TOML and as JSON; of a task, what it
/// stands for on a host, and itself as a shim gets it.
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

/// An update, as TOML and as JSON, of a small task.
pub fn update(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let task = bowline_spec::parse("command = 'true'", Format::Toml).expect("a description");
    for format in [Format::Toml, Format::Json] {
        let Ok(update) = bowline_spec::parse_update(text, format) else { continue };
        let _ = bowline_spec::build_update(&task, &update, &Host::default());
    }
}

/// What comes through a shim's socket: frames, one behind the other, and in each
/// a request, which is answered as by a shim that is leaving.
pub fn ttrpc(data: &[u8]) {
    thread_local!(static SERVICES: HashMap<String, Service> = service::leaving());
    let mut rest = data;
    // A frame that is too long is passed over.
    while let Some(read) = GenMessage::read_from(&mut rest).now_or_never() {
        let message = match read {
            Ok(message) => message,
            Err(_) if rest.is_empty() => return,
            Err(_) => continue,
        };
        let Ok(request) = ttrpc::Request::decode(&message.payload) else { continue };
        containerd::fuzzing::call(&request.method, &request.payload);
        SERVICES.with(|services| {
            let service = services.get(&request.service);
            let Some(method) = service.and_then(|service| service.methods.get(&request.method)) else { return };
            let context = TtrpcContext { mh: message.header, ..TtrpcContext::default() };
            if let Some(Err(error)) = method.handler(context, request).now_or_never() {
                let _ = wire::from_status(&error);
            }
        });
    }
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
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
    }

    #[test]
    fn every_corpus_is_read() {
        for (name, target) in TARGETS {
            let seeds = below(fuzz().join("corpus").join(name));
            assert!(!seeds.is_empty(), "{name} has no corpus");
            for seed in seeds {
                // A panic aborts, and names no file.
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
