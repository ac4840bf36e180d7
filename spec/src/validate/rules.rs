//! What holds of any field: the checks that the parts share.

use std::path::{Component, Path};

use crate::invalid::Invalid;

/// An error in `field`, unless `holds`.
pub(super) fn require(holds: bool, field: &str, reason: impl FnOnce() -> String) -> Result<(), Invalid> {
    match holds {
        true => Ok(()),
        false => Err(Invalid::new(field, reason())),
    }
}

/// No NUL: the kernel would take what is before it.
pub(super) fn no_nul(field: &str, text: &str) -> Result<(), Invalid> {
    require(!text.contains('\0'), field, || "contains a NUL byte".to_string())
}

/// An absolute path without NUL.
pub(super) fn absolute(field: &str, path: &Path) -> Result<(), Invalid> {
    no_nul(field, &path.to_string_lossy())?;
    require(path.is_absolute(), field, || format!("{path:?} is not an absolute path"))
}

/// No `..`, which means something else once a link is on the way.
pub(super) fn no_parent(field: &str, path: &Path) -> Result<(), Invalid> {
    require(!path.components().any(|part| part == Component::ParentDir), field, || format!("{path:?} contains \"..\""))
}
