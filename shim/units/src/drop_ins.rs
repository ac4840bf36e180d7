//! Drop-in files that change units: those that `systemctl set-property --runtime` writes, and those of older versions
//! of bowline.
//!
//! ```text
//!   /run/systemd/system.control/UNIT.d/50-CPUQuota.conf   a property until the next boot
//!   /run/systemd/transient/UNIT.d/50-CPUQuota.conf        the same, of a transient unit
//!   /etc/systemd/system/UNIT.d/50-bowline.conf            a leftover
//! ```
//!
//! systemd reads changed files at `daemon-reload`, and applies them when a property of the unit is next set.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bowline_executor::systemd::host::{DropIn, Revert};
use bowline_executor::{Doing as _, Kind, Result};
use bowline_spec::host_limits::is_of_older_version;

/// Where systemd stores properties that apply until the next boot.
pub const CONTROL: &str = "/run/systemd/system.control";

/// Where it stores those of units that have no file of their own.
pub const TRANSIENT: &str = "/run/systemd/transient";

/// Where drop-ins are that somebody else than a package has made.
const ADMINISTRATORS: [&str; 2] = ["/etc/systemd/system", "/run/systemd/system"];

/// The properties that we set.
const PROPERTIES: [&str; 5] = ["CPUQuotaPerSecUSec", "MemoryMax", "MemoryLimit", "CPUAccounting", "MemoryAccounting"];

/// The name of the file that systemd keeps a property in.
fn file_of(property: &str) -> String {
    // By the setting's name, which is the property's but for this one.
    format!("50-{}.conf", if property == "CPUQuotaPerSecUSec" { "CPUQuota" } else { property })
}

fn folder(of: impl AsRef<Path>, unit: &str) -> PathBuf {
    of.as_ref().join(format!("{unit}.d"))
}

/// The drop-ins of `unit` that set a property that bowline manages, no matter who wrote them.
///
/// # Errors
/// `Internal` for a file that cannot be read.
pub fn set(unit: &str) -> Result<Vec<DropIn>> {
    let mut found = Vec::new();
    for folder in [CONTROL, TRANSIENT].map(|of| folder(of, unit)) {
        for path in PROPERTIES.map(|property| folder.join(file_of(property))) {
            match fs::read_to_string(&path) {
                Ok(text) => found.push(DropIn { path, text }),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).doing(Kind::Internal, || format!("cannot read {}", path.display())),
            }
        }
    }
    Ok(found)
}

/// Takes back the properties that were set of a unit.
pub fn revert(wanted: &Revert) -> Result<()> {
    [CONTROL, TRANSIENT].iter().try_for_each(|of| revert_in(of, wanted))
}

fn revert_in(of: &str, wanted: &Revert) -> Result<()> {
    let folder = folder(of, &wanted.unit);
    for path in wanted.properties.iter().map(|property| folder.join(file_of(property))) {
        match wanted.kept.iter().find(|kept| kept.path == path) {
            // Not where ours has gone meanwhile, as by a boot.
            Some(kept) if path.exists() => {
                fs::write(&path, &kept.text).doing(Kind::Internal, || format!("cannot write {}", path.display()))?;
            }
            _ => remove(&path)?,
        }
    }
    Ok(())
}

/// Removes all properties that we set of `unit` below `of`.
pub fn forget(of: &str, unit: &str) -> Result<()> {
    let properties = PROPERTIES.map(str::to_owned).to_vec();
    revert_in(of, &Revert { unit: unit.to_owned(), properties, kept: Vec::new() })
}

/// Removes a drop-in, and its folder unless others have files in it.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).doing(Kind::Internal, || format!("cannot remove {}", path.display()));
        }
        _ => {}
    }
    let _ = path.parent().map(fs::remove_dir);
    Ok(())
}

