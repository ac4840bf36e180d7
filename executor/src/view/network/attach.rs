//! Connects a sandbox to networks, checks whether it still is connected, and undoes it.
//!
//! ```text
//!   add    list 1: plugin a, b    list 2: plugin c      each with the result of the one before
//!   check  list 1: a, b           list 2: c             with the result of the last of its list
//!   del    list 2: c              list 1: b, a          the same
//! ```
//!
//! An ADD that fails is undone at once, as far as it went. A DEL goes on after an error, and leaves what failed for
//! another DEL. Until everything is undone, the namespace is kept here if nothing else keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use bowline_model::record::Connected;
use bowline_spec::network::NetworkAttachment;
use serde_json::Value;

use super::bounded_run::Bounds;
use super::bridge::{self, Joining};
use super::list::{self, ConfigList};
use super::plugin::{Call, Plugins};
use super::record::{Attached, Kept, Netns};
use super::{lock, namespace_mount, rules, version};

/// The sandbox to connect, and how plugins are run for it.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Its id: letters, digits, `_`, `.`, `-`, the first a letter or digit.
    pub id: String,
    /// The path of its network namespace. The namespace of a process, below `/proc`, is pinned in addition.
    pub netns: PathBuf,
    /// The folders with the plugins.
    pub folders: Vec<PathBuf>,
    /// Arguments by name, which every plugin gets as `CNI_ARGS`.
    pub args: BTreeMap<String, String>,
    /// Values for the plugins that ask for them, such as `portMappings`.
    pub capabilities: BTreeMap<String, Value>,
    /// How long each plugin may take.
    pub timeout: Duration,
}

impl Sandbox {
    fn plugins(&self) -> Plugins<'_> {
        Plugins { folders: &self.folders, bounds: self.timeout.into() }
    }
}

/// Runs the lists of `attachments`, one after the other, and keeps in `folder` what is needed to undo them.
///
/// # Errors
/// `AlreadyExists` when something is kept there. Before anything is run, `BadSpec` or `NotFound` for a list,
/// `Unsupported` for a plugin that is missing. Then the errors of plugins. Nothing is left of what was added, or
/// the error says what is, and that is kept for [`del`].
pub fn add(folder: &Path, sandbox: &Sandbox, attachments: &[NetworkAttachment]) -> Result<Vec<Connected>> {
    add_within(folder, sandbox, attachments, sandbox.timeout.into())
}

/// Like [`add`], with the bounds that a worker has.
pub fn add_within(
    folder: &Path,
    sandbox: &Sandbox,
    attachments: &[NetworkAttachment],
    bounds: Bounds<'_>,
) -> Result<Vec<Connected>> {
    if Kept::read(folder)?.is_some() {
        let there = format!("sandbox {} is connected to networks already", sandbox.id);
        return Err(Error::new(Kind::AlreadyExists, there));
    }
    if !list::is_name(&sandbox.id) {
        return Err(Error::new(Kind::BadSpec, format!("plugins do not take {:?} for an id", sandbox.id)));
    }
    let lists = lists(sandbox, attachments)?;
    if lists.is_empty() {
        return Ok(Vec::new());
    }
    let _lock = lock::take(bounds);
    let netns = namespace_mount::pin(&sandbox.netns, folder)?;
    let args: Vec<String> = sandbox.args.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut kept = Kept {
        id: sandbox.id.clone(),
        netns: Netns::at(&netns)?,
        folders: sandbox.folders.clone(),
        args: args.join(";"),
        capabilities: sandbox.capabilities.clone(),
        timeout: Some(sandbox.timeout),
        attached: Vec::new(),
    };
    let mut all = attachments.iter().zip(lists);
    let added = all.try_for_each(|(attachment, list)| {
        let interface = attachment.interface.clone();
        kept.attached.push(Attached { interface, list, begun: 0, done: 0, refused: false, result: None });
        add_last(folder, &mut kept, bounds)
    });
    if let Err(error) = added.and_then(|()| kept.write(folder)) {
        return Err(match undo(folder, &mut kept, bounds) {
            Ok(()) => error,
            Err(left) => joined(&error, "; and undoing it failed: ", &left),
        });
    }
    let connected = |attached: Attached| Connected {
        interface: attached.interface,
        network: attached.list.name,
        result: attached.result.unwrap_or_default(),
    };
    Ok(kept.attached.into_iter().map(connected).collect())
}

