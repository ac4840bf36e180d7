//! One line on stderr for what takes longer than a second, gone when it is done.
//!
//! For a person: where stderr is no terminal there is none, and no timer either.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use bowline_spec::id::TaskId;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::ui::screen;
use crate::ui::table::cut;

/// How often the line is drawn anew, and how long nothing is said at first.
const EACH: Duration = Duration::from_secs(1);
/// How many tasks are named.
const NAMED: usize = 3;

/// Does `work` to its end, saying what `line` gives for the time elapsed.
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

/// Replaces the line. Nobody is left to tell if that fails.
fn draw(line: &str) {
    let width = screen::width_of(std::io::stderr()).unwrap_or(80);
    let mut stderr = std::io::stderr().lock();
    // The last column stays free: some terminals wrap there.
    let _ = write!(stderr, "\r{}\x1b[K", cut(line, width.saturating_sub(1)));
    let _ = stderr.flush();
}

/// Several tasks in a few words: "web, api, db and 4 more".
pub fn names(ids: &[&TaskId]) -> String {
    let named: Vec<&str> = ids.iter().take(NAMED).map(|id| id.as_str()).collect();
    match ids.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
