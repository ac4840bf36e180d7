//! The end of a child of the shim that other code waits for: known once the sweep has reaped the
//! child, and for as long as anybody holds the claim.

use std::rc::Rc;

use bowline_sys::Ended;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::waits::watched_value::WatchedValue;

/// How a child has ended, and when it was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The exit code or the signal.
    pub ended: Ended,
    pub at: Timestamp,
    /// CPU time of the child and of all below it that were waited for, in µs; `None` where another process has reaped it.
    #[serde(default)]
    pub cpu_usec: Option<u64>,
}

impl End {
    /// An end that was heard of just now.
    pub fn now(ended: Ended) -> End {
        End { ended, at: Timestamp::now(), cpu_usec: None }
    }
}

/// Gives access to a child's end.
#[derive(Clone)]
pub struct Claim {
    /// The child's pid, in the shim's pid namespace; no other process has it while the child is unreaped.
    pub pid: i32,
    end: Rc<WatchedValue<Option<End>>>,
}

impl Claim {
    /// A claim on a child that is not reaped.
    pub fn new(pid: i32) -> Claim {
        Claim { pid, end: Rc::default() }
    }

    /// Records that the child was reaped.
    pub fn reaped(&self, end: End) {
        self.end.update(|known| *known = Some(end));
    }

    /// The child's end, if it has come.
    pub fn end(&self) -> Option<End> {
        self.end.read(|end| *end)
    }

    /// Whether the child was not reaped: no other process has its pid then.
    pub fn is_unreaped(&self) -> bool {
        self.end().is_none()
    }

    /// Waits for the child's end. Any number of callers may wait, also after the end.
    pub async fn ended(&self) -> End {
        self.end.until(|end| *end).await
    }
}