/// Asks every plugin whether what it made is still as it was. Returns the names of the networks that cannot be
/// checked, because their list disables CHECK or their version lacks it. Each plugin may take `timeout`, but no
/// longer than at [`add`].
///
/// # Errors
/// `WrongState` for a network that was not added completely, or when the namespace is gone; the errors of plugins,
/// combined.
pub fn check(folder: &Path, timeout: Duration) -> Result<Vec<String>> {
    check_within(folder, timeout.into())
}

/// Like [`check`], with the bounds that a worker has.
pub fn check_within(folder: &Path, bounds: Bounds<'_>) -> Result<Vec<String>> {
    let Some(kept) = Kept::read(folder)? else { return Ok(Vec::new()) };
    let bounds = kept.bounds(bounds);
    if kept.netns.path().is_none() {
        let gone = format!("the network namespace of sandbox {} is gone", kept.id);
        return Err(Error::new(Kind::WrongState, gone));
    }
    let (mut unasked, mut errors) = (Vec::new(), Vec::new());
    for attached in &kept.attached {
        let Attached { interface, list, done, result, .. } = attached;
        let within = |error: Error| error.within(format!("{interface} in network {}", list.name));
        if *done < list.plugins.len() {
            errors.push(within(Error::new(Kind::WrongState, "it was not added whole")));
        } else if list.disable_check || !version::has_check(&list.version) {
            unasked.push(list.name.clone());
        } else {
            let ask = |index| tell(&kept, attached, index, "CHECK", result.as_ref(), bounds);
            errors.extend((0..list.plugins.len()).filter_map(|index| ask(index).err()).map(within));
        }
    }
    together(errors).map(|()| unasked)
}

/// Removes whatever [`add`] has added, or has begun to add, in reverse order. Does nothing if nothing is kept. Each
/// plugin may take as long as in [`check`].
///
/// # Errors
/// The errors of plugins, combined. Another call asks these plugins again, but not the rest.
pub fn del(folder: &Path, timeout: Duration) -> Result<()> {
    del_within(folder, timeout.into())
}

/// Like [`del`], with the bounds that a worker has.
pub fn del_within(folder: &Path, bounds: Bounds<'_>) -> Result<()> {
    match Kept::read(folder)? {
        Some(mut kept) => {
            let bounds = kept.bounds(bounds);
            let _lock = lock::take(bounds);
            undo(folder, &mut kept, bounds)
        }
        // An ADD may have been cut short before its first step.
        None => namespace_mount::unpin(folder),
    }
}

/// Deletes what is kept, if it is damaged and nothing can be undone with it; returns the damage.
///
/// # Errors
/// `Internal` if it cannot be deleted.
pub fn give_up_damaged(folder: &Path) -> Result<Option<Error>> {
    match Kept::read(folder) {
        Err(error) if error.kind() == Kind::Damaged => Kept::forget(folder).map(|()| Some(error)),
        read => read.map(|_| None),
    }
}

/// Checks that every plugin exists and supports the version of its list, before anything is run.
///
/// # Errors
/// The plugins that are missing or lack that version, combined.
pub fn validate(sandbox: &Sandbox, attachments: &[NetworkAttachment]) -> Result<()> {
    let mut errors = Vec::new();
    for list in lists(sandbox, attachments)? {
        let asked: BTreeSet<&str> = (0..list.plugins.len()).map(|index| list.kind(index)).collect();
        for kind in asked {
            match sandbox.plugins().versions(kind) {
                Ok(versions) if versions.contains(&list.version) => {}
                Ok(versions) => {
                    let (network, wanted, has) = (&list.name, &list.version, versions.join(", "));
                    let lacks = format!("network {network} needs CNI {wanted} of its plugin {kind}, which has {has}");
                    errors.push(Error::new(Kind::Unsupported, lacks));
                }
                Err(error) => errors.push(error),
            }
        }
    }
    together(errors)
}

/// Reads the lists, and finds every plugin.
fn lists(sandbox: &Sandbox, attachments: &[NetworkAttachment]) -> Result<Vec<ConfigList>> {
    let lists: Vec<ConfigList> = attachments.iter().map(|one| ConfigList::of(&one.list)).collect::<Result<_>>()?;
    let mut keys = BTreeSet::new();
    for (list, attachment) in lists.iter().zip(attachments) {
        // Plugins keep their own state by these two names.
        if !keys.insert((&list.name, &attachment.interface)) {
            let twice = format!("interface {} is in network {} twice", attachment.interface, list.name);
            return Err(Error::new(Kind::BadSpec, twice));
        }
    }
    let missing = lists.iter().flat_map(|list| (0..list.plugins.len()).map(|index| list.kind(index)));
    let missing: BTreeSet<&str> = missing.collect();
    together(missing.into_iter().filter_map(|kind| sandbox.plugins().find(kind).err()).collect())?;
    Ok(lists)
}

