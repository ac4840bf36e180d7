//! Opens paths inside an untrusted root.
//!
//! One call of `inside_root` is nearly always enough. Where a symlink or a missing part is in the way, the path is
//! walked by hand, one O_NOFOLLOW step at a time, with `..` resolved from a stack of our own. Nothing leads out: an
//! absolute symlink begins at the root, and `..` stops there. What is missing is created where the symlinks lead,
//! because images link files to places that exist only at run time: `/etc/resolv.conf` into `/run`.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::handle::file_type;
use crate::view::inside_root::{self, MOST_SYMLINKS, Symlinks};

/// What to create where a path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make {
    /// Nothing: a missing path is an error.
    Nothing,
    /// A folder, with its parents.
    Folder,
    /// An empty file, with its parents.
    File,
}

/// Opens `path` inside `root` as an O_PATH fd.
///
/// # Errors
/// `BadSpec` when the path goes through a loop of symlinks, or through one of the kernel's own that leads to nothing
/// in the root; `NotFound` when it does not exist and `make` creates nothing.
pub fn open(root: BorrowedFd<'_>, path: &Path, make: Make) -> Result<OwnedFd> {
    open_or(root, path, || Ok(make))
}

/// Like [`open`]; what to create is only asked where the path does not exist, or goes through a symlink.
pub fn open_or(root: BorrowedFd<'_>, path: &Path, make: impl FnOnce() -> Result<Make>) -> Result<OwnedFd> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() {
        return root.try_clone_to_owned().doing(Kind::Internal, || "cannot copy an fd");
    }
    match inside_root::open(root, relative, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Refused) {
        Ok(fd) => Ok(fd),
        Err(Errno::NOENT | Errno::LOOP) => Walk::new(root, path)?.finish(make()?),
        Err(errno) => Err(refused(path, errno)),
    }
}

/// The folder that lacks the first missing part of `path`; `None` where the path exists.
///
/// # Errors
/// `BadSpec` when the path goes through a loop of symlinks.
pub fn lacking(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>> {
    let mut walk = Walk::new(root, path)?;
    let missing = walk.advance()?;
    let folder = || walk.here().try_clone_to_owned().doing(Kind::Internal, || "cannot copy an fd");
    missing.map(|_| folder()).transpose()
}

/// Refuses images whose symlinks lead the folders that every runtime writes to out to the host.
///
/// `/dev`, `/proc` and `/sys` are mounted on and filled, so they must not be symlinks at all; `/etc` is read, so it
/// must lead to a folder inside.
pub fn refuse_host_links(root: BorrowedFd<'_>) -> Result<()> {
    for name in ["dev", "proc", "sys"] {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(root, name, flags, Mode::empty()) {
            Ok(fd) if matches!(file_type(&fd), Ok(FileType::Symlink)) => {
                let message = format!("/{name} in the root filesystem is a symlink, which may lead to the host");
                return Err(Error::new(Kind::BadSpec, message)
                    .in_field("rootfs")
                    .hint(format!("make /{name} a folder in the image")));
            }
            _ => {}
        }
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if fs::openat(root, "etc", flags, Mode::empty()).is_ok() {
        open(root, Path::new("/etc"), Make::Nothing)
            .map_err(|error| Error::new(Kind::BadSpec, error.message()).in_field("rootfs"))?;
    }
    Ok(())
}

/// Who has named a part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Caller,
    Symlink,
    /// A symlink on a filesystem whose symlinks may lead anywhere: its text need not be a path at all.
    Kernel,
}

/// A walk from the root, one step at a time.
struct Walk<'a> {
    root: BorrowedFd<'a>,
    path: &'a Path,
    /// The folders from the root down to the current one.
    stack: Vec<OwnedFd>,
    /// The parts that are still ahead.
    ahead: VecDeque<(OsString, By)>,
    symlinks: usize,
}

