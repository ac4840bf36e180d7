//! The environment of a program: the last of each variable, and a HOME.
//!
//! A variable without `=` is refused before a process is cloned: see `bundle`.

use std::collections::BTreeSet;

use bowline_error::Result;
use oci_spec::runtime::Process;
use rustix::fs::{self, Mode, OFlags};

use crate::view::accounts;

/// The variables of `process`, which will run in the root that the caller is in. Without a HOME, or with an empty one,
/// it gets the home of its user in that root, else `/`.
///
/// # Errors
/// `BadSpec` for a home that is too long.
pub fn of(process: &Process) -> Result<Vec<String>> {
    let mut variables = last_of_each(process.env().as_deref().unwrap_or_default());
    if value(&variables, "HOME").is_none() {
        let home = home(process.user().uid())?.unwrap_or_else(|| "/".to_owned());
        variables.push(format!("HOME={home}"));
    }
    Ok(variables)
}

/// The value of a variable, if it is set.
pub fn value<'a>(variables: &'a [String], name: &str) -> Option<&'a str> {
    variables.iter().find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='))
}

/// The last variable of each name, in their order. An empty HOME counts as none.
fn last_of_each(variables: &[String]) -> Vec<String> {
    let mut named = BTreeSet::new();
    let last = variables.iter().rev().filter(|variable| {
        let name = variable.split_once('=').map_or(variable.as_str(), |(name, _)| name);
        named.insert(name) && *variable != "HOME="
    });
    let mut last: Vec<String> = last.cloned().collect();
    last.reverse();
    last
}

fn home(uid: u32) -> Result<Option<String>> {
    let root = fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    root.map_or(Ok(None), |root| accounts::home(&root, uid))
}
