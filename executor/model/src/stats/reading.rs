//! One reading: the cgroup's files, and the figures that they gave.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bowline_cgroup::{Cgroup, Layout};

use super::types::{Pressure, Stall};

/// The files of one cgroup, at one moment.
pub struct Reading<'a> {
    layout: &'a Layout,
    cgroup: &'a Cgroup,
    measured: Vec<Cow<'static, str>>,
}

impl<'a> Reading<'a> {
    pub fn new(layout: &'a Layout, cgroup: &'a Cgroup) -> Reading<'a> {
        Reading { layout, cgroup, measured: Vec::new() }
    }

    /// The names of all figures that were found.
    pub fn measured(mut self) -> Vec<Cow<'static, str>> {
        self.measured.sort_unstable();
        self.measured
    }

    /// The whole text of a file.
    pub fn text(&self, controller: &str, file: &str) -> Option<String> {
        self.layout.read(self.cgroup, controller, file)
    }

    /// Returns `value`, and records the figure `name` as measured if there is a value.
    pub fn found<T>(&mut self, name: impl Into<Cow<'static, str>>, value: Option<T>) -> Option<T> {
        if value.is_some() {
            self.measured.push(name.into());
        }
        value
    }

    /// The value of a file with one number.
    pub fn value(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.trim().parse().ok()
    }

    /// The figure `name`, from a file with one number.
    pub fn number(&mut self, name: impl Into<Cow<'static, str>>, controller: &str, file: &str) -> Option<u64> {
        let number = self.value(controller, file);
        self.found(name, number)
    }

    /// A limit, from a file with a number or `max` for none; `max` counts as measured too.
    pub fn limit(&mut self, name: impl Into<Cow<'static, str>>, controller: &str, file: &str) -> Option<u64> {
        let text = self.text(controller, file);
        self.found(name, text)?.trim().parse().ok()
    }

    /// Reads a file of `key value` lines.
    pub fn keyed(&mut self, controller: &str, file: &str) -> Keyed<'_, 'a> {
        let text = self.text(controller, file).unwrap_or_default();
        Keyed { reading: self, text }
    }

    /// Reads a pressure file, which is in the unified hierarchy.
    pub fn pressure(&mut self, name: &'static str, file: &str) -> Option<Pressure> {
        // While pressure accounting is off, the file cannot be opened or read.
        let pressure = self.layout.read_unified(self.cgroup, file).and_then(|text| pressure(&text));
        self.found(name, pressure)
    }
}

/// A file of `key value` lines, read once.
pub struct Keyed<'r, 'a> {
    reading: &'r mut Reading<'a>,
    text: String,
}

impl Keyed<'_, '_> {
    pub fn value(&self, key: &str) -> Option<u64> {
        let mut pairs = self.text.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(k, _)| *k == key)?.1.trim().parse().ok()
    }

    /// All values, as the figure `name`; `None` if there is no such file.
    pub fn all(&mut self, name: &'static str) -> Option<BTreeMap<String, u64>> {
        let pairs = self.text.lines().filter_map(|line| line.split_once(' '));
        let pairs = pairs.filter_map(|(key, value)| Some((key.to_owned(), value.trim().parse().ok()?)));
        let all: BTreeMap<String, u64> = pairs.collect();
        self.reading.found(name, Some(all).filter(|all| !all.is_empty()))
    }

    /// The figure `name`, from the line that starts with `key`.
    pub fn get(&mut self, name: &'static str, key: &str) -> Option<u64> {
        let value = self.value(key);
        self.reading.found(name, value)
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and `full` in the same way.
fn pressure(text: &str) -> Option<Pressure> {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        match line.split_once(' ')? {
            ("some", fields) => pressure.some = stall(fields),
            ("full", fields) => pressure.full = stall(fields),
            _ => {}
        }
    }
    (pressure != Pressure::default()).then_some(pressure)
}

fn stall(fields: &str) -> Option<Stall> {
    let field = |name: &str| fields.split(' ').find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
    Some(Stall {
        avg10: field("avg10")?.parse().ok()?,
        avg60: field("avg60")?.parse().ok()?,
        avg300: field("avg300")?.parse().ok()?,
        total_usec: field("total")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_line_by_line() {
        let text =
            "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let read = pressure(text).expect("it is well formed");
        let some = read.some.expect("a first line");
        assert_eq!((some.avg10, some.avg60, some.total_usec), (1.5, 0.25, 1234));
        assert_eq!(read.full.map(|full| full.total_usec), Some(7));
    }

    #[test]
    fn what_is_no_pressure_is_left_out() {
        for text in ["", "some", "some avg10=x avg60=0 avg300=0 total=0", "all avg10=0.00"] {
            assert_eq!(pressure(text), None, "{text:?}");
        }
    }
}
