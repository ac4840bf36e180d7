//! A layer that is built on the ones before it, as containerd 2 describes images in files: what it says of their places
//! is filled in (`format/`), and folders are made for it (`mkdir/`).
//!
//! The mounts before it are made where nobody else sees them, as an overlay and a bind keep what they lie on.
//! Source: containerd, docs/mounts.md.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{self, CWD, Gid, Mode, OFlags, Uid};

use super::apart;
use super::attach::attach;
use super::layer::{Layer, named};
use super::place::{staying, target};
use crate::view::inside_root::{self, Symlinks};
use crate::view::rootfs::open_path;

const FORMAT: &str = "format/";
const MKDIR: &str = "mkdir/";
/// The option of a folder to be made, with its mode and owner: `PATH[:MODE[:UID:GID]]`.
const FOLDER: &str = "X-containerd.mkdir.path=";

/// A mount that later ones may name by its number.
struct Mounted {
    source: String,
    at: PathBuf,
}

/// Whether `layer` is one that is built.
pub fn is(layer: &Layer) -> bool {
    [FORMAT, MKDIR].iter().any(|prefix| layer.kind.starts_with(prefix))
}

/// The layers before the last one that is built, which are mounted for it alone, and that one with those after it.
pub fn split(layers: &[Layer]) -> (&[Layer], &[Layer]) {
    layers.split_at(layers.iter().rposition(is).unwrap_or(0))
}

/// Mounts `layer`, which is built on `below`.
pub fn build(root: &Path, below: &[Layer], layer: &Layer) -> Result<()> {
    let tree = staying(|| apart::with_scratch("format/ and mkdir/", root, |_| in_scratch(root, below, layer)))?;
    let target = target(root, layer)?;
    sys::move_mount(tree.as_fd(), target.as_fd()).doing(Kind::Internal, || "cannot attach it")
}

/// Mounts all of them in folders of `root`, where a scratch filesystem is: what the last one shows.
fn in_scratch(root: &Path, below: &[Layer], layer: &Layer) -> Result<OwnedFd> {
    let mut mounted = Vec::new();
    for one in below {
        let done = mount(root, one, &mounted).map_err(|error| error.within(named(one)))?;
        mounted.push(done);
    }
    let last = Layer { target: String::new(), ..layer.clone() };
    let Mounted { at, .. } = mount(root, &last, &mounted)?;
    sys::open_tree(CWD, &at, true).doing(Kind::Internal, || "cannot detach it")
}

/// Mounts one of them in a folder of its own, by its number.
fn mount(root: &Path, layer: &Layer, below: &[Mounted]) -> Result<Mounted> {
    if !layer.target.is_empty() {
        return Err(Error::new(Kind::BadSpec, "it has a target, and a later mount is built on it"));
    }
    let layer = finished(layer.clone(), below)?;
    let at = root.join(below.len().to_string());
    let what = || format!("cannot make {}", at.display());
    fs::mkdirat(CWD, &at, Mode::from_raw_mode(0o755)).doing(Kind::Internal, what)?;
    attach(&at, &layer)?;
    Ok(Mounted { source: layer.source, at })
}

/// The mount that is left once everything is done that its type begins with, from left to right.
fn finished(mut layer: Layer, below: &[Mounted]) -> Result<Layer> {
    loop {
        if let Some(kind) = layer.kind.strip_prefix(FORMAT) {
            layer.kind = kind.to_owned();
            layer.source = filled(&layer.source, below)?;
            layer.options = layer.options.iter().map(|option| filled(option, below)).collect::<Result<_>>()?;
        } else if let Some(kind) = layer.kind.strip_prefix(MKDIR) {
            layer.kind = kind.to_owned();
            for option in std::mem::take(&mut layer.options) {
                match option.strip_prefix(FOLDER) {
                    Some(folder) => make_folder(folder, below).map_err(|error| error.within(option.clone()))?,
                    None => layer.options.push(option),
                }
            }
        } else {
            return Ok(layer);
        }
    }
}

