//! Manages what a sandbox has on disk, in its bundle: shared memory, files for its members, and the list of their
//! bundles. `delete` finds all of it again.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_executor::internal::undo_bundle;
use bowline_executor::systemd::Systemd;
use bowline_executor::{layers, undo as undo_folder};
use bowline_model::folder::Folder;
use bowline_model::{Doing, Kind, Result};

use super::wanted::{Contents, Wanted};

/// The size limit of shared memory: the same as everywhere in Kubernetes.
const SHM_SIZE: &str = "size=64m";

/// Where the sandbox's shared memory is mounted.
pub fn shm(bundle: &Path) -> PathBuf {
    bundle.join("shm")
}

/// The path of the file that members see at `inside`.
pub fn path(bundle: &Path, inside: &str) -> PathBuf {
    bundle.join(inside.rsplit('/').next().unwrap_or(inside))
}

/// The folder with one folder for each member. It holds a link to the member's bundle and a copy of its record, because
/// containerd may remove the bundle before it deletes the sandbox.
pub fn members(bundle: &Path) -> PathBuf {
    bundle.join("members")
}

/// The name of the link in a member's folder.
const BUNDLE: &str = "bundle";

/// Creates everything that a sandbox has on disk.
///
/// # Errors
/// Names what cannot be created.
pub async fn make(bundle: &Path, wanted: &Wanted) -> Result<()> {
    for (inside, contents) in &wanted.files {
        let file = path(bundle, inside);
        let what = || format!("cannot write {}", file.display());
        match contents {
            Contents::Text(text) => fs::write(&file, text).doing(Kind::Internal, what)?,
            Contents::OfHost => match fs::read(inside) {
                // A file that the host lacks is empty here.
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
    let mut options = ["nosuid", "nodev", "noexec", "mode=1777", SHM_SIZE].map(str::to_owned).to_vec();
    if let Some(users) = &wanted.pause.users {
        // Each has one range, which begins with the pod's root.
        options.extend(users.uids.iter().map(|ids| format!("uid={}", ids.host_id())));
        options.extend(users.gids.iter().map(|ids| format!("gid={}", ids.host_id())));
    }
    let layer = layers::Layer { kind: "tmpfs".to_owned(), source: "shm".to_owned(), target: String::new(), options };
    layers::mount(&shm(bundle), &[layer]).await
}

/// Unmounts the shared memory.
///
/// # Errors
/// Names the mount that is left.
pub async fn unmake(bundle: &Path) -> Result<()> {
    layers::unmount(&shm(bundle)).await
}

/// Records a member before anything of it is created.
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

/// Copies the record of a member that has been created, which cleanup needs.
///
/// # Errors
/// As [`remember`].
pub fn keep_record(members: &Path, id: &str, bundle: &Path) -> Result<()> {
    let record = Folder::at(bundle).record()?;
    record.map_or(Ok(()), |record| Folder::at(members.join(id)).write_record(&record))
}

/// Removes a member that is gone from the list.
pub fn forget(members: &Path, id: &str) {
    if let Err(error) = fs::remove_dir_all(members.join(id))
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, id, "a member that has gone is still written down");
    }
}

/// Cleans up after a sandbox whose shim died: its members, and what is mounted for them. The pause process died with
/// the shim.
///
/// # Errors
/// The first error; the rest is cleaned up all the same.
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
    // If the bundle is gone, so are its mounts: containerd unmounts first.
    let rest = if bundle.is_dir() { undo_bundle(&bundle, systemd).map(drop) } else { Ok(()) };
    undone.and(rest)
}
