//! `bowline metrics` as the unit of systemd that docs/metrics.md shows, with what that keeps from it. Returns at once on
//! a host without systemd.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::metrics::{Samples, ask};
use bowline_tests::harness::{
    Installed, assert_forgotten, assert_shows, binary, eventually, lacks, lacks_systemd, systemctl,
};

const DOCS: &str = include_str!("../../../docs/metrics.md");

/// The unit of the documentation, with each `from` replaced by its `to`.
#[track_caller]
fn unit(changes: &[(&str, &str)]) -> String {
    let (_, rest) = DOCS.split_once(">/tmp/bowline-metrics.service <<END\n").expect("the unit begins");
    let (unit, _) = rest.split_once("\nEND\n").expect("the unit ends");
    changes.iter().fold(unit.to_owned() + "\n", |unit, (from, to)| {
        assert_eq!(unit.matches(from).count(), 1, "{from} in {unit}");
        unit.replace(from, to)
    })
}

#[test]
fn the_unit_of_the_documentation_serves_all_that_there_is() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    // Its state folder, as the unit has systemd make one, and nothing else of the test's: /tmp is hidden from it.
    let folder = Path::new("/run").join(host.prefix());
    symlink(&folder, host.state()).expect("the test's own");
    let text = unit(&[
        ("$(command -v bowline)", binary("bowline").to_str().expect("ASCII")),
        ("127.0.0.1:9464", "127.0.0.1:0"),
        (
            "RuntimeDirectory=bowline\n",
            &format!("RuntimeDirectory={0}\nEnvironment=BOWLINE_STATE=/run/{0}\n", host.prefix()),
        ),
    ]);
    let unit = Installed::new(format!("{}-metrics.service", host.prefix()), &text);
    systemctl(&["start", "--", &unit.name]);
    let address = eventually("it listens", || {
        let said = unit.said();
        let line = said.lines().find_map(|line| line.strip_prefix("listening at http://"))?;
        Some(line.strip_suffix("/metrics").expect("a path").to_owned())
    });
    let scrape = || {
        let answer = ask(&mut TcpStream::connect(&address).expect("it listens"), "GET", "/metrics", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        Samples::of(&answer.body)
    };
    assert_eq!(fs::metadata(&folder).expect("systemd has made it").permissions().mode() & 0o7777, 0o700);
    assert_eq!(scrape().value("bowline_tasks{state=\"running\"}"), 0.0);

    // A unit that is tracked is looked at by the exporter itself.
    host.bowline(["limits", "track", &unit.name]).assert_code(0);
    let task = host.task("x=$(head -c 20971520 /dev/zero | tr '\\0' x); echo ready; exec sleep 1000");
    let task = task.flag("--memory=128M").start();
    task.wait_for_line("ready");
    let metrics = scrape();
    assert_eq!(metrics.value("bowline_scrape_errors"), 0.0);
    let of = |name: &str| metrics.of_task(name, task.id(), "");
    assert_eq!((of("up"), of("memory_limit_bytes"), of("pids")), (1.0, 128.0 * 1048576.0, 2.0));
    assert!((lacks("memory.peak") || of("memory_peak_bytes") > 20e6) && of("memory_usage_bytes") > 0.0);
    let of_shim = |name: &str| metrics.of_shim(name, task.id());
    assert_eq!(of_shim("up"), 1.0);
    assert!(of_shim("memory_pss_bytes") > 0.0 && of_shim("memory_pss_bytes") <= of_shim("memory_rss_bytes"));
    let tracked = metrics.with("bowline_unit_memory_usage_bytes{");
    assert_eq!(tracked.len(), 1, "{metrics:?}");
    assert!(tracked[0].contains(&unit.name) && metrics.value(tracked[0]) > 0.0);

    // It goes, and nobody else does.
    systemctl(&["stop", "--", &unit.name]);
    assert_shows(&unit.name, &["ActiveState=inactive", "Result=success", "NRestarts=0"]);
    assert_eq!(task.status(), "running");
    TcpStream::connect(&address).expect_err("nobody listens any more");
    let said = unit.said();
    assert_eq!(said.lines().filter(|line| line.starts_with("bowline")).collect::<Vec<_>>(), [] as [&str; 0], "{said}");
    task.end();
    host.bowline(["rm", task.id()]).assert_code(0);
    host.bowline(["limits", "untrack", &unit.name]).assert_code(0);
    let name = unit.name.clone();
    drop(unit);
    assert_forgotten(&name);
    fs::remove_file(host.state()).expect("the test's own");
    // RuntimeDirectoryPreserve keeps it, as there may be tasks.
    let kept = fs::read_dir(&folder).expect("it is kept").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = kept.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
    fs::remove_dir_all(&folder).expect("the test's own");
}
