//! Limits of the host's own units: the kernel's files and `systemctl show` as witnesses. Returns at once on a host
//! without systemd; what makes no sense there either: `bad_input::limits`.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::host_units::{Units, assert_unlimited, cpu_in_kernel, memory_in_kernel, memory_property};
use bowline_tests::harness::{
    Installed, assert_forgotten, assert_shows, eventually, lacks_systemd, process_exists, systemctl,
};
use serde_json::{Value, json};

#[test]
fn slices_and_services_get_the_manifests_limits_in_the_kernel() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let (slice, service) = (units.slice(""), units.service("a"));
    let manifest = json!({
        "slices": [{"name": slice, "cpu_percent": 50, "memory": "512M"}],
        "services": [{"name": service, "cpu_percent": "25%", "memory": "200M", "slice": "system.slice"}],
    });
    let ran = units.limits(&["apply"], &manifest);
    let said = format!("started {slice}: cpu 50%, memory 512M\nchanged {service}: cpu 25%, memory 200M");
    ran.assert_says(&said);
    let memory = memory_property("536870912");
    assert_shows(&slice, &["CPUQuotaPerSecUSec=500ms", &memory, "CPUAccounting=yes", "MemoryAccounting=yes"]);
    assert_shows(&slice, &["ActiveState=active", "Transient=yes"]);
    assert_shows(&service, &["CPUQuotaPerSecUSec=250ms", &memory_property("209715200")]);
    assert_eq!((cpu_in_kernel(&service), memory_in_kernel(&service)), (Some(25_000), Some(200 << 20)));

    // A task in the slice is held to its limits.
    let task = host.task("exec sleep 1000").flag(format!("--slice={slice}")).start();
    assert_eq!(task.inspect()["enforcement"]["enforced"], true);
    assert!(task.cgroup("memory").to_string_lossy().contains(&slice));
    assert_eq!((cpu_in_kernel(&slice), memory_in_kernel(&slice)), (Some(50_000), Some(512 << 20)));

    // Limits are lifted at once; what runs goes on, and its slice stays with it.
    let pid = task.pid();
    let ran = units.limits(&["reset"], &manifest);
    ran.assert_code(1);
    assert!(ran.err().contains(&format!("skipped {slice}: it is without limits now, and stays")), "{ran}");
    assert_unlimited(&slice);
    assert_unlimited(&service);
    assert_shows(&slice, &["CPUQuotaPerSecUSec=infinity", &memory_property("infinity"), "ActiveState=active"]);
    assert!(process_exists(pid));
    task.end();
    units.reset().assert_says(&format!("stopped {slice}"));
    units.reset().assert_says("");
    units.end(&[slice]);
}

#[test]
fn limits_that_come_later_hold_what_runs_already() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let slice = units.slice("");
    let task = host.task("exec sleep 1000").flag(format!("--slice={slice}")).start();
    let enforcement = |reason: Option<&str>| json!({"slice": &slice, "enforced": reason.is_none(), "reason": reason});
    let lack = format!("nothing limits {slice}");
    assert_eq!(task.inspect()["enforcement"], enforcement(Some(&lack)));
    let manifest = json!({"slices": [{"name": slice, "memory": "512M"}]});
    units.limits(&["apply"], &manifest).assert_code(0);
    assert_eq!(memory_in_kernel(&slice), Some(512 << 20));
    assert_eq!(task.inspect()["enforcement"], enforcement(None));
    assert_eq!(task.end().0["enforcement"], enforcement(None));
    units.reset().assert_code(0);
    // systemd keeps a slice that it made for a scope.
    systemctl(&["stop", "--", &slice]);
    units.end(&[slice]);
}

#[test]
fn only_what_differs_is_set() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let (slice, service) = (units.slice(""), units.service("a"));
    let manifest = json!({
        "slices": [{"name": slice, "cpu_percent": 50, "memory": "512M"}],
        "services": [{"name": service, "cpu_percent": 25, "memory": "200M"}],
    });
    units.limits(&["apply", "--dry-run"], &manifest).assert_says(&format!(
        "would start {slice}: cpu 50%, memory 512M\nwould change {service}: cpu 25%, memory 200M"
    ));
    assert_shows(&slice, &["ActiveState=inactive"]);
    units.limits(&["apply"], &manifest).assert_code(0);
    units.limits(&["apply"], &manifest).assert_says("");
    systemctl(&["set-property", "--runtime", "--", &service, &memory_property("100M")]);
    let differs = units.limits(&["show", "--json"], &manifest).json();
    assert_eq!((&differs[0]["as_wanted"], &differs[1]["as_wanted"]), (&true.into(), &false.into()), "{differs}");
    assert_eq!(differs[1]["memory_bytes"], 100 << 20);
    units.limits(&["apply"], &manifest).assert_says(&format!("changed {service}: memory 200M"));
    let table = units.limits(&["show"], &manifest);
    let row = |unit: &str| table.out().lines().find(|line| line.starts_with(unit)).map(str::to_owned);
    assert_eq!(
        row(&service).expect("a row").split_whitespace().collect::<Vec<_>>()[1..],
        ["active", "25%", "25%", "200M", "200M"]
    );
    units.limits(&["reset"], &manifest).assert_code(0);
    units.end(&[slice]);
}

