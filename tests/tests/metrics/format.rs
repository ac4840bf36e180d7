//! That Prometheus' own tool takes what `bowline metrics` prints, and the
//! dashboard and the alerts that are documented.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use bowline_tests::Host;
use bowline_tests::harness::metrics::promtool;
use rustix::process::Signal;
use serde_json::{Value, json};

// As they were when this was built: it also runs where the checkout is not.
const PAGE: &str = include_str!("../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../docs/grafana-dashboard.json");

/// What promtool says of a file.
#[track_caller]
fn check(host: &Host, what: &str, file: &std::path::Path) {
    let mut command = host.command(promtool().expect("looked for"));
    command.args(["check", what]).arg(file);
    if what == "metrics" {
        let text = fs::File::open(file).expect("just written");
        command = host.command(promtool().expect("looked for"));
        command.args(["check", what]).stdin(Stdio::from(text));
        let ran = command.output().expect("it runs");
        let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(ran.status.success() && said.iter().all(String::is_empty), "{said:?}");
        return;
    }
    host.execute(command).assert_code(0);
}

/// A task that is doing something, one that has ended, a sandbox with a member.
fn with_all(host: &Host, then: impl FnOnce()) {
    let healthcheck = "[healthcheck]\nexec = [\"true\"]\ninterval = \"1s\"";
    let task = host.task("exec sleep 1000").flag("--memory=64M").flag("--cpus=0.5").toml(healthcheck).start();
    task.exec("true").assert_code(0);
    host.task("exit 1").run().assert_code(1);
    let sandbox = host.sandbox().create();
    let member = host.task("exec sleep 1000").in_sandbox(&sandbox).start();
    then();
    member.end();
    task.end();
}

#[test]
fn promtool_finds_nothing_to_complain_of() {
    let host = Host::new();
    if promtool().is_none() {
        return host.not_tested("promtool is not there (`scripts/need test` gets it)");
    }
    with_all(&host, || {
        let ran = host.bowline(["metrics", "--once"]);
        let file = host.file("metrics.txt", &(ran.assert_code(0).out() + "\n"));
        check(&host, "metrics", &file);
    });
    let empty = host.bowline(["--state", host.work().join("none").to_str().expect("ASCII"), "metrics", "--once"]);
    check(&host, "metrics", &host.file("empty.txt", &(empty.assert_code(0).out() + "\n")));
}

#[test]
fn promtool_takes_what_is_told_of_containerds_tasks() {
    let host = Host::new();
    if promtool().is_none() {
        return host.not_tested("promtool is not there (`scripts/need test` gets it)");
    }
    let containerd = host.containerd();
    let state = host.containerd_state();
    let own = host.task("exec sleep 1000").start();
    let bundle = containerd.bundle().script("exec sleep 1000").annotation("io.kubernetes.cri.sandbox-id", "pod");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &bowline_tests::harness::containerd::Stdio::null());
    let text = host.bowline(["metrics", "--once", "--containerd", state.to_str().expect("ASCII")]).out();
    for id in [&bundle.id, own.id()] {
        assert!(text.contains(&format!("bowline_task_up{{task=\"{id}\",")), "{text}");
    }
    check(&host, "metrics", &host.file("metrics.txt", &(text + "\n")));
    shim.end(&bundle.id);
    own.end();
}

#[test]
fn promtool_accepts_all_dashboard_queries_and_alerts() {
    let host = Host::new();
    if promtool().is_none() {
        return host.not_tested("promtool is not there (`scripts/need test` gets it)");
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut queries = Vec::new();
    collect(&dashboard, &mut queries);
    assert!(queries.len() > 50, "{}", queries.len());
    let rule = |(number, query): (usize, &String)| json!({"record": format!("query:{number}"), "expr": query.replace("$__rate_interval", "5m")});
    let rules: Vec<Value> = queries.iter().enumerate().map(rule).collect();
    // JSON is YAML.
    let file = host.file("queries.yml", &json!({"groups": [{"name": "queries", "rules": rules}]}).to_string());
    check(&host, "rules", &file);
    let block = PAGE.split("```yaml\n").find(|block| block.starts_with("groups:")).expect("alerts");
    let alerts = block.split("```").next().expect("a block");
    check(&host, "rules", &host.file("alerts.yml", alerts));
}

fn collect(value: &Value, queries: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            queries.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| collect(value, queries));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, queries)),
        _ => {}
    }
}

#[test]
fn openmetrics_keeps_its_own_rules() {
    let host = Host::new();
    with_all(&host, || {
        let exporter = host.exporter([]);
        let open = exporter.ask("GET", "/metrics", "Accept: application/openmetrics-text\r\n").body;
        let text = exporter.ask("GET", "/metrics", "").body;
        exporter.end(Signal::TERM);
        assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1);
        let (mut types, mut family) = (BTreeMap::new(), String::new());
        for line in open.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# ") {
                let (what, rest) = rest.split_once(' ').expect("what it says");
                let (name, said) = rest.split_once(' ').expect("of which family");
                match what {
                    "HELP" => {
                        assert!(!types.contains_key(name), "a family in two places: {name}");
                        family = name.to_owned();
                    }
                    "TYPE" => drop(types.insert(name.to_owned(), said.to_owned())),
                    "UNIT" => assert!(name.ends_with(&format!("_{said}")), "{line}"),
                    _ => panic!("{line}"),
                }
                assert_eq!(name, family, "{line}");
                continue;
            }
            let name = line.split(['{', ' ']).next().expect("a name");
            let ending = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} among {family}"));
            let fine: &[&str] = match types[&family].as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("{other}"),
            };
            assert!(fine.contains(&ending), "{line}: a {}", types[&family]);
            if ending == "_bucket" {
                assert!(line.contains(".") || line.contains("+Inf"), "no float: {line}");
            }
        }
        // Both forms have equal series, except for how a bucket's bound is written.
        let names = |text: &str| -> BTreeSet<String> {
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            samples.map(|line| line.rsplit_once(' ').expect("a value").0.replace(".0\"", "\"")).collect()
        };
        assert_eq!(names(&open), names(&text));
    });
}

#[test]
fn every_metric_that_is_printed_is_documented() {
    let host = Host::new();
    with_all(&host, || {
        let printed = host.bowline(["metrics", "--once"]).assert_code(0).out();
        let names: Vec<_> =
            printed.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert!(names.len() > 50, "{names:?}");
        for name in names {
            let of_task =
                name.replacen("bowline_sandbox_", "bowline_task_", 1).replacen("bowline_unit_", "bowline_task_", 1);
            // Behind the name come its labels, if it has any.
            let documented = |name: &str| ["`", "{"].iter().any(|end| PAGE.contains(&format!("| `{name}{end}")));
            assert!(documented(name) || documented(&of_task), "{name}");
        }
    });
}
