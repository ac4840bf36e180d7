//! Measures bowline side by side with crun, runc and the kernel alone, in one
//! run, and prints one table. `docs/bench.md` says what each row is.
//!
//! ```text
//!   main ─► account ─► contenders
//!       ├► density, growth ─► groups
//!       ├──► groups ─► rounds ─► contenders: floor, shim, peers ─► runner; table
//!       │        ├──► memory
//!       ├► managed ─► containerd ─► grpc; mounts
//!       └► nomad ─► driver ──────────┘
//! ```

mod account;
mod chart;
mod command_line;
mod containerd;
mod contenders;
mod density;
mod driver;
mod floor;
mod groups;
mod growth;
mod grpc;
mod interrupt;
mod managed;
mod memory;
mod mounts;
mod nomad;
mod oci;
mod open_files;
mod peers;
mod podman;
mod quiet;
mod rounds;
mod runner;
mod say;
mod shim;
mod table;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bowline_executor::VERSION;
use bowline_model::{Doing, Error, Kind, Result};
use clap::Parser;
use serde_json::{Value, json};

use command_line::CommandLine;
use contenders::Contenders;
use density::Density;
use groups::Held;
use managed::{Managers, Written};
use rounds::{Gap, Rounds};
use say::say;
use shim::Alone;
use table::{Figure, Row};

/// Measures bowline beside crun, runc and the kernel alone.
#[derive(Debug, Parser)]
#[command(name = "bowline-bench", version = VERSION, about)]
struct Arguments {
    /// Measurements of each kind and contender [default: 60, with --small 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Few rounds, few shims, and no table but of ratios
    #[arg(long)]
    small: bool,
    /// Only these, such as --only exec
    #[arg(long, value_name = "WHAT", value_enum)]
    only: Vec<What>,
    /// Leave crun and runc out
    #[arg(long)]
    no_peers: bool,
    /// Where bowline-shim is [default: beside this program]
    #[arg(long, env = "BOWLINE_BIN_DIR", value_name = "DIR")]
    bin: Option<PathBuf>,
    /// Where all figures go
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    json: PathBuf,
    /// Where the chart goes
    #[arg(long, value_name = "FILE", default_value = "target/bench.svg")]
    chart: PathBuf,
    /// What everything that is made has in its name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print what each step of a launch, an exec and a stop takes, and nothing else
    #[arg(long)]
    account: bool,
    /// Run commands for another such process
    #[arg(long, hide = true)]
    run_commands: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Launch,
    Commands,
    Exec,
    Calls,
    CommandLine,
    Oci,
    Together,
    Sandbox,
    Memory,
    Growth,
    Density,
    Containerd,
    Probes,
    Nomad,
}

