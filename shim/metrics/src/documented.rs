//! Tests that the documents match the code: docs/metrics.md lists every metric, docs/grafana-dashboard.json only
//! existing ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use bowline_model::folder::died_with_shim;
use bowline_model::health::HealthStatus;
use bowline_model::stats::Stats;
use bowline_model::stats::figures::{ExecStarts, HealthFigures, SandboxFigures, TaskFigures};
use bowline_model::status::Shown;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::families;
use super::gather::{Answer, Nomad, Sandbox, Scrape, Shim, ShimMemory, Task, TrackedUnit};
use super::text::{Described, Exposition, Form, Type};

/// The marks around the tables in the page.
const TABLES: [&str; 2] = ["<!-- metrics -->\n", "<!-- /metrics -->"];

/// The labels of every metric of a task, which the tables leave out.
const OF_A_TASK: [&str; 3] = ["task", "sandbox", "namespace"];

/// The subjects whose cgroup figures are reported.
const SUBJECTS: [&str; 3] = ["task", "sandbox", "unit"];

fn page(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// One sample of every metric, as measured on a host that supports all of them.
pub fn everything() -> Exposition {
    let id = str::to_owned;
    let stall = json!({ "avg10": 0.0, "avg60": 0.0, "avg300": 0.0, "total_usec": 1 });
    let pressure = json!({ "some": stall, "full": stall });
    let device = json!({ "device": "sda", "read_bytes": 0, "write_bytes": 0, "reads": 0, "writes": 0 });
    let pages = json!({ "usage_bytes": 1, "limit_bytes": 1, "limit_hits": 1 });
    let measured: Stats = serde_json::from_value(json!({
        "read_at": Timestamp::UNIX_EPOCH,
        "measured": [],
        "cgroup_version": 2,
        "cpu": {
            "usage_usec": 1, "user_usec": 1, "system_usec": 1, "periods": 1, "throttled_periods": 1,
            "throttled_usec": 1, "limit_usec": 1, "period_usec": 1, "pressure": pressure,
        },
        "memory": {
            "usage_bytes": 1, "peak_bytes": 1, "anon_bytes": 1, "cache_bytes": 1, "inactive_file_bytes": 2,
            "kernel_bytes": 1, "swap_bytes": 1, "limit_bytes": 1, "high_bytes": 1, "low_bytes": 1,
            "swap_limit_bytes": 1, "oom_kills": 1, "pressure": pressure,
            "events": { "low": 1, "high": 1, "max": 1, "oom": 1, "oom_group_kill": 1 },
        },
        "pids": { "current": 1, "limit": 1, "limit_hits": 1 },
        "io": { "devices": [device], "pressure": pressure },
        "hugepages": { "2MB": pages },
        "processes": [],
    }))
    .expect("the form of statistics");
    let usage = || measured.clone();
    let task = TaskFigures {
        id: id("web"),
        status: Cow::Borrowed("running"),
        started_at: Some(Timestamp::UNIX_EPOCH),
        usage: Some(usage()),
        health: Some(HealthFigures { status: HealthStatus::Healthy, failing_streak: 0 }),
        exec_starts: ExecStarts::default(),
        output_dropped_bytes: 0,
    };
    let mut exit = died_with_shim(None);
    (exit.exit_code, exit.oom_killed) = (Some(0), Some(false));
    let memory = Some(ShimMemory { rss_bytes: 1, pss_bytes: 1 });
    families::of(&Scrape {
        took: Duration::from_millis(1),
        errors: 0,
        shims: vec![Shim {
            namespace: String::new(),
            id: id("web"),
            answer: Some(Answer { version: "1".to_owned(), events_lost: 0, memory }),
        }],
        sandboxes: vec![Sandbox {
            namespace: String::new(),
            id: id("shop"),
            up: true,
            figures: Some(SandboxFigures { id: id("shop"), members: 1, usage: Some(usage()) }),
        }],
        tasks: vec![Task {
            namespace: String::new(),
            id: id("web"),
            shim: id("web"),
            sandbox: None,
            nomad: Some(Nomad {
                namespace: id("default"),
                job: id("shop"),
                group: id("front"),
                task: id("web"),
                allocation: id("1c2f3a4b"),
            }),
            cgroup: Some("/bowline/web/web".to_owned()),
            started_at: Some(Timestamp::UNIX_EPOCH),
            state: Some(Shown::Running),
            up: Some(true),
            figures: Some(task),
            exit: Some(exit),
        }],
        units: vec![TrackedUnit {
            unit: "ssh.service".to_owned(),
            cgroup: "/system.slice/ssh.service".to_owned(),
            figures: Some(usage()),
        }],
    })
}

/// The name of the task metric that corresponds to a metric of another subject.
fn of_task(name: &str) -> Option<String> {
    let of =
        |subject: &&str| name.strip_prefix(&format!("bowline_{subject}_")).map(|rest| format!("bowline_task_{rest}"));
    SUBJECTS[1..].iter().find_map(of)
}

/// A table of the metrics that sandboxes and units have too, and one of the others.
fn tables(all: &Exposition) -> String {
    let described: Vec<Described<'_>> = all.described().collect();
    let helps: BTreeMap<&str, &str> = described.iter().map(|metric| (metric.name.as_str(), metric.help)).collect();
    let twin = |metric: &Described<'_>| {
        of_task(&metric.name).is_some_and(|name| helps.get(name.as_str()) == Some(&metric.help))
    };
    let (mut common, mut others) = (String::new(), String::new());
    for metric in described.iter().filter(|metric| !twin(metric)) {
        let also = SUBJECTS[1..].iter().filter(|subject| {
            let name = metric.name.replacen("bowline_task_", &format!("bowline_{subject}_"), 1);
            name != metric.name && helps.get(name.as_str()) == Some(&metric.help)
        });
        let table = match also.count() {
            0 => &mut others,
            2 => &mut common,
            _ => panic!("{}: of sandboxes or units, not of both", metric.name),
        };
        let Described { name, of, help, labels } = metric;
        let labels = labels.strip_prefix(&OF_A_TASK).unwrap_or(labels).join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        // The names tell the other types.
        let histogram = if *of == Type::Histogram { " (histogram)" } else { "" };
        *table += &format!("| `{name}{labels}` | {help}{histogram} |\n");
    }
    let head = "| metric | what it says |\n| --- | --- |\n";
    format!("Of tasks, sandboxes and units:\n\n{head}{common}\nOthers:\n\n{head}{others}")
}