#[test]
fn slices_are_all_made_or_none() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let service = units.service("a");
    let [first, there, refused] = ["a", "b", "c"].map(|part| units.slice(part));
    units.limits(&["apply"], &json!({"slices": [{"name": there, "cpu_percent": 10}]})).assert_code(0);
    systemctl(&["mask", "--runtime", "--", &refused]);
    let manifest = json!({
        "slices": [
            {"name": first, "memory": "64M"}, {"name": there, "cpu_percent": 20}, {"name": refused, "memory": "64M"}
        ],
        "services": [{"name": service, "memory": "64M"}],
    });
    let ran = units.limits(&["apply"], &manifest);
    ran.assert_code(125);
    assert!(ran.err().contains(&format!("cannot start {refused}: ")) && ran.err().contains("masked"), "{ran}");
    assert!(ran.err().contains("hint: no slice and no service has other limits than before"), "{ran}");
    assert_shows(&first, &["ActiveState=inactive"]);
    assert_shows(&there, &["CPUQuotaPerSecUSec=100ms", "ActiveState=active"]);
    assert_shows(&service, &[&memory_property("infinity")]);
    systemctl(&["unmask", "--runtime", "--", &refused]);
    units.reset().assert_says(&format!("changed {there}: cpu unlimited\nstopped {there}"));
    let parent = units.slice("");
    units.end(&[first, there, refused, parent]);
}

#[test]
fn a_service_that_cannot_be_limited_is_skipped_alone() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let (good, elsewhere) = (units.service("a"), units.service("b"));
    let missing = format!("{}-c.service", host.prefix());
    let manifest = json!({"services": [
        {"name": missing, "memory": "64M"},
        {"name": elsewhere, "memory": "64M", "slice": "user.slice"},
        {"name": "../x.service", "memory": "64M"},
        {"name": "y.service", "cpu_percent": 0},
        {"name": good, "memory": "64M"},
    ]});
    let ran = units.limits(&["apply"], &manifest);
    ran.assert_code(1);
    assert_eq!(ran.out(), format!("changed {good}: memory 64M"), "{ran}");
    for part in [
        format!("skipped {missing}: this host has no such unit (not-found)"),
        format!("skipped {elsewhere}: it is in system.slice, should be in user.slice; it is left alone"),
        "skipped services[2].name (../x.service): ".to_owned(),
        "skipped services[3].cpu_percent (y.service): ".to_owned(),
    ] {
        assert!(ran.err().contains(&part), "{part}\n{ran}");
    }
    assert_eq!((memory_in_kernel(&good), memory_in_kernel(&elsewhere)), (Some(64 << 20), None));
    let shown = units.limits(&["show", "--json"], &manifest).json();
    assert_eq!(shown[0]["loaded"], false);
    assert_eq!(shown[1]["note"], "is in system.slice, should be in user.slice");
    units.reset().assert_says(&format!("reset {good}: memory unlimited"));
    assert_eq!(memory_in_kernel(&good), None);
    units.end(&[]);
}

