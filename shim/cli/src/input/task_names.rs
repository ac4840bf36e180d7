//! Resolves tasks as typed: a full id, or a prefix that only one task has.
//!
//! A full id always means that task, even if other ids begin with it: this takes one look at its folder and no listing.
//! Must not: care what a task is doing.

use std::collections::BTreeSet;
use std::str::FromStr;

use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use bowline_spec::Invalid;
use bowline_spec::id::TaskId;

/// How many candidates an error message names.
const NAMED: usize = 4;

/// A task as typed. A prefix has the same syntax as an id.
#[derive(Debug, Clone)]
pub struct TaskRef(TaskId);

impl FromStr for TaskRef {
    type Err = Invalid;

    fn from_str(text: &str) -> std::result::Result<TaskRef, Invalid> {
        text.parse().map(TaskRef)
    }
}

impl From<TaskId> for TaskRef {
    fn from(id: TaskId) -> TaskRef {
        TaskRef(id)
    }
}

impl TaskRef {
    pub fn as_typed(&self) -> &TaskId {
        &self.0
    }

    /// Returns the id of the task that is meant.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Usage` if several tasks match.
    pub fn resolve(&self, state: &StateDir) -> Result<TaskId> {
        let folder = state.folder(&self.0);
        if folder.exists()? {
            if folder.is_sandbox() {
                let id = &self.0;
                return Err(Error::new(Kind::WrongState, format!("{id} is a sandbox, and no task"))
                    .hint(format!("`bowline sandbox inspect {id}` names its members")));
            }
            return Ok(self.0.clone());
        }
        choose(&self.0, &state.ids()?)
    }
}

/// Like [`resolve`], where a name may also be the whole id of a sandbox.
pub fn resolve_shims(state: &StateDir, names: &[TaskRef]) -> Vec<Result<TaskId>> {
    let is_sandbox = |name: &TaskRef| state.folder(&name.0).is_sandbox();
    names.iter().map(|name| if is_sandbox(name) { Ok(name.0.clone()) } else { name.resolve(state) }).collect()
}

/// Resolves each name, in the order given and without duplicates. A name that matches no task gives an error in its
/// place.
pub fn resolve(state: &StateDir, names: &[TaskRef]) -> Vec<Result<TaskId>> {
    let mut seen = BTreeSet::new();
    let all = names.iter().map(|name| name.resolve(state));
    all.filter(|meant| meant.as_ref().map_or(true, |id| seen.insert(id.clone()))).collect()
}

/// Like [`resolve`], for a command that asks how tasks ended: the error of one that was removed says that, where the journal
/// knows.
pub fn resolve_ended(state: &StateDir, names: &[TaskRef]) -> Vec<Result<TaskId>> {
    let mut seen = BTreeSet::new();
    let all = names.iter().map(|name| match name.resolve(state) {
        Err(error) if error.kind() == Kind::NotFound => {
            let folder = state.folder(&name.0);
            Err(if folder.removed_report().is_some() { bowline_client::removed(&folder, &name.0) } else { error })
        }
        found => found,
    });
    all.filter(|meant| meant.as_ref().map_or(true, |id| seen.insert(id.clone()))).collect()
}

/// Finds the only one of `ids` that begins with `typed`.
fn choose(typed: &TaskId, ids: &[TaskId]) -> Result<TaskId> {
    let begun: Vec<&TaskId> = ids.iter().filter(|id| id.starts_with(typed.as_str())).collect();
    match begun[..] {
        [one] => Ok(one.clone()),
        [] => {
            let unknown = bowline_client::unknown(typed);
            Err(match nearest(typed, ids) {
                Some(near) => unknown.hint(format!("a task named {near} exists; `bowline ps` lists all")),
                None => unknown,
            })
        }
        ref several => {
            let mut names: Vec<&str> = several.iter().take(NAMED).map(|id| id.as_str()).collect();
            let more = several.len() - names.len();
            let more = (more > 0).then(|| format!("{more} more"));
            names.extend(more.as_deref());
            let message = format!("{typed} begins the ids of {} tasks: {}", several.len(), names.join(", "));
            Err(Error::new(Kind::Usage, message).hint("write as much of the id as only one of them has"))
        }
    }
}

/// The id that `typed` may be a typo of. Allows one error in three letters, two in six, at most three.
fn nearest<'i>(typed: &TaskId, ids: &'i [TaskId]) -> Option<&'i TaskId> {
    let most = (typed.len() / 3).min(3);
    let distance = |id: &&TaskId| strsim::damerau_levenshtein(typed, id);
    ids.iter().min_by_key(distance).filter(|id| distance(id) <= most)
}

/// Shortens each id to `most` bytes, or to more if it needs more to differ from all of `others`.
pub fn shortened(ids: &[TaskId], others: &[TaskId], most: usize) -> Vec<String> {
    let short = |id: &TaskId| {
        let unique = others.iter().filter(|other| *other != id).map(|other| common(id, other) + 1).max().unwrap_or(1);
        id.as_str()[..most.max(unique).min(id.len())].to_owned()
    };
    ids.iter().map(short).collect()
}

/// The length of the common prefix of two ids, in bytes.
fn common(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Vec<TaskId> {
        names.iter().map(|name| name.parse().expect("an id")).collect()
    }

    fn chosen(typed: &str, names: &[&str]) -> Result<String> {
        choose(&typed.parse().expect("an id"), &ids(names)).map(|id| id.to_string())
    }

    #[test]
    fn a_beginning_that_one_id_has_means_it() {
        assert_eq!(chosen("w", &["api", "web-1"]).expect("one"), "web-1");
        assert_eq!(chosen("web-1", &["web-1", "web-2"]).expect("one"), "web-1");
    }

    #[test]
    fn a_beginning_that_several_have_names_them_and_not_all_of_many() {
        let error = chosen("web", &["web-1", "web-2"]).expect_err("which?");
        assert_eq!(error.kind(), Kind::Usage);
        assert_eq!(error.message(), "web begins the ids of 2 tasks: web-1, web-2");
        let error = chosen("t", &["t1", "t2", "t3", "t4", "t5", "t6"]).expect_err("which?");
        assert_eq!(error.message(), "t begins the ids of 6 tasks: t1, t2, t3, t4, 2 more");
    }

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let hint = |typed, names| chosen(typed, names).expect_err("unknown").hint_text().map(str::to_owned);
        assert_eq!(
            hint("wbe-1", &["api", "web-1"]).as_deref(),
            Some("a task named web-1 exists; `bowline ps` lists all")
        );
        assert_eq!(hint("nobody", &["api", "web-1"]).as_deref(), Some("`bowline ps` lists all tasks"));
        assert_eq!(hint("x", &["y"]).as_deref(), Some("`bowline ps` lists all tasks"));
    }

    #[test]
    fn a_shortened_id_means_the_same_task() {
        let all = ids(&["a", "task-0123456789ab", "task-0123456789ff", "web", "web-1234567890"]);
        let short = shortened(&all, &all, 8);
        assert_eq!(short, ["a", "task-0123456789a", "task-0123456789f", "web", "web-1234"]);
        for (id, short) in all.iter().zip(&short) {
            let typed: TaskId = short.parse().expect("still an id");
            assert!(all.contains(&typed) && typed == *id || choose(&typed, &all).is_ok_and(|meant| meant == *id));
        }
    }
}
