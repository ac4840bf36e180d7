//! Drop-ins of others that win over the limits that we set, once systemd reads its files again.
//!
//! ```text
//!   all files of UNIT.d, its aliases', FIRST-.service.d and service.d in all folders ─► of one name, the first folder's
//!   ─► by their names, whatever the folder ─► the last one that has the setting wins
//! ```
//!
//! Ours are called `50-CPUQuota.conf` or the like. A persistent `systemctl set-property` writes a file of the same name
//! into a folder that comes first. Source: systemd.unit(5).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::drop_ins::{CONTROL, TRANSIENT};

/// Where systemd looks for drop-ins, the folders that come first first.
const FOLDERS: [&str; 13] = [
    "/etc/systemd/system.control",
    CONTROL,
    TRANSIENT,
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// A setting in somebody else's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The file that has it.
    pub path: PathBuf,
    /// Its value there; empty for the default.
    pub value: String,
}

/// The drop-in that sets `setting` of `unit` in place of ours. `has_drop_in` if ours is a drop-in, and not a transient
/// unit's own file, over which every drop-in wins.
pub fn winner(unit: &str, setting: &str, has_drop_in: bool) -> Option<Override> {
    winner_in(&FOLDERS.map(PathBuf::from), unit, setting, has_drop_in)
}

fn winner_in(folders: &[PathBuf], unit: &str, setting: &str, has_drop_in: bool) -> Option<Override> {
    let is_ours = |folder: &Path| folder.ends_with(&CONTROL[1..]) || folder.ends_with(&TRANSIENT[1..]);
    let ours = format!("50-{setting}.conf");
    let mut files: BTreeMap<String, Option<PathBuf>> = BTreeMap::new();
    let others = aliases(folders, unit);
    for name in names(unit).into_iter().chain(others.iter().flat_map(|alias| names(alias))) {
        for folder in folders {
            let theirs = fs::read_dir(folder.join(format!("{name}.d"))).into_iter().flatten().flatten();
            for entry in theirs {
                let Ok(file) = entry.file_name().into_string() else { continue };
                if file.ends_with(".conf") {
                    let path = (!is_ours(folder) || file != ours).then(|| entry.path());
                    files.entry(file).or_insert(path);
                }
            }
            if has_drop_in && is_ours(folder) && name == unit {
                files.entry(ours.clone()).or_insert(None);
            }
        }
    }
    for path in files.into_values().rev() {
        // What comes before ours does not count.
        let path = path?;
        let text = fs::read_to_string(&path).unwrap_or_default();
        if let Some(value) = value_of(&text, setting) {
            return Some(Override { path, value });
        }
    }
    None
}

/// The names that drop-ins of a unit may have: its own and its template's, those of their prefixes, and its kind.
fn names(unit: &str) -> Vec<String> {
    let (stem, kind) = unit.rsplit_once('.').unwrap_or((unit, "service"));
    let (stem, instance) = stem.find('@').map_or((stem, ""), |at| stem.split_at(at));
    // A prefix ends with its dash; the last character is none.
    let dashes = stem.char_indices().rev().skip(1).filter(|(_, letter)| *letter == '-');
    let stems = [stem].into_iter().chain(dashes.map(|(at, _)| &stem[..=at]));
    let mut names = Vec::new();
    for stem in stems {
        names.push(format!("{stem}{instance}.{kind}"));
        if instance.len() > 1 {
            names.push(format!("{stem}@.{kind}"));
        }
    }
    names.push(kind.to_owned());
    names
}

/// The unit's other names: symlinks to its file.
fn aliases(folders: &[PathBuf], unit: &str) -> Vec<String> {
    let all = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let is_alias = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.file_name().is_some_and(|name| name == unit));
    let others = all.map(|entry| entry.path()).filter(is_alias);
    others.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).filter(|name| name != unit).collect()
}

/// The last value of `setting` in a file.
fn value_of(text: &str, setting: &str) -> Option<String> {
    text.lines().rev().find_map(|line| {
        let (key, value) = line.trim().split_once('=')?;
        (key.trim_end() == setting).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_file_by_its_name_wins_and_of_one_name_the_first_folder() {
        let top = std::env::temp_dir().join(format!("bowline-overrides-{}", std::process::id()));
        let folders = FOLDERS.map(|folder| top.join(&folder[1..]));
        let write = |folder: usize, name: &str, text: &str| {
            let path = folders[folder].join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(&path, text).expect("writable");
            path
        };
        let winner = |has_drop_in| winner_in(&folders, "a-b.slice", "MemoryMax", has_drop_in).map(|found| found.path);
        let won = |path: &PathBuf| Some(path.clone());
        assert_eq!(winner(true), None);
        // Before ours, or of our name in a folder that comes later.
        let early = write(4, "a-b.slice.d/10-x.conf", "[Slice]\nMemoryMax=1G\n");
        write(4, "a-b.slice.d/50-MemoryMax.conf", "[Slice]\nMemoryMax=1G\n");
        assert_eq!(winner(true), None);
        // Another setting, or a comment.
        write(4, "a-b.slice.d/60-x.conf", "[Slice]\nMemoryHigh=1G\n#MemoryMax=1G\n");
        assert_eq!(winner(true), None);
        let kind = write(10, "slice.d/70-x.conf", "[Slice]\nMemoryMax =\n");
        assert_eq!(winner(true), won(&kind));
        assert_eq!(winner_in(&folders, "a-b.slice", "MemoryMax", true).map(|found| found.value).as_deref(), Some(""));
        let prefix = write(6, "a-.slice.d/80-x.conf", "[Slice]\n MemoryMax=2G\n");
        assert_eq!(winner(true), won(&prefix));
        // A file of no use hides one of its name.
        write(0, "a-b.slice.d/80-x.conf", "");
        write(4, "slice.d/70-x.conf", "");
        assert_eq!(winner(true), None);
        let persistent = write(0, "a-b.slice.d/50-MemoryMax.conf", "[Slice]\nMemoryMax=3G\n");
        assert_eq!(winner(true), won(&persistent));
        fs::remove_file(&persistent).expect("it is there");
        // A transient unit's own file comes before all.
        fs::remove_file(folders[4].join("a-b.slice.d/50-MemoryMax.conf")).expect("it is there");
        assert_eq!(winner(false), won(&early));
        write(2, "a-b.slice.d/50-MemoryMax.conf", "[Slice]\nMemoryMax=4G\n");
        assert_eq!(winner(false), None);
        write(4, "other.slice.d/90-x.conf", "[Slice]\nMemoryMax=5G\n");
        assert_eq!(winner(true), None);
        std::os::unix::fs::symlink("/usr/lib/systemd/system/a-b.slice", folders[4].join("other.slice"))
            .expect("writable");
        assert_eq!(winner(true), won(&folders[4].join("other.slice.d/90-x.conf")));
        fs::remove_dir_all(top).expect("ours");
    }

    #[test]
    fn a_units_prefixes_have_drop_ins_for_it() {
        assert_eq!(names("a-b-c.service"), ["a-b-c.service", "a-b-.service", "a-.service", "service"]);
        assert_eq!(names("a-.slice"), ["a-.slice", "slice"]);
        assert_eq!(
            names("a-b@x-1.service"),
            ["a-b@x-1.service", "a-b@.service", "a-@x-1.service", "a-@.service", "service"]
        );
    }
}
