//! What the Azure Linux agent's cgroup configurator does, case by case, named after its functions. What holds in other
//! files stays there: docs/reference-systems.md has every row. Nearly all of it is systemd's, and returns at once on a
//! host without it.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::host_units::{Units, assert_unlimited, cpu_in_kernel, memory_in_kernel, memory_property};
use bowline_tests::harness::{
    Installed, assert_forgotten, assert_shows, binary, cgroup_of, hierarchies, lacks_systemd, only_v2, show, systemctl,
};
use serde_json::{Value, json};

/// A service of a file that limits it: to 30 % of a CPU and 300 MiB.
fn limited_service(host: &Host, name: &str) -> Installed {
    let memory = memory_property("300M");
    let text = format!("[Service]\nExecStart=/bin/sleep 1000\nCPUQuota=30%\n{memory}\n");
    let unit = Installed::new(format!("{}-{name}.service", host.prefix()), &text);
    systemctl(&["start", "--", &unit.name]);
    unit
}

/// The limits of [`limited_service`], by systemd and in the kernel.
#[track_caller]
fn assert_as_its_file_says(unit: &str) {
    assert_shows(unit, &["CPUQuotaPerSecUSec=300ms", &memory_property("314572800")]);
    assert_eq!((cpu_in_kernel(unit), memory_in_kernel(unit)), (Some(30_000), Some(300 << 20)), "{unit}");
}

/// The `enforcement` that `inspect` prints for a running task.
fn enforcement(host: &Host, id: &str) -> Value {
    host.bowline(["inspect", id]).json()["enforcement"].clone()
}

#[test]
fn check_cgroups_supported_refuses_controllers_elsewhere() {
    let host = Host::new();
    let file = host.file("limits.json", r#"{"services": [{"name": "x.service", "memory": "64M"}]}"#);
    let place = host.work().join("cgroups");
    let mounts = match only_v2() {
        true => "mount -t cgroup2 none $place".to_owned(),
        false => {
            let mounts = ["cpu", "memory", "freezer"]
                .map(|one| format!("mkdir $place/{one}; mount -t cgroup -o {one} none $place/{one}"));
            mounts.join("; ")
        }
    };
    let script = format!(
        "set -e; place={}; mkdir $place; {mounts}; umount -R -l /sys/fs/cgroup; exec {} limits apply {}",
        place.display(),
        binary("bowline").display(),
        file.display()
    );
    let mut command = host.command("unshare");
    command.args(["--mount", "--propagation=private", "/bin/sh", "-c", &script]);
    let ran = host.execute(command);
    let elsewhere = format!("mounted at {}", place.display());
    ran.assert_refused(125, &["limits of the host's units are not supported here", &elsewhere, "/sys/fs/cgroup"]);
}

#[test]
fn initialize_leaves_a_unit_in_an_unexpected_cgroup_alone() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let [old, new] = ["old", "new"].map(|part| units.slice(part));
    let text = format!("[Service]\nExecStart=/bin/sleep 1000\nSlice={old}\n");
    let mut unit = Installed::new(format!("{}-a.service", host.prefix()), &text);
    systemctl(&["start", "--", &unit.name]);
    // Its property says so at once; the process is moved by the next start.
    unit.drop_in("slice.conf", &format!("[Service]\nSlice={new}\n"));
    assert_shows(&unit.name, &[&format!("Slice={new}")]);
    let place = show(&unit.name, "ControlGroup");
    assert!(place.contains(&old), "{place}");
    let manifest = json!({"services": [{"name": unit.name, "memory": "64M", "slice": new}]});
    let ran = units.limits(&["apply"], &manifest);
    ran.assert_code(1);
    let still = format!("skipped {}: it is still at {}", unit.name, place.trim_start_matches("ControlGroup="));
    assert!(ran.err().contains(&still) && ran.err().contains("it is left alone"), "{ran}");
    assert_unlimited(&unit.name);
    assert_eq!(show(&unit.name, "ControlGroup"), place, "it was not moved");
    systemctl(&["restart", "--", &unit.name]);
    units.limits(&["apply"], &manifest).assert_says(&format!("changed {}: memory 64M", unit.name));
    assert_eq!(memory_in_kernel(&unit.name), Some(64 << 20));
    units.reset().assert_says(&format!("reset {}: memory unlimited", unit.name));
    let name = unit.name.clone();
    drop(unit);
    assert_forgotten(&name);
    end_slices(&[&old, &new, &units.slice("")]);
    units.end(&[old, new]);
}

