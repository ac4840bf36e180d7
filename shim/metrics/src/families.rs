//! Turns a scrape into metrics: defines their names, units and help texts.
//!
//! Names follow node_exporter and the kubelet: base units, `_total` for counters, and one name for the same figure
//! whatever its subject. Figures that this host does not measure, and limits that are not set, are left out. Pure.

use bowline_executor::VERSION;
use bowline_model::health::HealthStatus;
use bowline_model::report::ExitReport;
use bowline_model::stats::figures::TaskFigures;
use bowline_model::stats::{Pressure, Stats};
use bowline_model::status::Shown;
use jiff::Timestamp;

use super::gather::{Nomad, Sandbox, Scrape, Shim, Task, TrackedUnit};
use super::text::{Exposition, Labels, Type, Value};

/// The states that a task is told to be in; of others none is.
const STATES: [Shown; 6] = [Shown::Created, Shown::Running, Shown::Paused, Shown::Stopping, Shown::Exited, Shown::Dead];

const HEALTH: [HealthStatus; 3] = [HealthStatus::Starting, HealthStatus::Healthy, HealthStatus::Unhealthy];

pub fn of(scrape: &Scrape) -> Exposition {
    let mut all = Exposition::default();
    let mut host = Of { all: &mut all, subject: "bowline".to_owned(), labels: Labels::new() };
    host.with("version", VERSION).info("build", "The version of bowline that tells all this");
    host.gauge(
        "scrape_errors",
        "Shims that gave no answer and files that could not be read, in this scrape",
        scrape.errors,
    );
    host.span("scrape_duration", "How long it took to gather all this", scrape.took.as_micros().try_into().ok());
    for state in STATES {
        let count = scrape.tasks.iter().filter(|task| task.state == Some(state)).count() as u64;
        host.with("state", state.as_str()).gauge("tasks", "Tasks by where they are in their lives", count);
    }
    host.gauge("sandboxes", "Sandboxes", scrape.sandboxes.len() as u64);
    scrape.shims.iter().for_each(|shim| of_shim(&mut host, shim));
    scrape.sandboxes.iter().for_each(|sandbox| of_sandbox(&mut host, sandbox));
    scrape.tasks.iter().for_each(|task| of_task(&mut host, task));
    scrape.units.iter().for_each(|unit| of_unit(&mut host, unit));
    all
}

/// Adds samples that share a name prefix and labels.
struct Of<'a> {
    all: &'a mut Exposition,
    /// The prefix of the metric names.
    subject: String,
    labels: Labels,
}

