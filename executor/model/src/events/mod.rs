//! Events: what has happened to a task, one line of JSON each.
//!
//! ```text
//!   shim of a ─┐ one write(2)
//!   shim of b ─┼────────────► <state>/.events/journal ─► `bowline events`
//!   rm ────────┘                       └─ at 1 MiB ─► journal.1
//! ```
//!
//! An event is written before the caller gets its answer, and numbered within its task, so that
//! order and gaps are visible. `journal` writes events, `reader` reads them. Must not: harm a task
//! when an event cannot be written.

mod entry;
mod journal;
mod reader;

pub use entry::{Entry, Event, Throttled, shortened, shortened_to};
pub use journal::{CURRENT, Handed, Journal};
pub use reader::Reader;
pub use reader::parse;
