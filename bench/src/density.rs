//! Many tasks on one machine: what one more takes, from one task to a thousand; and sandboxes of two. Beside them is what the
//! kernel alone takes for as many tasks: they have no shim, and one level of cgroups.
//!
//! What is per task should be the same however many there are. The commands look at all tasks, so theirs grows, and its
//! part for each task should not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use serde_json::{Value, json};

use crate::chart::{self, Bar, Group};
use crate::contenders::Contenders;
use crate::groups;
use crate::memory::{self, SETTLE, kernel_number};
use crate::open_files;
use crate::quiet;
use crate::rounds::Rounds;
use crate::say::say;
use crate::table::{aligned, digits, mark, rule};

/// What is measured: its name, and its unit. The first three are of one task.
const MEASURES: [(&str, &str); 6] = [
    ("start, its shim's included", "ms"),
    ("its shim's memory, PSS", "KiB"),
    ("memory of the machine", "KiB"),
    ("`ps`", "ms"),
    ("`stats`", "ms"),
    ("`metrics --once`", "ms"),
];
const PER_TASK: usize = 3;
/// Those of [`MEASURES`] that the floor has too, and the headings of its columns.
const OF_FLOOR: [(usize, &str); 2] = [(0, "floor: start, ms each"), (2, "floor: memory of the machine, KiB each")];
/// What asks about all tasks.
const COMMANDS: [&[&str]; 3] = [&["ps"], &["stats"], &["metrics", "--once"]];

/// So many tasks, and what was measured of them.
struct Step {
    name: String,
    tasks: usize,
    values: [f64; MEASURES.len()],
    /// The first measures of as many tasks of the floor, those that it has.
    floor: [Option<f64>; PER_TASK],
    /// Whether something else kept the machine busy meanwhile.
    busy: bool,
}

/// The measured steps: one for each number of tasks, and one for the sandboxes.
pub struct Density(Vec<Step>);

/// Measures as many tasks as each of `sizes` says, one after the other, then `sandboxes` of two.
pub fn measure(rounds: &Rounds, on: &mut Contenders, bin: &Path, sizes: &[usize], sandboxes: usize) -> Result<Density> {
    open_files::raise()?;
    let commands = Commands { program: bin.join("bowline"), state: on.shims.state().to_owned() };
    let job = groups::sleeper(on)?;
    let mut steps = Vec::new();
    let before = available()?;
    let mut all = Vec::new();
    for size in sizes {
        say(&format!("measuring density: {size} tasks"));
        let (step, busy) = quiet::watched(|| {
            let (begin, more) = (Instant::now(), size - all.len());
            for _ in 0..more {
                rounds.go_on()?;
                all.push(on.shims.hold(&job.description)?);
            }
            let start = milliseconds(begin.elapsed()) / more as f64;
            let name = if *size == 1 { "1 task".to_owned() } else { format!("{size} tasks") };
            Step::of(name, *size, start, all.iter().map(|up| up.pid()), before, &commands)
        })?;
        steps.push(Step { busy, ..step });
    }
    let most = all.len();
    drop(all);
    settle(rounds, most)?;

    let (before, mut there) = (available()?, 0);
    for step in &mut steps {
        say(&format!("measuring density: {} by the kernel alone", step.name));
        rounds.go_on()?;
        let (values, busy) = quiet::watched(|| {
            let start = milliseconds(on.floor.crowd(step.tasks)?) / (step.tasks - there) as f64;
            std::thread::sleep(SETTLE);
            Ok([Some(start), None, Some((before - available()?).max(0.0) / step.tasks as f64)])
        })?;
        (step.floor, step.busy, there) = (values, step.busy | busy, step.tasks);
    }
    on.floor.disperse()?;
    settle(rounds, most)?;

    say(&format!("measuring density: {sandboxes} sandboxes"));
    let member = on.member(&["/bin/sleep", "1000000"])?;
    let mut all = Vec::new();
    let (step, busy) = quiet::watched(|| {
        let (before, begin) = (available()?, Instant::now());
        for _ in 0..sandboxes {
            rounds.go_on()?;
            all.push(on.shims.hold_sandbox(&member, 2)?);
        }
        let start = milliseconds(begin.elapsed()) / (2 * sandboxes) as f64;
        let name = format!("{sandboxes} sandboxes of 2");
        Step::of(name, 2 * sandboxes, start, all.iter().map(|sandbox| sandbox.pid()), before, &commands)
    })?;
    steps.push(Step { busy, ..step });
    Ok(Density(steps))
}

