//! Manifests that make no sense, names that are no units', and hosts that cannot limit their units: a clear error
//! before anything is changed. What systemd itself is needed for: `host_limits`.

use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{binary, has_systemd, only_v2};

/// `limits apply` of this text.
#[track_caller]
fn assert_refused(text: &str, parts: &[&str]) {
    let host = Host::new();
    let file = host.file("limits.json", text);
    for verb in ["apply", "reset", "show"] {
        let ran = host.bowline(["limits", verb, file.to_str().expect("ASCII")]);
        ran.assert_refused(125, &[&["limits.json: "], parts].concat());
        assert!(ran.err().contains("hint: `bowline schema --limits`"), "{ran}");
    }
}

#[test]
fn what_is_no_json_is_told_with_line_and_column() {
    assert_refused("slices:\n  - name: a.slice\n", &["expected value", "(line 1, column 1)"]);
    assert_refused("{\"slices\": [\n  {\"name\": \"a.slice\",}]}", &["(line 2, column "]);
    assert_refused("", &["EOF", "(line 1, column "]);
    assert_refused("{\"services\": [{\"name\": \"a.service\", \"cpu_percent\": NaN}]}", &["expected value", "(line 1"]);
}

#[test]
fn a_manifest_that_names_nothing_is_told() {
    assert_refused("{}", &["neither a slice nor a service"]);
    assert_refused("{\"slices\": [], \"services\": []}", &["neither a slice nor a service"]);
    assert_refused(
        "{\"slices\": [{\"name\": \"a.slice\"}], \"on_failure\": \"stop\"}",
        &["unknown variant `stop`", "disable"],
    );
    assert_refused("{\"service\": [{}]}", &["unknown field `service`", "(line 1, column 10)"]);
}

