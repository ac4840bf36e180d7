//! Finds our shims among containerd's, by its bundles.
//!
//! ```text
//!   DIR/io.containerd.runtime.v2.task/NAMESPACE/ID/              a task's bundle
//!   DIR/io.containerd.sandbox.controller.v1.shim/NAMESPACE/ID/   a sandbox's, from 2.0 on
//!     runtime, shim-binary-path   whether the shim is ours
//!     bootstrap.json, address     where it listens; the same for all bundles of a pod
//!     sandbox, config.json        which pod it belongs to
//! ```
//!
//! A bundle may vanish at any time. Must not: ask containerd, or a shim.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_model::folder::Folder;
use bowline_model::{Doing, Error, Kind, Result};
use serde::Deserialize;

use bowline_containerd::start::group_in;
use bowline_containerd::{BINARY, RUNTIME, address};

/// containerd's default state folder.
const DEFAULT: &str = "/run/containerd";

/// The folders of bundles in the state folder.
const BUNDLES: [&str; 2] = ["io.containerd.runtime.v2.task", "io.containerd.sandbox.controller.v1.shim"];

#[derive(Debug)]
pub struct Containerd {
    path: PathBuf,
    /// Whether the user named the folder. If not, it may be missing or unreadable.
    given: bool,
}

/// A bundle whose shim is ours.
#[derive(Debug)]
pub struct Bundle {
    /// The container's id, unique in its namespace.
    pub id: String,
    pub folder: Folder,
    /// The id of the container's pod.
    pub sandbox: Option<String>,
}

/// A shim's namespace and socket.
pub type Place = (String, PathBuf);

impl Containerd {
    /// Uses the folder `given`, or the default one.
    ///
    /// # Errors
    /// `NotFound` when `given` is not a folder.
    pub fn at(given: Option<PathBuf>) -> Result<Containerd> {
        let Some(path) = given else { return Ok(Containerd { path: DEFAULT.into(), given: false }) };
        let what = || format!("--containerd: cannot look into {}", path.display());
        let meta = fs::metadata(&path).doing(Kind::NotFound, what).map_err(|e| e.hint(hint()))?;
        if !meta.is_dir() {
            return Err(Error::new(Kind::NotFound, format!("{}: it is no folder", what())).hint(hint()));
        }
        Ok(Containerd { path, given: true })
    }

    /// All our shims, each with its bundles in the order of their ids.
    pub fn shims(&self, errors: &mut u64) -> BTreeMap<Place, Vec<Bundle>> {
        let mut shims: BTreeMap<Place, Vec<Bundle>> = BTreeMap::new();
        let mut all = Vec::new();
        if let Err(error) = fs::metadata(&self.path) {
            self.failed(&self.path, &error, errors);
        }
        for folder in BUNDLES.map(|name| self.path.join(name)) {
            for namespace in self.names(&folder, errors) {
                let within = folder.join(&namespace);
                let ids = self.names(&within, errors).into_iter();
                all.extend(ids.map(|id| (namespace.clone(), id.clone(), within.join(id))));
            }
        }
        all.sort();
        for (namespace, id, path) in all {
            match look(&path) {
                Ok(Some((socket, sandbox))) => {
                    let bundle = Bundle { id, folder: Folder::at(path), sandbox };
                    shims.entry((namespace, socket)).or_default().push(bundle);
                }
                Ok(None) => {}
                Err(_) if !path.exists() => {}
                Err(error) => {
                    tracing::warn!(%error, "a task of containerd's is left out");
                    *errors += 1;
                }
            }
        }
        shims
    }

    /// The names in a folder that may be missing.
    fn names(&self, folder: &Path, errors: &mut u64) -> Vec<String> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                // Only the state folder itself must exist.
                if error.kind() != ErrorKind::NotFound {
                    self.failed(folder, &error, errors);
                }
                return Vec::new();
            }
        };
        // containerd's own names are valid text.
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn failed(&self, path: &Path, error: &std::io::Error, errors: &mut u64) {
        // A user who did not ask for containerd's tasks misses nothing.
        if !self.given && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) {
            return;
        }
        tracing::warn!(%error, path = %path.display(), "containerd's tasks are left out");
        *errors += 1;
    }
}

fn hint() -> String {
    format!("name containerd's state folder, as its configuration has it: {DEFAULT} by default")
}

/// A file's trimmed text; `None` if there is no such file.
fn text(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => Ok(Some(text.doing(Kind::Internal, || format!("cannot read {}", path.display()))?.trim().to_owned())),
    }
}

/// The socket of a bundle's shim, and the bundle's pod; `None` if the shim is not ours or has no socket yet.
fn look(bundle: &Path) -> Result<Option<(PathBuf, Option<String>)>> {
    if !is_ours(bundle)? {
        return Ok(None);
    }
    let Some(socket) = socket(bundle)? else { return Ok(None) };
    // The file `sandbox` names the containerd sandbox that the container joins.
    let sandbox = match text(&bundle.join("sandbox"))? {
        Some(sandbox) if !sandbox.is_empty() => Some(sandbox),
        _ => group_in(bundle)?,
    };
    Ok(Some((socket, sandbox)))
}

/// Whether the shim is ours, by the file that our shim writes, or by the binary that containerd recorded.
fn is_ours(bundle: &Path) -> Result<bool> {
    if text(&bundle.join("runtime"))?.is_some_and(|runtime| runtime == RUNTIME) {
        return Ok(true);
    }
    let binary = text(&bundle.join("shim-binary-path"))?;
    Ok(binary.is_some_and(|binary| Path::new(&binary).file_name().is_some_and(|name| name == BINARY)))
}