#[test]
fn a_file_that_wins_over_a_limit_at_the_next_reload_is_named() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let text = "[Service]\nExecStart=/bin/sleep 1000\n";
    let mut service = Installed::new(format!("{}-won.service", host.prefix()), text);
    systemctl(&["start", "--", &service.name]);
    let manifest = json!({"services": [{"name": service.name, "cpu_percent": 25, "memory": "200M"}]});
    let setting = memory_property("").trim_end_matches('=').to_owned();
    // Neither what comes before ours, nor what says the same.
    service.drop_in("10-before.conf", &format!("[Service]\n{setting}=300M\n"));
    let same = service.drop_in("60-same.conf", "[Service]\nCPUQuota=25%\n");
    units.limits(&["apply"], &manifest).assert_code(0);
    let late = service.drop_in("70-late.conf", "[Service]\nCPUQuota=40%\n");
    let ran = units.limits(&["apply"], &manifest);
    ran.assert_code(1);
    let sentence = |limit: &str, file: &str, value: &str| {
        format!("{}: {limit} does not last: once systemd reads its files again, {file} has {value}", service.name)
    };
    assert!(ran.err().contains(&sentence("cpu 25%", &late.display().to_string(), "40%")), "{ran}");
    assert!(!ran.err().contains("memory 200M does not last"), "{ran}");
    fs::remove_file(late).expect("it is there");
    fs::remove_file(same).expect("it is there");
    units.limits(&["apply"], &manifest).assert_code(0);
    // A persistent property has a file of the same name as ours, which comes first.
    systemctl(&["set-property", "--", &service.name, &memory_property("400M")]);
    let ran = units.limits(&["apply"], &manifest);
    ran.assert_code(1);
    let folder = format!("/etc/systemd/system.control/{}.d", service.name);
    let file = format!("{folder}/50-{setting}.conf");
    assert!(ran.err().contains(&sentence("memory 200M", &file, "419430400")), "{ran}");
    // It is in force until then: other cases have systemd read its files.
    eventually("it is in force", || {
        units.limits(&["apply"], &manifest);
        (memory_in_kernel(&service.name) == Some(200 << 20)).then_some(())
    });
    units.reset().assert_code(0);
    fs::remove_dir_all(folder).expect("root may");
    drop(service);
    units.end(&[]);
}

#[test]
fn what_an_earlier_manifest_has_made_is_cleaned_up_first() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let (a, b) = (units.service("a"), units.service("b"));
    let [old, kept] = ["old", "kept"].map(|part| units.slice(part));
    let first = json!({
        "slices": [{"name": old, "memory": "64M"}, {"name": kept, "memory": "64M", "cpu_percent": 10}],
        "services": [{"name": a, "memory": "64M"}, {"name": b, "memory": "64M", "cpu_percent": 10}],
    });
    units.limits(&["apply"], &first).assert_code(0);
    let second = json!({
        "slices": [{"name": kept, "memory": "64M"}],
        "services": [{"name": b, "cpu_percent": 10}],
    });
    let said = [
        format!("changed {old}: memory unlimited"),
        format!("reset {a}: memory unlimited"),
        format!("stopped {old}"),
        format!("changed {kept}: cpu unlimited"),
        format!("reset {b}: memory unlimited"),
    ];
    units.limits(&["apply"], &second).assert_says(&said.join("\n"));
    assert_forgotten(&old);
    assert_shows(&kept, &[&memory_property("67108864"), "CPUQuotaPerSecUSec=infinity"]);
    assert_shows(&b, &[&memory_property("infinity"), "CPUQuotaPerSecUSec=100ms"]);
    // And so again, by its name: nothing of the first keeps it from being made.
    units.limits(&["apply"], &first).assert_code(0);
    assert_shows(&old, &["ActiveState=active", &memory_property("67108864")]);
    units.reset().assert_code(0);
    let parent = units.slice("");
    units.end(&[old, kept, parent]);
}

#[test]
fn units_are_tracked_with_their_cgroups_and_none_is_lost() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let all: Vec<String> = ["a", "b", "c"].into_iter().map(|name| units.service(name)).collect();
    let tracking: Vec<_> = all.iter().map(|unit| host.spawn(["limits", "track", unit])).collect();
    for one in tracking {
        one.finish().assert_says("");
    }
    host.bowline(["limits", "track"]).assert_says(&all.join("\n"));
    let kept = Path::new("/var/lib/bowline/units").join(host.state().strip_prefix("/").expect("absolute"));
    let text = fs::read_to_string(kept.join("tracked.json")).expect("there");
    let tracked: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(tracked[0], json!({"unit": all[0], "cgroup": format!("/system.slice/{}", all[0])}));
    host.bowline(["limits", "track", &all[0]]).assert_says("");
    let missing = format!("{}-no.service", host.prefix());
    host.bowline(["limits", "track", &all[0], &missing]).assert_refused(125, &["cannot track", &missing, "not-found"]);
    host.bowline(["limits", "untrack", &all[1]]).assert_says("");
    let ran = host.bowline(["limits", "untrack", &all[1], &all[2]]);
    ran.assert_refused(1, &[&all[1], "is not tracked"]);
    host.bowline(["limits", "track"]).assert_says(&all[0]);
    host.bowline(["limits", "untrack", &all[0]]).assert_says("");
    assert!(!kept.exists(), "nothing is kept of nothing");
    units.end(&[]);
}