#[test]
fn a_slice_that_makes_no_sense_is_told_with_index_and_name() {
    for (slice, parts) in [
        (r#"{"name": "cron.service"}"#, ["slices[0].name (cron.service)", "is no slice"]),
        (r#"{"name": "../a.slice"}"#, ["slices[0].name (../a.slice)", "'/'"]),
        (r#"{"name": "a.slice", "cpu_percent": 0}"#, ["slices[0].cpu_percent (a.slice)", "0 is not above 0 percent"]),
        (r#"{"name": "a.slice", "cpu_percent": -5}"#, ["slices[0].cpu_percent (a.slice)", "-5 is not above 0 percent"]),
        (r#"{"name": "a.slice", "cpu_percent": "NaN"}"#, ["slices[0].cpu_percent (a.slice)", "no number"]),
        (r#"{"name": "a.slice", "cpu_percent": 1e18}"#, ["slices[0].cpu_percent (a.slice)", "more than any machine"]),
        (r#"{"name": "a.slice", "memory": 0}"#, ["slices[0].memory (a.slice)", "less than 1M"]),
        (r#"{"name": "a.slice", "memory": "-1G"}"#, ["slices[0].memory (a.slice)", "not a size"]),
        (r#"{"name": "a.slice"}, {"name": "a.slice"}"#, ["slices[1].name (a.slice)", "there already, as slices[0]"]),
        (r#"{"name": "bowline-a.slice"}"#, ["slices[0].name (bowline-a.slice)", "`bowline gc`"]),
    ] {
        assert_refused(&format!("{{\"slices\": [{slice}]}}"), &parts);
    }
}

#[test]
fn services_that_make_no_sense_are_told_one_by_one() {
    let host = Host::new();
    let services = r#"{"services": [
        {"name": "../a.service", "memory": "1G"},
        {"name": "a..b.service", "memory": "1G"},
        {"name": "a.service", "cpu_percent": 0},
        {"name": "b.service", "memory": 5},
        7
    ]}"#;
    let file = host.file("limits.json", services);
    let ran = host.bowline(["limits", "show", file.to_str().expect("ASCII")]);
    // With systemd the rest is done, which is nothing here.
    ran.assert_code(if has_systemd() { 1 } else { 125 });
    let err = ran.err();
    for part in [
        "bowline: skipped services[0].name (../a.service): \"../a.service\" is no unit's name: it has '/'",
        "bowline: skipped services[1].name (a..b.service): \"a..b.service\" is no unit's name: it has two dots in a row",
        "bowline: skipped services[2].cpu_percent (a.service): 0 is not above 0 percent",
        "bowline: skipped services[3].memory (b.service): 5 is less than 1M",
        "bowline: skipped services[4]: invalid type",
        "(line 4, column ",
    ] {
        assert!(err.contains(part), "{part:?} is missing\n{ran}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let host = Host::new();
    let large = host.file("large.json", &" ".repeat((1 << 20) + 1));
    let folder = host.work();
    let missing = folder.join("missing.json");
    let binary = folder.join("binary.json");
    std::fs::write(&binary, [0xff, 0xfe, b'{']).expect("the work folder is writable");
    for (file, part) in [
        (large, "larger than a manifest can be (1024 KiB)"),
        (missing, "No such file"),
        (folder, "Is a directory"),
        (binary, "utf-8"),
        ("/dev/zero".into(), "larger than"),
    ] {
        let file = file.to_str().expect("ASCII");
        host.bowline(["limits", "apply", file]).assert_refused(125, &[file, part]);
    }
}

#[test]
fn a_name_that_is_no_units_is_bad_usage() {
    let host = Host::new();
    for verb in ["track", "untrack"] {
        for (name, part) in [
            ("../cron.service", "it has '/'"),
            ("a..service", "two dots"),
            ("cron", "none of .service, .scope, .slice"),
            ("getty@.service", "template"),
            ("a--b.slice", "empty part"),
            ("", "none of"),
        ] {
            let ran = host.bowline(["limits", verb, name]);
            ran.assert_code(2);
            assert!(ran.err().contains(part), "{ran}");
        }
    }
    host.bowline(["limits", "untrack"]).assert_code(2);
}

#[test]
fn what_is_tracked_and_damaged_is_told_and_left_as_it_is() {
    let host = Host::new();
    let folder = host.state().join(".limits");
    std::fs::create_dir_all(&folder).expect("ours");
    let file = folder.join("tracked.json");
    std::fs::write(&file, "[{\"unit\": \"cron.serv").expect("ours");
    for args in [&["limits", "track"][..], &["limits", "untrack", "cron.service"]] {
        host.bowline(args).assert_refused(125, &[file.to_str().expect("ASCII"), "damaged"]);
    }
    assert_eq!(std::fs::read_to_string(file).expect("there"), "[{\"unit\": \"cron.serv");
}

#[test]
fn without_systemd_limiting_and_tracking_are_refused() {
    if has_systemd() {
        return;
    }
    let host = Host::new();
    let file = host.file("limits.json", r#"{"slices": [{"name": "a.slice", "cpu_percent": 5}]}"#);
    let file = file.to_str().expect("ASCII");
    for args in [
        ["limits", "apply", file],
        ["limits", "reset", file],
        ["limits", "show", file],
        ["limits", "track", "cron.service"],
    ] {
        host.bowline(args).assert_refused(125, &["systemd", "does not run this host"]);
    }
    // What is only written down needs none.
    host.bowline(["limits", "track"]).assert_says("");
    host.bowline(["limits", "untrack", "cron.service"]).assert_refused(1, &["cron.service: it is not tracked"]);
}

#[test]
fn controllers_that_are_elsewhere_are_not_supported() {
    let host = Host::new();
    let file = host.file("limits.json", r#"{"slices": [{"name": "a.slice", "cpu_percent": 5}]}"#);
    let elsewhere = host.work().join("elsewhere");
    let usual = if only_v2() { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
    let script = "mount --make-rprivate / && mkdir $2 && mount --move $1 $2 && exec $0 limits apply $3";
    let mut command: Command = host.command("unshare");
    command.args(["--mount", "/bin/sh", "-c", script]).arg(binary("bowline")).arg(usual).arg(&elsewhere).arg(file);
    let elsewhere = format!("is mounted at {}, not below /sys/fs/cgroup", elsewhere.display());
    host.execute(command).assert_refused(125, &["not supported here: the cgroup controller ", &elsewhere]);
}

#[test]
fn more_processes_than_a_kernel_has_are_refused_by_number() {
    let host = Host::new();
    let ran = host.bowline(["run", "--rm", "--pids=99999999", "true"]);
    ran.assert_refused(2, &["pids: 99999999", "4194304"]);
}
