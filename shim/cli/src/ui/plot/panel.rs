//! One panel of a picture: curves on one scale over time, with their limits.

use std::fmt::Write as _;

use super::curves::{Curves, Point, Stretch};
use super::scale::{Scale, binary_step, decimal_step, top};
use super::svg::{Svg, number};
use super::{Axis, LEFT, RIGHT, WIDTH, words};

/// A limit above this multiple of the usage is named but not drawn: it would flatten the curve.
const FAR: f64 = 4.0;

/// The least vertical distance between two texts, in pixels.
const LINE: f64 = 13.0;

/// The line of a limit or a peak.
struct Bound<'c> {
    class: &'static str,
    name: &'static str,
    points: &'c [Point],
}

/// A panel: its curves, its limits and how to label them.
pub struct Panel<'c> {
    title: &'static str,
    pub height: f64,
    step: fn(f64) -> f64,
    words: fn(f64) -> String,
    stretches: &'c [Stretch],
    bands: &'c [Stretch],
    area: &'c [Point],
    curve: &'c [Point],
    bounds: Vec<Bound<'c>>,
    /// The class and the name of each curve.
    legend: Vec<(&'static str, &'static str)>,
}

/// The panel for CPU time.
pub fn cpu(curves: &Curves) -> Panel<'_> {
    let mut legend = vec![("curve blue", "used")];
    if curves.throttled.iter().any(|stretch| stretch.figure > 0.0) {
        legend.push(("band", "throttled: the darker, the more of its periods"));
    }
    Panel {
        title: "CPU, % of one",
        height: 150.0,
        step: decimal_step,
        words: |figure| format!("{} %", number((figure * 100.0).round() / 100.0)),
        stretches: &curves.cpu,
        bands: &curves.throttled,
        area: &[],
        curve: &[],
        bounds: vec![Bound { class: "limit", name: "limit", points: &curves.cpu_limit }],
        legend,
    }
}

pub fn memory(curves: &Curves) -> Panel<'_> {
    let bound = |class, name, points| Bound { class, name, points };
    Panel {
        title: "Memory",
        height: 170.0,
        step: binary_step,
        words: |figure| words::bytes(figure.max(0.0) as u64),
        stretches: &[],
        bands: &[],
        area: &curves.usage,
        curve: &curves.anon,
        bounds: vec![
            bound("limit", "limit", &curves.memory_limit),
            bound("high", "high", &curves.memory_high),
            bound("purple", "peak", &curves.peak),
        ],
        legend: vec![("curve blue", "in use, cache included"), ("curve green", "the processes' own")],
    }
}

/// The panel for processes and threads.
pub fn pids(curves: &Curves) -> Panel<'_> {
    Panel {
        title: "Processes and threads",
        height: 76.0,
        step: |most| decimal_step(most * 1.6).max(1.0),
        words: |figure| format!("{figure:.0}"),
        stretches: &[],
        bands: &[],
        area: &curves.pids,
        curve: &[],
        bounds: vec![Bound { class: "limit", name: "limit", points: &curves.pids_limit }],
        legend: Vec::new(),
    }
}

