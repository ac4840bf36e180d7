//! A progress line on stderr for work that takes longer than a second; erased when the work is done.
//!
//! Shown only if stderr is a terminal. Otherwise there is no line and no timer.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use bowline_spec::id::TaskId;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::ui::screen;
use crate::ui::table::cut;

/// How often the line is redrawn, and how long to wait before it first appears.
const EACH: Duration = Duration::from_secs(1);
/// How many tasks [`names`] lists by name.
const NAMED: usize = 3;

/// Runs `work` to its end. Meanwhile shows the line that `line` returns for the elapsed time.
pub async fn during<T>(line: impl Fn(Duration) -> String, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let begun = Instant::now();
    let mut timer = interval_at(begun + EACH, EACH);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(work);
    let mut shown = false;
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                if shown {
                    draw("");
                }
                return done;
            }
            _ = timer.tick() => {
                shown = true;
                draw(&line(begun.elapsed()));
            }
        }
    }
}

/// Replaces the line. Ignores errors, as there is nowhere to report them.
fn draw(line: &str) {
    let width = screen::width_of(std::io::stderr()).unwrap_or(80);
    let mut stderr = std::io::stderr().lock();
    // Leave the last column free: some terminals wrap there.
    let _ = write!(stderr, "\r{}\x1b[K", cut(line, width.saturating_sub(1)));
    let _ = stderr.flush();
}

/// Names several tasks briefly: "web, api, db and 4 more".
pub fn names(ids: &[&TaskId]) -> String {
    let named: Vec<&str> = ids.iter().take(NAMED).map(|id| id.as_str()).collect();
    match ids.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
