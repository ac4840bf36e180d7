//! Users and groups by name, as the root filesystem of the task knows them.
//!
//! Never the host's user database: `web` in an image is the image's `web`.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_spec::UserIds;
use bowline_spec::user::NameOrId;
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::view::inside_root::{self, Symlinks};

const PASSWD: &str = "/etc/passwd";

/// How a file of a root is opened: at once, whatever it has become since it was looked at.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// More than any sane user database has; a larger file is refused.
const MOST_BYTES: u64 = 4 << 20;

/// What the longest path takes, its NUL included (path_resolution(7)).
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The user and groups that a process asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The user; 0 when absent.
    pub user: Option<&'a NameOrId>,
    /// The primary group; the user's own when absent.
    pub group: Option<&'a NameOrId>,
    /// Supplementary groups, on top of those that list the user.
    pub groups: &'a [NameOrId],
}

/// Resolves `wanted` with `/etc/passwd` and `/etc/group` inside `root`.
///
/// # Errors
/// `BadSpec` naming the user or group that the root does not know.
pub fn resolve(root: BorrowedFd<'_>, wanted: Wanted<'_>) -> Result<UserIds> {
    let read = |path: &str| read(root, path).map_err(|error| error.in_field("user"));
    by_files(&read(PASSWD)?, || read("/etc/group"), wanted)
}

/// Like [`resolve`], from the text of the files.
///
/// # Errors
/// As [`resolve`].
pub fn by_files(passwd: &str, group: impl FnOnce() -> Result<String>, wanted: Wanted<'_>) -> Result<UserIds> {
    let user = wanted.user.cloned().unwrap_or(NameOrId::Id(0));
    let entry = passwd.lines().filter_map(Account::parse).find(|a| a.is(&user));
    let uid = match (&user, &entry) {
        (_, Some(account)) => account.id,
        (NameOrId::Id(id), None) => *id,
        (NameOrId::Name(name), None) => {
            let message = format!("{name} is not in /etc/passwd of the root filesystem");
            return Err(Error::new(Kind::BadSpec, message).in_field("user"));
        }
    };
    let group_file = group()?;
    let group_id = |field: &str, wanted: &NameOrId| match wanted {
        NameOrId::Id(id) => Ok(*id),
        NameOrId::Name(name) => {
            group_file.lines().filter_map(Account::parse).find(|g| g.name == name).map(|g| g.id).ok_or_else(|| {
                let message = format!("{name} is not in /etc/group of the root filesystem");
                Error::new(Kind::BadSpec, message).in_field(field)
            })
        }
    };
    let gid = match wanted.group {
        Some(group) => group_id("group", group)?,
        None => entry.as_ref().and_then(|a| a.primary_group()).unwrap_or(0),
    };
    let mut groups: Vec<u32> = Vec::new();
    if let Some(account) = &entry {
        let listing = group_file.lines().filter_map(Account::parse);
        groups.extend(listing.filter(|g| g.lists(account.name)).map(|g| g.id));
    }
    for group in wanted.groups {
        groups.push(group_id("groups", group)?);
    }
    groups.retain(|g| *g != gid);
    groups.sort_unstable();
    groups.dedup();
    let home = entry.as_ref().map(Account::home).transpose()?.flatten().map(PathBuf::from);
    Ok(UserIds { uid, gid, groups, home })
}

/// The home of user `uid` by `/etc/passwd` inside `root`; `None` if there is none, or no such file that can be read.
///
/// For a process inside the root: it uses no procfs, as the task's may be anything.
///
/// # Errors
/// `BadSpec` where it is too long for a path.
pub fn home(root: impl AsFd, uid: u32) -> Result<Option<String>> {
    let text = passwd(root).unwrap_or_default();
    let account = text.lines().filter_map(Account::parse).find(|account| account.id == uid);
    Ok(account.as_ref().map(Account::home).transpose()?.flatten().map(str::to_owned))
}

/// What `/etc/passwd` inside `root` says, for [`home`].
fn passwd(root: impl AsFd) -> Option<String> {
    let open = |flags| inside_root::open(root.as_fd(), Path::new(PASSWD), flags, Symlinks::Followed).ok();
    let looked_at = fs::fstat(open(OFlags::PATH | OFlags::CLOEXEC)?).ok()?;
    if !is_regular(&looked_at) || looked_at.st_size == 0 {
        return None;
    }
    let file = open(READ)?;
    let opened = fs::fstat(&file).ok()?;
    if (opened.st_dev, opened.st_ino) != (looked_at.st_dev, looked_at.st_ino) {
        return None;
    }
    text(file).ok()
}

/// A line of `/etc/passwd` or `/etc/group`: `name:password:id:…` (passwd(5), group(5)).
struct Account<'a> {
    name: &'a str,
    id: u32,
    rest: &'a str,
}

