//! Compiled filters kept on disk, for all tasks of this host.
//!
//! A filter is used only if its file is ours alone and its digest is right.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bowline_model::trust;
use sha2::{Digest, Sha256};

use super::bpf;

/// Bytes of the digest that a cached filter begins with.
const DIGEST: usize = 32;
/// The longest filter the kernel takes: BPF_MAXINSNS.
pub const LONGEST: usize = 4096 * bpf::SIZE;

/// The filter at `path`; `None` if there is none, or it cannot be trusted.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    let mut file = trust::open(File::options().read(true), path).ok()?;
    let meta = file.metadata().ok()?;
    let ours = trust::is_ours_alone(&meta);
    let fits = meta.len() as usize <= DIGEST + LONGEST;
    let mut bytes = Vec::new();
    if ours && fits {
        file.read_to_end(&mut bytes).ok()?;
    }
    let program = bytes.get(DIGEST..).filter(|p| !p.is_empty() && p.len() % bpf::SIZE == 0);
    let intact = program.is_some_and(|p| Sha256::digest(p).as_slice() == &bytes[..DIGEST]);
    if !intact {
        tracing::warn!(path = %path.display(), "kept seccomp filter refused: not ours alone, or damaged");
        return None;
    }
    bytes.drain(..DIGEST);
    Some(bytes)
}

/// Writes `program` to `path`, whole or not at all.
pub fn keep(path: &Path, program: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let temporary: PathBuf = folder.join(format!(".{}.new", std::process::id()));
    // A killed worker with the same pid may have left it behind.
    let _ = std::fs::remove_file(&temporary);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(&Sha256::digest(program))
        .and_then(|()| file.write_all(program))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_kept_filter_is_read_back_only_if_it_is_ours_alone_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cache").join("filter.bpf");
        let program = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];
        keep(&path, &program).expect("kept");
        assert_eq!(read(&path).as_deref(), Some(&program[..]));

        let whole = std::fs::read(&path).expect("readable");
        let mut poisoned = whole.clone();
        poisoned[DIGEST] ^= 1;
        for (what, bytes) in [("poisoned", &poisoned[..]), ("truncated", &whole[..whole.len() - 4]), ("empty", &[])] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(read(&path), None, "{what}");
        }
        std::fs::write(&path, &whole).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("opened up");
        assert_eq!(read(&path), None, "open to others");
        keep(&path, &program).expect("kept again");
        let link = dir.path().join("link.bpf");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert_eq!(read(&link), None, "a symlink");
    }
}
