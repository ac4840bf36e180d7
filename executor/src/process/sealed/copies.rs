//! Copies of programs that only bowline owns, named by their content.
//!
//! ```text
//! /var/lib/bowline/programs/     0700
//!   <digest>/program             the copy, by the SHA-256 of its content
//!   by-source/<identity>         the digest and path of the file that had this identity
//! ```
//!
//! A shim that ran from the installed file would crash when a process writes to that file. A copy
//! is made, and hashed, once for each installed file; device, inode, size and both times tell files
//! apart. All shims of a program share its copy, and so the page cache. Must not: trust a folder
//! that another user could have written to.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_model::folder::LASTING;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

/// Below [`LASTING`], and not below `/run`, whose memory cannot be reclaimed.
const FOLDER: &str = "programs";
/// The name of a program in the folder of its digest.
pub const PROGRAM: &str = "program";
const BY_SOURCE: &str = "by-source";
/// The prefix of an unfinished copy; its maker's pid and the time follow.
const NEW: &str = ".new-";

/// The folder that holds a copy of `program` as [`PROGRAM`].
///
/// # Errors
/// Why no copy can be kept: a read-only or full disk, no right to write, or a folder that is not ours alone.
pub fn of(program: &Path) -> io::Result<PathBuf> {
    Copies::at(Path::new(LASTING).join(FOLDER))?.of(program)
}

struct Copies(PathBuf);

impl Copies {
    fn at(folder: PathBuf) -> io::Result<Copies> {
        let copies = Copies(folder);
        if let Err(error) = ours_alone(&copies.0) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            // All users may read the folders above; they need not read this one.
            copies.0.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            if let Err(error) = DirBuilder::new().mode(0o700).create(&copies.0)
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(error);
            }
            ours_alone(&copies.0)?;
        }
        Ok(copies)
    }

    fn of(&self, program: &Path) -> io::Result<PathBuf> {
        let identity = identity(&std::fs::metadata(program)?);
        let source = self.0.join(BY_SOURCE).join(&identity);
        if let Some(folder) = self.known(&source) {
            return Ok(folder);
        }
        let folder = self.copy(program)?;
        self.collect();
        Ok(folder)
    }

    /// The copy that the file `source` refers to, if there is one.
    fn known(&self, source: &Path) -> Option<PathBuf> {
        let (digest, _) = read_source(source)?;
        let folder = self.0.join(digest);
        folder.join(PROGRAM).exists().then_some(folder)
    }

    /// Copies `program`, whole, and records which file it was made from.
    fn copy(&self, program: &Path) -> io::Result<PathBuf> {
        DirBuilder::new().mode(0o700).recursive(true).create(self.0.join(BY_SOURCE))?;
        // A name that nobody else has, whatever pid namespaces share the folder.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let aside = self.0.join(format!("{NEW}{}-{clock}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&aside)?;
        let copied = self.copy_aside(program, &aside);
        let _ = std::fs::remove_dir_all(&aside);
        copied
    }

    fn copy_aside(&self, program: &Path, aside: &Path) -> io::Result<PathBuf> {
        let copy = aside.join(PROGRAM);
        let to = File::options().write(true).create_new(true).open(&copy)?;
        // Whatever the umask. Other users come by the descriptor alone, as the folders are ours: see `open_small`.
        to.set_permissions(Permissions::from_mode(0o511))?;
        let (before, digest) = copy_whole(program, &to)?;
        to.sync_data()?;
        drop(to);
        // Written before the copy has its name: see `collect`.
        let source = self.0.join(BY_SOURCE).join(identity(&before));
        let new = aside.join("source");
        std::fs::write(&new, format!("{digest}\n{}\n", program.display()))?;
        std::fs::rename(&new, &source)?;
        let folder = self.0.join(&digest);
        match std::fs::rename(aside, &folder) {
            // Another process, or another path of the same program, was first.
            Err(_) if folder.join(PROGRAM).exists() => Ok(folder),
            renamed => renamed.map(|()| folder),
        }
    }

    /// Removes the copies of programs that are no longer installed. A process that runs one keeps
    /// its file; the disk has the room again once the last process has ended.
    fn collect(&self) {
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        // First: a copy that is there by now was recorded before, by whoever has made it.
        let folders: Vec<PathBuf> = entries(&self.0).collect();
        let mut kept = Vec::new();
        for source in entries(&self.0.join(BY_SOURCE)) {
            let Some((digest, path)) = read_source(&source) else { continue };
            let installed = std::fs::metadata(&path).is_ok_and(|meta| source.ends_with(identity(&meta)));
            if installed {
                kept.push(self.0.join(digest));
            } else {
                let _ = std::fs::remove_file(&source);
            }
        }
        for folder in folders {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let unused = name.len() == 2 * Sha256::output_size() && !kept.contains(&folder);
            let abandoned = name.starts_with(NEW) && is_old(&folder);
            if unused || abandoned {
                let _ = std::fs::remove_dir_all(&folder);
            }
        }
    }
}

