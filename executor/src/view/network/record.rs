//! The record of a sandbox's networks, so that any process can remove whatever may have been added.
//!
//! Written as a whole, by rename, before each step and after the last, so that it shows that a step which was cut
//! short was begun.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::json::record;
use bowline_model::trust;
use bowline_sys as sys;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bounded_run::Bounds;
use super::list::ConfigList;

const FILE: &str = "networks.json";

/// The contents of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The container's id, as plugins know it.
    pub id: String,
    pub netns: Netns,
    /// The folders with the plugins.
    pub folders: Vec<PathBuf>,
    /// The arguments that plugins get, as pairs.
    pub args: String,
    /// Values for the plugins that ask for them, such as `portMappings`.
    pub capabilities: BTreeMap<String, Value>,
    /// How long each plugin may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// The lists that were begun, in order.
    pub attached: Vec<Attached>,
}

/// A list that was begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// The interface's name inside the sandbox.
    pub interface: String,
    pub list: ConfigList,
    /// How many of its plugins were run, or were about to be.
    pub begun: usize,
    /// How many of its plugins succeeded.
    pub done: usize,
    /// Whether the plugin after these has reported its own failure.
    #[serde(default)]
    pub refused: bool,
    /// The result of the last plugin that succeeded.
    pub result: Option<Value>,
}

/// A namespace, by its path and by the file that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netns {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Netns {
    pub fn at(path: &Path) -> Result<Netns> {
        let of =
            fs::metadata(path).doing(Kind::NotFound, || format!("cannot find network namespace {}", path.display()))?;
        Ok(Netns { path: path.to_owned(), device: of.dev(), inode: of.ino() })
    }

    /// The path, while the namespace is still there. A namespace that has taken its place, such as that of another
    /// process with the same pid, must not be touched.
    pub fn path(&self) -> Option<&Path> {
        let there = fs::metadata(&self.path).is_ok_and(|of| (of.dev(), of.ino()) == (self.device, self.inode));
        there.then_some(&*self.path)
    }
}

impl Kept {
    /// Reads the record in `folder`, if there is one.
    pub fn read(folder: &Path) -> Result<Option<Kept>> {
        let path = folder.join(FILE);
        let text = match trust::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::new(Kind::Internal, format!("cannot read {}: {error}", path.display()))),
        };
        let kept: Kept = record::parse(&text, &path)?;
        let whole = |one: &Attached| !one.list.plugins.is_empty() && one.begun <= one.list.plugins.len();
        if !kept.attached.iter().all(whole) {
            let why = "more plugins were begun than there are";
            return Err(Error::new(Kind::Damaged, format!("{} is damaged: {why}", path.display())));
        }
        Ok(Some(kept))
    }

    /// `bounds`, with a timeout no longer than at ADD.
    pub fn bounds<'a>(&self, bounds: Bounds<'a>) -> Bounds<'a> {
        Bounds { timeout: self.timeout.map_or(bounds.timeout, |own| own.min(bounds.timeout)), ..bounds }
    }

    pub fn forget(folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        sys::remove_if_there(&path).doing(Kind::Internal, || format!("cannot remove {}", path.display()))
    }

    /// Writes the record, or deletes it if nothing is begun.
    pub fn write(&self, folder: &Path) -> Result<()> {
        if self.attached.is_empty() {
            return Kept::forget(folder);
        }
        let path = folder.join(FILE);
        let what = || format!("cannot write {}", path.display());
        let text = record::text(self).doing(Kind::Internal, what)?;
        let temporary = folder.join(format!("{FILE}.new"));
        trust::write(&path, &temporary, &text).doing(Kind::Internal, what)
    }
}