/// Runs the plugins of the last list, and keeps beforehand what is about to be run.
fn add_last(folder: &Path, kept: &mut Kept, bounds: Bounds<'_>) -> Result<()> {
    let last = kept.attached.len() - 1;
    for index in 0..kept.attached[last].list.plugins.len() {
        let chooses = kept.attached[last].list.wants_subnet();
        let bridge = kept.attached[last].list.bridge.clone().filter(|_| index == 0);
        let joining = bridge.as_ref().map(|bridge| Joining::begin(bridge, chooses)).transpose()?;
        if let Some(subnet) = joining.as_ref().and_then(Joining::subnet) {
            kept.attached[last].list.set_subnet(&subnet.to_string());
        }
        kept.attached[last].begun = index + 1;
        kept.write(folder)?;
        let Attached { interface, list, result, .. } = &kept.attached[last];
        let plugins = Plugins { folders: &kept.folders, bounds };
        let config = list.config(index, result.as_ref(), &kept.capabilities);
        let asked = plugins.ask(list.kind(index), call(kept, interface, "ADD"), &config);
        // A plugin that fails may still have made the bridge.
        joining.iter().for_each(Joining::end);
        let within = format!("cannot add {interface} to network {}", list.name);
        let result = asked.map_err(|failed| {
            kept.attached[last].refused = failed.orderly;
            failed.error.within(within)
        })?;
        kept.attached[last].done = index + 1;
        kept.attached[last].result = Some(result);
    }
    let bridge = kept.attached[last].list.bridge.as_ref();
    match bridge.filter(|_| kept.capabilities.contains_key("portMappings")) {
        Some(bridge) => rules::admit(bridge, bounds),
        None => Ok(()),
    }
}

/// Removes everything that was begun, last first.
fn undo(folder: &Path, kept: &mut Kept, bounds: Bounds<'_>) -> Result<()> {
    let (mut errors, mut left) = (Vec::new(), Vec::new());
    while let Some(attached) = kept.attached.last().cloned() {
        let (list, interface) = (&attached.list, &attached.interface);
        let result = attached.result.as_ref().filter(|_| version::has_check(&list.version));
        let remove = |index| tell(kept, &attached, index, "DEL", result, bounds);
        let within = |error: Error| error.within(format!("cannot remove {interface} from network {}", list.name));
        let mut failed = Vec::new();
        for index in (0..attached.begun).rev() {
            match remove(index).map_err(within) {
                // A plugin that reported its failure has left nothing; some cannot remove what they have not made.
                Err(error) if attached.refused && index == attached.done => {
                    tracing::warn!(%error, "a network plugin that has failed cannot undo that");
                }
                removed => failed.extend(removed.err()),
            }
        }
        kept.attached.pop();
        if failed.is_empty() {
            list.bridge.iter().for_each(|bridge| bridge::left(bridge, bounds));
        } else {
            left.insert(0, attached);
        }
        errors.extend(failed);
        // Lists that could not be undone come after those that are still to be undone.
        let rest = Kept { attached: [&kept.attached[..], &left[..]].concat(), ..kept.clone() };
        errors.extend(rest.write(folder).err());
    }
    kept.attached = left;
    if errors.is_empty() {
        errors.extend(namespace_mount::unpin(folder).err());
    }
    together(errors)
}

fn tell(
    kept: &Kept,
    of: &Attached,
    index: usize,
    command: &'static str,
    result: Option<&Value>,
    bounds: Bounds<'_>,
) -> Result<()> {
    let plugins = Plugins { folders: &kept.folders, bounds };
    let config = of.list.config(index, result, &kept.capabilities);
    plugins.tell(of.list.kind(index), call(kept, &of.interface, command), &config)
}

fn call<'a>(kept: &'a Kept, interface: &'a str, command: &'static str) -> Call<'a> {
    Call { command, id: &kept.id, netns: kept.netns.path(), interface, args: &kept.args }
}

/// All errors combined, with the kind of the first.
fn together(errors: Vec<Error>) -> Result<()> {
    errors.into_iter().reduce(|all, next| joined(&all, "; ", &next)).map_or(Ok(()), Err)
}

pub fn joined(first: &Error, between: &str, next: &Error) -> Error {
    let error = Error::new(first.kind(), format!("{}{between}{}", first.message(), next.message()));
    match first.hint_text().or(next.hint_text()) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests;
