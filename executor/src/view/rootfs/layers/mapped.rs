//! An overlay whose lower layers show owners by an idmap.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{self, CWD, Mode, OFlags};

use super::layer::Layer;
use super::making::{make, map};
use super::{apart, overlay};
use crate::view::idmap::Idmap;
use crate::view::rootfs::options::Options;

/// Makes an overlay whose lower layers show owners by `idmap`, attached nowhere.
///
/// An overlay only takes layers by path, and copies their mounts. So the layers are attached where nobody else sees
/// them. Linux ≥ 5.19.
pub fn tree(root: &Path, layer: &Layer, options: &Options, idmap: &Idmap) -> Result<OwnedFd> {
    let owners = idmap.user_namespace()?;
    apart::with_scratch("uidmap and gidmap", root, |scratch| here(scratch, layer, options, owners.as_fd()))
}

fn here(scratch: BorrowedFd<'_>, layer: &Layer, options: &Options, owners: BorrowedFd<'_>) -> Result<OwnedFd> {
    let what = || "cannot lay out idmapped layers";
    let lowers = overlay::lower_folders(&options.data)?;
    let open = |lower: &PathBuf| -> Result<OwnedFd> {
        let tree = sys::open_tree(CWD, lower, false);
        let tree = tree.doing(Kind::BadSpec, || format!("cannot open {}", lower.display()))?;
        map(&tree, false, owners, lower)?;
        Ok(tree)
    };
    let layers: Vec<OwnedFd> = lowers.iter().map(open).collect::<Result<_>>()?;
    let folder = |name: &str| -> rustix::io::Result<OwnedFd> {
        fs::mkdirat(scratch, name, Mode::from_raw_mode(0o755))?;
        fs::openat(scratch, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    };
    for (number, layer) in layers.iter().enumerate() {
        let at = folder(&number.to_string()).doing(Kind::Internal, what)?;
        sys::move_mount(layer.as_fd(), at.as_fd()).doing(Kind::Internal, what)?;
    }
    let merged = folder("merged").doing(Kind::Internal, what)?;
    rustix::process::fchdir(scratch).doing(Kind::Internal, what)?;
    make(layer, options, &overlay::numbered(&options.data, layers.len()), merged.as_fd())?;
    sys::open_tree(scratch, Path::new("merged"), false).doing(Kind::Internal, what)
}