#[test]
fn the_page_has_every_metric() {
    let path = page("metrics.md");
    let text = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = text.split_once(TABLES[0]).expect("the tables begin");
    let (there, after) = rest.split_once(TABLES[1]).expect("the tables end");
    let wanted = tables(&everything());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = [before, TABLES[0], &wanted, TABLES[1], after].concat();
        return std::fs::write(path, text).expect("the page is ours");
    }
    assert_eq!(there, wanted, "UPDATE_DOCS=1 cargo test -p bowline-metrics --lib writes it again");
}

#[test]
fn names_are_formed_as_the_field_forms_them() {
    for metric in everything().described() {
        let name = &metric.name;
        assert!(name.starts_with("bowline_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.of == Type::Counter, "{name}");
        let first = metric.help.chars().next().expect("a help text");
        assert!(
            first.is_uppercase() && !metric.help.ends_with('.') && metric.help.len() < 90,
            "{name}: {}",
            metric.help
        );
    }
}

#[test]
fn openmetrics_names_every_unit_as_the_ending() {
    let text = everything().render(Form::OpenMetrics);
    let units: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# UNIT ")?.split_once(' ')).collect();
    assert!(units.len() > 30, "{units:?}");
    for (family, unit) in units {
        assert!(family.ends_with(&format!("_{unit}")), "{family} {unit}");
    }
}

/// All panels, including those in collapsed rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top = dashboard["panels"].as_array().expect("panels");
    let within = top.iter().flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    top.iter().chain(within).collect()
}

fn dashboard() -> Value {
    let text = std::fs::read_to_string(page("grafana-dashboard.json")).expect("the dashboard");
    serde_json::from_str(&text).expect("the dashboard is JSON")
}

/// Whether `c` can be part of a metric's name.
fn word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn expressions(dashboard: &Value) -> Vec<&str> {
    let targets = panels(dashboard).into_iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let queries = variables.iter().filter_map(|variable| variable["definition"].as_str());
    targets.map(|target| target["expr"].as_str().expect("an expression")).chain(queries).collect()
}

#[test]
fn the_dashboard_names_metrics_that_there_are_and_all_of_tasks_and_shims() {
    let all = everything();
    let there: BTreeSet<String> = all.described().map(|metric| metric.name).collect();
    let dashboard = dashboard();
    let mut named = BTreeSet::new();
    for expression in expressions(&dashboard) {
        for name in expression.split(|c| !word(c)).filter(|name| name.starts_with("bowline_")) {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending));
            named.insert(histogram.filter(|name| there.contains(*name)).unwrap_or(name).to_owned());
        }
    }
    assert!(named.is_subset(&there), "not there: {:?}", named.difference(&there).collect::<Vec<_>>());
    let shown: BTreeSet<String> = there.into_iter().filter(|name| of_task(name).is_none()).collect();
    assert!(shown.is_subset(&named), "not shown: {:?}", shown.difference(&named).collect::<Vec<_>>());
}

