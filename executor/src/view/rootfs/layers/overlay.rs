//! Fits an overlay's options to mount(2), which takes 4095 bytes of them: the paths of an image's layers exceed
//! that.
//!
//! The layers are then named relative to a folder that contains them all, which becomes the working directory;
//! where that is still too long, by numbers of open fds.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};

use crate::view::rootfs::open_path;

/// The longest option text of mount(2): a page, with the NUL at its end.
const LONGEST: usize = 4095;

const LOWER: &str = "lowerdir";

/// Options of a filesystem itself rather than of its mount: names, and values that some have.
pub type Data = Vec<(String, Option<String>)>;

/// Options that fit mount(2), with the files that must stay open until it has taken them.
pub struct Fitting {
    pub data: Data,
    _open: Vec<OwnedFd>,
}

/// Shortens `data` until mount(2) takes it. May change the working directory.
///
/// # Errors
/// `BadSpec` if `data` stays too long.
pub fn fitting(kind: &str, data: &Data) -> Result<Fitting> {
    if length(data) <= LONGEST {
        return Ok(Fitting { data: data.clone(), _open: Vec::new() });
    }
    let too_long = || Error::new(Kind::BadSpec, format!("its options are {} bytes, more than a page", length(data)));
    if kind != "overlay" {
        return Err(too_long());
    }
    let lowers = lower_folders(data)?;
    let what = |path: &Path| format!("cannot enter {}", path.display());
    if let Some(common) = common(&lowers) {
        let relative: Vec<&OsStr> =
            lowers.iter().filter_map(|path| path.strip_prefix(&common).ok()).map(Path::as_os_str).collect();
        let shorter = with_lowers(data, &relative);
        if length(&shorter) <= LONGEST {
            rustix::process::chdir(&common).doing(Kind::BadSpec, || what(&common))?;
            return Ok(Fitting { data: shorter, _open: Vec::new() });
        }
    }
    let open = |path: &PathBuf| open_path(path).doing(Kind::BadSpec, || format!("cannot open {}", path.display()));
    let open: Vec<OwnedFd> = lowers.iter().map(open).collect::<Result<_>>()?;
    let names: Vec<String> = open.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let shorter = with_lowers(data, &names.iter().map(OsStr::new).collect::<Vec<_>>());
    if length(&shorter) > LONGEST {
        return Err(too_long());
    }
    let fds = Path::new("/proc/self/fd");
    rustix::process::chdir(fds).doing(Kind::Internal, || what(fds))?;
    Ok(Fitting { data: shorter, _open: open })
}

/// `data` with the lower folders `0`, `1` and so on of the working directory.
pub fn numbered(data: &Data, count: usize) -> Data {
    let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    with_lowers(data, &names.iter().map(OsStr::new).collect::<Vec<_>>())
}

/// The lower folders, topmost first.
pub fn lower_folders(data: &Data) -> Result<Vec<PathBuf>> {
    let lower = data.iter().find(|(key, _)| key == LOWER).and_then(|(_, value)| value.as_deref());
    let lower = lower.ok_or_else(|| Error::new(Kind::BadSpec, "an overlay without lowerdir"))?;
    let mut folders = vec![String::new()];
    let mut chars = lower.chars();
    while let Some(c) = chars.next() {
        let last = folders.len() - 1;
        match c {
            // Overlayfs takes the next character literally.
            '\\' => folders[last].extend(chars.next()),
            ':' => folders.push(String::new()),
            c => folders[last].push(c),
        }
    }
    if folders.iter().any(String::is_empty) {
        // "::" begins data-only layers, which must not be renamed here.
        return Err(Error::new(Kind::Unsupported, "an overlay's lowerdir has an empty part"));
    }
    Ok(folders.into_iter().map(PathBuf::from).collect())
}

fn with_lowers(data: &Data, lowers: &[&OsStr]) -> Data {
    let escaped: Vec<String> = lowers.iter().map(|path| escape(&String::from_utf8_lossy(path.as_bytes()))).collect();
    let put = |(key, value): &(String, Option<String>)| match key.as_str() {
        LOWER => (key.clone(), Some(escaped.join(":"))),
        _ => (key.clone(), value.clone()),
    };
    data.iter().map(put).collect()
}

fn escape(path: &str) -> String {
    path.replace('\\', "\\\\").replace(':', "\\:")
}

/// The deepest folder that contains all of `paths`.
fn common(paths: &[PathBuf]) -> Option<PathBuf> {
    let mut shared: Vec<Component<'_>> = paths.first()?.parent()?.components().collect();
    for path in paths {
        let parent = path.parent()?;
        let same = shared.iter().zip(parent.components()).take_while(|(a, b)| **a == *b).count();
        shared.truncate(same);
    }
    let common: PathBuf = shared.into_iter().collect();
    (common.is_absolute() && common != Path::new("/")).then_some(common)
}

fn length(data: &Data) -> usize {
    let each = data.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len() + 1));
    each.map(|length| length + 1).sum::<usize>().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(lower: &str) -> Data {
        let option = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        vec![("index".to_owned(), None), option("lowerdir", lower), option("upperdir", "/u/fs")]
    }

    #[test]
    fn the_length_is_that_of_the_text() {
        assert_eq!(length(&data("/a:/b")), "index,lowerdir=/a:/b,upperdir=/u/fs".len());
        assert_eq!(length(&Vec::new()), 0);
    }

    #[test]
    fn lower_folders_are_taken_apart_and_put_together() {
        let folders = lower_folders(&data(r"/a\:b:/c\\d:/e")).expect("plain");
        assert_eq!(folders, [Path::new("/a:b"), Path::new(r"/c\d"), Path::new("/e")]);
        let names: Vec<&OsStr> = folders.iter().map(|f| f.as_os_str()).collect();
        assert_eq!(with_lowers(&data(""), &names)[1].1.as_deref(), Some(r"/a\:b:/c\\d:/e"));
        assert!(lower_folders(&data("/a::/b")).is_err());
        assert_eq!(numbered(&data("/a:/b"), 2)[1].1.as_deref(), Some("0:1"));
    }

    #[test]
    fn what_they_are_all_below_is_found() {
        let of = |paths: &[&str]| common(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["/s/1/fs", "/s/22/fs"]), Some(PathBuf::from("/s")));
        assert_eq!(of(&["/s/1/fs", "/s/1"]), Some(PathBuf::from("/s")));
        assert_eq!(of(&["/s/1", "/t/1"]), None);
        assert_eq!(of(&["/s/x"]), Some(PathBuf::from("/s")));
        assert_eq!(of(&["s/1", "s/2"]), None, "not absolute");
    }
}
