//! Attaches one layer: a bind, or a filesystem, whose device may be a file.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, MountAttributes};
use oci_spec::runtime::{Mount as OciMount, MountBuilder};
use rustix::fs::CWD;

use super::layer::Layer;
use super::making::{make, map};
use super::place::{staying, target};
use super::{loops, mapped, overlay};
use crate::view::idmap::{self, Idmap};
use crate::view::rootfs::options::{self, Options};
use crate::view::rootfs::{not_attached, open_path, stage};

/// Attaches `layer` at its place in `root`.
pub(super) fn attach(root: &Path, layer: &Layer) -> Result<()> {
    let Described { mount, idmap, image, direct } = described(layer)?;
    let options = options::of(&mount)?;
    if options.remount {
        return Err(Error::new(Kind::Unsupported, "the option remount is not supported for the root"));
    }
    if let Some(option) = options.ignored.first() {
        let message = format!("{option} is an option of a filesystem, and a bind makes none");
        return Err(Error::new(Kind::BadSpec, message));
    }
    staying(|| match options.bind {
        Some(_) if image => {
            Err(Error::new(Kind::BadSpec, "the option loop is for a filesystem, and a bind makes none"))
        }
        Some(recursive) => bind(root, layer, &options, recursive, idmap.as_ref()),
        None if image => {
            let read_only = options.all_set() & libc::MOUNT_ATTR_RDONLY != 0;
            let device = loops::attach(Path::new(&layer.source), read_only, direct)?;
            let layer = Layer { source: device.path.clone(), ..layer.clone() };
            filesystem(root, &layer, &options, idmap.as_ref())
        }
        None => filesystem(root, layer, &options, idmap.as_ref()),
    })
}

/// A layer as an OCI mount, with what an OCI mount has no place for.
struct Described {
    mount: OciMount,
    idmap: Option<Idmap>,
    /// Whether the source is a file that needs a loop device.
    image: bool,
    /// Whether that device leaves out the page cache.
    direct: bool,
}

fn described(layer: &Layer) -> Result<Described> {
    let refused = |what: String| Err(Error::new(Kind::Unsupported, what));
    let image = layer.options.iter().any(|option| option == "loop");
    let (mut idmap, mut direct) = (None::<Idmap>, false);
    refuse_unfinished(layer)?;
    let mut plain = Vec::new();
    for option in &layer.options {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "uidmap" | "gidmap" => {
                let mappings = idmap::parse(value);
                let bad = || Error::new(Kind::BadSpec, format!("{option}: not container:host:size"));
                let mappings = mappings.ok_or_else(bad)?;
                let idmap = idmap.get_or_insert_default();
                if key == "uidmap" { &mut idmap.uids } else { &mut idmap.gids }.extend(mappings);
            }
            "loop" if value.is_empty() => {}
            "direct-io" if image => direct = true,
            _ if key.starts_with("X-containerd.") => {
                return refused(format!("the option {option} is for its manager, which was to carry it out"));
            }
            _ => plain.push(option.clone()),
        }
    }
    if let Some(helper) = ["fuse.", "fuse3."].into_iter().find(|prefix| layer.kind.starts_with(prefix)) {
        return refused(format!("type {}: a mount by a helper of {helper}* is not supported", layer.kind));
    }
    let kind = if layer.kind == "rbind" { "bind" } else { &layer.kind };
    if layer.kind == "rbind" {
        plain.push("rbind".to_owned());
    }
    let mount = MountBuilder::default().destination(&layer.target).typ(kind).source(&layer.source).options(plain);
    let mount = mount.build().doing(Kind::Internal, || "cannot describe a mount")?;
    Ok(Described { mount, idmap, image, direct })
}

/// Refuses what containerd's mount manager should have carried out: it makes filesystems before it hands mounts to a
/// shim, and fills in placeholders (`{{`) where the type says that there are some.
fn refuse_unfinished(layer: &Layer) -> Result<()> {
    let texts = [&layer.source, &layer.target].into_iter().chain(&layer.options);
    let unfinished = texts.into_iter().find(|text| text.contains("{{"));
    let Some(what) = layer.kind.starts_with("mkfs/").then_some(&layer.kind).or(unfinished) else { return Ok(()) };
    Err(Error::new(Kind::Unsupported, format!("{what} is for its manager, which was to carry it out")))
}

/// Binds a layer and changes the bind as its options say: a read-only bind keeps its source's other flags. Where
/// the kernel allows it, the bind is changed before any process can see it.
fn bind(root: &Path, layer: &Layer, options: &Options, recursive: bool, idmap: Option<&Idmap>) -> Result<()> {
    let what = || format!("cannot bind {}", layer.source);
    let source = Path::new(&layer.source);
    let target_at = target(root, layer)?;
    let propagation = options.propagation.map_or(0, |(propagation, _)| propagation);
    let one = MountAttributes { set: options.set, clear: options.clear, propagation };
    let all = MountAttributes { set: options.set_recursive, clear: options.clear_recursive, propagation: 0 };
    if sys::has_mount_fds() {
        let tree = sys::open_tree(CWD, source, recursive).doing(Kind::BadSpec, what)?;
        if let Some(idmap) = idmap {
            map(&tree, recursive, idmap.user_namespace()?.as_fd(), source)?;
        }
        change(tree.as_fd(), false, one)?;
        change(tree.as_fd(), true, all)?;
        return sys::move_mount(tree.as_fd(), target_at.as_fd())
            .map_err(|errno| not_attached(&target_at, &tree, errno));
    }
    if idmap.is_some() {
        return Err(Error::new(Kind::Unsupported, "uidmap and gidmap need mount_setattr (Linux 5.12)"));
    }
    let source = open_path(source).doing(Kind::BadSpec, what)?;
    stage::bind(source.as_fd(), target_at.as_fd(), recursive)
        .map_err(|errno| not_attached(&target_at, &source, errno))?;
    if one.is_none() && all.is_none() {
        return Ok(());
    }
    // The bind that must be changed lies on top of the old target.
    let tree = target(root, layer)?;
    change(tree.as_fd(), false, one)?;
    change(tree.as_fd(), true, all)
}

fn change(tree: BorrowedFd<'_>, recursive: bool, attributes: MountAttributes) -> Result<()> {
    if attributes.is_none() {
        return Ok(());
    }
    let done = match sys::has_mount_fds() {
        true => sys::mount_setattr(tree, recursive, attributes),
        false => stage::change(tree, recursive, attributes),
    };
    done.doing(Kind::Internal, || "cannot set its attributes")
}

fn filesystem(root: &Path, layer: &Layer, options: &Options, idmap: Option<&Idmap>) -> Result<()> {
    let target = target(root, layer)?;
    match idmap {
        None => {
            let fitting = overlay::fitting(&layer.kind, &options.data)?;
            make(layer, options, &fitting.data, target.as_fd())
        }
        Some(idmap) if layer.kind == "overlay" => {
            let tree = mapped::tree(root, layer, options, idmap)?;
            let what = || "cannot attach it";
            sys::move_mount(tree.as_fd(), target.as_fd()).doing(Kind::Internal, what)
        }
        Some(_) => {
            let what = format!("uidmap and gidmap are not supported for a mount of type {}", layer.kind);
            Err(Error::new(Kind::Unsupported, what))
        }
    }
}
