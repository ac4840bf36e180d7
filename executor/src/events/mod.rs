//! Events: what has happened to a task, one line of JSON each.
//!
//! ```text
//!   shim of a ─┐ one write(2)
//!   shim of b ─┼────────────► <state>/.events/journal ─► `bowline events`
//!   rm ────────┘                       └─ at 1 MiB ─► journal.1
//! ```
//!
//! Written before whoever asked is told; numbered within a task, so that order
//! and gaps can be seen. `journal` writes them, `reading` gives them back. Must
//! not: harm a task when it cannot be written.

mod entry;
mod journal;
mod reading;

pub use entry::{Entry, Event, shortened};
pub use journal::{CURRENT, Journal};
pub use reading::Reader;
#[cfg(feature = "fuzzing")]
pub(crate) use reading::parse;
