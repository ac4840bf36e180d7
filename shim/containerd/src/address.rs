//! A shim's address and the socket behind it.
//!
//! ```text
//!   group ─► sha256 of (containerd, namespace, group) ─► <root>/<hex> ─► bound, or served already
//! ```
//!
//! All containers of a group share one address: a new one joins the shim that already serves it. The check whether the
//! address is served holds a lock on the root. So nobody mistakes a socket that is bound but not listening yet for a
//! stale one, or relies on a socket that its shim is about to remove.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bowline_executor::internal::listen_privately;
use bowline_model::{Doing, Error, Kind, Result};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sha2::{Digest, Sha256};

/// The folder of sockets, unless containerd gives another.
pub const ROOT: &str = "/run/containerd/s";
/// The longest path that containerd dials, in bytes.
pub const LONGEST_PATH: usize = 106;
const SCHEME: &str = "unix://";

/// The address of the shim of `group`.
///
/// # Errors
/// `Usage` when the socket's path would be too long; `BadSpec` for a group that could be mistaken for one of another
/// namespace.
pub fn of(root: &Path, containerd: &str, namespace: &str, group: &str) -> Result<String> {
    if group.is_empty() || group.split('/').any(|part| part == "..") {
        return Err(Error::new(Kind::BadSpec, format!("group {group:?} is none: it is empty or has a `..`")));
    }
    let key = joined(&[containerd, namespace, group]);
    let name: String = Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = root.join(name);
    let length = path.as_os_str().len();
    if length > LONGEST_PATH || !path.is_absolute() {
        return Err(Error::new(
            Kind::Usage,
            format!("socket path {} is relative or too long: {length} bytes, {LONGEST_PATH} at most", path.display()),
        )
        .hint("choose a shorter folder for containerd's sockets"));
    }
    Ok(format!("{SCHEME}{}", path.display()))
}

/// Joins parts of a path as Go does: drops empty parts and `.`, and resolves `..`.
fn joined(parts: &[&str]) -> String {
    let whole = parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/");
    let absolute = whole.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for part in whole.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match (part, kept.last()) {
            ("..", Some(last)) if *last != ".." => drop(kept.pop()),
            ("..", None) if absolute => {}
            _ => kept.push(part),
        }
    }
    let kept = kept.join("/");
    if absolute { format!("/{kept}") } else { kept }
}

/// The path in an address.
///
/// # Errors
/// `Usage` when `address` is not a socket in the file system.
pub fn path_of(address: &str) -> Result<&Path> {
    let path = address.strip_prefix(SCHEME).map(Path::new).filter(|path| path.is_absolute());
    path.ok_or_else(|| Error::new(Kind::Usage, format!("{address:?} is no address: {SCHEME} and an absolute path")))
}

/// The result of [`bind`]: who serves the address.
#[derive(Debug)]
pub enum Bound {
    /// Nobody did; this listener accepts connections from now on.
    Ours(UnixListener),
    /// Another process served the address already.
    Served,
}

/// Listens at `address`, unless another process does already. Replaces a socket that nobody serves.
///
/// # Errors
/// `Internal` when the socket or its folder cannot be created.
pub fn bind(address: &str) -> Result<Bound> {
    let path = path_of(address)?;
    let what = || format!("cannot listen at {}", path.display());
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .doing(Kind::Internal, || format!("cannot create {}", folder.display()))?;
    let _lock = locked(folder)?;
    bind_or_join(path).doing(Kind::Internal, what)
}

fn bind_or_join(path: &Path) -> std::io::Result<Bound> {
    match listen_privately(path) {
        Err(Errno::ADDRINUSE) => {}
        bound => return Ok(Bound::Ours(bound?)),
    }
    if is_served(path)? {
        return Ok(Bound::Served);
    }
    std::fs::remove_file(path)?;
    Ok(Bound::Ours(listen_privately(path)?))
}

/// Whether connections are accepted at `path`.
fn is_served(path: &Path) -> std::io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // The shim exists, but its backlog is full.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the socket of `address`, if it still exists. The process that serves it calls this before it closes the
/// listener, because afterwards another may take the address.
///
/// # Errors
/// `Internal` when the socket cannot be removed.
pub fn remove(address: &str) -> Result<()> {
    take_away(address, |_| Ok(false))
}

/// Removes the socket of `address` if nobody serves it, for a caller that finds the shim dead.
///
/// # Errors
/// `Internal` when the socket cannot be removed.
pub fn remove_stale(address: &str) -> Result<()> {
    take_away(address, is_served)
}

fn take_away(address: &str, stays: impl FnOnce(&Path) -> std::io::Result<bool>) -> Result<()> {
    let path = path_of(address)?;
    let Some(folder) = path.parent().filter(|folder| folder.is_dir()) else { return Ok(()) };
    let _lock = locked(folder)?;
    let done = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Ok(()),
        Ok(_) => stays(path).and_then(|stays| if stays { Ok(()) } else { std::fs::remove_file(path) }),
    };
    done.doing(Kind::Internal, || format!("cannot remove {}", path.display()))
}