/// `text` with each `{{ … }}` replaced by what it stands for.
fn filled(text: &str, below: &[Mounted]) -> Result<String> {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let place = after.split_once("}}").and_then(|(place, after)| Some((value(place, below)?, after)));
        let (value, after) = place.ok_or_else(|| {
            Error::new(Kind::BadSpec, format!("{text} names none of the {} mounts before it", below.len()))
        })?;
        done.extend([before, &value]);
        rest = after;
    }
    Ok(done + rest)
}

fn value(place: &str, below: &[Mounted]) -> Option<String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number < below.len());
    let at = |number: usize| below[number].at.display().to_string();
    match place.split_whitespace().collect::<Vec<_>>()[..] {
        ["source", one] => Some(below[number(one)?].source.clone()),
        ["mount", one] => Some(at(number(one)?)),
        ["overlay", first, last] => {
            let (first, last) = (number(first)?, number(last)?);
            let mut places: Vec<String> = (first.min(last)..=first.max(last)).map(at).collect();
            if first > last {
                places.reverse();
            }
            Some(places.join(":"))
        }
        _ => None,
    }
}

/// Makes a folder, unless it is there. In an earlier mount, no symlink leads out of that.
fn make_folder(described: &str, below: &[Mounted]) -> Result<()> {
    let wrong = || Error::new(Kind::BadSpec, "not PATH[:MODE[:UID:GID]], with a path from / on and an octal mode");
    let mode = |text: &str| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(wrong);
    let id = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let (path, mode, owner) = match described.split(':').collect::<Vec<_>>()[..] {
        [path] => (path, 0o700, None),
        [path, bits] => (path, mode(bits)?, None),
        [path, bits, uid, gid] => (path, mode(bits)?, Some((id(uid)?, id(gid)?))),
        _ => return Err(wrong()),
    };
    let path = Path::new(path);
    let mut within = below.iter().map(|mounted| &*mounted.at).chain([Path::new("/")]);
    let (base, rest) = within.find_map(|base| Some((base, path.strip_prefix(base).ok()?))).ok_or_else(wrong)?;
    let (Some(parent), Some(name)) = (rest.parent(), rest.file_name()) else { return Err(wrong()) };
    let what = || "cannot make the folder";
    let base = open_path(base).doing(Kind::BadSpec, what)?;
    let parent = inside_root::open(base.as_fd(), parent, OFlags::PATH | OFlags::CLOEXEC, Symlinks::Followed)
        .doing(Kind::BadSpec, what)?;
    make_in(&parent, name, Mode::from_raw_mode(mode), owner).doing(Kind::BadSpec, what)
}

fn make_in(parent: &OwnedFd, name: &OsStr, mode: Mode, owner: Option<(u32, u32)>) -> rustix::io::Result<()> {
    let is_new = match fs::mkdirat(parent, name, mode) {
        Err(rustix::io::Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = fs::openat(parent, name, flags, Mode::empty())?;
    if !is_new {
        return Ok(());
    }
    if let Some((uid, gid)) = owner {
        fs::fchown(&folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    // Whatever our umask is.
    fs::fchmod(&folder, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_earlier_mounts_are_filled_in() {
        let mounted =
            |number: u32| Mounted { source: format!("/images/{number}"), at: format!("/root/{number}").into() };
        let below: Vec<Mounted> = (0..3).map(mounted).collect();
        for (text, expected) in [
            ("index=off", Some("index=off")),
            ("upperdir={{ mount 0 }}/upper", Some("upperdir=/root/0/upper")),
            ("lowerdir={{mount 1}}:{{  mount 2 }}", Some("lowerdir=/root/1:/root/2")),
            ("lowerdir={{ overlay 1 2 }}", Some("lowerdir=/root/1:/root/2")),
            ("lowerdir={{ overlay 2 0 }}", Some("lowerdir=/root/2:/root/1:/root/0")),
            ("{{ source 2 }}", Some("/images/2")),
            ("{{ mount 3 }}", None),
            ("{{ mount -1 }}", None),
            ("{{ overlay 0 3 }}", None),
            ("{{ mount }}", None),
            ("{{ printf 0 }}", None),
            ("{{ mount 0 }", None),
        ] {
            assert_eq!(filled(text, &below).ok().as_deref(), expected, "{text}");
        }
    }
}