impl Of<'_> {
    /// Adds metrics of one subject, which `labels` identify.
    fn about(&mut self, subject: &str, labels: Labels) -> Of<'_> {
        Of { all: self.all, subject: format!("{}_{subject}", self.subject), labels }
    }

    /// Adds metrics with one more label.
    fn with(&mut self, label: &'static str, value: &str) -> Of<'_> {
        let mut labels = self.labels.clone();
        labels.push((label, value.to_owned()));
        Of { all: self.all, subject: self.subject.clone(), labels }
    }

    fn add(&mut self, name: &str, of: Type, unit: Option<&'static str>, help: &'static str, value: Option<Value>) {
        let Some(value) = value else { return };
        let ending = unit.map_or_else(String::new, |unit| format!("_{unit}"));
        let name = [self.subject.as_str(), name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        self.all.add(name.join("_") + &ending, (of, unit), help, self.labels.clone(), value);
    }

    /// Adds a number that can go down.
    fn gauge(&mut self, name: &str, help: &'static str, value: impl Into<Option<u64>>) {
        self.add(name, Type::Gauge, None, help, value.into().map(Value::Number));
    }

    /// Adds a number that only grows.
    fn counter(&mut self, name: &str, help: &'static str, value: impl Into<Option<u64>>) {
        self.add(name, Type::Counter, None, help, value.into().map(Value::Number));
    }

    /// Adds a number of bytes that can go down.
    fn bytes(&mut self, name: &str, help: &'static str, value: Option<u64>) {
        self.add(name, Type::Gauge, Some("bytes"), help, value.map(Value::Number));
    }

    /// Adds a number of bytes that only grows.
    fn bytes_in_all(&mut self, name: &str, help: &'static str, value: Option<u64>) {
        self.add(name, Type::Counter, Some("bytes"), help, value.map(Value::Number));
    }

    /// Adds a growing time, given in µs.
    fn time(&mut self, name: &str, help: &'static str, usec: Option<u64>) {
        self.add(name, Type::Counter, Some("seconds"), help, usec.map(Value::Micros));
    }

    /// Adds a time span, given in µs.
    fn span(&mut self, name: &str, help: &'static str, usec: Option<u64>) {
        self.add(name, Type::Gauge, Some("seconds"), help, usec.map(Value::Micros));
    }

    /// Adds a moment, in seconds since 1970-01-01 UTC.
    fn moment(&mut self, name: &str, help: &'static str, at: Option<Timestamp>) {
        self.span(name, help, at.and_then(|at| u64::try_from(at.as_microsecond()).ok()));
    }

    /// Adds a metric that consists of labels only.
    fn info(&mut self, name: &str, help: &'static str) {
        self.add(name, Type::Info, None, help, Some(Value::Number(1)));
    }
}

fn of_shim(host: &mut Of<'_>, shim: &Shim) {
    let mut of = host.about("shim", vec![("shim", shim.id.clone()), ("namespace", shim.namespace.clone())]);
    of.gauge("up", "Whether the shim answers", u64::from(shim.answer.is_some()));
    let Some(answer) = &shim.answer else { return };
    of.with("version", &answer.version).info("", "The version of the shim");
    let memory = answer.memory.as_ref();
    of.bytes(
        "memory_rss",
        "Memory of the shim's process, what it shares with others included",
        memory.map(|m| m.rss_bytes),
    );
    of.bytes(
        "memory_pss",
        "Memory of the shim's process, what it shares divided by those who do",
        memory.map(|m| m.pss_bytes),
    );
    of.counter("events_lost", "Events that the shim could not write into the journal", answer.events_lost);
}

fn of_sandbox(host: &mut Of<'_>, sandbox: &Sandbox) {
    let labels = vec![("sandbox", sandbox.id.clone()), ("namespace", sandbox.namespace.clone())];
    let mut of = host.about("sandbox", labels);
    of.gauge("up", "Whether the shim of the sandbox answers", u64::from(sandbox.up));
    if let Some(figures) = &sandbox.figures {
        of.gauge("members", "Members that have not ended", figures.members);
        figures.usage.iter().for_each(|usage| of_usage(&mut of, usage));
    }
}

fn of_unit(host: &mut Of<'_>, unit: &TrackedUnit) {
    let labels = vec![("unit", unit.unit.clone()), ("cgroup", unit.cgroup.clone())];
    let mut of = host.about("unit", labels);
    of.gauge("up", "Whether the unit that is tracked has a cgroup", u64::from(unit.figures.is_some()));
    unit.figures.iter().for_each(|usage| of_usage(&mut of, usage));
}

fn of_task(host: &mut Of<'_>, task: &Task) {
    let sandbox = task.sandbox.clone().unwrap_or_default();
    let labels = vec![("task", task.id.clone()), ("sandbox", sandbox), ("namespace", task.namespace.clone())];
    let mut of = host.about("task", labels);
    of.with("shim", &task.shim)
        .with("cgroup", task.cgroup.as_deref().unwrap_or_default())
        .info("", "Who answers for the task, and where its cgroup is");
    if let Some(Nomad { namespace, job, group, task, allocation }) = &task.nomad {
        of.with("nomad_namespace", namespace)
            .with("nomad_job", job)
            .with("nomad_group", group)
            .with("nomad_task", task)
            .with("nomad_allocation", allocation)
            .info("nomad", "What Nomad calls a task of its own");
    }
    of.gauge("up", "Whether the shim answers for a task that has not ended", task.up.map(u64::from));
    for state in STATES.into_iter().filter(|_| task.state.is_some()) {
        of.with("state", state.as_str()).gauge(
            "state",
            "Where the task is in its life: 1 for that",
            u64::from(task.state == Some(state)),
        );
    }
    of.moment("start_time", "When its program was executed, in seconds since 1970", task.started_at);
    task.figures.iter().for_each(|figures| of_live(&mut of, figures));
    task.exit.iter().for_each(|exit| of_end(&mut of, exit));
}

fn of_live(of: &mut Of<'_>, task: &TaskFigures) {
    task.usage.iter().for_each(|usage| of_usage(of, usage));
    if let Some(health) = task.health {
        for status in HEALTH {
            of.with("status", status.as_str()).gauge(
                "health_status",
                "What health checks have come to: 1 for that",
                u64::from(health.status == status),
            );
        }
        let streak = u64::from(health.failing_streak);
        of.gauge("health_failing_streak", "Health checks that have failed one after the other", streak);
    }
    let help = "From the request to run a command in the task until its program was executed";
    let starts = Value::Histogram(task.exec_starts.clone());
    of.add("exec_start", Type::Histogram, Some("seconds"), help, Some(starts));
    let help = "Commands that were to run in the task and were never executed";
    of.counter("exec_start_failures", help, task.exec_starts.failed);
    let dropped = task.output_dropped_bytes;
    of.bytes_in_all("output_dropped", "Output that no file or reader would take", Some(dropped));
}

fn of_end(of: &mut Of<'_>, exit: &ExitReport) {
    of.moment("exit_time", "When the task ended, in seconds since 1970", Some(exit.exited_at));
    let code = exit.exit_code.and_then(|code| u64::try_from(code).ok());
    of.gauge("exit_code", "Its exit code, or 128 and the number of the signal that ended it", code);
    let killed = exit.oom_killed.map(u64::from);
    of.gauge("oom_killed", "Whether the OOM killer killed any of it", killed);
}

/// Adds the resource usage of a cgroup of any subject.
fn of_usage(of: &mut Of<'_>, usage: &Stats) {
    let Stats { cpu, memory, pids, io, hugepages, .. } = usage;
    of.time("cpu_usage", "CPU time used", cpu.usage_usec);
    of.time("cpu_user", "CPU time used in programs", cpu.user_usec);
    of.time("cpu_system", "CPU time used in the kernel", cpu.system_usec);
    of.counter("cpu_periods", "Periods of the CPU limit in which something wanted to run", cpu.periods);
    of.counter("cpu_throttled_periods", "Periods in which the CPU limit held it back", cpu.throttled_periods);
    of.time("cpu_throttled", "How long the CPU limit held it back", cpu.throttled_usec);
    of.span("cpu_quota", "CPU time in each period, where that is limited", cpu.limit_usec);
    let period = cpu.period_usec.filter(|_| cpu.limit_usec.is_some());
    of.span("cpu_period", "The period of the CPU limit", period);

    of.bytes("memory_usage", "Memory in use, page cache included", memory.usage_bytes);
    let used = memory.usage_bytes.zip(memory.inactive_file_bytes);
    let working = used.map(|(usage, inactive)| usage.saturating_sub(inactive));
    of.bytes("memory_working_set", "Memory in use without page cache that was not used lately", working);
    of.bytes("memory_anon", "Memory of the processes' own", memory.anon_bytes);
    of.bytes("memory_cache", "Page cache, shared memory included", memory.cache_bytes);
    of.bytes("memory_kernel", "Memory of the kernel for it", memory.kernel_bytes);
    of.bytes("memory_swap", "Memory that is swapped out", memory.swap_bytes);
    of.bytes("memory_peak", "The most memory at a time", memory.peak_bytes);
    of.bytes("memory_limit", "The limit of memory, where there is one", memory.limit_bytes);
    of.bytes("memory_high", "Memory beyond which it is slowed down, where there is such", memory.high_bytes);
    of.bytes("memory_low", "Memory up to which it is spared, where there is such", memory.low_bytes);
    of.bytes("memory_swap_limit", "The limit of swap, where there is one", memory.swap_limit_bytes);
    let events = &memory.events;
    let met = [("low", events.low), ("high", events.high), ("max", events.max), ("oom", events.oom)];
    for (event, count) in met {
        of.with("event", event).counter(
            "memory_events",
            "How often a limit of memory was met, by the kernel's names",
            count,
        );
    }
    of.counter("oom_kills", "Processes killed by the OOM killer", memory.oom_kills);

    of.gauge("pids", "Processes and threads", pids.current);
    of.gauge("pids_limit", "The limit of processes and threads, where there is one", pids.limit);
    of.counter("pids_limit_hits", "How often a fork failed by that limit", pids.limit_hits);

    for device in io.devices.iter().flatten() {
        let mut of = of.with("device", &device.device);
        of.bytes_in_all("io_read", "Bytes read from a block device", Some(device.read_bytes));
        of.bytes_in_all("io_written", "Bytes written to a block device", Some(device.write_bytes));
        of.counter("io_reads", "Operations that read from a block device", device.reads);
        of.counter("io_writes", "Operations that wrote to a block device", device.writes);
    }
    for (size, pages) in hugepages {
        let mut of = of.with("pagesize", size);
        of.bytes("hugepages_usage", "Huge pages in use", pages.usage_bytes);
        of.bytes("hugepages_limit", "The limit of huge pages, where there is one", pages.limit_bytes);
        of.counter("hugepages_limit_hits", "How often a huge page was refused by that limit", pages.limit_hits);
    }
    of_pressure(
        of,
        "cpu",
        cpu.pressure.as_ref(),
        ["How long some of it waited for a CPU", "How long all of it waited for a CPU"],
    );
    of_pressure(
        of,
        "memory",
        memory.pressure.as_ref(),
        ["How long some of it waited for memory", "How long all of it waited for memory"],
    );
    of_pressure(
        of,
        "io",
        io.pressure.as_ref(),
        ["How long some of it waited for a device", "How long all of it waited for a device"],
    );
}

/// Adds pressure figures, named as node_exporter names the host's.
fn of_pressure(of: &mut Of<'_>, resource: &str, pressure: Option<&Pressure>, [some, full]: [&'static str; 2]) {
    let Some(pressure) = pressure else { return };
    of.time(&format!("pressure_{resource}_waiting"), some, pressure.some.as_ref().map(|stall| stall.total_usec));
    of.time(&format!("pressure_{resource}_stalled"), full, pressure.full.as_ref().map(|stall| stall.total_usec));
}
