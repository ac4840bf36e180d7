//! Renders metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0.
//!
//! ```text
//!   name, type, unit, help ─┐
//!   labels, value ──────────┴─► Exposition ─► text, in one form or the other
//! ```
//!
//! Families are sorted by name and samples by labels, so that two scrapes are comparable; a series appears once. Names
//! of counters have no `_total` here, and names of infos no `_info`: only this module knows where each format wants
//! them. Pure.

use std::collections::BTreeMap;

use bowline_model::stats::figures::ExecStarts;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Prometheus' own format, 0.0.4.
    Text,
    OpenMetrics,
}

impl Form {
    /// The media type in HTTP.
    pub fn media_type(self) -> &'static str {
        match self {
            Form::Text => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A number that only grows.
    Counter,
    /// A number that can go down.
    Gauge,
    /// Counts of durations, in seconds.
    Histogram,
    /// Labels without a figure: the value is always 1.
    Info,
}

/// The labels of a sample, in the order in which they are printed.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a sample. Only seconds have fractions, so what is printed is exact and never NaN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    /// A time in µs, printed in seconds.
    Micros(u64),
    Histogram(ExecStarts),
}

/// All families of one scrape.
#[derive(Debug, Default)]
pub struct Exposition {
    families: BTreeMap<String, Family>,
}

#[derive(Debug)]
struct Family {
    of: Type,
    unit: Option<&'static str>,
    help: &'static str,
    samples: BTreeMap<Labels, Value>,
}

/// A family's description, for the documents.
#[cfg(test)]
#[derive(Debug, PartialEq, Eq)]
pub struct Described<'a> {
    pub name: String,
    pub of: Type,
    pub help: &'static str,
    pub labels: Vec<&'a str>,
}

impl Exposition {
    /// Adds a sample, and its family if it is the first. If there is a unit, the name must end with it. Of several
    /// samples with the same labels the first is kept.
    pub fn add(
        &mut self,
        name: String,
        (of, unit): (Type, Option<&'static str>),
        help: &'static str,
        labels: Labels,
        value: Value,
    ) {
        let new = || Family { of, unit, help, samples: BTreeMap::new() };
        self.families.entry(name).or_insert_with(new).samples.entry(labels).or_insert(value);
    }

    pub fn render(&self, form: Form) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            family.render(name, form, &mut out);
        }
        if form == Form::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    /// All families, in the order in which they are printed.
    #[cfg(test)]
    pub fn described(&self) -> impl Iterator<Item = Described<'_>> {
        self.families.iter().map(|(name, family)| {
            let Family { of, help, .. } = *family;
            let mut labels: Vec<&str> = family.samples.keys().flatten().map(|(label, _)| *label).collect();
            let mut seen = Vec::new();
            labels.retain(|label| {
                !seen.contains(label) && {
                    seen.push(*label);
                    true
                }
            });
            Described { name: format!("{name}{}", suffix(of)), of, help, labels }
        })
    }
}

/// The suffix of a sample's name after the family's name.
fn suffix(of: Type) -> &'static str {
    match of {
        Type::Counter => "_total",
        Type::Info => "_info",
        Type::Gauge | Type::Histogram => "",
    }
}

impl Family {
    fn render(&self, name: &str, form: Form, out: &mut String) {
        // 0.0.4 names a family after its samples.
        let (family, of) = match (form, self.of) {
            (Form::OpenMetrics, of) => (name.to_owned(), of.name()),
            (Form::Text, Type::Info) => (format!("{name}_info"), Type::Gauge.name()),
            (Form::Text, of) => (format!("{name}{}", suffix(of)), of.name()),
        };
        out.push_str(&format!(
            "# HELP {family} {}\n# TYPE {family} {of}\n",
            escaped(self.help, form == Form::OpenMetrics)
        ));
        if let Some(unit) = self.unit.filter(|_| form == Form::OpenMetrics) {
            out.push_str(&format!("# UNIT {family} {unit}\n"));
        }
        for (labels, value) in &self.samples {
            let mut line = |suffix: &str, more: Option<&str>, value: &str| {
                out.push_str(name);
                out.push_str(suffix);
                out.push_str(&braced(labels, more));
                out.push(' ');
                out.push_str(value);
                out.push('\n');
            };
            match value {
                Value::Number(number) => line(suffix(self.of), None, &number.to_string()),
                Value::Micros(usec) => line(suffix(self.of), None, &seconds(*usec)),
                Value::Histogram(starts) => {
                    let mut count = 0u64;
                    for bucket in &starts.buckets {
                        count = count.saturating_add(bucket.count);
                        line("_bucket", Some(&bound(bucket.up_to_usec, form)), &count.to_string());
                    }
                    let count = count.saturating_add(starts.slower).to_string();
                    line("_bucket", Some("+Inf"), &count);
                    line("_sum", None, &seconds(starts.sum_usec));
                    line("_count", None, &count);
                }
            }
        }
    }
}

