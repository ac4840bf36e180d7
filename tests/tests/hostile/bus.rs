//! A systemd that gives no reply, as it does when it executes itself anew: it is asked once more, and what then still has
//! no answer is bowline's own failure, never a deadline of the caller's.

use std::collections::HashMap;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::bus::{Bus, Reply, UNIT};
use bowline_tests::harness::{binary, only_v2};

const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";

/// A systemd that has every unit that it is asked for, and claims to do everything.
fn obedient(method: &str, name: &str) -> Reply {
    match method {
        "StartTransientUnit" | "StopUnit" => Reply::Job,
        "GetUnit" => Reply::Refused(NO_SUCH_UNIT),
        "LoadUnit" => Reply::Path(format!("{UNIT}{}", name.replace(['-', '.'], "_"))),
        "GetAll" => Reply::Properties(vec![
            ("Id", "x.service".to_owned()),
            ("LoadState", "loaded".to_owned()),
            ("ActiveState", "active".to_owned()),
            ("Slice", "system.slice".to_owned()),
        ]),
        _ => Reply::Nothing,
    }
}

/// `bowline ARGS` with this bus.
fn bowline(host: &Host, bus: &Bus, args: &[&str]) -> Command {
    let mut command = host.command(binary("bowline"));
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address()).args(args);
    command
}

#[test]
fn one_that_never_replies_is_asked_twice_and_is_no_timeout() {
    let host = Host::new();
    let bus = Bus::at(&host.work().join("bus"), |_, _| Reply::NoReply);
    let id = host.new_id();
    for verb in ["start", "run"] {
        let ran =
            host.execute(bowline(&host, &bus, &[verb, "--cgroup-driver=systemd", "--name", &id, "--", "/bin/true"]));
        ran.assert_refused(125, &["NoReply"]);
    }
    assert_eq!(bus.calls("Subscribe"), 4, "twice each");
    drop(bus);
    host.assert_nothing_left_without_rm();
}

#[test]
fn one_that_comes_back_does_what_it_was_asked_for() {
    // On v1 what systemd has not made is made by bowline; on v2 the unit would have to be there.
    if only_v2() {
        return;
    }
    let host = Host::new();
    let mut asked = HashMap::new();
    let bus = Bus::at(&host.work().join("bus"), move |method, name| {
        let times = asked.entry(method.to_owned()).or_insert(0);
        *times += 1;
        match (method, *times) {
            (_, 1) => Reply::NoReply,
            // The first time it had started it all the same.
            ("StartTransientUnit", _) => Reply::Refused(UNIT_EXISTS),
            ("GetUnit", 2) => Reply::Refused(NO_SUCH_UNIT),
            ("GetUnit" | "GetUnitByPID", _) => Reply::Path(format!("{UNIT}ours")),
            _ => obedient(method, name),
        }
    });
    let id = host.new_id();
    let args = ["run", "--cgroup-driver=systemd", "--name", &id, "--", "/bin/sh", "-c", "exit 7"];
    let ran = host.execute(bowline(&host, &bus, &args));
    ran.assert_code(7);
    assert_eq!((bus.calls("StartTransientUnit"), bus.calls("StopUnit")), (2, 2), "{ran}");
    host.adopt(id);
    drop(bus);
}

/// A systemd that has every unit, each under the name that it is asked for, where `answer` says nothing else.
fn host_bus(host: &Host, answer: impl Fn(&str, &str) -> Option<Reply> + Send + 'static) -> Bus {
    let mut asked = String::new();
    Bus::at(&host.work().join("bus"), move |method, name| {
        if method == "LoadUnit" {
            asked = name.to_owned();
        }
        match (answer(method, name), obedient(method, name)) {
            (Some(reply), _) => reply,
            (None, Reply::Properties(mut all)) => {
                all[0].1.clone_from(&asked);
                Reply::Properties(all)
            }
            (None, reply) => reply,
        }
    })
}

/// `bowline limits ARGS` on a host that this systemd runs.
fn limits(host: &Host, bus: &Bus, args: &str) -> Command {
    let mut command = host.command("unshare");
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec {} limits {args}",
        binary("bowline").display()
    );
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
    command.args(["--mount", "--propagation=private", "/bin/sh", "-c", &script]);
    command
}

#[test]
fn a_unit_that_goes_between_look_and_change_is_skipped_alone() {
    let host = Host::new();
    let bus = host_bus(&host, |method, name| {
        (method == "SetUnitProperties" && name.starts_with("gone")).then_some(Reply::Refused(NO_SUCH_UNIT))
    });
    let services =
        ["one", "gone", "two"].map(|name| serde_json::json!({"name": format!("{name}.service"), "memory": "64M"}));
    let file = host.file("limits.json", &serde_json::json!({ "services": services }).to_string());
    let ran = host.execute(limits(&host, &bus, &format!("apply {}", file.display())));
    ran.assert_code(1);
    assert_eq!(ran.out(), "changed one.service: memory 64M\nchanged two.service: memory 64M", "{ran}");
    assert!(ran.err().contains("skipped gone.service: it has gone since it was looked at"), "{ran}");
    let applied = std::fs::read_to_string(host.state().join(".limits/applied.json")).expect("there");
    assert!(applied.contains("two.service") && !applied.contains("gone.service"), "it has no limits: {applied}");
    drop(bus);
}

#[test]
fn a_slice_that_goes_between_look_and_change_is_started() {
    let host = Host::new();
    let bus = host_bus(&host, |method, _| match method {
        "SetUnitProperties" => Some(Reply::Refused(NO_SUCH_UNIT)),
        _ => None,
    });
    let file = host.file("limits.json", r#"{"slices": [{"name": "gone.slice", "memory": "64M"}]}"#);
    let ran = host.execute(limits(&host, &bus, &format!("apply {}", file.display())));
    ran.assert_says("started gone.slice: memory 64M");
    drop(bus);
}

#[test]
fn limits_go_on_with_the_next_unit_and_say_which_was_skipped() {
    let host = Host::new();
    let silent = |name: &str| name.starts_with("silent");
    let bus = host_bus(&host, move |method, name| {
        (matches!(method, "LoadUnit" | "SetUnitProperties") && silent(name)).then_some(Reply::NoReply)
    });
    let limits = |args: &str| host.execute(limits(&host, &bus, args));
    let services = |names: &[&str]| {
        let all = names.iter().map(|name| serde_json::json!({"name": name, "memory": "64M"}));
        let manifest = serde_json::json!({ "services": all.collect::<Vec<_>>() });
        host.file("limits.json", &manifest.to_string()).display().to_string()
    };
    let ran = limits(&format!("apply {}", services(&["one.service", "silent.service", "two.service"])));
    ran.assert_code(1);
    assert_eq!(ran.out(), "changed one.service: memory 64M\nchanged two.service: memory 64M", "{ran}");
    assert!(ran.err().contains("skipped ") && ran.err().contains("silent.service"), "{ran}");
    assert_eq!(bus.calls("LoadUnit"), 4, "the silent one twice");
    let ran = limits(&format!("apply {}", services(&["two.service"])));
    ran.assert_code(0);
    drop(bus);
}