/// Ends slices that systemd has made by itself.
fn end_slices(slices: &[&str]) {
    for slice in slices {
        let _ = Command::new("systemctl").args(["stop", "--", slice]).status();
    }
}

#[test]
fn cleanup_old_agent_setup_removes_drop_ins_of_older_versions() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let mut unit = limited_service(&host, "a");
    let left = unit.drop_in("50-bowline.conf", "# Made by bowline.\n[Service]\nCPUQuota=5%\nMemoryAccounting=yes\n");
    let others = unit.drop_in("60-bowline.conf", "[Service]\nNice=5\n");
    assert_shows(&unit.name, &["CPUQuotaPerSecUSec=50ms"]);
    let manifest = json!({"services": [{"name": unit.name, "memory": "64M"}]});
    let (removed, changed) = (format!("{}, of an older version", left.display()), format!("{}: memory 64M", unit.name));
    let would = format!("would remove {removed}\nwould change {changed}");
    units.limits(&["apply", "--dry-run"], &manifest).assert_says(&would);
    assert!(left.exists());
    units.limits(&["apply"], &manifest).assert_says(&format!("removed {removed}\nchanged {changed}"));
    assert!(!left.exists() && others.exists(), "what does more than limit is not ours");
    assert_shows(&unit.name, &["CPUQuotaPerSecUSec=300ms", "Nice=5"]);
    assert_eq!((cpu_in_kernel(&unit.name), memory_in_kernel(&unit.name)), (Some(30_000), Some(64 << 20)));
    units.limits(&["apply"], &manifest).assert_says("");
    units.reset().assert_code(0);
    assert_as_its_file_says(&unit.name);
    drop(unit);
    units.end(&[]);
}

#[test]
fn get_unit_properties_requiring_update_without_limits() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let off = ["--property=CPUAccounting=no", "--property=MemoryAccounting=no"];
    let (counted, held) = (units.service_with("a", &off), units.service_with("b", &["--property=CPUQuota=20%"]));
    let slice = units.slice("");
    let manifest = json!({"slices": [{"name": slice}], "services": [{"name": counted}, {"name": held}]});
    // Where systemd always counts, there is nothing to switch on.
    let switched = show(&counted, "CPUAccounting") == "CPUAccounting=no";
    let said = units.limits(&["apply"], &manifest);
    said.assert_code(0);
    let line = |unit: &str| said.out().lines().find(|line| line.contains(unit)).map(str::to_owned).unwrap_or_default();
    assert_eq!(line(&counted).ends_with(": cpu accounting, memory accounting"), switched, "{said}");
    assert_eq!(line(&held), format!("changed {held}: cpu unlimited"), "{said}");
    assert_eq!(line(&slice), format!("started {slice}: cpu unlimited, memory unlimited"), "{said}");
    for unit in [&counted, &held, &slice] {
        assert_unlimited(unit);
        if switched {
            assert_shows(unit, &["CPUAccounting=yes", "MemoryAccounting=yes"]);
        }
    }
    units.limits(&["apply"], &manifest).assert_says("");
    let shown = units.limits(&["show", "--json"], &manifest).json();
    assert_eq!((&shown[1]["memory_bytes_wanted"], &shown[1]["as_wanted"]), (&Value::Null, &true.into()), "{shown}");
    units.reset().assert_code(0);
    assert_shows(&held, &["CPUQuotaPerSecUSec=200ms"]);
    assert_eq!(cpu_in_kernel(&held), Some(20_000));
    if switched {
        assert_shows(&counted, &["CPUAccounting=no", "MemoryAccounting=no"]);
    }
    units.end(&[slice]);
}