impl<'a> Account<'a> {
    fn parse(line: &'a str) -> Option<Account<'a>> {
        let mut fields = line.splitn(4, ':');
        let name = fields.next()?;
        let id = fields.nth(1)?.parse().ok()?;
        let rest = fields.next().unwrap_or("");
        Some(Account { name, id, rest })
    }

    fn is(&self, user: &NameOrId) -> bool {
        match user {
            NameOrId::Id(id) => self.id == *id,
            NameOrId::Name(name) => self.name == name,
        }
    }

    /// The fourth field of a passwd line.
    fn primary_group(&self) -> Option<u32> {
        self.rest.split(':').next()?.parse().ok()
    }

    /// The sixth field of a passwd line.
    fn home(&self) -> Result<Option<&'a str>> {
        let home = self.rest.split(':').nth(2).filter(|home| !home.is_empty());
        match home.map_or(0, str::len) {
            length if length < PATH_MAX => Ok(home),
            length => {
                let message = format!(
                    "user {}: its home folder takes {length} bytes; a path has at most {}",
                    self.id,
                    PATH_MAX - 1
                );
                Err(Error::new(Kind::BadSpec, format!("{PASSWD} in the root filesystem: {message}"))
                    .hint("shorten it in the image"))
            }
        }
    }

    /// Whether the last field of a group line lists `user`.
    fn lists(&self, user: &str) -> bool {
        self.rest.split(',').any(|member| member == user)
    }
}

fn read(root: BorrowedFd<'_>, path: &str) -> Result<String> {
    // Absolute symlinks are the image's own (/etc/passwd → /usr/etc/passwd).
    let what = || format!("cannot read {path} in the root filesystem");
    let refused = |why: &dyn Display| Error::new(Kind::BadSpec, format!("{}: {why}", what()));
    let unfit = |why: &dyn Display| refused(why).hint(format!("make {path} a plain file of names in the image"));
    let fd = match inside_root::open(root, Path::new(path), OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(String::new()),
        Err(errno) => return Err(refused(&errno)),
    };
    // Nothing but a regular file is opened: with the host's rights, opening a device may have an
    // effect, and opening a FIFO may take forever.
    let stat = fs::fstat(&fd).doing(Kind::BadSpec, what)?;
    if !is_regular(&stat) {
        return Err(unfit(&"it is not a regular file"));
    }
    if stat.st_size as u64 > MOST_BYTES {
        return Err(unfit(&format_args!("it is larger than {} MiB", MOST_BYTES >> 20)));
    }
    // Files of procfs have size 0, and reading /proc/kmsg takes its messages.
    if stat.st_size == 0 {
        return Ok(String::new());
    }
    let file = fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), READ, Mode::empty());
    text(file.doing(Kind::BadSpec, what)?).doing(Kind::BadSpec, what)
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// What `file` says, up to the most that is read of one.
fn text(file: OwnedFd) -> io::Result<String> {
    // As much at once as most of them are long.
    let mut bytes = Vec::with_capacity(4096);
    File::from(file).take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("etc")).expect("made");
        let passwd = "root:x:0:0::/root:/bin/sh\nweb:x:33:44::/srv:/bin/sh\nbroken\n";
        std::fs::write(dir.path().join("etc/passwd"), passwd).expect("written");
        let group = "root:x:0:\nwww:x:44:\nvideo:x:7:web,root\naudio:x:8:webby\n";
        std::fs::write(dir.path().join("etc/group"), group).expect("written");
        let fd = File::open(dir.path()).expect("it opens");
        (dir, fd)
    }

    fn name(name: &str) -> NameOrId {
        NameOrId::Name(name.to_owned())
    }

    #[test]
    fn a_name_brings_its_group_its_groups_and_its_home() {
        let (_dir, root) = root();
        let user = name("web");
        let wanted = Wanted { user: Some(&user), ..Wanted::default() };
        let ids = resolve(root.as_fd(), wanted).expect("known");
        assert_eq!((ids.uid, ids.gid, ids.groups), (33, 44, vec![7]));
        assert_eq!(ids.home.as_deref(), Some(Path::new("/srv")));
    }

    #[test]
    fn a_number_needs_no_entry_and_a_name_does() {
        let (_dir, root) = root();
        let user = NameOrId::Id(4711);
        let wanted = Wanted { user: Some(&user), ..Wanted::default() };
        let ids = resolve(root.as_fd(), wanted).expect("a number");
        assert_eq!((ids.uid, ids.gid), (4711, 0));
        let user = name("nosuch");
        let wanted = Wanted { user: Some(&user), ..Wanted::default() };
        let error = resolve(root.as_fd(), wanted).expect_err("unknown");
        assert!(error.to_string().contains("nosuch"), "{error}");
    }

    #[test]
    fn groups_by_name_and_number_are_added() {
        let (_dir, root) = root();
        let (group, groups) = (name("video"), [name("www"), NameOrId::Id(99)]);
        let wanted = Wanted { user: None, group: Some(&group), groups: &groups };
        let ids = resolve(root.as_fd(), wanted).expect("known");
        assert_eq!((ids.uid, ids.gid, ids.groups), (0, 7, vec![44, 99]));
    }
}