impl<'a> Walk<'a> {
    fn new(root: BorrowedFd<'a>, path: &'a Path) -> Result<Walk<'a>> {
        let mut walk = Walk { root, path, stack: Vec::new(), ahead: VecDeque::new(), symlinks: 0 };
        walk.push_front(path, By::Caller);
        Ok(walk)
    }

    /// Puts the parts of `path` before everything that is still ahead.
    fn push_front(&mut self, path: &Path, by: By) {
        for part in inside_root::parts(path).collect::<Vec<_>>().into_iter().rev() {
            self.ahead.push_front((part, by));
        }
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.stack.last().map_or(self.root, |fd| fd.as_fd())
    }

    fn finish(mut self, make: Make) -> Result<OwnedFd> {
        while let Some((part, by)) = self.advance()? {
            if by == By::Kernel || make == Make::Nothing {
                return Err(self.missing(by));
            }
            let made = self.make(&part, self.ahead.is_empty() && make == Make::File)?;
            self.enter(made)?;
        }
        match self.stack.pop() {
            Some(fd) => Ok(fd),
            None => self.root.try_clone_to_owned().doing(Kind::Internal, || "cannot copy an fd"),
        }
    }

    /// Goes on until a part is missing, and returns that.
    fn advance(&mut self) -> Result<Option<(OsString, By)>> {
        while let Some((part, by)) = self.ahead.pop_front() {
            if part == ".." {
                self.stack.pop();
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match fs::openat(self.here(), &part, flags, Mode::empty()) {
                Ok(fd) => self.enter(fd)?,
                Err(Errno::NOENT) => return Ok(Some((part, by))),
                Err(errno) => return Err(refused(self.path, errno)),
            }
        }
        Ok(None)
    }

    fn enter(&mut self, next: OwnedFd) -> Result<()> {
        if matches!(file_type(&next), Ok(FileType::Symlink)) {
            return self.follow(&next);
        }
        self.stack.push(next);
        Ok(())
    }

    fn follow(&mut self, link: &OwnedFd) -> Result<()> {
        self.symlinks += 1;
        if self.symlinks > MOST_SYMLINKS {
            return Err(refused(self.path, Errno::LOOP));
        }
        let target = fs::readlinkat(link, c"", Vec::new()).map_err(|errno| refused(self.path, errno))?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            self.stack.clear();
        }
        let kernels = inside_root::is_on_magic(link).map_err(|errno| refused(self.path, errno))?;
        self.push_front(target, if kernels { By::Kernel } else { By::Symlink });
        Ok(())
    }

    fn make(&self, part: &OsStr, file: bool) -> Result<OwnedFd> {
        let made = if file {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            fs::openat(self.here(), part, flags, Mode::from_raw_mode(0o644)).map(drop)
        } else {
            fs::mkdirat(self.here(), part, Mode::from_raw_mode(0o755))
        };
        let what = || format!("cannot create {} in the root filesystem", self.path.display());
        made.doing(Kind::BadSpec, what).map_err(|error| match made {
            Err(Errno::ROFS) => error.hint(
                "mount over something that exists, below a folder of your own such as /work, or in a root of your own",
            ),
            Ok(()) | Err(_) => error,
        })?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(self.here(), part, flags, Mode::empty()).doing(Kind::BadSpec, what)
    }

    fn missing(&self, by: By) -> Error {
        let path = self.path.display();
        match by {
            By::Caller => Error::new(Kind::NotFound, format!("{path} does not exist in the root filesystem")),
            By::Symlink | By::Kernel => {
                let what = format!("{path} goes through a symlink that leads to nothing in the root filesystem");
                Error::new(Kind::BadSpec, what)
            }
        }
    }
}