#[test]
fn reset_resource_quota_gives_a_service_back_what_its_files_say() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let unit = limited_service(&host, "a");
    let manifest = json!({"services": [{"name": unit.name, "cpu_percent": 10, "memory": "64M"}]});
    units.limits(&["apply"], &manifest).assert_code(0);
    assert_eq!((cpu_in_kernel(&unit.name), memory_in_kernel(&unit.name)), (Some(10_000), Some(64 << 20)));
    let would = format!("would reset {}: cpu, memory", unit.name);
    host.bowline(["limits", "reset", "--dry-run"]).assert_says(&would);
    units.reset().assert_says(&format!("reset {}: cpu 30%, memory 300M", unit.name));
    assert_as_its_file_says(&unit.name);
    units.reset().assert_says("");

    // One of them, which the next manifest does not name.
    units.limits(&["apply"], &manifest).assert_code(0);
    let less = json!({"services": [{"name": unit.name, "cpu_percent": 10}]});
    units.limits(&["apply"], &less).assert_says(&format!("reset {}: memory 300M", unit.name));
    assert_eq!((cpu_in_kernel(&unit.name), memory_in_kernel(&unit.name)), (Some(10_000), Some(300 << 20)));
    units.limits(&["reset"], &less).assert_says(&format!("reset {}: cpu 30%", unit.name));
    assert_as_its_file_says(&unit.name);

    // What somebody had set before until the next boot counts as the service's own.
    systemctl(&["set-property", "--runtime", "--", &unit.name, "CPUQuota=40%"]);
    units.limits(&["apply"], &manifest).assert_code(0);
    assert_eq!(cpu_in_kernel(&unit.name), Some(10_000));
    units.reset().assert_says(&format!("reset {}: cpu 40%, memory 300M", unit.name));
    assert_eq!((cpu_in_kernel(&unit.name), memory_in_kernel(&unit.name)), (Some(40_000), Some(300 << 20)));
    systemctl(&["revert", &unit.name]);
    drop(unit);
    units.end(&[]);
}

#[test]
fn set_extension_services_quota_counts_aliases_as_one_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let mut unit = limited_service(&host, "a");
    let [alias, other] = ["b", "c"].map(|name| format!("{}-{name}.service", host.prefix()));
    unit.also(&alias);
    unit.also(&other);
    let name = unit.name.clone();
    // Both names lead to one unit. Where their entries differ, the later one in the manifest counts.
    let same = json!({"services": [{"name": alias, "memory": "64M"}, {"name": name, "memory": "64M"}]});
    units.limits(&["apply"], &same).assert_says(&format!("changed {name}: memory 64M"));
    let twice = json!({"services": [{"name": alias, "memory": "64M"}, {"name": other, "memory": "128M"}]});
    let ran = units.limits(&["apply"], &twice);
    ran.assert_code(1);
    let skipped = format!("skipped {other}: it is another name of {name}, whose entry before it counts");
    assert!(ran.out().is_empty() && ran.err().contains(&skipped), "it is limited already\n{ran}");
    assert_eq!(memory_in_kernel(&name), Some(64 << 20));
    let again = json!({"services": [{"name": alias, "memory": "64M"}, {"name": alias, "memory": "128M"}]});
    let ran = units.limits(&["apply"], &again);
    ran.assert_code(1);
    assert!(ran.err().contains(&format!("services[1].name ({alias}): an entry before it has the same name")), "{ran}");
    let shown = host.bowline(["limits", "show", "--json"]).json();
    assert_eq!((shown.as_array().map(Vec::len), &shown[0]["unit"]), (Some(1), &name.clone().into()), "{shown}");
    units
        .limits(&["reset"], &json!({"services": [{"name": other, "memory": "64M"}]}))
        .assert_says(&format!("reset {name}: memory 300M"));
    assert_as_its_file_says(&name);
    drop(unit);
    units.end(&[]);
}