/// The units whose drop-ins `files` are, each once.
pub fn units_of(files: &[PathBuf]) -> BTreeSet<String> {
    let folders = files.iter().filter_map(|file| file.parent()?.file_name()?.to_str());
    folders.filter_map(|folder| folder.strip_suffix(".d")).map(str::to_owned).collect()
}

/// The drop-ins of `unit` that an older version of bowline has left.
pub fn of_older_versions(unit: &str) -> Vec<PathBuf> {
    ADMINISTRATORS.iter().flat_map(|of| left_in(&folder(of, unit))).collect()
}

fn left_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Not a link: whoever made it did not write what it leads to.
        fs::symlink_metadata(path).is_ok_and(|file| file.is_file())
            && fs::read_to_string(path).is_ok_and(|text| is_of_older_version(&name, &text))
    };
    let mut found: Vec<PathBuf> = entries.filter(is_ours).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own.
    fn control(name: &str) -> PathBuf {
        let control = std::env::temp_dir().join(format!("bowline-units-{name}-{}", std::process::id()));
        fs::create_dir_all(&control).expect("writable");
        control
    }

    fn left(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_what_we_have_set_is_forgotten() {
        let control = control("forget");
        let (of, folder) = (control.to_str().expect("ASCII"), control.join("a.slice.d"));
        fs::create_dir_all(&folder).expect("writable");
        for name in ["50-CPUQuota.conf", "50-MemoryMax.conf", "50-TasksMax.conf"] {
            fs::write(folder.join(name), "").expect("writable");
        }
        forget(of, "a.slice").expect("ours");
        forget(of, "b.slice").expect("there is none");
        assert_eq!(left(&folder), ["50-TasksMax.conf"]);
        fs::remove_file(folder.join("50-TasksMax.conf")).expect("ours");
        fs::write(folder.join("50-CPUAccounting.conf"), "").expect("writable");
        forget(of, "a.slice").expect("ours");
        assert!(!folder.exists());
        fs::remove_dir(control).expect("empty");
    }

    #[test]
    fn what_was_there_before_is_put_back_where_ours_is() {
        let control = control("revert");
        let (of, folder) = (control.to_str().expect("ASCII"), control.join("a.service.d"));
        fs::create_dir_all(&folder).expect("writable");
        let [quota, memory] = ["50-CPUQuota.conf", "50-MemoryMax.conf"].map(|name| folder.join(name));
        fs::write(&quota, "ours").expect("writable");
        let kept = [&quota, &memory].map(|path| DropIn { path: path.clone(), text: "theirs".to_owned() }).to_vec();
        let properties = ["CPUQuotaPerSecUSec", "MemoryMax"].map(str::to_owned).to_vec();
        let revert = Revert { unit: "a.service".to_owned(), properties, kept };
        revert_in(of, &revert).expect("ours");
        assert_eq!(fs::read_to_string(&quota).expect("put back"), "theirs");
        assert_eq!(left(&folder), ["50-CPUQuota.conf"], "nothing of ours was there");
        fs::remove_dir_all(control).expect("ours");
    }

    #[test]
    fn leftovers_are_files_of_our_name() {
        let control = control("left");
        for name in ["50-bowline.conf", "60-other.conf"] {
            fs::write(control.join(name), "[Service]\nCPUQuota=5%\n").expect("writable");
        }
        std::os::unix::fs::symlink("50-bowline.conf", control.join("51-bowline.conf")).expect("writable");
        assert_eq!(left_in(&control), [control.join("50-bowline.conf")]);
        let files = ["/a/x.service.d/1.conf", "/b/x.service.d/2.conf", "/a/y.slice.d/1.conf"].map(PathBuf::from);
        assert_eq!(Vec::from_iter(units_of(&files)), ["x.service", "y.slice"]);
        remove(&control.join("50-bowline.conf")).expect("ours");
        assert_eq!(left(&control), ["51-bowline.conf", "60-other.conf"]);
        fs::remove_dir_all(control).expect("ours");
    }
}