#[test]
fn the_dashboard_is_sound() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39) && dashboard["uid"].is_string());
    assert!(dashboard["id"].is_null(), "that is for who imports it to give");
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().expect("a list").iter().filter_map(|v| v["name"].as_str()).collect();
    let mut ids = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: the id of another");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("w") > 0 && at("h") > 0 && at("x") + at("w") <= 24, "{title}");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        let refs: BTreeSet<_> = targets.iter().filter_map(|target| target["refId"].as_str()).collect();
        assert!(!targets.is_empty() && refs.len() == targets.len(), "{title}");
    }
    for expression in expressions(&dashboard) {
        for used in expression.split('$').skip(1) {
            let name: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(name == "__rate_interval" || variables.contains(&name.as_str()), "${name} in {expression}");
        }
    }
    for expression in expressions(&dashboard) {
        // Ids are unique only within one containerd namespace.
        let families = ["bowline_task_", "bowline_sandbox_", "bowline_shim_"];
        for selected in families.iter().flat_map(|family| expression.split(family).skip(1)) {
            let name = selected.chars().take_while(|c| word(*c)).count();
            let selector = selected[name..].strip_prefix('{').and_then(|rest| rest.split('}').next());
            let variable = expression.starts_with("label_values(") && expression.ends_with(", namespace)");
            let fine = variable || selector.is_none_or(|selector| selector.contains("namespace=~\"$namespace\""));
            assert!(fine, "{expression}");
        }
        assert!(expression.split(" on (").skip(1).all(|on| on.starts_with("instance, namespace, ")), "{expression}");
    }
    // Panels that are visible together must not overlap.
    let top: Vec<&Value> = dashboard["panels"].as_array().expect("panels").iter().collect();
    let squares = |panel: &Value| {
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        let (x, y, w, h) = (at("x"), at("y"), at("w"), at("h"));
        (x..x + w).flat_map(move |x| (y..y + h).map(move |y| (x, y))).collect::<Vec<_>>()
    };
    let mut taken = BTreeSet::new();
    for panel in top {
        for square in squares(panel) {
            assert!(taken.insert(square), "{} lies on another at {square:?}", panel["title"]);
        }
    }
}