/// Waits until the kernel has freed the networks and cgroups of so many tasks: some seconds for a thousand of them.
fn settle(rounds: &Rounds, tasks: usize) -> Result<()> {
    for _ in 0..tasks / 10 {
        rounds.go_on()?;
        if quiet::others()?.is_none() {
            break;
        }
    }
    Ok(())
}

impl Step {
    /// What `tasks` take, whose shims are these, where `before` was available without them.
    fn of(
        name: String,
        tasks: usize,
        start: f64,
        shims: impl Iterator<Item = u32>,
        before: f64,
        commands: &Commands,
    ) -> Result<Step> {
        std::thread::sleep(SETTLE);
        let machine = (before - available()?).max(0.0) / tasks as f64;
        let own = shims.map(memory::proportional).sum::<Result<f64>>()? / tasks as f64;
        let mut values = [start, own, machine, 0.0, 0.0, 0.0];
        for (value, command) in values[PER_TASK..].iter_mut().zip(COMMANDS) {
            // The first one is there to warm up.
            commands.run(command)?;
            *value = milliseconds(commands.run(command)?);
        }
        Ok(Step { name, tasks, values, floor: [None; PER_TASK], busy: false })
    }

    /// A value as the chart has it: for one task.
    fn of_one(&self, measure: usize) -> f64 {
        if measure < PER_TASK { self.values[measure] } else { self.values[measure] / self.tasks as f64 }
    }
}

impl Density {
    /// Formats the steps as a Markdown table.
    pub fn text(&self) -> String {
        let heading = MEASURES.iter().enumerate().map(|(number, (name, unit))| {
            if number < PER_TASK { format!("{name}, {unit} each") } else { format!("{name}, {unit}") }
        });
        let of_floor = OF_FLOOR.map(|(_, heading)| heading.to_owned());
        let mut lines = vec![std::iter::once(String::new()).chain(heading).chain(of_floor).collect::<Vec<_>>()];
        lines.push(rule(lines[0].len()));
        for step in &self.0 {
            let name = format!("{}{}", step.name, mark(step.busy));
            let of_floor = OF_FLOOR.map(|(number, _)| step.floor[number].map_or_else(|| "-".to_owned(), digits));
            lines.push(std::iter::once(name).chain(step.values.map(digits)).chain(of_floor).collect());
        }
        aligned(&lines)
    }

    pub fn json(&self) -> Value {
        let step = |step: &Step| {
            let floor = step.floor.into_iter().chain(std::iter::repeat(None));
            let measures = MEASURES.iter().zip(step.values).zip(floor);
            let values = measures.map(
                |(((name, unit), value), floor)| json!({"name": name, "unit": unit, "value": value, "floor": floor}),
            );
            json!({"name": step.name, "tasks": step.tasks, "busy": step.busy, "values": values.collect::<Vec<_>>()})
        };
        self.0.iter().map(step).collect()
    }

    /// As a picture: of each measure, a bar for each number of tasks.
    pub fn svg(&self, machine: &str) -> Option<String> {
        let groups = MEASURES.iter().enumerate().map(|(number, (name, unit))| {
            let bar = |name: String, class: &'static str, value: f64| {
                let text = match *unit {
                    "ms" if value < 0.1 => format!("{:.0} µs", value * 1e3),
                    unit if value <= 0.0 => format!("0 {unit}"),
                    unit => format!("{} {unit}", digits(value)),
                };
                Bar { name, class, value, text }
            };
            let ours = self.0.iter().map(|step| bar(step.name.clone(), "ours", step.of_one(number)));
            let of_floor = |step: &Step| {
                let value = step.floor.get(number).copied().flatten()?;
                Some(bar(format!("{}, the kernel alone", step.name), "floor", value))
            };
            let bars = ours.chain(self.0.iter().filter_map(of_floor)).collect();
            Group { title: format!("{}, for each task", name.replace('`', "")), bars, longest: None }
        });
        let label = "What one task more takes, from one to a thousand";
        chart::picture(label, &format!("For each task, shorter is better. {machine}"), &groups.collect::<Vec<_>>())
    }
}

/// bowline's command, on the bench's own tasks.
struct Commands {
    program: PathBuf,
    state: PathBuf,
}

impl Commands {
    fn run(&self, args: &[&str]) -> Result<Duration> {
        let what = || format!("cannot run {} {}", self.program.display(), args.join(" "));
        let mut command = Command::new(&self.program);
        command.arg("--state").arg(&self.state).args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.status().doing(Kind::Internal, what)?;
        let took = begin.elapsed();
        if status.success() { Ok(took) } else { Err(Error::new(Kind::Internal, format!("{}: {status}", what()))) }
    }
}

/// What the machine could still give, in KiB.
fn available() -> Result<f64> {
    kernel_number("/proc/meminfo", "MemAvailable:")
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
