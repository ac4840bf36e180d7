//! Devices by the Container Device Interface: from their names to what vendors' files give a task with them.
//!
//! ```text
//!   folders ─ file ─► known ─ resolve ─► `cdi_edits` of the description, which goes to the shim and into the record
//! ```
//!
//! The files are read once, before the launch: what they say later changes no task. Must not: check what a description's
//! own check finds.

mod file;
pub mod gpus;
pub mod known;
mod lenient;
mod yaml;

use std::fmt::Display;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bowline_model::{Doing as _, Error, Kind, Result};
use bowline_spec::{CdiEdits, CdiNode, Task};

use self::known::Known;
use crate::ui::print::complain;

/// Writes into `task` what the files in `folders` say of its devices. Says on stderr which files do not count.
///
/// # Errors
/// `NotFound` for a device that no file has, with the names that there are; `BadSpec` for one that two files of a folder
/// have, or that gives what bowline cannot.
pub fn resolve(task: &mut Task, folders: &[PathBuf]) -> Result<()> {
    task.cdi_edits = None;
    if task.cdi_devices.is_empty() {
        return Ok(());
    }
    let known = Known::of(folders);
    let mut edits = CdiEdits::default();
    let (mut files, mut devices) = (Vec::new(), Vec::new());
    for (index, device) in task.cdi_devices.iter().enumerate() {
        let in_field = |error: Error| error.in_field(format!("cdi_devices[{index}]"));
        if devices.contains(&device) {
            continue;
        }
        let (file, found) = known.find(device).map_err(in_field)?;
        let path = file.path.display();
        if !files.contains(&&file.path) {
            add(&mut edits, &file.spec.container_edits, &file.path, &path).map_err(in_field)?;
            files.push(&file.path);
        }
        let place = format_args!("{path}: device {}", found.name);
        add(&mut edits, &found.container_edits, &file.path, &place).map_err(in_field)?;
        devices.push(device);
    }
    if let Some(left_out) = known.left_out() {
        complain(&left_out, None);
    }
    task.cdi_edits = Some(Box::new(edits));
    Ok(())
}

/// Adds `more`, which is from `place` in `file`.
fn add(edits: &mut CdiEdits, more: &CdiEdits, file: &Path, place: &dyn Display) -> Result<()> {
    more.check().map_err(|invalid| Error::new(Kind::BadSpec, invalid.to_string()).within(place))?;
    let mut more = more.clone();
    more.device_nodes.iter_mut().try_for_each(complete).map_err(|error| error.within(place))?;
    let mut binds = more.mounts.iter().filter(|mount| mount.is_bind());
    binds.try_for_each(|bind| about(&bind.host_path).map(drop)).map_err(|error| error.within(place))?;
    more.hooks.iter_mut().for_each(|hook| hook.file = Some(file.to_owned()));
    edits.env.append(&mut more.env);
    edits.device_nodes.append(&mut more.device_nodes);
    edits.mounts.append(&mut more.mounts);
    edits.hooks.append(&mut more.hooks);
    edits.additional_gids.append(&mut more.additional_gids);
    Ok(())
}

fn about(path: &Path) -> Result<Metadata> {
    std::fs::metadata(path).doing(Kind::NotFound, || format!("cannot use {}", path.display()))
}

/// Completes a node from that of the host. So the record has its numbers, whatever becomes of that.
fn complete(node: &mut CdiNode) -> Result<()> {
    if node.kind == "p" || !node.kind.is_empty() && node.major != 0 {
        return Ok(());
    }
    let path = node.host_path.as_ref().unwrap_or(&node.path);
    let meta = about(path)?;
    let bad = |what: String| Err(Error::new(Kind::BadSpec, format!("{} {what}", path.display())));
    let kind = match meta.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        kind if kind.is_fifo() => "p",
        _ => return bad("is not a device".to_owned()),
    };
    if ![kind, ""].contains(&node.kind.replace('u', "c").as_str()) {
        return bad(format!("has the type {kind} on this host, not {}", node.kind));
    }
    kind.clone_into(&mut node.kind);
    if node.major == 0 && kind != "p" {
        node.major = i64::from(rustix::fs::major(meta.rdev()));
        node.minor = i64::from(rustix::fs::minor(meta.rdev()));
    }
    Ok(())
}