impl Arguments {
    fn wants(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.run_commands { runner::serve() } else { run(&arguments) };
    let Err(error) = done else { return ExitCode::SUCCESS };
    say(&format!("bowline-bench: {error}"));
    if let Some(hint) = error.hint_text() {
        say(&format!("hint: {hint}"));
    }
    ExitCode::FAILURE
}

fn run(arguments: &Arguments) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(Kind::Unsupported, "cannot make namespaces and cgroups without being root")
            .hint("run it as root; `make bench` does"));
    }
    let count = arguments.rounds.unwrap_or(if arguments.small { 5 } else { 60 }) as usize;
    let bin = match &arguments.bin {
        // containerd looks for its shim there from another folder.
        Some(bin) => {
            fs::canonicalize(bin).doing(Kind::NotFound, || format!("--bin: cannot look into {}", bin.display()))?
        }
        None => beside_us()?,
    };
    let name = arguments.name.clone().unwrap_or_else(|| format!("bench-{}", std::process::id()));
    // Before anything is made that an interrupt would leave.
    let mut rounds = Rounds::new(count)?;
    let mut contenders = Contenders::new(&bin, &name, !arguments.no_peers)?;
    let bin = contenders.bin().to_owned();
    if !arguments.no_peers {
        for peer in contenders.missing() {
            say(&format!("{peer} is not installed: its column stays empty"));
        }
    }
    if arguments.account {
        let (tables, busy) = quiet::watched(|| {
            let managers = managed::start(&mut contenders, &bin)?;
            account::tables(&mut rounds, &mut contenders, managers, &bin)
        })?;
        let warning = if busy { "Something else kept the machine busy: these figures say little.\n\n" } else { "" };
        return print(&format!("{warning}{tables}"));
    }
    let about = about(&contenders, count);
    let mut rows = rows(&mut rounds, &mut contenders, arguments, &bin)?;
    let mut figures = figures(&mut rounds, &mut contenders, arguments)?;
    let (more_rows, more_figures) = containerd(&mut rounds, &mut contenders, arguments, &bin)?;
    rows.extend(more_rows);
    figures.extend(more_figures);
    let (more_rows, more_figures) = nomad(&mut rounds, &contenders, arguments, &bin)?;
    rows.extend(more_rows);
    figures.extend(more_figures);
    // Last: the kernel frees a thousand cgroups and networks for a while, and makes others slower meanwhile.
    let density = density(&rounds, &mut contenders, arguments, &bin)?;
    drop(contenders);

    let mut json = table::json(&about, &rows, &figures);
    json["density"] = density.as_ref().map_or(Value::Null, Density::json);
    write(&arguments.json, &format!("{json:#}\n"))?;
    if let Some(chart) = chart::svg(&rows, &machine(&about)) {
        write(&arguments.chart, &chart)?;
    }
    if let Some(chart) = density.as_ref().and_then(|density| density.svg(&machine(&about))) {
        write(&arguments.chart.with_file_name("density.svg"), &chart)?;
    }
    let text = table::text(&rows, &figures, arguments.small);
    let many = density.as_ref().map(Density::text).unwrap_or_default();
    let text = format!("{text}\n{many}\n{}\nAll figures: {}\n", legend(&about), arguments.json.display());
    print(&text)
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).doing(Kind::Internal, || "cannot print the table")
}

fn rows(rounds: &mut Rounds, on: &mut Contenders, arguments: &Arguments, bin: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if arguments.wants(What::Launch) {
        for seccomp in ["unconfined", "default"] {
            for gap in [Gap::None, Gap::Random] {
                say(&format!("measuring launch, seccomp {seccomp}, gap {gap:?}"));
                rows.extend(groups::launch(rounds, on, seccomp, gap)?);
            }
        }
    }
    if arguments.wants(What::Commands) {
        say("measuring create, start, delete");
        rows.extend(groups::commands(rounds, on)?);
        rows.extend(groups::init(rounds, on)?);
    }
    if [What::Exec, What::Calls, What::CommandLine, What::Oci].iter().any(|what| arguments.wants(*what)) {
        let held = Held::start(on)?;
        if arguments.wants(What::Exec) {
            for gap in [Gap::None, Gap::Fixed] {
                say(&format!("measuring exec, gap {gap:?}"));
                rows.extend(groups::exec(rounds, on, &held, gap)?);
            }
        }
        if arguments.wants(What::Calls) {
            say("measuring calls");
            rows.extend(groups::calls(rounds, on, &held)?);
        }
        if arguments.wants(What::CommandLine) {
            rows.extend(command_line(rounds, on, &held, bin)?);
        }
        if arguments.wants(What::Oci) {
            say("measuring the commands of OCI runtimes");
            rows.extend(oci::run(rounds, on, &held, bin)?);
            say("measuring Podman");
            rows.extend(podman::run(&mut rounds.fewer(20), on, bin)?);
        }
        held.end(on)?;
    }
    if arguments.wants(What::Together) {
        say("measuring several at once");
        let (count, times) = if arguments.small { (4, 1) } else { (20, 10) };
        rows.extend(groups::together(&mut rounds.fewer(times), on, count)?);
    }
    if arguments.wants(What::Sandbox) {
        say("measuring sandboxes");
        rows.extend(groups::sandbox(rounds, on)?);
    }
    if arguments.wants(What::Growth) {
        for count in if arguments.small { [1, 5, 20] } else { [1, 100, 2000] } {
            say(&format!("measuring growth: {count} processes in a task"));
            rows.extend(growth::crowd(&mut rounds.fewer(20), on, count)?);
        }
        say("measuring growth: output that is kept");
        rows.extend(growth::log(&mut rounds.fewer(if arguments.small { 1 } else { 5 }), on)?);
    }
    Ok(rows)
}

