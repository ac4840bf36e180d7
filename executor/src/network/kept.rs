//! What is kept of a sandbox's networks, so that whatever may have been added can
//! be removed by anybody.
//!
//! Written whole, by rename, before each step and after the last: of a step that
//! was cut short it tells that it was begun.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::list::ConfigList;
use super::plugin::Bounds;
use crate::{record, trust};

const FILE: &str = "networks.json";

/// What is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The container's id, as plugins know it.
    pub id: String,
    /// The namespace.
    pub netns: Netns,
    /// Where plugins are.
    pub folders: Vec<PathBuf>,
    /// The pairs that plugins are given.
    pub args: String,
    /// The values of capabilities.
    pub capabilities: BTreeMap<String, Value>,
    /// How long each plugin may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What was begun, in order.
    pub attached: Vec<Attached>,
}

/// A list that was begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// The interface's name inside.
    pub interface: String,
    /// The list.
    pub list: ConfigList,
    /// How many of its plugins were run, or were about to be.
    pub begun: usize,
    /// How many have ended well.
    pub done: usize,
    /// Whether the one after these has said itself that it failed.
    #[serde(default)]
    pub refused: bool,
    /// The result of the last that has ended well.
    pub result: Option<Value>,
}

/// A namespace, by its path and by what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netns {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Netns {
    /// The one at `path`.
    pub fn at(path: &Path) -> Result<Netns> {
        let of =
            fs::metadata(path).doing(Kind::NotFound, || format!("cannot find network namespace {}", path.display()))?;
        Ok(Netns { path: path.to_owned(), device: of.dev(), inode: of.ino() })
    }

    /// Its path, while it is there. What has taken its place, as that of another
    /// process with the same number, is not to be touched.
    pub fn path(&self) -> Option<&Path> {
        let there = fs::metadata(&self.path).is_ok_and(|of| (of.dev(), of.ino()) == (self.device, self.inode));
        there.then_some(&*self.path)
    }
}

impl Kept {
    /// What is kept in `folder`, if anything.
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

    /// Those of `bounds`, the timeout no longer than at ADD.
    pub fn bounds<'a>(&self, bounds: Bounds<'a>) -> Bounds<'a> {
        Bounds { timeout: self.timeout.map_or(bounds.timeout, |own| own.min(bounds.timeout)), ..bounds }
    }

    /// Keeps nothing any more.
    pub fn forget(folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.doing(Kind::Internal, || format!("cannot remove {}", path.display())),
        }
    }

    /// Keeps it; nothing that was begun is no file.
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
