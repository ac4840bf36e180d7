//! `stats --plot`: draws a recording as an SVG picture.
//!
//! ```text
//!   recording ─► curves ─► panels ─┐
//!           └──► marks ────────────┴─► one axis of time ─► svg
//! ```
//!
//! There is a panel each for CPU, memory and processes, with their limits over time, above one axis of time. Events
//! cross all panels. Drawing is pure: a recording goes in, a text comes out. Must not: trust any text of the recording.

mod curves;
mod marks;
mod panel;
mod scale;
mod svg;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use bowline_model::{Doing, Error, Kind, Result, trust};
use jiff::Timestamp;
use rustix::fs::OFlags;

use crate::ui::record::file::{Recording, read};
use crate::ui::words;
use curves::Curves;
use panel::{cpu, memory, pids};
use scale::Scale;
use svg::Svg;

/// Endings of names that promise a picture in another format.
const OTHER_FORMATS: [&str; 10] = ["avif", "bmp", "eps", "gif", "jpeg", "jpg", "pdf", "png", "ps", "webp"];

/// The start of every picture file; [`writable`] recognises our own pictures by it.
const BEGIN: &str = "<svg ";

/// The picture's width, and the space left and right of the panels, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 128.0;

/// The bottom of the title.
const TOP: f64 = 68.0;
/// The space between two panels, which holds the lower one's title.
const GAP: f64 = 34.0;
/// The space below the panels, which holds the axis of time.
const BOTTOM: f64 = 46.0;

/// Runs `bowline stats --plot PICTURE --from RECORDING`.
pub fn run(recording: &Path, picture: &Path) -> Result<u8> {
    writable(picture)?;
    draw(recording, picture).map(|()| 0)
}

/// Draws a recording to the file `picture`.
pub fn draw(recording: &Path, picture: &Path) -> Result<()> {
    let svg = svg_of(&read(recording)?);
    trust::write_named(picture, svg.as_bytes()).doing(Kind::Internal, || format!("cannot write {}", picture.display()))
}

/// Checks that `picture` can be written: only an earlier picture may be overwritten.
///
/// # Errors
/// `AlreadyExists` if the file is something else; `Usage` if its name promises another format than SVG, or if no file
/// can be there.
pub fn writable(picture: &Path) -> Result<()> {
    if let Some(format) = other_format(picture) {
        let message = format!("cannot draw to {}: pictures are SVG, not {}", picture.display(), format.to_uppercase());
        let svg = picture.with_extension("svg");
        return Err(Error::new(Kind::Usage, message).hint(format!(
            "write --plot {}; a browser shows it, and `rsvg-convert` turns it into PNG or PDF",
            svg.display()
        )));
    }
    let what = || format!("cannot draw to {}", picture.display());
    let mut begin = vec![0; BEGIN.len()];
    // Nothing is waited for that is no file, such as a FIFO.
    let at_once = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(at_once).open(picture);
    match opened.and_then(|mut file| file.read_exact(&mut begin)) {
        Ok(()) if begin == BEGIN.as_bytes() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = picture.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::metadata(folder).map(drop).doing(Kind::Usage, what)
        }
        Ok(()) => Err(other(picture)),
        Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::WouldBlock].contains(&error.kind()) => Err(other(picture)),
        Err(error) => Err(error).doing(Kind::Usage, what),
    }
}

fn other_format(picture: &Path) -> Option<String> {
    let ending = picture.extension()?.to_str()?.to_ascii_lowercase();
    OTHER_FORMATS.contains(&ending.as_str()).then_some(ending)
}

fn other(picture: &Path) -> Error {
    let message = format!("{} is there already, and no picture of bowline's", picture.display());
    Error::new(Kind::AlreadyExists, message).hint("choose another name, or remove it")
}

