//! Results as JSON: every object at the top has `"format"`, the version of its form (docs/json.md).

use bowline_model::{Doing as _, Kind, Result};
use serde::Serialize;

use crate::ui::print::say;

/// The version of all forms. It changes when a field is removed or renamed, or changes its type or scale.
const FORMAT: u32 = 1;

/// An object, and the version of its form before its fields.
#[derive(Serialize)]
struct Formatted<'a, T> {
    format: u32,
    #[serde(flatten)]
    object: &'a T,
}

impl<T: Serialize> Formatted<'_, T> {
    fn of(object: &T) -> Formatted<'_, T> {
        Formatted { format: FORMAT, object }
    }
}

pub fn print<T: Serialize>(object: &T) -> Result<()> {
    print_plain(&Formatted::of(object))
}

/// Prints a list of objects, each with the version of its form.
pub fn print_list<T: Serialize>(objects: &[T]) -> Result<()> {
    print_plain(&objects.iter().map(Formatted::of).collect::<Vec<_>>())
}

/// Prints what has a form of its own, such as a schema.
pub fn print_plain<T: Serialize>(value: &T) -> Result<()> {
    say(&serde_json::to_string_pretty(value).doing(Kind::Internal, || "cannot write JSON")?)
}

/// An object as one line.
pub fn line<T: Serialize>(object: &T) -> Result<String> {
    serde_json::to_string(&Formatted::of(object)).doing(Kind::Internal, || "cannot write JSON")
}
