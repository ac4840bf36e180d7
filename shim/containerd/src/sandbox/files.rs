//! What a sandbox has on disk, in its bundle: shared memory, files for its
//! members, and where their bundles are. All of it is found again by `delete`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_executor::systemd::Systemd;
use bowline_executor::{Doing, Folder, Kind, Result, layers, undo as undo_folder, undo_bundle};

use super::wanted::{Contents, Wanted};

/// How large shared memory may become: as everywhere in Kubernetes.
const SHM_SIZE: &str = "size=64m";

/// Where a sandbox's shared memory is mounted.
pub fn shm(bundle: &Path) -> PathBuf {
    bundle.join("shm")
}

/// Where the file is that members find at `inside`.
pub fn path(bundle: &Path, inside: &str) -> PathBuf {
    bundle.join(inside.rsplit('/').next().unwrap_or(inside))
}

/// A folder for each member: a link to its bundle, and its record, as containerd
/// may have thrown the bundle away before it has the sandbox undone.
pub fn members(bundle: &Path) -> PathBuf {
    bundle.join("members")
}

/// The link in a member's folder.
const BUNDLE: &str = "bundle";

/// Makes all that a sandbox has on disk.
///
/// # Errors
/// Names what cannot be made.
pub async fn make(bundle: &Path, wanted: &Wanted) -> Result<()> {
    for (inside, contents) in &wanted.files {
        let file = path(bundle, inside);
        let what = || format!("cannot write {}", file.display());
        match contents {
            Contents::Text(text) => fs::write(&file, text).doing(Kind::Internal, what)?,
            Contents::OfHost => match fs::read(inside) {
                // Then it is empty here too.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    fs::write(&file, "").doing(Kind::Internal, what)?
                }
                text => fs::write(&file, text.doing(Kind::Internal, what)?).doing(Kind::Internal, what)?,
            },
        }
    }
    if !wanted.pause.ipc {
        return Ok(());
    }
    let options = ["nosuid", "nodev", "noexec", "mode=1777", SHM_SIZE].map(str::to_owned).to_vec();
    let layer = layers::Layer { kind: "tmpfs".to_owned(), source: "shm".to_owned(), target: String::new(), options };
    layers::mount(&shm(bundle), &[layer]).await
}

/// Takes down what is mounted.
///
/// # Errors
/// Names the mount that is left.
pub async fn unmake(bundle: &Path) -> Result<()> {
    layers::unmount(&shm(bundle)).await
}

/// Puts a member down, of which nothing is there yet.
///
/// # Errors
/// Names what cannot be written.
pub fn remember(members: &Path, id: &str, bundle: &Path) -> Result<()> {
    forget(members, id);
    let member = members.join(id);
    let what = || format!("cannot write {}", member.display());
    fs::create_dir_all(&member).doing(Kind::Internal, what)?;
    symlink(bundle, member.join(BUNDLE)).doing(Kind::Internal, what)
}

/// Puts down what it takes to undo a member, which is created.
///
/// # Errors
/// As [`remember`].
pub fn keep_record(members: &Path, id: &str, bundle: &Path) -> Result<()> {
    let record = Folder::at(bundle).record()?;
    record.map_or(Ok(()), |record| Folder::at(members.join(id)).write_record(&record))
}

/// A member is gone.
pub fn forget(members: &Path, id: &str) {
    if let Err(error) = fs::remove_dir_all(members.join(id))
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, id, "a member that has gone is still written down");
    }
}

/// Undoes what a sandbox has left whose shim has died: its members, and what is
/// mounted for them. Its pause process has died with the shim.
///
/// # Errors
/// The first of what is left.
pub fn undo(bundle: &Path, systemd: &Systemd) -> Result<()> {
    let members = members(bundle);
    let mut undone = Ok(());
    for entry in fs::read_dir(&members).into_iter().flatten().flatten() {
        undone = undone.and(undo_member(&entry.path(), systemd).map_err(|e| e.within(entry.path().display())));
    }
    undone.and(layers::unmount_blocking(&shm(bundle)))
}

fn undo_member(member: &Path, systemd: &Systemd) -> Result<()> {
    let kept = Folder::at(member);
    let undone = if matches!(kept.record(), Ok(None)) { Ok(()) } else { undo_folder(&kept, systemd).map(drop) };
    let bundle = fs::read_link(member.join(BUNDLE)).unwrap_or_default();
    // With it its mounts have gone: containerd takes them down first.
    let rest = if bundle.is_dir() { undo_bundle(&bundle, systemd).map(drop) } else { Ok(()) };
    undone.and(rest)
}
