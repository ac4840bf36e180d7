//! Maps figures to pixels, with round steps for the axes.

/// Maps a range of figures to a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The smallest and the largest figure.
    pub from: f64,
    pub to: f64,
    /// The pixels of `from` and `to`.
    pub first: f64,
    pub last: f64,
}

impl Scale {
    /// The pixel of a figure. A figure outside the range is at the nearest edge.
    pub fn at(&self, figure: f64) -> f64 {
        let part = (figure - self.from) / (self.to - self.from);
        self.first + part.clamp(0.0, 1.0) * (self.last - self.first)
    }
}

/// The most steps on an axis.
const STEPS: f64 = 5.0;

/// The smallest step of 1, 2 or 5 times a power of ten that reaches `most` in at most [`STEPS`] steps.
pub fn decimal_step(most: f64) -> f64 {
    let least = (most / STEPS).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// The smallest power of two bytes, at least 1 KiB, that reaches `most` in at most [`STEPS`] steps.
pub fn binary_step(most: f64) -> f64 {
    let mut step = 1024.0;
    while step * STEPS < most {
        step *= 2.0;
    }
    step
}

/// The first multiple of `step` that is at least `most`, and at least one step.
pub fn top(most: f64, step: f64) -> f64 {
    ((most / step).ceil() * step).max(step)
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// The smallest step of time that divides `span` seconds into at most ten.
pub fn time_step(span: f64) -> f64 {
    const STEPS: [f64; 30] = [
        0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
        MINUTE, 120.0, 300.0, 600.0, 900.0, 1_800.0, HOUR, 7_200.0, 10_800.0, 21_600.0, 43_200.0, DAY,
    ];
    let found = STEPS.into_iter().find(|step| span / step <= 10.0);
    // A span of many days gets decimal steps of whole days.
    found.unwrap_or_else(|| decimal_step(span / 2.0 / DAY).max(1.0) * DAY)
}

/// Formats a time on an axis with this step: `0`, `200 ms`, `2.5 s`, `1:30`, `2 h`, `1:30 h`, `3 d`.
pub fn time_label(seconds: f64, step: f64) -> String {
    let whole = seconds.round() as u64;
    match step {
        _ if seconds == 0.0 => "0".to_owned(),
        step if step < 0.001 => format!("{:.1} ms", seconds * 1e3),
        step if step < 0.1 => format!("{:.0} ms", seconds * 1e3),
        step if step < 1.0 => format!("{seconds:.1} s"),
        step if step < MINUTE && whole < 60 => format!("{whole} s"),
        step if step < HOUR && whole < 3_600 => format!("{}:{:02} min", whole / 60, whole % 60),
        step if step < HOUR => format!("{}:{:02} h", whole / 3_600, whole / 60 % 60),
        step if step < DAY => format!("{} h", whole / 3_600),
        _ => format!("{} d", whole / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_not_many() {
        for (most, step) in [(100.0, 20.0), (7.0, 2.0), (5.2, 2.0), (0.3, 0.1), (199.0, 50.0), (1.0, 0.2)] {
            assert!((decimal_step(most) - step).abs() < 1e-9, "{most}: {}", decimal_step(most));
        }
        let (kib, mib) = (1024.0, 1_048_576.0);
        for (most, step) in [(64.0 * kib, 16.0 * kib), (5.0 * mib, mib), (64.0 * mib, 16.0 * mib), (1e8, 32.0 * mib)] {
            assert_eq!(binary_step(most), step, "{most}");
        }
        assert_eq!((top(101.0, 20.0), top(100.0, 20.0), top(0.0, 0.2)), (120.0, 100.0, 0.2));
    }

    #[test]
    fn time_has_few_ticks_of_round_figures_whatever_its_span() {
        for (span, label) in [
            (0.002, "0.2 ms"),
            (0.25, "50 ms"),
            (3.0, "0.5 s"),
            (55.0, "10 s"),
            (90.0, "10 s"),
            (600.0, "1:00 min"),
            (7_200.0, "15:00 min"),
            (86_400.0, "3 h"),
            (864_000.0, "1 d"),
        ] {
            let step = time_step(span);
            assert!((3.0..=10.01).contains(&(span / step)), "{span} by {step}");
            assert_eq!(time_label(step, step), label);
        }
        let step = time_step(1e9);
        assert!((2.0..=10.0).contains(&(1e9 / step)) && (step / DAY).fract() == 0.0, "{step}");
        assert_eq!((time_label(90.0, 15.0), time_label(5_400.0, 1_800.0)), ("1:30 min".into(), "1:30 h".into()));
    }
}
