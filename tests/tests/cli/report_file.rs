//! `run --report FILE`: the exit report in a file, beside the task's output.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use serde_json::Value;

/// What is in the file, as JSON.
#[track_caller]
fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn report_of(host: &Host) -> (PathBuf, String) {
    let path = host.work().join("report.json");
    let flag = format!("--report={}", path.display());
    (path, flag)
}

#[test]
fn the_report_is_in_it_and_output_passes_through() {
    let host = Host::new();
    let (path, flag) = report_of(&host);
    let ran = host.bowline(["run", "--rm", &flag, "/bin/sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.code, ran.out(), ran.err()), (Some(7), "out".to_owned(), "err".to_owned()));
    let report = read(&path);
    assert_eq!((&report["format"], &report["exit_code"]), (&1.into(), &7.into()));
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    // A longer one is replaced, whole.
    fs::write(&path, "x".repeat(65536)).expect("ours");
    host.bowline(["run", "--rm", &flag, "--timeout=100ms", "sleep", "1000"]).assert_refused(124, &["timeout"]);
    assert_eq!(read(&path)["stopped_by"], "timeout");
}

#[test]
fn a_launch_that_fails_is_told_in_it() {
    let host = Host::new();
    let (path, flag) = report_of(&host);
    for (args, code) in
        [(&["/no/such/program"][..], 127), (&["--memory=1K", "true"], 2), (&["--rootfs=/none", "true"], 125)]
    {
        let ran = host.bowline([&["run", "--rm", &flag], args].concat());
        assert_eq!(ran.code, Some(code), "{ran}");
        let failed = read(&path);
        let error = failed["error"].as_str().expect("a text");
        assert!(ran.err().contains(error), "{ran}: {failed}");
        let hint = ran.err().lines().find_map(|line| line.strip_prefix("hint: ").map(str::to_owned));
        assert_eq!((failed["hint"].as_str(), failed["hint"].is_null()), (hint.as_deref(), hint.is_none()), "{ran}");
        assert_eq!(failed["format"], 1);
    }
}

#[test]
fn a_file_that_cannot_be_written_runs_nothing() {
    let host = Host::new();
    let ran = host.work().join("ran");
    let touch = format!("touch {}", ran.display());
    let shared = host.work().join("shared");
    fs::create_dir(&shared).expect("ours");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("ours");
    let [planted, link, hosts] = ["planted", "link", "hosts"].map(|name| shared.join(name));
    fs::write(&planted, "theirs\n").expect("ours");
    chown(&planted, Some(1234), Some(1234)).expect("root may");
    fs::write(&hosts, "theirs\n").expect("ours");
    symlink(&planted, &link).expect("ours");
    for (path, words) in [
        ("-", "it names a file"),
        ("/", "directory"),
        ("/none/such", "No such file"),
        (planted.to_str().expect("ASCII"), "belongs to user 1234"),
        (link.to_str().expect("ASCII"), "it is a symlink"),
    ] {
        let ran = host.bowline(["run", "--rm", "--report", path, "/bin/sh", "-c", &touch]);
        assert!(matches!(ran.code, Some(2 | 125)), "{path}: {ran}");
        assert!(ran.err().contains(words), "{path}: {ran}");
    }
    assert_eq!(fs::read_to_string(&planted).expect("text"), "theirs\n");
    assert!(!ran.exists());
    host.bowline(["run", "-d", "--report=/tmp/x", "true"]).assert_refused(2, &["--report"]);
}

#[test]
fn one_whose_disk_is_full_is_told() {
    let host = Host::new();
    let ran = host.bowline(["run", "--rm", "--report=/dev/full", "echo", "out"]);
    assert_eq!((ran.code, ran.out()), (Some(125), "out".to_owned()));
    assert!(ran.err().contains("cannot write the report to /dev/full"), "{ran}");
}