impl Type {
    pub fn name(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
            Type::Info => "info",
        }
    }
}

/// Converts µs to seconds without rounding.
fn seconds(usec: u64) -> String {
    let (whole, part) = (usec / 1_000_000, usec % 1_000_000);
    match part {
        0 => whole.to_string(),
        _ => format!("{whole}.{part:06}").trim_end_matches('0').to_owned(),
    }
}

/// The bound of a bucket, as a label: OpenMetrics requires it to look like a float.
fn bound(usec: u64, form: Form) -> String {
    let seconds = seconds(usec);
    if form == Form::OpenMetrics && !seconds.contains('.') { seconds + ".0" } else { seconds }
}

/// `{label="value"}`, or nothing without labels. `bound` is the label of a bucket.
fn braced(labels: &Labels, bound: Option<&str>) -> String {
    let labels = labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound.map(|bound| ("le", bound)));
    let pairs: Vec<String> = labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// Escapes backslashes, line ends and, with `quotes`, double quotes. Format 0.0.4 keeps quotes in help texts.
fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use bowline_model::stats::figures::Bucket;
    use proptest::prelude::*;

    use super::*;

    fn one(of: Type, unit: Option<&'static str>, value: Value) -> Exposition {
        let mut all = Exposition::default();
        let name = unit.map_or("x".to_owned(), |unit| format!("x_{unit}"));
        all.add(name, (of, unit), "What \"x\" is", vec![("task", "a\"\\\nb".to_owned())], value);
        all
    }

    #[test]
    fn a_counter_is_named_as_each_form_has_it() {
        let all = one(Type::Counter, Some("seconds"), Value::Micros(1_500_000));
        let text = "# HELP x_seconds_total What \"x\" is\n# TYPE x_seconds_total counter\n\
                    x_seconds_total{task=\"a\\\"\\\\\\nb\"} 1.5\n";
        assert_eq!(all.render(Form::Text), text);
        let open = "# HELP x_seconds What \\\"x\\\" is\n# TYPE x_seconds counter\n# UNIT x_seconds seconds\n\
                    x_seconds_total{task=\"a\\\"\\\\\\nb\"} 1.5\n# EOF\n";
        assert_eq!(all.render(Form::OpenMetrics), open);
    }

    #[test]
    fn info_is_a_gauge_to_prometheus() {
        let all = one(Type::Info, None, Value::Number(1));
        assert!(all.render(Form::Text).contains("# TYPE x_info gauge\nx_info{"));
        assert!(all.render(Form::OpenMetrics).contains("# TYPE x info\nx_info{"));
    }

    #[test]
    fn a_histogram_counts_upwards() {
        let buckets = vec![Bucket { up_to_usec: 500, count: 2 }, Bucket { up_to_usec: 1_000_000, count: 3 }];
        let starts = ExecStarts { buckets, slower: 1, sum_usec: 7_000_001, failed: 9 };
        let mut all = Exposition::default();
        all.add("x_seconds".into(), (Type::Histogram, Some("seconds")), "x", Labels::new(), Value::Histogram(starts));
        let lines =
            |form| all.render(form).lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        let tail = ["x_seconds_bucket{le=\"+Inf\"} 6", "x_seconds_sum 7.000001", "x_seconds_count 6"];
        assert_eq!(lines(Form::Text)[..2], ["x_seconds_bucket{le=\"0.0005\"} 2", "x_seconds_bucket{le=\"1\"} 5"]);
        assert_eq!(lines(Form::Text)[2..], tail);
        assert_eq!(lines(Form::OpenMetrics)[1..2], ["x_seconds_bucket{le=\"1.0\"} 5"]);
        assert_eq!(lines(Form::OpenMetrics)[2..], tail);
    }

    #[test]
    fn nothing_is_an_exposition_too() {
        assert_eq!(Exposition::default().render(Form::Text), "");
        assert_eq!(Exposition::default().render(Form::OpenMetrics), "# EOF\n");
    }

    /// Parses a sample: name, labels, value.
    fn parse(line: &str) -> (String, Vec<(String, String)>, String) {
        let (name, mut rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let mut labels = Vec::new();
        if let Some(within) = rest.strip_prefix('{') {
            rest = within;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                let mut value = String::new();
                let mut chars = after.char_indices();
                let end = loop {
                    match chars.next().unwrap() {
                        (at, '"') => break at,
                        (_, '\\') => value.push(match chars.next().unwrap().1 {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            c => panic!("\\{c}"),
                        }),
                        (_, c) => value.push(c),
                    }
                };
                labels.push((label.to_owned(), value));
                rest = &after[end + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break rest = rest.strip_prefix('}').unwrap(),
                }
            }
        }
        (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().to_owned())
    }

    proptest! {
        #[test]
        fn any_label_value_is_read_back_from_one_line(value in any::<String>(), other in ".*[\"\\\\\n].*") {
            let labels = vec![("a", value.clone()), ("b", other.clone())];
            let mut all = Exposition::default();
            all.add("x".into(), (Type::Gauge, None), "x", labels, Value::Number(1));
            for form in [Form::Text, Form::OpenMetrics] {
                let text = all.render(form);
                let samples: Vec<&str> = text.split('\n').filter(|line| line.starts_with("x{")).collect();
                prop_assert_eq!(samples.len(), 1);
                let expected = vec![("a".to_owned(), value.clone()), ("b".to_owned(), other.clone())];
                prop_assert_eq!(parse(samples[0]), ("x".to_owned(), expected, "1".to_owned()));
            }
        }

        #[test]
        fn seconds_are_exact(usec in any::<u64>()) {
            let text = seconds(usec);
            let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
            prop_assert!(part.len() <= 6 && !part.ends_with('0'));
            let part = format!("{part:0<6}");
            prop_assert_eq!(whole.parse::<u128>().unwrap() * 1_000_000 + part.parse::<u128>().unwrap(), u128::from(usec));
            prop_assert!((text.parse::<f64>().unwrap() - usec as f64 / 1e6).abs() <= usec as f64 * 1e-15);
        }

        #[test]
        fn every_series_is_there_once_in_one_order(
            samples in prop::collection::vec((0..4usize, "[ab\"]{0,2}", any::<u64>()), 0..40),
        ) {
            let kinds = [Type::Counter, Type::Gauge, Type::Info, Type::Histogram];
            let all = |samples: &[(usize, String, u64)]| {
                let mut all = Exposition::default();
                for (kind, label, value) in samples {
                    let value = match kinds[*kind] {
                        Type::Histogram => Value::Histogram(ExecStarts { slower: *value, ..ExecStarts::default() }),
                        _ => Value::Number(*value),
                    };
                    all.add(format!("x{kind}"), (kinds[*kind], None), "x", vec![("l", label.clone())], value);
                }
                all
            };
            for form in [Form::Text, Form::OpenMetrics] {
                let text = all(&samples).render(form);
                let series: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).map(|l| {
                    let (name, labels, _) = parse(l);
                    (name, labels)
                }).collect();
                let distinct: BTreeSet<_> = series.iter().collect();
                prop_assert_eq!(distinct.len(), series.len());
                let wanted: BTreeSet<_> = samples.iter().map(|(kind, label, _)| (kind, label)).collect();
                let times = wanted.iter().map(|(kind, _)| if **kind == 3 { 3 } else { 1 }).sum::<usize>();
                prop_assert_eq!(series.len(), times);
                // The order of samples does not matter: only values may differ.
                let turned: Vec<_> = samples.iter().rev().cloned().collect();
                let names = |text: &str| text.lines().map(|l| l.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>();
                prop_assert_eq!(names(&all(&turned).render(form)), names(&text));
            }
        }

        #[test]
        fn a_histogram_never_falls(counts in prop::collection::vec(0..1000u64, 1..13), slower in 0..10u64) {
            let buckets = counts.iter().zip(1..).map(|(&count, n)| Bucket { up_to_usec: n * 1000, count }).collect();
            let starts = ExecStarts { buckets, slower, sum_usec: 1, failed: 0 };
            let mut all = Exposition::default();
            all.add("x".into(), (Type::Histogram, None), "x", Labels::new(), Value::Histogram(starts));
            let text = all.render(Form::Text);
            let of = |name: &str| -> Vec<u64> {
                text.lines().map(parse_or_comment).filter(|(n, _)| n == name).map(|(_, v)| v.parse().unwrap()).collect()
            };
            let rising = of("x_bucket");
            prop_assert!(rising.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert_eq!(rising.last().copied(), of("x_count").last().copied());
            prop_assert_eq!(rising.last().copied(), Some(counts.iter().sum::<u64>() + slower));
        }
    }

    fn parse_or_comment(line: &str) -> (String, String) {
        if line.starts_with('#') {
            return (String::new(), String::new());
        }
        let (name, _, value) = parse(line);
        (name, value)
    }

    #[test]
    fn what_takes_no_time_is_no_fraction() {
        assert_eq!(seconds(0), "0");
        assert_eq!(seconds(Duration::from_secs(3).as_micros() as u64), "3");
        assert_eq!(seconds(1), "0.000001");
        assert_eq!(seconds(u64::MAX), "18446744073709.551615");
    }
}