/// Locks the folder until the result is dropped; the lock is only ever held for an instant.
fn locked(folder: &Path) -> Result<File> {
    let what = || format!("cannot lock {}", folder.display());
    let folder = File::open(folder).doing(Kind::Internal, what)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).doing(Kind::Internal, what)?;
    Ok(folder)
}

/// The file in a bundle where containerd looks up the address of the container's shim.
pub fn file_in(bundle: &Path) -> PathBuf {
    bundle.join("address")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn at(folder: &tempfile::TempDir) -> String {
        of(&folder.path().join("s"), "/run/c.sock", "n", "g").unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn an_address_is_that_of_the_reference() {
        let address = of(Path::new(ROOT), "/run/containerd/containerd.sock", "default", "web").unwrap();
        // As sha256sum prints it for "/run/containerd/containerd.sock/default/web".
        let digest = "2cde4450fa38c74f53603e01d2afd903b315a27a596f12a151414cd59897d883";
        assert_eq!(address, format!("unix:///run/containerd/s/{digest}"));
        assert_eq!(path_of(&address).unwrap().parent(), Some(Path::new(ROOT)));
    }

    #[test]
    fn paths_are_joined_as_go_joins_them() {
        assert_eq!(joined(&["/run/c.sock", "n", "g"]), "/run/c.sock/n/g");
        assert_eq!(joined(&["", "n", "a//b/./c"]), "n/a/b/c");
        assert_eq!(joined(&["unix:///run/c.sock", "n", "g"]), "unix:/run/c.sock/n/g");
        assert_eq!(joined(&["/../a", "..", "b"]), "/b");
    }

    #[test]
    fn a_group_cannot_be_taken_for_another_namespace_s() {
        for group in ["../other/g", "a/../../other/g", "..", ""] {
            let refused = of(Path::new(ROOT), "/run/c.sock", "n", group);
            assert_eq!(refused.map_err(|e| e.kind()), Err(Kind::BadSpec), "{group:?}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_dialled_is_refused() {
        let root = |length: usize| PathBuf::from(format!("/{}", "r".repeat(length - 1)));
        // The path continues with a slash and 64 digits.
        assert!(of(&root(LONGEST_PATH - 65), "c", "n", "g").is_ok());
        let refused = of(&root(LONGEST_PATH - 64), "c", "n", "g");
        assert_eq!(refused.map_err(|e| e.kind()), Err(Kind::Usage));
        assert!(of(Path::new("s"), "c", "n", "g").is_err());
    }

    #[test]
    fn a_socket_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let address = at(&folder);
        let bound = bind(&address).unwrap();
        assert!(matches!(bound, Bound::Ours(_)));
        let path = path_of(&address).unwrap();
        assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
        UnixStream::connect(path).expect("it listens");
    }

    #[test]
    fn a_served_address_is_joined_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let address = at(&folder);
        let Bound::Ours(first) = bind(&address).unwrap() else { panic!("nobody was there") };
        assert!(matches!(bind(&address).unwrap(), Bound::Served));
        remove_stale(&address).unwrap();
        assert!(matches!(bind(&address).unwrap(), Bound::Served));
        drop(first);
        let Bound::Ours(second) = bind(&address).unwrap() else { panic!("nobody listened any more") };
        UnixStream::connect(path_of(&address).unwrap()).expect("it listens");
        drop(second);
        remove_stale(&address).unwrap();
        assert!(!path_of(&address).unwrap().exists());
    }

    #[test]
    fn a_shim_that_accepts_nobody_for_now_still_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let listener = socket(SocketFlags::CLOEXEC);
        let address = SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut waiting = Vec::new();
        loop {
            waiting.push(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
            if let Err(errno) = rustix::net::connect(waiting.last().unwrap(), &address) {
                break assert_eq!(errno, Errno::AGAIN);
            }
        }
        assert!(is_served(&path).unwrap());
    }

    #[test]
    fn who_is_about_to_listen_is_not_taken_for_dead() {
        let folder = tempfile::tempdir().unwrap();
        let address = at(&folder);
        let path = path_of(&address).unwrap();
        let root = path.parent().unwrap();
        std::fs::create_dir(root).unwrap();
        let lock = locked(root).unwrap();
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let other = std::thread::spawn({
            let address = address.clone();
            move || matches!(bind(&address).unwrap(), Bound::Served)
        });
        // Wait until the other thread blocks on our lock, or has already decided.
        let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(root).unwrap()));
        let waits = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("->") && line.contains(&inode))
        };
        while !other.is_finished() && !waits() {
            std::thread::yield_now();
        }
        rustix::net::listen(&socket, 1).unwrap();
        drop(lock);
        assert!(other.join().unwrap(), "it has thrown out who was there first");
    }

    #[test]
    fn a_removed_socket_may_be_gone_already() {
        let folder = tempfile::tempdir().unwrap();
        let address = at(&folder);
        remove(&address).unwrap();
        let bound = bind(&address).unwrap();
        remove(&address).unwrap();
        remove(&address).unwrap();
        remove_stale(&address).unwrap();
        assert!(!path_of(&address).unwrap().exists());
        drop(bound);
        std::fs::write(path_of(&address).unwrap(), "no socket").unwrap();
        remove(&address).unwrap();
        assert!(path_of(&address).unwrap().exists(), "what is no socket is not ours");
    }
}
