//! What whoever watches a run reads: progress and errors.

use std::io::Write as _;

/// Says a line, on stderr.
pub fn say(line: &str) {
    // Nobody watches: no reason to stop.
    let _ = writeln!(std::io::stderr(), "{line}");
}
