//! The devices that files of CDI describe: in all folders, of which a later one goes before an earlier one.
//!
//! Must not: give anything to a task.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bowline_model::{Error, Kind, Result, trust};
use bowline_spec::CdiDevice;

use super::file::{self, Device, Spec};
use super::gpus;

/// Where files are: those of an administrator, then those that programs write.
pub const FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The most files of one folder.
const MOST_FILES: usize = 4096;

/// The most names in a message.
const MOST_NAMES: usize = 16;

/// A file that counts.
pub struct File {
    pub path: PathBuf,
    folder: usize,
    pub spec: Spec,
}

impl File {
    /// The device of this name, with the file.
    fn device(&self, wanted: &CdiDevice) -> Option<(&File, &Device)> {
        let mut devices = self.spec.devices.iter().filter(|_| self.spec.kind == wanted.kind);
        devices.find(|device| device.name == wanted.name).map(|device| (self, device))
    }
}

/// All files of some folders.
pub struct Known {
    folders: Vec<PathBuf>,
    files: Vec<File>,
    /// What does not count, and why.
    left_out: Vec<(PathBuf, String)>,
}

impl Known {
    /// Reads the files of these folders.
    pub fn of(folders: &[PathBuf]) -> Known {
        let folders: Vec<PathBuf> =
            folders.iter().map(|folder| std::path::absolute(folder).unwrap_or(folder.clone())).collect();
        let mut known = Known { folders: Vec::new(), files: Vec::new(), left_out: Vec::new() };
        for (number, folder) in folders.iter().enumerate() {
            if let Err(why) = known.read(number, folder) {
                known.left_out.push((folder.clone(), why));
            }
        }
        Known { folders, ..known }
    }

    fn read(&mut self, number: usize, folder: &Path) -> std::result::Result<(), String> {
        if let Some((found, why)) = trust::weak_spot(folder) {
            return Err(if found == folder { why } else { format!("{} {why}", found.display()) });
        }
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| error.to_string())?,
        };
        let is_file = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "yaml");
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect();
        paths.retain(|path| is_file(path) && !path.is_dir());
        if paths.len() > MOST_FILES {
            return Err(format!("it has more than {MOST_FILES} files"));
        }
        paths.sort();
        for path in paths {
            match file::read(&path) {
                Ok(spec) => self.files.push(File { path, folder: number, spec }),
                Err(why) => self.left_out.push((path, why)),
            }
        }
        Ok(())
    }

    /// Which files do not count, each with the reason; `None` if all do.
    pub fn left_out(&self) -> Option<String> {
        let all = self.left_out.iter().map(|(path, why)| format!("{}: {why}", path.display()));
        (!self.left_out.is_empty()).then(|| format!("files of devices that are left out: {}", listed(all)))
    }

    /// The folders, as text.
    pub fn places(&self) -> String {
        let places: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        places.join(", ")
    }

    /// All devices of `kind`, or of every kind.
    pub fn devices(&self, kind: Option<&str>) -> BTreeSet<CdiDevice> {
        let files = self.files.iter().filter(|file| kind.is_none_or(|kind| file.spec.kind == kind));
        let of = |file: &File, device: &Device| CdiDevice { kind: file.spec.kind.clone(), name: device.name.clone() };
        files.flat_map(|file| file.spec.devices.iter().map(|device| of(file, device)).collect::<Vec<_>>()).collect()
    }

    /// The device of this name, and the file that describes it.
    ///
    /// # Errors
    /// `NotFound` with the names that there are; `BadSpec` where two files of one folder describe it.
    pub fn find(&self, wanted: &CdiDevice) -> Result<(&File, &Device)> {
        let all: Vec<(&File, &Device)> = self.files.iter().filter_map(|file| file.device(wanted)).collect();
        let Some(found @ (file, _)) = all.last().copied() else { return Err(self.unknown(wanted)) };
        match all.iter().rev().nth(1) {
            Some((other, _)) if other.folder == file.folder => {
                let message = format!("{} and {} both describe {wanted}", other.path.display(), file.path.display());
                Err(Error::new(Kind::BadSpec, message)
                    .hint("one folder has each device once: change one of the two files"))
            }
            _ => Ok(found),
        }
    }

    fn unknown(&self, wanted: &CdiDevice) -> Error {
        let (of_kind, all) = (self.devices(Some(&wanted.kind)), self.devices(None));
        let there = match (of_kind.is_empty(), all.is_empty()) {
            (false, _) => format!("of {} there are {}", wanted.kind, listed(of_kind.iter().map(|one| &one.name))),
            (_, false) => format!("there are {}", listed(&all)),
            _ => format!("there are none in {}", self.places()),
        };
        let left_out = self.left_out().map(|text| format!("; {text}")).unwrap_or_default();
        let error = Error::new(Kind::NotFound, format!("no file has a device {wanted}; {there}{left_out}"));
        error.hint(match of_kind.is_empty() && wanted.kind == gpus::KIND {
            true => format!("`{}`, of NVIDIA's container toolkit, writes one", gpus::GENERATE),
            false => format!("vendors' files are in {}; --cdi-spec-dir names another folder", self.places()),
        })
    }
}

/// Some of the names, and how many more there are.
pub fn listed(names: impl IntoIterator<Item: ToString>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let some = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len() - names.len().min(MOST_NAMES) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}
