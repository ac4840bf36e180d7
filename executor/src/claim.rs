//! The end of a child of the shim that somebody waits for: known once the sweep has reaped it, and for as long as anybody
//! holds the claim.

use std::rc::Rc;

use bowline_sys::Ended;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::known::Known;

/// How a child has ended, and when it was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// By itself or by a signal.
    pub ended: Ended,
    /// When it was reaped.
    pub at: Timestamp,
}

impl End {
    /// Of a child that was reaped just now.
    pub fn now(ended: Ended) -> End {
        End { ended, at: Timestamp::now() }
    }
}

/// By which one knows of a child's end.
#[derive(Clone)]
pub struct Claim {
    /// The child's, in the shim's pid namespace; its own while that is unreaped.
    pub pid: i32,
    end: Rc<Known<Option<End>>>,
}

impl Claim {
    /// Of a child that is not reaped.
    pub fn new(pid: i32) -> Claim {
        Claim { pid, end: Rc::default() }
    }

    /// The child was reaped.
    pub fn reaped(&self, end: End) {
        self.end.change(|known| *known = Some(end));
    }

    /// Its end, if that has come.
    pub fn end(&self) -> Option<End> {
        self.end.look(|end| *end)
    }

    /// Whether it has not been reaped: the pid is then its own.
    pub fn is_unreaped(&self) -> bool {
        self.end().is_none()
    }

    /// Its end, as soon as it has come. Any number may wait, also after that.
    pub async fn ended(&self) -> End {
        self.end.until(|end| *end).await
    }
}