/// Returns the picture of a recording as SVG.
fn svg_of(recording: &Recording) -> String {
    let axis = Axis::of(recording);
    let marks = marks::of(recording, &axis);
    let lane = marks.height();
    let curves = Curves::of(recording, &axis);
    let panels = [cpu(&curves), memory(&curves), pids(&curves)];
    let heights: f64 = panels.iter().map(|panel| panel.height + GAP).sum();
    let bottom = TOP + lane + heights;
    let mut svg = Svg::begin(BEGIN, WIDTH, bottom + BOTTOM, &format!("A run of {}", recording.header.id));
    title(&mut svg, recording);
    axis.draw(&mut svg, TOP + lane, bottom);
    let mut top = TOP + lane;
    for panel in &panels {
        top += GAP;
        panel.draw(&mut svg, top, &axis);
        top += panel.height;
    }
    if recording.samples.is_empty() {
        svg.text((LEFT + (WIDTH - LEFT - RIGHT) / 2.0, TOP + lane + GAP + 60.0), "middle", "no reading was recorded");
    }
    marks.draw(&mut svg, TOP + lane, bottom);
    svg.end()
}

fn title(svg: &mut Svg, recording: &Recording) {
    let header = &recording.header;
    svg.text((LEFT, 26.0), "title", &cut(&header.id, 80));
    svg.text((LEFT, 44.0), "small", &cut(&header.command.join(" "), 130));
    let begun = header.begun_at.strftime("%Y-%m-%d %H:%M:%S UTC");
    let number = words::count(recording.samples.len() as u64, "reading");
    let apart = words::span(header.interval_usec);
    let mut parts = vec![format!("recorded from {begun}"), format!("{number}, {apart} apart")];
    if let Some(exit) = &recording.exit {
        let code = exit.exit_code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        let signal = exit.signal.as_ref().map_or_else(String::new, |signal| format!(" ({signal})"));
        let oom = if exit.oom_killed == Some(true) { ", out of memory" } else { "" };
        parts.push(format!("exit code {code}{signal}{oom}"));
    }
    svg.text((LEFT, 60.0), "small", &parts.join(" · "));
}

/// Cuts `text` to at most `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// The axis of time, in seconds from where it begins.
struct Axis {
    begin: Timestamp,
    scale: Scale,
    step: f64,
}

impl Axis {
    /// Makes an axis from the earliest known time to the latest.
    fn of(recording: &Recording) -> Axis {
        let events = recording.events.iter().filter_map(marks::time);
        let samples = recording.samples.iter().map(|sample| sample.read_at);
        let exit = recording.exit.as_ref().map(|exit| exit.exited_at);
        let times = || [recording.header.begun_at].into_iter().chain(samples.clone()).chain(events.clone());
        let begin = times().min().unwrap_or(recording.header.begun_at);
        let end = times().chain(exit).chain(recording.ended_at).max().unwrap_or(begin);
        // A single moment still needs a span.
        let span = end.duration_since(begin).as_secs_f64().max(0.001);
        let step = scale::time_step(span);
        Axis { begin, scale: Scale { from: 0.0, to: span, first: LEFT, last: WIDTH - RIGHT }, step }
    }

    /// The seconds from the start of the axis to `time`.
    fn seconds(&self, time: Timestamp) -> f64 {
        time.duration_since(self.begin).as_secs_f64()
    }

    /// The horizontal position of `seconds`, in pixels.
    fn x(&self, seconds: f64) -> f64 {
        self.scale.at(seconds)
    }

    fn draw(&self, svg: &mut Svg, top: f64, bottom: f64) {
        let mut number = 0.0;
        while number * self.step <= self.scale.to * 1.000_001 {
            let seconds = number * self.step;
            let x = self.x(seconds);
            svg.line("grid time", (x, top + GAP / 2.0), (x, bottom), &[("data-seconds", &format!("{seconds}"))]);
            svg.text((x, bottom + 16.0), "tick middle", &scale::time_label(seconds, self.step));
            number += 1.0;
        }
        svg.text(
            (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, bottom + 36.0),
            "small middle",
            "time since the recording began",
        );
    }
}