/// Measures many tasks at once; `None` where `--only` leaves that out.
fn density(rounds: &Rounds, on: &mut Contenders, arguments: &Arguments, bin: &Path) -> Result<Option<Density>> {
    if !arguments.wants(What::Density) {
        return Ok(None);
    }
    let (sizes, sandboxes): (&[usize], _) = if arguments.small { (&[1, 5], 2) } else { (&[1, 10, 100, 1000], 500) };
    density::measure(rounds, on, bin, sizes, sandboxes).map(Some)
}

/// What a person at a shell waits for.
fn command_line(rounds: &mut Rounds, on: &mut Contenders, held: &Held, bin: &Path) -> Result<Vec<Row>> {
    say("measuring the command line: run");
    let sleeper = groups::sleeper(on)?;
    let mut ours = CommandLine::start(bin, on.state(), &sleeper)?;
    let mut rows = command_line::run(rounds, on, &mut ours)?;
    for gap in [Gap::None, Gap::Fixed] {
        say(&format!("measuring the command line: exec, gap {gap:?}"));
        rows.extend(command_line::exec(rounds, on, &mut ours, held, gap)?);
    }
    Ok(rows)
}

fn figures(rounds: &mut Rounds, on: &mut Contenders, arguments: &Arguments) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if arguments.wants(What::Growth) {
        say("measuring growth: waiters");
        figures.extend(growth::waiters(on, if arguments.small { 10 } else { 1000 })?);
    }
    if !arguments.wants(What::Memory) {
        return Ok(figures);
    }
    say("measuring memory");
    rounds.go_on()?;
    let job = groups::sleeper(on)?;
    let (most, idle) = if arguments.small { (5, 1) } else { (50, 5) };
    let mut shims = Alone(&mut on.shims, &job.description);
    let (values, busy) = memory::measure(rounds, &mut shims, most, Duration::from_secs(idle))?;
    let figure = |((name, unit), value)| Figure::of_bowline(name, unit, value, busy);
    figures.extend(memory::names("", most).into_iter().zip(values).map(figure));
    Ok(figures)
}

/// What is measured through containerd.
fn containerd(
    rounds: &mut Rounds,
    on: &mut Contenders,
    arguments: &Arguments,
    bin: &Path,
) -> Result<(Vec<Row>, Vec<Figure>)> {
    if ![What::Containerd, What::Growth, What::Probes].iter().any(|what| arguments.wants(*what)) {
        return Ok(Default::default());
    }
    let Some(mut managers) = managed::start(on, bin)? else {
        say("containerd is not installed: its rows are left out");
        return Ok(Default::default());
    };
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    if arguments.wants(What::Containerd) {
        (rows, figures) = tasks(rounds, &mut managers, on, arguments)?;
    }
    if arguments.wants(What::Probes) {
        let (tasks, seconds, count) = if arguments.small { (4, 2, 2) } else { (100, 60, 50) };
        say("measuring containerd: execs as probes");
        figures.push(managed::probes(rounds, &mut managers, if arguments.small { 5 } else { 1000 })?);
        say("measuring containerd: mounts");
        figures.extend(managed::mount_events(rounds, &mut managers, count)?);
        say(&format!("measuring containerd: {tasks} tasks with probes"));
        figures.extend(managed::probes_of_many(rounds, &mut managers, tasks, Duration::from_secs(seconds))?);
    }
    if arguments.wants(What::Growth) {
        let (at_once, much) = if arguments.small { (4, Written::SOME) } else { (64, Written::MUCH) };
        say("measuring containerd: much output");
        rows.extend(managed::output(&mut rounds.fewer(if arguments.small { 1 } else { 3 }), &mut managers, on, much)?);
        // Last: a peer that takes too long for it loses its containerd.
        say("measuring containerd: execs at once");
        rows.extend(managed::execs_at_once(&mut rounds.fewer(20), &mut managers, at_once)?);
    }
    Ok((rows, figures))
}

