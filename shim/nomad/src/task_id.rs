//! Maps Nomad's task ids to bowline's.
//!
//! The id follows from Nomad's alone, so that a task is found on disk by that: `web-1c2f3a4b-0d9e8f7a6b5c` is the task
//! `web` of the allocation that begins with `1c2f3a4b`, and the rest tells apart what else would be the same.

use bowline_spec::TaskId;
use sha2::{Digest as _, Sha256};

/// How much of the task's name is in the id: with the rest it has at most 63 characters.
const NAME: usize = 40;
/// As `nomad` shortens an allocation.
const ALLOCATION: usize = 8;
const HASH: usize = 6;

/// The id of the task that Nomad calls `nomads`: `<allocation>/<task>/<eight characters>`.
pub fn of(nomads: &str) -> TaskId {
    let mut parts = nomads.split('/');
    let allocation = plain(parts.next().unwrap_or_default(), ALLOCATION);
    let name = plain(parts.next().unwrap_or_default(), NAME);
    let hash: String = Sha256::digest(nomads)[..HASH].iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [name, allocation, hash].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").parse().expect("letters, digits and hyphens, and not too many of them")
}

/// Whether `id` may be one that [`of`] has made.
pub fn is_one(id: &str) -> bool {
    let is_hash = |text: &str| text.len() == 2 * HASH && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Without an allocation, it is a name that bowline has made up.
    split(id).is_some_and(|(task, hash)| is_hash(hash) && task.contains('-'))
}

/// Whether both are of tasks of the same name in allocations that begin alike.
pub fn are_of_one_task(one: &str, other: &str) -> bool {
    let task = |id| split(id).map(|(task, _)| task);
    task(one).is_some() && task(one) == task(other)
}

fn split(id: &str) -> Option<(&str, &str)> {
    id.rsplit_once('-')
}

/// At most `most` characters of `text` that an id may have, beginning with a letter or digit.
fn plain(text: &str, most: usize) -> String {
    let plain = text.chars().map(|c| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '-' });
    let plain: String = plain.skip_while(|c| !c.is_ascii_alphanumeric()).take(most).collect();
    plain.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_task_and_allocation() {
        let id = of("1c2f3a4b-6bb6-11e6-bc26-28d2444e470d/web/0f0e0d0c");
        assert!(id.starts_with("web-1c2f3a4b-") && id.len() == "web-1c2f3a4b-".len() + 12, "{id}");
        assert_eq!(id, of("1c2f3a4b-6bb6-11e6-bc26-28d2444e470d/web/0f0e0d0c"));
        assert_ne!(id, of("1c2f3a4b-6bb6-11e6-bc26-28d2444e470d/web/0f0e0d0d"));
    }

    #[test]
    fn whatever_nomad_calls_a_task_makes_an_id() {
        let long = format!("a/{}/b", "x".repeat(200));
        for odd in ["", "/", "///", "é/ü/ö", "-/../..", "../../etc", "a b/c\nd/e", &long] {
            assert!(of(odd).len() <= 63, "{odd}");
        }
        assert_ne!(of("a b/c/d"), of("a-b/c/d"));
    }
}
