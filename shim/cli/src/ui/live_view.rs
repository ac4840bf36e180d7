//! Shows readings as they come: a live table on a terminal, else line by line.

use std::io;
use std::time::Duration;

use bowline_model::Result;
use tokio::time::Instant;

use crate::readings::{APART, Reading, Sampler};
use crate::ui::json;
use crate::ui::order::By;
use crate::ui::print::{say, show};
use crate::ui::reader::Reader;
use crate::ui::screen::{self, Live, Next};

/// Turns readings into lines of text in an order, for a terminal width if there is one: a head, rows, and a line for all
/// of them.
type Lines<'a> = dyn Fn(&[Reading], By, Option<usize>) -> Vec<String> + 'a;

/// The form in which readings are shown.
pub enum As<'a> {
    /// A table, at first in this order.
    Table(By, &'a Lines<'a>),
    /// JSON, one reading per line.
    JsonLines,
}

/// Reads all tasks every `interval` until the user ends it, all named tasks have ended, or nobody reads the output.
/// Returns the exit code.
pub async fn watch(sampler: &mut Sampler, interval: Duration, view: As<'_>) -> Result<u8> {
    let mut live = match view {
        As::Table(..) if screen::is_live() => Some(Live::open()?),
        _ => None,
    };
    let mut order = if let As::Table(by, _) = view { by } else { By::Id };
    // Rates need two readings: the first comes now, so that the first figures appear soon.
    if let Err(code) = read_unless_ended(sampler, live.as_mut(), &mut order).await? {
        return Ok(code);
    }
    let mut due = Instant::now() + APART;
    let mut current = Vec::new();
    loop {
        match next(live.as_mut(), due).await {
            Next::End(code) => return Ok(code),
            Next::Key(key) => order = By::of_key(key).unwrap_or(order),
            Next::Resized => {}
            Next::Due => {
                due += interval;
                match read_unless_ended(sampler, live.as_mut(), &mut order).await? {
                    Ok(readings) => current = readings,
                    Err(code) => return Ok(code),
                }
                // After a pause, such as the machine's sleep, missed readings are not made up for.
                due = due.max(Instant::now());
                if sampler.is_over() {
                    return Ok(0);
                }
            }
        }
        match (&view, &live) {
            (As::Table(_, table), Some(live)) => live.show(table(&current, order, screen::width()))?,
            (As::Table(_, table), None) => show(&table(&current, order, screen::width()))?,
            (As::JsonLines, _) => current.iter().try_for_each(|reading| say(&json::line(reading)?))?,
        }
        if Reader::of(io::stdout()) == Reader::Gone {
            return Ok(0);
        }
    }
}

/// Reads all tasks, or returns the exit code if the user ends the view first: a shim that does not answer must not keep
/// anybody from leaving.
async fn read_unless_ended(
    sampler: &mut Sampler,
    mut live: Option<&mut Live>,
    order: &mut By,
) -> Result<std::result::Result<Vec<Reading>, u8>> {
    let read = readings(sampler);
    tokio::pin!(read);
    loop {
        let far = Instant::now() + Duration::from_secs(86_400);
        tokio::select! {
            done = &mut read => return done.map(Ok),
            event = next(live.as_deref_mut(), far) => match event {
                Next::End(code) => return Ok(Err(code)),
                Next::Key(key) => *order = By::of_key(key).unwrap_or(*order),
                Next::Due | Next::Resized => {}
            },
        }
    }
}

/// Waits for the next event. Without a live view only time passes: signals keep their usual effect.
async fn next(live: Option<&mut Live>, due: Instant) -> Next {
    match live {
        Some(live) => live.next(due).await,
        None => {
            tokio::time::sleep_until(due).await;
            Next::Due
        }
    }
}

async fn readings(sampler: &mut Sampler) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for (id, reading) in sampler.read().await? {
        match reading {
            Ok(reading) => readings.push(reading),
            Err(error) => sampler.lose(&id, error).await,
        }
    }
    Ok(readings)
}