#[test]
fn start_tracking_unit_cgroups_outlives_moves_and_reboots() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let mut unit = limited_service(&host, "a");
    let name = unit.name.clone();
    host.bowline(["limits", "track", &name]).assert_says("");
    let labels = |slices: &str| format!("{{unit=\"{name}\",cgroup=\"{slices}/{name}\"}}");
    assert_eq!(host.metrics().value(&format!("bowline_unit_up{}", labels("/system.slice"))), 1.0);
    let [outer, inner] = ["", "moved"].map(|part| units.slice(part));
    unit.drop_in("slice.conf", &format!("[Service]\nSlice={inner}\n"));
    systemctl(&["restart", "--", &name]);
    let metrics = host.metrics();
    let moved = labels(&format!("/{outer}/{inner}")).replace('\\', "\\\\");
    assert_eq!(metrics.value(&format!("bowline_unit_up{moved}")), 1.0);
    assert!(metrics.value(&format!("bowline_unit_memory_usage_bytes{moved}")) > 0.0);

    // The state folder goes with the boot, as what is below /run does.
    fs::remove_dir_all(host.state()).expect("nothing runs");
    host.bowline(["limits", "track"]).assert_says(&name);
    assert_eq!(host.metrics().value(&format!("bowline_unit_up{moved}")), 1.0);
    host.bowline(["limits", "untrack", &name]).assert_says("");
    host.bowline(["limits", "track"]).assert_says("");
    drop(unit);
    end_slices(&[&inner, &outer]);
    units.end(&[inner, outer]);
}

#[test]
fn start_tracking_unit_cgroups_finds_a_unit_below_slices_alone() {
    let host = Host::new();
    let name = format!("{}-x.service", host.prefix());
    let (slice, user) = (format!("{}.slice", host.prefix()), format!("{}-user.service", host.prefix()));
    let made: Vec<_> = hierarchies().into_iter().map(|(_, mount)| mount).collect();
    let all = [format!("{slice}/{user}/{name}"), format!("{slice}/{slice}/{name}")];
    for folder in made.iter().flat_map(|mount| all.iter().map(move |path| mount.join(path))) {
        fs::create_dir_all(folder).expect("root may");
    }
    let folder = host.state().join(".limits");
    fs::create_dir_all(&folder).expect("the test's own");
    // As an older version has kept it.
    let tracked = json!([{"unit": name, "cgroup": format!("/system.slice/{name}")}]);
    fs::write(folder.join("tracked.json"), tracked.to_string()).expect("the test's own");
    let up = host.metrics().with("bowline_unit_up{").into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(up, [format!("bowline_unit_up{{unit=\"{name}\",cgroup=\"/{slice}/{slice}/{name}\"}}")]);
    for mount in &made {
        for path in &all {
            let below = Path::new(path).ancestors().take_while(|path| !path.as_os_str().is_empty());
            below.for_each(|path| drop(fs::remove_dir(mount.join(path))));
        }
    }
}

#[test]
fn start_extension_command_is_held_by_a_limit_above_its_slice() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let units = Units::new(&host);
    let [outer, inner] = ["", "inner"].map(|part| units.slice(part));
    units.limits(&["apply"], &json!({"slices": [{"name": outer, "memory": "512M"}]})).assert_code(0);
    let task = host.task("exec sleep 1000").flag(format!("--slice={inner}")).start();
    assert_eq!(enforcement(&host, task.id()), json!({"slice": inner, "enforced": true, "reason": null}));
    assert_eq!(memory_in_kernel(&outer), Some(512 << 20));
    // Without the manifest nobody limits it, which is told, of what runs too. The slice stays with that.
    units.reset().assert_code(1);
    let lifted = json!({"slice": inner, "enforced": false, "reason": format!("nothing limits {inner} any more")});
    assert_eq!(task.inspect()["enforcement"], lifted);
    assert_eq!(task.end().0["enforcement"], lifted);
    assert_eq!(task.inspect()["enforcement"], lifted);
    units.reset().assert_code(0);
    let ran = host.task("exit 0").flag(format!("--slice={inner}")).flag("--rm").run();
    ran.assert_code(0);
    let told = format!("runs in {inner}, which does not hold it to anything: nothing limits {inner}");
    assert!(ran.err().contains(&told), "{ran}");
    end_slices(&[&inner, &outer]);
    units.end(&[inner, outer]);
}

