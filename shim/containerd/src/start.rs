//! `start`: ensures that a serving process runs for the container's group, and replies with its address.
//!
//! ```text
//!   stdin, config.json ─► group ─► address ─► served already? ─► reply
//!                                     └─► listen ─► serving process ─► reply
//! ```
//!
//! containerd reads the reply from stdout and stderr together, so a successful `start` prints nothing else. A failed
//! one removes everything that it created.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use bowline_executor::internal::{LARGEST_CONFIG, read_regular_file};
use bowline_model::{Doing, Kind, Result};
use serde::Deserialize;

use super::address::{self, Bound};
use super::background::{self, Background};
use super::bootstrap;
use super::invocation::{Invocation, Privileged};
use super::options::Options;
use super::stdout::say;

/// Annotations that name a container's group; the first one found counts.
pub const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];

/// Starts the serving process of the container's group, unless it already runs.
///
/// # Errors
/// `Usage` and `BadSpec` for bad input from containerd; `Internal`, `NotFound` and `Unsupported` for what this host
/// cannot do.
pub fn run(mut invocation: Invocation) -> Result<()> {
    let given = bootstrap::parse(&bootstrap::read(std::io::stdin().lock())?, &mut invocation)?;
    // Report bad options now rather than at the first call.
    let options = Options::parse(given.options.as_ref())?;
    invocation.privileged = Privileged { ports: options.privileged_ports, icmp: options.privileged_icmp };
    let group = group(&invocation)?;
    let root = given.socket_dir.as_deref().unwrap_or(Path::new(address::ROOT));
    let address = address::of(root, &invocation.address, &invocation.namespace, &group)?;
    let reply = bootstrap::reply(given.form, &address)?;

    // Declared first, so that it is undone last, after the listener is closed.
    let mut made = Made::default();
    let listener = match address::bind(&address)? {
        Bound::Served => None,
        Bound::Ours(listener) => {
            made.socket = Some(&address);
            Some(listener)
        }
    };
    made.file = write_address(&invocation.bundle, &address)?;
    let Some(listener) = listener else {
        say(&reply)?;
        made.keep();
        return Ok(());
    };
    background::settle(&invocation, options.shim_cgroup.as_deref())?;
    let serving = Background::start(&invocation, &address, listener)?;
    say(&reply)?;
    serving.let_go();
    made.keep();
    Ok(())
}

/// Files to remove on drop, unless they are kept.
#[derive(Default)]
struct Made<'a> {
    socket: Option<&'a str>,
    file: Option<PathBuf>,
}

impl Made<'_> {
    fn keep(mut self) {
        self.socket = None;
        self.file = None;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // Ignore errors: the first error is the one to report.
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
        if let Some(address) = self.socket {
            // Another process may have found the address unserved, and serve it by now.
            let _ = address::remove_stale(address);
        }
    }
}

/// Writes the address where containerd looks for it, atomically.
fn write_address(bundle: &Path, address: &str) -> Result<Option<PathBuf>> {
    let file = address::file_in(bundle);
    let what = || format!("cannot write {}", file.display());
    let mut whole = tempfile::NamedTempFile::new_in(bundle).doing(Kind::Internal, what)?;
    whole.write_all(address.as_bytes()).doing(Kind::Internal, what)?;
    whole.persist(&file).doing(Kind::Internal, what)?;
    Ok(Some(file))
}

/// The part of a configuration that names the group.
#[derive(Deserialize)]
struct Annotated {
    annotations: Option<BTreeMap<String, String>>,
}

/// The container's group: by its annotations, else a group of its own.
fn group(invocation: &Invocation) -> Result<String> {
    Ok(group_in(&invocation.bundle)?.unwrap_or_else(|| invocation.id.clone()))
}

/// The group that a bundle's annotations name, if they do.
///
/// # Errors
/// `BadSpec` for a configuration that exists and cannot be read.
pub fn group_in(bundle: &Path) -> Result<Option<String>> {
    let config = bundle.join("config.json");
    let text = match read_regular_file(&config, LARGEST_CONFIG) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.doing(Kind::BadSpec, || format!("cannot read {}", config.display()))?,
    };
    let annotated: Annotated =
        serde_json::from_slice(&text).doing(Kind::BadSpec, || format!("{} is no configuration", config.display()))?;
    let mut annotations = annotated.annotations.unwrap_or_default();
    Ok(GROUPS.iter().find_map(|name| annotations.remove(*name)).filter(|group| !group.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_of(config: Option<&str>) -> Result<String> {
        let bundle = tempfile::tempdir().unwrap();
        if let Some(config) = config {
            std::fs::write(bundle.path().join("config.json"), config).unwrap();
        }
        group(&Invocation { id: "i".to_owned(), bundle: bundle.path().to_owned(), ..Invocation::default() })
    }

    #[test]
    fn who_serves_in_place_of_a_start_that_failed_keeps_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let address = address::of(folder.path(), "/run/c.sock", "n", "g").unwrap();
        let bind = || match address::bind(&address).unwrap() {
            Bound::Ours(listener) => listener,
            Bound::Served => panic!("nobody serves"),
        };
        let made = Made { socket: Some(&address), file: None };
        drop(bind());
        let other = bind();
        drop(made);
        let path = address::path_of(&address).unwrap();
        std::os::unix::net::UnixStream::connect(path).expect("it serves");
        drop(other);
        drop(Made { socket: Some(&address), file: None });
        assert!(!path.exists(), "nobody serves any more");
    }

    #[test]
    fn the_first_annotation_that_names_a_group_counts() {
        let both = r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "g"}}"#;
        assert_eq!(group_of(Some(both)).as_deref(), Ok("g"));
        let pod = r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "other": "x"}}"#;
        assert_eq!(group_of(Some(pod)).as_deref(), Ok("pod"));
        for alone in [None, Some("{}"), Some(r#"{"annotations": null}"#), Some(r#"{"annotations": {"a": "b"}}"#)] {
            assert_eq!(group_of(alone).as_deref(), Ok("i"), "{alone:?}");
        }
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_not_taken_for_none() {
        for bad in ["", "not JSON", "[]", r#"{"annotations": {"a": 1}}"#, r#"{"annotations": []}"#] {
            assert_eq!(group_of(Some(bad)).map_err(|e| e.kind()), Err(Kind::BadSpec), "{bad:?}");
        }
    }
}
