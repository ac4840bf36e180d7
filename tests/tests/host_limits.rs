//! Limits of the host's own units: the kernel's files and `systemctl show` as witnesses. Returns at once on a host
//! without systemd; what makes no sense there either: `bad_input_limits`.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{
    Ran, assert_forgotten, assert_no_unit_files, assert_shows, has_systemd, hierarchy, only_v2, process_exists, show,
    systemctl,
};
use serde_json::{Value, json};

/// Units of this test's own.
struct Units<'h> {
    host: &'h Host,
    services: Vec<String>,
}

impl<'h> Units<'h> {
    fn new(host: &'h Host) -> Units<'h> {
        Units { host, services: Vec::new() }
    }

    /// A slice's name, in none but the root; with a part, in that one.
    fn slice(&self, part: &str) -> String {
        let stem = self.host.prefix().replace('-', "\\x2d");
        if part.is_empty() { format!("{stem}.slice") } else { format!("{stem}-{part}.slice") }
    }

    /// A service that runs, in `system.slice`.
    fn service(&mut self, name: &str) -> String {
        let unit = format!("{}-{name}.service", self.host.prefix());
        let mut run = Command::new("systemd-run");
        let done = run.args(["--quiet", "--collect", "--unit", &unit, "sleep", "1000"]).status().expect("it is there");
        assert!(done.success(), "{done}");
        self.services.push(unit.clone());
        unit
    }

    /// `limits VERB` of this manifest.
    fn limits(&self, verb: &[&str], manifest: &Value) -> Ran {
        let file = self.host.file("limits.json", &manifest.to_string());
        let mut args = vec!["limits"];
        args.extend(verb);
        args.push(file.to_str().expect("ASCII"));
        self.host.bowline(args)
    }

    fn reset(&self) -> Ran {
        self.host.bowline(["limits", "reset"])
    }

    /// Nothing of all this is left.
    fn end(self, slices: &[String]) {
        self.services.iter().for_each(|unit| systemctl(&["stop", "--", unit]));
        self.host.assert_nothing_left();
        slices.iter().for_each(|slice| assert_forgotten(slice));
        assert_no_unit_files(slices.iter().map(String::as_str).collect::<Vec<_>>().as_slice());
    }
}

/// What the kernel has in this file of the unit's cgroup; nothing where systemd has made none, as it does for who needs
/// none of the controller.
fn in_kernel(unit: &str, controller: &str, name: &str) -> Option<String> {
    let path = show(unit, "ControlGroup");
    let file = hierarchy(controller).join(path.trim_start_matches("ControlGroup=").trim_start_matches('/')).join(name);
    match fs::read_to_string(&file) {
        Ok(text) => Some(text.trim_end().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", file.display()),
    }
}

/// The kernel's limit of its memory, in bytes.
fn memory_in_kernel(unit: &str) -> Option<u64> {
    let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let limit = in_kernel(unit, "memory", file)?;
    // v1 has no other word for "max" than the largest multiple of a page.
    (limit != "max").then(|| limit.parse().expect("a number")).filter(|limit| *limit < i64::MAX as u64 >> 1)
}

/// The kernel's limit of its CPU time, in µs for each 100 ms.
fn cpu_in_kernel(unit: &str) -> Option<u64> {
    let (quota, period) = if only_v2() {
        let limit = in_kernel(unit, "cpu", "cpu.max")?;
        limit.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned())).expect("two words")
    } else {
        (in_kernel(unit, "cpu", "cpu.cfs_quota_us")?, in_kernel(unit, "cpu", "cpu.cfs_period_us")?)
    };
    assert_eq!(period, "100000", "{unit}");
    (quota != "max" && quota != "-1").then(|| quota.parse().expect("a number"))
}

#[track_caller]
fn assert_unlimited(unit: &str) {
    assert_eq!((cpu_in_kernel(unit), memory_in_kernel(unit)), (None, None), "{unit}");
}

/// systemd's property of the most memory, with this value.
fn memory_property(value: &str) -> String {
    format!("{}={value}", if only_v2() { "MemoryMax" } else { "MemoryLimit" })
}

#[test]
fn slices_and_services_have_the_limits_of_the_manifest_in_the_kernel() {
    if !has_systemd() {
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
fn only_what_differs_is_set() {
    if !has_systemd() {
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
    if !has_systemd() {
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
fn services_that_cannot_be_limited_are_skipped_and_the_rest_is_done() {
    if !has_systemd() {
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
        format!("skipped {elsewhere}: it is in system.slice, and should be in user.slice; it is left alone"),
        "skipped services[2].name (../x.service): ".to_owned(),
        "skipped services[3].cpu_percent (y.service): ".to_owned(),
    ] {
        assert!(ran.err().contains(&part), "{part}\n{ran}");
    }
    assert_eq!((memory_in_kernel(&good), memory_in_kernel(&elsewhere)), (Some(64 << 20), None));
    let shown = units.limits(&["show", "--json"], &manifest).json();
    assert_eq!(shown[0]["loaded"], false);
    assert_eq!(shown[1]["note"], "is in system.slice, should be in user.slice");
    units.reset().assert_says(&format!("changed {good}: memory unlimited"));
    assert_eq!(memory_in_kernel(&good), None);
    units.end(&[]);
}

#[test]
fn what_an_earlier_manifest_has_made_is_cleaned_up_first() {
    if !has_systemd() {
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
        format!("changed {a}: memory unlimited"),
        format!("changed {old}: memory unlimited"),
        format!("stopped {old}"),
        format!("changed {kept}: cpu unlimited"),
        format!("changed {b}: memory unlimited"),
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
    if !has_systemd() {
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
    let text = fs::read_to_string(host.state().join(".limits/tracked.json")).expect("there");
    let tracked: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(tracked[0], json!({"unit": all[0], "cgroup": format!("/system.slice/{}", all[0])}));
    host.bowline(["limits", "track", &all[0]]).assert_says("");
    let missing = format!("{}-no.service", host.prefix());
    host.bowline(["limits", "track", &all[0], &missing]).assert_refused(125, &["cannot track", &missing, "not-found"]);
    host.bowline(["limits", "untrack", &all[1]]).assert_says("");
    let ran = host.bowline(["limits", "untrack", &all[1], &all[2]]);
    ran.assert_refused(1, &[&all[1], "is not tracked"]);
    host.bowline(["limits", "track"]).assert_says(&all[0]);
    units.end(&[]);
}