impl Panel<'_> {
    /// Draws the panel with the top of its frame at `y`.
    pub fn draw(&self, svg: &mut Svg, y: f64, axis: &Axis) {
        let (right, bottom) = (WIDTH - RIGHT, y + self.height);
        let used = self.most_used();
        let drawn = |bound: &&Bound<'_>| bound.most().is_some_and(|most| used == 0.0 || most <= used * FAR);
        let most = self.bounds.iter().filter(drawn).filter_map(Bound::most).fold(used, f64::max);
        // Leave room above a limit, so that it is not mistaken for the frame.
        let step = (self.step)(most.max(1.0) * 1.04);
        let scale = Scale { from: 0.0, to: top(most.max(1.0) * 1.04, step), first: bottom, last: y };
        self.head(svg, y);
        for stretch in self.bands.iter().filter(|stretch| stretch.figure > 0.0) {
            let (from, to) = (axis.x(stretch.from), axis.x(stretch.to));
            svg.rectangle("band", (from, y), (to, bottom), 0.06 + 0.4 * stretch.figure);
        }
        let mut figure = 0.0;
        while figure <= scale.to * 1.000_001 {
            let at = scale.at(figure);
            svg.line(if figure == 0.0 { "frame" } else { "grid" }, (LEFT, at), (right, at), &[]);
            svg.text((LEFT - 6.0, at + 4.0), "tick right", &(self.words)(figure));
            figure += step;
        }
        svg.path("area blue", &filled(&stepped(self.stretches, axis, &scale), bottom));
        svg.path("area blue", &filled(&joined(self.area, axis, &scale), bottom));
        svg.path("curve blue", &joined_up(&stepped(self.stretches, axis, &scale)));
        svg.path("curve blue", &joined_up(&joined(self.area, axis, &scale)));
        svg.path("curve green", &joined_up(&joined(self.curve, axis, &scale)));
        for points in [self.area, self.curve] {
            // A single point makes no line.
            if let [(seconds, Some(figure))] = points {
                svg.dot("dot", (axis.x(*seconds), scale.at(*figure)));
            }
        }
        for bound in self.bounds.iter().filter(drawn) {
            svg.path(&format!("curve {}", bound.class), &joined_up(&held(bound.points, axis, &scale)));
        }
        self.name_bounds(svg, &scale, drawn);
    }

    /// The largest figure of all curves.
    fn most_used(&self) -> f64 {
        let points = self.area.iter().chain(self.curve).filter_map(|(_, figure)| *figure);
        points.chain(self.stretches.iter().map(|stretch| stretch.figure)).fold(0.0, f64::max)
    }

    /// Draws the title and the legend.
    fn head(&self, svg: &mut Svg, y: f64) {
        let base = y - 8.0;
        svg.text((LEFT, base), "head", self.title);
        let mut x = LEFT + 7.2 * self.title.chars().count() as f64 + 16.0;
        for (class, name) in &self.legend {
            if *class == "band" {
                svg.rectangle(class, (x, base - 9.0), (x + 16.0, base + 1.0), 0.4);
            } else {
                svg.line(class, (x, base - 4.0), (x + 16.0, base - 4.0), &[]);
            }
            svg.text((x + 21.0, base), "small", name);
            x += 21.0 + 6.2 * name.chars().count() as f64 + 18.0;
        }
    }

    /// Names the last value of each limit, right of the panel at the end of its line, or at the top if it has no line.
    fn name_bounds(&self, svg: &mut Svg, scale: &Scale, drawn: impl Fn(&&Bound<'_>) -> bool) {
        let mut names: Vec<(f64, &str, String)> = Vec::new();
        for bound in &self.bounds {
            let Some(last) = bound.points.iter().rev().find_map(|(_, figure)| *figure) else { continue };
            let text = format!("{} {}", bound.name, (self.words)(last));
            if drawn(&bound) {
                names.push((scale.at(last), bound.class, text));
            } else {
                names.push((scale.last, bound.class, format!("{text} ↑")));
            }
        }
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut least = f64::MIN;
        for (at, class, text) in names {
            let at = at.max(least);
            svg.text((WIDTH - RIGHT + 6.0, at + 4.0), class, &text);
            least = at + LINE;
        }
    }
}

impl Bound<'_> {
    fn most(&self) -> Option<f64> {
        self.points.iter().filter_map(|(_, figure)| *figure).reduce(f64::max)
    }
}

/// Lines, each a list of points in pixels.
type Lines = Vec<Vec<(f64, f64)>>;

/// Joins points by straight lines; an unknown figure leaves a gap.
fn joined(points: &[Point], axis: &Axis, scale: &Scale) -> Lines {
    let parts = points.split(|(_, figure)| figure.is_none());
    let place = |(seconds, figure): &Point| figure.map(|figure| (axis.x(*seconds), scale.at(figure)));
    parts.map(|part| part.iter().filter_map(place).collect()).collect()
}

/// Joins points by steps: each figure holds until the next one.
fn held(points: &[Point], axis: &Axis, scale: &Scale) -> Lines {
    let mut lines = joined(points, axis, scale);
    for line in &mut lines {
        let mut steps: Vec<(f64, f64)> = Vec::with_capacity(line.len() * 2);
        for (x, y) in line.drain(..) {
            if let Some((_, before)) = steps.last().copied().filter(|(_, before)| *before != y) {
                steps.push((x, before));
            }
            steps.push((x, y));
        }
        // A single reading becomes a line as wide as the dot beside it.
        if let [(x, y)] = steps[..] {
            steps = vec![(x - 8.0, y), (x + 8.0, y)];
        }
        *line = steps;
    }
    lines
}

/// Draws each stretch as a horizontal line, joined to the next one.
fn stepped(stretches: &[Stretch], axis: &Axis, scale: &Scale) -> Lines {
    let mut lines: Lines = Vec::new();
    let mut end = None;
    for stretch in stretches {
        let y = scale.at(stretch.figure);
        let places = [(axis.x(stretch.from), y), (axis.x(stretch.to), y)];
        match lines.last_mut() {
            Some(line) if end == Some(stretch.from) => line.extend(places),
            _ => lines.push(places.to_vec()),
        }
        end = Some(stretch.to);
    }
    lines
}

/// Returns the path commands along the lines.
fn joined_up(lines: &Lines) -> String {
    let mut path = String::new();
    for line in lines.iter().filter(|line| line.len() > 1) {
        for (index, (x, y)) in line.iter().enumerate() {
            let _ = write!(path, "{}{} {}", if index == 0 { 'M' } else { 'L' }, number(*x), number(*y));
        }
    }
    path
}

/// Returns the path commands of the area below the lines.
fn filled(lines: &Lines, bottom: f64) -> String {
    let mut path = String::new();
    for line in lines.iter().filter(|line| line.len() > 1) {
        let (first, last) = (line[0].0, line[line.len() - 1].0);
        let _ = write!(path, "M{} {}", number(first), number(bottom));
        for (x, y) in line {
            let _ = write!(path, "L{} {}", number(*x), number(*y));
        }
        let _ = write!(path, "L{} {}Z", number(last), number(bottom));
    }
    path
}