/// Copies `program` into `to`; returns the file's metadata and the digest of its content.
///
/// # Errors
/// A file that changes meanwhile is an error: half of the copy would be of another file.
pub fn copy_whole(program: &Path, to: &File) -> io::Result<(Metadata, String)> {
    let mut from = File::open(program)?;
    let before = from.metadata()?;
    let mut hash = Sha256::new();
    let mut to = to;
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            break;
        }
        hash.update(&chunk[..length]);
        to.write_all(&chunk[..length])?;
    }
    if identity(&from.metadata()?) != identity(&before) || to.metadata()?.len() != before.len() {
        return Err(io::Error::other("it is being written to"));
    }
    let mut digest = String::new();
    for byte in hash.finalize() {
        let _ = write!(digest, "{byte:02x}");
    }
    Ok((before, digest))
}

/// Whether `path` was not changed for a day: its maker was killed.
fn is_old(path: &Path) -> bool {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let changed = std::fs::metadata(path).and_then(|meta| meta.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > DAY))
}

/// Tells a file from every other, and from itself once it was written to.
fn identity(meta: &Metadata) -> String {
    let written = format!("{}.{:09}", meta.mtime(), meta.mtime_nsec());
    let changed = format!("{}.{:09}", meta.ctime(), meta.ctime_nsec());
    format!("{}-{}-{}-{written}-{changed}", meta.dev(), meta.ino(), meta.size())
}

/// The digest and the path in a file of [`BY_SOURCE`].
fn read_source(source: &Path) -> Option<(String, PathBuf)> {
    let text = std::fs::read_to_string(source).ok()?;
    let (digest, path) = text.split_once('\n')?;
    let is_digest = digest.len() == 2 * Sha256::output_size() && digest.bytes().all(|b| b.is_ascii_hexdigit());
    is_digest.then(|| (digest.to_owned(), PathBuf::from(path.trim_end_matches('\n'))))
}

/// Fails unless `folder` is a folder of ours that no other user may look into or write to.
fn ours_alone(folder: &Path) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let meta = File::options().read(true).custom_flags(flags.bits() as i32).open(folder)?.metadata()?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
    ours.then_some(()).ok_or_else(|| io::Error::other(format!("{} is not ours alone", folder.display())))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn copies(dir: &Path) -> Copies {
        Copies::at(dir.join("lib/programs")).expect("a folder of ours")
    }

    fn content(folder: &Path) -> String {
        std::fs::read_to_string(folder.join(PROGRAM)).expect("a copy")
    }

    #[test]
    fn a_program_is_copied_once_and_anew_when_it_was_written_to() {
        let dir = tempfile::tempdir().expect("a folder");
        let (copies, program) = (copies(dir.path()), dir.path().join("program"));
        std::fs::write(&program, "one").expect("written");
        let first = copies.of(&program).expect("copied");
        let inode = |folder: &Path| std::fs::metadata(folder.join(PROGRAM)).expect("there").ino();
        let before = inode(&first);
        assert_eq!((content(&first).as_str(), inode(&copies.of(&program).expect("known"))), ("one", before));

        // Written in place, as `cp` does, with the same size.
        std::fs::write(&program, "two").expect("written");
        let second = copies.of(&program).expect("copied again");
        assert_eq!(content(&second), "two");
        assert!(!first.exists(), "no program has this content any more");
    }

    #[test]
    fn programs_of_one_content_share_a_copy() {
        let dir = tempfile::tempdir().expect("a folder");
        let (copies, one, other) = (copies(dir.path()), dir.path().join("one"), dir.path().join("other"));
        std::fs::write(&one, "same").expect("written");
        std::fs::write(&other, "same").expect("written");
        let shared = copies.of(&one).expect("copied");
        assert_eq!(copies.of(&other).expect("copied"), shared);
        std::fs::remove_file(&one).expect("there");
        std::fs::write(dir.path().join("third"), "3").expect("written");
        copies.of(&dir.path().join("third")).expect("copied");
        assert!(shared.exists(), "the other one is still installed");
    }

    #[test]
    fn a_copy_that_was_removed_is_made_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (copies, program) = (copies(dir.path()), dir.path().join("program"));
        std::fs::write(&program, "one").expect("written");
        std::fs::remove_dir_all(copies.of(&program).expect("copied")).expect("there");
        assert_eq!(content(&copies.of(&program).expect("copied again")), "one");
    }

    #[test]
    fn what_was_just_copied_is_not_unused_for_whoever_collects() {
        let dir = tempfile::tempdir().expect("a folder");
        let (copies, program) = (copies(dir.path()), dir.path().join("program"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    copies.collect();
                }
            });
            let lost = (0..500).find(|round| {
                std::fs::write(&program, round.to_string()).expect("written");
                !copies.of(&program).expect("copied").join(PROGRAM).exists()
            });
            done.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "the copy of an installed program was removed");
        });
    }

    #[test]
    fn a_folder_that_others_may_look_into_is_not_used() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("programs");
        std::fs::create_dir(&folder).expect("ours");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("ours");
        assert!(Copies::at(folder.clone()).is_err());
        std::fs::remove_dir(&folder).expect("empty");
        std::os::unix::fs::symlink(dir.path(), &folder).expect("ours");
        assert!(Copies::at(folder).is_err());
    }
}