#[test]
fn disable_lifts_all_limits_when_a_slice_cannot_be_as_wanted() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let (service, unit) = (units.service("a"), limited_service(&host, "b"));
    let [there, refused] = ["a", "b"].map(|part| units.slice(part));
    let first = json!({
        "slices": [{"name": there, "cpu_percent": 10}],
        "services": [{"name": service, "memory": "64M"}, {"name": unit.name, "cpu_percent": 10}],
    });
    units.limits(&["apply"], &first).assert_code(0);
    systemctl(&["mask", "--runtime", "--", &refused]);
    let mut second = first.clone();
    second["slices"].as_array_mut().expect("a list").push(json!({"name": refused, "memory": "64M"}));
    let kept = units.limits(&["apply"], &second);
    kept.assert_code(125);
    assert_eq!(memory_in_kernel(&service), Some(64 << 20), "by default all stays as it was\n{kept}");
    second["on_failure"] = "disable".into();
    let ran = units.limits(&["apply"], &second);
    ran.assert_code(125);
    assert!(ran.err().contains(&format!("cannot start {refused}: ")), "{ran}");
    assert!(ran.err().contains("hint: all limits that were applied are lifted, as on_failure"), "{ran}");
    assert_unlimited(&service);
    assert_as_its_file_says(&unit.name);
    assert_shows(&there, &["ActiveState=inactive"]);
    systemctl(&["unmask", "--runtime", "--", &refused]);
    units.reset().assert_says("");
    drop(unit);
    let parent = units.slice("");
    units.end(&[there, refused, parent]);
}

#[test]
fn disable_lifts_all_limits_if_systemd_refuses_a_task_s_slice() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let mut units = Units::new(&host);
    let service = units.service("a");
    let slice = units.slice("");
    let mut manifest = json!({
        "slices": [{"name": slice, "cpu_percent": 50}],
        "services": [{"name": service, "memory": "64M"}],
        "on_failure": "disable",
    });
    // The name of the task's scope is taken.
    let id = host.new_id();
    let scope = format!("bowline-{}.scope", host.named(&id));
    let mut taken = Command::new("systemd-run");
    taken.args(["--quiet", "--scope", "--collect", "--unit", &scope, "sleep", "1000"]);
    let taken = host.spawn_command(taken);
    bowline_tests::harness::eventually("the name is taken", || {
        (show(&scope, "ActiveState") == "ActiveState=active").then_some(())
    });
    let run = |how| host.task("exit 3").named(&id).flag(format!("--slice={slice}{how}")).flag("--rm").run();

    units.limits(&["apply"], &manifest).assert_code(0);
    run("").assert_refused(125, &[&scope]);
    assert_eq!(memory_in_kernel(&service), Some(64 << 20), "nothing runs outside of it");
    let ran = run(",optional");
    ran.assert_code(3);
    assert_eq!(ran.out(), "", "that is the task's\n{ran}");
    assert!(ran.err().contains(&format!("runs outside of {slice}, whose limits do not hold for it")), "{ran}");
    assert!(ran.err().contains("all limits that were applied are lifted, as on_failure"), "{ran}");
    assert_unlimited(&service);
    assert_forgotten(&slice);
    host.bowline(["limits", "show", "--json"]).assert_says("[]");

    // Where the manifest does not ask for it, they stay.
    manifest["on_failure"] = "keep".into();
    units.limits(&["apply"], &manifest).assert_code(0);
    let ran = run(",optional");
    ran.assert_code(3);
    assert!(ran.err().contains("runs outside of") && !ran.err().contains("on_failure"), "{ran}");
    assert_eq!(memory_in_kernel(&service), Some(64 << 20));
    assert!(cgroup_of(taken.pid()).values().any(|path| path.ends_with(&scope)), "it is somebody else's");
    units.reset().assert_code(0);
    taken.signal(rustix::process::Signal::KILL);
    taken.finish();
    assert_forgotten(&scope);
    units.end(&[slice]);
}