fn refused(path: &Path, errno: Errno) -> Error {
    Error::new(Kind::BadSpec, format!("cannot resolve {} in the root filesystem: {errno}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().expect("a folder");
        let fd = super::super::handle::open_path(dir.path()).expect("it opens");
        (dir, fd)
    }

    #[test]
    fn what_is_missing_is_made_inside() {
        let (dir, root) = root();
        open(root.as_fd(), Path::new("/a/b"), Make::Folder).expect("made");
        assert!(dir.path().join("a/b").is_dir());
        open(root.as_fd(), Path::new("/a/c/file"), Make::File).expect("made");
        assert!(dir.path().join("a/c/file").is_file());
        let missing = open(root.as_fd(), Path::new("/no"), Make::Nothing).expect_err("missing");
        assert_eq!(missing.kind(), Kind::NotFound);
    }

    #[test]
    fn an_absolute_symlink_is_the_images_own() {
        let (dir, root) = root();
        std::fs::create_dir_all(dir.path().join("run")).expect("made");
        std::fs::create_dir_all(dir.path().join("var")).expect("made");
        symlink("/run", dir.path().join("var/run")).expect("made");
        open(root.as_fd(), Path::new("/var/run/docker.sock"), Make::File).expect("made");
        assert!(dir.path().join("run/docker.sock").is_file());
    }

    #[test]
    fn what_a_symlink_leads_to_is_made_inside() {
        let (dir, root) = root();
        let outside = tempfile::tempdir().expect("a folder");
        symlink(outside.path(), dir.path().join("absolute")).expect("made");
        symlink("../../../../../../../tmp", dir.path().join("climbing")).expect("made");
        symlink("/absolute/../resolve", dir.path().join("chain")).expect("made");
        for path in ["/absolute/x", "/climbing/x", "/chain"] {
            open(root.as_fd(), Path::new(path), Make::File).expect("made");
        }
        assert_eq!(std::fs::read_dir(outside.path()).expect("readable").count(), 0);
        let inside = dir.path().join(outside.path().strip_prefix("/").expect("absolute"));
        assert!(inside.join("x").is_file() && dir.path().join("tmp/x").is_file());
        assert!(inside.with_file_name("resolve").is_file());
    }

    #[test]
    fn what_a_symlink_leads_to_is_not_made_where_nothing_is_to_be() {
        let (dir, root) = root();
        symlink("/nowhere", dir.path().join("link")).expect("made");
        let error = open(root.as_fd(), Path::new("/link/x"), Make::Nothing).expect_err("missing");
        assert_eq!(error.kind(), Kind::BadSpec, "{error}");
        assert!(!dir.path().join("nowhere").exists());
    }

    #[test]
    fn a_link_of_the_kernel_s_is_no_path() {
        let (dir, _) = root();
        let slash = super::super::handle::open_path(Path::new("/")).expect("it opens");
        let file = std::fs::File::create(dir.path().join("gone")).expect("made");
        std::fs::remove_file(dir.path().join("gone")).expect("ours");
        let path = format!("/proc/self/fd/{}/x", std::os::fd::AsRawFd::as_raw_fd(&file));
        let error = open(slash.as_fd(), Path::new(&path), Make::Folder).expect_err("refused");
        assert_eq!(error.kind(), Kind::BadSpec, "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_loop_of_symlinks_ends() {
        let (dir, root) = root();
        symlink("b", dir.path().join("a")).expect("made");
        symlink("a", dir.path().join("b")).expect("made");
        assert!(open(root.as_fd(), Path::new("/a"), Make::Folder).is_err());
    }

    #[test]
    fn images_whose_system_folders_are_links_to_the_host_are_refused() {
        for name in ["dev", "proc", "sys", "etc"] {
            let (dir, root) = root();
            let outside = tempfile::tempdir().expect("a folder");
            symlink(outside.path(), dir.path().join(name)).expect("made");
            let error = refuse_host_links(root.as_fd()).expect_err("refused");
            assert!(error.to_string().contains(&format!("/{name}")), "{error}");
        }
        let (dir, root) = root();
        symlink("usr/etc", dir.path().join("etc")).expect("made");
        std::fs::create_dir_all(dir.path().join("usr/etc")).expect("made");
        refuse_host_links(root.as_fd()).expect("an inner link is the image's own");
    }
}