/// What is asked of tasks one by one.
fn tasks(
    rounds: &mut Rounds,
    managers: &mut Managers,
    on: &Contenders,
    arguments: &Arguments,
) -> Result<(Vec<Row>, Vec<Figure>)> {
    let mut rows = Vec::new();
    for gap in [Gap::None, Gap::Random] {
        say(&format!("measuring containerd: launch, gap {gap:?}"));
        rows.extend(managed::launch(rounds, managers, gap)?);
    }
    say("measuring containerd: exec, calls");
    rows.extend(managed::within(rounds, managers)?);
    say("measuring containerd: kill, delete");
    rows.extend(managed::kill(rounds, managers)?);
    say("measuring containerd: output");
    rows.extend(managed::output(&mut rounds.fewer(if arguments.small { 1 } else { 5 }), managers, on, Written::SOME)?);
    say("measuring containerd: several at once");
    let (count, times) = if arguments.small { (4, 1) } else { (50, 5) };
    rows.extend(managed::together(&mut rounds.fewer(times), managers, count)?);
    say("measuring containerd: memory");
    let (most, idle) = if arguments.small { (5, 1) } else { (50, 5) };
    Ok((rows, managed::memory(rounds, managers, most, Duration::from_secs(idle))?))
}

/// What is measured through Nomad's driver.
fn nomad(rounds: &mut Rounds, on: &Contenders, arguments: &Arguments, bin: &Path) -> Result<(Vec<Row>, Vec<Figure>)> {
    if !arguments.wants(What::Nomad) {
        return Ok(Default::default());
    }
    say("measuring Nomad's driver: launch");
    let mut rows = nomad::launch(rounds, bin, on.name())?;
    let mut plugin = nomad::Plugin::start(bin, on.name())?;
    for gap in [Gap::None, Gap::Random] {
        say(&format!("measuring Nomad's driver: tasks, gap {gap:?}"));
        rows.extend(nomad::tasks(rounds, &mut plugin, gap)?);
    }
    for gap in [Gap::None, Gap::Fixed] {
        say(&format!("measuring Nomad's driver: exec, gap {gap:?}"));
        rows.extend(nomad::exec(rounds, &mut plugin, gap)?);
    }
    say("measuring Nomad's driver: memory");
    let (most, idle) = if arguments.small { (5, 1) } else { (100, 5) };
    let figures = nomad::memory(rounds, &mut plugin, most, Duration::from_secs(idle))?;
    Ok((rows, figures))
}

/// The machine, and who was measured on it.
fn about(contenders: &Contenders, rounds: usize) -> Value {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or(false);
    json!({
        "bowline": VERSION,
        "peers": contenders.versions(),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel,
        "cgroup": if v2 { "v2" } else { "v1" },
        "rounds": rounds,
    })
}

fn legend(about: &Value) -> String {
    let text = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
    let mut who = vec![format!("bowline {}", text("bowline"))];
    who.extend(about["peers"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    for peer in ["crun", "runc"] {
        if !who.iter().any(|name| name.starts_with(peer)) {
            who.push(format!("without {peer}"));
        }
    }
    format!(
        "{}; {}.\n\
         *: something else kept the machine busy; the figures say little.\n\
         n: measurements of each; of fewer than 100 the p99 is the largest.\n\
         removed: the command has ended; for bowline, its shim has left, which it does when all is removed.\n\
         floor: the kernel alone, without a filter; of calls, one that does nothing; of containerd, with a shim that does nothing.\n\
         duty: the floor with what no runtime can leave out.\n\
         sandbox: bowline alone; crun and runc have none.\n\
         containerd: through its API; crun and runc by its own shim.\n\
         nomad: through the driver, as its agent asks.\n",
        who.join(", "),
        machine(about),
    )
}

/// The machine, in one line.
fn machine(about: &Value) -> String {
    let text = |key: &str| about[key].as_str().unwrap_or_default();
    format!("{} processors, Linux {}, cgroup {}", about["processors"], text("kernel"), text("cgroup"))
}

fn beside_us() -> Result<PathBuf> {
    let ours = std::env::current_exe().doing(Kind::Internal, || "cannot find our own program")?;
    Ok(ours.parent().unwrap_or(Path::new("/")).to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).doing(Kind::Internal, what)?;
    }
    fs::write(path, text).doing(Kind::Internal, what)
}