/// What containerd stores of a shim's bootstrap answer.
#[derive(Deserialize)]
struct Bootstrap {
    address: String,
}

/// The socket of a bundle's shim: from `bootstrap.json`, which containerd writes from 1.7 on, else from `address`,
/// which every version writes.
fn socket(bundle: &Path) -> Result<Option<PathBuf>> {
    let file = bundle.join("bootstrap.json");
    let found = match text(&file)? {
        Some(json) => {
            let bootstrap: Bootstrap =
                serde_json::from_str(&json).doing(Kind::Internal, || format!("{} is damaged", file.display()))?;
            Some(bootstrap.address)
        }
        None => text(&bundle.join("address"))?,
    };
    let Some(found) = found else { return Ok(None) };
    let path = address::path_of(&found).map_err(|error| error.within(bundle.display()))?;
    Ok(Some(path.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The result of `look` for a bundle with these files.
    fn look_at(files: &[(&str, &str)]) -> Result<Option<(PathBuf, Option<String>)>> {
        let bundle = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(bundle.path().join(name), text).unwrap();
        }
        look(bundle.path())
    }

    fn at(socket: &str, sandbox: Option<&str>) -> Result<Option<(PathBuf, Option<String>)>> {
        Ok(Some((socket.into(), sandbox.map(str::to_owned))))
    }

    const OURS: (&str, &str) = ("runtime", RUNTIME);
    const ADDRESS: (&str, &str) = ("address", "unix:///s/a");

    #[test]
    fn a_shim_is_ours_by_its_own_word_or_by_its_binary() {
        assert_eq!(look_at(&[OURS, ADDRESS]), at("/s/a", None));
        assert_eq!(
            look_at(&[("shim-binary-path", "/usr/bin/containerd-shim-bowline-v1\n"), ADDRESS]),
            at("/s/a", None)
        );
        for other in [
            ("runtime", "/usr/bin/runc"),
            ("runtime", "io.containerd.bowline.v12"),
            ("shim-binary-path", "/usr/bin/containerd-shim-runc-v2"),
            ("shim-binary-path", "/usr/bin/containerd-shim-bowline-v1/other"),
            ("shim-binary-path", ""),
        ] {
            assert_eq!(look_at(&[other, ADDRESS]), Ok(None), "{other:?}");
            // A foreign bundle is ignored even if its other files are damaged.
            assert_eq!(look_at(&[other, ("bootstrap.json", "{"), ("config.json", "[")]), Ok(None));
        }
        assert_eq!(look_at(&[ADDRESS]), Ok(None));
        assert_eq!(look(Path::new("/no/such/bundle")), Ok(None));
    }

    #[test]
    fn the_newer_file_says_where_a_shim_is() {
        let newer = ("bootstrap.json", r#"{"version":3,"address":"unix:///s/b","protocol":"ttrpc"}"#);
        assert_eq!(look_at(&[OURS, ADDRESS, newer]), at("/s/b", None));
        assert_eq!(look_at(&[OURS, ("address", "unix:///s/a\n")]), at("/s/a", None));
        assert_eq!(look_at(&[OURS]), Ok(None), "it has none yet");
        for damaged in [
            ("bootstrap.json", ""),
            ("bootstrap.json", "{"),
            ("bootstrap.json", "[]"),
            ("bootstrap.json", r#"{"version":3}"#),
            ("bootstrap.json", r#"{"address":"vsock://3:1024"}"#),
            ("address", ""),
            ("address", "/s/a"),
            ("address", "unix://s/a"),
            ("address", "tcp://127.0.0.1:1"),
        ] {
            assert!(look_at(&[OURS, damaged]).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn a_pod_is_known_by_the_sandbox_else_by_annotations() {
        let config = ("config.json", r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}"#);
        assert_eq!(look_at(&[OURS, ADDRESS, config]), at("/s/a", Some("pod")));
        assert_eq!(look_at(&[OURS, ADDRESS, config, ("sandbox", "other")]), at("/s/a", Some("other")));
        assert_eq!(look_at(&[OURS, ADDRESS, ("config.json", "{}")]), at("/s/a", None));
        assert!(look_at(&[OURS, ADDRESS, ("config.json", "{")]).is_err());
    }

    #[test]
    fn a_folder_that_somebody_names_must_be_there() {
        let there = tempfile::tempdir().unwrap();
        assert!(Containerd::at(Some(there.path().to_owned())).is_ok());
        let file = there.path().join("file");
        fs::write(&file, "").unwrap();
        for wrong in [there.path().join("missing"), file] {
            assert_eq!(Containerd::at(Some(wrong)).unwrap_err().kind(), Kind::NotFound);
        }
        assert!(Containerd::at(None).is_ok());
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_only_to_who_has_named_it() {
        let gone = |given| {
            let mut errors = 0;
            let shims = Containerd { path: "/no/such/folder".into(), given }.shims(&mut errors);
            assert!(shims.is_empty());
            errors
        };
        assert_eq!((gone(true), gone(false)), (1, 0));
        let empty = tempfile::tempdir().unwrap();
        let mut errors = 0;
        Containerd { path: empty.path().to_owned(), given: true }.shims(&mut errors);
        assert_eq!(errors, 0, "containerd has run nothing yet");
    }
}
